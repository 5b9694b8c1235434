"""The state of a page of several runs: the runs of a folder, listed and compared."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..monitoring.live_file import FILE as LIVE
from ..runs.directory import ROUNDS
from .run_view import RunView

_MOST_RUNS: Final = 200  # the newest
_POINTS: Final = 200  # of a run's curve
_READ_S: Final = 1.0  # time after which the list is shown with what has been read so far
_FILES: Final = ("config.toml", ROUNDS, LIVE, "summary.json")
_PATTERNS: Final = ("*/config.toml", "*/*/config.toml")  # compare makes a folder of folders

_UNREAD: Final[dict[str, Any]] = {
    **dict.fromkeys(("num_selected", "num_rounds", "time_s", "accuracy", "best_accuracy")),
    **{"state": "cannot be read", "policy": "", "simulated": False, "buffered": False},
    **{"round": 0, "num_clients": 0, "num_alarms": 0, "random": None, "settings": {}},
    "curve": {"round": [], "time_s": [], "accuracy": []},
}


@dataclass(slots=True)
class _Entry:
    """A run of the folder."""

    path: Path
    name: str
    version: tuple[object, ...] = ()
    view: RunView | None = None  # of one that goes on
    found: dict[str, Any] = field(default_factory=dict)


class RunsView:
    """A reader that follows a folder of run directories, two levels deep.

    Parameters
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, _Entry] = {}
        self._pending = self._left_out = 0

    def folder_of(self, run: str) -> Path | None:
        """Return the run directory of an identifier that the state has; ``None``: of no run."""
        entry = self._entries.get(run)
        return None if entry is None else entry.path

    def refresh(self) -> bool:
        """Read what is new, for about a second, and return whether anything is."""
        known = set(self._entries)
        self._list()
        changed, self._pending = known != set(self._entries), 0
        end_s = time.monotonic() + _READ_S
        for entry in self._entries.values():
            version = _version(entry.path)
            going_on = entry.found.get("state") == "running"
            if version == entry.version and not going_on:
                continue
            if time.monotonic() > end_s:
                self._pending += 1
                continue
            changed |= _look(entry, version)
        return changed or self._pending > 0

    def state(self) -> dict[str, Any]:
        """Return what the page shows, ready for JSON."""
        shown = [
            {"id": key, "name": entry.name, **entry.found}
            for key, entry in self._entries.items()
            if entry.found
        ]
        return {
            "name": self.path.resolve().name,
            "pending": self._pending,
            "left_out": self._left_out,
            "runs": shown,
        }

    def _list(self) -> None:
        """Find the runs, the newest first."""
        found: dict[Path, float] = {}
        for pattern in _PATTERNS:
            for config in self.path.glob(pattern):
                try:
                    found[config.parent] = config.stat().st_mtime
                except OSError:
                    continue
        newest = sorted(found, key=lambda each: (-found[each], str(each)))
        self._left_out = max(0, len(newest) - _MOST_RUNS)
        entries = {}
        for path in newest[:_MOST_RUNS]:
            name = path.relative_to(self.path).as_posix()
            key = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]
            entries[key] = self._entries.get(key) or _Entry(path, name)
        self._entries = entries


def _look(entry: _Entry, version: tuple[object, ...]) -> bool:
    """Read a run, and return whether anything is new."""
    view = entry.view or RunView(entry.path)
    try:
        if not view.refresh() and version == entry.version:
            return False
        entry.found, entry.version = _summary(view.state(), view), version
    except Exception as error:  # of files that are not as a run writes them; others are shown
        entry.found, entry.version = (
            {**_UNREAD, "error": f"{type(error).__name__}: {error}"},
            version,
        )
    entry.view = view if entry.found["state"] == "running" else None
    return True


def _version(path: Path) -> tuple[object, ...]:
    found: list[object] = []
    for name in _FILES:
        try:
            stat = (path / name).stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _summary(state: dict[str, Any], view: RunView) -> dict[str, Any]:
    """Return what the list needs of a run's state."""
    run, top, accuracy = state["run"], state["top"], state["accuracy"]
    count = len(accuracy["round"])
    at = np.unique(np.linspace(0, max(count - 1, 0), min(count, _POINTS)).astype(int)).tolist()
    keys = ("state", "simulated", "policy", "num_selected", "buffered", "num_rounds")
    return {
        **{key: run[key] for key in keys},
        "round": top["round"],
        "time_s": top["time_s"],
        "accuracy": top["accuracy"],
        "best_accuracy": top["best_accuracy"],
        "num_clients": len(state["clients"]["name"]),
        "num_alarms": len(state["alarms"]),
        "random": state["random"],
        "curve": {
            key: [accuracy[key][i] for i in at] if count else []
            for key in ("round", "time_s", "accuracy")
        },
        "settings": view.about(log=False)["settings"],
    }

"""A run directory, opened for reading: of a fleet or a simulation, finished or still growing."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.runs.directory import count_rounds, read_rounds
from flower_scheduling.strategies.flower import RoundRecord

from ..wording import plain

_MOST_NAMED: Final = 5


@dataclass(frozen=True)
class RecordedArm:
    """A client of a recorded run.

    Attributes
    ----------
    name : str
        What it calls itself: text of strangers.
    num_examples : int or None
        Size of its data set, where known.
    floor : float or None
        Its participation floor, if the policy keeps floors.
    """

    name: str
    num_examples: int | None
    floor: float | None


@dataclass(frozen=True)
class RecordedRun:
    """What a run directory held when it was opened; rounds that came later are not looked at.

    Attributes
    ----------
    path : Path
        The folder.
    config : mapping
        Settings of the run.
    arms : tuple of RecordedArm
        The clients, by arm.
    num_rounds : int, >= 1
        Rounds recorded.
    strategy : str
        The policy.
    num_selected : int
        N.
    tau_max_s : float
        Deadline [s].
    """

    path: Path
    config: Mapping[str, Any]
    arms: tuple[RecordedArm, ...]
    num_rounds: int
    strategy: str
    num_selected: int
    tau_max_s: float

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, by arm."""
        return tuple(arm.name for arm in self.arms)

    @property
    def floors(self) -> tuple[float, ...]:
        """Participation floors by arm; empty: none."""
        floors = [arm.floor for arm in self.arms if arm.floor is not None]
        return tuple(floors) if len(floors) == len(self.arms) else ()

    def rounds(self) -> Iterator[RoundRecord]:
        """Read the rounds, one at a time.

        Raises
        ------
        ConfigError
            If one of them is damaged.
        """
        try:
            for record in read_rounds(self.path, self.num_rounds, self.names):
                if max([record.num_arms - 1, *record.available, *record.absent]) >= len(self.arms):
                    message = f"its arms.json lacks a client of round {record.round}"
                    raise ConfigError("run", str(self.path), message)
                yield record
        except ConfigError as error:
            raise ConfigError("run", str(self.path), error.message) from None


def require_run(path: Path) -> None:
    """Refuse a folder that is no run directory.

    Raises
    ------
    ConfigError
        If it has no settings; it names the runs in the folder, if there are any.
    """
    if not (path / "config.toml").exists():
        raise _no_run(path, "")


def open_run(path: Path) -> RecordedRun:
    """Open a run directory for reading.

    Raises
    ------
    ConfigError
        If it is none, or has no rounds.
    """
    try:
        # The rounds first: whoever they speak of is in the list of arms that is read later.
        num_rounds = count_rounds(path)
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        strategy = str(config["strategy"])
        num_selected, tau_max_s = int(config["num-selected"]), float(config["tau-max-s"])
        if not num_rounds:
            raise ConfigError("run", str(path), "must be a run with rounds")
        arms = tuple(
            RecordedArm(str(arm["name"]), arm.get("num_examples"), arm.get("floor"))
            for arm in json.loads((path / "arms.json").read_text(encoding="utf-8"))
        )
    except ConfigError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise _no_run(path, f" ({reason})") from None
    return RecordedRun(path, config, arms, num_rounds, strategy, num_selected, tau_max_s)


def _no_run(path: Path, reason: str) -> ConfigError:
    runs = sorted(each.parent.name for each in path.glob("*/config.toml"))
    if runs and not (path / "config.toml").exists():
        listed = ", ".join(plain(name) for name in runs[:_MOST_NAMED])
        more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
        what = "the run" if len(runs) == 1 else "the runs"
        reason = f": {path} holds {what} {listed}{more}"
    return ConfigError("run", str(path), f"must be a run directory{reason}")

"""What a page shows of a run, read from its run directory as it grows."""

from __future__ import annotations

import json
import math
import time
import tomllib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strategies.flower import RoundRecord, failure_kind

from ..alarms import Alarms
from ..presence import FILE as PRESENCE
from ..presence import HEARTBEAT_S
from ..run_directory import MAX_LISTED_ARMS, ROUNDS, TRUTH, parse_round
from ..score_log import Scores, read_scores

_MAX_POINTS: Final = 600
"""Points of a curve; more rounds share one."""
_HEAT_COLUMNS: Final = 100
_HEAT_ROWS: Final = 100
_READ_BYTES: Final = 1 << 24
_QUIET_S: Final = 3 * HEARTBEAT_S
"""Without a sign of life for so long, a server is taken for dead."""
_RECENT: Final = 50
"""Rounds by which the rest of a run is estimated."""
_DIGITS: Final = 6
_ROUNDING: Final = 1e-6
"""Relative difference of scores that recording them may have made."""

FloatArray = NDArray[np.float64]


class RunView:
    """Follow a run directory, running or finished; nothing in it is ever written or locked.

    Parameters
    ----------
    path : Path
        The folder. It may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._arms: list[dict[str, Any]] = []
        self._live: dict[str, Any] = {}
        self._truth: list[dict[str, Any]] = []
        self._summary: dict[str, Any] | None = None
        self._was_alive = False
        self._begin_again()

    def refresh(self) -> bool:
        """Read what is new, and return whether anything is."""
        before = dict(self._files)
        config = self._read("config.toml", lambda text: dict(tomllib.loads(text)))
        if before.get("config.toml") != self._files.get("config.toml"):
            self._begin_again()  # begun, or resumed: then rounds may have been taken back
            self._config.update(config or {})
            self._alarms = Alarms(
                tau_max_s=float(self._config.get("tau-max-s", 0.0)),
                checkpoint_every=int(self._config.get("checkpoint-every", 0)),
            )
        self._arms = self._read("arms.json", json.loads) or []
        self._live = self._read(PRESENCE, json.loads) or {}
        self._truth = self._read(TRUTH, json.loads) or []
        self._summary = self._read("summary.json", json.loads)
        alive = self._alive()
        changed = self._read_rounds() or before != self._files or alive != self._was_alive
        self._was_alive = alive
        return changed

    @property
    def num_rounds(self) -> int:
        """How many rounds there are."""
        return len(self._offsets) - 1

    def state(self) -> dict[str, Any]:
        """Return what the page shows, ready for JSON; lists are parallel, times in seconds."""
        return {
            "run": self._run(),
            "top": self._top(),
            "clients": self._clients(),
            "rounds": self._round_series(),
            "accuracy": self._accuracy_series(),
            "regret": self._regret_series(),
            "heat": self._heat(),
            "alarms": self._alarms_now(),
        }

    def round(self, number: int) -> dict[str, Any] | None:
        """Return a round with the scores of all clients, ready for JSON; ``None``: there is none.

        ``cut`` is the score of the last client that was selected, ``tied`` are the available
        clients that had the same, where not all of them could be. Infinite scores are ``"inf"`` and
        ``"-inf"``.
        """
        if not 1 <= number <= self.num_rounds:
            return None
        try:
            with (self.path / ROUNDS).open("rb") as file:
                file.seek(self._offsets[number - 1])
                line = json.loads(file.readline())
        except (OSError, ValueError):
            return None
        if line.get("round") != number:
            return None
        keys = ("round", "time_s", "round_s", "selected", "rtt_s", "completed", "reason")
        found = {key: line[key] for key in (*keys, "compute_s", "link_s", "num_arms", "no_step")}
        found["names"] = self._names(line["num_arms"])
        scores = read_scores(self.path, line)
        found["scores"] = None if scores is None else _scores_json(scores, line["selected"])
        return found

    # -- reading ------------------------------------------------------------------------------

    def _begin_again(self) -> None:
        self._config: dict[str, Any] = {}
        self._damaged = 0
        self._offsets = array("q", [0])  # where each round's line begins, and the next one
        self._time_s, self._round_s = array("d"), array("d")
        self._slowest = array("q")
        self._evaluated: list[tuple[int, float, float, float | None]] = []
        self._last: RoundRecord | None = None
        self._scores_of: tuple[int, Scores | None] = (0, None)
        self._failures: dict[int, Counter[str]] = {}
        self._steps = 0
        self._regret = array("d")
        self._alarms = Alarms(tau_max_s=0.0)
        self._heat_width = 1
        self._heat_counts: NDArray[np.int64] = np.zeros((0, _HEAT_COLUMNS), dtype=np.int64)
        self._counts: dict[str, FloatArray] = {
            name: np.zeros(0)
            for name in ("selected", "present", "done", "sum", "square", "compute", "link", "parts")
        } | {"last_round": np.zeros(0)}

    def _read(self, name: str, parse: Any) -> Any:
        """Return a file's content, read again when it has changed; the last one that was good."""
        file = self.path / name
        try:
            found = file.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            known = self._files.get(name)
            if known is not None and known[0] == version:
                return known[1]
            content = parse(file.read_text(encoding="utf-8"))
            self._files[name] = (version, content)
            return content
        except FileNotFoundError:
            self._files.pop(name, None)
            return None
        except (OSError, ValueError):
            return self._files[name][1] if name in self._files else None

    def _read_rounds(self) -> bool:
        """Read the lines that are new."""
        begin, changed = self._offsets[-1], False
        try:
            with (self.path / ROUNDS).open("rb") as file:
                file.seek(begin)
                while not self._damaged and (data := file.read(_READ_BYTES)):
                    *lines, rest = data.split(b"\n")
                    if not lines:
                        if len(data) < _READ_BYTES:
                            break  # half a line: the rest is being written
                        lines, rest = [data + file.readline()], b""
                    for line in lines:
                        changed = True
                        if not self._take(line):
                            break
                    file.seek(-len(rest), 1)
                    if len(data) < _READ_BYTES:
                        break
        except OSError:
            pass
        return changed

    def _take(self, line: bytes) -> bool:
        """Take a round in; ``False`` if it cannot be read."""
        number = self.num_rounds + 1
        try:
            num_arms = int(json.loads(line)["num_arms"])
            record = parse_round(line, number, self._names(num_arms))
        except (ValueError, TypeError, LookupError):
            self._damaged = number
            return False
        self._offsets.append(self._offsets[-1] + len(line) + 1)
        self._count(record)
        self._alarms.observe(record)
        self._last = record
        return True

    def _count(self, record: RoundRecord) -> None:
        counts = self._grown(record.num_arms)
        arms = np.array(record.selected, dtype=np.int64)
        rtt_s = np.array(record.rtt_s, dtype=np.float64)
        done = np.array(record.completed, dtype=np.bool_) & np.isfinite(rtt_s)
        member = np.ones(record.num_arms, dtype=np.bool_)
        member[record.absent] = False
        counts["selected"][arms] += 1
        counts["present"][: record.num_arms] += member
        counts["done"][arms[done]] += 1
        counts["sum"][arms[done]] += rtt_s[done]
        counts["square"][arms[done]] += rtt_s[done] ** 2
        counts["last_round"][arms[done]] = record.round
        parts_s = np.array([record.compute_s, record.link_s], dtype=np.float64)
        known = done & np.isfinite(parts_s).all(axis=0) if arms.size else done
        for name, values in zip(("compute", "link"), parts_s, strict=True):
            counts[name][arms[known]] += values[known]
        counts["parts"][arms[known]] += 1
        for arm, reason in zip(record.selected, record.reason, strict=True):
            if reason is not None:
                self._failures.setdefault(arm, Counter())[failure_kind(reason)] += 1
        taken = np.where(np.array(record.completed, dtype=np.bool_), rtt_s, np.inf)
        self._slowest.append(int(arms[np.argmax(taken)]) if arms.size else -1)
        self._time_s.append(record.time_s)
        self._round_s.append(record.round_s)
        self._steps += record.stepped
        if record.accuracy is not None:
            point = (record.round, record.time_s, record.accuracy, record.loss)
            self._evaluated.append(point)
        column = (record.round - 1) // self._heat_width
        if column >= _HEAT_COLUMNS:
            self._heat_width *= 2
            pairs = self._heat_counts.reshape(-1, _HEAT_COLUMNS // 2, 2).sum(axis=-1)
            self._heat_counts = np.concatenate([pairs, np.zeros_like(pairs)], axis=1)
            column = (record.round - 1) // self._heat_width
        self._heat_counts[arms, column] += 1
        self._count_regret(record)

    def _count_regret(self, record: RoundRecord) -> None:
        """Add by how much the slowest selected is slower, on average, than it had to be."""
        since = [part for part in self._truth if part["since_round"] <= record.round]
        listed = record.num_arms <= MAX_LISTED_ARMS or len(record.available) == record.num_arms
        if not since or not listed:
            return
        expected_s = np.array(since[-1]["expected_time_s"])
        places = min(len(record.selected), len(record.available))
        lost_s = 0.0
        if places:
            least = np.partition(expected_s[record.available], places - 1)[places - 1]
            lost_s = float(expected_s[record.selected].max() - least)
        self._regret.append((self._regret[-1] if self._regret else 0.0) + lost_s)

    def _grown(self, num_arms: int) -> dict[str, FloatArray]:
        missing = num_arms - self._counts["selected"].size
        if missing > 0:
            for name, values in self._counts.items():
                self._counts[name] = np.concatenate([values, np.zeros(missing)])
            more = np.zeros((missing, _HEAT_COLUMNS), dtype=np.int64)
            self._heat_counts = np.concatenate([self._heat_counts, more])
        return self._counts

    def _names(self, num_arms: int) -> list[str]:
        names = [str(arm.get("name")) for arm in self._arms]
        # The list is written just after the first round of those who join.
        return names + [f"client {arm}" for arm in range(len(names), num_arms)]

    # -- showing ------------------------------------------------------------------------------

    @property
    def _simulated(self) -> bool:
        return "num-clients" in self._config

    def _alive(self) -> bool:
        """Tell whether somebody writes the run."""
        if self._finished():
            return False
        if self._live:
            return time.time() - float(self._live.get("time", 0.0)) < _QUIET_S
        try:
            return time.time() - (self.path / ROUNDS).stat().st_mtime < _QUIET_S
        except OSError:
            return False

    def _finished(self) -> bool:
        """Tell whether the run has written its results, and was not resumed since."""
        summary, config = self._files.get("summary.json"), self._files.get("config.toml")
        return summary is not None and config is not None and summary[0][0] >= config[0][0]

    def _run(self) -> dict[str, Any]:
        config = self._config
        state = "running" if self._alive() else "ended" if self._finished() else "silent"
        return {
            "name": self.path.resolve().name,
            "exists": bool(config),
            "state": state,
            "simulated": self._simulated,
            "policy": config.get("strategy", ""),
            "num_selected": config.get("num-selected"),
            "tau_max_s": config.get("tau-max-s"),
            "num_rounds": config.get("rounds"),
            "target_accuracy": config.get("target-accuracy") or None,
            "explained": bool(config.get("explain")),
            "damaged_line": self._damaged or None,
        }

    def _top(self) -> dict[str, Any]:
        last, done, live = self._last, self.num_rounds, self._live
        rest_s = None
        if last is not None and self._config.get("rounds") and self._alive():
            span = min(_RECENT, done)
            begin_s = self._time_s[done - span - 1] if done > span else 0.0
            left = max(int(self._config["rounds"]) - done, 0)
            rest_s = left * (last.time_s - begin_s) / span
        accuracy = self._evaluated[-1] if self._evaluated else None
        best = max(self._evaluated, key=lambda point: point[2], default=None)
        connected = live.get("connected")
        unable = {*live.get("busy", ()), *live.get("opted_out", ())}
        return {
            "round": done,
            "time_s": last.time_s if last else None,
            "rest_s": rest_s,
            "round_s": last.round_s if last else None,
            "steps": self._steps,
            "accuracy": accuracy[2] if accuracy else None,
            "loss": accuracy[3] if accuracy else None,
            "evaluated_round": accuracy[0] if accuracy else None,
            "best_accuracy": best[2] if best else None,
            "best_round": best[0] if best else None,
            "connected": None if connected is None else len(connected),
            "available": (
                len(set(connected) - unable)
                if connected is not None
                else len(last.available)
                if last
                else None
            ),
            "busy": len(live["busy"]) if "busy" in live else None,
            "opted_out": len(live["opted_out"]) if "opted_out" in live else None,
            "newcomers": live.get("newcomers", []),
            "refused": live.get("refused"),
            "suggested_tau_max_s": (self._summary or {}).get("suggested_tau_max_s"),
        }

    def _clients(self) -> dict[str, Any]:
        present = self._live.get("connected", ())
        num_arms = max(len(self._arms), self._counts["selected"].size, max(present, default=-1) + 1)
        counts = self._grown(num_arms)
        names, arms = self._names(num_arms), self._arms
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_s = counts["sum"] / counts["done"]
            variance = counts["square"] / counts["done"] - mean_s**2
            deviation_s = np.sqrt(np.maximum(variance, 0.0))
            compute_s = counts["compute"] / counts["parts"]
            link_s = counts["link"] / counts["parts"]
            share = counts["selected"] / counts["present"]
        scores = self._last_scores()
        owed = None if scores is None else scores.owed
        columns: dict[str, Any] = {
            "name": names,
            "state": self._states(num_arms),
            "num_examples": [arm.get("num_examples") for arm in arms],
            "floor": [arm.get("floor") for arm in arms],
            "last_seen": self._last_seen(num_arms),
            "failures": [dict(self._failures.get(arm, {})) for arm in range(num_arms)],
            "selected": counts["selected"].astype(int).tolist(),
            "last_round": counts["last_round"].astype(int).tolist(),
            "mean_s": _numbers(mean_s),
            "deviation_s": _numbers(deviation_s),
            "compute_s": _numbers(compute_s),
            "link_s": _numbers(link_s),
            "network_s": _numbers(np.round(np.maximum(mean_s - compute_s - link_s, 0.0), 6)),
            "share": _numbers(share),
            "owed": [] if owed is None else _numbers(owed),
        }
        for values in columns.values():
            values += [None] * (num_arms - len(values))
        return columns

    def _states(self, num_arms: int) -> list[str]:
        last = self._last
        if self._live and self._alive():
            states = ["away"] * num_arms
            for arm in self._live.get("connected", ()):
                states[arm] = "free"
            for arm in self._live.get("busy", ()):
                states[arm] = "busy"
            for arm in self._live.get("opted_out", ()):
                states[arm] = "opted out"
            return states
        if not self._simulated or last is None:
            return [""] * num_arms
        scores = self._last_scores()
        if scores is not None:
            available = scores.available.tolist()
        else:
            there = set(last.available)
            available = [arm in there for arm in range(last.num_arms)]
        states = ["free" if each else "away" for each in available]
        return states + ["away"] * (num_arms - len(states))

    def _last_seen(self, num_arms: int) -> list[float | None]:
        seen = self._live.get("last_seen", {})
        return [seen.get(str(arm)) for arm in range(num_arms)]

    def _last_scores(self) -> Scores | None:
        """Return the scores of the last round, read once."""
        if self._scores_of[0] != self.num_rounds:
            scores = None
            if self.num_rounds:
                try:
                    with (self.path / ROUNDS).open("rb") as file:
                        file.seek(self._offsets[self.num_rounds - 1])
                        scores = read_scores(self.path, json.loads(file.readline()))
                except (OSError, ValueError, LookupError):
                    scores = None
            self._scores_of = self.num_rounds, scores
        return self._scores_of[1]

    def _round_series(self) -> dict[str, Any]:
        """Return the lengths of rounds; where several share a point, their mean and longest."""
        count = len(self._round_s)
        if not count:
            return {"round": [], "time_s": [], "mean_s": [], "longest_s": [], "slowest": []}
        lengths = np.frombuffer(self._round_s)
        width = -(-count // _MAX_POINTS)
        begins = np.arange(0, count, width)
        ends = np.minimum(begins + width, count)
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        longest = [begin + int(lengths[begin:end].argmax()) for begin, end in spans]
        return {
            "round": ends.tolist(),
            "longest_round": [at + 1 for at in longest],
            "time_s": _numbers(np.frombuffer(self._time_s)[ends - 1]),
            "mean_s": _numbers(np.add.reduceat(lengths, begins) / (ends - begins)),
            "longest_s": _numbers(lengths[longest]),
            "slowest": [self._slowest[at] for at in longest],
        }

    def _accuracy_series(self) -> dict[str, Any]:
        points = self._evaluated[:: -(-len(self._evaluated) // _MAX_POINTS) or 1]
        if self._evaluated and points[-1] != self._evaluated[-1]:
            points = [*points, self._evaluated[-1]]
        return {
            "round": [point[0] for point in points],
            "time_s": [point[1] for point in points],
            "accuracy": [point[2] for point in points],
            "loss": [point[3] for point in points],
        }

    def _regret_series(self) -> dict[str, Any] | None:
        if not self._regret or len(self._regret) != self.num_rounds:
            return None
        at = np.unique(np.linspace(0, len(self._regret) - 1, _MAX_POINTS).astype(int))
        return {
            "round": (at + 1).tolist(),
            "regret_s": _numbers(np.frombuffer(self._regret)[at]),
        }

    def _heat(self) -> dict[str, Any]:
        """Return the share of rounds that each client, or group of alike ones, was selected in."""
        num_arms, width = self._heat_counts.shape[0], self._heat_width
        columns = -(-self.num_rounds // width)
        if not num_arms or not columns:
            return {"round": [], "rows": [], "percent": []}
        length = np.full(columns, width)
        length[-1] = self.num_rounds - (columns - 1) * width
        counts = self._heat_counts[:, :columns] / length
        done = self._counts["done"]
        mean_s = np.where(done > 0, self._counts["sum"] / np.maximum(done, 1), np.inf)
        order = np.argsort(mean_s, kind="stable")
        groups = np.array_split(order, min(num_arms, _HEAT_ROWS))
        return {
            "round": (np.arange(columns) * width + 1).tolist(),
            "width": width,
            "rows": [group.tolist() for group in groups],
            "percent": [
                np.round(100 * counts[group].mean(axis=0)).astype(int).tolist() for group in groups
            ],
        }

    def _alarms_now(self) -> list[dict[str, Any]]:
        num_arms = self._counts["selected"].size
        floors = [arm.get("floor") for arm in self._arms]
        known = [floor for floor in floors if floor is not None]
        kept = known if floors and len(known) == len(floors) else None
        saved = self._saved_round()
        if saved is None:
            saved = self.num_rounds
        found = self._alarms.active(self._names(num_arms), kept, saved)
        return [{"kind": a.kind, "arm": a.arm, "text": a.text} for a in found]

    def _saved_round(self) -> int | None:
        """Return the round of the last checkpoint, by the name of its file."""
        try:
            names = [file.name for file in (self.path / "checkpoint").iterdir()]
        except OSError:
            return None
        rounds = [int(name.partition("-")[0]) for name in names if name[:8].isdigit()]
        return max(rounds, default=None)


def _scores_json(scores: Scores, selected: Sequence[int]) -> dict[str, Any]:
    parts = np.array([np.zeros(scores.available.size), *scores.parts.values()], dtype=np.float64)
    score = parts.sum(axis=0)
    chosen = np.zeros(score.shape, dtype=np.bool_)
    chosen[list(selected)] = True
    cut, tied = None, np.zeros(0, dtype=np.int64)
    if scores.rule != "drawn" and chosen.any():
        cut = score[chosen].min() if scores.rule == "largest" else score[chosen].max()
        with np.errstate(invalid="ignore"):  # parts that were equal before they were rounded
            near = np.abs(score - cut) <= _ROUNDING * np.abs(parts).sum(axis=0)
        at_cut = scores.available & ((near & np.isfinite(score)) | (score == cut))
        if (at_cut & ~chosen).any():
            tied = np.flatnonzero(at_cut)
    return {
        "rule": scores.rule,
        "unit": scores.unit,
        "available": scores.available.tolist(),
        "score": _numbers(score),
        "parts": {name: _numbers(values) for name, values in scores.parts.items()},
        "tie_break": None if scores.tie_break is None else _numbers(scores.tie_break),
        "owed": None if scores.owed is None else _numbers(scores.owed),
        "cut": None if cut is None else _number(cut),
        "tied": tied.tolist(),
    }


def _numbers(values: NDArray[Any]) -> list[float | str | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | str | None:
    """Return a number as JSON can have it, to six digits."""
    if math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def to_json(value: Mapping[str, Any]) -> str:
    """Return compact JSON without infinities."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)

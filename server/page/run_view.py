"""The state of a page: a run, read from its run directory as it grows."""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.strategies.deadline import AUTO, as_deadline

from ..monitoring.alarms import Alarms
from ..monitoring.live_file import FILE as LIVE
from ..monitoring.live_file import HEARTBEAT_S
from ..runs.directory import ROUNDS, TRUTH, start_folder
from ..runs.round_lines import MAX_LISTED_ARMS, read_line, record_of
from ..runs.scores import Scores, read_pick_scores, read_scores
from ..runs.totals import RunTotals
from .numbers import csv_lines, number, numbers
from .random_time import RandomTimes, as_json
from .run_curves import RunCurves
from .run_work import RunWork

_READ_BYTES: Final = 1 << 24
_QUIET_S: Final = 3 * HEARTBEAT_S  # a server without a newer ``live.json`` counts as dead
_RECENT: Final = 50  # rounds by which the rest of a run is estimated
_ROUNDING: Final = 1e-6  # relative difference of scores that recording them may have made
_BUSY: Final = 0.9  # least share of a buffered run's time that is compared with other policies
_RANDOM: Final = "random"  # the policy that others are compared with
_LOG_BYTES: Final = 1 << 16  # of the end of the log that are shown
_SECRETS: Final = ("token", "password", "secret")  # settings with such names are not shown


class RunView:
    """A reader that follows a run directory; nothing in it is ever written or locked.

    Parameters
    ----------
    path : Path
        The folder. It may not exist yet.
    latest : bool
        Whether to turn to the next run of an app that starts several, once it has begun.
    """

    def __init__(self, path: Path, *, latest: bool = False) -> None:
        self.path = path
        self._next = 2 if latest else 0
        self._first = path
        self._files: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._arms: list[dict[str, Any]] = []
        self._name_list: list[str] = []
        self._live: dict[str, Any] = {}
        self._truth: list[dict[str, Any]] = []
        self._summary: dict[str, Any] | None = None
        self._was_alive = False
        self._met = False
        self._begin_again()

    def refresh(self) -> bool:
        """Read what is new, and return whether anything is."""
        if self._next and (start_folder(self._first, self._next) / "config.toml").exists():
            self.path = start_folder(self._first, self._next)
            self._next += 1
            self._files = {}
            self._begin_again()
        before = dict(self._files)
        config = self._read("config.toml", lambda text: dict(tomllib.loads(text)))
        if before.get("config.toml") != self._files.get("config.toml"):
            self._begin_again()  # begun, or resumed: then rounds may have been taken back
            self._config.update(config or {})
            self._met |= bool(config)
            target = float(self._config.get("target-accuracy") or 0.0)
            self._totals = RunTotals(target_accuracy=target)
            self._random = RandomTimes(int(self._config.get("num-selected", 0)))
            given = as_deadline(self._config.get("tau-max-s", 0.0))
            self._deadline_s = None if given == AUTO else given
            self._alarms = Alarms(
                self._totals,
                tau_max_s=as_deadline(self._config.get("tau-max-s", 0.0)),
                checkpoint_every=int(self._config.get("checkpoint-every", 0)),
                fairness=str(self._config.get("fairness", "none")),
                num_selected=int(self._config.get("num-selected", 0)),
            )
        self._arms = self._read("arms.json", json.loads) or []
        self._name_list = []
        self._live = self._read(LIVE, json.loads) or {}
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
            "rounds": self._curves.round_series(),
            "accuracy": self._curves.accuracy_series(),
            "regret": self._curves.regret_series(),
            "heat": self._curves.heat(self._totals.arms),
            "channels": self._work.channels(int(self._config.get("num-selected", 1))),
            **self._against_random(),
            "alarms": self._alarms_now(),
        }

    def curves(self, first: int, last: int) -> dict[str, Any]:
        """Return the curves of some rounds, in as many points as those of all."""
        return {
            "rounds": self._curves.round_series(max(first, 1), last),
            "accuracy": self._curves.accuracy_series(max(first, 1), last),
            "regret": self._curves.regret_series(max(first, 1), last),
        }

    def history(self, arm: int) -> dict[str, Any] | None:
        """Return the last results of a client, ready for JSON; ``None``: there is no such one."""
        return self._work.history(arm) if 0 <= arm < len(self._totals.arms) else None

    def rounds_csv(self) -> Iterator[str]:
        """Return the lines of a table of all rounds."""
        return csv_lines(self._curves.table(self._names(len(self._totals.arms))))

    def about(self, *, log: bool = True) -> dict[str, Any]:
        """Return the settings of the run and the end of its log, ready for JSON."""
        settings = {
            key: str(value) if isinstance(value, (dict, list)) else value
            for key, value in sorted(self._config.items())
            if not any(part in key for part in _SECRETS)
        }
        return {"settings": settings, "log": self._log() if log else ""}

    def _log(self) -> str:
        try:
            with (self.path / "log.txt").open("rb") as file:
                begin = max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES)
                file.seek(begin)
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return text.partition("\n")[2] if begin else text

    def _against_random(self) -> dict[str, Any]:
        """Return what random selection would have taken, or else why that is not estimated."""
        found, why = None, None
        ours_s = float(sum(self._curves.round_s))
        if self._config.get("strategy") == _RANDOM:
            why = "random"
        elif self._work.buffered and ours_s < _BUSY * self._curves.time_s[-1]:
            why = "pauses"  # in which clients go on with their work
        elif (found := as_json(self._random.estimate(), ours_s)) is None:
            why = "early"
        return {"random": found, "random_why": why}

    def round(self, number: int) -> dict[str, Any] | None:
        """Return a round with the scores of all clients, ready for JSON; ``None``: there is none.

        ``cut`` is the score of the last client that was selected, ``tied`` are the available
        clients that had the same, where not all of them could be, and ``drawn`` those of them
        that the tie-break left equal, so that a lot decided. Infinite scores are ``"inf"`` and
        ``"-inf"``. A buffered step has scores for each of its last picks instead.
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
        found = {key: line[key] for key in (*keys, "compute_s", "link_s", "num_arms")}
        found["no_step"] = line.get("no_step")
        found["names"] = self._names(line["num_arms"])
        found["deadline_s"] = line.get("deadline_s")
        found["late"] = line.get("late", [])
        found["late_updates"] = line.get("late_updates", [])
        found["buffered"] = bool(line.get("buffered"))
        if found["buffered"]:
            found |= {key: line.get(key, []) for key in ("staleness", "begin_s")}
            found["picks"] = [
                {**pick, "scores": each and _scores_json(each, [pick["arm"]])}
                for pick, each in zip(
                    line.get("picks", ()), read_pick_scores(self.path, line), strict=True
                )
            ]
            found["scores"] = None  # they are of the picks, not of those whose work has ended
            return found
        scores = read_scores(self.path, line)
        found["scores"] = (
            None
            if scores is None
            else _scores_json(scores, [*line["selected"], *line.get("late", ())])
        )
        return found

    # -- reading ------------------------------------------------------------------------------

    def _begin_again(self) -> None:
        self._config: dict[str, Any] = {}
        self._damaged = 0
        self._offsets = array("q", [0])  # where each round's line begins, and the next one
        self._totals, self._curves, self._work = RunTotals(), RunCurves(), RunWork()
        self._random, self._deadline_s = RandomTimes(0), None
        self._scores_of: tuple[int, Scores | None] = (0, None)
        self._alarms = Alarms(self._totals)

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
            found = read_line(line, number)
            names = self._names(found["num_arms"])
            record = record_of(found, names)
        except ValueError:
            self._damaged = number
            return False
        self._offsets.append(self._offsets[-1] + len(line) + 1)
        self._totals.count(record)
        self._curves.add(record, self._truth, names)
        self._work.add(record, self._deadline_s)
        self._random.add(record, self._deadline_s)
        self._alarms.observe(record)
        return True

    def _names(self, num_arms: int) -> list[str]:
        if len(self._name_list) < num_arms:
            names = [str(arm.get("name")) for arm in self._arms]
            # The list may be older than a round that was just written.
            self._name_list = names + [f"client {arm}" for arm in range(len(names), num_arms)]
        known = self._name_list
        return known if len(known) == num_arms else known[:num_arms]

    # -- showing ------------------------------------------------------------------------------

    @property
    def _simulated(self) -> bool:
        return "num-clients" in self._config

    def _alive(self) -> bool:
        """Return whether a process writes the run."""
        if self._finished():
            return False
        if self._live:
            return time.time() - float(self._live.get("time", 0.0)) < _QUIET_S
        try:
            return time.time() - (self.path / ROUNDS).stat().st_mtime < _QUIET_S
        except OSError:
            return False

    def _finished(self) -> bool:
        """Return whether the run has written its results, and was not resumed since."""
        summary, config = self._files.get("summary.json"), self._files.get("config.toml")
        return summary is not None and config is not None and summary[0][0] >= config[0][0]

    def _run(self) -> dict[str, Any]:
        config = self._config
        state = "running" if self._alive() else "ended" if self._finished() else "silent"
        found = config.get("tau-max-s") == AUTO
        if not config:
            state = "gone" if self._met else "not begun"
        return {
            "name": self.path.resolve().name,
            "path": str(self.path),
            "buffered": self._work.buffered or config.get("mode") == "buffered",
            "exists": bool(config),
            "state": state,
            "simulated": self._simulated,
            "policy": config.get("strategy", ""),
            "num_selected": config.get("num-selected"),
            "tau_max_s": self._totals.deadline_s if found else config.get("tau-max-s"),
            "finds_deadline": found,
            "num_rounds": config.get("rounds"),
            "target_accuracy": config.get("target-accuracy") or None,
            "explained": bool(config.get("explain")),
            "damaged_line": self._damaged or None,
        }

    def _top(self) -> dict[str, Any]:
        totals, done, live = self._totals, self.num_rounds, self._live
        last, evaluated, best = totals.last, totals.evaluated, totals.best
        rest_s = None
        if last is not None and self._config.get("rounds") and self._alive():
            span = min(_RECENT, done)
            begin_s = self._curves.time_s[done - span - 1] if done > span else 0.0
            left = max(int(self._config["rounds"]) - done, 0)
            rest_s = left * (last.time_s - begin_s) / span
        connected = live.get("connected")
        unable = {arm for key in ("busy", "opted_out", "left_out") for arm in live.get(key, ())}
        return {
            "round": done,
            "time_s": last.time_s if last else None,
            "rest_s": rest_s,
            "round_s": last.round_s if last else None,
            "steps": totals.steps,
            "accuracy": evaluated.accuracy if evaluated else None,
            "loss": totals.loss,
            "client_metrics": totals.client_metrics,
            "client_metrics_round": totals.on_clients.round if totals.on_clients else None,
            "evaluated_round": evaluated.round if evaluated else None,
            "best_accuracy": best.accuracy if best else None,
            "best_round": best.round if best else None,
            "connected": None if connected is None else len(connected),
            "available": (
                len(set(connected) - unable)
                if connected is not None
                else len(last.available)
                if last
                else None
            ),
            "busy": (
                len(live["busy"])
                if "busy" in live
                else len(self._work.at_work)
                if self._work.buffered
                else None
            ),
            "opted_out": len(live["opted_out"]) if "opted_out" in live else None,
            "left_out": len(live.get("left_out", last.left_out if last else ())),
            "newcomers": live.get("newcomers", []),
            "refused": live.get("refused"),
            "suggested_tau_max_s": (self._summary or {}).get("suggested_tau_max_s"),
        }

    def _clients(self) -> dict[str, Any]:
        present = self._live.get("connected", ())
        num_arms = max(len(self._arms), len(self._totals.arms), max(present, default=-1) + 1)
        counts = self._totals.grow(num_arms)

        def column(name: str) -> NDArray[np.float64]:
            return np.array([getattr(arm, name) for arm in counts], dtype=np.float64)

        names, arms = self._names(num_arms), self._arms
        served, completed, reports = map(column, ("served", "completed", "num_reports"))
        member = np.array([self._totals.member_turns(arm) for arm in counts])
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_s = column("rtt_s") / completed
            deviation_s = np.sqrt(np.maximum(column("rtt_square") / completed - mean_s**2, 0.0))
            compute_s = column("compute_s") / reports
            link_s = column("link_s") / reports
            share = served / member
        scores = self._last_scores()
        owed = None if scores is None else scores.owed
        columns: dict[str, Any] = {
            "name": names,
            "state": self._states(num_arms),
            "num_examples": [arm.get("num_examples") for arm in arms],
            "floor": [arm.get("floor") for arm in arms],
            "last_seen": self._last_seen(num_arms),
            "failures": [dict(arm.failures) for arm in counts],
            "selected": [arm.requests for arm in counts],
            "last_round": [arm.last_completed for arm in counts],
            "mean_s": numbers(mean_s),
            "deviation_s": numbers(deviation_s),
            "compute_s": numbers(compute_s),
            "link_s": numbers(link_s),
            "network_s": numbers(np.round(np.maximum(mean_s - compute_s - link_s, 0.0), 6)),
            "share": numbers(share),
            "owed": [] if owed is None else numbers(owed),
        }
        for values in columns.values():
            values += [None] * (num_arms - len(values))
        return columns

    def _states(self, num_arms: int) -> list[str]:
        last = self._totals.last
        if self._live and self._alive():
            states = ["away"] * num_arms
            for arm in self._live.get("connected", ()):
                states[arm] = "free"
            for arm in self._live.get("busy", ()):
                states[arm] = "busy"
            for arm in self._live.get("left_out", ()):
                states[arm] = "left out"
            for arm in self._live.get("opted_out", ()):
                states[arm] = "opted out"
            return states
        if not self._simulated or last is None:
            return [""] * num_arms
        there = {*last.available, *last.selected}
        available = [arm in there for arm in range(last.num_arms)]
        if last.num_arms > MAX_LISTED_ARMS and (scores := self._last_scores()) is not None:
            available = scores.available.tolist()
        states = ["free" if each else "away" for each in available]
        states += ["away"] * (num_arms - len(states))
        for arm in last.left_out:
            states[arm] = "left out"
        for arm in self._work.at_work:
            states[arm] = "busy"
        return states

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

    def _alarms_now(self) -> list[dict[str, Any]]:
        num_arms = len(self._totals.arms)
        floors = [arm.get("floor") for arm in self._arms]
        known = [floor for floor in floors if floor is not None]
        kept = known if floors and len(known) == len(floors) else None
        found = self._alarms.active(self._names(num_arms), kept, self._saved_round())
        return [{"kind": a.kind, "arm": a.arm, "text": a.text} for a in found]

    def _saved_round(self) -> int:
        """Return the round of the last checkpoint, by the name of its file; 0 without any."""
        try:
            names = [file.name for file in (self.path / "checkpoint").iterdir()]
        except OSError:
            return 0
        found = (re.match(r"(\d{8,})-", name) for name in names)  # others are being written
        return max((int(each[1]) for each in found if each), default=0)


def _scores_json(scores: Scores, selected: Sequence[int]) -> dict[str, Any]:
    parts = np.array([np.zeros(scores.available.size), *scores.parts.values()], dtype=np.float64)
    score = parts.sum(axis=0)
    rounding = np.where(np.isfinite(score), _ROUNDING * np.abs(parts).sum(axis=0), -1.0)
    score[np.abs(score) <= rounding] = 0.0  # parts that cancel but for what recording cost
    chosen = np.zeros(score.shape, dtype=np.bool_)
    chosen[list(selected)] = True
    cut, tied, drawn = None, np.zeros_like(chosen), np.zeros_like(chosen)
    if scores.rule != "drawn" and chosen.any():
        cut = score[chosen].min() if scores.rule == "largest" else score[chosen].max()
        with np.errstate(invalid="ignore"):  # equal before they were rounded
            equal = (score == cut) | (np.abs(score - cut) <= rounding)
        tied = _of_both_sides(scores.available & equal, chosen)
        drawn = tied
        if scores.tie_break is not None and tied.any():
            last = scores.tie_break[tied & chosen].min()
            drawn = _of_both_sides(tied & (scores.tie_break == last), chosen)
    return {
        "rule": scores.rule,
        "unit": scores.unit,
        "available": scores.available.tolist(),
        "score": numbers(score),
        "parts": {name: numbers(values) for name, values in scores.parts.items()},
        "tie_break": None if scores.tie_break is None else numbers(scores.tie_break),
        "owed": None if scores.owed is None else numbers(scores.owed),
        "cut": None if cut is None else number(cut),
        "tied": np.flatnonzero(tied).tolist(),
        "drawn": np.flatnonzero(drawn).tolist(),
    }


def _of_both_sides(arms: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the arms if some of them were chosen and some were not, else none."""
    split = (arms & chosen).any() and (arms & ~chosen).any()
    return arms if split else np.zeros_like(arms)

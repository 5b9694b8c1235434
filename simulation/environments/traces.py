"""Traces: round trips of clients from a file, played again in their order."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from flower_scheduling.errors import ConfigError
from flower_scheduling.strategies.base import FloatArray

from .paper import Environment, RoundDraw

CLIENT: Final = "client"
SECONDS: Final = "seconds"
"""The two columns of a file of traces."""


@dataclass(frozen=True)
class Traces:
    """Round trips of some clients.

    Attributes
    ----------
    names : tuple of str
        The clients, in the order in which the file first names them.
    times_s : tuple of (num_trips,) float64
        Of each client, ``inf`` where it did not answer [s].
    """

    names: tuple[str, ...]
    times_s: tuple[FloatArray, ...]


def read_traces(path: Path, key: str) -> Traces:
    """Read a CSV file with the columns ``client`` and ``seconds``.

    Each row is a round trip of a client, in order; without a number of seconds, one that was not
    answered.

    Parameters
    ----------
    path : Path
        The file.
    key : str
        The setting that names it, for errors.

    Raises
    ------
    ConfigError
        If it cannot be read, has other columns, or a row is none; the line is named.
    """
    trips: dict[str, list[float]] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            columns = [name.strip() for name in next(rows, [])]
            if sorted(columns) != [CLIENT, SECONDS]:
                message = f"must begin with the line {CLIENT},{SECONDS}, not {','.join(columns)!r}"
                raise ConfigError(key, str(path), message)
            for row in rows:
                if not row:
                    continue
                if len(row) != len(columns):
                    raise _bad_row(key, path, rows.line_num, f"has {len(row)} values")
                found = dict(zip(columns, map(str.strip, row), strict=True))
                if not found[CLIENT]:
                    raise _bad_row(key, path, rows.line_num, "names no client")
                seconds_s = _seconds(found[SECONDS])
                if seconds_s is None:
                    why = f"has seconds = {found[SECONDS]!r}: must be above 0, or empty for none"
                    raise _bad_row(key, path, rows.line_num, why)
                trips.setdefault(found[CLIENT], []).append(seconds_s)
    except ConfigError:
        raise
    except (OSError, csv.Error, ValueError) as error:  # ValueError: it is not UTF-8
        reason = getattr(error, "strerror", None) or str(error)
        message = f"must be a run directory, or a CSV file of {CLIENT},{SECONDS} ({reason})"
        raise ConfigError(key, str(path), message) from None
    if not trips:
        raise ConfigError(key, str(path), "has no round trips")
    silent = [name for name, times_s in trips.items() if not np.isfinite(times_s).any()]
    if len(silent) == len(trips):
        raise ConfigError(key, str(path), "has no round trip that was answered")
    return Traces(tuple(trips), tuple(np.array(times_s) for times_s in trips.values()))


def _seconds(text: str) -> float | None:
    """Return a round trip [s], ``inf`` for one that was not answered; ``None``: it is none."""
    if not text:
        return math.inf
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _bad_row(key: str, path: Path, number: int, why: str) -> ConfigError:
    return ConfigError(key, str(path), f"line {number} {why}")


class TracedEnvironment:
    """Environment of given round trips; availability and drift come from another one.

    In round t each client takes what its row t says; after the last one it begins anew. So what
    changed in the course of the traces changes here, and every policy meets the same.

    Parameters
    ----------
    traces : Traces
        The round trips.
    base : Environment
        Availability, failures, late joiners and slowdowns; its times do not count.
    """

    def __init__(self, traces: Traces, base: Environment) -> None:
        self._times_s: Sequence[FloatArray] = traces.times_s
        self._base = base

    @property
    def regimes(self) -> list[int]:
        """Rounds from which the means differ from those before: but for slowdowns there are none.

        The mean is that over all traces of a client.
        """
        return self._base.regimes

    def round(self, t: int) -> RoundDraw:
        """Return the draw of a round; see :meth:`.Environment.round`."""
        draw = self._base.round(t)
        time_s = np.array([times_s[(t - 1) % times_s.size] for times_s in self._times_s])
        answered = np.isfinite(time_s)
        nothing = np.zeros(time_s.size)
        return replace(
            draw,
            download_s=nothing,
            compute_s=np.where(answered, time_s, 1.0) * self.slowdown(t),
            upload_s=nothing,
            failed=draw.failed | ~answered,
        )

    def expected_time_s(self, tau_max_s: float, t: int = 1) -> FloatArray:
        """Return the means of the traces, each time cut off at the deadline [s], (num_arms,)."""
        times_s = zip(self._times_s, self.slowdown(t), strict=True)
        means_s = np.array([np.minimum(own * factor, tau_max_s).mean() for own, factor in times_s])
        return np.asarray(means_s + self._base.failure_probability * (tau_max_s - means_s))

    def slowdown(self, t: int) -> FloatArray:
        """Return the factor of each arm's time in round `t`, (num_arms,)."""
        return self._base.slowdown(t)

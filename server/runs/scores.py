"""``scores.bin`` beside ``rounds.jsonl``: the scores by which each round's clients were selected.

A round's block is a matrix of little-endian float32, a row per quantity and a column per arm; the
round's line in ``rounds.jsonl`` says where it begins and what its rows are. Twelve to twenty-four
bytes per arm and round; as text it would be several times that, and slower than the round.
Behind the block of a buffered step are those of its last picks, one each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_scheduling.strategies import Explanation
from flower_scheduling.strategies.flower import RoundRecord

FILE: Final = "scores.bin"
MAX_ARMS: Final = 10_000
"""Above this many arms nothing is recorded: the file would outgrow everything else."""
_DTYPE: Final = np.dtype("<f4")
_NAN: Final = b"\xff" * _DTYPE.itemsize
AVAILABLE, _TIE, _OWED = "available", "tie-break", "owed"
"""Names of rows that are no parts of a score."""


@dataclass(frozen=True)
class Scores:
    """The recorded scores of one selection.

    Attributes
    ----------
    rule, unit : str
        As in :class:`strategies.Explanation`.
    available : (num_arms,) bool
        Arms that could be selected.
    parts : mapping of str to (num_arms,) float32
        What the scores are made of.
    tie_break : (num_arms,) float32 or None
        What decided between equal scores.
    owed : (num_arms,) float32 or None
        Virtual queues after the round [rounds]; ``None`` for a policy without.
    """

    rule: str
    unit: str
    available: NDArray[np.bool_]
    parts: Mapping[str, NDArray[np.float32]]
    tie_break: NDArray[np.float32] | None
    owed: NDArray[np.float32] | None


class ScoreFile:
    """``scores.bin``, opened to append the scores of rounds.

    Parameters
    ----------
    run_dir : Path
        The run directory.
    end : int
        Length of what is to be kept of it [bytes].

    Raises
    ------
    OSError
        If it cannot be written.
    """

    def __init__(self, run_dir: Path, end: int = 0) -> None:
        self.path = run_dir / FILE
        self._file = self.path.open("ab", buffering=0)
        self._end = end
        size = os.fstat(self._file.fileno()).st_size // _DTYPE.itemsize * _DTYPE.itemsize
        self._file.truncate(min(size, end))
        # What a crash has lost must not be filled with what comes next.
        self._write(_NAN * ((end - size) // _DTYPE.itemsize))

    def append(self, record: RoundRecord) -> dict[str, Any] | None:
        """Append the scores of a round.

        Returns
        -------
        dict or None
            The entry ``scores`` of the round's line; ``None`` where there are none.

        Raises
        ------
        OSError
            If there is no room; the file is as before.
        """
        explanation = record.explanation
        if explanation is None or record.num_arms > MAX_ARMS:
            return None
        available = np.zeros(record.num_arms)
        available[record.available] = 1.0
        # Arms that came after the last pick of a buffered step could not have been picked.
        available[
            min((each.size for each in explanation.parts.values()), default=available.size) :
        ] = 0
        found, data = self._block(self._end, explanation, available, record.queue)
        picks = []
        for pick in record.picks:
            entry = None
            if pick.explanation is not None and pick.idle is not None:
                at = self._end + len(data)
                entry, block = self._block(at, pick.explanation, pick.idle, pick.queue)
                entry["num_arms"] = pick.idle.size
                data += block
            picks.append(entry)
        if picks:
            found["picks"] = picks
        self._write(data)
        return found

    @staticmethod
    def _block(
        at: int,
        explanation: Explanation,
        available: NDArray[Any],
        queue: NDArray[np.float64] | None,
    ) -> tuple[dict[str, Any], bytes]:
        """Return an entry, and the bytes that it tells of."""
        rows = _rows(explanation, available, queue)
        block = np.empty((len(rows), available.size), dtype=_DTYPE)
        for row, values in zip(block, rows.values(), strict=True):
            row[: values.size] = values
            row[values.size :] = 0.0
        rule, unit = explanation.rule, explanation.unit
        return {"at": at, "rule": rule, "unit": unit, "rows": list(rows)}, block.tobytes()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        written, begin = 0, os.fstat(self._file.fileno()).st_size
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._file.truncate(begin)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._end = begin + written


def end_of(line: Mapping[str, Any]) -> int:
    """Return where a round's last block ends [bytes], by its line; 0 where it has none."""
    found = line.get("scores")
    if not found:
        return 0
    blocks = [(found, line["num_arms"])]
    blocks += [(each, each["num_arms"]) for each in found.get("picks", ()) if each is not None]
    return max(
        int(each["at"]) + len(each["rows"]) * int(num_arms) * _DTYPE.itemsize
        for each, num_arms in blocks
    )


def read_scores(run_dir: Path, line: Mapping[str, Any]) -> Scores | None:
    """Read the scores of a round.

    Parameters
    ----------
    run_dir : Path
        The run directory.
    line : mapping
        The round's line in ``rounds.jsonl``.

    Returns
    -------
    Scores or None
        ``None`` where they were not recorded, or are lost.
    """
    found = line.get("scores")
    return _read(run_dir, found, line["num_arms"]) if found else None


def read_pick_scores(run_dir: Path, line: Mapping[str, Any]) -> list[Scores | None]:
    """Read the scores by which the channels of a buffered step were given away.

    Parameters
    ----------
    run_dir : Path
        The run directory.
    line : mapping
        The step's line in ``rounds.jsonl``.

    Returns
    -------
    list of (Scores or None)
        For each of the line's ``picks``; ``None`` where they were not recorded, or are lost. The
        available arms are those that were idle, and ``owed`` is as it was before the pick.
    """
    entries = (line.get("scores") or {}).get("picks", ())
    found = [_read(run_dir, each, each["num_arms"]) if each else None for each in entries]
    return found + [None] * (len(line.get("picks", ())) - len(found))


def _read(run_dir: Path, found: Mapping[str, Any], num_arms: int) -> Scores | None:
    shape = len(found["rows"]), num_arms
    try:
        with (run_dir / FILE).open("rb") as file:
            file.seek(found["at"])
            data = file.read(shape[0] * shape[1] * _DTYPE.itemsize)
    except FileNotFoundError:
        return None
    if len(data) < shape[0] * shape[1] * _DTYPE.itemsize:
        return None
    matrix = np.frombuffer(data, dtype=_DTYPE).reshape(shape)
    if np.isnan(matrix).any():
        return None
    rows = dict(zip(found["rows"], matrix, strict=True))
    available = rows.pop(AVAILABLE)
    tie_break, owed = rows.pop(_TIE, None), rows.pop(_OWED, None)
    return Scores(found["rule"], found["unit"], available > 0, rows, tie_break, owed)


def _rows(
    explanation: Explanation, available: NDArray[Any], queue: NDArray[np.float64] | None
) -> dict[str, Any]:
    rows: dict[str, Any] = {AVAILABLE: available, **explanation.parts}
    if explanation.tie_break is not None:
        rows[_TIE] = explanation.tie_break
    if queue is not None:
        rows[_OWED] = queue
    return rows

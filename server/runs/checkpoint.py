"""Checkpoints: everything that the next round depends on, in one file that is whole or not there.

A file is a safetensors file: arrays, and the rest as JSON in its metadata. Its name holds the
round and a digest of its bytes, so that a torn or changed file is known. No pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from flower_scheduling.files import write_whole
from flower_scheduling.strategies.flower import LOGGER

FORMAT: Final = 1
"""Version of the files."""
_KEPT: Final = 2
_DIGEST_LENGTH: Final = 16
_ARRAY: Final = "__array__"
_STATE: Final = "state"
_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: the state that was saved after a round.

    Attributes
    ----------
    round : int
        The round.
    state : dict
        What was given to :meth:`CheckpointFolder.save`.
    """

    round: int
    state: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of a run, the last two of them.

    Parameters
    ----------
    path : Path
        Folder; created with the first checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, server_round: int, state: Mapping[str, Any]) -> None:
        """Save the state after a round; the last one stays, whatever happens.

        Parameters
        ----------
        server_round : int
            The round.
        state : mapping
            Mappings with text keys, lists, plain values and numpy arrays.

        Raises
        ------
        OSError
            If it cannot be written; earlier checkpoints are untouched.
        """
        self.path.mkdir(exist_ok=True)
        arrays: dict[str, NDArray[Any]] = {}
        tree = {"format": FORMAT, "round": server_round, "state": _pack(state, arrays)}
        data = safetensors.numpy.save(arrays, metadata={_STATE: json.dumps(tree)})
        target = self.path / f"{server_round:08}-{_digest(data)}{_SUFFIX}"
        for half in self.path.glob(".*.tmp"):  # of a process that was killed
            half.unlink()
        write_whole(target, data)
        # Those of later rounds were passed over when the run was resumed: it has come another way.
        others = [file for file in self._files() if file != target]
        before = [file for file in others if _round_of(file) < server_round]
        for old in {*others} - {*before[1 - _KEPT :]}:
            old.unlink(missing_ok=True)

    def has_rounds(self) -> bool:
        """Return whether there is a checkpoint of some round."""
        return any(_round_of(file) > 0 for file in self._files())

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; ``None`` if there is none.

        One that is not is passed over with a warning.
        """
        for file in reversed(self._files()):
            try:
                return _read(file)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                LOGGER.warning("checkpoint %s is passed over: %s", file, error)
        return None

    def _files(self) -> list[Path]:
        """Return the files by round."""
        found = self.path.glob(f"[0-9]*-*{_SUFFIX}")
        return sorted((file for file in found if file.is_file()), key=lambda f: (_round_of(f), f))


def _round_of(file: Path) -> int:
    number = file.name.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _read(file: Path) -> Checkpoint:
    with file.open("rb") as stream:  # not all of it into memory: it may be anything
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:_DIGEST_LENGTH]
    if file.stem.partition("-")[2] != digest:
        raise ValueError("its bytes are not those that were written")
    data = file.read_bytes()
    arrays = safetensors.numpy.load(data)
    length = int.from_bytes(data[:8], "little")
    tree = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_STATE])
    if tree["format"] != FORMAT:
        raise ValueError(f"its format is {tree['format']}, not {FORMAT}")
    return Checkpoint(tree["round"], _unpack(tree["state"], arrays))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_LENGTH]


def _pack(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a tree for JSON, its arrays replaced by names."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value).reshape(value.shape)
        return {_ARRAY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _pack(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, arrays) for item in value]
    return value


def _unpack(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return np.array(arrays[value[_ARRAY]])  # writable, and its own
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    return value

"""Checkpoints: everything that the next round depends on, in one file that is whole or not there.

A file is a safetensors file: arrays, and the rest as JSON in its metadata. Its name holds the
round and a digest of its bytes, so that a torn or changed file is known. No pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from flower_scheduling.files import replace_file, sync_folder, write_whole
from flower_scheduling.strategies.flower import LOGGER

from .tensor_file import tensor_file

FORMAT: Final = 1
"""Version of the files."""
_KEPT: Final = 2
_DIGEST_LENGTH: Final = 16
_ARRAY: Final = "__array__"
_STATE: Final = "state"
_SUFFIX: Final = ".safetensors"
_NEW: Final = ".new"  # of a file that is whole but for its name


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


@dataclass(frozen=True, slots=True)
class PackedState:
    """A state that is ready to be written, apart from what goes on.

    Attributes
    ----------
    round : int
        The round.
    text : str
        All but the arrays, as JSON.
    arrays : dict of str to array
        The arrays, held and not copied.
    """

    round: int
    text: str
    arrays: dict[str, NDArray[Any]]

    @staticmethod
    def of(server_round: int, state: Mapping[str, Any]) -> PackedState:
        """Pack a state.

        Parameters
        ----------
        server_round : int
            The round after which it was so.
        state : mapping
            Mappings with text keys, lists, plain values and numpy arrays. The arrays must not
            change until it is written.
        """
        arrays: dict[str, NDArray[Any]] = {}
        tree = {"format": FORMAT, "round": server_round, "state": _pack(state, arrays)}
        return PackedState(server_round, json.dumps(tree), arrays)

    @property
    def num_bytes(self) -> int:
        """Size of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def file(self) -> Iterator[bytes | memoryview]:
        """Return the file, in pieces."""
        return tensor_file(self.arrays, {_STATE: self.text})


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
        """Save the state after a round: :meth:`PackedState.of` and :meth:`write`."""
        self.write(PackedState.of(server_round, state))

    def write(self, packed: PackedState) -> None:
        """Write a state; the last one stays, whatever happens. One writer at a time.

        Raises
        ------
        OSError
            If it cannot be written; earlier checkpoints are untouched.
        """
        self.path.mkdir(exist_ok=True)
        for half in [*self.path.glob(".*.tmp"), *self.path.glob(f"*{_NEW}")]:
            half.unlink()  # of a process that was killed
        digest = hashlib.sha256()
        new = self.path / f"{packed.round:08}{_NEW}"
        write_whole(new, _digested(packed.file(), digest))
        name = f"{packed.round:08}-{digest.hexdigest()[:_DIGEST_LENGTH]}{_SUFFIX}"
        target = self.path / name
        replace_file(new, target)
        sync_folder(self.path)
        # Those of later rounds were passed over when the run was resumed: it has come another way.
        others = [file for file in self._files() if file != target]
        before = [file for file in others if _round_of(file) < packed.round]
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


def _digested(
    pieces: Iterable[bytes | memoryview], digest: hashlib._Hash
) -> Iterator[bytes | memoryview]:
    """Yield pieces that a digest has seen."""
    for piece in pieces:
        digest.update(piece)
        yield piece


def _round_of(file: Path) -> int:
    number = file.name.partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _read(file: Path) -> Checkpoint:
    with file.open("rb") as stream:  # not all of it into memory: it may be anything
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:_DIGEST_LENGTH]
    if file.stem.partition("-")[2] != digest:
        raise ValueError("its bytes are not those that were written")
    with safe_open(file, "numpy") as opened:
        tree = json.loads((opened.metadata() or {})[_STATE])
        if tree["format"] != FORMAT:
            raise ValueError(f"its format is {tree['format']}, not {FORMAT}")
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return Checkpoint(tree["round"], _unpack(tree["state"], arrays))


def _pack(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a tree for JSON, its arrays replaced by names."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
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
            return arrays[value[_ARRAY]]
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    return value

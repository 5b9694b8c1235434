"""What a Flower strategy has learned, as numbers and arrays that can be written down."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from flower_scheduling._flwr_old import Strategy as OldStrategy
from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.errors import ConfigError

_PLAIN: Final = (bool, int, float, str)
_RECORD: Final = "__array_record__"
"""Marks a mapping that stands for an ArrayRecord."""
_BYTES: Final = "__bytes__"
"""Marks a mapping that stands for bytes, as Flower's tree ensembles hold them."""
_TENSOR: Final = "__tensor__"
"""Marks a mapping that stands for a tensor of torch."""
_BY_NUMBER: Final = "__by_number__"
"""Marks a mapping that stands for one whose keys are whole numbers, such as node ids."""
_CLASS: Final = "__class__"
"""Key of a strategy's class in its state."""
_REPLACED: Final = frozenset(["current_arrays", "m_t", "v_t", "momentum_vector"])
"""Attributes of Flower's strategies whose arrays are replaced and never changed (flwr 1.42)."""


def strategy_state(strategy: Strategy | OldStrategy) -> dict[str, Any]:
    """Return the numbers, texts and arrays of a strategy and of those that it wraps.

    What is returned does not change when the strategy goes on: arrays are copies, but for those
    that Flower's strategies never change.

    Functions and further strategies are not part of it: they are there again once the strategy
    is built anew.

    Returns
    -------
    dict
        Mappings, lists, plain values and numpy arrays; nothing that needs pickle.

    Raises
    ------
    ConfigError
        If it holds something else, by name.
    """
    state: dict[str, Any] = {_CLASS: type(strategy).__name__}
    flowers = type(strategy).__module__.startswith("flwr.")
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy | OldStrategy):
            state[name] = strategy_state(value)
        elif not callable(value):
            copies = not (flowers and name in _REPLACED)
            state[name] = _plain(value, f"{type(strategy).__name__}.{name}", copies)
    return state


def load_strategy_state(strategy: Strategy | OldStrategy, state: Mapping[str, Any]) -> None:
    """Give a strategy that was built anew what :func:`strategy_state` returned.

    Raises
    ------
    ConfigError
        If it is of another class or has other attributes, but for those that it had got in the
        course of the run.
    """
    state = dict(state)
    kind = state.pop(_CLASS, None)  # earlier versions did not save it
    own = {name for name, value in vars(strategy).items() if not callable(value)}
    later = state.keys() - own if kind == type(strategy).__name__ else set()
    if own != state.keys() - later:
        differing = ", ".join(sorted(own ^ (state.keys() - later))) or f"a {kind}"
        raise ConfigError(
            "strategy", type(strategy).__name__, f"must be as it was saved ({differing})"
        )
    for name, value in state.items():
        current = getattr(strategy, name, None)
        if isinstance(current, Strategy | OldStrategy):
            load_strategy_state(current, value)
        else:
            setattr(strategy, name, _restored(value))


def _plain(value: object, where: str, copies: bool) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.copy() if copies else _read_only(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes | bytearray):
        return {_BYTES: np.frombuffer(bytes(value), dtype=np.uint8)}
    if isinstance(value, ArrayRecord):
        return {_RECORD: {key: decode_array(array) for key, array in value.items()}}
    if type(value).__module__ == "torch" and hasattr(value, "detach"):  # without importing it
        return {_TENSOR: value.detach().cpu().numpy().copy()}
    if isinstance(value, Mapping) and all(type(key) is int for key in value) and value:
        items = [[key, _plain(item, f"{where}[{key}]", copies)] for key, item in value.items()]
        return {_BY_NUMBER: items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}[{key!r}]", copies) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item, f"{where}[{i}]", copies) for i, item in enumerate(value)]
    raise ConfigError(
        where,
        f"a {type(value).__name__}",
        "a checkpoint cannot hold it: numbers, texts, arrays, lists and mappings of them can be",
    )


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.setflags(write=False)
    return view


def _restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {_RECORD}:
            return ArrayRecord({key: Array(array) for key, array in value[_RECORD].items()})
        if value.keys() == {_TENSOR}:
            torch: Any = sys.modules["torch"]  # the strategy was built anew, by code that needs it
            return torch.from_numpy(np.array(value[_TENSOR]))
        if value.keys() == {_BY_NUMBER}:
            return {int(key): _restored(item) for key, item in value[_BY_NUMBER]}
        if value.keys() == {_BYTES}:
            return value[_BYTES].tobytes()
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return value

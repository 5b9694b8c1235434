"""Updates without work: the model as it was sent, or another client's update once more."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord

from flower_scheduling.client.wire.arrays import decode_array
from flower_scheduling.reasons import FREE_RIDER

from ...base import BoolArray, IntArray
from ..replies import Change, Update, of_kind
from .pieces import AnyArray, pieces

UNCHANGED: Final = Change("", -1, b"")
"""Of an update that is the model as it was sent."""

_ROUNDING: Final = 4.0
"""A value is the model's within so many units of the last place."""
_SHOWN: Final = 16  # values by which a change is known
_NUMBERS: Final = frozenset("biufc")  # kinds of dtypes
_FEWEST_VALUES: Final = 8
"""Updates of fewer values may be equal by chance."""


class FreeRiders:
    """Tell updates that nothing was done for, by what the other clients send.

    An update is one if, within rounding, each of its arrays is the model that its client was sent,
    or if it equals another client's of the same step. It counts as such only where

    - at least half of the other clients last sent updates of their own: where the model has
      converged, or an app means its replies to be alike, most are;
    - the client has sent the model back more often than an update: one whose own data have nothing
      to teach any more, after they had, is believed.

    Not judged are replies that cannot be compared, whose arrays are not those of the model:
    metrics alone, trees, parts of a model; and, as equal to another's, those of fewer than 8
    values. A client that adds noise to the model is not found.

    It costs honest clients next to nothing: the comparison with the model ends at the first value
    that differs, begins with an array that has been trained before, and those of the updates with
    each other begin there too.
    """

    def __init__(self) -> None:
        self._first = ""  # an array that is trained
        # By arm: updates of its own and models sent back; whether its last was one of its own.
        self._changed: IntArray = np.zeros(0, dtype=np.int64)
        self._unchanged: IntArray = np.zeros(0, dtype=np.int64)
        self._works: BoolArray = np.zeros(0, dtype=np.bool_)
        self._num_known = self._num_working = 0

    def change_of(self, update: Update, model: ArrayRecord) -> Change | None:
        """Return where an update first differs from the model that its client was sent.

        Parameters
        ----------
        update : Update
            Of a client with examples.
        model : ArrayRecord
            What it was sent.

        Returns
        -------
        Change or None
            :data:`UNCHANGED` if it does not; ``None`` if the two cannot be compared.
        """
        arrays = arrays_of(update)
        if self._first in arrays:  # mostly that is all
            arrays = {self._first: arrays[self._first], **arrays}
        comparable = bool(arrays)
        for key, array in arrays.items():
            base = model.get(key)
            values, origin = decode_array(array), None if base is None else decode_array(base)
            if origin is None or not _can_compare(values, origin):
                comparable = False
            elif (found := _first_difference(values, origin)) is not None:
                if self._first not in arrays:  # it stays: what is compared begins at one place
                    self._first = key
                return Change(key, *found)
        return UNCHANGED if comparable else None

    def judge(
        self, updates: Mapping[int, Update], earlier: Sequence[tuple[int, Update]] = ()
    ) -> tuple[dict[int, str], dict[int, str]]:
        """Return the reasons why updates are none, and remember who sent what.

        Parameters
        ----------
        updates : mapping of int to Update
            By arm, new ones; their ``change`` is that of :meth:`change_of`.
        earlier : sequence of (int, Update)
            Those of the same step that were judged before, with their arms.

        Returns
        -------
        now, before : dict of int to str
            Reasons by arm, and of those judged before, which others have come beside, by place.
        """
        everything = [*earlier, *updates.items()]
        twins = _twins(everything)
        for place, (arm, update) in enumerate(everything):
            own = update.change not in (None, UNCHANGED) and place not in twins
            if place >= len(earlier) and update.change is not None:
                self._count(arm, changed=update.change != UNCHANGED)
                self._note(arm, works=own)
            elif place in twins:
                self._note(arm, works=False)
        reasons = {}
        for place, (arm, update) in enumerate(everything):
            idle = update.change == UNCHANGED and self._unchanged[arm] > self._changed[arm]
            if (idle or place in twins) and self._others_work(twins.get(place, {arm})):
                what = "is the model that was sent" if idle else "equals that of another client"
                reasons[place] = f"{FREE_RIDER}: the update {what}"
        first = len(earlier)
        arms = list(updates)
        return (
            {arms[place - first]: text for place, text in reasons.items() if place >= first},
            {place: text for place, text in reasons.items() if place < first},
        )

    def _count(self, arm: int, *, changed: bool) -> None:
        if (missing := arm + 1 - self._works.size) > 0:
            missing = max(missing, self._works.size)  # arms join one by one
            for name in ("_changed", "_unchanged", "_works"):
                setattr(self, name, np.pad(getattr(self, name), (0, missing)))
        self._num_known += not (self._changed[arm] or self._unchanged[arm])
        (self._changed if changed else self._unchanged)[arm] += 1

    def _note(self, arm: int, *, works: bool) -> None:
        self._num_working += works - int(self._works[arm])
        self._works[arm] = works

    def _others_work(self, arms: Collection[int]) -> bool:
        """Tell whether at least half of the clients beside one last sent updates of their own.

        Of clients with the same update none counts as working, whatever else they have sent.
        """
        working = self._num_working - sum(bool(self._works[arm]) for arm in arms)
        return working > 0 and 2 * working >= self._num_known - 1

    def state(self) -> dict[str, Any]:
        """Return what the clients have sent so far."""
        return {
            "changed": self._changed.copy(),
            "unchanged": self._unchanged.copy(),
            "works": self._works.copy(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` left off."""
        self._changed = np.array(state["changed"], dtype=np.int64)
        self._unchanged = np.array(state["unchanged"], dtype=np.int64)
        self._works = np.array(state["works"], dtype=np.bool_)
        self._num_known = int(np.count_nonzero(self._changed + self._unchanged))
        self._num_working = int(np.count_nonzero(self._works))


def arrays_of(update: Update) -> dict[str, Array]:
    """Return the arrays of all records by key, none if two have the same key."""
    found: dict[str, Array] = {}
    for record in of_kind(update.message.content, ArrayRecord).values():
        if found.keys() & record.keys():
            return {}
        found.update(record.items())  # many times as fast as from the record
    return found


def _can_compare(values: AnyArray, origin: AnyArray) -> bool:
    kinds = {values.dtype.kind, origin.dtype.kind}
    return values.shape == origin.shape and kinds <= _NUMBERS


def _twins(updates: Sequence[tuple[int, Update]]) -> dict[int, set[int]]:
    """Return the places of updates that equal another arm's, and all arms that sent that one."""
    groups: dict[Change, list[list[int]]] = {}
    for place, (_, update) in enumerate(updates):
        if update.change is None or update.change == UNCHANGED:
            continue
        alike = groups.setdefault(update.change, [])
        for group in alike:
            if _are_equal(update, updates[group[0]][1]):
                group.append(place)
                break
        else:
            alike.append([place])
    twins: dict[int, set[int]] = {}
    for group in (group for alike in groups.values() for group in alike):
        arms = {updates[place][0] for place in group}
        if len(arms) > 1:
            twins |= dict.fromkeys(group, arms)
    return twins


def _are_equal(one: Update, other: Update) -> bool:
    arrays, others = (
        {key: decode_array(array) for key, array in arrays_of(each).items()}
        for each in (one, other)
    )
    return (
        arrays.keys() == others.keys()
        and sum(array.size for array in arrays.values()) >= _FEWEST_VALUES
        and all(_are_the_same(array, others[key]) for key, array in arrays.items())
    )


def _are_the_same(one: AnyArray, other: AnyArray) -> bool:
    return one.shape == other.shape and all(
        bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pieces(one, other)
    )


def _first_difference(values: AnyArray, base: AnyArray) -> tuple[int, bytes] | None:
    """Return where two arrays of a shape first differ, and the values from there; ``None``: never.

    Floats differ by more than rounding.
    """
    begin = 0
    for value, origin in _pieces(values, base):
        differs = value != origin
        place = int(differs.argmax())
        if differs[place] and (beyond := _beyond_rounding(value, origin, place)) is not None:
            return begin + beyond, value[beyond : beyond + _SHOWN].tobytes()
        begin += value.size
    return None


def _pieces(values: AnyArray, base: AnyArray) -> Iterator[tuple[AnyArray, AnyArray]]:
    """Yield pieces, flat and not empty."""
    for value, origin in pieces(values, base):
        if value.size:
            yield value.reshape(-1), origin.reshape(-1)


def _beyond_rounding(value: AnyArray, origin: AnyArray, place: int) -> int | None:
    """Return the first place from one on where values differ by more than rounding."""
    rounding = _rounding(value.dtype, origin.dtype)
    one, other = value[place].item(), origin[place].item()
    if not rounding or abs(one - other) > rounding * abs(other):
        return place
    with np.errstate(invalid="ignore", over="ignore"):
        beyond = abs(value - origin) > rounding * abs(origin)
    first = int(beyond.argmax())
    return first if beyond[first] else None


@functools.lru_cache(maxsize=64)
def _rounding(*dtypes: np.dtype[Any]) -> float:
    """Return by how much of itself a value may differ for no reason; 0 for whole numbers."""
    if any(dtype.kind not in "fc" for dtype in dtypes):
        return 0.0
    return _ROUNDING * max(float(np.finfo(dtype).eps) for dtype in dtypes)

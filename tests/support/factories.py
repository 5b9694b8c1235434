"""Records of rounds, as several test files want them."""

from __future__ import annotations

from typing import Any

from flower_scheduling.strategies.flower import ArmResult, RoundRecord

_COLUMNS = {"names": "name", "rtt_s": "rtt_s", "reason": "reason"}
_COLUMNS |= {"compute_s": "compute_s", "link_s": "link_s"}


def round_record(**values: Any) -> RoundRecord:
    """Make a record; per selected arm, lists under the names of :class:`.ArmResult`'s fields."""
    selected = values.pop("selected")
    columns = {field: values.pop(name) for name, field in _COLUMNS.items() if name in values}
    results = [
        ArmResult(arm, **{field: column[place] for field, column in columns.items()})
        for place, arm in enumerate(selected)
    ]
    return RoundRecord(**values, results=results)

"""How many examples a property test makes, in each profile of hypothesis (see conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int, **more: Any) -> Callable[[Any], Any]:
    """Decorate a property test: the profile's share of `count` examples, and the marker."""
    number = max(1, count * settings().max_examples // 100)
    return lambda test: pytest.mark.property(settings(max_examples=number, **more)(test))

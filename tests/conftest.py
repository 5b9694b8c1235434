"""What all tests share: the data set, sizes of property tests, one thread per process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from flower_scheduling.client.learning.images import ImageData

# Before NumPy and torch are imported, and for the processes that tests start: as many tests as
# cores run side by side, and threads cost more than they bring on models of this size.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
# Ray would join any cluster that runs on this machine, such as one of a test beside, and wait for
# ever when that has ended.
os.environ.setdefault("RAY_ADDRESS", "local")

# Examples in percent of what a test asks for, see support/profiles.py. No deadline: how long an
# example takes depends on what else the machine does.
_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("default", max_examples=100, **_COMMON)
hypothesis.settings.register_profile("quick", max_examples=10, derandomize=True, **_COMMON)
hypothesis.settings.register_profile("soak", max_examples=10_000, **_COMMON)
hypothesis.settings.load_profile("default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Make captured text printable: pytest-xdist cannot send a lone surrogate."""
    report = yield
    report.sections = [(title, _printable(text)) for title, text in report.sections]
    return report


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """Undo what programs that run in this process do to the loggers."""
    loggers = [logging.getLogger(name) for name in ("flwr", "flwr.scheduling")]
    before = [(one, one.handlers[:], one.propagate, one.level) for one in loggers]
    yield
    for one, handlers, propagate, level in before:
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.fixture(scope="session")
def mnist() -> ImageData:
    """The real data set; fetched on a machine's first run."""
    from flower_scheduling.client.learning.mnist import load_mnist

    return load_mnist()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What client and server log, from INFO on."""
    from flower_scheduling.strategies.flower import LOGGER

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)  # the client's logger is below it
    yield lines
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)

"""The adapter: schedule the clients of any Flower strategy."""

from .arm_table import Arm, ArmTable
from .grids import OwnGrid
from .rate_limited_log import RateLimitedLog
from .record import ArmResult, RoundHook, RoundRecord, failure_kind
from .strategy import ScheduledStrategy
from .timed_grid import LOGGER, TIMEOUT, UNDELIVERABLE, Exchange, TimedExchange, TimedGrid

__all__ = [
    "LOGGER",
    "TIMEOUT",
    "UNDELIVERABLE",
    "Arm",
    "ArmResult",
    "ArmTable",
    "Exchange",
    "OwnGrid",
    "RateLimitedLog",
    "RoundHook",
    "RoundRecord",
    "ScheduledStrategy",
    "TimedExchange",
    "TimedGrid",
    "failure_kind",
]

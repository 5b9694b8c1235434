"""The adapter: schedule the clients of any Flower strategy."""

from flower_scheduling.reasons import TIMEOUT, UNDELIVERABLE

from .arm_table import Arm, ArmTable
from .buffer.channel_grid import ChannelGrid
from .following import Follower, RecordingOptions, StartedRun, followed_by, overriding
from .grids import OwnGrid
from .logs.rate_limited_log import RateLimitedLog
from .logs.wait_log import WaitLog
from .old_api.server import ScheduledServer
from .old_api.workflow import ScheduledWorkflow
from .record import (
    ArmResult,
    Pick,
    RoundHook,
    RoundRecord,
    failure_kind,
)
from .strategy import ScheduledStrategy
from .timed_grid import (
    LATE,
    LOGGER,
    Exchange,
    SpareExchange,
    TimedExchange,
    TimedGrid,
    enough_are_in,
)

__all__ = [
    "LATE",
    "LOGGER",
    "TIMEOUT",
    "UNDELIVERABLE",
    "Arm",
    "ArmResult",
    "ArmTable",
    "ChannelGrid",
    "Exchange",
    "Follower",
    "OwnGrid",
    "Pick",
    "RateLimitedLog",
    "RecordingOptions",
    "RoundHook",
    "RoundRecord",
    "ScheduledServer",
    "ScheduledStrategy",
    "ScheduledWorkflow",
    "SpareExchange",
    "StartedRun",
    "TimedExchange",
    "TimedGrid",
    "WaitLog",
    "enough_are_in",
    "failure_kind",
    "followed_by",
    "overriding",
]

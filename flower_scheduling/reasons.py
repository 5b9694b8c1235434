"""Why an update was not used, and why a round left the model as it was: the words of all records.

A reason in a record is ``kind`` or ``kind: details``; failures are counted by the kind, which is
a key of :data:`FAILURES` whatever a client sends. docs/how-to/failures.md says what to do.
"""

from __future__ import annotations

from typing import Final

TIMEOUT: Final = "timeout"
"""Failure of a message that was not answered before the deadline."""
UNDELIVERABLE: Final = "undeliverable"
"""Failure of a message that the grid would not take."""
LOST: Final = "connection lost"
"""Failure of a message whose client went away and did not come back in time."""
UNREADABLE: Final = "unreadable reply"
"""Failure of a reply that is no message, or answers another one."""
OVERSIZED: Final = "oversized reply"
"""Failure of a reply that is larger than its client may send, or the server takes."""
CLIENT_ERROR: Final = "client error"
"""Failure of a client whose app raised."""
WRONG_RECORDS: Final = "wrong records"
"""Failure of a reply that has other records than one of arrays and one of metrics."""
WRONG_ARRAYS: Final = "wrong arrays"
"""Failure of a reply whose arrays have other keys, shapes or dtypes than the model's."""
NOT_FINITE: Final = "not finite"
"""Failure of a reply with infinities or NaN where the model has none."""
BAD_WEIGHT: Final = "bad weight"
"""Failure of a reply without a number of examples, or with more than one can have."""
TOO_LARGE: Final = "too large"
"""Failure of a reply with values, or an update with a norm, beyond what is sensible."""
OTHER_NAMES: Final = "other names"
"""Failure of a reply whose record or metric names differ from the other clients'."""
STALE: Final = "stale"
"""Failure of an update whose model is too many steps old: of buffered mode, or a late one."""
FREE_RIDER: Final = "free-rider"
"""Failure of an update that is the model as it was sent, or another client's."""

FAILURES: Final = {
    TIMEOUT: "no reply before the deadline",
    UNDELIVERABLE: "the message could not be sent",
    LOST: "the connection broke and the client did not come back in time",
    UNREADABLE: "the reply could not be read, or answers another message",
    OVERSIZED: "the reply is larger than its client may send, or the server takes",
    CLIENT_ERROR: "the ClientApp raised an exception",
    WRONG_RECORDS: "the reply has other records than one of arrays and one of metrics",
    WRONG_ARRAYS: "the arrays have other keys, shapes or dtypes than the model's",
    NOT_FINITE: "infinities or NaN where the model has none",
    BAD_WEIGHT: "no usable number of examples",
    TOO_LARGE: "values, or an update, beyond the bounds",
    OTHER_NAMES: "record or metric names unlike the other clients'",
    STALE: "of an update in buffered mode, or a late one: its model is too many steps old",
    FREE_RIDER: "the update is the model as it was sent, or another client's",
}
"""Every kind of failure of a client in a round, and what it means."""

NOBODY_AVAILABLE: Final = "nobody-available"
NO_REPLIES: Final = "no-replies"
NO_EXAMPLES: Final = "no-examples"
QUORUM: Final = "quorum"
NOT_CONFIGURED: Final = "not-configured"
AGGREGATION: Final = "aggregation"
NO_STEP: Final = {
    NOBODY_AVAILABLE: "no client was available",
    NO_REPLIES: "no client returned a usable update",
    NO_EXAMPLES: "all clients that replied have no examples",
    QUORUM: "fewer usable updates, or clients, than the strategy needs",
    NOT_CONFIGURED: "the wrapped strategy had messages for no selected client",
    AGGREGATION: "the wrapped strategy raised, or made no model",
}
"""Every reason for which a round leaves the model as it was, and what it means."""

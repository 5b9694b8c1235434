"""How large a message may be: what the model needs, or what the user says."""

from __future__ import annotations

import pytest

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.transport.message_limit import MessageLimit

MB = 10**6


def test_replies_may_be_four_times_what_was_sent() -> None:
    limit = MessageLimit()
    assert limit.reply_bytes == 512 * MB
    limit.note_sent(100 * MB)
    assert limit.reply_bytes == 512 * MB
    limit.note_sent(1000 * MB)
    limit.note_sent(1)
    assert limit.reply_bytes == 4000 * MB


def test_given_bound_holds_in_both_directions() -> None:
    limit = MessageLimit(100 * MB)
    limit.note_sent(100 * MB)
    assert limit.reply_bytes == 100 * MB
    with pytest.raises(
        ConfigError, match="max_message_mb = 100: the app sends a message of 101 MB"
    ):
        limit.note_sent(101 * MB)

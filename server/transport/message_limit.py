"""How large messages may be."""

from __future__ import annotations

from typing import Final

from flower_scheduling.client.wire.frames import MEGABYTE, megabytes
from flower_scheduling.errors import ConfigError

_FREE_BYTES: Final = 512 * MEGABYTE  # of a reply, whatever was sent
_TIMES: Final = 4  # of a reply, by what was sent: some strategies' clients answer with two models


class MessageLimit:
    """The bound on messages: by default relative to what the server sends.

    Clients are not trusted: what one of them can make the server keep must be bounded. What they
    need is known from the model that they get.

    Parameters
    ----------
    maximum_bytes : int, optional
        Bound on any message, in both directions [bytes].

    Attributes
    ----------
    reply_bytes : int
        Largest reply that is taken [bytes].
    """

    def __init__(self, maximum_bytes: int | None = None) -> None:
        self._maximum_bytes = maximum_bytes
        self.reply_bytes = maximum_bytes or _FREE_BYTES

    def note_sent(self, size: int) -> None:
        """Take note of a message that is about to be sent [bytes].

        Raises
        ------
        ConfigError
            If it is too large, with key ``max_message_mb``.
        """
        if self._maximum_bytes is None:
            self.reply_bytes = max(self.reply_bytes, _TIMES * size)
        elif size > self._maximum_bytes:
            raise ConfigError(
                "max_message_mb",
                self._maximum_bytes // MEGABYTE,
                f"the app sends a message of {megabytes(size)} MB: give at least as much, or "
                "leave it out",
            )

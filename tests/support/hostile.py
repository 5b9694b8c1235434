"""What hostile messages are made of, and what they cost."""

from __future__ import annotations

import resource


def proto_field(number: int, body: bytes) -> bytes:
    """Encode a field of a protobuf message, whatever is in it."""
    size, text = len(body), b""
    while size > 127:
        text += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + text + bytes([size]) + body


def peak_mb() -> float:
    """Return the largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

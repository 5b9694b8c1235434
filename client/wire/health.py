"""The health check of a flower-server, and hints on connections that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flower_scheduling.errors import ClientConfigError

from .proxies import through_proxy

__all__ = ["OwnFault", "check_health", "check_timeout", "no_answer", "tls_hint"]

# Returns what is wrong with the two ends' certificates by now; empty if nothing can be seen.
OwnFault: TypeAlias = Callable[[], str]


def check_health(
    channel: grpc.Channel, address: str, timeout_s: float, own_fault: OwnFault | None = None
) -> None:
    """Return if the server at the other end of a channel answers that it serves.

    Parameters
    ----------
    channel : grpc.Channel
        To the server.
    address : str
        The server's ``host:port``, for errors.
    timeout_s : float
        Longest wait for the answer [s].
    own_fault : callable, optional
        As for :func:`tls_hint`.

    Raises
    ------
    ConnectionError
        If the server does not answer in time, or does not serve.
    """
    check_timeout(timeout_s)
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=timeout_s
        )
    except grpc.RpcError as error:
        raise no_answer(address, error, own_fault) from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise ConnectionError(f"the server at {address} is not serving")


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout that is not above 0.

    Raises
    ------
    ClientConfigError
        If so.
    """
    if not timeout_s > 0:
        raise ClientConfigError(f"timeout-s = {timeout_s}: must be above 0")


def no_answer(
    address: str, error: grpc.RpcError, own_fault: OwnFault | None = None
) -> ConnectionError:
    """Return the error to raise when a server did not answer."""
    reason = str(error.details() if isinstance(error, grpc.Call) else error)
    hint = tls_hint(reason, address, own_fault)
    through = through_proxy(address)
    return ConnectionError(f"no flower-server answers at {address}{through}: {reason}{hint}")


def tls_hint(reason: str, address: str, own_fault: OwnFault | None = None) -> str:
    """Return the likely cause of a connection that breaks before the first frame, in brackets.

    Where it is in doubt, the server is asked whether it speaks TLS.

    Parameters
    ----------
    reason : str
        gRPC's reason.
    address : str
        The server's ``host:port``.
    own_fault : callable, optional
        Returns what is wrong with the certificates by now, or nothing; None without TLS.
    """
    words = reason.lower()
    broken = "socket closed" in words or "connection reset" in words or "settings frame" in words
    if not (broken or "handshake" in words or "verification" in words):
        return ""
    if own_fault is not None:
        doubt = "is the server's certificate valid, and does it come from the same authority?"
        return f" ({own_fault() or doubt})"
    from .credentials import serves_tls  # which needs a library that clients can do without

    # Through a proxy it cannot be asked in this way.
    speaks, _ = serves_tls(address) if not through_proxy(address) else (True, None)
    return " (does it want --tls?)" if speaks else " (is it a flower-server, or is it full?)"

"""Ask a flower-server whether it serves, as container health checks do."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.errors import ClientConfigError

__all__ = ["check_health"]


def check_health(
    address: str, credentials: grpc.ChannelCredentials | None, timeout_s: float
) -> None:
    """Return if the server at an address answers that it serves.

    Parameters
    ----------
    address : str
        ``host:port``.
    credentials : grpc.ChannelCredentials, optional
        TLS; without it the question is asked in the clear.
    timeout_s : float
        Longest wait for the answer [s].

    Raises
    ------
    ConnectionError
        If it does not answer in time, or does not serve.
    """
    if not timeout_s > 0:
        raise ClientConfigError(f"timeout-s = {timeout_s}: must be above 0")
    channel = (
        grpc.insecure_channel(address)
        if credentials is None
        else grpc.secure_channel(address, credentials)
    )
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s
            )
        except grpc.RpcError as error:
            reason = error.details() if isinstance(error, grpc.Call) else str(error)
            raise ConnectionError(f"no flower-server answers at {address}: {reason}") from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise ConnectionError(f"the server at {address} is not serving")

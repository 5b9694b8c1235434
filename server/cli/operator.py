"""The operator's requests to a running server, from the machine that it runs on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from flower_scheduling.client.wire import frames as wire
from flower_scheduling.client.wire.addresses import parse_address
from flower_scheduling.client.wire.credentials import (
    certificate_fault,
    check_pair,
    host_names,
    load_certificate,
)
from flower_scheduling.client.wire.health import OwnFault, check_timeout, no_answer
from flower_scheduling.client.wire.proxies import proxy_options
from flower_scheduling.errors import ClientConfigError


@contextmanager
def operator_channel(
    address: str, tls: Path | None
) -> Iterator[tuple[grpc.Channel, OwnFault | None]]:
    """Open a channel to a server with the server's own certificate.

    With TLS there is also a function that returns what is wrong with the certificates.

    Parameters
    ----------
    address : str
        Where the server listens, ``host:port``; its certificate need not name this host.
    tls : Path, optional
        Folder of ``ca.pem``, ``server.pem`` and ``server.key``; without it the channel is in the
        clear.

    Raises
    ------
    ClientConfigError, ConfigError
        If the address cannot be one, a file is missing, or the server would refuse the certificate.
    """
    address = str(parse_address("address", address))
    # A channel of its own: gRPC would share the pauses between attempts with others.
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),  # the status of ten thousand clients
        *proxy_options(address),
    ]
    own_fault: OwnFault | None = None
    if tls is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        ca, certificate, key = tls / "ca.pem", tls / "server.pem", tls / "server.key"
        check_pair(ca, certificate, key)
        served, authority = load_certificate(certificate), load_certificate(ca)
        own_fault = partial(certificate_fault, address, served, authority, any_host=True)
        try:
            usages = served.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])  # no limits
        if ExtendedKeyUsageOID.CLIENT_AUTH not in usages:
            raise ClientConfigError(
                f"{certificate} is for serving alone: run flower-certs renew, restart the server"
            )
        if hosts := host_names(served):
            options.append(("grpc.ssl_target_name_override", hosts[0]))
        channel = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(
                ca.read_bytes(), key.read_bytes(), certificate.read_bytes()
            ),
            options=options,
        )
    with channel:
        yield channel, own_fault


def read_status(
    channel: grpc.Channel, address: str, timeout_s: float, own_fault: OwnFault | None = None
) -> dict[str, Any]:
    """Return the status of a server (:meth:`.ServerStatus.snapshot`).

    Raises
    ------
    ConnectionError
        If it does not answer within ``timeout_s`` [s], or not to this caller.
    """
    check_timeout(timeout_s)
    ask = channel.unary_unary(f"/{wire.SERVICE}/{wire.STATUS}")
    try:
        status: dict[str, Any] = json.loads(ask(b"", timeout=timeout_s))
    except grpc.RpcError as error:
        fault = no_answer(address, error, own_fault)
        raise ConnectionError(f"{fault} (--address names another one)") from None
    return status

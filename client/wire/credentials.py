"""TLS files, read and checked before the other end of a connection would refuse them."""

from __future__ import annotations

import datetime
import ipaddress
import math
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flower_scheduling.errors import CertificateTimeError, ClientConfigError

from .addresses import parse_address

__all__ = [
    "alternative_names",
    "certificate_fault",
    "channel_credentials",
    "check_pair",
    "client_files",
    "common_name",
    "days_left",
    "expiry",
    "host_names",
    "load_certificate",
    "load_key",
    "server_credentials",
    "serves_tls",
]


_PROBE_S = 2.0  # longest wait of an attempt to speak TLS
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE", "HTTP_REQUEST")


def channel_credentials(folder: Path, name: str) -> grpc.ChannelCredentials:
    """Read a client's TLS files.

    Parameters
    ----------
    folder : Path
        Holds ``ca.pem``, and ``NAME.pem`` with ``NAME.key`` beside it or in ``clients``.
    name : str
        The client's name.

    Raises
    ------
    ClientConfigError, CertificateTimeError
        If a file is missing, or the server would refuse the certificate.
    """
    ca, certificate, key = client_files(folder, name)
    check_pair(ca, certificate, key, name=name)
    return grpc.ssl_channel_credentials(ca.read_bytes(), key.read_bytes(), certificate.read_bytes())


def client_files(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Return the paths of a client's authority, certificate and key."""
    own = folder / "clients" if (folder / "clients" / f"{name}.pem").exists() else folder
    return folder / "ca.pem", own / f"{name}.pem", own / f"{name}.key"


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Read the server's TLS files, ``ca.pem``, ``server.pem`` and ``server.key``.

    Clients must show a certificate of the same authority.

    Raises
    ------
    ClientConfigError, CertificateTimeError
        If a file is missing, or clients would refuse the certificate.
    """
    ca, certificate, key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    check_pair(ca, certificate, key)
    return grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())], ca.read_bytes(), require_client_auth=True
    )


def check_pair(
    ca: Path,
    certificate: Path,
    key: Path,
    *,
    name: str | None = None,
    now: datetime.datetime | None = None,
) -> None:
    """Refuse certificate files that the other end would refuse, with a reason.

    Parameters
    ----------
    ca, certificate, key : Path
        PEM files: the authority, the certificate of this end, and its private key.
    name : str, optional
        The name that the certificate must be issued to.
    now : datetime, optional
        The time at which it must be valid; the present by default.

    Raises
    ------
    ClientConfigError
        If a file is missing or unreadable, the key is another certificate's, the authority is
        another, or the certificate is issued to another name.
    CertificateTimeError
        If the certificate has expired or is not valid yet.
    """
    own, authority = load_certificate(certificate), load_certificate(ca)
    if load_key(key).public_key() != own.public_key():
        raise ClientConfigError(f"{key} is not the private key of {certificate}")
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise ClientConfigError(f"{certificate} was not issued by {ca}") from None
    if name is not None and common_name(own) != name:
        raise ClientConfigError(
            f"{certificate} is issued to {common_name(own)!r}: this client is {name!r}"
        )
    now = now or datetime.datetime.now(datetime.UTC)
    if text := expiry(own, now):
        raise CertificateTimeError(f"{certificate} {text}: renew it with flower-certs")
    if now < own.not_valid_before_utc:
        raise CertificateTimeError(
            f"{certificate} is not valid before {own.not_valid_before_utc:%Y-%m-%d}:"
            " is this machine's clock right?"
        )


def expiry(certificate: x509.Certificate, now: datetime.datetime | None = None) -> str:
    """Return ``expired on DATE``, or nothing if a certificate has not expired."""
    end = certificate.not_valid_after_utc
    return f"expired on {end:%Y-%m-%d}" if _rest(certificate, now) < datetime.timedelta() else ""


def days_left(certificate: x509.Certificate, now: datetime.datetime | None = None) -> int:
    """Return the number of whole days that a certificate is still valid."""
    return math.floor(_rest(certificate, now) / datetime.timedelta(days=1))


def _rest(certificate: x509.Certificate, now: datetime.datetime | None) -> datetime.timedelta:
    return certificate.not_valid_after_utc - (now or datetime.datetime.now(datetime.UTC))


def common_name(certificate: x509.Certificate) -> str:
    """Return the name that a certificate is issued to."""
    values = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(values[0].value) if values else ""


def alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    """Return a certificate's subject alternative names; perhaps there are none."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])
    return extension.value


def host_names(certificate: x509.Certificate) -> list[str]:
    """Return the hosts that a server's certificate names: host names, then IP addresses."""
    names = alternative_names(certificate)
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def serves_tls(address: str) -> tuple[bool | None, x509.Certificate | None]:
    """Find out whether a server speaks TLS, and which certificate it shows, whoever issued it.

    Returns
    -------
    bool or None
        ``None``: it does not answer, or closes the connection.
    Certificate or None
        That of a server that speaks TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        host, port = parse_address("server", address)
        with (
            socket.create_connection((host, port), _PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
    except ssl.SSLError as error:  # it wants a certificate, or is no server of TLS
        return (False if error.reason in _NO_TLS else "ALERT" in (error.reason or "") or None), None
    except (OSError, ValueError):
        return None, None
    with suppress(ValueError):
        return True, x509.load_der_x509_certificate(shown or b"")
    return True, None


def certificate_fault(
    address: str, own: x509.Certificate, authority: x509.Certificate, *, any_host: bool = False
) -> str:
    """Return what is wrong with the certificates of the two ends of a connection, by now.

    Parameters
    ----------
    address : str
        The server's ``host:port``.
    own, authority : Certificate
        This end's certificate, and the authority that both must have.
    any_host : bool
        Whether the server's certificate may be another host's.

    Returns
    -------
    str
        Empty if nothing can be seen from here.
    """
    if text := expiry(own):
        return f"{common_name(own)}'s certificate {text}: renew it with flower-certs, restart"
    speaks, shown = serves_tls(address)
    if speaks is False:
        return "the server speaks no TLS: start it with --tls, or leave --tls out here"
    if shown is None:
        return ""
    try:
        shown.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return "the server's certificate is of another authority than this ca.pem"
    if text := expiry(shown):
        return f"the server's certificate {text}: renew it with flower-certs, restart the server"
    names, host = host_names(shown), parse_address("server", address).host
    if not any_host and not any(_names_host(name, host) for name in names):
        listed = ", ".join(names)
        return (
            f"the server's certificate is for {listed}, not for {host}: connect to one of these, "
            "or have it made anew with flower-certs renew --host, restart the server"
        )
    return ""


def _names_host(name: str, host: str) -> bool:
    """Tell whether a name in a certificate is a host's."""
    with suppress(ValueError):
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    name, host = name.lower(), host.lower()
    return name == host or (
        name.startswith("*.") and name[1:] == host[len(host.partition(".")[0]) :]
    )


def load_certificate(path: Path) -> x509.Certificate:
    """Read a PEM certificate.

    Raises
    ------
    ClientConfigError
        If it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ClientConfigError(f"certificate {path}: {error.strerror}") from None
    except ValueError:
        raise ClientConfigError(f"certificate {path} is not in PEM format") from None


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a PEM private key.

    Raises
    ------
    ClientConfigError
        If it cannot be read, or is not of the kind that flower-certs makes.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ClientConfigError(f"private key {path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ClientConfigError(
            f"private key {path} is not in PEM format without password"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ClientConfigError(f"private key {path} is not an elliptic-curve key")
    return key

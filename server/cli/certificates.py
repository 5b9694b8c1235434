"""Certificates of a fleet: one authority, a server, and clients whose certificate is their name."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flower_scheduling.client.wire.credentials import (
    alternative_names,
    check_pair,
    expiry,
    load_certificate,
    load_key,
)
from flower_scheduling.errors import ClientConfigError, ConfigError
from flower_scheduling.files import write_whole
from flower_scheduling.names import folded

CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365
# Devices whose clock is a little slow must accept a certificate made just now
_SKEW: Final = datetime.timedelta(hours=1)
_CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Of the server's certificate: its operator asks for health and status with it
_SERVER_USAGES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class CertificateFolder:
    """The folder of a fleet's certificates.

    ``ca.pem`` and ``server.pem`` go to the server with ``server.key``; ``ca.pem`` and
    ``clients/NAME.pem`` go to each client with ``clients/NAME.key``. ``ca.key`` signs:
    with it a client of any name can be made, so keep it away from both.

    Attributes
    ----------
    path : Path
        The folder.
    """

    path: Path

    def create(self, hosts: Sequence[str]) -> None:
        """Make the authority and the server's certificate.

        Parameters
        ----------
        hosts : sequence of str
            Names and addresses under which clients reach the server.

        Raises
        ------
        ConfigError
            If an authority exists already, or a host is missing or is neither name nor address.
        """
        _general_names(hosts)
        if self._has_authority():
            raise ConfigError(
                "certificates",
                str(self.path),
                "must be a folder without an authority, or use ensure or renew",
            )
        self._create_authority()
        self.issue_server(hosts)

    def ensure(self, hosts: Sequence[str], clients: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Make what is missing, and anew what is broken, has expired or names other hosts.

        What a crash has left half made is missing, so doing it again is always right.

        Parameters
        ----------
        hosts : sequence of str
            Names and addresses under which clients reach the server.
        clients : sequence of str
            Names of the clients; others that have a certificate are left alone.

        Yields
        ------
        tuple of str
            Each name for which a certificate was made, and why.

        Raises
        ------
        ConfigError
            If a host or a name cannot be one, or one of the authority's files is gone.
        """
        names = _general_names(hosts)
        for client in clients:
            _check_client(client)
        if not self._has_authority():
            self._create_authority()
            yield "authority", "there was none"
        if reason := self._fault("server") or self._other_hosts(names):
            self.issue_server(hosts)
            yield "server", reason
        for client in clients:
            if reason := self._fault(f"clients/{client}"):
                self.issue_client(client)
                yield client, reason

    def _has_authority(self) -> bool:
        """Return whether there is an authority.

        Raises
        ------
        ConfigError
            If half of one is there, after which certificates were issued.
        """
        certificate, key = self.path / "ca.pem", self.path / "ca.key"
        if _is_written(certificate) and _is_written(key):
            return True
        issued = _is_written(certificate) or _is_written(self.path / "server.pem")
        if issued or any((self.path / "clients").glob("*.pem")):
            lost = key if _is_written(certificate) else certificate
            raise ConfigError(
                "certificates",
                str(self.path),
                f"must be a folder with {lost.name}: bring it back, or delete {certificate.name},"
                f" {key.name}, server.* and clients there, and give every client new files",
            )
        return False  # a key alone has signed nothing

    def _fault(self, file: str) -> str:
        """Return what is wrong with a pair of files; nothing if it serves."""
        certificate, key = self.path / f"{file}.pem", self.path / f"{file}.key"
        if not _is_written(certificate) or not _is_written(key):
            return "there was none"
        try:
            if text := expiry(load_certificate(certificate)):
                return text
            check_pair(self.path / "ca.pem", certificate, key)
        except ClientConfigError as error:
            return str(error)
        return ""

    def _other_hosts(self, names: x509.SubjectAlternativeName) -> str:
        held = alternative_names(load_certificate(self.path / "server.pem"))
        if set(held) == set(names):
            return ""
        return f"names {_spelled(names)} now, not {_spelled(held)}"

    def _create_authority(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("flower-client-scheduling")
        builder = _builder(name, name, key.public_key(), CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
        )
        _write_pair(self.path / "ca", builder.sign(key, hashes.SHA256()), key)

    def issue_server(self, hosts: Sequence[str]) -> None:
        """Make the server's certificate, or a new one in its place."""
        self._issue("server", "server", _SERVER_USAGES, _general_names(hosts))

    def issue_client(self, name: str) -> Path:
        """Make a client's certificate, or a new one in its place; return its file.

        Raises
        ------
        ConfigError
            If the name is not 1 to 64 letters, digits, dots, dashes or underscores, or differs
            from a client's in case alone: the server admits one of the two.
        """
        _check_client(name)
        issued = {path.stem for path in (self.path / "clients").glob("*.pem")}
        alike = [other for other in issued - {name} if folded(other) == folded(name)]
        if alike and name not in issued:
            message = f"differs in case alone from {alike[0]}, which has a certificate"
            raise ConfigError("name", name, message)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        return self._issue(f"clients/{name}", name, [ExtendedKeyUsageOID.CLIENT_AUTH], names)

    def renew(self, hosts: Sequence[str] = ()) -> list[str]:
        """Make new certificates for the server and every client; return their names.

        Parameters
        ----------
        hosts : sequence of str
            Names and addresses of the server, instead of those in its certificate.
        """
        if hosts:
            names = _general_names(hosts)
        else:
            names = alternative_names(load_certificate(self.path / "server.pem"))
        self._issue("server", "server", _SERVER_USAGES, names)
        clients = sorted(path.stem for path in (self.path / "clients").glob("*.pem"))
        for client in clients:
            self.issue_client(client)
        return ["server", *clients]

    def _issue(
        self,
        file: str,
        name: str,
        usages: Sequence[x509.ObjectIdentifier],
        names: x509.SubjectAlternativeName,
    ) -> Path:
        authority = load_certificate(self.path / "ca.pem")
        authority_key = load_key(self.path / "ca.key")
        if authority_key.public_key() != authority.public_key():
            raise ConfigError(
                "certificates",
                str(self.path),
                "must be a folder whose ca.key is that of its ca.pem",
            )
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), authority.subject, key.public_key(), LEAF_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        builder = builder.add_extension(names, False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False
        )
        base = self.path / file
        base.parent.mkdir(exist_ok=True)
        return _write_pair(base, builder.sign(authority_key, hashes.SHA256()), key)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _check_client(name: str) -> None:
    if not _CLIENT_NAME.fullmatch(name):
        raise ConfigError(
            "name",
            name,
            "must be 1 to 64 letters, digits, '.', '-' or '_', beginning with one of them",
        )


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _general_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    if not hosts:
        raise ConfigError("host", "", "must be at least one name or address of the server")
    for host in hosts:
        _check_host(host)
    return x509.SubjectAlternativeName([_general_name(host) for host in hosts])


def _spelled(names: x509.SubjectAlternativeName) -> str:
    return ", ".join(str(name.value) for name in names) or "none"


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ConfigError("host", host, "must be a host name or an IP address") from None


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _write_pair(base: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Path:
    """Write ``base.key`` for its owner alone and ``base.pem``; return the latter.

    Each is there whole or not at all, also after a power cut. The certificate comes last: with it
    the pair is complete.
    """
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    key_file, certificate_file = Path(f"{base}.key"), Path(f"{base}.pem")
    for path, data, mode in (
        (key_file, secret, 0o600),
        (certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644),
    ):
        write_whole(path, data, mode=mode)
    return certificate_file

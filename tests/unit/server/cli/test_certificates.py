"""Certificates: what is made is accepted, what the other end would refuse is named."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from flower_scheduling.client.cli import main as client_main
from flower_scheduling.client.wire.credentials import (
    check_pair,
    common_name,
    expiry,
    load_certificate,
)
from flower_scheduling.client.wire.health import tls_hint
from flower_scheduling.errors import CertificateTimeError, ClientConfigError, ConfigError
from flower_scheduling.server.cli.certificates import CertificateFolder
from flower_scheduling.server.cli.certs import main


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    folder = CertificateFolder(tmp_path / "certs")
    folder.create(["localhost", "127.0.0.1", "ap.example"])
    return folder


def check_client(folder: CertificateFolder, name: str, **changes: Path) -> None:
    files = {
        "ca": folder.path / "ca.pem",
        "certificate": folder.path / "clients" / f"{name}.pem",
        "key": folder.path / "clients" / f"{name}.key",
    }
    check_pair(**{**files, **changes}, name=name)


def test_fleet_of_one_authority(folder: CertificateFolder) -> None:
    folder.issue_client("dev-1")
    check_client(folder, "dev-1")
    check_pair(folder.path / "ca.pem", folder.path / "server.pem", folder.path / "server.key")
    assert common_name(load_certificate(folder.path / "clients" / "dev-1.pem")) == "dev-1"
    for key in folder.path.rglob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    # What OpenSSL makes of it: a server context with these files asks for client certificates.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.path / "server.pem", folder.path / "server.key")
    context.load_verify_locations(folder.path / "ca.pem")


def test_handshake_between_server_and_client(folder: CertificateFolder) -> None:
    folder.issue_client("dev-1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder.path / "server.pem", folder.path / "server.key")
    server.load_verify_locations(folder.path / "ca.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=folder.path / "ca.pem")
    client.load_cert_chain(
        folder.path / "clients" / "dev-1.pem", folder.path / "clients" / "dev-1.key"
    )
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = ends[1].getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", "dev-1"),),)


def test_faults_are_named(folder: CertificateFolder, tmp_path: Path) -> None:
    folder.issue_client("dev-1")
    folder.issue_client("dev-2")
    other = CertificateFolder(tmp_path / "other")
    other.create(["localhost"])
    with pytest.raises(ClientConfigError, match=r"certificate .*dev-3.pem: No such file"):
        check_client(folder, "dev-3")
    with pytest.raises(ClientConfigError, match="is not the private key of"):
        check_client(folder, "dev-1", key=folder.path / "clients" / "dev-2.key")
    with pytest.raises(ClientConfigError, match="was not issued by"):
        check_client(folder, "dev-1", ca=other.path / "ca.pem")
    with pytest.raises(ClientConfigError, match="is issued to 'dev-2': this client is 'dev-1'"):
        check_client(
            folder,
            "dev-1",
            certificate=folder.path / "clients" / "dev-2.pem",
            key=folder.path / "clients" / "dev-2.key",
        )
    (tmp_path / "garbage.pem").write_text("garbage")
    with pytest.raises(ClientConfigError, match="is not in PEM format"):
        check_client(folder, "dev-1", certificate=tmp_path / "garbage.pem")
    with pytest.raises(ClientConfigError, match="is not in PEM format without"):
        check_client(folder, "dev-1", key=tmp_path / "garbage.pem")


@pytest.mark.parametrize(
    ("days", "message"),
    [(400, "expired on .*: renew it with flower-certs"), (-2, "is this machine's clock right")],
)
def test_validity(folder: CertificateFolder, days: int, message: str) -> None:
    folder.issue_client("dev-1")
    base = folder.path / "clients" / "dev-1"
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    with pytest.raises(CertificateTimeError, match=message):
        check_pair(
            folder.path / "ca.pem", base.with_suffix(".pem"), base.with_suffix(".key"), now=now
        )


def test_names_that_differ_in_case_alone_get_no_two_certificates(folder: CertificateFolder) -> None:
    folder.issue_client("dev-1")
    with pytest.raises(ConfigError, match="name = 'Dev-1': differs in case alone from dev-1"):
        folder.issue_client("Dev-1")
    folder.issue_client("dev-1")


def test_renewal_keeps_names_and_authority(folder: CertificateFolder) -> None:
    folder.issue_client("dev-1")
    before = load_certificate(folder.path / "server.pem")
    authority = (folder.path / "ca.pem").read_bytes()
    assert folder.renew() == ["server", "dev-1"]
    after = load_certificate(folder.path / "server.pem")
    assert after.serial_number != before.serial_number
    kind = x509.SubjectAlternativeName
    names = [c.extensions.get_extension_for_class(kind).value for c in (before, after)]
    assert names[0] == names[1]
    assert (folder.path / "ca.pem").read_bytes() == authority
    check_client(folder, "dev-1")


@pytest.mark.parametrize("name", ["", "../evil", "a b", "x" * 65, "-x", "ü"])
def test_names_that_are_no_file_names_are_refused(folder: CertificateFolder, name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 64 letters"):
        folder.issue_client(name)


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["client", "dev-1"]) == 2
    assert "certs/ca.pem" in capsys.readouterr().err
    assert main(["init", "--host", "10.0.0.1"]) == 0
    assert main(["client", "dev-1", "dev-2"]) == 0
    assert main(["renew"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == ["server", "dev-1", "dev-2"]
    assert main(["init"]) == 2
    assert "without an authority, or use ensure or renew" in capsys.readouterr().err
    for expected in (
        ["server: new certificate (names ap.example now, not 10.0.0.1)"],
        [],
    ):
        assert main(["ensure", "--host", "ap.example", "dev-1"]) == 0
        assert capsys.readouterr().out.splitlines() == expected
    assert main(["renew", "--host", "b.example"]) == 0
    assert hosts(CertificateFolder(tmp_path / "certs")) == ["b.example"]


def hosts(folder: CertificateFolder) -> list[str]:
    extensions = load_certificate(folder.path / "server.pem").extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def issue_in_the_past(
    folder: CertificateFolder, name: str, days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue a certificate that has `days` left."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "flower_scheduling.server.cli.certificates._SKEW", datetime.timedelta(days=100)
        )
        patch.setattr("flower_scheduling.server.cli.certificates.LEAF_DAYS", days)
        folder.issue_client(name)


@pytest.mark.parametrize("broken", ["server", "clients/dev-1"])
@pytest.mark.parametrize("fault", ["no key", "no certificate", "empty", "cut", "other key"])
def test_ensure_heals_what_a_crash_has_left(
    broken: str, fault: str, folder: CertificateFolder
) -> None:
    names = ["localhost", "127.0.0.1", "ap.example"]
    assert dict(folder.ensure(names, ["dev-1", "dev-2"])) == dict.fromkeys(
        ["dev-1", "dev-2"], "there was none"
    )
    key, certificate = folder.path / f"{broken}.key", folder.path / f"{broken}.pem"
    if fault == "no key":
        key.unlink()
    elif fault == "no certificate":
        certificate.unlink()
    elif fault == "empty":
        certificate.write_text("")
    elif fault == "cut":
        certificate.write_text(certificate.read_text()[:100])
    else:
        key.write_text((folder.path / "clients" / "dev-2.key").read_text())
    assert [name for name, _ in folder.ensure(names, ["dev-1", "dev-2"])] == [Path(broken).name]
    check_pair(folder.path / "ca.pem", certificate, key)
    assert not list(folder.ensure(names, ["dev-1", "dev-2"]))


def test_ensure_replaces_what_has_expired(
    folder: CertificateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue_in_the_past(folder, "dev-1", -1, monkeypatch)
    with pytest.raises(CertificateTimeError, match="expired on"):
        check_client(folder, "dev-1")
    ((name, reason),) = folder.ensure(["localhost", "127.0.0.1", "ap.example"], ["dev-1"])
    assert (name, reason[:10]) == ("dev-1", "expired on")
    check_client(folder, "dev-1")


def test_half_an_authority_is_made_whole_only_if_it_has_signed_nothing(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "ca.key").write_text("")
    made = CertificateFolder(tmp_path / "new").ensure(["localhost"], ["dev-1"])
    assert [name for name, _ in made] == ["authority", "server", "dev-1"]
    for lost in ("ca.key", "ca.pem"):
        whole = (folder.path / lost).read_bytes()
        (folder.path / lost).unlink()
        with pytest.raises(ConfigError, match=f"a folder with {lost}: bring it back, or delete"):
            list(folder.ensure(["localhost"], []))
        (folder.path / lost).write_bytes(whole)
    (folder.path / "ca.key").write_bytes((tmp_path / "new" / "ca.key").read_bytes())
    with pytest.raises(ConfigError, match="a folder whose ca"):
        folder.issue_client("dev-1")


def test_expiry_is_said_in_time_and_as_the_cause(
    folder: CertificateFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    share = "--server 127.0.0.1:1 --name dev-1 --partition-id 0 --num-partitions 1 --app no:app"
    words = [*share.split(), "--tls", str(folder.path)]
    issue_in_the_past(folder, "dev-1", 12, monkeypatch)
    assert client_main(words) == 2
    assert "dev-1: its certificate expires in 11 days" in caplog.text
    nowhere = "127.0.0.1:1"
    doubt = " (is the server's certificate valid"
    assert tls_hint("Socket closed", nowhere, str).startswith(doubt)
    issue_in_the_past(folder, "dev-1", -1, monkeypatch)
    assert client_main(words) == 1, "the clock may be wrong: trying again may help"
    assert "expired on" in capsys.readouterr().err
    certificate = load_certificate(folder.path / "clients" / "dev-1.pem")
    hint = tls_hint("Socket closed", nowhere, lambda: expiry(certificate))
    assert hint.startswith(" (expired on")
    assert client_main(words[:-2]) == 2

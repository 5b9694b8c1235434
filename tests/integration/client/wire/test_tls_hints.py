"""What a client says of a server that does not speak as it does: only what is true."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from apps import echo_app
from waiting import until

from flower_scheduling.client.cli import main as client_main
from flower_scheduling.client.stream import StreamClient
from flower_scheduling.client.wire.credentials import (
    certificate_fault,
    channel_credentials,
    client_files,
    load_certificate,
    server_credentials,
)
from flower_scheduling.server.cli.certificates import CertificateFolder
from flower_scheduling.server.cli.main import main as server_main
from flower_scheduling.server.transport.grid import StreamGrid


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = CertificateFolder(tmp_path / "certs")
    folder.create(["ap.example", "10.1.2.3"])
    folder.issue_client("dev-1")
    return folder.path


@contextlib.contextmanager
def closing_server() -> Iterator[str]:
    """Run a server that closes every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=work, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def first_line(address: str, said: list[str], tls: Path | None = None) -> str:
    """Return what a client says that cannot connect."""
    settings = {}
    if tls is not None:
        ca, own = (load_certificate(file) for file in client_files(tls, "dev-1")[:2])
        settings = {
            "credentials": channel_credentials(tls, "dev-1"),
            "own_fault": partial(certificate_fault, address, own, ca),
        }
    client = StreamClient(address, "dev-1", echo_app(), **settings)  # type: ignore[arg-type]
    thread = threading.Thread(target=client.run)
    thread.start()
    try:
        return until(lambda: next((line for line in said if "cannot reach" in line), ""))
    finally:
        client.stop()
        thread.join()


def test_a_server_with_tls(certificates: Path, said: list[str]) -> None:
    with StreamGrid("127.0.0.1:0", credentials=server_credentials(certificates)) as grid:
        assert "(does it want --tls?)" in first_line(f"127.0.0.1:{grid.port}", said)


def test_a_server_that_is_none(said: list[str]) -> None:
    with closing_server() as address:
        line = first_line(address, said)
    assert "(is it a flower-server, or is it full?)" in line
    assert "--tls" not in line


def test_a_server_without_tls(certificates: Path, said: list[str]) -> None:
    with StreamGrid("127.0.0.1:0") as grid:
        line = first_line(f"127.0.0.1:{grid.port}", said, certificates)
    assert "(the server speaks no TLS: start it with --tls, or leave --tls out here)" in line


def test_a_certificate_for_other_hosts_is_named(certificates: Path, said: list[str]) -> None:
    with StreamGrid("127.0.0.1:0", credentials=server_credentials(certificates)) as grid:
        line = first_line(f"127.0.0.1:{grid.port}", said, certificates)
    assert "certificate is for ap.example, 10.1.2.3, not for 127.0.0.1: connect to one" in line


def test_another_authority_is_named(certificates: Path, said: list[str], tmp_path: Path) -> None:
    other = CertificateFolder(tmp_path / "other")
    other.create(["127.0.0.1"])
    with StreamGrid("127.0.0.1:0", credentials=server_credentials(other.path)) as grid:
        line = first_line(f"127.0.0.1:{grid.port}", said, certificates)
    assert "the server's certificate is of another authority than this ca.pem" in line


def test_health_and_status_say_the_same(
    certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(program: str, words: str) -> str:
        main, flag = {
            "client": (client_main, "--name dev-1 --server"),
            "server": (server_main, "--address"),
        }[program]
        command, _, rest = words.partition(" ")
        assert main([command, *f"{flag} 127.0.0.1:{grid.port} {rest}".split()]) == 1
        return capsys.readouterr().err

    tls = f"--tls {certificates}"
    with StreamGrid("127.0.0.1:0", credentials=server_credentials(certificates)) as grid:
        assert "does it want --tls?" in said("client", "health")
        assert "does it want --tls?" in said("server", "status")
        assert "not for 127.0.0.1" in said("client", f"health {tls}")
    with StreamGrid("127.0.0.1:0") as grid:
        assert "speaks no TLS" in said("client", f"health {tls}")
        assert "speaks no TLS" in said("server", f"health {tls}")
        assert "speaks no TLS" in said("server", f"status {tls}")

"""Addresses: HOST:PORT at every end, and what is written instead."""

from __future__ import annotations

import pytest

from flower_scheduling.client.wire.addresses import is_loopback, parse_address
from flower_scheduling.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:9092",
        "ap.example:9092",
        "ap.example.:9092",
        "host_with_underscore:9092",
        "[::1]:9092",
        "[fe80::1%eth0]:9092",
        "xn--bcher-kva.example:1",
    ],
)
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    assert str(parse_address("server", text)) == text


def test_a_root_dot_and_a_free_port() -> None:
    assert str(parse_address("server", "localhost.:1")) == "localhost:1"
    assert parse_address("address", "[::]:0", any_port=True) == ("::", 0)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("::1:9092", "(write [::1]:9092)"),
        ("fe80::1%eth0:9092", "(write [fe80::1%eth0]:9092)"),
        ("2001:db8::1", "(write [2001:db8::1]:PORT)"),
        ("[::1]", "(write [::1]:PORT)"),
        ("[localhost]:9092", "(write localhost:9092)"),
        ("ap.example", "(write ap.example:PORT)"),
        ("9092", "(write 127.0.0.1:9092"),
        (":9092", "or 0.0.0.0:9092 to listen everywhere)"),
        ("*:9092", "(write 0.0.0.0:9092, or [::]:9092)"),
        ("http://ap.example:9092/", "without http:// (write ap.example:9092)"),
        ("grpc://[::1]:9092", "without grpc:// (write [::1]:9092)"),
        ("dns:///ap:9092", "without dns:/// (write ap:9092)"),
        ("tcp://10.0.0.1:80", "without tcp:// (write 10.0.0.1:80)"),
        ("unix:/tmp/x.sock", "a Unix socket is not supported"),
        ("me@ap:1", "(write ap:1)"),
        (" ap:1\n", "(write ap:1)"),
        ("ap:\N{FULLWIDTH DIGIT ONE}", "(write ap:1)"),
        ("b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example:1", "xn--bcher-kva.example:1"),
        ("ap:0", "a port from 1 to 65535"),
        ("ap:65536", "a port from 1 to 65535"),
        ("ap:" + "9" * 5000, "a port from 1 to 65535"),
        ("256.1.1.1:9092", ""),
        ("127.1:9092", ""),
        ("a b:1", ""),
        ("", ""),
    ],
)
def test_what_is_no_address_is_refused_in_one_line_with_what_would_be_right(
    text: str, right: str
) -> None:
    with pytest.raises(ConfigError, match=r"^server = .*must be HOST:PORT") as caught:
        parse_address("server", text)
    assert right in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_this_machine"),
    [
        ("localhost", True),
        ("LocalHost", True),
        ("127.0.0.5", True),
        ("::1", True),
        ("[::1]", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_this_machine(host: str, is_this_machine: bool) -> None:
    assert is_loopback(host) is is_this_machine

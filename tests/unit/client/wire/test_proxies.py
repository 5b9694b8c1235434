"""Proxies: none within this machine, and elsewhere the one that gRPC takes is named."""

from __future__ import annotations

import pytest

from flower_scheduling.client.wire.proxies import proxy_options, through_proxy

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy", "HTTP_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.9.1"])
def test_loopback_takes_no_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert proxy_options(f"{host}:9092") == [("grpc.enable_http_proxy", 0)]
    assert through_proxy(f"{host}:9092") == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ""),
        ({"http_proxy": "http://127.0.0.1:9"}, "http_proxy, 127.0.0.1:9"),
        ({"http_proxy": "http://me:secret@p:9/"}, "http_proxy, p:9"),
        ({"http_proxy": "http://a:1", "https_proxy": "http://b:2"}, "https_proxy, b:2"),
        ({"https_proxy": "http://b:2", "grpc_proxy": "http://c:3"}, "grpc_proxy, c:3"),
        # What gRPC passes over.
        ({"HTTP_PROXY": "http://a:1"}, ""),
        ({"http_proxy": "socks5://a:1"}, ""),
        ({"http_proxy": "http://a:1", "no_proxy": "x, .example"}, ""),
        ({"http_proxy": "http://a:1", "no_proxy": "other.example"}, "http_proxy, a:1"),
        ({"http_proxy": "http://a:1", "no_proxy": "*"}, "http_proxy, a:1"),
        ({"http_proxy": "http://a:1", "no_proxy": "ap.example", "no_grpc_proxy": "x"}, "a:1"),
    ],
)
def test_the_proxy_that_is_taken_is_named(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = through_proxy("ap.example:9092")
    assert said.endswith(expected)
    assert said.startswith(" through the proxy of ") == bool(expected)
    assert proxy_options("ap.example:9092") == []


def test_a_network_may_be_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://a:1")
    monkeypatch.setenv("no_proxy", "10.0.0.0/8")
    assert through_proxy("10.1.2.3:9092") == ""
    assert through_proxy("192.0.2.1:9092") != ""

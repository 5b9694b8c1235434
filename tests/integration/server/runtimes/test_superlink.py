"""The repository as a Flower app, and what the SuperLink runtime refuses before it starts."""

from __future__ import annotations

import socket
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from paths import ROOT

from flower_scheduling.errors import ConfigError, SchedulingError, SuperLinkError
from flower_scheduling.server.cli.certificates import CertificateFolder
from flower_scheduling.server.runtimes import superlink
from flower_scheduling.server.runtimes.app_bundle import write_app
from flower_scheduling.server.runtimes.superlink import SuperLink, supernode_command
from flower_scheduling.server.runtimes.superlink_run import run_superlink
from flower_scheduling.server.settings.fleet import FleetConfig
from flower_scheduling.server.settings.run import ServerConfig


def flower_app(folder: Path) -> dict[str, Any]:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    app: dict[str, Any] = project["tool"]["flwr"]["app"]
    return app


def test_app_config_equals_the_defaults() -> None:
    config = flower_app(ROOT)["config"]
    defaults = ServerConfig().to_mapping()
    assert config == defaults
    assert {key: type(value) for key, value in config.items()} == {
        key: type(value) for key, value in defaults.items()
    }, "Flower hands over the types that stand here"
    assert ServerConfig.from_mapping(config) == ServerConfig()


def test_written_app_equals_the_repository(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    files = {"fab-include": ["/flower_scheduling/**/*.py"]}
    assert flower_app(app) == {**flower_app(ROOT), **files}
    ours = app / "flower_scheduling"
    assert {path.name for path in ours.iterdir()} == {
        *(file.name for file in (ROOT / "flower_scheduling").glob("*.py")),
        *("client", "server", "strategies"),
    }
    for package in ("client", "server", "strategies"):
        written = {file.relative_to(ours) for file in (ours / package).rglob("*.py")}
        assert written == {file.relative_to(ROOT) for file in (ROOT / package).rglob("*.py")}


# flwr 1.42 uses a name of pathspec's that pathspec 1.0 deprecates.
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_bundle_has_every_module(tmp_path: Path) -> None:
    bundle = tmp_path / "app.fab"
    bundle.write_bytes(build_fab_from_disk(write_app(tmp_path / "app")))
    names = set(zipfile.ZipFile(bundle).namelist())
    assert {
        "flower_scheduling/client/app.py",
        "flower_scheduling/server/app.py",
        "flower_scheduling/strategies/flower/strategy.py",
    } <= names
    assert len(names) == 2 + len(list((tmp_path / "app").rglob("*.py")))


def test_a_superlink_is_not_for_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.name", "nt")
        with pytest.raises(ConfigError, match="runtime = 'superlink': is for Linux and macOS"):
            SuperLink(tmp_path / "state", "127.0.0.1:0")


def test_supernode_command_quotes_texts() -> None:
    command = supernode_command(
        "127.0.0.1:9092", node_config={"partition-id": 1, "name": "dev-1"}, port=9100
    )
    assert command[1:] == [
        *("--superlink", "127.0.0.1:9092", "--insecure", "--port", "9100"),
        *("--node-config", 'partition-id=1 name="dev-1"'),
    ]
    command = supernode_command("h:1", node_config={}, root_certificates=Path("ca.pem"))
    assert command[3:5] == ["--root-certificates", "ca.pem"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"run-dir": ""}, "run-dir"),
        ({"app": "other:app"}, "app"),
        ({"deny-list": "names.txt"}, "deny-list"),
        ({"strategy": "fastest"}, "strategy"),
        ({"fairness": "much"}, "fairness"),
        ({"tracker": "tensorbord"}, "tracker"),
    ],
)
def test_bad_settings_leave_nothing_behind(
    settings: dict[str, str], key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SchedulingError, match=key if key != "strategy" else "fastest"):
        run_superlink(
            FleetConfig.from_mapping({"run-dir": "run", "address": "127.0.0.1:0", **settings})
        )
    assert list(tmp_path.iterdir()) == []


def test_existing_run_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rounds.jsonl").touch()
    with pytest.raises(ConfigError, match="run-dir"):
        run_superlink(FleetConfig(run_dir=str(tmp_path / "run"), address="127.0.0.1:0"))


def test_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match="the port is in use"):
            run_superlink(FleetConfig(run_dir=str(tmp_path / "run"), address=address))
    assert list(tmp_path.iterdir()) == []


def test_missing_flower_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SuperLinkError, match=r"^flower-superlink is missing: install flwr"):
        SuperLink(tmp_path / "state", "127.0.0.1:0")


def test_superlink_that_dies_at_the_start_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "flower-superlink"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such option: --host'\nexit 3\n")
    program.chmod(0o755)
    (tmp_path / "bin" / "flwr").symlink_to(program)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "bin"))
    with pytest.raises(SuperLinkError) as caught:
        run_superlink(FleetConfig(run_dir=str(tmp_path / "run"), address="127.0.0.1:0"))
    assert str(caught.value) == (
        "the SuperLink ended with exit code 3: no such option: --host; see "
        f"{tmp_path / 'run' / 'superlink'}"
    )
    assert (tmp_path / "run" / "superlink" / "superlink.log").exists()


@pytest.mark.parametrize("grpc_fleet", [True, False])
def test_supernodes_connect_where_they_are_told_in_any_version_of_flower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grpc_fleet: bool
) -> None:
    program = tmp_path / "bin" / "flower-superlink"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $*\nexit 3\n")
    program.chmod(0o755)
    (tmp_path / "bin" / "flwr").symlink_to(program)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "bin"))
    monkeypatch.setattr(superlink, "GRPC_FLEET", grpc_fleet)  # of flwr 1.39
    link = SuperLink(tmp_path / "state", "127.0.0.1:0")
    with pytest.raises(SuperLinkError, match="exit code 3"), link:
        pass
    *_, command = link.log_file.read_text().splitlines()
    config = tomllib.loads((tmp_path / "state" / "flower" / "config.toml").read_text())
    http = config["superlink"]["here"]["address"]
    assert f"--host 127.0.0.1 --port {http.rpartition(':')[2]} " in command
    assert (http != link.address) == grpc_fleet
    assert (f"--fleet-api-address {link.address} " in command) == grpc_fleet
    assert f"--superlink {link.address} " in link.supernode_hint()


def test_certificate_must_name_the_host(tmp_path: Path) -> None:
    CertificateFolder(tmp_path).create(["192.0.2.1"])
    with pytest.raises(ConfigError, match=r"names 127\.0\.0\.1"):
        SuperLink(tmp_path / "state", "0.0.0.0:0", tmp_path)


def test_the_written_app_asks_for_what_the_built_in_app_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip and setuptools write what ``[project.optional-dependencies]`` has."""
    requires = [
        "flwr<1.43,>=1.39",
        'torch>=2.4; platform_machine not in "armv6l armv7l armv8l" and extra == "learning"',
        "other; extra == 'learning'",
        'torch>=2.4; extra == "simulation"',
        'uvicorn>=0.30; extra == "page"',
    ]
    monkeypatch.setattr("importlib.metadata.metadata", lambda name: {"Version": "1.0"})
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires)
    project = tomllib.loads((write_app(tmp_path / "app") / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [
        "flwr<1.43,>=1.39",
        'torch>=2.4; platform_machine not in "armv6l armv7l armv8l"',
        "other",
    ]


def test_the_repository_as_an_app_asks_for_the_same() -> None:
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (group,) = file["tool"]["uv"]["default-groups"]  # what `uv sync` installs with dependencies
    learning = file["project"]["optional-dependencies"]["learning"]
    assert file["dependency-groups"][group] == [text.partition(";")[0] for text in learning]

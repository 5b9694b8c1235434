"""The wheel, installed without the checkout: one import name, whatever a user's folder holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from paths import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SHADOWS: Final[dict[str, tuple[str, ...]]] = {
    "client module": ("client.py",),
    "client package": ("client/__init__.py",),
    "client namespace": ("client/client.py",),
    "server and simulation": ("server.py", "simulation.py"),
    "strategies module": ("strategies.py",),
    "strategies package": ("strategies/__init__.py", "strategies/flower.py"),
    "all of them": ("client.py", "server.py", "strategies/__init__.py", "simulation.py"),
}
"""Files of a user's folder, by the layout that they stand for."""
LOUD: Final = "raise RuntimeError('the user\\'s file was imported')\n"


@dataclass(frozen=True)
class Installed:
    """A virtual environment with our dependencies, and of ours only what was installed into it."""

    python: Path

    def run(self, folder: Path, *command: str, path: str = "") -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        found = self.python.with_name(program)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if path:
            environment["PYTHONPATH"] = path
        return subprocess.run(
            [str(found), *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def install(self, wheel: Path) -> None:
        done = self.run(
            wheel.parent, "python", "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)
        )
        assert done.returncode == 0, done.stderr


def build_wheel(source: Path, target: Path) -> Path:
    """Build the wheel of a project's tracked files, with the tools of this environment."""
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(target)]
    done = subprocess.run(
        [sys.executable, *command, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Our dependencies from this environment; a plain line leaves its .pth files alone, and with
    # them the editable installation of the checkout.
    packages = folder / "lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = Installed(folder / "bin" / "python")
    found.install(wheel)
    return found


def lay_out(folder: Path, files: tuple[str, ...]) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LOUD)
    return folder


def test_the_wheel_has_one_import_name_and_the_programs(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"flower_scheduling"}
    assert "flower_scheduling/py.typed" in names
    assert "flower_scheduling/server/page/static/page.html" in names
    assert "flower_scheduling/simulation/scenarios/paper.toml" in names


def starts(installed: Installed, folder: Path, *command: str, path: str = "") -> None:
    done = installed.run(folder, *command, path=path)
    assert done.returncode == 0, (command, done.stderr)
    assert "RuntimeError" not in done.stderr


@pytest.mark.parametrize("path", ["", "."])
@pytest.mark.parametrize("layout", SHADOWS)
def test_our_names_are_ours_in_any_folder(
    installed: Installed, tmp_path: Path, layout: str, path: str
) -> None:
    folder = lay_out(tmp_path, SHADOWS[layout])
    code = "from flower_scheduling import ScheduledStrategy, build_policy; "
    code += "import flower_scheduling.client.cli, flower_scheduling.server.cli.main"
    starts(installed, folder, "python", "-c", code, path=path)


@pytest.mark.parametrize(
    "command",
    [
        ("flower-server",),
        ("flower-client",),
        ("flower-certs",),
        ("flower-simulation",),
        ("python", "-m", "flower_scheduling.simulation"),
    ],
)
def test_programs_start_in_a_folder_of_shadows(
    installed: Installed, tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = lay_out(tmp_path, SHADOWS["all of them"])
    starts(installed, folder, *command, "--help", path=".")


def test_nothing_of_ours_is_found_by_another_name(installed: Installed, tmp_path: Path) -> None:
    for name in ("client", "server", "simulation", "strategies"):
        done = installed.run(tmp_path, "python", "-c", f"import {name}")
        assert f"No module named '{name}'" in done.stderr


def test_a_script_beside_a_client_of_its_own_schedules(
    installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "client.py").write_text("ANSWER = 42\n")
    (tmp_path / "main.py").write_text(
        "import client\n"
        "from flwr.serverapp.strategy import FedAvg\n"
        "from flower_scheduling import ScheduledStrategy\n"
        "ScheduledStrategy(FedAvg(), policy='cs-ucb-q', num_selected=5, tau_max_s=30)\n"
        "print(client.ANSWER)\n"
    )
    done = installed.run(tmp_path, "python", "main.py")
    assert done.stdout.strip().endswith("42"), done.stderr


@pytest.fixture(scope="module")
def with_policy(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    source = tmp_path_factory.mktemp("policy")
    for file in (ROOT / "examples/own-policy").glob("*"):
        if file.is_file():
            shutil.copyfile(file, source / file.name)
    installed.install(build_wheel(source, tmp_path_factory.mktemp("policy-wheel")))
    return installed


@pytest.mark.parametrize("name", ["greedy", "greedy.py:Greedy", "mine.greedy:Greedy"])
def test_a_policy_of_ones_own_everywhere(with_policy: Installed, tmp_path: Path, name: str) -> None:
    """An installed package's entry point, a file, and a module of the current folder."""
    (tmp_path / "mine").mkdir()
    for target in ("greedy.py", "mine/greedy.py"):
        shutil.copyfile(ROOT / "examples/own-policy/greedy.py", tmp_path / target)

    def run(*command: str) -> str:
        done = with_policy.run(tmp_path, *command)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    run("flower-simulation", "--strategy", name, "--rounds", "20", "--run-dir", "run")
    assert (tmp_path / "run" / "rounds.jsonl").exists()
    run("flower-simulation", "--resume", "run", "--rounds", "25")
    run("flower-simulation", "report", "run")
    shown = run("flower-simulation", "replay", "run", "--strategy", name, "--seeds", "5", "--json")
    assert name in shown
    run(
        *("flower-simulation", "league", "--scenario", "two-classes", "--policy", name),
        *("--policy", "random", "--seeds", "2", "--out", "league"),
    )
    assert name in (tmp_path / "league" / "league.csv").read_text()
    done = with_policy.run(
        tmp_path,
        *("flower-server", "--strategy", name, "--wait-s", "0.1", "--rounds", "1"),
        *("--address", "127.0.0.1:0", "--run-dir", "fleet"),
    )
    assert "changed the model" in done.stderr, "it ran, and no client was there"
    assert f'strategy = "{name}"' in (tmp_path / "fleet" / "config.toml").read_text()


def test_help_lists_an_installed_policy(with_policy: Installed, tmp_path: Path) -> None:
    shown = with_policy.run(tmp_path, "flower-server", "--help").stdout
    assert "greedy" in shown

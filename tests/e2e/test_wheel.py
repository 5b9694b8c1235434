"""The wheel, installed without the checkout: one import name, whatever a user's folder holds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from paths import ROOT
from waiting import RUN_S, until

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
        return subprocess.run(
            self._command(*command),
            cwd=folder, env=self._environment(path), capture_output=True, text=True, check=False,
        )  # fmt: skip

    @contextlib.contextmanager
    def running(
        self, folder: Path, log: Path, *command: str, path: str = ""
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program beside the block, and end it there."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(*command),
                cwd=folder, env=self._environment(path), stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.python.with_name(program)), *arguments]

    def _environment(self, path: str = "") -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if path:
            environment["PYTHONPATH"] = path
        return environment

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
    for pattern in ("flwr*", "flower-super*"):  # Flower's programs, for this environment
        for program in Path(sysconfig.get_path("scripts")).glob(pattern):
            _, _, code = program.read_text().partition("\n")
            here = found.python.with_name(program.name)
            here.write_text(f"#!{found.python}\n{code}")
            here.chmod(0o755)
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
    assert json.loads(shown)["recorded_policy"] == name
    run(
        *("flower-simulation", "league", "--scenario", "two-classes", "--strategy", name),
        *("--strategy", "random", "--seeds", "2", "--out", "league"),
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


CLIENT: Final = """
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    arrays = message.content["arrays"]
    new = ArrayRecord({key: Array(array.numpy() + 1) for key, array in arrays.items()})
    content = RecordDict({"arrays": new, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)
"""
SERVER: Final = """
import numpy as np
from flower_scheduling import ScheduledStrategy
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from simulation import ROUNDS
from strategies import Mine

app = ServerApp()

@app.main()
def main(grid, context):
    settings = {"num_selected": 1, "tau_max_s": 600, "wait_s": 600}  # guards against hangs
    strategy = ScheduledStrategy(Mine(), policy="cs-ucb-q", **settings)
    model = ArrayRecord({"w": Array(np.zeros(2))})
    result = strategy.start(grid, model, num_rounds=ROUNDS)
    print("MODEL", result.arrays["w"].numpy().tolist(), flush=True)
"""
STRATEGY: Final = """
from flwr.serverapp.strategy import FedAvg

class Mine(FedAvg):
    pass
"""
ROUNDS: Final = "ROUNDS = 2\n"
DONE: Final = "MODEL [2.0, 2.0]"


@dataclass(frozen=True)
class Layout:
    """A user's app: where its parts lie, under names that the project's own folders have."""

    files: Mapping[str, str]
    client: str = "client"
    server: str = "server"

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "main.py").write_text(
            f"from {self.client} import app as client_app\n"
            f"from {self.server} import app as server_app\n"
            "from flwr.simulation import run_simulation\n"
            "run_simulation(server_app, client_app, num_supernodes=1)\n"
        )
        (folder / "pyproject.toml").write_text(
            "[project]\nname = 'layout'\nversion = '1.0.0'\nlicense = 'Apache-2.0'\n"
            "dependencies = []\nrequires-python = '>=3.11'\n"
            "[tool.flwr.app]\npublisher = 'somebody'\n"
            "[tool.flwr.app.components]\n"
            f"serverapp = '{self.server}:app'\nclientapp = '{self.client}:app'\n"
        )
        return folder


LAYOUTS: Final = {
    "modules": Layout(
        {
            "client.py": CLIENT,
            "server.py": SERVER,
            "strategies.py": STRATEGY,
            "simulation.py": ROUNDS,
        }
    ),
    "packages": Layout(
        {
            "client/__init__.py": CLIENT,
            "server/__init__.py": SERVER,
            "strategies/__init__.py": "from strategies.flower import Mine\n",
            "strategies/flower.py": STRATEGY,
            "simulation/__init__.py": ROUNDS,
        }
    ),
    "namespaces": Layout(
        {
            "client/client.py": CLIENT,
            "server/server.py": SERVER,
            "strategies/__init__.py": STRATEGY,
            "simulation.py": ROUNDS,
        },
        client="client.client",
        server="server.server",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_app_of_any_layout_trains_on_our_streams(
    installed: Installed, tmp_path: Path, name: str
) -> None:
    layout = LAYOUTS[name]
    folder = layout.write(tmp_path / "app")
    said, heard = tmp_path / "server.log", tmp_path / "client.log"
    address = ("--address", "127.0.0.1:0")
    with installed.running(
        folder, said, "flower-server", "--app", f"{layout.server}:app", *address
    ) as server:

        def port() -> str:
            assert server.poll() is None, said.read_text()
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", said.read_text())
            return found[1] if found else ""

        at = ("--server", f"127.0.0.1:{until(port)}", "--name", "dev-1")
        with installed.running(
            folder, heard, "flower-client", "--app", f"{layout.client}:app", *at
        ):
            assert server.wait(RUN_S) == 0, said.read_text() + heard.read_text()
    assert DONE in said.read_text()


HIDDEN: Final = ("matplotlib", "torch", "torchvision", "scipy", "jinja2", "prometheus_client")
"""What extras bring and Flower does not."""


def test_a_device_needs_nothing_that_extras_bring(
    installed: Installed, wheel: Path, tmp_path: Path
) -> None:
    """An app of numpy alone is trained where none of it can be imported."""
    metadata = zipfile.ZipFile(wheel)
    name = next(each for each in metadata.namelist() if each.endswith("/METADATA"))
    lines = metadata.read(name).decode().splitlines()
    core = [line for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    required = {re.split(r"[^\w-]", line.removeprefix("Requires-Dist: "))[0] for line in core}
    assert "flwr" in required
    assert not required & {each.replace("_", "-") for each in HIDDEN}

    folder = tmp_path / "app"
    shutil.copytree(ROOT / "examples/foreign-app", folder)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({HIDDEN!r}))  # importing one raises\n"
    )
    path = str(tmp_path / "path")
    assert installed.run(tmp_path, "python", "-c", "import matplotlib", path=path).returncode == 1
    said = tmp_path / "server.log"
    serve = ("flower-server", "--app", "wind.server_app:app", "--address", "127.0.0.1:0")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(installed.running(folder, said, *serve, path=path))

        def port() -> str:
            assert server.poll() is None, said.read_text()
            found = re.search(r"listening on 127\.0\.0\.1:(\d+)", said.read_text())
            return found[1] if found else ""

        at = ("--server", f"127.0.0.1:{until(port)}", "--app", "wind.client_app:app")
        for number in range(2):
            device = ("--name", f"dev-{number}", "--node-config", f"partition-id={number}")
            log = tmp_path / f"client-{number}.log"
            stack.enter_context(
                installed.running(folder, log, "flower-client", *at, *device, path=path)
            )
        assert server.wait(RUN_S) == 0, said.read_text()
    assert "[ROUND 10/10]" in said.read_text()


def test_an_app_of_any_layout_trains_as_a_script(installed: Installed, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = LAYOUTS["modules"].write(tmp_path / "app")
    done = installed.run(folder, "python", "main.py")
    assert DONE in done.stdout, done.stdout + done.stderr


ON_SUPERLINK: Final = """
import socket, sys
from contextlib import ExitStack
from pathlib import Path
from flower_scheduling.server.runtimes.processes import end_group, start_program
from flower_scheduling.server.runtimes.superlink import SuperLink, supernode_command
import os

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

with ExitStack() as stack:
    # Default options: what an app depends on is installed at run time.
    link = stack.enter_context(SuperLink(Path("state"), "127.0.0.1:0", options=()))
    command = supernode_command(link.address, node_config={}, port=free_port())
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": programs + os.pathsep + os.environ["PATH"]}
    environment["FLWR_HOME"] = str(Path("node").absolute())
    with open("node.log", "wb") as log:
        stack.callback(end_group, start_program(command, environment, log), 10)
    for app in sys.argv[1:]:
        print(app, flush=True)
        link.follow(link.submit(Path(app), {}), print)
"""


def test_an_app_of_any_layout_trains_on_a_stock_superlink(
    installed: Installed, tmp_path: Path
) -> None:
    """The app's bundle, on a SuperLink with default options in whose environment the wheel is."""
    apps = [str(layout.write(tmp_path / name)) for name, layout in LAYOUTS.items()]
    (tmp_path / "run.py").write_text(ON_SUPERLINK)
    done = installed.run(tmp_path, "python", "run.py", *apps)
    node = (tmp_path / "node.log").read_text()
    assert done.stdout.count(DONE) == len(apps), done.stdout + done.stderr + node

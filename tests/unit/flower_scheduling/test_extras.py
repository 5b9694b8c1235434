"""What is imported is declared, and a part that is not installed is asked for in one line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths import ROOT

from flower_scheduling.client.cli import main as client_main
from flower_scheduling.extras import EXTRAS
from flower_scheduling.server.cli.main import main as server_main
from flower_scheduling.simulation.cli import main as simulation_main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = PROJECT["optional-dependencies"]
TRACKERS = {"tensorboard", "mlflow", "wandb"}
"""Modules of libraries that the user asks for by name."""
WITH_ZSTD = {"client/wire/compression.py"}
"""Imported where arrays are compressed so."""
WITH_PAGE = {
    "server/page/process.py",
    "server/page/web.py",
    "server/monitoring/http_server.py",
    "server/monitoring/prometheus.py",
}
"""Imported where a page or metrics are served, and nowhere else."""
WITH_PARTITIONERS = {"client/learning/flower_partitions.py"}
"""Imported where data are divided by Flower Datasets."""
LEARNS = ("client/app.py", "client/learning/")
"""The built-in app, which other apps do without."""


def distributions(requirements: list[str]) -> set[str]:
    names = (re.split(r"[\[<>=;~ ]", text)[0] for text in requirements)
    return {name.lower().replace("_", "-") for name in names}


def distributions_of_modules() -> Mapping[str, list[str]]:
    """Return what brings each module; what is not installed is named like its module."""
    installed = packages_distributions()
    missing = {name for modules in EXTRAS.values() for name in modules} - installed.keys()
    return {**installed, **{name: [name.replace("_", "-")] for name in missing}}


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """Top modules that a file imports, and whether it does so when it is imported itself."""
    tree = ast.parse(file.read_text())
    at_once = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "flower_scheduling":
                yield top, id(node) in at_once


@pytest.mark.parametrize("room", ["flower_scheduling", "client", "server", "strategies"])
def test_what_a_client_and_a_server_import_is_declared(room: str) -> None:
    known = distributions_of_modules()
    core = distributions(PROJECT["dependencies"])
    for file in sorted((ROOT / room).rglob("*.py")):
        name = str(file.relative_to(ROOT))
        extra = {"page"} if name in WITH_PAGE else set()
        extra |= {"zstd"} if name in WITH_ZSTD else set()
        extra |= {"partitioners"} if name in WITH_PARTITIONERS else set()
        extra |= {"learning"} if name.startswith(LEARNS) else set()
        allowed = core.union(*(distributions(OPTIONAL[name]) for name in extra))
        for top, _ in imports(file):
            if top in TRACKERS and "trackers" in file.parts:
                continue
            found = {name.lower().replace("_", "-") for name in known[top]}
            assert found & allowed, f"{file}: {top}"


def test_what_the_simulation_imports_is_declared_and_drawn_in_when_it_is_needed() -> None:
    known = distributions_of_modules()
    core, extra = distributions(PROJECT["dependencies"]), distributions(OPTIONAL["simulation"])
    learning = distributions(OPTIONAL["learning"])
    assert learning < extra, "it plays the built-in app"
    for file in sorted((ROOT / "simulation").rglob("*.py")):
        for top, at_once in imports(file):
            found = {name.lower().replace("_", "-") for name in known[top]}
            assert found & (core | extra), f"{file}: {top}"
            assert not at_once or found & (core | learning), f"{file} imports {top} at once"


def test_extras_are_named_alike_everywhere() -> None:
    known = distributions_of_modules()
    for extra, modules in EXTRAS.items():
        found = {known[module][0].lower().replace("_", "-") for module in modules}
        assert found == distributions(OPTIONAL[extra])


@pytest.mark.parametrize(
    ("run", "arguments", "missing", "line"),
    [
        (server_main, "", "torch", "the built-in app needs {}[learning], torch is"),
        (
            client_main,
            "--name a",
            "torchvision",
            "the built-in app needs {}[learning], torchvision is",
        ),
        (
            server_main,
            "--runtime superlink",
            "torch",
            "the built-in app needs {}[learning], torch is",
        ),
        (server_main, "--page 127.0.0.1:0", "starlette", "--page needs {}[page], starlette is"),
        (server_main, "--metrics 127.0.0.1:0", "uvicorn", "--metrics needs {}[page], uvicorn is"),
        (
            server_main,
            "--page 127.0.0.1:0 --runtime superlink",
            "starlette",
            "--page needs {}[page], starlette is",
        ),
        (
            server_main,
            "--compress zstd",
            "zstandard",
            "compress = 'zstd' needs {}[zstd], zstandard is",
        ),
        (simulation_main, "", "matplotlib", "the simulation needs {}[simulation], matplotlib is"),
        (simulation_main, "paper", "scipy", "the simulation needs {}[simulation], scipy is"),
        (simulation_main, "report run", "jinja2", "report needs {}[app-simulation], jinja2 is"),
        (
            simulation_main,
            "compare --app run",
            "scipy",
            "the simulation needs {}[app-simulation], scipy is",
        ),
        (simulation_main, "compare", "torch", "the simulation needs {}[simulation], torch is"),
        (simulation_main, "--page", "uvicorn", "--page needs {}[page], uvicorn is"),
        (simulation_main, "watch run", "starlette", "the page needs {}[page], starlette is"),
    ],
)
def test_a_missing_part_is_one_line_before_any_work(
    run: Any,
    arguments: str,
    missing: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "flower_scheduling.extras.find_spec",
        lambda name: None if name == missing else SimpleNamespace(),
    )
    assert run(arguments.split()) == 2
    told = capsys.readouterr().err.splitlines()
    expected = line.format("flower-client-scheduling")
    assert told[-1].startswith(f"error: {expected} not installed: pip install ")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("arguments", ["--app {}", "compare --app {}", "report {}", "replay {}"])
def test_other_apps_need_no_torch(
    arguments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "flower_scheduling.extras.find_spec",
        lambda name: None if name.startswith("torch") else SimpleNamespace(),
    )
    assert simulation_main(arguments.format(tmp_path).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"= {str(tmp_path)!r}: " in line, "the empty folder is what is refused"


def test_programs_start_without_the_extras() -> None:
    """Flower brings some of them by itself, so only what it does not can be hidden."""
    hidden = sorted({*EXTRAS["simulation"], "prometheus_client"})
    code = f"""
import sys
for name in {hidden!r}:
    sys.modules[name] = None  # importing it raises
from flower_scheduling.client.cli import main as client
from flower_scheduling.server.app import app
from flower_scheduling.server.cli.certs import main as certs
from flower_scheduling.server.cli.main import main as server
from flower_scheduling.simulation.cli import main as simulation
for run in (client, certs, server, simulation):
    assert run(["--help"]) == 0, run
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr

"""The layout: one import name, telling names, one place for what is private in Flower."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

ROOMS = ("client", "server", "simulation", "strategies")
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def absolute_imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)


def test_everything_is_imported_by_one_name() -> None:
    bare = [
        (str(file.relative_to(ROOT)), name)
        for file in sources(*ROOMS, "flower_scheduling", "tests", "benchmarks", "examples")
        for name in absolute_imports(file)
        if name.partition(".")[0] in ROOMS
    ]
    assert bare == []


def test_two_modules_touch_what_is_private_in_flower() -> None:
    touching = {
        str(file.relative_to(ROOT))
        for file in sources(*ROOMS, "flower_scheduling")
        for name in absolute_imports(file)
        if name.partition(".")[0] == "flwr" and name not in PUBLIC
    }
    assert touching == {"flower_scheduling/_flwr.py", "flower_scheduling/_flwr_old.py"}


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in sources(*ROOMS)
        if file.name == "__init__.py"
    }
    expected = {"flower_scheduling", *(f"flower_scheduling.{name}" for name in folders)}
    assert set(project["tool"]["setuptools"]["packages"]) == expected


@pytest.mark.parametrize("room", ROOMS)
def test_a_folder_has_few_names_and_every_folder_with_code_is_a_package(room: str) -> None:
    for folder in {file.parent for file in sources(room)}:
        assert (folder / "__init__.py").exists(), folder
        names = {path.name for path in folder.iterdir()} - {"__pycache__"}
        assert len(names) <= 25, (folder, names)
    top = {path.name for path in (ROOT / room).iterdir()} - {"__pycache__"}
    if room == "server":
        assert len(top) <= 10, top


def test_no_name_of_a_module_means_two_things() -> None:
    """Names may repeat where they mean the same of each package: its command line, its settings."""
    alike = {"__init__", "__main__", "app", "base", "cli", "entry", "settings"}
    homes: dict[str, list[str]] = {}
    for file in sources(*ROOMS):
        homes.setdefault(file.stem, []).append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in homes.items() if len(files) > 1 and name not in alike}
    assert twice == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_checkout_offers_no_second_name(room: str, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {room}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 1
    assert f"this package is flower_scheduling.{room}" in ended.stderr


def test_the_simulation_loads_nothing_twice(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "sys.argv = ['-m', '--help']\n"
        "try:\n    runpy.run_module('simulation', run_name='__main__', alter_sys=True)\n"
        "except SystemExit: pass\n"
        f"print([m for m in sys.modules if m.partition('.')[0] in {ROOMS!r}], file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.stderr.strip().splitlines()[-1] == "['simulation']"

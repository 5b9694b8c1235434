"""The simulation's program calls itself as it was started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT

from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.program import program_name


@pytest.mark.parametrize(
    ("argument", "module", "name"),
    [
        ("/usr/bin/flower-simulation", None, "flower-simulation"),
        ("C:\\bin\\flower-simulation.exe", None, "flower-simulation"),
        ("/checkout/simulation/__main__.py", "simulation.__main__", "python -m simulation"),
        (
            "/site-packages/flower_scheduling/simulation/__main__.py",
            "flower_scheduling.simulation.__main__",
            "python -m flower_scheduling.simulation",
        ),
        ("/usr/bin/pytest", None, "python -m simulation"),
        ("/site-packages/pytest/__main__.py", "pytest.__main__", "python -m simulation"),
        ("", None, "python -m simulation"),
    ],
)
def test_the_program_is_called_as_it_was_started(
    argument: str,
    module: str | None,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = ModuleType("__main__")
    started.__spec__ = ModuleSpec(module, None) if module else None
    monkeypatch.setitem(sys.modules, "__main__", started)
    monkeypatch.setattr(sys, "argv", [argument.replace("\\", "/")])
    assert program_name() == name
    for command in ([], ["report"], ["league"], ["benchmark"], ["paper"]):
        assert main([*command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(" ".join(["Usage:", name, *command]) + " ")


def test_what_the_terminal_has_no_letters_for_is_a_question_mark(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(ROOT / "tests/data/run-0.1.0/fleet", run)
    arms = run / "arms.json"
    arms.write_text(arms.read_text().replace('"name": "', '"name": "\\u00fc-'))
    answer = subprocess.run(
        [sys.executable, "-m", "simulation", "replay", str(run), "--strategy", "random"],
        cwd=ROOT,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "?-dev-" in answer.stdout + answer.stderr

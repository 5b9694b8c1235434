"""The commands of docs/how-to/simulate-your-app.md work as they stand there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from app_folders import write_app
from paths import ROOT

from flower_scheduling.simulation.cli import main

GUIDE = (ROOT / "docs" / "how-to" / "simulate-your-app.md").read_text(encoding="utf-8")


def test_every_command_of_the_guide_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_app(tmp_path).rename(tmp_path / "my-app")
    traces = re.findall(r"```csv\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "times.csv").write_text("".join(traces))
    blocks = "".join(re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL))
    commands = re.findall(r"^\$ flower-simulation (.*)$", blocks, re.MULTILINE)
    assert len(commands) == blocks.count("$") >= 9
    for command in commands:
        seeds = ["--seeds", "2"] if command.startswith("replay") else []
        assert main([*shlex.split(command), *seeds]) == 0, (command, capsys.readouterr().err)
    assert (tmp_path / "runs/mine/rounds.jsonl").read_text().count("\n") == 9

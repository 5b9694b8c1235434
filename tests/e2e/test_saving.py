"""The picture of the README is measured and drawn by the command that it names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from waiting import RUN_S


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_the_saving_is_measured_on_a_fleet(tmp_path: Path) -> None:
    program = [sys.executable, "docs/saving/draw_saving.py", "--measure", "--rounds", "6"]
    done = subprocess.run(
        [*program, "--folder", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "saving.json").read_text())
    kept = json.loads((ROOT / "docs/saving/saving.json").read_text())
    assert data["clients"] == kept["clients"]
    assert data["server"].replace("--rounds 6", "--rounds 80") == kept["server"]
    for strategy in ("random", "cs-ucb-q-adaptive"):
        assert len(data["runs"][strategy]["round_s"]) == 6
        assert len(data["runs"][strategy]["shares"]) == 8
        assert sum(data["runs"][strategy]["shares"].values()) == pytest.approx(3, abs=0.01)
    assert "<svg" in (tmp_path / "saving.svg").read_text()

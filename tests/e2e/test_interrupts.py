"""Programs that are interrupted while they start: no traceback, exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from waiting import PATIENCE_S

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.name == "nt", reason="signals of POSIX"),
]

PROGRAMS = {
    "flower-client": "from flower_scheduling.client.entry import client as run",
    "flower-server": "from flower_scheduling.server.cli.entry import server as run",
    "flower-certs": "from flower_scheduling.server.cli.entry import certs as run",
    "flower-simulation": "from flower_scheduling.simulation.entry import simulation as run",
}
INTERRUPTED = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_within_the_first_import_is_silent(program: str, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTED)  # what each program imports first
    done = run(f"{PROGRAMS[program]}; run()", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_next_to_nothing_is_imported_before_an_interrupt_is_heeded(
    program: str, tmp_path: Path
) -> None:
    code = f"import sys; known = set(sys.modules); {PROGRAMS[program]}; print(*sys.modules)"
    done = run(code, tmp_path)
    new = {name for name in done.stdout.split() if not name.startswith("flower_scheduling")}
    bare = run(
        "import collections.abc, gc, importlib, os, signal, sys; print(*sys.modules)", tmp_path
    )
    assert new <= {*bare.stdout.split()}

"""The commands as people run them: real processes, one line for faults, a clean interrupt."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from waiting import PATIENCE_S, RUN_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("mnist")]

COMMAND = [sys.executable, "-m", "simulation"]
DEAD_PROXY = "http://127.0.0.1:9"
"""Nobody listens there: whoever needs the network fails."""


def environment(**changes: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **changes}


def run(arguments: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments.split()],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


@pytest.mark.slow
def test_second_run_needs_no_network(tmp_path: Path) -> None:
    done = run(
        "--rounds 3 --json",
        tmp_path,
        HTTP_PROXY=DEAD_PROXY,
        HTTPS_PROXY=DEAD_PROXY,
        ALL_PROXY=DEAD_PROXY,
        PIP_INDEX_URL=DEAD_PROXY,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3


@pytest.mark.slow
def test_no_source_of_data_is_one_line_and_exit_1(tmp_path: Path) -> None:
    done = run(
        "--rounds 3 --data-dir cache --run-dir run",
        tmp_path,
        HTTP_PROXY=DEAD_PROXY,
        HTTPS_PROXY=DEAD_PROXY,
        ALL_PROXY=DEAD_PROXY,
        PIP_INDEX_URL=DEAD_PROXY,
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
        PIP_CONFIG_FILE=os.devnull,
    )
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert "MNIST/raw" in lines[-1]
    assert "train-images-idx3-ubyte" in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_bad_input_exits_2_with_one_line(tmp_path: Path) -> None:
    done = run("--strategy fastest", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_interrupt_ends_cleanly_with_what_was_done(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--rounds", "100000", "--target-accuracy", "0", "--run-dir", "run"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup has it ignored
    )
    try:
        rounds = tmp_path / "run" / "rounds.jsonl"

        def has_begun() -> bool:
            assert process.poll() is None, process.communicate()[1]
            return rounds.exists() and rounds.stat().st_size > 10_000

        until(has_begun)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in errors
    lines = [json.loads(line) for line in rounds.read_text().splitlines()]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == len(lines) == lines[-1]["round"]
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_page_stays_after_the_run_until_it_is_stopped(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *COMMAND,
            *[
                "--rounds",
                "5",
                "--target-accuracy",
                "0",
                "--run-dir",
                "run",
                "--page",
                "127.0.0.1:0",
            ],
        ],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = re.match(r"page at (http://127\.0\.0\.1:\d+/)$", process.stderr.readline())
        assert found is not None

        def state() -> Any:
            with urllib.request.urlopen(f"{found[1]}state", timeout=PATIENCE_S) as answer:
                return json.load(answer)

        until(lambda: state()["run"]["state"] == "ended")
        assert state()["top"]["round"] == 5
        assert "until Ctrl-C" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_watch_saves_a_page_and_refuses_what_is_no_run(tmp_path: Path) -> None:
    done = run("--rounds 3 --target-accuracy 0 --run-dir run", tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("watch run --save page.html", tmp_path)
    assert (done.returncode, done.stdout) == (0, "page.html\n"), done.stderr
    assert "client-10" in (tmp_path / "page.html").read_text()
    for arguments, message in (
        ("watch nothing", "must be a run directory"),
        ("watch run --address 8501", "HOST:PORT"),
        ("watch run --save missing/page.html", "No such file"),
    ):
        done = run(arguments, tmp_path)
        assert done.returncode in (1, 2)
        (line,) = done.stderr.splitlines()
        assert message in line

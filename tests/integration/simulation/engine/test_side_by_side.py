"""``compare``: simulations in several processes give what one gives, and end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from paths import ROOT
from waiting import PATIENCE_S, RUN_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("mnist")]

FAULTY = """
from flower_scheduling.strategies.policies.uniform import Uniform

class Faulty(Uniform):
    def _select(self, context):
        if context.round == 3:
            raise ValueError("no third round")
        return super()._select(context)
"""


@pytest.fixture
def compare(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "simulation", "compare", *arguments.split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def rounds(run_dir: Path) -> list[dict[str, Any]]:
    file = run_dir / "rounds.jsonl"
    if not file.exists():
        return []
    found = [
        json.loads(line)
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    for line in found:
        del line["wall"]
    return found


def ended_in_order(run_dir: Path) -> bool:
    summary = json.loads((run_dir / "summary.json").read_text())
    return bool(summary["rounds"] == len(rounds(run_dir)) and (run_dir / "arms.json").exists())


def test_results_do_not_depend_on_the_number_of_processes(compare: Any, tmp_path: Path) -> None:
    policies = ("random", "cs-ucb-q", "round-robin")
    for processes in (1, 2):
        arguments = f"--rounds 30 --eval-every 10 --run-dir {processes} --processes {processes}"
        process = compare(f"--strategies {','.join(policies)} {arguments} --json")
        out, err = process.communicate(timeout=RUN_S)
        assert process.returncode == 0, err
        summaries = json.loads(out)
        assert [Path(each["run_dir"]).name for each in summaries] == list(policies)
        assert (tmp_path / str(processes) / "figures" / "clients-random.png").exists()
    for policy in policies:
        one, two = tmp_path / "1" / policy, tmp_path / "2" / policy
        assert len(rounds(one)) == 30
        assert rounds(one) == rounds(two)
        for name in ("model.safetensors", "model-best.safetensors", "summary.json", "scores.bin"):
            assert (one / name).read_bytes() == (two / name).read_bytes()


def test_interrupt_ends_all_of_them_between_two_rounds(compare: Any, tmp_path: Path) -> None:
    process = compare(
        "--strategies random,cs-ucb-q,round-robin --rounds 1000000 --target-accuracy 0 "
        "--run-dir cmp --processes 2"
    )
    first, second, third = (tmp_path / "cmp" / p for p in ("random", "cs-ucb-q", "round-robin"))
    until(lambda: rounds(first) and rounds(second), RUN_S)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=RUN_S)
    assert (process.returncode, out, err.strip()) == (130, "", "error: interrupted")
    assert ended_in_order(first)
    assert ended_in_order(second)
    assert not third.exists()
    assert not psutil.wait_procs(workers, PATIENCE_S)[1]


def test_fault_in_one_ends_the_others(compare: Any, tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    process = compare(
        "--strategies random,faulty.py:Faulty --rounds 1000000 --target-accuracy 0 "
        "--run-dir cmp --processes 2"
    )
    out, err = process.communicate(timeout=RUN_S)
    assert process.returncode == 2
    assert out == ""
    text = "error: the policy faulty.py:Faulty raised ValueError: no third round"
    assert err.strip() == text
    assert ended_in_order(tmp_path / "cmp" / "random")


def test_killed_process_is_one_line(compare: Any, tmp_path: Path) -> None:
    process = compare(
        "--strategies random,cs-ucb-q --rounds 1000000 --target-accuracy 0 "
        "--run-dir cmp --processes 2"
    )
    runs = [tmp_path / "cmp" / policy for policy in ("random", "cs-ucb-q")]
    until(lambda: all(map(rounds, runs)), RUN_S)
    workers = [
        child
        for child in psutil.Process(process.pid).children()
        if "spawn_main" in " ".join(child.cmdline())
    ]
    workers[0].kill()
    out, err = process.communicate(timeout=RUN_S)
    assert (process.returncode, out) == (1, "")
    assert err.strip().startswith("error: a process that computes was killed")
    assert len(err.strip().splitlines()) == 1
    assert sum((run / "summary.json").exists() for run in runs) == 1, "the other ended in order"


def test_workers_end_with_a_killed_program(compare: Any, tmp_path: Path) -> None:
    process = compare(
        "--strategies random,cs-ucb-q --rounds 1000000 --target-accuracy 0 "
        "--run-dir cmp --processes 2"
    )
    until(lambda: rounds(tmp_path / "cmp" / "random"), RUN_S)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert not psutil.wait_procs(workers, PATIENCE_S)[1]

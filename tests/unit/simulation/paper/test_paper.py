"""The paper's section: settings, jobs that are computed once, estimates, verdicts, reports."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT
from scipy.stats import ttest_1samp
from waiting import until

from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.jobs import Arrays, Job, code_digest, describe, load, run_jobs
from flower_scheduling.simulation.paper.claims import (
    DOES_NOT_HOLD,
    HOLDS,
    NOT_RESOLVED,
    _above,
    _below,
)
from flower_scheduling.simulation.paper.experiments import checkpoints, ideal_plan
from flower_scheduling.simulation.paper.figures import FIGURES, jobs_of
from flower_scheduling.simulation.paper.html_report import load_results, page, shown
from flower_scheduling.simulation.paper.settings import QUICK, PaperConfig
from flower_scheduling.simulation.theory.estimate import Estimate, estimate, ratio_of_means

# --- settings -------------------------------------------------------------------------------------


def test_settings_come_as_text_on_top_of_a_preset() -> None:
    full = PaperConfig.from_text({}, quick=False)
    quick = PaperConfig.from_text({"ideal-rounds": "100", "tau-max-s": "7"}, quick=True)
    assert full == PaperConfig()
    assert (full.drops, quick.drops) == (2000, QUICK["drops"])
    assert (quick.ideal_rounds, quick.tau_max_s) == (100, 7.0)
    assert sum(full.scale_floors(3.0)) == pytest.approx(3.0)
    assert full.beta_values == [1e-2, 1e-3, 1e-4, 1e-5]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("drop", "5", "did you mean drops"),
        ("drops", "many", "a whole number"),
        ("drops", "1", "at least 2"),
        ("channels", "5,21", "1 to 20"),
        ("channels", "5,5", "different numbers"),
        ("channels", "9" * 400, "numbers"),
        ("betas", "nan", "numbers"),
        ("betas", "0", r"\(0, 1\]"),
        ("floors", "0.9,0.9,0.9", "feasible: .*client"),
        ("scale-rhos", "1,30", "feasible|below 1"),
        ("tradeoff-distances-m", "450,300", "3 numbers above 0"),
        ("ideal-selected", "21", "at most 20"),
        ("bandwidth-hz", "-1", "bandwidth-hz = '?-1"),
        ("payload-bits", "0", "payload-bits"),
    ],
)
def test_wrong_setting_is_one_line(
    key: str, value: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["paper", "--set", f"{key}={value}", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line), line
    assert not out.exists()


def test_wrong_flags_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        (["--figure", "ideal-gab"], "did you mean ideal-gap"),
        (["--set", "drops"], "KEY=VALUE"),
        (["--processes", "0"], "processes"),
    ):
        assert main(["paper", *arguments, "--out", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    file = tmp_path / "none.json"
    file.write_text("{}")
    wanted = ["paper-page", str(file), str(tmp_path / "page.md"), "--figures"]
    assert main([*wanted, str(tmp_path)]) == 2
    assert "no results.json" in capsys.readouterr().err
    (tmp_path / "results.json").write_bytes((ROOT / "docs/paper/results.json").read_bytes())
    wanted[1] = str(tmp_path / "results.json")  # of a version that named no figures
    assert main([*wanted, str(tmp_path)]) == 2
    assert "names no figures" in capsys.readouterr().err


def test_checkpoints_hold_what_claims_ask_for() -> None:
    rounds = checkpoints(5000)
    assert {1, 20, 2500, 5000} <= set(rounds.tolist())
    assert (np.diff(rounds) > 0).all()
    assert checkpoints(40)[-1] == 40


# --- jobs -----------------------------------------------------------------------------------------


def draw(seed: int, log: str) -> Arrays:
    with Path(log).open("a") as file:
        file.write(f"{seed}\n")
    if seed < 0:
        raise ArithmeticError("this job fails")
    return {"values": np.random.default_rng(seed).normal(size=3), "seed": np.array(seed)}


def jobs(log: Path, *seeds: int) -> list[Job]:
    # The one that fails is the cheapest, and so the last.
    return [Job(f"job-{seed}", partial(draw, seed, str(log)), float(seed)) for seed in seeds]


@pytest.mark.slow
def test_a_job_is_computed_once_whatever_happened_to_the_others(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "jobs"
    with pytest.raises(ArithmeticError, match="this job fails"):
        run_jobs(jobs(log, 1, 2, -1), folder, num_processes=1)
    assert log.read_text().split() == ["2", "1", "-1"]

    file = jobs(log, 2)[0].path(folder)
    file.write_bytes(file.read_bytes()[:100])  # torn
    told: list[tuple[str, bool]] = []
    results = run_jobs(
        jobs(log, 3, 1, 2),
        folder,
        num_processes=2,
        on_done=lambda job, computed: told.append((job.name, computed)),
    )
    assert sorted(log.read_text().split()[3:]) == ["2", "3"]
    assert sorted(told) == [("job-1", False), ("job-2", True), ("job-3", True)]
    assert list(results) == ["job-3", "job-1", "job-2"]
    for seed in (1, 2, 3):
        expected = np.random.default_rng(seed).normal(size=3)
        np.testing.assert_array_equal(results[f"job-{seed}"]["values"], expected)
    assert not list(folder.glob(".*")), "no temporary file is left"


def test_other_settings_are_other_files(tmp_path: Path) -> None:
    quick = PaperConfig.from_text({}, quick=True)
    same = PaperConfig.from_text({}, quick=True)
    other = PaperConfig.from_text({"tau-max-s": "6"}, quick=True)
    paths = [
        [job.path(tmp_path) for job in jobs_of(list(FIGURES), config)]
        for config in (quick, same, other)
    ]
    assert paths[0] == paths[1]
    assert not set(paths[0]) & set(paths[2])
    assert len(set(paths[0])) == len(paths[0])
    sweep = PaperConfig.from_text({"sweep-drops": "50"}, quick=True)
    assert ideal_plan(sweep).jobs()[0].path(tmp_path) in paths[0], "only what it changes"


def changed_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that changes a file of a copy of our code and digests it, then undoes that.

    With an empty name nothing is changed.
    """
    for package in ("client", "server", "simulation", "strategies"):
        source = Path(str(files(f"flower_scheduling.{package}")))
        shutil.copytree(source, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(
        "flower_scheduling.simulation.jobs.files",
        lambda package: tmp_path / package.removeprefix("flower_scheduling."),
    )

    def digest(name: str) -> str:
        file = tmp_path / name
        before = file.read_bytes() if name else b""
        if name:
            file.write_bytes(before + b"# changed\n")
        try:
            return code_digest.__wrapped__()
        finally:
            if name:
                file.write_bytes(before)

    return digest


def test_a_change_of_any_file_that_results_follow_from_changes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = changed_digest(monkeypatch, tmp_path)
    folders = ("strategies/comparators", "simulation/theory", "simulation/environments")
    names = [file for each in folders for file in (tmp_path / each).glob("*.py")]
    names += (tmp_path / "simulation" / "scenarios").glob("*.toml")
    assert len(names) > 30
    others = (
        "strategies/policies/cs_ucb.py",
        "strategies/selection.py",
        "client/link/model.py",
        "client/learning/models.py",
        "server/settings/run.py",
        "simulation/settings.py",
        "simulation/benchmark/training_track.py",
        "simulation/engine/batched.py",
    )
    names += [tmp_path / name for name in others]
    found = [digest(str(file.relative_to(tmp_path))) for file in names]
    assert len({digest(""), *found}) == 1 + len(names)
    assert digest("simulation/html.py") == digest("server/page/web.py") == digest("")
    assert digest("") == code_digest(), "the copy is as good as ours"
    added = tmp_path / "strategies" / "comparators" / "newest.py"
    added.write_text("")
    assert digest("") not in (code_digest(), *found)


def test_results_of_other_code_are_computed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, folder = tmp_path / "log", tmp_path / "jobs"
    run_jobs(jobs(log, 1, 2), folder, num_processes=1)
    monkeypatch.setattr("flower_scheduling.simulation.jobs.code_digest", lambda: "other code")
    told: list[bool] = []
    # Computed here: a process of its own would not know of the other code.
    monkeypatch.setattr(
        "flower_scheduling.simulation.jobs.ProcessPoolExecutor",
        lambda *args, **kwargs: ThreadPoolExecutor(1),
    )
    for _ in range(2):
        run_jobs(
            jobs(log, 1, 2),
            folder,
            num_processes=1,
            on_done=lambda job, computed: told.append(computed),
        )
    assert told == [True, True, False, False]
    assert len(list(folder.iterdir())) == 4, "the others stay where they are"


def test_what_cannot_be_described_is_refused() -> None:
    assert describe(partial(draw, 1)) == describe(partial(draw, 1))
    assert describe(partial(draw, 1)) != describe(partial(draw, 2))
    with pytest.raises(TypeError, match="no description"):
        describe(lambda: None)


@pytest.mark.slow
def test_a_damaged_file_is_computed_again_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "jobs"
    run_jobs(jobs(log, 1), folder, num_processes=1)
    file = jobs(log, 1)[0].path(folder)
    good = file.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(200):
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        file.write_bytes(bad)
        found = load(file)
        assert found is None or found.keys() == {"values", "seed"}


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    program = (
        "import sys; from flower_scheduling.simulation.cli import main\n"
        "if __name__ == '__main__':\n"
        "    main(['paper', '--figure', 'fairness-tradeoff', '--processes', '2', "
        "'--out', sys.argv[1]])\n"
    )
    script = tmp_path / "run.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MARK": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "out")], env=environment)

    def alive() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"MARK={tmp_path}".encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
        return found

    until(lambda: len(alive()) >= 3)  # itself, a worker, the tracker of resources
    time.sleep(1.0)
    parent.kill()
    parent.wait()
    until(lambda: not alive())


# --- estimates and verdicts -----------------------------------------------------------------------


def test_interval_is_student_t() -> None:
    samples = np.random.default_rng(1).normal(3.0, 2.0, size=12)
    interval = ttest_1samp(samples, 0.0).confidence_interval(0.95)
    found = estimate(samples)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert (found.mean, found.count) == (pytest.approx(samples.mean()), 12)


def test_ratio_interval_covers() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(400):
        under = rng.normal(10.0, 2.0, size=50)
        found = ratio_of_means(2.5 * under + rng.normal(0.0, 1.0, size=50), under)
        covered += found.low <= 2.5 <= found.high
    # 95 % of 400 within 4 standard deviations: false alarms below 1e-4.
    assert 362 <= covered <= 397


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (0.1, 0.3, HOLDS, DOES_NOT_HOLD),
        (-0.3, -0.1, DOES_NOT_HOLD, HOLDS),
        (-0.1, 0.1, NOT_RESOLVED, NOT_RESOLVED),
        (0.0, 0.0, NOT_RESOLVED, NOT_RESOLVED),
    ],
)
def test_verdict_follows_from_the_interval(low: float, high: float, above: str, below: str) -> None:
    found = Estimate((low + high) / 2, low, high, 10)
    assert _above("", "", "", found).verdict == above
    assert _below("", "", "", found).verdict == below


def test_estimates_are_shown_with_the_digits_that_they_bear() -> None:
    numbers = {"mean": 113.4567, "low": 108.1, "high": 118.8}
    assert shown(numbers, "s") == "113.5 [108.1, 118.8] s"
    assert (
        shown({"mean": 0.6004, "low": 0.6002, "high": 0.6006}, "") == "0.60040 [0.60020, 0.60060]"
    )
    assert shown({"mean": 1234.5, "low": 1000, "high": 1469}, "s") == "1234 [1000, 1469] s"


# --- the whole command ----------------------------------------------------------------------------

TINY = {
    "drops": 3,
    "sweep-drops": 2,
    "scale-drops": 2,
    "training-seeds": 2,
    "channels": "2,5",
    "scale-channels": "4",
    "scale-rhos": "1,2",
    "ideal-rounds": 60,
    "tradeoff-rounds": 80,
    "scale-rounds": 60,
    "ideal-training-rounds": 20,
    "non-ideal-training-rounds": 20,
}


def run_tiny(out: Path, *arguments: str, **changes: object) -> int:
    sets = [part for k, v in {**TINY, **changes}.items() for part in ("--set", f"{k}={v}")]
    return main(["paper", *sets, "--out", str(out), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.csv")}


@pytest.mark.slow
def test_a_figure_by_itself_is_computed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []
    for _ in range(2):
        assert run_tiny(tmp_path, "--figure=fairness-tradeoff", "--processes", "1") == 0
        told = capsys.readouterr().out
        assert all(f"fairness-tradeoff.{kind}" in told for kind in ("png", "svg", "csv"))
        written.append({file: file.stat().st_mtime_ns for file in (tmp_path / "jobs").iterdir()})
    assert written[0] == written[1]
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("mnist")
def test_all_of_it_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_tiny(two, "--processes", "2") == 0
    assert "verdict" in capsys.readouterr().out
    for name in FIGURES:
        assert (two / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (two / "figures" / f"{name}.svg").read_text()
        assert (two / "data" / f"{name}.csv").read_text().startswith("panel,curve,x,mean,low,high")
    report = (two / "report.html").read_text()
    assert report.count('src="data:image/svg+xml;base64,') == len(FIGURES)
    assert not re.search(r"""(src|href)=["'](?!data:)""", report), "it needs no network"
    found = load_results(two / "results.json")
    assert {claim["verdict"] for claim in found["claims"]} <= {HOLDS, DOES_NOT_HOLD, NOT_RESOLVED}
    assert found["settings"]["drops"] == 3
    (two / "figures" / "results.json").write_bytes((two / "results.json").read_bytes())
    wanted = ["paper-page", str(two / "results.json"), str(tmp_path / "page.md")]
    assert main([*wanted, "--figures", str(two / "figures")]) == 0
    text = (tmp_path / "page.md").read_text()
    assert text == page(found, found, "two/figures")
    assert text.count("\n| ") >= len(found["claims"])
    for path in re.findall(r"!\[.*\]\((.*)\)", text):
        assert (tmp_path / path).is_file()
    assert text.count("![") == len(FIGURES)

    # Once more: nothing is computed, the same comes out. A figure by itself, with one process and
    # from nothing: the same numbers.
    begun = {file: file.stat().st_mtime_ns for file in (two / "jobs").iterdir()}
    assert run_tiny(two) == 0
    assert {file: file.stat().st_mtime_ns for file in (two / "jobs").iterdir()} == begun
    capsys.readouterr()
    figures = ("channels-gap", "fairness-tradeoff")
    assert run_tiny(one, *(f"--figure={name}" for name in figures), "--processes", "1") == 0
    written = capsys.readouterr().out
    assert all(f"{name}.{kind}" in written for name in figures for kind in ("png", "svg", "csv"))
    for name in figures:
        path = Path("data") / f"{name}.csv"
        assert (one / "single" / path).read_bytes() == (two / path).read_bytes()
        path = Path("figures") / f"{name}.svg"
        assert (one / "single" / path).read_bytes() == (two / path).read_bytes()
    assert not (one / "report.html").exists()
    assert not (one / "figures").exists(), "a figure by itself does not mix with a report"


def test_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "--settings", "--quick"]) == 0
    text = capsys.readouterr().out
    assert all(key in text for key in PaperConfig.settings())

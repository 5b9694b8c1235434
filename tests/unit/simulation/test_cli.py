"""The command line of the simulation: bad input is one clear line, good input leaves results."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from flower_scheduling.client.wire.frames import package_version
from flower_scheduling.server.runs.directory import default_run_dir
from flower_scheduling.server.runtimes.signals import stoppable
from flower_scheduling.server.settings.run import idle_settings, options_help
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.engine.replayer import replayable
from flower_scheduling.simulation.program import program_name
from flower_scheduling.strategies import POLICIES

pytestmark = pytest.mark.usefixtures("mnist")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


BAD_INPUT = {
    "--strategy cs-ucbq": "did you mean cs-ucb-q",
    "--strategy oracle": "oracle",
    "--num-selected 11": "num-selected = 11: must be at most num-clients = 10",
    "--num-spare 7": "num-spare = 7: must be at most num-clients - num-selected = 6",
    "--max-share 0.3": "max-share = 0.3: must be at least num-selected / num-clients = 0.4",
    "--max-share 2": "max-share = 2.0: must be above 0 and at most 1",
    "--max-share 0.5": "max-share = 0.5: is below the floor of client-1, 0.714",
    "--num-spare -1": "num-spare = -1: must be at least 0",
    "--num-spare 1.5": "'1.5' is no whole number, and not 'auto'",
    "--late-updates use": "late-updates = 'use': must be drop without num-spare",
    "--late-updates late": "late-updates = 'late': must be use or drop",
    "--num-spare 1 --mode buffered": "num-spare = 1: must be 0 with mode = buffered",
    "--local-work fair": "local-work = 'fair': must be equal or equal-time",
    "--least-work 0": "least-work = 0.0: must be above 0",
    "--most-work 0.5": "most-work = 0.5: must be at least 1",
    "--buffer-size 2": "buffer-size = 2: must be 0 without mode = buffered",
    "--num-selected 0": "num-selected = 0: must be at least 1",
    "--num-selected two": "'two' is not a valid integer",
    "--num-clients 0": "num-clients = 0: must be at least 1",
    "--beta 1.5": "beta = 1.5: must be at least 0 and at most 1",
    "--beta nan": "beta = nan: must be a finite number",
    "--fairness=-0.1,0.2,0.1,0,0,0,0,0,0,0": "-0.1",
    "--fairness 0.5,0.5": "must be 10 numbers",
    "--fairness often": "often",
    "--fairness proportional:9": "client-1",
    "--fairness equal:0.5": "cannot be met",
    "--fairness client-1=0.9,client_10=0.1": "no client is called client_10 (did you mean "
    "client-10?) (they are called client-1 to client-10)",
    "--fairness " + ",".join(f"client-{n}=0.6" for n in range(1, 9)): "cannot be met",
    "--tau-max-s 0": "tau-max-s = 0.0: must be above 0",
    "--tau-max-s fast": "'fast' is no number, and not 'auto'",
    "--tau-max-s inf": "tau-max-s = inf: must be a finite number",
    "--rounds 0": "rounds = 0: must be at least 1",
    "--seed abc": "'abc' is not a valid integer",
    "--seed -1": "seed = -1: must be at least 0",
    "--partitioner dirichlett:0.3": "did you mean",
    "--partitioner sizes:50000,20000 --num-clients 2 --num-selected 1": "60000",
    "--partitioner sizes:10,10 --num-clients 3 --num-selected 1": "3",
    "--scenario idael": "one of ideal, non-ideal",
    "--availability 1.2": "availability = '1.2': must be a number in [0, 1], or 10 of them",
    "--availability 0.5,0.5": "or 10 of them",
    "--availability often": "numbers separated by commas",
    "--failure-probability 2": "failure-probability",
    "--joins 11:5": "with CLIENT from 1 to 10",
    "--joins 1:0": "with ROUND from 1",
    "--joins 1": "CLIENT:ROUND",
    "--slowdowns 1:2": "CLIENT:ROUND:FACTOR",
    "--slowdowns 1:2:0": "with FACTOR above 0",
    "--slowdowns 1:2:9 --compute-law lognormal": "must be empty with compute-law lognormal",
    "--compute-law normal": "must be uniform, lognormal or pareto",
    "--compute-law pareto": "compute-shape = 1.0: must be above 1, for a mean of 1",
    "--compute-shape 0": "compute-shape = 0.0: must be above 0",
    "--compute-shape 3": "compute-shape = 3.0: must be 1 with compute-law uniform",
    "--joins 3:5,3:6": "each client once",
    "--min-clients 11": "min-clients = 11: must be at most num-clients = 10",
    "--seed 99999999999999999999999": "below 2^63",
    "--wait-s 1e300": "at most 604800",
    "--tx-power-dbm 1e6": "at least -300 and at most 300",
    "--aggregation fedtrimmedavg --aggregation-option beta=0.9": "fedtrimmedavg refuses it",
    "--aggregation fedadam --aggregation-option eta=nan": "eta must be a finite float",
    "--aggregation fedadam --aggregation-option eta=1,eta=2": "several values for eta",
    "--aggregation qfedavg": "client-learning-rate=VALUE",
    "--availability 0": "at most 0 can be served",
    "--late never": "late = 'never': must be abandon or busy",
    "--payload-bits 0": "payload-bits = '0': must be above 0, or 'model'",
    "--payload-bits modle": "payload-bits = 'modle': must be a number",
    "--distances-m 10,20": "10 numbers separated by commas",
    "--distances-m 0,1,1,1,1,1,1,1,1,1": "distance",
    "--bandwidth-hz 0": "bandwidth-hz = 0.0: must be above 0",
    "--model transformer": "logistic",
    "--initial-model missing.safetensors": "must be a readable safetensors file",
    "--learning-rate 0": "learning-rate = 0.0: must be above 0",
    "--aggregation fedadm": "did you mean fedadam",
    "--aggregation fedadam --aggregation-option etta=1": "did you mean eta",
    "--aggregation fedadam --aggregation-option eta=fast": "eta must be a finite float",
    "--aggregation multikrum --aggregation-option num-malicious-nodes=2": "at least 7",
    "--no-such-flag": "No such option",
    "--nam-clients 5": "No such option '--nam-clients'. (did you mean --num-clients?)",
    "--run-dir=": "run-dir = '': must be a folder; without the flag",
    "frobnicate": "No such command",
    "--rounds 3 compare": "--rounds belongs behind compare",
    "compare --strategy random --strategy rnd": "rnd",
    "compare --strategies random,rnd": "rnd",
    "compare --strategy ,": "--strategy must name at least one policy",
    "compare --paper --strategy random": "leave out --strategy",
    "demo --run-dir=": "run-dir = '': must be a folder; without the flag",
    "demo --seed -1": "-1 is not in the range x>=0",
    "demo --strategy random": "No such option '--strategy'",
    "--run-dir " + 300 * "a": "can be created",
}


@pytest.mark.parametrize("arguments", BAD_INPUT)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert BAD_INPUT[arguments] in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_existing_run_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "rounds.jsonl").touch()
    for command in ([], ["compare"]):
        assert main([*command, "--run-dir", "old"]) == 2
        assert "run-dir = 'old': must be a folder that does not exist yet" in one_line(capsys)
    assert [file.name for file in (tmp_path / "old").iterdir()] == ["rounds.jsonl"]


def test_run_directory_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--run-dir", "file/run"]) == 2
    assert "run-dir = 'file/run': must be a folder that can be created" in one_line(capsys)


def test_run_leaves_a_complete_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("--rounds 20 --eval-every 10 --seed 3 --run-dir out/run".split()) == 0  # noqa: SIM905
    printed = capsys.readouterr().out
    assert "out/run/figures/accuracy.png" in printed
    run = tmp_path / "out" / "run"
    config = tomllib.loads((run / "config.toml").read_text())
    assert (config["seed"], config["num-selected"], config["scenario"]) == (3, 4, "non-ideal")
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 21))
    assert [line["round"] for line in lines if line["accuracy"] is not None] == [10, 20]
    first = lines[0]
    assert first["schema"] == 1
    width = len(first["selected"])
    for key in ("rtt_s", "completed", "reason", "compute_s", "link_s"):
        assert len(first[key]) == width
    for rtt, compute, link in zip(first["rtt_s"], first["compute_s"], first["link_s"], strict=True):
        assert rtt == pytest.approx(compute + link)
    assert first["time_s"] == pytest.approx(max(first["rtt_s"]))
    arms = json.loads((run / "arms.json").read_text())
    assert [arm["num_examples"] for arm in arms] == [10000] * 2 + [1000] * 8
    assert arms[0]["floor"] == pytest.approx(2 * 10000 / 28000)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] == 20
    assert summary["time_s"] == lines[-1]["time_s"]
    for name in ("model.safetensors", "model-best.safetensors", "log.txt"):
        assert (run / name).exists()
    for name in ("accuracy", "time", "clients"):
        assert (run / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_a_deadline_that_is_found_is_recorded_reported_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--rounds 60 --eval-every 30 --tau-max-s auto --run-dir run --json".split()  # noqa: SIM905
    assert main(arguments) == 0
    summary = json.loads(capsys.readouterr().out)
    lines = [json.loads(each) for each in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert (lines[0]["deadline_s"], summary["tau_max_s"]) == (3600.0, "auto")
    assert 0.0 < lines[-1]["deadline_s"] == summary["deadline_s"] < 60.0
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["tau-max-s"] == "auto"
    assert not (tmp_path / "run/truth.json").exists(), "regret is by means up to one deadline"
    assert (tmp_path / "run/figures/time.png").exists()
    assert main(["report", "run", "--out", "report.html"]) == 0
    assert "it was found from measured times" in (tmp_path / "report.html").read_text()
    assert main(["replay", "run", "--strategy", "cs-ucb", "--seeds", "2", "--json"]) == 0


def test_default_run_directory_lies_below_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--rounds", "1", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (tmp_path / summary["run_dir"] / "rounds.jsonl").exists()
    assert Path(summary["run_dir"]).parent == Path("runs")


def test_compare_uses_the_same_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "compare --strategy random --strategy cs-ucb-q --rounds 30 --run-dir cmp --json"
    assert main(arguments.split()) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["rounds"], second["rounds"]) == (30, 30)
    draws: list[dict[tuple[int, int], float]] = []
    available = []
    for name in ("random", "cs-ucb-q"):
        lines = (tmp_path / "cmp" / name / "rounds.jsonl").read_text().splitlines()
        rounds = [json.loads(line) for line in lines]
        available.append([r["available"] for r in rounds])
        draws.append(
            {
                (r["round"], arm): rtt
                for r in rounds
                for arm, rtt in zip(r["selected"], r["rtt_s"], strict=True)
                if rtt is not None
            }
        )
    assert available[0] == available[1]
    both = draws[0].keys() & draws[1].keys()
    assert len(both) > 20
    assert all(draws[0][key] == draws[1][key] for key in both)
    assert (tmp_path / "cmp" / "figures" / "accuracy.png").exists()


@pytest.mark.parametrize(
    "flags",
    [
        "--strategy random --strategy cs-ucb",
        "--strategy random,cs-ucb",
        "--strategies random,cs-ucb",
    ],
)
def test_every_spelling_of_the_policies_names_each_once(
    flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = f"compare {flags} --strategy random --rounds 2 --processes 1 --json"
    assert main(arguments.split()) == 0
    found = [Path(each["run_dir"]).name for each in json.loads(capsys.readouterr().out)]
    assert found == ["random", "cs-ucb"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("", "random round-robin modified-cs-ucb cs-ucb-q cs-ucb-q-adaptive cs-ucb-q-loss"),
        ("--scenario ideal", "random round-robin cs-ucb cs-ucb-adaptive"),
        ("--paper", "random round-robin local-accuracy modified-cs-ucb cs-ucb-q"),
    ],
)
def test_what_is_compared_by_default_fits_the_terminal(
    arguments: str,
    names: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rest = ["--rounds", "2", "--processes", "1", "--run-dir", "cmp"]
    assert main(["compare", *arguments.split(), *rest]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("│")]
    assert shown == names.split()
    assert all(len(line) <= 80 for line in lines if not line.startswith(("results", "figure")))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{program_name()}, version {package_version()}\n"


def test_signals_of_one_second_are_one_wish() -> None:
    with pytest.raises(KeyboardInterrupt), stoppable():
        signal.raise_signal(signal.SIGTERM)
    with stoppable(between_rounds=True) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            stop(None, None)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_later_signal_ends_the_process() -> None:
    program = (
        "import signal, time\n"
        "from flower_scheduling.server.runtimes.signals import stoppable\n"
        "with stoppable(between_rounds=True):\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    time.sleep(1.2)\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == b""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_worker_process_of_an_app_dies_of_a_signal() -> None:
    def work(runs: Any) -> None:
        runs.set()
        time.sleep(600)

    context = multiprocessing.get_context("fork")
    runs = context.Event()
    with stoppable():
        child = context.Process(target=work, args=(runs,))
        child.start()
        assert runs.wait(PATIENCE_S), "Python drops a signal that comes while it forks"
        while child.is_alive():  # it may drop one on its way out of the fork's hooks
            child.terminate()
            child.join(1.0)
    assert child.exitcode == -signal.SIGTERM


def test_diverged_run_ends_with_files_that_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--learning-rate 1e38 --model cnn --rounds 3 --eval-every 1 --run-dir run --json"
    assert main(arguments.split()) == 1, "no update was finite"
    out, err = capsys.readouterr()
    assert "error: no round has changed the model, the last: no-replies" in err
    summary = json.loads(out, parse_constant=pytest.fail)  # no NaN in JSON
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert summary["rounds"] == len(lines) == 3


def test_clients_that_never_answer_cost_their_rounds_and_keep_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--failure-probability", "1", "--rounds", "5", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["time_s"] == 5 * 5.0
    assert summary["failures"] == 20
    assert [arm["name"] for arm in summary["arms"]] == [f"client-{k}" for k in range(1, 11)]


def test_default_run_directories_of_one_second_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_scheduling.server.runs.directory.time.strftime", lambda form: "now")
    assert len({default_run_dir("x") for _ in range(5)}) > 1


@pytest.mark.parametrize(
    ("given", "policies", "lines"),
    [
        ({"beta": 1.0, "rounds": 3}, ["cs-ucb-q"], []),
        (
            {"beta": 1.0},
            ["cs-ucb-q-adaptive"],
            ["beta has no effect: cs-ucb-q-adaptive has no such"],
        ),
        (
            {"fairness": "equal:0.1", "truncate": True},
            ["cs-ucb-q-adaptive", "random"],
            ["truncate has no effect"],
        ),
        (
            {"fairness": "equal:0.1"},
            ["random", "cs-ucb"],
            ["fairness has no effect: random, cs-ucb"],
        ),
        ({"fairness": "none"}, ["random"], []),
    ],
)
def test_settings_that_no_policy_takes_are_told(
    given: dict[str, object], policies: list[str], lines: list[str]
) -> None:
    found = idle_settings(given, policies)
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith(expected)


def test_replay_lists_the_parameters_of_those_that_it_replays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    listed = words.partition("They are: ")[2].partition(". --seeds")[0]
    named = {part.split()[0] for part in listed.split("; ")}
    assert "kl-ucb" in named
    assert named <= set(filter(replayable, POLICIES))
    assert any(f"{name} " in options_help() for name in POLICIES if not replayable(name)), "others"

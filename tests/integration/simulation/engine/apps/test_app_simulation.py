"""Any Flower app in virtual time, from the command line: what it leaves behind, and its faults."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_folders import (
    NUMPY_CLIENT,
    NUMPY_SERVER,
    PLAIN_SERVER,
    TORCH_CLIENT,
    TORCH_SERVER,
    write_app,
)

from flower_scheduling.simulation.cli import main

FEW = ["--num-clients", "5"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.startswith("app_")]:
        if name != "app_folders":
            del sys.modules[name]


def simulate(*arguments: object) -> int:
    return main([*map(str, arguments)])


def rounds_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "wall"} for line in lines]


def settings_of(run: Path) -> dict[str, Any]:
    return tomllib.loads((run / "config.toml").read_text())


def leaving(line: str) -> str:
    """Return the ServerApp that calls ``os._exit(0)`` instead of what begins so."""
    return "import os\n" + NUMPY_SERVER.replace(line, f"    os._exit(0)\n{line}")


def fault(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert captured.out == ""
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


def test_an_app_leaves_what_every_run_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path)
    assert simulate("--app", app, *FEW, "--run-dir", "run", "--json") == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)  # what the app prints is not in it
    assert "the server prints" in err
    assert "a client prints" in err
    assert (summary["rounds"], summary["failures"], summary["compute"]) == (6, 0, "drawn")
    assert summary["accuracy"] > 0.5
    assert {arm["name"] for arm in summary["arms"]} == {f"client-{k}" for k in range(1, 6)}
    found = rounds_of(tmp_path / "run")
    assert [line["round"] for line in found] == [1, 2, 3, 4, 5, 6]
    assert all(len(line["selected"]) == 2 for line in found), "the wrapper's N"
    for line in found:
        for rtt, compute, link in zip(
            line["rtt_s"], line["compute_s"], line["link_s"], strict=True
        ):
            assert rtt == pytest.approx(compute + link)
        assert line["round_s"] == pytest.approx(max(line["rtt_s"]))
    settings = settings_of(tmp_path / "run")
    assert (settings["strategy"], settings["beta"], settings["tau-max-s"]) == ("cs-ucb-q", 0.01, 4)
    assert settings["app-config"] == {"num-server-rounds": 6, "noise": 0.1}
    assert (settings["compute"], settings["wrapped"]) == ("drawn", "FedAvg")
    for name in ("model.safetensors", "truth.json", "checkpoint", "figures/accuracy.png"):
        assert (tmp_path / "run" / name).exists(), name
    assert simulate("report", "run", "--out", "report.html") == 0
    assert f"--app {app} --num-clients 5" in (tmp_path / "report.html").read_text()
    assert simulate("replay", "run", "--seeds", "2") == 0
    assert Path.cwd() == tmp_path, "a client has gone elsewhere"


def test_the_same_seed_is_the_same_run_and_a_flag_counts_for_the_wrapper(tmp_path: Path) -> None:
    app = write_app(tmp_path)
    asked = ["--strategy", "random", "--num-selected", "3", "--seed", "7", "--tau-max-s", "auto"]
    for name in ("first", "second"):
        assert simulate("--app", app, *FEW, *asked, "--run-dir", name) == 0
    first = rounds_of(tmp_path / "first")
    assert first == rounds_of(tmp_path / "second")
    model = "model.safetensors"
    assert (tmp_path / "first" / model).read_bytes() == (tmp_path / "second" / model).read_bytes()
    assert all(len(line["selected"]) == 3 for line in first)
    settings = settings_of(tmp_path / "first")
    assert (settings["strategy"], settings["num-selected"], settings["seed"]) == ("random", 3, 7)
    assert settings["tau-max-s"] == "auto"


def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path: Path) -> None:
    app = write_app(tmp_path)
    asked = ["--app", app, *FEW, "--strategy", "cs-ucb", "--seed", "3"]
    noise = "noise=0.5"  # which stays, unless it is given anew
    assert (
        simulate(*asked, "--run-config", f"{noise} num-server-rounds=12", "--run-dir", "whole") == 0
    )
    assert (
        simulate(*asked, "--run-config", f"{noise} num-server-rounds=5", "--run-dir", "parts") == 0
    )
    assert simulate("--resume", "parts", "--run-config", "num-server-rounds=12") == 0
    assert settings_of(tmp_path / "parts")["app-config"] == {"num-server-rounds": 12, "noise": 0.5}
    assert rounds_of(tmp_path / "parts") == rounds_of(tmp_path / "whole")
    model = "model.safetensors"
    assert (tmp_path / "parts" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_resumed_run_keeps_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = write_app(tmp_path)
    assert simulate("--app", app.name, *FEW, "--strategy", "random", "--run-dir", "run") == 0
    capsys.readouterr()
    for flags, expected in (
        (["--strategy", "cs-ucb"], "strategy = 'random', not 'cs-ucb'"),
        (["--num-selected", "3"], "num-selected = 2, not 3"),
        (["--num-clients", "6"], "num-clients = 5, not 6"),
        (["--compute", "measured"], "compute = 'drawn', not 'measured'"),
    ):
        assert simulate("--resume", "run", *flags) == 2
        assert expected in fault(capsys)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert simulate("--resume", tmp_path / "run") == 2
    assert f"the run began in {tmp_path}" in fault(capsys)


def test_policies_are_compared_on_the_same_draws_each_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counting = NUMPY_SERVER.replace("app = ServerApp()", "app = ServerApp()\nstarted = []").replace(
        "def main(grid, context):\n", "def main(grid, context):\n    started.append(1)\n"
        "    assert len(started) == 1, 'a module of an earlier run'\n"
    )  # fmt: skip
    app = write_app(tmp_path, counting)
    arguments = ["compare", "--app", app, *FEW, "--strategies", "random,cs-ucb", "--processes", "1"]
    assert simulate(*arguments, "--run-dir", "cmp", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["rounds"] for each in found] == [6, 6]
    draws = []
    for name in ("random", "cs-ucb"):
        run = tmp_path / "cmp" / name
        assert settings_of(run)["strategy"] == name
        draws.append(
            {
                (line["round"], arm): rtt
                for line in rounds_of(run)
                for arm, rtt in zip(line["selected"], line["rtt_s"], strict=True)
            }
        )
    both = draws[0].keys() & draws[1].keys()
    assert both
    assert all(draws[0][key] == draws[1][key] for key in both)
    assert (tmp_path / "cmp/figures/accuracy.png").exists()


def test_files_that_several_runs_write_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writing = (
        "\n    from pathlib import Path\n    Path('results.json').write_text('{}')\n"
        "    Path(__file__).with_name('beside.txt').write_text('x')\n"
        "    Path(f'mine-{context.run_id}.json').write_text('{}')\n"
        "    cached = Path('cached.bin')\n    cached.exists() or cached.write_text('x')\n"
    )
    app = write_app(tmp_path, NUMPY_SERVER + writing)
    two = ["--strategy", "random", "--strategy", "cs-ucb"]
    assert simulate("compare", "--app", app, *FEW, *two, "--processes", "1") == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "several runs" in each]
    beside = f"{app.name}/{app.name}/beside.txt"
    assert line.startswith(
        f"warning: written by several runs, of which the last one counts: {beside}, results.json; "
    )
    assert len(list(tmp_path.glob("mine-*.json"))) == 2, "each run has an id of its own"
    assert simulate("compare", "--app", write_app(tmp_path), *FEW, *two) == 0
    assert "several runs" not in capsys.readouterr().err


def test_an_app_of_torch_with_worker_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path, TORCH_SERVER, TORCH_CLIENT.format(workers=1))
    asked = ["--num-clients", "3", "--run-config", "num-server-rounds=2", "--payload-bits", "model"]
    for name in ("first", "second"):
        assert simulate("--app", app, *asked, "--run-dir", name, "--json") == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["failures"] == 0
    found = rounds_of(tmp_path / "first")
    assert found == rounds_of(tmp_path / "second"), "torch draws by the seed, too"
    assert found[-1]["client_metrics"]["loss"] > 0
    assert found[0]["link_s"][0] < 0.1, "of 128 bits, not of 5000"
    assert [arm["num_examples"] for arm in summary["arms"]] == [8, 16, 24]


def test_measured_times_are_this_machines_scaled_and_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = NUMPY_CLIENT.replace(
        "    number, noise", "    import time\n    end = time.process_time() + 0.05\n"
        "    while time.process_time() < end: pass\n    number, noise"
    )  # fmt: skip
    app = write_app(tmp_path, client=busy)
    asked = ["--compute", "measured", "--compute-factor", "2", "--tau-max-s", "1000"]
    assert simulate("--app", app, *FEW, *asked, "--run-dir", "run") == 0
    out, err = capsys.readouterr()
    assert "not reproducible" in " ".join(err.split())
    assert "computing as measured here, times 2" in out
    for line in rounds_of(tmp_path / "run"):
        assert min(line["compute_s"]) >= 0.1
    assert settings_of(tmp_path / "run")["compute"] == "measured"
    assert not (tmp_path / "run/truth.json").exists(), "the means are not known"
    assert simulate("compare", "--app", app, "--compute", "measured") == 2
    assert "compare with --times RUN_DIR" in fault(capsys)


def test_the_times_of_a_recorded_run_and_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path)
    (tmp_path / "times.csv").write_text("client,seconds\npi,1.5\nzero,2\npi,\npi,0.25\nzero,3\n")
    assert simulate("--app", app, "--times", "times.csv", "--run-dir", "traced") == 0
    found = rounds_of(tmp_path / "traced")
    assert [line["rtt_s"][0] for line in found] == [1.5, None, 0.25, 1.5, None, 0.25]
    assert [line["rtt_s"][1] for line in found] == [2.0, 3.0] * 3
    assert found[1]["reason"][0] == "timeout"
    assert "round trips of times.csv" in capsys.readouterr().out
    arms = json.loads((tmp_path / "traced/arms.json").read_text())
    assert [arm["name"] for arm in arms] == ["pi", "zero"]
    assert simulate("--app", app, "--times", "traced", "--run-dir", "again") == 0
    times = {rtt for line in rounds_of(tmp_path / "again") for rtt in line["rtt_s"]}
    assert {arm["name"] for arm in json.loads((tmp_path / "again/arms.json").read_text())} == {
        "pi",
        "zero",
    }
    assert times & {1.5, 0.25, 2.0, 3.0}


def test_a_client_that_fails_costs_no_other_client_the_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = NUMPY_CLIENT.replace(
        "    (weights,)", "    if number == 1: raise SystemExit(3)\n"
        "    if number == 2: return 'nothing'\n"
        "    if number == 3 and not os.fork(): return message\n"
        "    if number == 4: os._exit(0)\n    (weights,)"
    )  # fmt: skip
    app = write_app(tmp_path, client=failing)
    asked = ["--num-selected", "5", "--run-config", "num-server-rounds=2", "--run-dir", "run"]
    assert simulate("--app", app, *FEW, *asked) == 0
    for line in rounds_of(tmp_path / "run"):
        reasons = dict(zip(line["selected"], line["reason"], strict=True))
        assert reasons[0] is reasons[3] is None
        assert "SystemExit: 3" in reasons[1]
        assert "TypeError: the ClientApp returned str, not a Message" in reasons[2]
        assert "ProcessExit: os._exit(0)" in reasons[4]
    log = (tmp_path / "run/log.txt").read_text()
    assert log.count("Traceback") == 3, "each fault once"


def test_a_run_in_which_nothing_changed_the_model_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = NUMPY_CLIENT.replace("    (weights,)", "    raise ValueError('no data')\n    (w,)")
    assert simulate("--app", write_app(tmp_path, client=failing), *FEW) == 1
    err = capsys.readouterr().err
    assert "error: no round has changed the model" in err
    assert "ValueError: no data" in err


def test_an_app_that_is_not_wrapped_samples_by_itself_and_a_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path, PLAIN_SERVER)
    asked = ["--app", app, *FEW, "--run-config", "num-server-rounds=3"]
    assert simulate(*asked, "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["scheduled"], found["rounds"]) == (False, 3)
    assert found["time_s"] > 0
    assert "ScheduledStrategy(strategy, num_selected=..., tau_max_s=...)" in " ".join(err.split())
    assert simulate(*asked, "--strategy", "random") == 2
    assert "error: strategy = 'random': has no effect" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_target_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--target-accuracy", "0.6", "--run-config", "num-server-rounds=50", "--json"]
    assert simulate("--app", write_app(tmp_path), *FEW, *asked) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["target_round"] == summary["rounds"] < 50


def test_an_app_that_starts_two_runs_has_the_second_beside_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = "strategy.start(grid, start, num_rounds=rounds, evaluate_fn=accuracy)"
    again = (
        f"os.chdir('/')\n    found = {call}\n    strategy.start(grid, found.arrays, num_rounds=2)"
    )
    server = "import os\n" + NUMPY_SERVER.replace(call, again)
    assert simulate("--app", write_app(tmp_path, server), *FEW, "--run-dir", "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 6
    assert len(rounds_of(tmp_path / "run")) == 6
    assert len(rounds_of(tmp_path / "run/start-2")) == 2, "also of one that goes elsewhere"


def test_a_buffered_app_is_resumed_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = NUMPY_SERVER.replace("num_selected=2", "num_selected=4, mode='buffered'")
    app = write_app(tmp_path, server)
    asked = ["--app", app, *FEW, "--joins", "5:4", "--seed", "1"]
    assert simulate(*asked, "--run-config", "num-server-rounds=9", "--run-dir", "whole") == 0
    assert simulate(*asked, "--run-config", "num-server-rounds=4", "--run-dir", "parts") == 0
    assert simulate("--resume", "parts", "--run-config", "num-server-rounds=9") == 0
    assert rounds_of(tmp_path / "parts") == rounds_of(tmp_path / "whole")
    known = [line["num_arms"] for line in rounds_of(tmp_path / "whole")]
    assert (known[0], known[-1]) == (4, 5)
    assert settings_of(tmp_path / "parts")["mode"] == "buffered"
    assert "goes on after step 4\n" in (tmp_path / "parts/log.txt").read_text()


def test_two_objects_instead_of_a_folder(tmp_path: Path) -> None:
    app = write_app(tmp_path)
    os.chdir(app)
    objects = [f"--{kind}-app={app.name}.{kind}_app:app" for kind in ("server", "client")]
    assert simulate(*objects, *FEW, "--run-dir", "run") == 0
    assert settings_of(app / "run")["app-config"]["noise"] == 0.1


FAULTS = {
    "no such folder": (["--app", "nowhere"], "must be a folder with the pyproject.toml"),
    "no app in it": (["--app", "empty"], "has no pyproject.toml"),
    "no server": (["--server-app", "x:app", "--client-app", "y:app"], "No module named 'x'"),
    "half of it": (["--server-app", "x:app"], "needs --client-app"),
    "both ways": (["--app", "a", "--client-app", "y:app"], "must not be given beside --app"),
    "no path": (["--app", "APP", "--server-app", "x"], "must not be given beside --app"),
    "its own": (["--app", "APP", "--rounds", "5"], "that app sets it in start(..., num_rounds=)"),
    "no key": (["--app", "APP", "--run-config", "rounds=2"], "rounds is not in [tool.flwr.app"),
    "no policy": (["--app", "APP", "--beta", "0.5"], "needs --strategy"),
    "bad policy": (["--app", "APP", "--strategy", "cs-ucbq"], "did you mean cs-ucb"),
    "alone": (["--times", "x.csv"], "has no effect without --app FOLDER"),
    "no times": (["--app", "APP", "--times", "nix.csv"], "must be a run directory, or a CSV file"),
    "no run": (["--app", "APP", "--times", "empty"], "must be a run directory"),
    "idle": (["--app", "APP", "--times", "t.csv", "--bandwidth-hz", "9"], "has no effect on the"),
    "other fleet": (["--app", "APP", "--times", "t.csv", "--num-clients", "3"], "must be the 1 of"),
    "factors": (["--app", "APP", "--compute-factor", "5-1"], "or LOW-HIGH"),
    "N": (["--app", "APP", "--num-selected", "9", "--num-clients", "4"], "at most num-clients = 4"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_one_line(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = write_app(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "t.csv").write_text("client,seconds\na,1\n")
    arguments, expected = FAULTS[what]
    assert simulate(*[app if each == "APP" else each for each in arguments]) == 2
    assert expected in fault(capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("server", "client", "code", "expected"),
    [
        ("app = 5", NUMPY_CLIENT, 2, "must be a ServerApp, not a int"),
        ("", NUMPY_CLIENT, 2, "has no app"),
        (NUMPY_SERVER, "raise ValueError('no GPU')", 2, "cannot be imported: ValueError: no GPU"),
        (NUMPY_SERVER, "import nothing_like_it", 2, "No module named 'nothing_like_it'"),
        (NUMPY_SERVER.replace("rounds =", "1 / 0 #"), NUMPY_CLIENT, 1, "ZeroDivisionError"),
        (NUMPY_SERVER.replace("rounds =", "raise SystemExit(4) #"), NUMPY_CLIENT, 1, "SystemExit"),
        ("import os\nos._exit(0)", NUMPY_CLIENT, 2, "cannot be imported: ProcessExit: os._exit(0)"),
        (leaving("    (weights,) = arrays"), NUMPY_CLIENT, 1, "ended the process with os._exit(0)"),
    ],
)
def test_faults_of_an_app_are_one_line(
    server: str,
    client: str,
    code: int,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate("--app", write_app(tmp_path, server, client), *FEW) == code
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert expected in last


def test_a_server_app_may_leave_when_its_run_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, failed = (f"import os\n{NUMPY_SERVER}    os._exit({status})\n" for status in (0, 3))
    assert simulate("--app", write_app(tmp_path, done), *FEW, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 6
    assert simulate("--app", write_app(tmp_path, failed), *FEW) == 1
    assert capsys.readouterr().err.endswith("ended the process with os._exit(3)\n")


def test_results_are_shown_where_no_figure_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = f"{NUMPY_SERVER}    open('run/figures', 'x').close()\n"
    assert simulate("--app", write_app(tmp_path, server), *FEW, "--run-dir", "run", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["rounds"] == 6
    assert err.splitlines()[-1] == "error: run/figures: File exists"


def test_a_comparison_shows_where_an_app_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path, NUMPY_SERVER.replace("rounds =", "1 / 0 #"), NUMPY_CLIENT)
    two = ("--strategy", "random", "--strategy", "cs-ucb-q")
    assert simulate("compare", "--app", app, *FEW, *two, "--processes", "1") == 1
    told = capsys.readouterr().err
    assert "Traceback (most recent call last)" in told
    assert "1 / 0" in told

"""The page of a run: what it reads of the run directory, and whom it answers."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from factories import round_record, small_model
from paths import ROOT
from waiting import PATIENCE_S, until

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.monitoring.http_server import HttpServer
from flower_scheduling.server.page.process import TOKEN_VARIABLE, page_process, page_token, page_url
from flower_scheduling.server.page.run_view import RunView
from flower_scheduling.server.page.saved import saved_page
from flower_scheduling.server.page.web import page_app, view_of
from flower_scheduling.server.runs.directory import RunDirectory, written_rounds
from flower_scheduling.server.transport.sockets import listen
from flower_scheduling.simulation.cli import main
from flower_scheduling.strategies import Explanation
from flower_scheduling.strategies.flower import Arm, RoundRecord

MODEL = small_model()
NAMES = ["a", "<script>alert(1)</script>", "c"]
CONFIG: dict[str, Any] = {
    "strategy": "cs-ucb-q",
    "num-selected": 2,
    "tau-max-s": 5.0,
    "rounds": 10,
    "target-accuracy": 0.9,
    "checkpoint-every": 0,
    "explain": True,
}


def record(number: int, **changes: Any) -> RoundRecord:
    value = np.array([0.5, 0.25, 0.125])
    explanation = Explanation("largest", "", {"mean": value, "queue": value * number})
    values: dict[str, Any] = {
        "time_s": 2.0 * number,
        "round_s": 2.0,
        "available": [0, 1],
        "names": NAMES[:2],
        "rtt_s": [0.5 * number, 2.0],
        "compute_s": [0.25, 1.5],
        "link_s": [0.125, 0.25],
        "explanation": explanation,
        "queue": value,
    }
    return round_record(number, **{**values, **changes})


class Run:
    """A run directory that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = RunDirectory(path, CONFIG)

    def write(self, *records: RoundRecord) -> None:
        for each in records:
            self.directory.write_round(each, MODEL)
        arms = [Arm(i, f"key{i}", 100 + i, name, 10 * (i + 1)) for i, name in enumerate(NAMES)]
        self.directory.note_arms(arms, [0.5, 0.25, 0.0])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    yield run
    run.directory.close()


def look(run: Run) -> dict[str, Any]:
    view = RunView(run.path)
    assert view.refresh()
    return view.state()


# --- what it shows ----------------------------------------------------------------------------


def test_clients_are_counted_as_the_rounds_say(run: Run) -> None:
    run.write(
        record(1),
        record(2),
        record(3, rtt_s=[3.0, None], reason=[None, "timeout"]),
        record(4, selected=[0], names=["a"], rtt_s=[1.0], reason=["error: x"],
               compute_s=[None], link_s=[None], absent=[1]),
    )  # fmt: skip
    clients = look(run)["clients"]
    assert clients["name"] == NAMES
    assert clients["num_examples"] == [10, 20, 30]
    assert clients["selected"] == [4, 3, 0]
    assert clients["share"] == [1.0, 1.0, 0.0], "of the rounds while they were there: 4, 3, 4"
    assert clients["mean_s"] == [1.5, 2.0, None]
    assert clients["deviation_s"] == [1.08012, 0.0, None]
    assert clients["compute_s"][:2] == [0.25, 1.5]
    assert clients["network_s"] == [1.125, 0.25, None]
    assert clients["failures"] == [{"error": 1}, {"timeout": 1}, {}]
    assert clients["floor"] == [0.5, 0.25, 0.0]
    assert clients["owed"] == [0.5, 0.25, 0.125]
    assert clients["last_round"] == [3, 2, 0]


def test_the_top_has_progress_accuracy_and_the_rest(run: Run) -> None:
    run.write(record(1, accuracy=0.5, loss=1.0), record(2), record(3, accuracy=0.25, loss=2.0))
    top = look(run)["top"]
    assert (top["round"], top["time_s"], top["rest_s"], top["steps"]) == (3, 6.0, 14.0, 3)
    assert (top["accuracy"], top["best_accuracy"], top["best_round"]) == (0.25, 0.5, 1)
    assert (top["connected"], top["available"], top["busy"]) == (None, 2, None)


def test_a_round_has_scores_cut_and_ties(run: Run) -> None:
    same = Explanation("smallest", "s", {"mean": np.ones(3), "bonus": np.array([0.0, 0, -np.inf])})
    run.write(record(1), record(2, explanation=same, available=[0, 1, 2], selected=[0, 2],
                                names=["a", "c"]))  # fmt: skip
    view = RunView(run.path)
    view.refresh()
    first, second = view.round(1), view.round(2)
    assert view.round(0) is None
    assert view.round(3) is None
    assert first is not None
    assert second is not None
    assert first["names"] == NAMES
    scores = first["scores"]
    assert (scores["rule"], scores["cut"], scores["tied"]) == ("largest", 0.5, [])
    assert scores["score"] == [1.0, 0.5, 0.25]
    assert scores["parts"] == {"mean": [0.5, 0.25, 0.125], "queue": [0.5, 0.25, 0.125]}
    assert scores["available"] == [True, True, False]
    scores = second["scores"]
    assert scores["score"] == [1.0, 1.0, "-inf"]
    assert (scores["cut"], scores["tied"]) == (1.0, [0, 1]), "one of two that were equal"


def test_scores_that_were_equal_before_they_were_recorded_are_tied(run: Run) -> None:
    mean = np.array([0.1, 0.7, 0.3])
    equal = Explanation("largest", "", {"mean": mean, "bonus": 0.9 - mean})
    run.write(record(1, explanation=equal, available=[0, 1, 2], selected=[1], names=["x"],
                     rtt_s=[1.0], reason=[None], compute_s=[None],
                     link_s=[None]))  # fmt: skip
    view = RunView(run.path)
    view.refresh()
    found = view.round(1)
    assert found is not None
    assert found["scores"]["tied"] == [0, 1, 2]
    assert found["scores"]["drawn"] == [0, 1, 2]


def test_a_lot_decides_among_those_alone_whom_the_tie_break_leaves_equal(run: Run) -> None:
    score = np.array([1.0, 1.0, 1.0])
    for number, (tie_break, selected, drawn) in enumerate(
        (([3.0, 2.0, 1.0], [0, 1], []), ([3.0, 2.0, 2.0], [0, 1], [1, 2])), start=1
    ):
        explanation = Explanation("largest", "", {"mean": score}, np.array(tie_break))
        run.write(record(number, explanation=explanation, available=[0, 1, 2], selected=selected))
        view = RunView(run.path)
        view.refresh()
        found = view.round(number)
        assert found is not None
        assert found["scores"]["tied"] == [0, 1, 2]
        assert found["scores"]["drawn"] == drawn


def test_parts_that_cancel_leave_no_rest(run: Run) -> None:
    third = np.array([1.0, 1.0, 1.0]) / 3
    explanation = Explanation("drawn", "", {"mean": third, "chance": -third * (1 + 1e-9)})
    run.write(record(1, explanation=explanation))
    view = RunView(run.path)
    view.refresh()
    found = view.round(1)
    assert found is not None
    assert found["scores"]["score"] == [0.0, 0.0, 0.0]


def test_a_run_directory_that_vanishes_is_told_and_one_that_comes_back_is_shown(run: Run) -> None:
    run.write(record(1))
    view = RunView(run.path)
    view.refresh()
    elsewhere = run.path.with_name("elsewhere")
    run.path.rename(elsewhere)
    assert view.refresh()
    assert view.state()["run"]["state"] == "gone"
    elsewhere.rename(run.path)
    assert view.refresh()
    assert view.state()["top"]["round"] == 1


def test_checkpoints_that_cannot_be_read_are_stale(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    directory = RunDirectory(run_dir, {**CONFIG, "checkpoint-every": 2})
    for number in range(1, 6):
        directory.write_round(record(number), MODEL)
    (run_dir / "checkpoint").write_text("no folder")
    view = RunView(run_dir)
    view.refresh()
    assert [alarm["kind"] for alarm in view.state()["alarms"]] == ["checkpoint-stale"]
    directory.close()


def test_it_follows_a_run_as_it_grows_and_sees_no_half_line(run: Run) -> None:
    view = RunView(run.path)
    view.refresh()
    assert view.state()["top"]["round"] == 0
    run.write(record(1))
    assert view.refresh()
    assert view.num_rounds == 1
    assert not view.refresh()
    with (run.path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"schema":1,"round":2')
    view.refresh()
    assert view.num_rounds == 1
    assert view.state()["run"]["damaged_line"] is None


def test_rounds_that_a_resumption_took_back_are_taken_back(run: Run) -> None:
    run.write(*map(record, range(1, 6)))
    view = RunView(run.path)
    view.refresh()
    run.directory.close()
    run.directory = RunDirectory.reopen(run.path, CONFIG, 3)
    run.write(*(record(number, rtt_s=[9.0, 9.0]) for number in range(4, 8)))
    view.refresh()
    assert view.num_rounds == 7
    assert view.state()["clients"]["selected"] == [7, 7, 0]
    assert view.state()["clients"]["mean_s"][1] == pytest.approx((3 * 2 + 4 * 9) / 7, rel=1e-5)


def test_a_damaged_line_ends_what_is_shown_and_is_told(run: Run) -> None:
    run.write(record(1))
    with (run.path / "rounds.jsonl").open("ab") as file:
        file.write(b"rubbish\n")
    state = look(run)
    assert (state["top"]["round"], state["run"]["damaged_line"]) == (1, 2)


def test_who_is_there_comes_from_the_server(run: Run) -> None:
    run.write(record(1))
    live = {"time": time.time(), "connected": [0, 1], "busy": [1], "opted_out": [],
            "newcomers": ["new"], "last_seen": {"2": 12.5}, "refused": 3}  # fmt: skip
    (run.path / "live.json").write_text(json.dumps(live))
    state = look(run)
    assert state["run"]["state"] == "running"
    assert state["clients"]["state"] == ["free", "busy", "away"]
    assert state["clients"]["last_seen"] == [None, None, 12.5]
    top = state["top"]
    assert (top["connected"], top["available"], top["busy"]) == (2, 1, 1)
    live["time"] = time.time() - 60
    (run.path / "live.json").write_text(json.dumps(live))
    assert look(run)["run"]["state"] == "silent"


def test_a_run_has_ended_when_it_has_its_results_and_not_if_it_was_resumed(run: Run) -> None:
    run.write(record(1))
    assert look(run)["run"]["state"] == "running"
    os.utime(run.path / "rounds.jsonl", (1, 1))
    assert look(run)["run"]["state"] == "silent"
    run.directory.write_summary({"suggested_tau_max_s": 7.0})
    state = look(run)
    assert (state["run"]["state"], state["top"]["suggested_tau_max_s"]) == ("ended", 7.0)
    os.utime(run.path / "config.toml", (time.time() + 5, time.time() + 5))
    assert look(run)["run"]["state"] == "silent"


def test_clients_that_are_there_before_their_first_round_are_listed(run: Run) -> None:
    live = {"time": time.time(), "connected": [0, 1, 3], "busy": [], "opted_out": []}
    (run.path / "live.json").write_text(json.dumps(live))
    assert look(run)["clients"]["state"] == ["free", "free", "away", "free"]


def test_a_run_directory_that_cannot_be_understood_is_told_and_looked_at_again(run: Run) -> None:
    run.write(record(1))
    arms = (run.path / "arms.json").read_text()
    with visit(run) as visitor:
        (run.path / "arms.json").write_text("[1, 2]")
        until(lambda: "error" in visitor.get("/state").json())
        (run.path / "arms.json").write_text(arms)
        until(lambda: "error" not in visitor.get("/state").json())
        assert visitor.get("/state").json()["top"]["round"] == 1


def test_regret_is_what_the_slowest_selected_costs_in_expectation(run: Run) -> None:
    truth = [
        {"since_round": 1, "expected_time_s": {"c": 2.0, NAMES[1]: 3.0, "a": 1.0}},
        {"since_round": 3, "expected_time_s": {"c": 2.0, NAMES[1]: 8.0, "a": 1.0}},
    ]
    (run.path / "truth.json").write_text(json.dumps(truth))
    everybody = {"available": [0, 1, 2]}
    run.write(record(1), record(2, **everybody), record(3, **everybody))
    regret = look(run)["regret"]
    assert regret == {"round": [1, 2, 3], "regret_s": [0.0, 1.0, 7.0]}


@pytest.mark.usefixtures("mnist")
def test_regret_knows_late_joiners_by_their_names(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = "--joins 1:5 --rounds 12 --target-accuracy 0 --availability 1 --fairness none"
    assert main([*flags.split(), "--num-selected", "9", "--run-dir", str(run_dir)]) == 0
    view = RunView(run_dir)
    view.refresh()
    state = view.state()
    (truth,) = json.loads((run_dir / "truth.json").read_text())
    expected_s = [truth["expected_time_s"][name] for name in state["clients"]["name"]]
    assert state["clients"]["name"][-1] == "client-1", "the last arm"
    total = 0.0
    for line in written_rounds(run_dir):
        best = sorted(expected_s[arm] for arm in line["available"])[len(line["selected"]) - 1]
        total += max(expected_s[arm] for arm in line["selected"]) - best
    assert state["regret"]["regret_s"][-1] == pytest.approx(total, rel=1e-5)


def test_many_rounds_share_points_and_columns(run: Run) -> None:
    lengths = np.random.default_rng(0).random(1500)
    run.write(
        *(
            record(
                number, round_s=length, selected=[number % 2], names=["x"], rtt_s=[length],
                reason=[None], compute_s=[None], link_s=[None],
            )
            for number, length in enumerate(lengths.tolist(), start=1)
        )
    )  # fmt: skip
    state = look(run)
    series = state["rounds"]
    assert len(series["round"]) == 500
    assert series["round"][:2] == [3, 6]
    assert series["mean_s"][0] == pytest.approx(lengths[:3].mean(), rel=1e-5)
    longest = int(lengths[:3].argmax())
    assert series["longest_round"][0] == longest + 1
    assert series["slowest"][0] == (longest + 1) % 2
    heat = state["heat"]
    assert (heat["width"], len(heat["round"]), heat["round"][:2]) == (16, 94, [1, 17])
    percent = {row[0]: values for row, values in zip(heat["rows"], heat["percent"], strict=True)}
    assert percent[2] == [0] * 94
    assert set(percent[0][:93]) == {50}


def test_a_thousand_clients_are_grouped_in_the_heat_map_from_fast_to_slow(run: Run) -> None:
    arms = list(range(1000))
    run.write(
        record(1, num_arms=1000, available=arms, selected=arms, names=["x"] * 1000,
               rtt_s=[1 + arm / 1000 for arm in reversed(arms)] * 1000,
               reason=[None] * 1000, compute_s=[None] * 1000, link_s=[None] * 1000,
               explanation=None, queue=None)
    )  # fmt: skip
    heat = look(run)["heat"]
    assert len(heat["rows"]) == 100
    assert heat["rows"][0] == list(range(999, 989, -1))


def test_nothing_yet_is_no_fault(tmp_path: Path) -> None:
    view = RunView(tmp_path / "not-yet")
    view.refresh()
    state = view.state()
    assert (state["run"]["exists"], state["top"]["round"]) == (False, 0)


# --- whom it answers --------------------------------------------------------------------------


@contextmanager
def visit(run: Run, host: str = "127.0.0.1", token: str | None = None) -> Iterator[httpx.Client]:
    """Serve the page as if it listened on `host`."""
    with (
        view_of(run.path) as live,
        HttpServer("page", "127.0.0.1:0", page_app(live, host, token)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE_S) as visitor,
    ):
        yield visitor


def test_it_is_read_only_and_lets_nothing_foreign_in(run: Run) -> None:
    run.write(record(1))
    with visit(run) as visitor:
        page = visitor.get("/")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["referrer-policy"] == "no-referrer"
        assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
        for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page.text):
            assert visitor.get(f"/{name}").status_code == 200, name
        for path in ("/static/../web.py", "/static/page.html", "/static/x", "/other", "/round/2"):
            assert visitor.get(path).status_code == 404, path
        for method in ("post", "put", "delete", "patch"):
            assert getattr(visitor, method)("/state").status_code == 405
        assert visitor.get("/round/1").json()["round"] == 1
        assert visitor.get("/round/-1").status_code == 404


def test_the_state_is_sent_once_and_small(run: Run) -> None:
    run.write(record(1))
    with visit(run) as visitor:
        first = visitor.get("/state")
        assert first.json()["top"]["round"] == 1
        tag = first.headers["etag"]
        assert first.headers["content-encoding"] == "gzip"
        assert visitor.get("/state", headers={"if-none-match": tag}).status_code == 304
        plain = visitor.get("/state", headers={"accept-encoding": "identity"})
        assert plain.json() == first.json()


def test_on_loopback_other_names_are_not_answered(run: Run) -> None:
    with visit(run) as visitor:
        assert visitor.get("/", headers={"host": "localhost:8501"}).status_code == 200
        assert visitor.get("/", headers={"host": "evil.example"}).status_code == 400


def test_elsewhere_only_who_knows_the_token_gets_in(run: Run) -> None:
    run.write(record(1))
    with visit(run, "192.0.2.7", "s3cret") as visitor:
        for path in ("/", "/state", "/events", "/static/page.js", "/round/1", "/saved"):
            assert visitor.get(path).status_code == 401, path
        assert visitor.get("/?token=wrong").status_code == 401
        assert visitor.get("/?token=").status_code == 401
        assert visitor.get("/?token=%ff%00").status_code == 401
        bearer = {"authorization": "Bearer s3cret"}
        assert visitor.get("/state", headers=bearer).status_code == 200
        entered = visitor.get("/?token=s3cret")
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert visitor.get("/").status_code == 200, "by the cookie"
        assert "s3cret" not in visitor.get("/").text


def test_pages_on_two_ports_of_a_host_do_not_share_a_cookie(run: Run) -> None:
    with visit(run, "192.0.2.7", "s3cret") as visitor:
        cookie = visitor.get("/?token=s3cret").headers["set-cookie"]
        assert cookie.startswith(f"page-token-{visitor.base_url.port}=")


def test_headers_without_end_are_cut_off(run: Run) -> None:
    with (
        visit(run) as visitor,
        socket.create_connection(("127.0.0.1", visitor.base_url.port or 0)) as link,
    ):
        link.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * (1 << 20))
        link.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):
            assert b"400" in link.recv(100)
            while link.recv(1 << 16):
                pass


def test_a_token_is_made_up_beyond_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert page_token("127.0.0.1:8501") is None
    assert page_token("[::1]:8501") is None
    made = page_token("0.0.0.0:8501")
    assert made is not None
    assert len(made) > 20
    assert page_token("0.0.0.0:8501") != made
    monkeypatch.setenv(TOKEN_VARIABLE, "mine")
    assert page_token("127.0.0.1:8501") == "mine"
    assert page_url("192.0.2.7:0", 77, "t") == "http://192.0.2.7:77/?token=t"
    assert page_url("0.0.0.0:0", 77, None) == f"http://{socket.gethostname()}:77/"


def test_it_is_served_from_a_process_of_its_own_that_ends_with_the_run(run: Run) -> None:
    told: list[str] = []
    with page_process(run.path, "127.0.0.1:0", told.append):
        (url,) = told
        with urllib.request.urlopen(f"{url}state", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["top"]["round"] == 0
        with urllib.request.urlopen(f"{url}events", timeout=PATIENCE_S) as events:
            first = events.readline()
            assert events.readline() == b"\n"
            run.write(record(1))
            assert events.readline() != first
        with urllib.request.urlopen(f"{url}state", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["top"]["round"] == 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}state", timeout=5)


def test_it_ends_when_the_process_that_started_it_was_killed(run: Run) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from flower_scheduling.server.page.process import page_process\n"
        "told = lambda url: print(url, flush=True)\n"
        "with page_process(pathlib.Path(sys.argv[1]), '127.0.0.1:0', told):\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        url = parent.stdout.readline().strip()
        urllib.request.urlopen(f"{url}state", timeout=PATIENCE_S).close()
        parent.kill()
        parent.wait()

    def has_ended() -> bool:
        try:
            urllib.request.urlopen(f"{url}state", timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            return True
        except TimeoutError:
            pass
        return False

    until(has_ended)


def test_an_address_in_use_is_told_before_anything_begins(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(ConfigError, match="the port not in use, nor below 1024"),
            page_process(run.path, address, print),
        ):
            pass


@pytest.mark.parametrize("address", ["8501", ":8501", "::1:8501", "127.0.0.1:http", "nowhere"])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        listen("page", address)


# --- as one file ------------------------------------------------------------------------------


def test_a_saved_page_needs_nothing_and_holds_every_round(run: Run) -> None:
    run.write(record(1), record(2))
    view = RunView(run.path)
    view.refresh()
    page = saved_page(view)
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"<(script|link|img)\b[^>]*(src|href)=\"(?!data:)", markup)
    found = re.search(r'<script type="application/json" id="saved">(.*?)</script>', page, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert data["state"]["top"]["round"] == 2
    assert set(data["rounds"]) == {"1", "2"}
    assert data["state"]["clients"]["name"] == NAMES
    assert "<script>alert" not in page, "a client's name is no markup"
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    (code,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in html.unescape(policy[1])


def test_the_chart_library_is_the_published_one() -> None:
    file = ROOT / "server/page/static/echarts.min.js"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest == "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
    assert len(gzip.compress(file.read_bytes())) < 400_000

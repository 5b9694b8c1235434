"""The page of a run: whom it answers, its process, and the page that is saved."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from page_runs import NAMES, Run, record
from paths import ROOT
from waiting import PATIENCE_S, until

from flower_scheduling.errors import ConfigError
from flower_scheduling.server.monitoring.http_server import HttpServer
from flower_scheduling.server.page.process import TOKEN_VARIABLE, page_process, page_token, page_url
from flower_scheduling.server.page.run_view import RunView
from flower_scheduling.server.page.saved import saved_page
from flower_scheduling.server.page.web import folder_of_runs, page_app, runs_app, view_of
from flower_scheduling.server.runs.directory import written_rounds
from flower_scheduling.server.transport.sockets import listen
from flower_scheduling.simulation.cli import main
from flower_scheduling.simulation.environments.recorded import read_record
from flower_scheduling.simulation.report.savings import estimate_savings


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    yield run
    run.directory.close()


def test_a_run_directory_that_cannot_be_understood_is_told_and_looked_at_again(run: Run) -> None:
    run.write(record(1))
    arms = (run.path / "arms.json").read_text()
    with visit(run) as visitor:
        (run.path / "arms.json").write_text("[1, 2]")
        until(lambda: "error" in visitor.get("/state").json())
        (run.path / "arms.json").write_text(arms)
        until(lambda: "error" not in visitor.get("/state").json())
        assert visitor.get("/state").json()["top"]["round"] == 1


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


@pytest.mark.usefixtures("mnist")
def test_what_random_selection_would_have_taken_agrees_with_the_report(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = "--strategy cs-ucb-q-adaptive --num-clients 6 --num-selected 2 --fairness equal:0.15"
    more = "--rounds 150 --target-accuracy 0 --eval-every 1000"
    assert main([*flags.split(), *more.split(), "--run-dir", str(run_dir)]) == 0
    view = RunView(run_dir)
    view.refresh()
    quick = view.state()["random"]
    replayed = estimate_savings(read_record(run_dir), 40)
    assert quick["ours_s"] == pytest.approx(replayed.recorded_s, rel=1e-4)
    assert replayed.other_s.low < quick["random_s"] < replayed.other_s.high
    assert quick["low_s"] < replayed.other_s.mean < quick["high_s"]


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
        assert visitor.get("/", headers={"host": "[::1]:8501"}).status_code == 200
        assert visitor.get("/", headers={"host": "evil.example"}).status_code == 400


def test_elsewhere_only_who_knows_the_token_gets_in(run: Run) -> None:
    run.write(record(1))
    with visit(run, "192.0.2.7", "s3cret") as visitor:
        parts = ("about", "client/0", "curves/1/2", "rounds.csv")
        for path in ("/", "/state", "/events", "/static/page.js", "/round/1", "/saved",
                     *(f"/{part}" for part in parts)):  # fmt: skip
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


def test_a_client_a_range_settings_and_all_rounds_are_there(run: Run) -> None:
    run.write(record(1), record(2))
    with visit(run) as visitor:
        assert visitor.get("/client/1").json()["rtt_s"] == [2.0, 2.0]
        assert visitor.get("/client/99").status_code == 404
        assert visitor.get("/curves/2/2").json()["rounds"]["round"] == [2]
        assert visitor.get("/about").json()["settings"]["strategy"] == "cs-ucb-q"
        table = visitor.get("/rounds.csv")
        assert table.headers["content-type"].startswith("text/csv")
        assert 'filename="run.csv"' in table.headers["content-disposition"]
        assert len(table.text.splitlines()) == 3


def test_news_of_the_end_says_so(run: Run) -> None:
    run.write(record(1))
    with visit(run) as visitor, visitor.stream("GET", "/events") as events:
        lines = events.iter_lines()
        assert not next(lines).endswith(" ended")
        run.directory.write_summary({})
        assert next(line for line in lines if line.endswith(" ended"))


@contextmanager
def visit_folder(
    path: Path, host: str = "127.0.0.1", token: str | None = None
) -> Iterator[httpx.Client]:
    """Serve the page of a folder of runs as if it listened on `host`."""
    listed, opened = folder_of_runs(path)
    with (
        listed, opened,
        HttpServer("page", "127.0.0.1:0", runs_app(listed, opened, host, token)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE_S) as visitor,
    ):  # fmt: skip
        yield visitor


def test_a_folder_of_runs_is_a_list_with_a_page_for_each(run: Run, tmp_path: Path) -> None:
    run.write(record(1))
    other = Run(tmp_path / "other")
    other.write(record(1), record(2))
    with visit_folder(tmp_path) as visitor:
        listed = visitor.get("/")
        assert "unsafe" not in listed.headers["content-security-policy"]
        for name in re.findall(r'(?:src|href)="(static/[^"]+)"', listed.text):
            assert visitor.get(f"/{name}").status_code == 200, name
        runs = {each["name"]: each for each in visitor.get("/state").json()["runs"]}
        assert set(runs) == {"run", "other"}
        page = f"/run/{runs['other']['id']}/"
        assert visitor.get(page).status_code == 200
        for part in ("static/page.js", "static/echarts.min.js", "about", "saved", "rounds.csv"):
            assert visitor.get(f"{page}{part}").status_code == 200, part
        assert visitor.get(f"{page}state").json()["top"]["round"] == 2
        assert visitor.get(f"{page}round/2").json()["round"] == 2
        other.write(record(3))
        until(lambda: visitor.get(f"{page}state").json()["top"]["round"] == 3)
        for path in ("/run/000000000000/", "/run/000000000000/state", "/round/1",
                     "/run/other/", f"{page}static/web.py"):  # fmt: skip
            assert visitor.get(path).status_code == 404, path
    other.directory.close()


def test_many_runs_of_a_folder_are_not_followed_at_a_time(tmp_path: Path) -> None:
    for number in range(10):
        each = Run(tmp_path / f"run-{number}")
        each.write(record(1))
        each.directory.close()
    before = threading.active_count()
    with visit_folder(tmp_path) as visitor:
        runs = visitor.get("/state").json()["runs"]
        for each in [*runs, *runs]:
            assert visitor.get(f"/run/{each['id']}/state").json()["top"]["round"] == 1
        following = [t for t in threading.enumerate() if t.name == "page"]
        assert len(following) == 8 + 2, "the last eight, the folder and the server"
    until(lambda: threading.active_count() <= before)


def test_runs_of_a_folder_want_the_token_too(run: Run, tmp_path: Path) -> None:
    run.write(record(1))
    with visit_folder(tmp_path, "192.0.2.7", "s3cret") as visitor:
        bearer = {"authorization": "Bearer s3cret"}
        (each,) = visitor.get("/state", headers=bearer).json()["runs"]
        for path in ("/", "/state", f"/run/{each['id']}/", f"/run/{each['id']}/state"):
            assert visitor.get(path).status_code == 401, path
            assert visitor.get(path, headers=bearer).status_code == 200, path


def test_watch_serves_a_folder_of_runs_until_it_is_stopped(run: Run, tmp_path: Path) -> None:
    run.write(record(1))
    code = "import sys; from flower_scheduling.simulation.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "watch", str(tmp_path), "--address", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    with process.stderr:
        found = re.search(r"page at (http://\S+)", process.stderr.readline())
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}state", timeout=PATIENCE_S) as answer:
            assert [each["name"] for each in json.load(answer)["runs"]] == ["run"]
        process.terminate()
        assert process.stderr.read().strip() == "stopped"
    assert process.wait(timeout=PATIENCE_S) == 0


def test_a_folder_of_runs_is_not_saved_as_one_page(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write(record(1))
    assert main(["watch", str(tmp_path), "--save", str(tmp_path / "page.html")]) == 2
    assert "must be of one run" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


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
    assert page_url("[::1]:0", 77, None) == "http://[::1]:77/"


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
            pytest.raises(ConfigError, match="the port is in use"),
            page_process(run.path, address, print),
        ):
            pass


def test_the_page_of_a_running_server_is_not_for_windows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.name", "nt")
        with (
            pytest.raises(ConfigError, match="for Linux and macOS: use flower-simulation watch"),
            page_process(run.path, "127.0.0.1:0", print),
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
    assert data["about"]["settings"]["strategy"] == "cs-ucb-q"
    assert data["clients"]["0"]["rtt_s"] == [0.5, 1.0]
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

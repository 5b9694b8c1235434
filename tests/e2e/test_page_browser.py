"""The page in a real browser: it follows a fleet, and is of use with eyes, keyboard and phone.

Pictures of it are left in ``artifacts/``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import round_record
from fleet_processes import Fleet
from flwr.app import Array, ArrayRecord
from paths import ROOT
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from waiting import PATIENCE_S, until

from flower_scheduling.server.monitoring.http_server import HttpServer
from flower_scheduling.server.page.web import page_app, view_of
from flower_scheduling.server.runs.directory import RunDirectory, written_rounds
from flower_scheduling.strategies import RoundContext, RoundOutcome, build_policy
from flower_scheduling.strategies.flower import Arm

pytestmark = pytest.mark.e2e
CHROMIUM = shutil.which("chromium")
PICTURES = ROOT / "artifacts"
expect.set_options(timeout=1e3 * PATIENCE_S)
WIDE = {"width": 1400, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs Chromium")
        pytest.skip("needs Chromium")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Visit:
    """A page that is open; whatever it asks for elsewhere, or complains of, is noted."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": WIDE, **options})
        self.context.set_default_timeout(1e3 * PATIENCE_S)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self._own = url.rstrip("/")
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(url)
        self.page.wait_for_selector("#client-table tbody tr", state="attached")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def round(self) -> int:
        return int(self.page.evaluate("Number(document.documentElement.dataset.round)"))

    def picture(self, name: str) -> None:
        """Take a picture of all of it; charts are drawn when they come into sight."""
        self.page.evaluate(
            "async () => { for (let y = 0; y < document.body.scrollHeight; y += 500) {"
            "scrollTo(0, y); await new Promise(done => setTimeout(done, 100)); } scrollTo(0, 0); }"
        )
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert self.foreign == []

    def _console(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self._own, "data:", "blob:")):
            self.foreign.append(request.url)


@contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    visit = Visit(browser, url, **options)
    yield visit
    visit.close()


@contextmanager
def served(run_dir: Path) -> Iterator[str]:
    with (
        view_of(run_dir) as live,
        HttpServer("page", "127.0.0.1:0", page_app(live, "127.0.0.1", None)) as server,
    ):
        yield f"http://127.0.0.1:{server.port}/"


def write_run(path: Path, num_arms: int, num_selected: int, num_rounds: int) -> None:
    """Write the run of a policy on made-up times, scores and all."""
    rng = np.random.default_rng(5)
    names = [f"client-{arm + 1}" for arm in range(num_arms)]
    speed_s = rng.uniform(0.2, 3.0, num_arms)
    floors = np.full(num_arms, 0.25 * num_selected / num_arms)
    policy = build_policy(
        "cs-ucb-q", num_arms=num_arms, num_selected=num_selected, tau_max_s=5.0, beta=0.1,
        rng=np.random.default_rng(1), min_participation=floors,
    )  # fmt: skip
    directory = RunDirectory(
        path,
        {"strategy": "cs-ucb-q", "num-selected": num_selected, "tau-max-s": 5.0,
         "rounds": num_rounds, "explain": True, "num-clients": num_arms},
    )  # fmt: skip
    model = ArrayRecord({"w": Array(np.zeros(1, dtype=np.float32))})
    time_s = 0.0
    for number in range(1, num_rounds + 1):
        available = rng.random(num_arms) < 0.9
        selection = policy.ask(RoundContext(number, available))
        explanation = policy.explain(selection)
        taken_s = speed_s * rng.uniform(0.5, 1.5, num_arms)
        policy.tell(selection, RoundOutcome(taken_s, np.ones(num_arms, dtype=np.bool_)))
        arms = selection.positions.tolist()
        rtt_s = taken_s[arms].tolist()
        time_s += max(rtt_s)
        directory.write_round(
            round_record(
                round=number, time_s=time_s, round_s=max(rtt_s), num_arms=num_arms,
                available=np.flatnonzero(available).tolist(), selected=arms,
                names=[names[arm] for arm in arms], rtt_s=rtt_s,
                reason=[None] * len(arms), compute_s=[time / 2 for time in rtt_s],
                link_s=[time / 4 for time in rtt_s], stepped=True,
                accuracy=1 - 1 / (1 + number / 50) if number % 10 == 0 else None, loss=1.0,
                explanation=explanation, queue=policy.virtual_queue.copy(),  # type: ignore[attr-defined]
            ),
            model,
        )  # fmt: skip
    rows = [Arm(arm, f"key{arm}", arm, name, 100) for arm, name in enumerate(names)]
    directory.note_arms(rows, floors.tolist())
    directory.write_summary({"suggested_tau_max_s": 4.0})
    directory.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "finished"
    write_run(path, num_arms=30, num_selected=4, num_rounds=300)
    return path


@pytest.mark.slow
def test_it_follows_a_running_fleet_whatever_its_clients_are_called(
    browser: Browser, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path)
    run_dir = tmp_path / "run"
    hostile = "<script>alert(1)</script>"
    try:
        port = fleet.server(
            "--run-dir run --num-selected 2 --tau-max-s 5 --rounds 100000 --eval-every 5 "
            "--min-clients 3 --page 127.0.0.1:0"
        )
        for number in range(2):
            fleet.client(port, number, 3, "--link rayleigh --distance-m 400")
        fleet.start(
            "hostile", "client.cli",
            f"--server 127.0.0.1:{port} --name {hostile} --partition-id 2 --num-partitions 3 "
            "--link rayleigh --distance-m 400",
        )  # fmt: skip
        fleet.wait_for_rounds(3)
        url = re.search(r"page at (http://127\.0\.0\.1:\d+/)", fleet.log("server"))
        assert url is not None, fleet.log("server")
        with visiting(browser, url[1]) as visit:
            expect(visit.page.locator("#state")).to_have_text("running")
            expect(visit.page.locator("#client-table")).to_contain_text(hostile)
            assert visit.page.locator("script:not([src])").count() == 0
            for _ in range(3):
                known = len(written_rounds(run_dir))
                until(lambda known=known: visit.page.wait_for_timeout(20) or visit.round() >= known)
            visit.page.fill("#client-search", hostile)
            visit.page.click("#client-table tbody th button")
            assert hostile in visit.text("#why-sentence")
            expect(visit.page.locator("#t-clients")).to_have_text("3 of 3")
            visit.page.fill("#client-search", "")
            visit.picture("page-running-fleet")
            visit.page.screenshot(path=PICTURES / "page-fleet.png")
            fleet.processes["dev-0"].kill()
            expect(visit.page.locator("#client-table tbody tr.away")).to_have_count(1)
            expect(visit.page.locator("#client-table tbody tr.away")).to_contain_text("ago")
    finally:
        fleet.end()


def test_the_table_is_sorted_searched_and_kept_in_focus(browser: Browser, finished: Path) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        page, rows = visit.page, visit.page.locator("#client-table tbody tr")
        assert rows.count() == 30
        times = [float(re.match(r"[\d.]+", text)[0]) for text in  # type: ignore[index]
                 rows.locator("td:nth-child(4)").all_inner_texts() if "ms" not in text]  # fmt: skip
        assert times == sorted(times, reverse=True), "the slowest first"
        heading = page.get_by_role("button", name="client", exact=True)
        heading.focus()
        page.keyboard.press("Enter")
        assert rows.locator("th").all_inner_texts() == [f"client-{i}" for i in range(1, 31)]
        assert (
            page.locator("#client-table thead th").first.get_attribute("aria-sort") == "ascending"
        )
        page.keyboard.press("Enter")
        assert rows.locator("th").first.inner_text() == "client-30"
        page.fill("#client-search", "CLIENT-2")
        assert rows.count() == 11
        assert visit.text("#client-count") == "11 of 30 clients"
        page.fill("#client-search", "nobody")
        assert rows.count() == 0


def test_why_a_client_was_picked_in_a_round(browser: Browser, finished: Path) -> None:
    line = written_rounds(finished)[11]
    picked = line["selected"][0]
    missed = next(arm for arm in line["available"] if arm not in line["selected"])
    gone = next(arm for arm in range(30) if arm not in line["available"])
    with served(finished) as url, visiting(browser, url) as visit:
        page = visit.page
        page.fill("#why-round", "12")
        page.press("#why-round", "Enter")
        expect(page.locator("#why-summary")).to_contain_text("Round 12: 4 of")
        assert not page.is_checked("#why-follow")
        marked = page.locator("#why-table tr.picked th").all_inner_texts()
        assert sorted(marked) == sorted(f"client-{arm + 1}" for arm in line["selected"])
        page.fill("#why-client", f"client-{picked + 1}")
        sentence = visit.text("#why-sentence")
        assert f"client-{picked + 1} was picked in round 12: rank" in sentence
        numbers = re.search(r"with (\S+) = mean (\S+) \+ bonus (\S+) \+ queue ([\d.]+)", sentence)
        assert numbers is not None, sentence
        total, *parts = (float(number) for number in numbers.groups())
        assert sum(parts) == pytest.approx(total, abs=0.01)
        page.screenshot(path=PICTURES / "page-why.png")
        page.fill("#why-client", f"client-{missed + 1}")
        assert "was not picked in round 12" in visit.text("#why-sentence")
        page.fill("#why-client", f"client-{gone + 1}")
        assert visit.text("#why-sentence") == f"client-{gone + 1} was not available in round 12."
        page.click("#why-after")
        expect(page.locator("#why-summary")).to_contain_text("Round 13:")
        page.check("#why-follow")
        expect(page.locator("#why-summary")).to_contain_text("Round 300:")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("page-light", {}),
        ("page-dark", {"color_scheme": "dark"}),
        ("page-phone", {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2,
                        "is_mobile": True, "has_touch": True}),
    ],
)  # fmt: skip
def test_it_fits_every_screen(
    browser: Browser, finished: Path, name: str, options: dict[str, Any]
) -> None:
    with served(finished) as url, visiting(browser, url, **options) as visit:
        visit.picture(name)
        width = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0, "nothing sticks out"
        back = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(map(int, re.findall(r"\d+", back))) < 200
        assert dark == ("color_scheme" in options)
        drawn = visit.page.evaluate("document.querySelectorAll('.chart canvas').length")
        assert drawn >= 6


def test_every_chart_and_control_has_words_for_who_cannot_see(
    browser: Browser, finished: Path
) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        for chart in visit.page.locator("[role=img]:visible").all():
            assert len(chart.get_attribute("aria-label") or "") > 10
        unnamed = visit.page.evaluate(
            "[...document.querySelectorAll('button, input, a')].filter(e => !e.hidden &&"
            "!(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
        )
        assert unnamed == []
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.slow
def test_a_saved_page_works_without_its_server(
    browser: Browser, finished: Path, tmp_path: Path
) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        with visit.page.expect_download() as download:
            visit.page.click("#save")
        file = tmp_path / "saved.html"
        download.value.save_as(file)
    with visiting(browser, file.as_uri()) as visit:
        assert visit.text("#state") == "saved: ended"
        visit.page.fill("#why-round", "12")
        visit.page.press("#why-round", "Enter")
        expect(visit.page.locator("#why-summary")).to_contain_text("Round 12: 4 of")
        assert visit.page.locator("#client-table tbody tr").count() == 30


@pytest.mark.slow
def test_a_thousand_clients_and_five_thousand_rounds_open_at_once(
    browser: Browser, tmp_path: Path
) -> None:
    write_run(tmp_path / "large", num_arms=1000, num_selected=50, num_rounds=5000)
    with served(tmp_path / "large") as url, visiting(browser, url) as visit:
        page = visit.page
        assert page.locator("#client-table tbody tr").count() == 100
        visit.picture("page-thousand-clients")
        page.evaluate(
            """async () => {
                  const search = document.getElementById("client-search");
                  const click = (text) => [...document.querySelectorAll("thead button")]
                    .find(e => e.textContent.startsWith(text)).click();
                  const steps = [() => click("share"), () => click("client"), () => Why.go(2500),
                    () => { search.value = "9"; search.dispatchEvent(new Event("input")); },
                    () => Clients.show(), () => Charts.update()];
                  for (const step of steps) {
                    step();
                    await new Promise(done => setTimeout(done, 20));
                  }
                }"""
        )
        expect(page.locator("#why-summary")).to_contain_text("Round 2500: 50 of")

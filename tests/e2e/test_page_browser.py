"""The page in a real browser: it follows a fleet, and is of use with eyes, keyboard and phone.

Pictures of it are left in ``artifacts/``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import round_record, small_model
from fleet_processes import Fleet
from flwr.app import Array, ArrayRecord
from paths import ROOT
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from waiting import PATIENCE_S, until

from flower_scheduling.server.monitoring.http_server import HttpServer
from flower_scheduling.server.page.web import folder_of_runs, page_app, runs_app, view_of
from flower_scheduling.server.runs.directory import RunDirectory, written_rounds
from flower_scheduling.simulation.cli import main
from flower_scheduling.strategies import Explanation, RoundContext, RoundOutcome, build_policy
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

    def __init__(
        self, browser: Browser, url: str, ready: str = "#client-table tbody tr", **options: Any
    ) -> None:
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
        self.page.wait_for_selector(ready, state="attached")

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


def write_run(
    path: Path, num_arms: int, num_selected: int, num_rounds: int, strategy: str = "cs-ucb-q"
) -> None:
    """Write the run of a policy on made-up times, scores and all."""
    rng = np.random.default_rng(5)
    names = [f"client-{arm + 1}" for arm in range(num_arms)]
    speed_s = rng.uniform(0.2, 3.0, num_arms)
    floors = np.full(num_arms, 0.25 * num_selected / num_arms)
    keeps = {"beta": 0.1, "min_participation": floors} if strategy == "cs-ucb-q" else {}
    policy = build_policy(
        strategy, num_arms=num_arms, num_selected=num_selected, tau_max_s=5.0,
        rng=np.random.default_rng(1), **keeps,
    )  # fmt: skip
    directory = RunDirectory(
        path,
        {"strategy": strategy, "num-selected": num_selected, "tau-max-s": 5.0,
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
                explanation=explanation, queue=policy.virtual_queue.copy() if keeps else None,  # type: ignore[attr-defined]
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
            until(lambda: visit.page.wait_for_timeout(50) or visit.round() > 40)
            assert visit.text("#saving-value") != "–"
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
        page.wait_for_selector("#c-history canvas")
        page.locator("#why").screenshot(path=PICTURES / "page-why.png")
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
            expect(chart).to_have_attribute("aria-label", re.compile(".{11}"), timeout=60_000)
        unnamed = visit.page.evaluate(
            "[...document.querySelectorAll('button, input, a')].filter(e => !e.hidden &&"
            "!(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
        )
        assert unnamed == []
        visit.page.keyboard.press("Tab")
        assert visit.page.evaluate("document.activeElement.className") == "skip"


# --- what was wrong once ----------------------------------------------------------------------


def small_run(path: Path, parts: dict[str, list[float]], rule: str = "smallest") -> None:
    """Write a run of one round, in which two of the clients were picked by made-up scores."""
    scores = {name: np.array(values) for name, values in parts.items()}
    count = len(next(iter(scores.values())))
    ahead = 1 if rule == "smallest" else -1
    selected = np.argsort(ahead * np.sum(list(scores.values()), axis=0), kind="stable")[:2].tolist()
    names = [f"client-{arm + 1}" for arm in range(count)]
    with RunDirectory(path, {"strategy": "x", "num-selected": 2, "tau-max-s": 5.0, "rounds": 3,
                             "explain": True}) as directory:  # fmt: skip
        for number in (1, 2, 3):
            directory.write_round(
                round_record(
                    number, selected, names=[names[arm] for arm in selected], num_arms=count,
                    available=list(range(count)), time_s=1.25 * number, round_s=1.25,
                    explanation=Explanation(rule, "s", scores),  # type: ignore[arg-type]
                    accuracy=0.5, loss=1.0,
                ),
                small_model(),
            )  # fmt: skip
        directory.note_arms([Arm(i, f"k{i}", i, name) for i, name in enumerate(names)], None)
        directory.write_summary({})


CHART = """const chart = echarts.getInstanceByDom(document.getElementById(ID));
  const shapes = chart.getZr().storage.getDisplayList();"""


def test_the_cut_is_drawn_where_it_is_and_not_rounded(browser: Browser, tmp_path: Path) -> None:
    small_run(tmp_path / "run", {"time": [0.0052, 0.0069, 0.0088, 0.0094]})
    with served(tmp_path / "run") as url, visiting(browser, url) as visit:
        visit.page.wait_for_selector("#why-chart canvas")
        script = CHART.replace("ID", '"why-chart"')
        drawn, wanted = visit.page.evaluate(
            f"""() => {{ {script}
                  const line = shapes.find(e => e.type === "ec-line");
                  return [line.shape.x1, chart.convertToPixel({{xAxisIndex: 0}}, 0.0069)]; }}"""
        )
        assert drawn == pytest.approx(wanted, abs=1.0)


def test_parts_of_both_signs_show_their_sum_and_an_outlier_flattens_none(
    browser: Browser, tmp_path: Path
) -> None:
    time_s, queue = [0.3, 0.2, 0.3, 0.4, 0.5, 900.0], [-0.25, -0.1, -0.1, -0.1, -0.1, 0.0]
    small_run(tmp_path / "run", {"time": time_s, "queue": queue})
    with served(tmp_path / "run") as url, visiting(browser, url) as visit:
        visit.page.wait_for_selector("#why-chart canvas")
        marks, most = visit.page.evaluate(
            """() => { const chart = echarts.getInstanceByDom(document.getElementById("why-chart"));
                 const option = chart.getOption();
                 return [option.series.find(s => s.name === "score").data.map(d => d.real ?? null),
                         chart.getModel().getComponent("xAxis").axis.scale.getExtent()[1]]; }"""
        )
        sums = sorted(a + b for a, b in zip(time_s, queue, strict=True))
        assert sorted(marks) == pytest.approx(sums, rel=1e-4)
        assert 0.5 <= most < 5, "the others can be seen"
        assert "cut off" in visit.text("#why-note")


def test_axes_have_titles_that_are_not_cut_off(browser: Browser, finished: Path) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        visit.picture("page-axes")
        time = "virtual time [s]"
        for chart, title in (("c-accuracy", time), ("c-rounds", time), ("c-shares", "client"),
                             ("c-heat", "round"), ("why-chart", "score")):  # fmt: skip
            script = CHART.replace("ID", f'"{chart}"')
            found = visit.page.evaluate(
                f"""() => {{ {script}
                    const text = shapes.find(e => e.style?.text === {title!r});
                    if (!text) return null;
                    const box = text.getBoundingRect().clone();
                    if (text.transform) box.applyTransform(text.transform);
                    return [box.y, box.y + box.height, chart.getHeight()]; }}"""
            )
            assert found is not None, f"{chart} has no title {title}"
            top, bottom, height = found
            assert top > 0
            assert bottom <= height, f"{chart}: {title} ends at {bottom} of {height}"


def test_box_and_sentence_name_the_same_round_whatever_comes_when(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    write_run(path, num_arms=6, num_selected=2, num_rounds=40)
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(b"".join(lines[:20]))
    with served(path) as url, visiting(browser, url) as visit:
        page = visit.page
        seen = page.evaluate_handle(
            """() => { const seen = [], box = document.getElementById("why-round");
                 const note = () => seen.push([box.value, document.getElementById("why-summary").textContent]);
                 new MutationObserver(note).observe(document.getElementById("why-summary"), {childList: true, characterData: true, subtree: true});
                 return seen; }"""  # noqa: E501
        )
        page.focus("#why-round")
        for number in range(20, 40):
            with (path / "rounds.jsonl").open("ab") as file:
                file.write(lines[number])
            if number == 30:
                page.click("#why-before")
            page.wait_for_timeout(60)
        expect(page.locator("html")).to_have_attribute("data-round", "40")
        page.check("#why-follow")
        expect(page.locator("#why-summary")).to_contain_text("Round 40:")
        pairs = seen.json_value()
        assert len(pairs) > 2
        for box, sentence in pairs:
            assert sentence.startswith(f"Round {box}:"), (box, sentence)
        page.fill("#why-round", "7")
        assert not page.is_checked("#why-follow"), "who types is not overtaken"


def test_paper_has_every_chart_dark_on_white(browser: Browser, finished: Path) -> None:
    with served(finished) as url, visiting(browser, url, color_scheme="dark") as visit:
        visit.page.wait_for_selector("#c-accuracy canvas")
        visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        colours = visit.page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".chart")]
                 .filter(e => e.checkVisibility()).map(e => {
                   const paper = e.querySelectorAll("canvas.paper");
                   const data = paper[0].getContext("2d").getImageData(0, 0, paper[0].width, paper[0].height).data;
                   const seen = new Set();
                   for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
                   return [e.id, [paper.length, data[0], seen.size]]; }))"""  # noqa: E501
        )
        assert {"c-accuracy", "c-rounds", "c-shares", "c-heat", "why-chart"} <= set(colours)
        for chart, (count, corner, different) in colours.items():
            assert (count, corner) == (1, 255), chart
            assert different > 20, f"{chart} is drawn"
        visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert visit.page.locator("canvas.paper").count() == 0
        visit.page.emulate_media(media="print")
        pdf = visit.page.pdf(format="A4", print_background=True)
        (PICTURES / "page-printed.pdf").write_bytes(pdf)


@pytest.mark.parametrize("ended", [True, False])
def test_the_last_state_stays_when_the_server_is_gone_and_says_why(
    browser: Browser, tmp_path: Path, ended: bool
) -> None:
    path = tmp_path / "the run"
    write_run(path, num_arms=6, num_selected=2, num_rounds=30)
    if not ended:
        (path / "summary.json").unlink()
    with ExitStack() as stack:
        url = stack.enter_context(served(path))
        visit = Visit(browser, url)
        stack.close()
        notice = visit.page.locator("#notice")
        expect(notice).to_be_visible()
        text = notice.inner_text()
        assert f"flower-simulation watch '{path}'" in text
        if ended:
            assert text.startswith("The run has ended, and its page with it.")
            assert visit.text("#state") == "ended"
        else:
            assert "does not answer" in text
            assert visit.text("#state") == "connection lost"
        assert visit.page.locator("#client-table tbody tr").count() == 6
        visit.context.close()


def test_before_the_first_round_nothing_is_counted(browser: Browser, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", {"strategy": "random", "num-selected": 2})
    with run, served(tmp_path / "run") as url, visiting(browser, url, ready="#t-clients") as visit:
        expect(visit.page.locator("#name")).to_have_text("run")
        assert visit.text("#t-clients") == "–"
        assert "0 of 0" not in visit.text("body")
        assert "undefined" not in visit.text("body")


# --- buffered mode ----------------------------------------------------------------------------


@pytest.mark.usefixtures("mnist")
def test_every_channel_that_was_given_away_is_explained(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "buffered"
    flags = "--mode buffered --num-clients 8 --num-selected 4 --rounds 60 --fairness none"
    more = "--strategy cs-ucb-q-adaptive --target-accuracy 0 --eval-every 20"
    assert main([*flags.split(), *more.split(), "--run-dir", str(path)]) == 0
    picks = written_rounds(path)[29]["picks"]
    assert len(picks) > 1
    with served(path) as url, visiting(browser, url) as visit:
        page, chips = visit.page, visit.page.locator("#why-picks button")
        page.fill("#why-round", "30")
        page.press("#why-round", "Enter")
        expect(page.locator("#why-summary")).to_contain_text("Step 30:")
        expect(chips).to_have_count(len(picks))
        for place, each in enumerate(picks):
            chips.nth(place).click()
            sentence = visit.text("#why-sentence")
            assert sentence.startswith(f"client-{each['arm'] + 1} got the free channel at")
            rank = re.search(r"rank (\d+) of (\d+)", sentence)
            row = page.locator("#why-table tr.picked td").first.inner_text()
            assert rank is None or row == f"{rank[1]} ✓", "the same rank in the table"
            assert page.locator("#why-table tr.picked th").all_inner_texts() == [
                f"client-{each['arm'] + 1}"
            ]
        page.select_option("#channel-span", "600")
        visit.picture("page-buffered")
        page.locator("#channels").screenshot(path=PICTURES / "page-channels.png")
        script = CHART.replace("ID", '"c-channels"')
        bars, overlaps, at = page.evaluate(
            f"""() => {{ {script}
              const data = chart.getOption().series[0].data.map(d => d.value);
              const rows = new Map();
              for (const v of data) rows.set(v[1], [...(rows.get(v[1]) ?? []), v]);
              let overlaps = 0;
              for (const row of rows.values()) {{
                row.sort((a, b) => a[0] - b[0]);
                for (let i = 1; i < row.length; i++) overlaps += row[i][0] < row[i - 1][2] - 1e-6;
              }}
              const last = data.at(-8);
              const box = chart.getDom().getBoundingClientRect();
              const [x, y] = chart.convertToPixel("grid", [(last[0] + last[2]) / 2, last[1]]);
              return [rows.size, overlaps, [box.x + x, box.y + scrollY + y]]; }}"""
        )
        assert (bars, overlaps) == (4, 0)
        page.evaluate("y => scrollTo(0, y - 300)", at[1])
        page.mouse.click(at[0], at[1] - page.evaluate("scrollY"))
        expect(page.locator("#why-sentence")).to_contain_text("got the free channel at")
        assert not page.is_checked("#why-follow")


# --- curves, tables, several runs -------------------------------------------------------------


def test_curves_are_zoomed_with_the_mouse_smoothed_and_turned_to_rounds(
    browser: Browser, finished: Path
) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        page = visit.page
        page.wait_for_selector("#c-accuracy canvas")
        box = page.locator("#c-accuracy").bounding_box()
        assert box is not None
        page.check("input[name=x][value=round]", force=True)
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 2, steps=4)
        page.mouse.up()
        expect(page.locator("#range-text")).to_contain_text("rounds")
        first, last = map(int, re.findall(r"\d+", visit.text("#range-text")))
        assert 100 < first < last < 260
        for chart in ("c-accuracy", "c-rounds"):
            extent = page.evaluate(
                "id => echarts.getInstanceByDom(document.getElementById(id))"
                ".getModel().getComponent('xAxis').axis.scale.getExtent()", chart
            )  # fmt: skip
            assert extent == [first, last], chart
        page.click("#whole")
        expect(page.locator("#range-text")).to_have_text("")
        page.evaluate("s => { smooth.value = s; smooth.dispatchEvent(new Event('input')); }", 0.9)
        names = page.evaluate(
            "echarts.getInstanceByDom(document.getElementById('c-accuracy'))"
            ".getOption().series.map(s => s.name)"
        )
        assert names == ["as measured", "smoothed"]


def test_tables_are_downloaded(browser: Browser, finished: Path) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        for button, heading, count in (
            ("#clients-csv", "name,state,", 31),
            ("#rounds-csv", "round,time_s,", 301),
            ("figure:has(#c-accuracy) button", "round,time_s,accuracy,loss", 31),
        ):
            with visit.page.expect_download() as download:
                visit.page.click(button)
            lines = Path(download.value.path()).read_text().splitlines()
            assert lines[0].startswith(heading)
            assert len(lines) == count
        visit.page.click("#settings summary")
        expect(visit.page.locator("#settings-table")).to_contain_text("cs-ucb-q")


def test_a_client_has_its_history(browser: Browser, finished: Path) -> None:
    with served(finished) as url, visiting(browser, url) as visit:
        visit.page.fill("#client-search", "client-7")
        visit.page.click("#client-table tbody th button")
        expect(visit.page.locator("#history-title")).to_have_text("client-7")
        assert "share" in visit.text("#history-text")
        visit.page.wait_for_selector("#c-history canvas")
        label = visit.page.get_attribute("#c-history", "aria-label") or ""
        lines = [line for line in written_rounds(finished) if 6 in line["selected"]]
        assert label == f"History of client-7: {len(lines)} results, 0 failures."


def test_runs_of_a_folder_are_overlaid_and_compared(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    for number, strategy in enumerate(("random", "cs-ucb-q", "cs-ucb-adaptive"), start=1):
        write_run(folder / f"run-{number}", 12, 3, 150 + 50 * number, strategy)
    listed, opened = folder_of_runs(folder)
    with (
        listed, opened,
        HttpServer("page", "127.0.0.1:0", runs_app(listed, opened, "127.0.0.1", None)) as server,
    ):  # fmt: skip
        url = f"http://127.0.0.1:{server.port}/"
        with visiting(browser, url, ready="#runs-table tbody tr") as visit:
            page = visit.page
            series = (
                "echarts.getInstanceByDom(document.getElementById('c-compare'))"
                ".getOption().series.map(s => [s.name, s.lineStyle.color, s.lineStyle.type])"
            )
            page.wait_for_selector("#c-compare canvas")
            drawn = page.evaluate(series)
            assert sorted(name for name, *_ in drawn) == ["run-1", "run-2", "run-3"]
            assert len({tuple(style) for _, *style in drawn}) == 3
            visit.picture("page-runs")
            page.locator("tr", has_text="run-2").locator("input").uncheck()
            assert sorted(name for name, *_ in page.evaluate(series)) == ["run-1", "run-3"]
            page.fill("#target", "0.6")
            row = page.locator("#runs-table tbody tr", has_text="run-3")
            expect(row).to_contain_text("min")
            page.fill("#target", "0.99")
            expect(row).to_contain_text("not reached")
            expect(page.locator("#differ-table")).to_contain_text("rounds")
            row.locator("a").click()
            expect(page.locator("#t-round")).to_have_text("300 of 300")
            page.click("#all-runs")
            expect(page.locator("#what")).to_have_text("3 runs")


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
        visit.page.click("#settings summary")
        visit.page.click("#log summary")
        expect(visit.page.locator("#settings-table")).to_contain_text("cs-ucb-q")
        assert not visit.page.is_visible("#rounds-csv"), "which only a server has"
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
                    () => Clients.show(), () => Curves.update()];
                  for (const step of steps) {
                    step();
                    await new Promise(done => setTimeout(done, 20));
                  }
                }"""
        )
        expect(page.locator("#why-summary")).to_contain_text("Round 2500: 50 of")

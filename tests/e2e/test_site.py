"""The documentation's site: it builds without warnings, and opens as a folder without a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from paths import ROOT
from playwright.sync_api import Page, expect, sync_playwright
from waiting import PATIENCE_S, RUN_S

import flower_scheduling
from flower_scheduling.strategies import testing

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LOADED = {"src", "srcset", "poster", "data"}
"""Attributes whose target a browser loads by itself; ``href`` in a ``link`` as well."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    commands = (
        ["make", "links"],
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
    )
    for command in commands:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """What a browser loads to show a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = LOADED | ({"href", "imagesrcset"} if tag == "link" else set())
        self.found += [value or "" for name, value in attrs if name in named]


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        for target in Loads(page.read_text(encoding="utf-8")).found:
            assert not re.match(r"(?:[a-z]+:)?//", target), (page, target)
            path = re.split(r"[?#]", target)[0]
            start = site if page.name == "404.html" else page.parent
            assert (start / path.removeprefix("/")).exists(), (page, target)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", text), sheet


def test_the_reference_has_every_public_name(site: Path) -> None:
    pages = (site / "reference/api").glob("*.html")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    shown = set(re.findall(r'id="flower_scheduling\.[\w.]*?(\w+)"', text))
    assert set(flower_scheduling.__all__) <= shown
    public = {name for name, value in vars(testing).items() if defined_there(name, value)}
    assert public
    assert public <= shown


def defined_there(name: str, value: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", "") == testing.__name__


@pytest.fixture
def opened(site: Path) -> Iterator[Page]:
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs Chromium")
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        context = browser.new_context(offline=True)
        context.set_default_timeout(1e3 * PATIENCE_S)
        page = context.new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "index.html").as_uri())
        yield page
        browser.close()
        own = ("file://", "data:", "blob:", "about:")
        assert [url for url in asked if not url.startswith(own)] == []
        assert errors == []


def test_a_folder_opens_and_can_be_searched_without_a_server(opened: Page) -> None:
    page = opened
    expect.set_options(timeout=1e3 * PATIENCE_S)
    expect(page.locator("h1")).to_have_text(re.compile("Flower client scheduling"))
    page.get_by_role("link", name="Glossary").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("Glossary"))
    page.locator("input.md-search__input").fill("undeliverable")
    found = page.locator(".md-search-result__link").first
    expect(found).to_have_attribute("href", re.compile("failures"))

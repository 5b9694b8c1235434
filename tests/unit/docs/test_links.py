"""Links of all pages lead somewhere, and every page of the site is in its navigation."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import anchors, links, pages
from paths import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith("https://"):
            continue
        assert ":" not in target, f"{target}: neither https nor relative"
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def test_pages_of_the_site_do_not_lead_out_of_it() -> None:
    for page in DOCS.rglob("*.md"):
        for target in links(page):
            if not target.startswith("https://") and target.partition("#")[0]:
                assert (page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS)


def test_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    entries = [line for line in text.splitlines() if not line.strip().startswith("#")]
    named = [line.split()[-1] for line in entries if line.endswith(".md")]
    files = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(named) == files

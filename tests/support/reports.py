"""Hand-made run directories, and reports as a browser reads them."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np


def a_round(number: int, rtt_s: dict[int, float | None], **changes: Any) -> dict[str, Any]:
    """Return a line of ``rounds.jsonl``: who was selected and took how long, None: a timeout."""
    count = changes.get("num_arms", 4)
    times = list(rtt_s.values())
    length = max([5.0 if time is None else time for time in times], default=0.0)
    return {
        "schema": 1,
        "round": number,
        "time_s": 6.0 * number,
        "round_s": length,
        "num_arms": count,
        "num_available": count,
        "available": list(range(count)),
        "absent": [],
        "selected": list(rtt_s),
        "rtt_s": times,
        "completed": [time is not None for time in times],
        "reason": ["timeout" if time is None else None for time in times],
        "compute_s": [None] * len(times),
        "link_s": [None] * len(times),
        "stepped": True,
        "no_step": None,
        "accuracy": None,
        "loss": None,
        "wall": {"time_s": 0.1},
        **changes,
    }


def a_run(
    path: Path,
    lines: list[dict[str, Any]],
    *,
    names: tuple[str, ...] = ("a", "b", "c", "d"),
    floor: float | None = None,
    **config: Any,
) -> Path:
    path.mkdir()
    settings = {"strategy": "cs-ucb-adaptive", "num-selected": 2, "tau-max-s": 5.0, **config}
    toml = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (path / "config.toml").write_text("\n".join(toml) + "\n")
    arms = [
        {"index": index, "name": name, "num_examples": 60, "floor": floor}
        for index, name in enumerate(names)
    ]
    (path / "arms.json").write_text(json.dumps(arms))
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def steady(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return rounds in which the first two of four clients, the fast ones, are selected mostly."""
    rng = np.random.default_rng(seed)
    means = (0.2, 0.3, 1.0, 2.0)
    rounds = []
    for number in range(1, count + 1):
        pair = (0, 1) if number % 4 else (2, 3)
        rounds.append(a_round(number, {a: float(means[a] * rng.gamma(9, 1 / 9)) for a in pair}))
    return rounds


class Page(HTMLParser):
    """Tags, attributes and text of a report."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\N{NO-BREAK SPACE}", " ")

    @property
    def figures(self) -> list[str]:
        return [
            base64.b64decode((attrs["src"] or "").partition(",")[2]).decode()
            for tag, attrs in self.tags
            if tag == "img"
        ]


def check_self_contained(text: str, page: Page) -> None:
    assert not re.search(r"https?://", text)
    for tag, attrs in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "svg", "b")
        assert not [name for name in attrs if name.startswith("on")]
        assert (attrs.get("src") or "data:").startswith("data:")
        assert (attrs.get("href") or "#").startswith("#")
        if tag == "img":
            assert len(attrs["alt"] or "") > 20
    (policy,) = (a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert (policy or "").startswith("default-src 'none'; img-src data:;")
    for svg in page.figures:
        assert "currentColor" in svg
        assert "#010203" not in svg
        for element in ET.fromstring(svg).iter():
            assert element.tag.rpartition("}")[2] not in ("script", "foreignObject", "a")
            for name, value in element.attrib.items():
                if name.endswith("href"):
                    assert value.startswith(("#", "data:image/png"))

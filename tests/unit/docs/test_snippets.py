"""Python of the pages: it parses, imports what exists, and passes arguments that exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
from documentation import pages
from paths import ROOT

from flower_scheduling import ScheduledStrategy
from flower_scheduling.strategies import POLICIES

KNOWN = set(inspect.signature(ScheduledStrategy).parameters)
KNOWN |= {name for spec in POLICIES.values() for name in spec.parameters()}
SNIPPETS = [
    pytest.param(snippet, id=f"{page.relative_to(ROOT)}-{number}")
    for page in pages()
    for number, snippet in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_python_of_the_pages_could_run(snippet: str) -> None:
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ScheduledStrategy":
            assert {word.arg for word in node.keywords} <= KNOWN


def test_the_reader_of_rounds_counts_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs/reference/rounds.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    folder = tmp_path / "runs" / "wind"
    folder.mkdir(parents=True)
    lines = [{"reason": ["timeout", None]}, {"reason": ["timeout", "client error: ValueError"]}]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    assert capsys.readouterr().out == "Counter({'timeout': 2, 'client error': 1})\n"

"""Pages that list what code can produce have an entry for each, and no other."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from factories import round_record, small_model
from paths import ROOT

from flower_scheduling import reasons
from flower_scheduling.client.wire.frames import Refusal
from flower_scheduling.columns import When, columns
from flower_scheduling.server.monitoring.alarms import KINDS
from flower_scheduling.server.runs.directory import RunDirectory
from flower_scheduling.strategies.flower import ArmResult, Pick

FAILURES = (ROOT / "docs/how-to/failures.md").read_text(encoding="utf-8")
WATCH = (ROOT / "docs/how-to/page.md").read_text(encoding="utf-8")
ROUNDS = (ROOT / "docs/reference/rounds.md").read_text(encoding="utf-8")
PACKAGES = ("client", "flower_scheduling", "server", "simulation", "strategies")


def section(text: str, heading: str) -> str:
    """Return what a page says under a heading of the second level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_reason_of_a_client_has_an_entry() -> None:
    entries = re.findall(r"^### `(.*)`\n\n(.*)$", section(FAILURES, "A client fails"), re.MULTILINE)
    assert [kind for kind, _ in entries] == list(reasons.FAILURES)
    for kind, text in entries:
        meaning = reasons.FAILURES[kind].rpartition("a late one: ")[2]
        assert meaning.lower() in " ".join(text.lower().split()), kind


def test_every_reason_of_a_round_has_an_entry() -> None:
    found = section(FAILURES, "A round changes nothing")
    entries = dict(re.findall(r"^### `(.*)`\n\n(.*)$", found, re.MULTILINE))
    assert list(entries) == list(reasons.NO_STEP)
    for kind, text in entries.items():
        assert reasons.NO_STEP[kind].lower() in text.lower(), kind


def test_every_alarm_is_described_and_has_advice() -> None:
    for text in (section(FAILURES, "Alarms"), section(WATCH, "Alarms")):
        assert set(re.findall(r"^\| `(.*?)` \|", text, re.MULTILINE)) == set(KINDS)


def test_every_refusal_of_a_client_has_an_entry() -> None:
    codes = {value for name, value in vars(Refusal).items() if name.isupper()}
    found = section(FAILURES, "A client is refused")
    assert set(re.findall(r"^\| `(.*?)` \|", found, re.MULTILINE)) == codes


def trees() -> list[tuple[Path, ast.Module]]:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in files]


def kinds_of(value: ast.expr) -> list[ast.expr]:
    """Return what a reason may begin with: names, constants, or what is computed elsewhere."""
    if isinstance(value, ast.IfExp):
        return [*kinds_of(value.body), *kinds_of(value.orelse)]
    if isinstance(value, ast.BoolOp):
        return [kind for each in value.values for kind in kinds_of(each)]
    if isinstance(value, ast.Tuple):
        return [kind for each in value.elts for kind in kinds_of(each)]
    if isinstance(value, ast.JoinedStr):
        first = value.values[0]
        return [first.value if isinstance(first, ast.FormattedValue) else first]
    return [value]


def reasons_in(node: ast.AST) -> list[ast.expr]:
    """Return what code gives as the reason of a failure, or of a round without a step."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InvalidReplyError":
        return kinds_of(node.args[0])
    if isinstance(node, ast.keyword) and node.arg == "failure":
        return kinds_of(node.value)
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Attribute) and target.attr in ("failure", "no_step")
        for targets in node.targets
        for target in (targets.elts if isinstance(targets, ast.Tuple) else [targets])
    ):
        return kinds_of(node.value)
    return []


def test_reasons_come_from_the_one_list() -> None:
    """Whatever the code calls a failure, or a round without a step, is a word of reasons.py."""
    words = {name for name, value in vars(reasons).items() if isinstance(value, str)}
    seen: set[str] = set()
    for file, tree in trees():
        for given in (kind for node in ast.walk(tree) for kind in reasons_in(node)):
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                pytest.fail(f"{file}:{given.lineno}: {given.value!r} is no name of reasons.py")
            if isinstance(given, ast.Name) and given.id.isupper():
                assert given.id in words, f"{file}:{given.lineno}: {given.id}"
                seen.add(given.id)
    assert {"TIMEOUT", "LOST", "CLIENT_ERROR", "QUORUM", "NOBODY_AVAILABLE"} <= seen


def _optional_values() -> dict[str, object]:
    """Return a value of each column that lines have only where there is any."""
    samples = (1, 1.0, "text", [1], {"name": 1.0})
    return {
        name: next(value for value in samples if column.is_valid(value))
        for name, column in columns(ArmResult).items()
        if column.when is When.IF_ANY
    }


def test_every_field_of_a_round_is_described(tmp_path: Path) -> None:
    """The fields of the page are those of lines that a run directory has written."""
    everything = {
        **{"diverged": True, "deadline_s": 1.0, "late": [2], "left_out": [1]},
        **{"client_metrics": {"loss": 1.0}, "server_metrics": {"f1": 0.5}},
        **{"sent_bytes": 1, "received_bytes": 1},
        "late_updates": [ArmResult(2, "c", 9.0, staleness=1)],
        "picks": [Pick(2, 0.5)],
    }
    written: set[str] = set()
    for buffered in (False, True):
        folder = tmp_path / str(buffered)
        with RunDirectory(folder, {}) as directory:
            record = round_record(buffered=buffered, **everything)
            results = [replace(each, **_optional_values()) for each in record.results]
            directory.write_round(replace(record, results=results), small_model())
        written |= json.loads((folder / "rounds.jsonl").read_text()).keys()
    described = re.findall(r"^\| `(\w+)` \|", ROUNDS, re.MULTILINE)
    assert set(described) == written
    assert len(described) == len(written)


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "draw_saving", ROOT / "docs/saving/draw_saving.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_saving_is_drawn_of_its_data() -> None:
    draw = drawing()
    folder = ROOT / "docs/saving"
    data = json.loads((folder / draw.DATA).read_text())
    picture = (folder / draw.PICTURE).read_text(encoding="utf-8")
    texts = {"".join(found.itertext()).strip() for found in ET.fromstring(picture).iter()}
    assert draw.digest(data) in texts, "drawn of other data: make saving, or draw_saving.py alone"
    for strategy in (draw.RANDOM, draw.OURS):
        assert f"{draw.seconds_to_target(data, strategy):.0f} s" in texts
    lines = draw.draw(data).axes[1].lines
    assert [sorted(run["round_s"]) for run in data["runs"].values()] == [
        list(line.get_ydata()) for line in lines
    ]
    assert all(len(run["round_s"]) == draw.ROUNDS for run in data["runs"].values())


def test_the_readme_says_what_the_picture_shows() -> None:
    draw = drawing()
    data = json.loads((ROOT / "docs/saving" / draw.DATA).read_text())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"**{draw.sentence(data)}** with random selection" in readme


def test_the_citation_names_the_paper_and_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{cited["version"]}"' in project
    assert f'name = "{cited["title"]}"' in project
    assert [paper["doi"] for paper in cited["references"]] == ["10.1109/TWC.2020.3008091"]

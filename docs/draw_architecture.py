"""Draw docs/architecture.svg from the imports of the code and the contracts of pyproject.toml.

``python docs/draw_architecture.py`` writes the picture; with ``--check`` it compares and exits
with 1 if the picture differs, as ``make lint`` does. Both need the links of ``make links``.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "architecture.svg"
NAME = "flower_scheduling"
PACKAGES = {  # from the top down: a package calls those below it
    "simulation": "virtual time, studies, the paper, the benchmark, reports",
    "server": "a run: its settings, transport, files, and what watches it",
    "strategies": "policies, comparators and the adapter to Flower",
    "client": "a device: its data and model, its link, the wire",
}
# Room and what happens there. An import must join each room to one that the way passed before.
WAYS = {
    "a round-trip time": (
        "#1f6fb2",
        [
            (
                "server.transport",
                "stamps a request when it is written and its reply when it arrives",
            ),
            ("strategies.flower", "takes an exchange for one arm's result of the round"),
            ("strategies", "is told the outcome of the round, all arms at once"),
            ("strategies.policies", "averages it; the next index and selection follow from it"),
            ("strategies.flower", "has it recorded with the round"),
            ("server.runs", "writes the round as a line of the run directory"),
            ("server.page", "shows it while the run goes on"),
        ],
    ),
    "a model": (
        "#c2571a",
        [
            ("server", "makes the initial model"),
            ("strategies.flower", "sends it to the clients that the policy has selected"),
            ("server.transport", "serialises it once and writes it as frames"),
            ("client.wire", "is the format: frames of a stream, arrays of a record"),
            ("client", "receives it and runs the ClientApp"),
            ("client.learning", "trains it on the client's share of the data"),
            ("client.wire", "carries it back"),
            ("strategies.flower", "checks it and has Flower's strategy aggregate it"),
            ("server.runs", "writes it: the last one, the best one, the checkpoint"),
        ],
    ),
}
WIDTH, MARGIN, BOX, GAP, LINE = 1240, 20, 190, 12, 15
ARROWS = 300  # right of the packages


class Imports:
    """Rooms of the code and which of them import which."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        graph = grimp.build_graph(NAME, cache_dir=None)
        self._packages = {m for m in graph.modules if graph.find_children(m)}
        self.modules: dict[str, list[str]] = {}
        self.calls: dict[str, set[str]] = {}
        for module in sorted(graph.modules - {NAME}):
            room = self._room(module)
            self.calls.setdefault(room, set())
            if module not in self._packages:
                self.modules.setdefault(room, []).append(module.rpartition(".")[2])
            for other in graph.find_modules_directly_imported_by(module) - {NAME}:
                self.calls[room] |= {self._room(other)} - {room}

    def _room(self, module: str) -> str:
        parts = module.split(".")
        inner = ".".join(parts[:3])
        return ".".join(parts[1:3] if inner in self._packages else parts[1:2])

    def joined(self, one: str, other: str) -> bool:
        """Tell whether an import joins two rooms, this way or that."""
        return other in self.calls[one] or one in self.calls[other]

    def rooms(self, package: str) -> list[str]:
        """Return the rooms of a package, its top first."""
        return [room for room in self.calls if room.split(".")[0] == package]

    def entered(self, package: str, below: str) -> list[str]:
        """Return the rooms of a package that rooms of another import."""
        found = set().union(*(self.calls[room] for room in self.rooms(package)))
        return sorted(room for room in found if room.split(".")[0] == below)


def check_ways(imports: Imports) -> None:
    """End the program if a way passes a room that is not there, or a wall without a door."""
    for name, (_, steps) in WAYS.items():
        passed: list[str] = []
        for room, _ in steps:
            if room not in imports.calls:
                sys.exit(f"the way of {name} passes {room}, which is not there any more")
            if passed and not any(imports.joined(room, other) for other in passed):
                sys.exit(f"the way of {name} passes {room}: no import joins it to {passed}")
            passed.append(room)


def text(x: float, y: float, words: str, size: int = 11, **style: str) -> str:
    """Return words at a place."""
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{more}>{escape(words)}</text>'


def lines_of(room: str, imports: Imports) -> list[str]:
    """Return what stands in a room's box: for the top of a package its modules, then its calls."""
    package = room.split(".")[0]
    called = [
        c.removeprefix(f"{package}.") if c != package else "(top)" for c in imports.calls[room]
    ]
    words = [f"calls {', '.join(sorted(called))}"] if called else []
    if room == package:
        words.insert(0, ", ".join(imports.modules[room]))
    return [line for each in words for line in textwrap.wrap(each, 34)]


def badges(room: str, x: float, y: float) -> Iterator[str]:
    """Draw the numbers of the steps that pass a room."""
    at = x + BOX - 12
    for color, steps in reversed(WAYS.values()):
        for number in reversed([n for n, (where, _) in enumerate(steps, 1) if where == room]):
            yield f'<circle cx="{at:g}" cy="{y + 14:g}" r="9" fill="{color}"/>'
            yield text(at, y + 18, str(number), fill="#fff", text_anchor="middle")
            at -= 21


def draw(imports: Imports, contracts: list[str]) -> str:
    """Return the picture."""
    parts: list[str] = []
    columns = (WIDTH - 2 * MARGIN - ARROWS) // (BOX + GAP)
    y, tops = float(MARGIN), {}
    for package, summary in PACKAGES.items():
        top = y
        parts.append(text(MARGIN + 10, y + 22, f"{package}/", 16, font_weight="bold"))
        parts.append(text(MARGIN + 120, y + 22, summary, 12, fill="#555"))
        y += 34
        rooms = imports.rooms(package)
        for begin in range(0, len(rooms), columns):
            row = rooms[begin : begin + columns]
            height = max(len(lines_of(room, imports)) for room in row) * LINE + 34
            for place, room in enumerate(row):
                x = MARGIN + 10 + place * (BOX + GAP)
                parts.append(
                    f'<rect x="{x}" y="{y:g}" width="{BOX}" height="{height}" rx="4" '
                    'fill="#fff" stroke="#888"/>'
                )
                label = room.partition(".")[2] or "(top)"
                parts.append(text(x + 8, y + 19, label, 13, font_weight="bold"))
                parts += badges(room, x, y)
                for count, line in enumerate(lines_of(room, imports)):
                    parts.append(text(x + 8, y + 38 + count * LINE, line, 10, fill="#444"))
            y += height + GAP
        tops[package] = (top, y)
        frame = f'width="{WIDTH - 2 * MARGIN - ARROWS}" height="{y - top:g}"'
        parts.insert(0, f'<rect x="{MARGIN}" y="{top:g}" {frame} rx="6" fill="#f2f4f6"/>')
        y += 40
    parts += arrows(imports, tops)
    for name, (color, steps) in WAYS.items():
        parts.append(text(MARGIN, y, f"The way of {name}", 14, font_weight="bold", fill=color))
        for number, (room, what) in enumerate(steps, 1):
            y += 18
            parts.append(text(MARGIN + 10, y, f"{number}  {room} {what}", 12))
        y += 32
    parts.append(text(MARGIN, y, "What import-linter holds", 14, font_weight="bold"))
    for contract in contracts:
        y += 18
        parts.append(text(MARGIN + 10, y, contract, 12))
    box = f'viewBox="0 0 {WIDTH} {y + MARGIN:g}" width="{WIDTH}"'
    head = '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">',
            f'<defs>{head}<path d="M0,0 L8,4 L0,8 z" fill="#666"/></marker></defs>',
            '<rect width="100%" height="100%" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def arrows(imports: Imports, tops: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Draw from each package to those below that it imports, and name the rooms it enters."""
    right = WIDTH - MARGIN - ARROWS
    names = list(PACKAGES)
    for above, package in enumerate(names):
        for distance, below in enumerate(names[above + 1 :]):
            entered = imports.entered(package, below)
            if not entered:
                continue
            begin, end = tops[package][1] - 14 - 12 * distance, tops[below][0] + 12 + 12 * above
            x = right + 22 + 34 * distance
            path = f"M{right},{begin:g} H{x} V{end:g} H{right + 4}"
            yield f'<path d="{path}" fill="none" stroke="#666" marker-end="url(#head)"/>'
    for above, package in enumerate(names):
        y = tops[package][0] + 16
        for below in names[above + 1 :]:
            entered = [r.partition(".")[2] or "(top)" for r in imports.entered(package, below)]
            if entered:
                for line in textwrap.wrap(f"{below}: {', '.join(entered)}", 26):
                    yield text(right + 110, y, line, 10, fill="#444")
                    y += 13


def main() -> int:
    """Write the picture, or compare it."""
    imports = Imports(ROOT / ".links")
    check_ways(imports)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [each["name"] for each in project["tool"]["importlinter"]["contracts"]]
    picture = draw(imports, contracts)
    if "--check" not in sys.argv:
        PICTURE.write_text(picture)
    elif not PICTURE.exists() or PICTURE.read_text() != picture:
        print(
            "docs/architecture.svg is out of date: run docs/draw_architecture.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run public Flower apps, as they are, scheduled by this project; write the page about it.

    python tests/compatibility/suite.py FOLDER_OF_APPS [--app NAME]... [--out FILE]

Each app is copied, gets one line that wraps its strategy (``on_path/compatibility_wrap.py``), and
runs on stock Flower alone, on our streams, in Flower's Ray engine and, some of them, on a stock
SuperLink. A cell works if the rounds changed the model and the results have the keys, shapes,
types and metrics that stock Flower's have. Exits with 1 if a cell fails that stock Flower can run.

``FOLDER_OF_APPS/stand_ins``, if there is one, holds modules that stand for data sets which cannot
be fetched; it comes first on the import path.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import tomli_w

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from flower_scheduling.errors import SuperLinkError  # noqa: E402
from flower_scheduling.server.runtimes.processes import (  # noqa: E402
    end_group,
    find_program,
    start_program,
)
from flower_scheduling.server.runtimes.superlink import (  # noqa: E402
    SuperLink,
    supernode_command,
)

CELL_S: Final = 600.0
"""Longest time of a cell, a guard against hangs: on an idle machine most take ten seconds."""
ROUNDS: Final = 2
CLIENTS: Final = 3
NUM_SELECTED: Final = 2
TAU_MAX_S: Final = 300
LIBRARIES: Final = (
    *("flwr", "numpy", "torch", "torchvision", "pytorch-lightning", "scikit-learn", "pandas"),
    *("xgboost", "opacus", "transformers", "ray"),
)
"""Packages whose versions head the table."""


@dataclass(frozen=True)
class Needs:
    """What an app needs beside the defaults.

    Attributes
    ----------
    clients, num_selected : int
        Size of its fleet and of its rounds.
    config : mapping
        Values of its run configuration, smaller than its own.
    on_superlink : bool
        Whether it is one of those that run on a stock SuperLink, too.
    prepare : callable, optional
        Makes what it would fetch from the network, in its folder; returns more configuration.
    """

    clients: int = CLIENTS
    num_selected: int = NUM_SELECTED
    config: Mapping[str, Any] = field(default_factory=dict)
    on_superlink: bool = False
    prepare: Callable[[Path], Mapping[str, Any]] | None = None


def tiny_bert(folder: Path) -> Mapping[str, Any]:
    """Write a language model of a few kilobytes, instead of one from the network."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    target = folder / "tiny-bert"
    target.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bad", "film", "good"]
    (target / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(target / "vocab.txt")).save_pretrained(target)
    config = BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(target)
    return {"model-name": str(target)}


NEEDS: Final[Mapping[str, Needs]] = {
    "embedded-devices": Needs(on_superlink=True),
    "fl-dp-sa": Needs(  # of its own numbers, which want 35 clients, its strategy keeps four
        clients=5, num_selected=4, config={"num-shares": 3, "reconstruction-threshold": 2}
    ),
    # As a demonstration it lets a client drop out, and gives all others 15 s to answer.
    "flower-secure-aggregation": Needs(clients=6, num_selected=5, config={"is-demo": False}),
    "quickstart-huggingface": Needs(prepare=tiny_bert),
    "quickstart-numpy": Needs(on_superlink=True),
    "quickstart-pytorch": Needs(on_superlink=True),
    "quickstart-xgboost": Needs(on_superlink=True),
}


class AppError(Exception):
    """A cell that did not come to its end, with the reason."""


@dataclass(frozen=True)
class App:
    """A Flower app of the folder."""

    source: Path

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.source.name

    @property
    def needs(self) -> Needs:
        """What it needs beside the defaults."""
        return NEEDS.get(self.name, Needs())

    def copy(
        self, target: Path, result: Path, num_selected: int, mode: str = "rounds"
    ) -> tuple[Path, str, str]:
        """Copy it and wrap its strategy; return the folder, its ServerApp and its ClientApp."""
        shutil.copytree(self.source, target, copy_function=shutil.copyfile)
        for path in (target, *target.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        project = tomllib.loads((target / "pyproject.toml").read_text())
        flower = project["tool"]["flwr"]["app"]
        config = flower.setdefault("config", {})
        for key in config:
            if "rounds" in key and "local" not in key:
                config[key] = ROUNDS
        config.update(self.needs.config)
        if self.needs.prepare is not None:
            config.update(self.needs.prepare(target))
        (target / "pyproject.toml").write_text(tomli_w.dumps(project))
        server, client = flower["components"]["serverapp"], flower["components"]["clientapp"]
        line = f"compatibility_wrap.wrap({str(result)!r}, {num_selected}, {TAU_MAX_S}, {mode!r})"
        with (target / (server.partition(":")[0].replace(".", "/") + ".py")).open("a") as file:
            file.write(f"\n\nimport compatibility_wrap\n\n{line}\n")
        return target, server, client


def apps_of(folder: Path) -> list[App]:
    """Return the Flower apps of a folder, by name."""
    return [App(file.parent) for file in sorted(folder.glob("*/pyproject.toml"))]


class Bench:
    """Where cells run: folders, environment and long-lived servers of Flower's."""

    def __init__(self, folder: Path, apps: Path) -> None:
        self.folder = folder
        stand_ins = folder / "stand_ins"
        if (apps / "stand_ins").is_dir():
            shutil.copytree(apps / "stand_ins", stand_ins, copy_function=shutil.copyfile)
            stand_ins.chmod(0o700)
            if (stand_ins / "datasets.py").exists():
                (stand_ins / "datasets.py").rename(stand_ins / "folder_datasets.py")
                for file in (HERE / "stand_ins").iterdir():
                    shutil.copyfile(file, stand_ins / file.name)
        path = [stand_ins, HERE / "on_path", ROOT]
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, path))
        os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
        os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["RAY_ADDRESS"] = "local"  # no cluster that happens to run on this machine
        os.environ["COLUMNS"] = "200"
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = "1"
        programs = str(Path(find_program("flwr")).parent)
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
        self._closing = ExitStack()
        self._engine: SuperLink | None = None
        self._superlink: SuperLink | None = None
        self._count = 0

    def __enter__(self) -> Bench:
        """Nothing is started before it is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what was started."""
        self._closing.close()

    def new_folder(self) -> Path:
        """Return a folder for a cell."""
        self._count += 1
        folder = self.folder / f"cell-{self._count}"
        folder.mkdir()
        return folder

    @property
    def engine(self) -> SuperLink:
        """A SuperLink that runs apps in Flower's Ray engine."""
        if self._engine is None:
            options = ["--simulation", "--disable-runtime-dependency-installation"]
            os.chdir(self.folder)  # where apps leave what they save
            link = SuperLink(self.folder / "engine", "127.0.0.1:0", options=options)
            self._engine = self._closing.enter_context(link)
        return self._engine

    @property
    def superlink(self) -> SuperLink:
        """A SuperLink with stock SuperNodes."""
        if self._superlink is None:
            os.chdir(self.folder)
            link = SuperLink(self.folder / "superlink", "127.0.0.1:0")
            self._superlink = self._closing.enter_context(link)
            for number in range(CLIENTS):
                command = supernode_command(link.address, node_config={}, port=free_port())
                command[-1] = node_config(number, CLIENTS)
                home = {"FLWR_HOME": str(self.folder / f"node-{number}")}
                self.start(command, self.folder, f"node-{number}", home)
        return self._superlink

    def start(
        self, command: Sequence[str], folder: Path, name: str, more: Mapping[str, str] = {}
    ) -> subprocess.Popen[bytes]:
        """Start a program that ends with the bench; its output goes to a file."""
        os.chdir(folder)
        with (folder / f"{name}.log").open("wb") as log:
            process = start_program(command, {**os.environ, **more}, log)
        self._closing.callback(end_group, process, 5)
        return process


def node_config(number: int, of: int) -> str:
    """Return what a client's operator says of it: its share of the data, by number and by path."""
    return f"partition-id={number} num-partitions={of} dataset-path='part_{number}'"


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- the runtimes ---------------------------------------------------------------------------------


def on_superlink(bench: Bench, app: App, num_selected: int, *, engine: bool) -> list[Any]:
    """Run an app on a SuperLink, with Flower's Ray engine or stock SuperNodes."""
    folder = bench.new_folder()
    result = folder / "result.jsonl"
    copied, _, _ = app.copy(folder / app.name, result, num_selected)
    link = bench.engine if engine else bench.superlink
    options = ["--federation-config", f"num-supernodes={app.needs.clients}"] if engine else []
    lines: list[str] = []
    try:
        link.follow(link.submit(copied, {}, options), lines.append)
    except SuperLinkError as error:
        raise AppError(reason(lines) or str(error)) from None
    finally:
        (folder / "run.log").write_text("\n".join(lines))
    return read(result)


def on_streams(bench: Bench, app: App, num_selected: int, mode: str = "rounds") -> list[Any]:
    """Run an app with our server and clients."""
    folder = bench.new_folder()
    result = folder / "result.jsonl"
    copied, server_app, client_app = app.copy(folder / app.name, result, num_selected, mode)
    log = copied / "server.log"
    with ExitStack() as stack:

        def start(name: str, package: str, *arguments: str) -> subprocess.Popen[bytes]:
            program = package.partition(".")[0]  # as the installed programs start
            code = f"from flower_scheduling.{package}.entry import {program}; {program}()"
            command = [sys.executable, "-c", code, *arguments]
            process = bench.start(command, copied, name)
            stack.callback(end_group, process, 5)
            return process

        server = start("server", "server.cli", "--app", server_app, "--address", "127.0.0.1:0")
        while not (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text())):
            if server.poll() is not None:
                raise AppError(reason(log.read_text().splitlines()))
            time.sleep(0.1)
        of = app.needs.clients
        clients = {
            name: start(
                name, "client", "--app", client_app, "--name", name,
                "--server", f"127.0.0.1:{found[1]}", "--node-config", node_config(number, of),
            )
            for number, name in enumerate(f"dev-{number}" for number in range(of))
        }  # fmt: skip
        while (code := server.poll()) is None:
            for name, client in clients.items():
                if client.poll():
                    lines = (copied / f"{name}.log").read_text().splitlines()
                    raise AppError(f"a client: {reason(lines) or client.poll()}")
            time.sleep(0.1)
        if code:
            lines = log.read_text().splitlines()
            raise AppError(reason(lines) or f"ended with exit code {code}")
    return read(result)


def read(result: Path) -> list[Any]:
    """Return what an app's runs came to."""
    if not result.exists():
        raise AppError("ended without an error and without a result")
    return [json.loads(line) for line in result.read_text().splitlines()]


_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_FAULT: Final = re.compile(
    r"^(?:error: |\w*(?:Error|Exception|Exit): |\w+(?:\.\w+)+(?:Error|Exception): ).*"
)


def reason(lines: Sequence[str]) -> str:
    """Return the last line that names an error."""
    plain = [_COLOUR.sub("", line).strip() for line in lines]
    plain = [re.sub(r"^(?:ERROR|WARNING|INFO) *: *", "", line) for line in plain]
    found = [line for line in plain if _FAULT.match(line)]
    return found[-1] if found else ""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise in the block when its time is over."""

    def over(*_: object) -> None:
        raise AppError(f"did not end within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What an app came to on a runtime."""

    results: list[Any]
    fault: str = ""
    is_stocks_own: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether a mode was refused before the first round, by a sentence that names it."""
        return "mode = 'buffered': " in self.fault

    @property
    def worked(self) -> str:
        """How it worked."""
        return "works" if all(run["scheduled"] for run in self.results) else "as it is"

    @classmethod
    def run(cls, label: str, work: Callable[[], list[Any]]) -> Cell:
        """Run a cell within its time."""
        began = time.monotonic()
        try:
            with within(CELL_S):
                cell = cls(work())
        except AppError as error:
            cell = cls([], str(error))
        if not cell.fault and not all(run["changed"] for run in cell.results):
            cell = cls(cell.results, "no round changed the model")
        took = time.monotonic() - began
        print(f"{label:38} {took:5.0f} s  {cell.fault}", file=sys.stderr, flush=True)
        return cell


METRICS: Final = {
    "train": "training metrics",
    "clients": "evaluation on clients",
    "server": "evaluation on the server",
}


def lost(cell: Cell, stock: Cell) -> str:
    """Return what a cell lacks that stock Flower has; empty: nothing."""
    if cell.fault:
        return cell.fault
    if len(cell.results) != len(stock.results):
        return f"{len(cell.results)} of {len(stock.results)} runs"
    missing = []
    for got, want in zip(cell.results, stock.results, strict=True):
        ours, theirs = got["arrays"], want["arrays"]
        if keys := sorted(k for k in ours | theirs if not _alike(ours.get(k), theirs.get(k))):
            missing.append(f"the model's {', '.join(keys)}")
        for kind, name in METRICS.items():
            if rounds := [r for r in want[kind] if want[kind][r] != got[kind].get(r)]:
                missing.append(f"{name} of round {', '.join(rounds)}")
    return "; ".join(missing)


def _alike(ours: Any, theirs: Any) -> bool:
    """Tell whether an array is as on stock Flower, whose rules make float64 of some float32."""
    if ours is None or theirs is None:
        return False
    kept = (ours[0], theirs[0]) == ("float32", "float64")
    return ours[1] == theirs[1] and (kept or ours[0] == theirs[0])


class KnownCells:
    """Cells that were measured, kept in a file from run to run; without one, for this run.

    What was measured on other packages is forgotten.

    Attributes
    ----------
    reused : bool
        Whether a cell of an earlier run has been used.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._packages = packages()
        known = json.loads(file.read_text()) if file and file.exists() else {}
        kept = known["cells"] if known.get("packages") == self._packages else {}
        self._cells = {key: Cell(**cell) for key, cell in kept.items()}
        self._earlier = set(self._cells)
        self.reused = False

    def get(self, key: str) -> Cell | None:
        """Return a cell that was measured before."""
        self.reused |= key in self._earlier
        return self._cells.get(key)

    def put(self, key: str, cell: Cell) -> Cell:
        """Keep a cell."""
        self._cells[key] = cell
        if self._file:
            cells = {key: asdict(cell) for key, cell in self._cells.items()}
            self._file.write_text(json.dumps({"packages": self._packages, "cells": cells}))
        return cell


def packages() -> str:
    """Return Python's version and those of the packages that matter."""
    versions = [f"Python {'.'.join(platform.python_version_tuple()[:2])}"]
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(versions)


@dataclass
class Row:
    """A line of the table: an app on stock Flower and on each runtime."""

    app: App
    stock: Cell
    cells: dict[str, Cell] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether a cell fails that stock Flower can run, and that is not refused by name."""
        return any(
            self.lost(name)
            for name, cell in self.cells.items()
            if not cell.is_stocks_own and not cell.is_refused
        )

    def lost(self, runtime: str) -> str | None:
        """Return what is lost on a runtime; ``None`` where the app was not run."""
        cell = self.cells.get(runtime)
        return None if cell is None else lost(cell, self.stock)


def run_app(
    bench: Bench, app: App, runtimes: Sequence[str], stock: KnownCells, scheduled: KnownCells
) -> Row:
    """Run an app on stock Flower, and if that can run it, on the runtimes."""

    def measure(known: KnownCells, key: str, name: str, work: Callable[[], list[Any]]) -> Cell:
        key = f"{app.name} {key}"
        return known.get(key) or known.put(key, Cell.run(f"{app.name} {name}", work))

    def on_stock(*, engine: bool) -> Cell:
        work = partial(on_superlink, bench, app, 0, engine=engine)
        return measure(stock, "engine" if engine else "superlink", "stock", work)

    row = Row(app, on_stock(engine=True))
    needs = app.needs
    work = {
        "streams": partial(on_streams, bench, app, needs.num_selected),
        "buffered": partial(on_streams, bench, app, needs.num_selected, "buffered"),
        "ray": partial(on_superlink, bench, app, needs.num_selected, engine=True),
        "superlink": partial(on_superlink, bench, app, needs.num_selected, engine=False),
    }
    if not needs.on_superlink:
        del work["superlink"]
    elif row.stock.fault:  # the Ray engine gives no node configuration of the user's
        del work["ray"]
        engine, row.stock = row.stock, on_stock(engine=False)
        row.cells["ray"] = replace(engine, fault=f"stock: {engine.fault}", is_stocks_own=True)
    if not row.stock.fault:
        for name in runtimes:
            if name in work:
                row.cells[name] = measure(scheduled, name, name, work[name])
    return row


RUNTIMES: Final = {
    "streams": "our streams",
    "buffered": "the same, buffered mode",
    "ray": "Flower's Ray engine",
    "superlink": "stock SuperLink",
}


_LEGEND: Final = """\
Made by `python tests/compatibility/suite.py FOLDER_OF_APPS --out FILE`: each app
runs a few rounds with few clients, its code unchanged but for one line that wraps its strategy, or
its workflow of Flower's old API. Of its settings the number of rounds is changed; for `fl-dp-sa`
the shares of its secret sharing too (its own want 35 clients), `flower-secure-aggregation` runs
without its demonstration of a dropout, and `quickstart-huggingface` with a model of a few kilobytes
made on the spot. Data sets are small stand-ins, and the packages are those below, not the versions
that an app pins. Where the Ray engine cannot run an app, *stock Flower* is a stock SuperLink.

- *works*: the rounds changed the model, and the model's keys, shapes and types and the metrics of
  training and of evaluation, on clients and on the server, are those of the same app on stock
  Flower; else the cell says what is lost. A model of float32 stays one, of which some of Flower's
  rules make float64.
- *as it is*: the app has no strategy and no workflow of Flower's but code of its own for rounds; it
  runs unscheduled.
- *mode = 'buffered': ...*: what buffered mode refuses before the first round, and why.
- *cannot*: what this version of Flower itself cannot run.
- –: not run.
""".splitlines()


_REUSED: Final = """\
The cells were measured in more than one run on these packages: `--stock` and `--cells` keep them.
"""


def render(rows: Sequence[Row], *, reused: bool = False) -> str:
    """Return the page with the table."""
    lines = [
        "# Public Flower apps, as they are",
        "",
        *_LEGEND,
        "",
        f"{packages()}.",
        *(_REUSED.splitlines() if reused else ()),
        "",
        f"| app | stock Flower | {' | '.join(RUNTIMES.values())} |",
        "|---|---|" + "---|" * len(RUNTIMES),
    ]
    for row in rows:
        stock = f"cannot: {row.stock.fault}" if row.stock.fault else "works"
        cells = []
        for name in RUNTIMES:
            missing = row.lost(name)
            cells.append("–" if missing is None else missing or row.cells[name].worked)
        lines.append(f"| {row.app.name} | " + " | ".join(map(_cell, [stock, *cells])) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    text = re.sub(r" \(?/[^ )]+\)?", "", text)  # paths of this machine
    text = text.replace("|", "\\|").removeprefix("error: ")
    return text if len(text) <= 160 else text[:159] + "…"


def main() -> int:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("apps", type=Path, nargs="?", default=os.environ.get("FLOWER_APPS"))
    parser.add_argument("--app", action="append", help="only this one; may be repeated")
    parser.add_argument("--runtime", action="append", choices=[*RUNTIMES, "none"])
    parser.add_argument("--out", type=Path, help="write the table to this file")
    parser.add_argument("--stock", type=Path, help="keep what stock Flower comes to in this file")
    parser.add_argument(
        "--cells", type=Path, help="keep the other cells in this one, to go on with"
    )
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    if options.apps is None:
        parser.error("name a folder of Flower apps, or set FLOWER_APPS")
    apps = [
        app for app in apps_of(options.apps.resolve()) if not options.app or app.name in options.app
    ]
    runtimes = options.runtime or list(RUNTIMES)
    out = options.out and options.out.absolute()  # the suite changes its folder
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with Bench(folder.resolve(), options.apps.resolve()) as bench:
            stock = KnownCells(options.stock and options.stock.absolute())
            scheduled = KnownCells(options.cells and options.cells.absolute())
            rows = [run_app(bench, app, runtimes, stock, scheduled) for app in apps]
    table = render(rows, reused=stock.reused or scheduled.reused)
    if out:
        out.write_text(table, encoding="utf-8")
    print(table)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Rounds, rounds with spare clients and buffered mode on a real fleet: seconds, floors, staleness.

    python benchmarks/bench_modes.py            # the table of docs/how-to/buffered.md, 20 minutes
    python benchmarks/bench_modes.py --write    # and put it there
    python benchmarks/bench_modes.py --quick    # a tenth of it

flower-server and eight flower-clients, processes of their own on loopback, train on MNIST. Each
client waits as its emulated link and processor say, so that two cores are enough: the nearest one
takes an eighth of a second, the farthest nearly a second. Four are at work at a time, for 1500
updates in each mode; the deadline is found. All processes are ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "how-to" / "buffered.md"
MARK: Final = "<!-- bench_modes.py -->\n"
NUM_CLIENTS, NUM_SELECTED, NUM_SPARE = 8, 4, 2
UPDATES, QUICK_UPDATES = 1500, 160
TARGET: Final = 0.8
TASK: Final = (
    "--partitioner dirichlet:0.3 --batch-size 16 --local-steps 2 --learning-rate 0.02 "
    f"--tau-max-s auto --num-selected {NUM_SELECTED} --min-clients {NUM_CLIENTS} "
    "--wait-s 600 --checkpoint-every 0"
)
_EXAMPLES: Final = 32  # of an update


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table."""

    mode: str
    policy: str
    flags: str = ""

    @property
    def buffered(self) -> bool:
        """Whether channels are refilled one by one."""
        return "buffered" in self.flags

    def arguments(self, updates: int) -> str:
        """Return the flags of a server for so many updates."""
        each = NUM_SELECTED // 2 if self.buffered else NUM_SELECTED
        steps = updates // each
        return (
            f"{TASK} --strategy {self.policy} {self.flags} --rounds {steps} "
            f"--eval-every {NUM_SELECTED * 5 // each}"
        )


_SPARE: Final = f"--num-spare {NUM_SPARE}"
CASES: Final = (
    Case("rounds", "cs-ucb-q-adaptive"),
    Case(f"{NUM_SPARE} spare, late dropped", "cs-ucb-q-adaptive", _SPARE),
    Case(f"{NUM_SPARE} spare, late used", "cs-ucb-q-adaptive", f"{_SPARE} --late-updates use"),
    Case("buffered", "cs-ucb-q-adaptive", "--mode buffered"),
    Case("buffered", "proportional-fair", "--mode buffered"),
)


def devices() -> list[str]:
    """Return the flags of each client's link and processor, from the fastest to the slowest."""
    distances_m = np.linspace(100, 500, NUM_CLIENTS)
    compute_s = np.geomspace(0.08, 0.64, NUM_CLIENTS)
    return [
        f"--link rayleigh --distance-m {distance_m:.0f} "
        f"--compute {0.8 * _EXAMPLES / each_s:.0f}-{1.25 * _EXAMPLES / each_s:.0f}"
        for distance_m, each_s in zip(distances_m, compute_s, strict=True)
    ]


class Processes:
    """A server and its clients, with a log each in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, module: str, arguments: str) -> None:
        """Start one of our programs."""
        code = f"import sys; from flower_scheduling.{module} import main; sys.exit(main())"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._all[name] = subprocess.Popen(
                [sys.executable, "-c", code, *arguments.split()],
                cwd=self.folder,
                env={**os.environ, **threads, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, name: str) -> None:
        """Wait for the end of a program that must go well."""
        if self._all[name].wait():
            raise SystemExit(f"{name} failed:\n{self.log(name)[-4000:]}")

    def running(self, name: str) -> bool:
        """Tell whether a program has not ended."""
        return self._all[name].poll() is None

    def pid(self, name: str) -> int:
        """Return the id of a program's process."""
        return self._all[name].pid

    def end(self) -> None:
        """End all that still run."""
        for process in self._all.values():
            process.terminate()
        for process in self._all.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        """Return what a program has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Yield processes that are ended at the end, whatever happens."""
    found = Processes(folder)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield found
    finally:
        found.end()


@contextmanager
def fleet_of(folder: Path, clients: Sequence[str]) -> Iterator[Callable[[str, str], Path]]:
    """Start a client for each of these flags, and yield what runs a server for all of them.

    It takes the name of a run and the flags of the server, and returns the folder of the run.
    Clients stay: they connect to one server after the other.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with processes(folder) as fleet:
        for number, flags in enumerate(clients):
            fleet.start(
                f"dev-{number}",
                "client.cli",
                f"--server 127.0.0.1:{port} --name dev-{number} --partition-id {number} "
                f"--num-partitions {len(clients)} {flags}",
            )

        def serve(name: str, arguments: str) -> Path:
            address = f"--address 127.0.0.1:{port} --run-dir {name}"
            fleet.start(f"server-{name}", "server.cli.main", f"{address} {arguments}")
            fleet.wait(f"server-{name}")
            return folder / name

        yield serve


@dataclass
class Course:
    """What became of a run, read from its folder.

    Attributes
    ----------
    seconds, target_s : float
        From the first message to the last step, and to the accuracy :data:`TARGET` (NaN: never).
    accuracy : float
        In the end.
    used, lost : int
        Updates in the model, and pieces of work without one.
    without_step : int
        Rounds or steps in which the model did not change.
    staleness : list of int
        Steps between the model that each update began from and the one it went into.
    owed : float
        Largest number of updates by which a client is behind its floor in the end.
    deadlines_s, times_s : list of float
        Deadline of each round, and all round-trip times [s].
    failures : Counter
        Lost updates by reason.
    """

    seconds: float = 0.0
    target_s: float = float("nan")
    accuracy: float = float("nan")
    used: int = 0
    lost: int = 0
    without_step: int = 0
    staleness: list[int] = field(default_factory=list)
    owed: float = 0.0
    deadlines_s: list[float] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


@contextmanager
def kept_folder(keep: Path | None, name: str) -> Iterator[Path]:
    """Yield a new folder: in the one that is kept, or one that is removed at the end."""
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    found = keep / name
    found.mkdir(parents=True)
    yield found


def read_course(run: Path) -> Course:
    """Read what became of a run."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    arms = json.loads((run / "summary.json").read_text())["arms"]
    done: Counter[int] = Counter()
    course, turns = Course(), 0
    for line in lines:
        turns += len(line["selected"]) if line.get("buffered") else 1
        good = [arm for arm, ok in zip(line["selected"], line["completed"], strict=True) if ok]
        late = [each for each in line.get("late_updates", ()) if each["reason"] is None]
        done.update([*good, *(each["arm"] for each in late)])
        course.lost += len(line["selected"]) - len(good)
        course.without_step += not line["stepped"]
        course.failures.update(str(each).partition(":")[0] for each in line["reason"] if each)
        course.times_s += [each for each in line["rtt_s"] if each is not None]
        ages = line.get("staleness", [0] * len(line["selected"]))
        course.staleness += [
            age for age, ok in zip(ages, line["completed"], strict=True) if ok and age is not None
        ]
        course.staleness += [each["staleness"] for each in late]
        course.deadlines_s.append(line.get("deadline_s", float("nan")))
        if (accuracy := line["accuracy"]) is not None:
            course.accuracy = accuracy
            if accuracy >= TARGET and course.target_s != course.target_s:
                course.target_s = line["time_s"]
    course.seconds, course.used = lines[-1]["time_s"], done.total()
    owed = [turns * (arm["floor"] or 0.0) - done[arm["index"]] for arm in arms]
    course.owed = max(0.0, *owed)
    return course


def row(case: Case, course: Course) -> str:
    """Return a row of the table."""
    ages = np.array(course.staleness)
    target = "" if course.target_s != course.target_s else f"{course.target_s:.0f}"
    return (
        f"| {case.mode} | `{case.policy}` | {course.seconds:.0f} | "
        f"{course.used / course.seconds:.1f} | {target} | {course.accuracy:.1%} | {course.used} | "
        f"{course.lost} | {ages.mean():.1f}, {ages.max()} | {course.owed:.1f} |"
    )


def table(updates: int, keep: Path | None = None) -> str:
    """Run every mode and return the table."""
    lines = [
        "| mode | policy | seconds | updates/s | seconds to "
        f"{TARGET:.0%} | accuracy | updates | lost | staleness: mean, most | most owed |",
        "|---" * 10 + "|",
    ]
    print("\n".join(lines), flush=True)
    with kept_folder(keep, "modes") as folder, fleet_of(folder, devices()) as serve:
        for number, case in enumerate(CASES, start=1):
            run = serve(f"run-{number}", case.arguments(updates))
            lines.append(row(case, read_course(run)))
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def write(page: Path, mark: str, text: str) -> None:
    """Put a table between two marks of a page."""
    before, _, after = page.read_text(encoding="utf-8").split(mark)
    page.write_text(before + mark + text + mark + after, encoding="utf-8")


def parse(description: str) -> argparse.Namespace:
    """Read the command line that these measurements have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    parser.add_argument("--keep", type=Path, help="folder in which logs and runs are kept")
    return parser.parse_args()


def main() -> None:
    arguments = parse(str(__doc__))
    found = table(QUICK_UPDATES if arguments.quick else UPDATES, arguments.keep)
    if arguments.write:
        write(PAGE, MARK, found)


if __name__ == "__main__":
    main()

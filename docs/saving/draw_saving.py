"""Measure a small fleet under random scheduling and under ours; draw docs/saving/saving.svg.

``python docs/saving/draw_saving.py --measure`` starts a real server and eight real clients on
loopback, behind emulated radio links and processors of different speed, trains on MNIST once with
each policy, writes the measured rounds to ``saving.json`` and draws them, in some three minutes.
Without ``--measure`` the picture is drawn anew from that file. ``--folder`` names another place for
both files, ``--rounds`` fewer rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE: Final = Path(__file__).resolve().parent
DATA: Final = "saving.json"
PICTURE: Final = "saving.svg"
ROOT: Final = HERE.parents[1]

RANDOM: Final = "random"
OURS: Final = "cs-ucb-q-adaptive"  # the default of flower-server
TARGET: Final = 0.85
# Distance [m] and emulated processor [examples/s] of each client.
DEVICES: Final = (
    (60, 800), (90, 400), (140, 800), (180, 200), (250, 400), (320, 100), (400, 200), (480, 50),
)  # fmt: skip
SERVER: Final = (
    "--num-selected 3 --tau-max-s 8 --eval-every 2 --seed 3 "
    "--learning-rate 0.01 --batch-size 4 --local-steps 10"
)
ROUNDS: Final = 80
CLIENT: Final = "--link rayleigh --payload-bits 15000"
_START_S: Final = 300.0  # guards against hangs
_RUN_S: Final = 900.0


def measure(rounds: int) -> dict[str, Any]:
    """Run the fleet once with each policy and return the measured rounds."""
    settings = f"{SERVER} --rounds {rounds} --min-clients {len(DEVICES)}"
    runs = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port = 0
        for strategy in (RANDOM, OURS):
            run, log = Path(folder, strategy), Path(folder, f"{strategy}.log")
            server = _start(
                stack, "server.cli.entry", "server", log,
                f"--strategy {strategy} {settings} --address 127.0.0.1:{port} "
                f"--wait-s {_START_S:g} --run-dir {run}",
            )  # fmt: skip
            if not port:
                port = _port(server, log)
                for number, (distance_m, rate) in enumerate(DEVICES):
                    _start(
                        stack, "client.entry", "client", Path(folder, f"client-{number}.log"),
                        f"--server 127.0.0.1:{port} --name {_name(number)} {CLIENT} "
                        f"--distance-m {distance_m} --compute {rate} "
                        f"--partition-id {number} --num-partitions {len(DEVICES)}",
                    )  # fmt: skip
            if server.wait(_RUN_S) != 0:
                sys.exit(f"error: the run with {strategy} failed:\n{log.read_text()}")
            runs[strategy] = _rounds(run)
    return {
        "server": f"flower-server {settings}",
        "clients": [
            f"flower-client --name {_name(number)} {CLIENT} --distance-m {distance_m} "
            f"--compute {rate}"
            for number, (distance_m, rate) in enumerate(DEVICES)
        ],
        "target_accuracy": TARGET,
        "runs": runs,
    }


def _name(number: int) -> str:
    return f"dev-{number + 1}"


def _start(
    stack: ExitStack, module: str, function: str, log: Path, arguments: str
) -> subprocess.Popen[bytes]:
    code = f"from flower_scheduling.{module} import {function}; {function}()"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments.split()],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.poll() is None:
        if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    sys.exit(f"error: the server does not listen:\n{log.read_text()}")


def _rounds(run: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    selected = [arm for line in lines for arm in line["selected"]]
    names = [arm["name"] for arm in json.loads((run / "arms.json").read_text())]
    return {
        "round_s": [round(line["round_s"], 3) for line in lines],
        "evaluated": [
            [round(line["time_s"], 3), line["accuracy"]]
            for line in lines
            if line["accuracy"] is not None
        ],
        "shares": {
            name: round(selected.count(arm) / len(lines), 3)
            for arm, name in sorted(enumerate(names), key=lambda item: item[1])
        },
    }


def seconds_to_target(data: dict[str, Any], strategy: str) -> float | None:
    """Return when a run reached the target accuracy for the first time [s], ``None`` if never."""
    evaluated = data["runs"][strategy]["evaluated"]
    reached = (time_s for time_s, accuracy in evaluated if accuracy >= data["target_accuracy"])
    return next(reached, None)


def sentence(data: dict[str, Any]) -> str:
    """Return what the picture shows, as the README has it."""
    ours, random = (seconds_to_target(data, each) for each in (OURS, RANDOM))
    target = f"{data['target_accuracy']:.0%} accuracy"
    if ours is None or random is None:
        return f"{target} was not reached by both"
    lengths = {strategy: run["round_s"] for strategy, run in data["runs"].items()}
    return (
        f"{target} after {ours:.0f} s instead of {random:.0f} s, and {len(lengths[OURS])} rounds "
        f"in {sum(lengths[OURS]):.0f} s instead of {sum(lengths[RANDOM]):.0f} s"
    )


def digest(data: dict[str, Any]) -> str:
    """Return the fingerprint of the data, which the picture carries."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def draw(data: dict[str, Any]) -> Figure:
    """Return the picture: accuracy against seconds, and the length of each round."""
    from flower_scheduling.palette import looks
    from flower_scheduling.simulation import plots

    figure, (accuracy, length) = plots.new_figure((9, 3.6), 1, 2)
    for strategy, look in looks((RANDOM, OURS)).items():
        style = {**plots.line(look), "marker": None}
        colour = style["color"]
        run = data["runs"][strategy]
        label = f"{strategy} (default)" if strategy == OURS else strategy
        times, values = zip(*run["evaluated"], strict=True)
        accuracy.plot(times, values, label=label, **style)
        if (reached := seconds_to_target(data, strategy)) is not None:
            accuracy.plot([reached] * 2, [0, data["target_accuracy"]], ":", color=colour)
            text = f"{reached:.0f} s"
            accuracy.annotate(text, (reached, 0.02), (3, 0), textcoords="offset points")
            accuracy.plot(reached, data["target_accuracy"], "o", color=colour, markersize=5)
        rounds = range(1, len(run["round_s"]) + 1)
        length.plot(rounds, sorted(run["round_s"]), **style)
    # Longer than the rounds together by the evaluations between them.
    seconds = "time since the start, with evaluation [s]"
    accuracy.set(ylim=(0, 1), xlabel=seconds, ylabel="test accuracy", xlim=(0, None))
    plots.as_shares(accuracy)
    plots.mark(accuracy, data["target_accuracy"], "target")
    accuracy.annotate(
        f"{data['target_accuracy']:.0%}", (0, data["target_accuracy"]), (3, 3),
        textcoords="offset points",
    )  # fmt: skip
    figure.legend(*accuracy.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    length.set(
        xlabel="rounds, the shortest first", ylabel="length of the round [s]", ylim=(0, None)
    )
    for axes in (accuracy, length):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def write(data: dict[str, Any], path: Path) -> None:
    """Draw the picture into a file that carries the fingerprint of its data."""
    from flower_scheduling.simulation.plots import styled

    # On paper of its own: a picture in a page cannot know whether that is dark.
    ground = {"figure.facecolor": "white", "savefig.facecolor": "white"}
    with styled("saving", **{"svg.fonttype": "none", "font.size": 11, **ground}):
        metadata = {"Date": None, "Creator": None, "Description": digest(data)}
        draw(data).savefig(path, metadata=metadata)


def main() -> None:
    """Measure if asked to, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run the fleet first")
    parser.add_argument("--folder", type=Path, default=HERE, help="where both files are")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each run")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if chosen.measure:
        text = json.dumps(measure(chosen.rounds), indent=1)
        (chosen.folder / DATA).write_text(text + "\n", encoding="utf-8")
    data = json.loads((chosen.folder / DATA).read_text(encoding="utf-8"))
    write(data, chosen.folder / PICTURE)
    print(sentence(data))


if __name__ == "__main__":
    main()

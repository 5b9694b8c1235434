"""What a page with ten visitors costs the rounds of a server.

    python benchmarks/bench_page.py

A flower-server with four flower-clients that train one minibatch a round, once without a page and
without recorded scores, once with both and ten visitors that take part in the stream of news and
fetch the state each time, as browsers do. The two take turns, so that a noisy machine is noisy for
both. Visitors share the two cores with everybody else here, which in the field they do not.
Takes about two minutes.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import threading
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from fleet_processes import Fleet

TURNS = 4
MEASURED_S = 10.0
NUM_CLIENTS, NUM_VISITORS = 4, 10
TARGET_RATIO = 0.95


def rounds_per_s(page: bool) -> float:
    """Run a server for a while; return how many rounds it did a second."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        closed = threading.Event()
        try:
            extra = "--page 127.0.0.1:0" if page else "--no-explain"
            port = fleet.server(
                f"--run-dir run --num-selected 3 --rounds 10000000 --eval-every 1000000 "
                f"--checkpoint-every 0 --min-clients {NUM_CLIENTS} {extra}"
            )
            for number in range(NUM_CLIENTS):
                fleet.client(port, number, NUM_CLIENTS)
            fleet.wait_for_rounds(20)
            visitors = []
            if page:
                found = re.search(r"page at (\S+)", fleet.log("server"))
                assert found is not None, fleet.log("server")
                for _ in range(NUM_VISITORS):
                    visitors.append(threading.Thread(target=visit, args=(found[1], closed)))
                    visitors[-1].start()
                time.sleep(1.0)
            begin, known = time.monotonic(), len(fleet.rounds())
            time.sleep(MEASURED_S)
            done = len(fleet.rounds()) - known
            rate = done / (time.monotonic() - begin)
            closed.set()
            for visitor in visitors:
                visitor.join()
            return rate
        finally:
            closed.set()
            fleet.end()


def visit(url: str, closed: threading.Event) -> None:
    """Fetch the state at every piece of news."""
    with urllib.request.urlopen(f"{url}events", timeout=30) as events:
        for line in events:
            if closed.is_set():
                return
            if line.startswith(b"data"):
                request = urllib.request.Request(f"{url}state", headers={"accept-encoding": "gzip"})
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()


def main() -> None:
    print(f"Python {platform.python_version()}, flwr {version('flwr')}")
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TURNS):
        for page in rates:
            rates[page].append(rounds_per_s(page))
            print(f"{'with' if page else 'without'} a page: {rates[page][-1]:.1f} rounds/s")
    ratios = [with_page / without for without, with_page in zip(*rates.values(), strict=True)]
    print(
        f"{median(rates[True]):.1f} rounds/s with {NUM_VISITORS} visitors, "
        f"{median(rates[False]):.1f} without a page; ratio {median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}; at least {TARGET_RATIO} is wanted)"
    )


if __name__ == "__main__":
    main()

"""Renew the results of ``league --training`` in the docs: the guidance's JSON files, all tables.

    python docs/renew_training_tables.py runs/league/training.json [...]

Each file's rows replace those of the same task and policy. Rows whose first seed is not 0 are of
held-out seeds and belong to a file of their own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from flower_scheduling.simulation.benchmark import training_track as track

Rows: TypeAlias = list[dict[str, Any]]

FOLDER: Final = Path(__file__).parent / "policies"
SEEN: Final = FOLDER / "league-training.json"
HELD_OUT: Final = FOLDER / "league-training-held-out.json"
GUIDANCE: Final = FOLDER / "which-policy.md"
BY_SPEED: Final = FOLDER.parent / "how-to" / "work-by-speed.md"
BY_SPEED_TASKS: Final = ("dirichlet", "stragglers")
END: Final = "<!-- end -->"


def main(paths: Sequence[str]) -> None:
    """Take rows from files, and write JSON and pages."""
    new = [row for path in paths for row in json.loads(Path(path).read_text(encoding="utf-8"))]
    for file, seeds in ((SEEN, False), (HELD_OUT, True)):
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        own = [row for row in new if bool(row.get("first_seed")) == seeds]
        merged = merge(known, own)
        file.write_text(json.dumps(merged, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for page, mark, table in tables():
        before, _, rest = page.read_text(encoding="utf-8").partition(mark)
        _, end, after = rest.partition(END)
        page.write_text(f"{before}{mark}\n\n{table}\n{end}{after}", encoding="utf-8")


def merge(known: Rows, new: Rows) -> Rows:
    """Return rows with others in place of those of the same task and policy, in the suite's order.

    Policies that the suite does not have stand last.
    """
    by_place = {(row["course"], row["policy"]): row for row in [*known, *new]}
    tasks = list(track.TASKS)
    names = [each.name for each in track.CONTESTANTS]
    return sorted(
        by_place.values(),
        key=lambda row: (
            tasks.index(row["course"]),
            names.index(row["policy"]) if row["policy"] in names else len(names),
        ),
    )


def tables() -> list[tuple[Path, str, str]]:
    """Return the tables: the page of each, the mark before it, and its text."""
    seen, held_out = (json.loads(file.read_text(encoding="utf-8")) for file in (SEEN, HELD_OUT))
    gains = track.gains_markdown({"0 to 9": seen, "100 to 109": held_out})
    by_speed = track.by_speed_markdown(seen, BY_SPEED_TASKS)
    return [
        (GUIDANCE, "<!-- seconds to an accuracy -->", track.markdown(seen)),
        (GUIDANCE, "<!-- gains -->", gains),
        (BY_SPEED, "<!-- work by speed -->", by_speed),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])

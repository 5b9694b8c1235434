"""Renew the results of ``league --training`` in the guidance: its JSON files, its tables.

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
PAGE: Final = FOLDER / "which-policy.md"
END: Final = "<!-- end -->"


def main(paths: Sequence[str]) -> None:
    """Take rows from files, and write JSON and page."""
    new = [row for path in paths for row in json.loads(Path(path).read_text(encoding="utf-8"))]
    for file, seeds in ((SEEN, False), (HELD_OUT, True)):
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        own = [row for row in new if bool(row.get("first_seed")) == seeds]
        merged = merge(known, own)
        file.write_text(json.dumps(merged, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    for mark, table in tables().items():
        before, _, rest = text.partition(mark)
        _, end, after = rest.partition(END)
        text = f"{before}{mark}\n\n{table}\n{end}{after}"
    PAGE.write_text(text, encoding="utf-8")


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


def tables() -> dict[str, str]:
    """Return the tables of the page by the mark before each."""
    seen, held_out = (json.loads(file.read_text(encoding="utf-8")) for file in (SEEN, HELD_OUT))
    return {
        "<!-- seconds to an accuracy -->": track.markdown(seen),
        "<!-- gains -->": track.gains_markdown({"0 to 9": seen, "100 to 109": held_out}),
    }


if __name__ == "__main__":
    main(sys.argv[1:])

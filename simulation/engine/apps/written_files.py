"""Files that apps write outside their run directories: of several runs each may overwrite them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from flower_scheduling.errors import one_line
from flower_scheduling.server.runs.directory import ROUNDS

_MOST_FILES: Final = 20_000  # that are looked at: the folder may be anyone's home
_MOST_NAMED: Final = 5


def files_since(begin_ns: int, folders: Sequence[Path]) -> dict[str, int]:
    """Return the files in some folders that were written since a moment.

    Left out are run directories, what is hidden, and where this process prints to.

    Parameters
    ----------
    begin_ns : int
        The moment, as :func:`time.time_ns` tells it.
    folders : sequence of Path
        Where to look, with the folders in them.

    Returns
    -------
    dict of str to int
        Names, below the current folder relative to it, and when each was last written [ns].
    """
    printed = {(found.st_dev, found.st_ino) for found in map(os.fstat, _open_of((1, 2)))}
    here, times = Path.cwd(), {}
    for path in islice(_files(folders), _MOST_FILES):
        try:
            found = path.stat(follow_symlinks=False)
        except OSError:  # it is gone by now
            continue
        if found.st_mtime_ns >= begin_ns and (found.st_dev, found.st_ino) not in printed:
            name = path.relative_to(here) if path.is_relative_to(here) else path
            times[str(name)] = found.st_mtime_ns
    return times


def overwritten(written: Sequence[Mapping[str, int]]) -> str:
    """Return a sentence on files that several runs have written; nothing if there are none.

    Parameters
    ----------
    written : sequence of mapping
        What :func:`files_since` has returned at the end of each run. A file that was the same for
        two runs was written once while both of them went.
    """
    times: dict[str, set[int]] = {}
    for each in written:
        for name, time_ns in each.items():
            times.setdefault(name, set()).add(time_ns)
    names = sorted(name for name, found in times.items() if len(found) > 1)
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return one_line(
        f"written by several runs, of which the last one counts: {', '.join(names[:_MOST_NAMED])}"
        f"{more}; a name with context.run_id in it is another one for each run"
    )


def _open_of(descriptors: Sequence[int]) -> Iterator[int]:
    for each in descriptors:
        try:
            os.fstat(each)
        except OSError:
            continue
        yield each


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of folders, each once."""
    seen: set[Path] = set()
    for top in folders:
        for folder, inner, names in os.walk(top):
            if ROUNDS in names or Path(folder) in seen:
                inner.clear()
                continue
            seen.add(Path(folder))
            inner[:] = [each for each in sorted(inner) if not each.startswith((".", "__pycache__"))]
            yield from (Path(folder, name) for name in names if not name.startswith("."))

"""Data sets from where torchvision knows them, downloaded by torchvision in a process of its own.

torchvision waits for as long as a mirror keeps the connection open and stores all that it sends,
and cannot be imported where its build does not fit torch's. A process of its own has a size limit,
can be interrupted, and may fail.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Final

_STALL_S: Final = 15.0  # a mirror that delivers less than the next in this time is given up [s]
_STALL_BYTES: Final = 1 << 18
_LONG_STALL_S: Final = 60.0  # of any data set: unpacking may write nothing for a while [s]
_LONGEST_LINE: Final = 200
# -P: torchvision must not find the modules beside this file.
_PROGRAM: Final = (sys.executable, "-P", __file__)


def download_from_mirrors(
    folder: Path, names: Sequence[str], report: Callable[[str], None], *, max_bytes: int
) -> None:
    """Download and unpack files of MNIST into a folder, as far as a mirror has them.

    Parameters
    ----------
    folder : Path
        Empty folder, in which other files may be left as well.
    names : sequence of str
        Names of the unpacked files.
    report : callable
        Gets one line per mirror tried, and one per failure.
    max_bytes : int
        Size of the largest file [bytes]; a mirror that sends more is given up.
    """
    request = json.dumps([str(folder), list(names), max_bytes, _STALL_S, _STALL_BYTES])
    _run(request, "MNIST", report)


def download_dataset(
    folder: Path, name: str, arguments: Mapping[str, object], report: Callable[[str], None]
) -> str:
    """Download a data set of torchvision into a folder, as far as its source has it.

    Parameters
    ----------
    folder : Path
        Empty folder, in which other files may be left as well.
    name : str
        Name of the class in ``torchvision.datasets``.
    arguments : mapping
        What else its constructor gets.
    report : callable
        Gets a line before the download, and one if it fails.

    Returns
    -------
    str
        Why it has failed; nothing if it has not.
    """
    lines: list[str] = []

    def noted(line: str) -> None:
        lines.append(line.partition(": ")[2])
        report(line)

    report(f"{name}: fetching it as torchvision does")
    _run(json.dumps([str(folder), name, dict(arguments), _LONG_STALL_S]), name, noted)
    return lines[-1] if lines else ""


def _run(request: str, name: str, report: Callable[[str], None]) -> None:
    """Run this file as a program, and report what it prints."""
    with subprocess.Popen(
        [*_PROGRAM, request], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                report(f"{name}: {line.rstrip()}")
            code = process.wait()
        finally:
            process.kill()
    if code:
        report(f"{name}: the download ended with exit code {code}")


def main() -> None:
    """Run a download as a program; standard output has the lines to report."""
    request = json.loads(sys.argv[1])
    (_download_files if isinstance(request[1], list) else _download_class)(*request)


def _download_files(
    folder: str, names: list[str], max_bytes: int, stall_s: float, stall_bytes: int
) -> None:
    """Download files of MNIST, from one mirror after the other."""
    with suppress(ImportError):  # Windows
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    set_timer = _stall_timer(Path(folder), stall_s, stall_bytes)
    try:
        from torchvision.datasets import MNIST
        from torchvision.datasets.utils import download_and_extract_archive
    except Exception as error:  # of many kinds where torchvision does not fit torch
        _print(f"torchvision cannot be imported: {error}")
        return
    missing = [(file, md5) for file, md5 in MNIST.resources if file.removesuffix(".gz") in names]
    for mirror in MNIST.mirrors:
        if not missing:
            break
        _print(f"fetching {len(missing)} files from {mirror}")
        set_timer(stall_s)
        try:
            while missing:
                archive, md5 = missing[0]
                download_and_extract_archive(mirror + archive, folder, md5=md5)
                del missing[0]
        except Exception as error:  # whatever it is, the next mirror may do better
            _print(f"{mirror}: {str(error) or type(error).__name__}")
        finally:
            set_timer(0.0)


def _download_class(folder: str, name: str, arguments: dict[str, object], stall_s: float) -> None:
    """Download a data set by its class; of what torchvision prints nothing is reported."""
    set_timer = _stall_timer(Path(folder), stall_s, 1)
    try:
        import torchvision.datasets

        set_timer(stall_s)
        with redirect_stdout(sys.stderr):
            getattr(torchvision.datasets, name)(folder, download=True, **arguments)
    except Exception as error:  # of any kind: a source may deliver anything
        _print(str(error) or type(error).__name__)
    finally:
        set_timer(0.0)


def _stall_timer(folder: Path, stall_s: float, stall_bytes: int) -> Callable[[float], None]:
    """Return a function that starts a timer, or stops it: it raises where a folder hardly grows."""
    seen_bytes = 0

    def check_progress(signum: int, frame: object) -> None:
        nonlocal seen_bytes
        size = _size(folder)
        if abs(size - seen_bytes) < stall_bytes:
            raise RuntimeError(f"no progress in {stall_s:g} s")
        seen_bytes = size

    has_timer = hasattr(signal, "SIGALRM")
    if has_timer:
        signal.signal(signal.SIGALRM, check_progress)
    else:  # Windows: only a mirror that sends nothing at all is noticed
        socket.setdefaulttimeout(stall_s)

    def set_timer(pause_s: float) -> None:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, pause_s, pause_s)

    return set_timer


def _size(folder: Path) -> int:
    """Return the size of all files [bytes]; some may go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return size


def _print(text: str) -> None:
    """Print one line of ASCII: a server may have written the text."""
    print(ascii(" ".join(text.split()))[1:-1][:_LONGEST_LINE], flush=True)


if __name__ == "__main__":
    main()

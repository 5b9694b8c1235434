"""MNIST from the mirrors that torchvision knows, downloaded by torchvision in a process of its own.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_STALL_S: Final = 15.0  # a mirror that delivers less than the next in this time is given up [s]
_STALL_BYTES: Final = 1 << 18
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
    command = [*_PROGRAM, request]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                report(f"MNIST: {line.rstrip()}")
            code = process.wait()
        finally:
            process.kill()
    if code:
        report(f"MNIST: the download ended with exit code {code}")


def main() -> None:
    """Run the download as a program; standard output has the lines to report."""
    folder, names, max_bytes, stall_s, stall_bytes = json.loads(sys.argv[1])
    with suppress(ImportError):  # Windows
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    seen_bytes = 0

    def check_progress(signum: int, frame: object) -> None:
        nonlocal seen_bytes
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
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


def _print(text: str) -> None:
    """Print one line of ASCII: a server may have written the text."""
    print(ascii(" ".join(text.split()))[1:-1][:_LONGEST_LINE], flush=True)


if __name__ == "__main__":
    main()

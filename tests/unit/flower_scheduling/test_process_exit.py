"""``os._exit`` in an app's code: an exception in our process, the end of any other."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from flower_scheduling.process_exit import ProcessExit, exits_raised


def test_it_is_raised_and_later_as_before() -> None:
    before = os._exit
    with pytest.raises(ProcessExit, match=r"os\._exit\(3\)") as caught, exits_raised():
        os._exit(3)
    assert caught.value.code == 3
    assert os._exit is before


def test_a_forked_process_ends_with_it() -> None:
    with exits_raised(), exits_raised(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that threads do not come along
        if not (child := os.fork()):
            os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def test_another_thread_ends_the_process_with_a_line() -> None:
    code = (
        "import os, threading, time\n"
        "from flower_scheduling.process_exit import exits_raised\n"
        "with exits_raised():\n"
        "    threading.Thread(target=lambda: os._exit(0), name='watchdog').start()\n"
        "    time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: thread watchdog of the app has called os._exit(0)\n"

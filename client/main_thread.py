"""The process of ``flower-client``: the app owns the main thread, the stream has one of its own.

A stock SuperNode gives an app the main thread of a fresh process for every message. Here the
process stays, so signals are the stream's business and what an app left behind is put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import IO, Any, Final, NoReturn

from flower_scheduling.allocator import collect, give_back
from flower_scheduling.signals import interrupted, signals_of

from .app_runner import LOGGER, Worker
from .entry import EXIT_GRACE_S, end_at_once, remember_toggle
from .stream import StreamClient
from .wire.frames import MEGABYTE

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["ClientProcess"]

_PEAK_BYTES: Final = 1 if sys.platform == "darwin" else 2**10  # of the peak's unit
_SETTLED: Final = 10  # messages after which an app has loaded what it needs
_STEADY: Final = 10  # messages, each of which left more behind
_LARGE_BYTES: Final = 8 * 2**20  # of a message whose garbage is not left lying
_LONG_WORK_S: Final = 0.1  # of processor time, beside which giving memory back is nothing
_STOPPING: Final = tuple(signals_of("SIGINT", "SIGTERM", "SIGHUP"))
_HEEDED: Final = (*_STOPPING, *signals_of("SIGUSR1"))
_STREAMS: Final = {"stdin": (0, "r"), "stdout": (1, "w"), "stderr": (2, "w")}
# Handlers that are no app's.
_UNHANDLED: Final = (
    signal.SIG_DFL,
    signal.SIG_IGN,
    None,
    signal.default_int_handler,
    interrupted,
    remember_toggle,
)


class ClientProcess:
    """A client in the process that it has for itself, to be run once, in the main thread.

    Signals reach the event loop through a socket (``signal.set_wakeup_fd``), whatever the app
    computes and whatever handlers it has set: SIGINT, SIGTERM and SIGHUP stop the client, SIGUSR1
    opts it out and in. A signal that is ignored from outside stays so, as nohup wants it.

    Parameters
    ----------
    client : StreamClient
        Made with `worker`.
    worker : Worker
        Without a thread of its own.
    available : callable
        Returns whether the client takes work at first, when it is known for good.
    """

    def __init__(self, client: StreamClient, worker: Worker, available: Callable[[], bool]) -> None:
        self._client = client
        self._worker = worker
        self._available = available
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._run_loop, name="stream", daemon=True)
        self._error: BaseException | None = None
        self._returned = threading.Event()
        self._handlers: dict[int, Any] = {}  # of our signals, as they were before
        self._fork = threading.local()  # mask of the signals of a thread that forks
        self._exit = os._exit
        self._usual = _Surroundings()
        self._memory = MemoryWatch()
        self._worked_s = 0.0

    def run(self) -> None:
        """Serve until stopped; what the app does when the client has stopped is given up.

        Raises
        ------
        ConnectionRefused, VersionMismatch
            As :meth:`.StreamClient.run`.
        """
        with contextlib.suppress(ValueError, OSError, RuntimeError):  # no such file as stderr
            if not faulthandler.is_enabled():
                faulthandler.enable()
        self._take_signals()
        self._client.set_available(self._available())  # a signal may have come since the start
        os._exit = self._leave  # type: ignore[assignment]
        try:
            self._thread.start()
            self._worker.work(after_each=self._clean_up)
            self._returned.set()
            self._thread.join()
        finally:
            self._give_signals_back()
        if self._error is not None:
            raise self._error

    # -- the event loop's thread ----------------------------------------------------------------

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # raised where the program is run
            self._error = error
        self._worker.end()
        if not self._returned.wait(EXIT_GRACE_S):
            LOGGER.warning("the ClientApp is still at work: the process ends without it")
            if self._error is not None:
                LOGGER.error("%s", self._error)
            os._exit = self._exit
            end_at_once(getattr(self._error, "exit_code", 0 if self._error is None else 1))

    async def _serve(self) -> None:
        heeding = asyncio.ensure_future(self._heed_signals())
        try:
            await self._client.serve()
        finally:
            heeding.cancel()

    async def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for signum in await loop.sock_recv(self._reader, 4096):
                if signum in self._handlers:  # others are the app's
                    self._heed(signum)

    def _heed(self, signum: int) -> None:
        if signum in _STOPPING:
            LOGGER.info("%s: stopped by %s", self._client.name, signal.Signals(signum).name)
            self._client.stop()
            return
        self._client.set_available(not self._client.available)
        says = "takes work" if self._client.available else "takes no more work"
        LOGGER.info("%s: %s", self._client.name, says)

    # -- the main thread ------------------------------------------------------------------------

    def _take_signals(self) -> None:
        for signum in _HEEDED:
            if (before := signal.getsignal(signum)) is not signal.SIG_IGN:
                # That of the start ends the process, and processes of the app's would have it.
                at_start = before is interrupted
                self._handlers[signum] = signal.default_int_handler if at_start else before
        self._insist()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._hold, after_in_parent=self._let_go, after_in_child=self._forget
            )

    def _insist(self) -> None:
        """Have the signals sent to the loop; a handler of the app's may be called beside that."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for signum in self._handlers:
            if signal.getsignal(signum) in _UNHANDLED:
                signal.signal(signum, self._pass_on)
                if hasattr(signal, "siginterrupt"):
                    signal.siginterrupt(signum, False)  # C code of the app may not know of EINTR

    def _pass_on(self, signum: int, frame: object) -> None:
        """Send a signal to the loop where an event loop of the app's has taken our place."""
        fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if fd not in (-1, self._writer.fileno()):
            signal.set_wakeup_fd(fd)
        if fd != self._writer.fileno():
            with contextlib.suppress(BlockingIOError):
                self._writer.send(bytes([signum]))

    def _give_signals_back(self) -> None:
        self._restore_handlers()
        # A signal that came after the last look of the loop counts: no restart after a SIGTERM.
        with contextlib.suppress(BlockingIOError):
            if any(signum in self._handlers for signum in self._reader.recv(4096)):
                self._client.stop()
        self._reader.close()
        self._writer.close()

    def _restore_handlers(self) -> None:
        os._exit = self._exit
        signal.set_wakeup_fd(-1)
        for signum, before in self._handlers.items():
            if signal.getsignal(signum) == self._pass_on:
                signal.signal(signum, before)

    def _hold(self) -> None:
        """Before a fork: hold signals back, which a child that has yet to run would pass on."""
        self._fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)

    def _let_go(self) -> None:
        """Let the signals through that were held back."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._fork.mask)

    def _forget(self) -> None:
        """In a child of the app's: leave signals as they were before the client took them.

        A worker process must die of SIGTERM, and its end must not stop the client.
        """
        if os._exit == self._leave:  # the client runs
            self._restore_handlers()
        self._let_go()

    def _leave(self, code: int) -> NoReturn:
        """Say why, and goodbye, before the app ends the process: no round need wait for it."""
        LOGGER.error("the ClientApp ends the process with os._exit(%s)", code)
        self._client.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(EXIT_GRACE_S)
        self._exit(code)

    def _clean_up(self) -> None:
        """Put back what an app changed that would be as before in the process of a SuperNode."""
        try:
            self._insist()
            self._usual.restore()
            self._watch_memory()
            now_s = time.thread_time()
            if self._client.last_message_bytes > _LARGE_BYTES:
                collect()
            elif now_s - self._worked_s > _LONG_WORK_S:
                give_back()  # the client may wait for long now
            self._worked_s = now_s
        except BaseException as error:  # no damage that an app can do may end the client
            LOGGER.warning("not all that the app has changed is as before: %r", error)

    def _watch_memory(self) -> None:
        """Log that the process grows."""
        if resource is None:
            return
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peak_mb = peak * _PEAK_BYTES // MEGABYTE
        if (warning := self._memory.note(peak_mb)) is not None:
            LOGGER.warning("%s", warning)


class MemoryWatch:
    """The growth of a process that stays, by the peak of its memory after each message."""

    def __init__(self) -> None:
        self._answered = 0
        self._recent: deque[int] = deque(maxlen=_STEADY + 1)
        self._was_steady = False
        self._before = 0, 0  # messages and peak [MB], as last reported

    def note(self, peak_mb: int) -> str | None:
        """Take the peak after a message [MB]; return a warning if the process grows.

        It does if the peak has doubled since the first messages, or since the last warning, or if
        one message after the other has raised it, of which a warning is returned once.
        """
        self._answered += 1
        if self._answered <= _SETTLED:
            self._before = self._answered, peak_mb
        self._recent.append(peak_mb)
        answered, before_mb = self._before
        steady = self._answered >= _SETTLED + _STEADY and all(
            earlier < later for earlier, later in pairwise(self._recent)
        )
        if peak_mb <= 2 * before_mb and (self._was_steady or not steady):
            return None
        self._was_steady |= steady
        self._before = self._answered, peak_mb
        each_mb = (peak_mb - before_mb) / (self._answered - answered)
        return (
            f"memory: {peak_mb} MB after {self._answered} messages, {before_mb} after "
            f"{answered}: {each_mb:.1f} MB more with each; if it goes on, see --restart-after"
        )


class _Surroundings:
    """What an app finds around it at the beginning of every message."""

    def __init__(self) -> None:
        self._folder = _current_folder()
        self._path, self._entries = sys.path, list(sys.path)
        self._streams = {name: getattr(sys, name) for name in _STREAMS}
        self._start_method = multiprocessing.get_start_method(allow_none=True)
        self._has_alarm = _has_alarm()
        with warnings.catch_warnings(action="ignore"):  # asking for a loop sets one up to 3.13
            self._has_loop = _has_loop()

    def restore(self) -> None:
        """Put back what was changed."""
        if self._folder is not None and _current_folder() != self._folder:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)
        if sys.path is not self._path or sys.path != self._entries:
            # What was added stays: modules that were imported meanwhile may count on it.
            now = [each for each in sys.path or () if isinstance(each, str)]
            self._entries = list(dict.fromkeys([*now, *self._entries]))
            sys.path = self._path
            sys.path[:] = self._entries
        for name, stream in self._streams.items():
            if getattr(stream, "closed", False):
                self._streams[name] = stream = _reopened(name)
            setattr(sys, name, stream)
        if multiprocessing.get_start_method(allow_none=True) != self._start_method:
            multiprocessing.set_start_method(self._start_method, force=True)
        if self._has_loop and not _has_loop():  # asyncio.run() takes it away
            asyncio.set_event_loop(asyncio.new_event_loop())
        if _has_alarm() and not self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)  # it would meet another message


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _has_alarm() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _has_loop() -> bool:
    """Tell whether an app that asks for the thread's event loop gets one."""
    try:
        return not asyncio.get_event_loop().is_closed()
    except RuntimeError:
        return False


def _reopened(name: str) -> IO[str]:
    number, mode = _STREAMS[name]
    try:
        return os.fdopen(os.dup(number), mode)
    except OSError:  # that is closed too
        return open(os.devnull, mode)

"""The clients of an app in one process: each call is as in a process of the client's own."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Context, Message, MessageType, UserConfig
from flwr.clientapp import ClientApp

from flower_scheduling.client.app_runner import (
    checked_reply,
    describe,
    encodable,
    end_child,
    unregistered_kind,
)
from flower_scheduling.errors import SchedulingError
from flower_scheduling.strategies.flower import LOGGER

_CLIENTS = 101  # stream of random numbers beside those of the environment


class ClientCalls:
    """A ClientApp that may do with its process what it likes: the next client finds it as it was.

    What each client draws from the global generators (``random``, NumPy, torch) follows from the
    seed, the client and how often it was called: not from what the others have drawn, and so not
    from the policy. The working directory and the generators of the server are put back.

    Parameters
    ----------
    client_app : ClientApp
        The app.
    run_config : dict
        Run configuration that each call sees, a copy.
    seed : int
        Seed of the clients' generators.
    """

    def __init__(self, client_app: ClientApp, run_config: UserConfig, seed: int) -> None:
        self._client_app = client_app
        self._run_config = run_config
        self._seed = seed
        self._num_calls: Counter[int] = Counter()
        self._logged: set[str] = set()

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the app's answer.

        Raises
        ------
        Exception
            What the app raises, or TypeError for an answer that cannot be sent.
        """
        process, node = os.getpid(), context.node_id
        context.run_config = dict(self._run_config)
        number = self._num_calls[node]
        if not message.metadata.message_type.startswith(MessageType.QUERY):
            self._num_calls[node] += 1
        with _as_it_was(), contextlib.ExitStack() as stack:
            stack.callback(_go_to, os.getcwd())
            seed_all(np.random.SeedSequence((self._seed, _CLIENTS, node, number)))
            try:
                reply = checked_reply(self._client_app(message, context))
                if os.getpid() != process:  # a fork that came back
                    raise SystemExit
            except BaseException as error:
                if os.getpid() != process:
                    end_child(error)
                self._log(context, error)
                raise
        return reply

    def state_dict(self) -> dict[str, Any]:
        """Return how often each client was called."""
        return {str(node): number for node, number in self._num_calls.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        self._num_calls = Counter({int(node): int(number) for node, number in state.items()})

    def _log(self, context: Context, error: BaseException) -> None:
        """Leave the traceback of each fault in the run's log, once."""
        if unregistered_kind(error) is not None or isinstance(error, KeyboardInterrupt):
            return
        text = describe(error)
        if text in self._logged or isinstance(error, SchedulingError):
            return
        self._logged.add(text)
        trace = encodable("".join(traceback.format_exception(error)).rstrip())
        LOGGER.info("%s: the ClientApp raised %s\n%s", context.node_config["name"], text, trace)


def processor_s() -> float:
    """Return the processor time of this process and of its children that ended [s]."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def seed_all(seed: np.random.SeedSequence) -> None:
    """Seed the global generators that apps draw from; torch's if it is imported."""
    first, second, *rest = (int(word) for word in seed.generate_state(4))
    random.seed(first)
    np.random.seed(second)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(rest[0] << 32 | rest[1])


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Put the global generators back afterwards."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    tensor = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(tensor)


def _go_to(folder: str) -> None:
    with contextlib.suppress(OSError):  # it was removed
        os.chdir(folder)

"""Large messages leave one after the other, unless a client's own link is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flower_scheduling.server.transport import send_turns
from flower_scheduling.server.transport.send_turns import SendTurns


class Senders:
    """Senders of messages of two chunks each; what they do is written down."""

    def __init__(self) -> None:
        self.turns = SendTurns()
        self.log: list[str] = []

    async def send(self, name: str, write: Callable[[], Awaitable[None]], chunks: int = 2) -> None:
        async with self.turns.message() as turn:
            for number in range(chunks):
                self.log.append(f"{name}{number}")
                await turn.write(write())


async def at_once() -> None:
    await asyncio.sleep(0)


def test_messages_leave_one_after_the_other() -> None:
    senders = Senders()

    async def main() -> None:
        await asyncio.gather(*(senders.send(name, at_once) for name in "abc"))

    asyncio.run(main())
    assert senders.log == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_slow_link_lets_others_go_and_comes_before_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(send_turns, "_PROMPT_S", 0.0)  # whatever waits takes long
    senders = Senders()

    async def main() -> None:
        slow, taken = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            await slow.wait()

        async def note() -> None:
            slow.set()
            await asyncio.sleep(0)  # a goes on, and waits for its turn
            await asyncio.sleep(0)
            taken.set()

        await asyncio.gather(
            senders.send("a", wait), senders.send("b", note), senders.send("c", at_once)
        )

    asyncio.run(main())
    assert senders.log[:2] == ["a0", "b0"]
    assert senders.log.index("a1") < senders.log.index("c0")
    assert sorted(senders.log) == ["a0", "a1", "b0", "b1", "c0", "c1"]


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_sender_that_is_cancelled_holds_up_no_other(begun: int) -> None:
    senders = Senders()

    async def main() -> None:
        stuck = asyncio.Event()
        tasks = [asyncio.create_task(senders.send("a", lambda: _wait(stuck)))]
        tasks += [asyncio.create_task(senders.send(name, at_once)) for name in "bc"]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[begun].cancel()
        stuck.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(10):
            await senders.send("last", at_once)

    asyncio.run(main())
    assert senders.log[-2:] == ["last0", "last1"]
    assert not senders.turns._taken


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def test_sender_that_fails_holds_up_no_other() -> None:
    senders = Senders()

    async def fail() -> None:
        raise OSError

    async def main() -> None:
        await asyncio.gather(
            senders.send("a", fail), senders.send("b", at_once), return_exceptions=True
        )

    asyncio.run(main())
    assert senders.log == ["a0", "b0", "b1"]

"""What grids of tests have in common."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class BareGrid(Grid):
    """The part of Flower's grid that nothing of ours should use."""

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise AssertionError

    def send_and_receive(self, *args: object, **kwargs: object) -> Iterable[Message]:
        raise AssertionError("the stock method sleeps 3 s between two looks")

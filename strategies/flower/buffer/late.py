"""Late updates: what spare clients deliver after their round has ended, kept for the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, Message

from flower_scheduling._flwr import ProtoMessage, message_from_proto, message_to_proto
from flower_scheduling.reasons import STALE

from ..arm_table import ArmTable
from ..record import ArmResult
from ..replies import ArraySpec, Update
from ..reply_sorter import ODD, ReplySorter, SortedReplies
from ..timed_grid import Exchange
from .staleness import models_of, models_state, rebased

USE: Final = "use"
"""Late updates go into the next step."""
DROP: Final = "drop"
"""Late updates are dropped."""


@dataclass(frozen=True, slots=True)
class LateReply:
    """A late reply, or what became of the message instead.

    Attributes
    ----------
    exchange : Exchange
        With its true time.
    sent : ArrayRecord
        The model that its client began from.
    version : int
        Number of that model.
    """

    exchange: Exchange
    sent: ArrayRecord
    version: int


@dataclass(frozen=True, slots=True)
class LateUpdate:
    """A late update that goes into a step.

    Attributes
    ----------
    place : int
        Of its result among the late ones of the round.
    arm : int
        Whose it is.
    update : Update
        What came.
    late : LateReply
        When, and from which model.
    """

    place: int
    arm: int
    update: Update
    late: LateReply


class LateUpdates:
    """The late messages of a run: the models that they were sent with, and replies that wait.

    A node has one late message at most, since it is asked again only after that one has ended. Each
    model that is still worked from is kept once.

    Parameters
    ----------
    max_staleness : int, >= 0
        Steps after which an update is not used any more.
    discount : float, >= 0
        An update s steps old counts (1 + s)^-discount.

    Attributes
    ----------
    version : int
        Changes of the model so far.
    """

    def __init__(self, max_staleness: int = 100, discount: float = 0.0) -> None:
        self.max_staleness = max_staleness
        self.version = 0
        self._discount = discount
        self._models: dict[int, ArrayRecord] = {}  # by version, those that are worked from
        self._sent: dict[int, int] = {}  # by node at work, the version that it was sent
        self._waiting: list[tuple[int, Exchange]] = []  # version and reply, in the order of ends

    def note_late(self, node_ids: Iterable[int], model: ArrayRecord) -> None:
        """Note which nodes still work when their round ends, and from which model."""
        sent = dict.fromkeys(node_ids, self.version)
        if sent:
            self._sent |= sent
            self._models[self.version] = model

    def take_in(self, exchange: Exchange) -> LateReply | None:
        """Take in what became of a late message.

        Returns
        -------
        LateReply or None
            If there is no reply with content; such a reply waits for the next step. ``None`` too
            if the message was of an earlier run: its model is not there.
        """
        version = self._sent.pop(exchange.node_id, None)
        if version is None:
            return None
        if exchange.reply is None or not exchange.reply.has_content():
            return LateReply(exchange, self._models[version], version)
        self._waiting.append((version, exchange))
        return None

    def read(
        self,
        sorter: ReplySorter,
        table: ArmTable,
        own: SortedReplies,
        specs: Mapping[str, ArraySpec],
        free_form: bool,
    ) -> tuple[list[LateUpdate], list[ArmResult], dict[int, float | None]]:
        """Read the replies that wait, each of them once.

        Parameters
        ----------
        sorter : ReplySorter
            Checks them against the models that they were trained from, and each other.
        table : ArmTable
            Knows which node is which arm.
        own : SortedReplies
            Of the round whose step they go into. Updates that late ones turn out to be copies of
            become failures.
        specs : mapping of str to ArraySpec
            What arrays must be like.
        free_form : bool
            Whether replies may have names unlike the others'.

        Returns
        -------
        used : list of LateUpdate
            Those that go into the step.
        results : list of ArmResult
            What became of all of them, but for those of clients without examples.
        sizes : dict of int to float or None
            By arm, their aggregation weights, 0 of a client without examples.
        """
        names = {u.signature for arm, u in own.updates.items() if arm not in own.odd}
        beside = list(own.updates.items())
        used: list[LateUpdate] = []
        results: list[ArmResult] = []
        sizes: dict[int, float | None] = {}
        waiting, self._waiting = self._waiting, []
        for version, exchange in waiting:
            if not table.knows(exchange.node_id):
                continue  # it has come back as another node
            late = LateReply(exchange, self._models[version], version)
            earlier = [*beside, *((each.arm, each.update) for each in used)]
            found = sorter.read([exchange], specs, late.sent, earlier)
            for place in sorted(found.before, reverse=True):
                reason = found.before[place]
                if place < len(beside):
                    arm, _ = beside.pop(place)
                    own.odd = [each for each in own.odd if each != arm]
                    own.refuse(arm, reason)
                else:
                    copied = used.pop(place - len(beside))
                    results[copied.place] = sorter.refused(results[copied.place], reason)
            for arm, update in list(found.updates.items()):
                if (staleness := self.version - version) > self.max_staleness:
                    text = f"{STALE}: {staleness} steps old, at most {self.max_staleness}"
                    found.refuse(arm, text)
                elif not free_form and update.signature not in names:
                    found.refuse(arm, ODD)
                else:
                    used.append(LateUpdate(len(results), arm, update, late))
            sizes |= {arm: update.num_examples for arm, update in found.updates.items()}
            sizes |= dict.fromkeys(found.empty, 0.0)
            if not found.empty:
                results += self.results(late, sorter.results(found))
        return used, results, sizes

    def results(self, late: LateReply, results: Iterable[ArmResult]) -> list[ArmResult]:
        """Return results of a late exchange with their staleness."""
        return [replace(result, staleness=self.version - late.version) for result in results]

    def presented(self, used: LateUpdate, model: ArrayRecord, per_step: float = 1.0) -> Message:
        """Return a late update as if trained from ``model``, see :func:`.rebased`."""
        scale = (1.0 + self.version - used.late.version) ** -self._discount
        sent = used.late.sent
        return rebased(used.update.message, sent, model, scale=scale, per_step=per_step)

    def end_round(self, *, stepped: bool) -> None:
        """Count a change of the model, and forget models that are not needed any more."""
        self.version += stepped
        needed = {*self._sent.values(), *(version for version, _ in self._waiting)}
        self._models = {v: model for v, model in self._models.items() if v in needed}

    # -- checkpoints ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on, models and replies among it."""
        return {
            "version": self.version,
            "sent": {str(node): version for node, version in self._sent.items()},
            "waiting": [
                {
                    "version": version,
                    "node": str(each.node_id),
                    "rtt_s": each.rtt_s,
                    "reply": np.frombuffer(
                        message_to_proto(each.reply).SerializeToString(), dtype=np.uint8
                    ),
                }
                for version, each in self._waiting
                if each.reply is not None
            ],
            "models": models_state(self._models),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, at_work: bool) -> None:
        """Go on where :meth:`state_dict` left off.

        Parameters
        ----------
        state : mapping
            What it returned.
        at_work : bool
            Whether the grid still has the messages that were late, as a virtual one does; what a
            fleet's clients had in hand before the server was started anew is lost.
        """
        self.version = state["version"]
        self._models = models_of(state["models"])
        self._waiting = [
            (each["version"], Exchange(int(each["node"]), _reply_of(each), each["rtt_s"]))
            for each in state["waiting"]
        ]
        self._sent = {int(node): version for node, version in state["sent"].items()}
        if not at_work:
            self._sent = {}
            self.end_round(stepped=False)


def _reply_of(state: Mapping[str, Any]) -> Message:
    return message_from_proto(ProtoMessage.FromString(np.asarray(state["reply"]).tobytes()))

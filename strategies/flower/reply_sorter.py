"""Sort the replies of a round into usable updates and failures."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from flwr.app import ArrayRecord, Message

from flower_scheduling.errors import InvalidReplyError

from .arm_table import ArmTable
from .record import ArmResult, failure_kind
from .replies import (
    OTHER_NAMES,
    ArraySpec,
    ReplyChecker,
    Signature,
    Update,
    client_timing,
)
from .schema_vote import SchemaVote
from .timed_grid import LOGGER, TIMEOUT, Exchange

_MAX_REASON_LENGTH: Final = 300  # text of a client, which goes to log and record


class ReplySorter:
    """Check replies one by one and against each other; log failures once per kind and client.

    Parameters
    ----------
    checker : ReplyChecker
        Decides on a single reply.
    table : ArmTable
        Knows which node is which arm.
    """

    def __init__(self, checker: ReplyChecker, table: ArmTable) -> None:
        self._checker = checker
        self._table = table
        self._training, self._evaluation = SchemaVote(), SchemaVote()
        self._logged: set[tuple[str, int, str]] = set()

    def training(
        self, exchanges: Sequence[Exchange], specs: Mapping[str, ArraySpec], model: ArrayRecord
    ) -> tuple[list[ArmResult], dict[int, Update]]:
        """Return what each arm delivered, and by arm the usable updates, in the order of arms."""
        by_arm = {self._table.arm_of(exchange.node_id).index: exchange for exchange in exchanges}
        selected = sorted(by_arm)
        reason: dict[int, str | None] = {}
        timing: dict[int, tuple[float | None, float | None]] = dict.fromkeys(selected, (None, None))
        updates: dict[int, Update] = {}
        for arm in selected:
            reply = by_arm[arm].reply
            if reply is None:
                reason[arm] = by_arm[arm].failure
                continue
            try:
                updates[arm] = self._checker.read(reply, specs, model)
                reason[arm], timing[arm] = None, client_timing(reply)
            except InvalidReplyError as error:
                reason[arm] = str(error)
        agreed = self._training.agree({arm: update.signature for arm, update in updates.items()})
        for arm in sorted(updates.keys() - agreed):
            reason[arm] = f"{OTHER_NAMES}: record or metric names unlike the other clients'"
            del updates[arm]
        results = []
        for arm in selected:
            if (why := reason[arm]) is not None:
                why = why[:_MAX_REASON_LENGTH]
                self._log_failure("no update", arm, why)
            name = self._table.arms[arm].name
            compute_s, link_s = timing[arm]
            results.append(
                ArmResult(
                    arm=arm,
                    name=name,
                    rtt_s=by_arm[arm].rtt_s,
                    reason=why,
                    compute_s=compute_s,
                    link_s=link_s,
                )
            )
        return results, updates

    def evaluation(self, exchanges: Iterable[Exchange]) -> list[Message]:
        """Return the replies that may be averaged: of finite metrics, and under the same names."""
        signatures: dict[int, Signature] = {}
        replies: dict[int, Message] = {}
        for exchange in exchanges:
            arm = self._table.arm_of(exchange.node_id).index
            if exchange.reply is None:
                self._log_failure("no evaluation", arm, exchange.failure or "")
                continue
            try:
                signatures[arm] = self._checker.read_evaluation(exchange.reply)
                replies[arm] = exchange.reply
            except InvalidReplyError as error:
                self._log_failure("no evaluation", arm, str(error))
        agreed = self._evaluation.agree(signatures)
        for arm in sorted(signatures.keys() - agreed):
            self._log_failure("no evaluation", arm, f"{OTHER_NAMES}: unlike the other clients'")
        return [replies[arm] for arm in sorted(agreed)]

    def state(self) -> dict[str, Any]:
        """Return the votes on names, ready for JSON."""
        return {"names": self._training.state(), "evaluation_names": self._evaluation.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` left off."""
        self._training.load_state(state["names"])
        self._evaluation.load_state(state["evaluation_names"])

    def _log_failure(self, what: str, arm: int, why: str) -> None:
        if (kind := (what, arm, failure_kind(why))) in self._logged:
            return
        self._logged.add(kind)
        # A missed deadline is ordinary on a fading link.
        level = logging.INFO if why == TIMEOUT else logging.WARNING
        LOGGER.log(level, "%s from %s: %s", what, self._table.arms[arm].name, why)

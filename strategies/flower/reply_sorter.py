"""Sort the replies of a round into usable updates and failures."""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flwr.app import ArrayRecord, Message

from flower_scheduling.errors import InvalidReplyError
from flower_scheduling.reasons import BAD_WEIGHT, OTHER_NAMES, TIMEOUT, WRONG_ARRAYS

from .arm_table import ArmTable
from .logs.rate_limited_log import RateLimitedLog
from .record import ArmResult, failure_kind
from .replies import (
    ArraySpec,
    ReplyChecker,
    Signature,
    Update,
    reported,
)
from .schema_vote import SchemaVote
from .timed_grid import Exchange
from .updates.free_riders import FreeRiders
from .updates.sketches import sketch_of

_MAX_REASON_LENGTH: Final = 300  # text of a client, which goes to log and record
_UNQUESTIONED_WEIGHT: Final = 1e9  # examples; of more, such as tokens, the others must have many
_MOST_TIMES_MEDIAN: Final = 1000
_FEWEST_ALIKE: Final = 2

ODD: Final = f"{OTHER_NAMES}: record or metric names unlike the other clients'"
"""Failure of an update that Flower's own rules would refuse beside the others."""


@dataclass
class SortedReplies:
    """The replies of a round by arm, in the order of arms.

    Attributes
    ----------
    exchanges : dict of int to Exchange
        Of the super arm.
    updates : dict of int to Update
        What may be aggregated.
    reasons : dict of int to str
        Why there is no usable update.
    empty : list of int
        Arms without examples: neither an update nor a failure.
    odd : list of int
        Arms whose update has other names than those of most, which Flower's own rules refuse.
    reported : dict of int to dict
        What clients report of their work, columns of an :class:`.ArmResult` by name.
    before : dict of int to str
        Why updates of the same step that were taken before are none, by place.
    """

    exchanges: dict[int, Exchange]
    updates: dict[int, Update] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    empty: list[int] = field(default_factory=list)
    odd: list[int] = field(default_factory=list)
    reported: dict[int, dict[str, Any]] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)

    def refuse(self, arm: int, reason: str) -> None:
        """Turn an update into a failure."""
        del self.updates[arm]
        self.reported.pop(arm, None)
        self.reasons[arm] = reason

    def refuse_odd(self) -> None:
        """Turn the updates with other names into failures."""
        for arm in self.odd:
            self.refuse(arm, ODD)
        self.odd = []


class ReplySorter:
    """Check replies one by one and against each other; log failures once per kind and client.

    Parameters
    ----------
    checker : ReplyChecker
        Decides on a single reply.
    table : ArmTable
        Knows which node is which arm.
    accept_unchanged : bool
        Whether updates that nothing was done for count as others do; :class:`.FreeRiders` tells.
    sketches : bool
        Whether updates get a sketch, which costs a pass over each.
    """

    def __init__(
        self,
        checker: ReplyChecker,
        table: ArmTable,
        *,
        accept_unchanged: bool = False,
        sketches: bool = False,
    ) -> None:
        self._checker = checker
        self._sketches = sketches
        self._table = table
        self._free_riders = None if accept_unchanged else FreeRiders()
        self._training, self._evaluation = SchemaVote(), SchemaVote()
        self._seen = False  # whether a reply's arrays were like the model's
        self._weights: dict[int, float] = {}  # by arm, the last
        self._unlike: dict[int, Signature] = {}  # by arm, the last whose arrays were unlike
        self._logged: set[tuple[str, int, str]] = set()
        self._log = RateLimitedLog(time.monotonic)

    def training(
        self,
        exchanges: Sequence[Exchange],
        specs: Mapping[str, ArraySpec],
        model: ArrayRecord,
    ) -> SortedReplies:
        """Return what each arm delivered, and by arm the usable updates, in the order of arms."""
        found = self.read(exchanges, specs, model)
        found.odd = sorted(found.updates.keys() - self.agreed(found.updates))
        return found

    def agreed(self, updates: Mapping[int, Update]) -> set[int]:
        """Return the arms whose updates have the names that most use."""
        return self._training.agree({arm: u.signature for arm, u in updates.items()})

    def read(
        self,
        exchanges: Sequence[Exchange],
        specs: Mapping[str, ArraySpec],
        model: ArrayRecord,
        earlier: Sequence[tuple[int, Update]] = (),
    ) -> SortedReplies:
        """Do the same without a vote on names: none counts as odd.

        In a step to which updates come one by one, ``earlier`` are those that were taken before,
        with their arms.
        """
        by_arm = {self._table.arm_of(exchange.node_id).index: exchange for exchange in exchanges}
        found = SortedReplies({arm: by_arm[arm] for arm in sorted(by_arm)})
        for arm, exchange in found.exchanges.items():
            if exchange.reply is None:
                found.reasons[arm] = exchange.failure or TIMEOUT
                continue
            try:
                update = self._checker.read(exchange.reply, specs, model, lenient=not self._seen)
            except InvalidReplyError as error:
                found.reasons[arm] = str(error)
                continue
            found.reported[arm] = reported(exchange.reply, update.metrics)
            if update.num_examples == 0:
                found.empty.append(arm)
            else:
                found.updates[arm] = update
        self._refuse_weights(found)
        self._refuse_unlike(found, placeholder=not specs)
        self._refuse_free_riders(found, model, earlier)
        if self._sketches:
            for update in found.updates.values():
                update.sketch = sketch_of(update, model)
        return found

    def results(self, found: SortedReplies) -> list[ArmResult]:
        """Return what each arm delivered, for the record; log failures."""
        results = []
        for arm, exchange in found.exchanges.items():
            if (why := found.reasons.get(arm)) is not None:
                why = why[:_MAX_REASON_LENGTH]
                self._log_failure("no update", arm, why)
            name = self._table.arms[arm].name
            own = found.reported.get(arm, {})
            results.append(ArmResult(arm, name, exchange.rtt_s, why, **own))
        return results

    def refused(self, result: ArmResult, reason: str) -> ArmResult:
        """Return a result whose update is not used after all; log it."""
        self._log_failure("no update", result.arm, reason)
        return replace(result, reason=reason[:_MAX_REASON_LENGTH])

    def _refuse_unlike(self, found: SortedReplies, *, placeholder: bool) -> None:
        """Refuse arrays unlike the model's, but where the clients agree that they are meant so.

        Once a reply was like the model, all must be. Until then two clients that send the same
        arrays outweigh a model that none sends: one alone must not replace it.
        """
        updates = found.updates
        self._seen |= any(not update.unlike for update in updates.values())
        self._unlike |= {arm: one.signature for arm, one in updates.items() if one.unlike}
        unlike = [arm for arm, update in updates.items() if update.unlike]
        alike = Counter(self._unlike.values()) if unlike else Counter[Signature]()
        for arm in unlike:
            update = updates[arm]
            meant = not self._seen and (placeholder or alike[update.signature] >= _FEWEST_ALIKE)
            if not meant:
                text = f"{WRONG_ARRAYS}: {update.unlike}"
                found.refuse(arm, text if self._seen else f"{text} (fixed_shapes=False takes it)")

    def _refuse_free_riders(
        self, found: SortedReplies, model: ArrayRecord, earlier: Sequence[tuple[int, Update]]
    ) -> None:
        """Refuse updates that nothing was done for."""
        if (judge := self._free_riders) is None:
            return
        for update in found.updates.values():
            update.change = judge.change_of(update, model)
        now, found.before = judge.judge(found.updates, earlier)
        for arm, reason in now.items():
            found.refuse(arm, reason)

    def _refuse_weights(self, found: SortedReplies) -> None:
        """Refuse weights beside which those of all others would not count."""
        now = {arm: update.num_examples or 0.0 for arm, update in found.updates.items()}
        known = self._weights | now
        for arm, weight in now.items():
            if weight <= _UNQUESTIONED_WEIGHT or len(known) < 2:
                continue
            others = [known[other] for other in known if other != arm]
            if weight > _MOST_TIMES_MEDIAN * (median := statistics.median(others)):
                text = f"{weight:g} examples, where the other clients have {median:g}"
                found.refuse(arm, f"{BAD_WEIGHT}: {text}")
        self._weights |= {arm: now[arm] for arm in found.updates}

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
        """Return the votes on names, and what clients have sent."""
        return {
            "names": self._training.state(),
            "evaluation_names": self._evaluation.state(),
            "like_the_model": self._seen,
            **({"work": self._free_riders.state()} if self._free_riders else {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state` left off."""
        self._training.load_state(state["names"])
        self._evaluation.load_state(state["evaluation_names"])
        self._seen = state.get("like_the_model", True)
        if self._free_riders is not None and "work" in state:
            self._free_riders.load_state(state["work"])

    def _log_failure(self, what: str, arm: int, why: str) -> None:
        if (kind := (what, arm, failure_kind(why))) in self._logged:
            return
        self._logged.add(kind)
        # A missed deadline is ordinary on a fading link.
        level = logging.INFO if why == TIMEOUT else logging.WARNING
        name = self._table.arms[arm].name
        # Half of a large fleet may go at once: of that twenty lines a minute say enough.
        text = f"{what} from {name}: {why}"
        self._log.log(f"{what}, {failure_kind(why)}", name, text, level)

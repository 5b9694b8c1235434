"""Work by speed at the wire: what clients are asked to do, what they do, and how it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
    Strategy,
)

from flower_scheduling.client.wire.protocol import BASE_STEPS, LOCAL_STEPS
from flower_scheduling.errors import ConfigError

from ...base import BoolArray, FloatArray
from ...local_work import EQUAL, EQUAL_TIME, WorkBySpeed
from ..arm_table import ArmTable
from ..record import ArmResult
from ..replies import client_steps, reported
from ..timed_grid import LOGGER, Exchange

_NOT_SCALED: Final = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
)
"""Those whose updates cannot be made longer or shorter: their clients have clipped them to the norm
that the noise is for, or they are trees."""
_NO_EFFECT: Final = (
    "local_work=%r has no effect: no client's reply says how many local steps it has made; the app "
    'is to read message.content["scheduling"]["local-steps"], and to reply with it '
    "(docs/how-to/work-by-speed.md)"
)
_NO_EFFECT_ON: Final = (
    "%s does not reply how many local steps it has made: local_work=%r has no effect on it"
)


class LocalWork:
    """How much local work clients are asked for; see :class:`.WorkBySpeed` for the rule.

    A request has the steps that are asked for under ``local-steps`` of its record ``scheduling``,
    and the base work under ``base-steps``; the reply has the steps that were made under
    ``local-steps`` of its own record of that name. They are believed as far as they lie between the
    fewest and the most that any client is asked for: one that claims a single step would have its
    update made longer by as many as it has made. A reply that does not tell stands for the base
    work.

    Parameters
    ----------
    kind : {"equal", "equal-time"}
        ``"equal"``: nothing is asked for.
    base_steps : int or None
        Base work [local steps].
    num_selected : int
        N.
    least, most : float
        Bounds of the work, in times of the base work.
    strategy : Strategy
        The one that is wrapped.

    Raises
    ------
    ConfigError
        If a number is out of range or missing, or the wrapped strategy does not allow it.
    """

    def __init__(
        self,
        kind: str,
        base_steps: int | None,
        num_selected: int,
        least: float,
        most: float,
        strategy: Sequence[Strategy],
    ) -> None:
        if kind not in (EQUAL, EQUAL_TIME):
            raise ConfigError("local_work", kind, f"must be {EQUAL} or {EQUAL_TIME}")
        self._speeds: WorkBySpeed | None = None
        self._asked: dict[int, int] = {}  # by arm, the last time
        self._asked_late: dict[int, int] = {}  # by arm, in its last message that was late
        self._bounds = (least, most)
        self._told = self._any_told = False
        if kind == EQUAL:
            return
        if base_steps is None:
            text = "needs ScheduledStrategy(..., local_steps=), a client's usual number of steps"
            raise ConfigError("local_work", kind, text)
        for inner in strategy:
            if isinstance(inner, _NOT_SCALED):
                text = f"{type(inner).__name__} allows no update to be made longer or shorter"
                raise ConfigError("local_work", kind, text, 'use local_work="equal"')
        self._speeds = WorkBySpeed(base_steps, num_selected, least, most)

    @property
    def by_speed(self) -> bool:
        """Whether clients are asked for work by their speed."""
        return self._speeds is not None

    def settings(self) -> dict[str, int | float | str]:
        """Return what was asked for under the keys of a run's settings, but for defaults."""
        if self._speeds is None:
            return {}
        least, most = self._bounds
        return {
            "local-work": EQUAL_TIME,
            "local-steps": self._speeds.base_steps,
            "least-work": least,
            "most-work": most,
        }

    def describe(self) -> str:
        """Say in some words what clients are asked for; empty where nothing is."""
        if (speeds := self._speeds) is None:
            return ""
        least, most = speeds.least_steps, speeds.most_steps
        return f"{EQUAL_TIME}, {speeds.base_steps} local steps, by speed {least} to {most}"

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, arms: Sequence[int], there: BoolArray) -> FloatArray | None:
        """Decide how many steps arms are asked for.

        Parameters
        ----------
        arms : sequence of int
            Who is asked.
        there : (num_arms,) bool
            Arms that could work now, those that do among them.

        Returns
        -------
        (len(arms),) float64, or None
            How many times as long as with the base work each will take; ``None``: all the same.
        """
        if (speeds := self._speeds) is None:
            return None
        steps = speeds.ask(arms, there).tolist()
        self._asked |= dict(zip(arms, steps, strict=True))
        return speeds.slowdowns(arms, steps)

    def request(self, arm: int) -> dict[str, int]:
        """Return what the request to an arm says, of the steps that were decided last."""
        if self._speeds is None:
            return {}
        return {LOCAL_STEPS: self._asked[arm], BASE_STEPS: self._speeds.base_steps}

    # -- learning -------------------------------------------------------------------------------

    def learn(self, exchanges: Sequence[Exchange], table: ArmTable) -> list[Exchange]:
        """Learn from answers; return the exchanges with the times of the base work."""
        if (speeds := self._speeds) is None:
            return list(exchanges)
        found = []
        for each in exchanges:
            if each.reply is not None and each.reply.has_content() and each.rtt_s is not None:
                arm = table.arm_of(each.node_id).index
                steps = self._believed(each.reply)
                compute_s = reported(each.reply, MetricRecord()).get("compute_s")
                speeds.tell(arm, steps, each.rtt_s, compute_s)
                base_s = speeds.at_base_s(arm, steps, each.rtt_s, compute_s)
                each = replace(each, rtt_s=base_s)
            found.append(each)
        return found

    def note_late(self, arms: Sequence[int]) -> None:
        """Note that arms are late: they may be asked again before their replies are read."""
        if self._speeds is not None:
            self._asked_late |= {arm: self._asked[arm] for arm in arms}

    def noted(self, results: Sequence[ArmResult], *, late: bool = False) -> list[ArmResult]:
        """Return results with the steps that were asked for."""
        if self._speeds is None:
            return list(results)
        asked = self._asked_late if late else self._asked
        return [replace(each, steps_asked=asked.get(each.arm)) for each in results]

    def warn(self, results: Sequence[ArmResult]) -> None:
        """Say, once, if clients do not tell how many steps they have made."""
        done = [each for each in results if each.completed]
        if self._speeds is None or self._told or not done:
            return
        self._any_told |= any(each.steps_done is not None for each in done)
        silent = [each.name for each in done if each.steps_done is None]
        if silent:
            self._told = True
            if self._any_told:
                LOGGER.warning(_NO_EFFECT_ON, silent[0], EQUAL_TIME)
            else:
                LOGGER.warning(_NO_EFFECT, EQUAL_TIME)

    # -- aggregating ----------------------------------------------------------------------------

    def scale(self, reply: Message) -> float:
        """Return how much longer or shorter to make an update, see :meth:`.WorkBySpeed.scale`."""
        if self._speeds is None:
            return 1.0
        return self._speeds.scale(self._believed(reply))

    def _believed(self, reply: Message) -> int:
        assert self._speeds is not None
        if (steps := client_steps(reply)) is None:
            return self._speeds.base_steps
        return min(max(steps, self._speeds.least_steps), self._speeds.most_steps)

    # -- checkpoints ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any] | None:
        """Return what was asked for and learned; ``None`` where nothing is."""
        if self._speeds is None:
            return None
        return {
            **self._speeds.state_dict(),
            "asked": {str(arm): steps for arm, steps in self._asked.items()},
            "asked_late": {str(arm): steps for arm, steps in self._asked_late.items()},
            "told": [self._told, self._any_told],
        }

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Go on where :meth:`state` left off."""
        if self._speeds is None or state is None:
            return
        self._speeds.load_state_dict(state)
        self._asked, self._asked_late = (
            {int(arm): int(steps) for arm, steps in state[key].items()}
            for key in ("asked", "asked_late")
        )
        self._told, self._any_told = map(bool, state["told"])

"""Conformance suite: what every scheduling policy promises, for policies of your own as well.

::

    from flower_scheduling.strategies.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from flower_scheduling.errors import RoundOrderError

from .base import (
    FloatArray,
    RoundContext,
    RoundOutcome,
    SchedulingPolicy,
    Selection,
)
from .floors import FloorPolicy, QueuePolicy
from .policy_spec import PolicySpec
from .registry import find_policy
from .update_sketch import SKETCH_SIZE

TAU_MAX_S: Final = 5.0
"""Deadline of every case [s]."""
_TOLERANCE: Final = 1e-12


@dataclass(frozen=True)
class Case:
    """A fleet and its history: settings of a policy, and what the clients do in each round.

    Attributes
    ----------
    num_arms, num_selected, num_rounds : int
        K, N and T.
    batch_shape : tuple of int
        Leading axes, as in a study of many seeds.
    availability : float
        Probability that an arm is available in a round.
    seed : int
        Of the policy's parameters and of the history.
    """

    num_arms: int
    num_selected: int
    num_rounds: int
    batch_shape: tuple[int, ...] = ()
    availability: float = 1.0
    seed: int = 0

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Case:
        """Draw a case; corners such as no arms at all, or fewer than N, are among them."""
        batch_shapes: tuple[tuple[int, ...], ...] = ((), (3,), (2, 2))
        return cls(
            num_arms=int(rng.integers(0, 10)),
            num_selected=int(rng.integers(1, 6)),
            num_rounds=int(rng.integers(1, 26)),
            batch_shape=batch_shapes[rng.integers(3)],
            availability=float(rng.choice([1.0, 0.9, 0.4])),
            seed=int(rng.integers(2**32)),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """``(*batch, num_arms)``."""
        return (*self.batch_shape, self.num_arms)

    def floors(self, spec: PolicySpec) -> FloatArray | None:
        """Return floors for a policy that keeps some, feasible or not; else ``None``."""
        if not spec.keeps_floors:
            return None
        return np.random.default_rng(self.seed).choice([0.0, 0.3, 0.5, 0.9], self.num_arms)

    def build(
        self, spec: PolicySpec, batch_shape: tuple[int, ...] | None = None
    ) -> SchedulingPolicy:
        """Build the policy of this case."""
        own = dict(spec.example(self.num_arms, np.random.default_rng([self.seed, 2])))
        if (floors := self.floors(spec)) is not None:
            own["min_participation"] = floors
        if batch_shape is None:
            batch_shape = self.batch_shape
        if "batch_shape" in spec.parameters():
            own["batch_shape"] = batch_shape
        return spec.build(
            num_arms=self.num_arms,
            num_selected=self.num_selected,
            tau_max_s=TAU_MAX_S,
            rng=np.random.default_rng(self.seed),
            **own,
        )

    def rounds(self) -> Iterator[tuple[RoundContext, RoundOutcome]]:
        """Yield context and outcome of each round; times of arms that failed are not known."""
        rng, of_updates = (np.random.default_rng([self.seed, stream]) for stream in (1, 4))
        for t in range(1, self.num_rounds + 1):
            available = rng.random(self.shape) < self.availability
            # A coarse grid, so that ties occur; some beyond the deadline.
            times = rng.integers(0, 13, self.shape) / 2.0
            completed = (times <= TAU_MAX_S) & (rng.random(self.shape) < 0.9)
            accuracy, loss = (
                np.where(rng.random(self.shape) < 0.5, rng.random(self.shape), np.nan)
                for _ in range(2)
            )
            reported = {"local_accuracy": accuracy, "loss": loss}
            times = np.where(completed, times, np.nan)
            sketch = of_updates.normal(size=(*self.shape, SKETCH_SIZE))
            sketch[of_updates.random(self.shape) < 0.2] = np.nan
            outcome = RoundOutcome(times, completed, reported, sketch)
            yield RoundContext(t, available), outcome

    def play(
        self, policy: SchedulingPolicy
    ) -> Iterator[tuple[RoundContext, Selection, RoundOutcome]]:
        """Play the case; yield each round before the policy learns from it."""
        for context, outcome in self.rounds():
            selection = policy.ask(context)
            yield context, selection, outcome
            policy.tell(selection, outcome)


def check_policy(
    policy: str | type[SchedulingPolicy] | PolicySpec, *, num_cases: int = 25, seed: int = 0
) -> None:
    """Play random histories with a policy, and hold it to what every policy promises.

    Parameters
    ----------
    policy : str, type or PolicySpec
        Name of a policy, its class, or its registry entry. A class with parameters that have no
        default needs an entry with an ``example``.
    num_cases : int
        Histories that each check plays.
    seed : int
        Of the histories.

    Raises
    ------
    AssertionError
        If a promise is broken; the text says which, and in which case.
    """
    spec = _spec(policy)
    rng = np.random.default_rng(seed)
    for _ in range(num_cases):
        case = Case.draw(rng)
        if "batch_shape" not in spec.parameters():
            case = replace(case, batch_shape=())
        for check in CHECKS:
            try:
                check(spec, case)
            except AssertionError as error:
                text = f"{spec.name}: {check.__name__}: {error} in {case}"
                raise AssertionError(text) from error


def check_selection(spec: PolicySpec, case: Case) -> None:
    """Require a super arm that is available and full, and that asking learns nothing."""
    policy = case.build(spec)
    for context, selection, _ in case.play(policy):
        before = learned(policy)
        again = policy.ask(context).mask
        assert learned(policy) == before, "ask changed what was learned"
        for mask in (again, selection.mask):
            assert mask.dtype == np.bool_, f"the mask is {mask.dtype}, not bool"
            assert mask.shape == case.shape, f"the mask has shape {mask.shape}, not {case.shape}"
            assert not (mask & ~context.available).any(), "an arm was selected that is unavailable"
            supply = np.minimum(context.available.sum(axis=-1), case.num_selected)
            assert np.array_equal(mask.sum(axis=-1), supply), "the super arm has another size"
        if isinstance(policy, QueuePolicy):
            assert (policy.virtual_queue >= 0).all(), "a virtual queue is negative"


def check_order(spec: PolicySpec, case: Case) -> None:
    """Require that a round is told once: asking, explaining or telling it again is refused."""
    policy = case.build(spec)
    context, outcome = next(case.rounds())
    selection = policy.ask(context)
    policy.tell(selection, outcome)
    for repeat in (
        lambda: policy.ask(context),
        lambda: policy.tell(selection, outcome),
        lambda: policy.explain(selection),
    ):
        try:
            repeat()
        except RoundOrderError:
            continue
        raise AssertionError("a round that was told was taken again")


def check_reload(spec: PolicySpec, case: Case, *, json_too: bool = True) -> None:
    """Require that a policy which loads another's state goes on as that one, also from JSON."""
    policy, twin = case.build(spec), case.build(spec)
    half = case.num_rounds // 2
    for context, outcome in case.rounds():
        if context.round == half + 1:
            state = policy.state_dict()
            twin.load_state_dict(json.loads(as_json(state)) if json_too else state)
        selection = policy.ask(context)
        policy.tell(selection, outcome)
        if context.round > half:
            again = twin.ask(context)
            same = np.array_equal(again.mask, selection.mask)
            assert same, "after a reload another super arm was selected"
            twin.tell(again, outcome)
    assert as_json(twin.state_dict()) == as_json(policy.state_dict()), "the states differ"


def check_rows(spec: PolicySpec, case: Case) -> None:
    """Require that a row of a batch learns what a policy without batch axes learns from it."""
    policy = case.build(spec)
    rows = list(np.ndindex(case.batch_shape))
    alone = {row: case.build(spec, batch_shape=()) for row in rows}
    for context, selection, outcome in case.play(policy):
        for row in rows:
            reported = {key: value[row] for key, value in outcome.reported.items()}
            sketch = None if outcome.update_sketch is None else outcome.update_sketch[row]
            times, completed = outcome.round_trip_time_s[row], outcome.completed[row]
            alone[row].tell(
                Selection(RoundContext(context.round, context.available[row]), selection.mask[row]),
                RoundOutcome(times, completed, reported, sketch),
            )
    for key, value in policy.state_dict().items():
        of_rows = isinstance(value, np.ndarray) and key != "min_participation"
        if of_rows and value.shape[: len(case.batch_shape)] == case.batch_shape:
            for row in rows:
                found = alone[row].state_dict()[key]
                assert np.array_equal(value[row], found), f"{key} of row {row} differs"


def check_new_arms(spec: PolicySpec, case: Case) -> None:
    """Require that new arms begin untried and leave what was learned of the others as it is."""
    policy = case.build(spec)
    for _ in case.play(policy):
        pass
    before = policy.state_dict()
    rng = np.random.default_rng([case.seed, 3])
    count = int(rng.integers(0, 5))
    required = [name for name, needed in spec.parameters().items() if needed]
    example = spec.example(count, rng)
    policy.add_arms(count, **{name: example[name] for name in required if name in example})
    after = policy.state_dict()
    assert policy.num_arms == case.num_arms + count, "the number of arms is wrong"
    for key in ("play_count", "mean_reward"):
        kept = after[key][..., : case.num_arms]
        assert np.array_equal(kept, before[key]), f"{key} of the old arms changed"
        assert not after[key][..., case.num_arms :].any(), f"{key} of a new arm is not 0"
    everyone = np.ones(policy.shape, dtype=np.bool_)
    mask = policy.ask(RoundContext(case.num_rounds + 1, everyone)).mask
    expected = min(policy.num_arms, case.num_selected)
    assert (mask.sum(axis=-1) == expected).all(), "the super arm has another size"


def check_floors(spec: PolicySpec, case: Case) -> None:
    """Require that what takes floors is a FloorPolicy: a fleet sets them anew as clients join."""
    if spec.keeps_floors:
        policy = case.build(spec)
        assert isinstance(policy, FloorPolicy), "it takes min_participation and is no FloorPolicy"
        policy.min_participation = np.full(case.num_arms, 0.25)


def check_explanation(spec: PolicySpec, case: Case) -> None:
    """Require that no available arm is left out which an explanation's rule puts first."""
    policy = case.build(spec)
    for context, selection, _ in case.play(policy):
        before = as_json(policy.state_dict())
        explanation = policy.explain(selection)
        assert as_json(policy.state_dict()) == before, "explain changed the policy"
        if explanation is None:
            continue
        for name, part in explanation.parts.items():
            assert part.shape == case.shape, f"part {name} has shape {part.shape}"
            assert part.dtype == np.float64, f"part {name} is {part.dtype}"
            assert not np.isnan(part).any(), f"part {name} has a NaN"
        if explanation.rule == "drawn":
            continue
        sign = 1.0 if explanation.rule == "smallest" else -1.0
        ascending = explanation.score * sign
        size = sum(np.where(np.isinf(part), 0.0, abs(part)) for part in explanation.parts.values())
        slack = _TOLERANCE * (1.0 + np.max(size, initial=0.0))
        outside = np.where(context.available & ~selection.mask, ascending, np.inf)
        inside = np.where(selection.mask, ascending, -np.inf)
        if case.num_arms:
            first_left_out, last_taken = outside.min(axis=-1), inside.max(axis=-1)
            with np.errstate(invalid="ignore"):
                wrong = first_left_out + slack < last_taken
            assert not wrong.any(), "an arm was left out that the explanation puts first"


CHECKS: Final[tuple[Callable[[PolicySpec, Case], None], ...]] = (
    check_selection,
    check_order,
    check_reload,
    check_rows,
    check_new_arms,
    check_floors,
    check_explanation,
)
"""All checks; each takes a policy's registry entry and a case."""


def as_json(state: Mapping[str, Any]) -> str:
    """Return a policy's state as text, to compare or to load again."""
    return json.dumps(state, default=np.ndarray.tolist)


def learned(policy: SchedulingPolicy) -> str:
    """Return what a policy has learned, the generator apart, as text."""
    state = policy.state_dict()
    del state["rng"]
    return as_json(state)


def _spec(policy: str | type[SchedulingPolicy] | PolicySpec) -> PolicySpec:
    if isinstance(policy, PolicySpec):
        return policy
    return find_policy(policy) if isinstance(policy, str) else PolicySpec.of(policy)

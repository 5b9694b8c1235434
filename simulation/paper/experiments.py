"""Experiments of the paper: scheduling studies by chunks of drops, and training runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from flower_scheduling.strategies.base import FloatArray

from ..engine.study import SEEDS_PER_CHUNK, Contender, drop, run_chunk
from ..environments.paper import Environment
from ..jobs import Arrays, Job
from ..theory.optimum import (
    MAX_EXACT_ARMS,
    best_fixed_set,
    best_stationary_policy,
    mean_slowest_of_law,
)
from ..theory.regret import best_set_regret_s, literal_regret_s, pseudo_regret_s, regret_s
from .settings import PaperConfig

__all__ = [
    "BASELINES",
    "StudyCurves",
    "StudyPlan",
    "TrainingPlan",
    "beta_label",
    "channels_plan",
    "checkpoints",
    "ideal_plan",
    "scale_plan",
    "tradeoff_plan",
    "training_plans",
]

# Policies of the paper's figures in the ideal scenario.
BASELINES: Final = ("cs-ucb", "random", "round-robin")
_NUM_CHECKPOINTS: Final = 60


# --- studies --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyPlan:
    """Plan of a scheduling study: policies on the same draws.

    Attributes
    ----------
    name : str
        Unique among the plans.
    contenders : mapping of str to Contender
        By label.
    environment : partial
        Of :class:`Environment`, without batch shape and seed.
    num_selected : int
        Arms per round, N.
    num_rounds : int
        Rounds, T.
    tau_max_s : float
        Deadline [s].
    num_drops : int
        Placements.
    seed : int
        Seed of the study.
    floors : tuple of float, optional
        Participation floors that the optimum has to meet; ``None``: the ideal scenario.
    availability : float
        Of each client.
    """

    name: str
    contenders: Mapping[str, Contender]
    environment: partial[Environment]
    num_selected: int
    num_rounds: int
    tau_max_s: float
    num_drops: int
    seed: int
    floors: tuple[float, ...] | None = None
    availability: float = 1.0

    def jobs(self) -> list[Job]:
        """Return one job per chunk of drops."""
        num_arms = self.environment.keywords["num_arms"]
        chunks = range(math.ceil(self.num_drops / SEEDS_PER_CHUNK))
        # Measured: some microseconds per policy and round, and 4 ns per number that it handles.
        rows = min(SEEDS_PER_CHUNK, self.num_drops)
        each_s = self.num_rounds * (4e-5 + 1.2e-8 * rows * num_arms)
        cost_s = each_s * (1 + len(self.contenders))
        if self.floors is not None and num_arms > MAX_EXACT_ARMS:
            cost_s += 2.0 * rows
        return [
            Job(f"{self.name}-{chunk:03}", partial(_compute_chunk, self, chunk), cost_s)
            for chunk in chunks
        ]

    def curves(self, results: Mapping[str, Arrays]) -> StudyCurves:
        """Join the chunks."""
        parts = [results[job.name] for job in self.jobs()]
        joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        return StudyCurves(self, checkpoints(self.num_rounds), joined)


@dataclass(frozen=True)
class StudyCurves:
    """Results of a study by label: a row per drop, a column per checkpoint.

    Attributes
    ----------
    plan : StudyPlan
        The study's plan.
    rounds : (num_checkpoints,) int64
        The checkpoints.
    arrays : dict
        Results of the jobs, joined.
    """

    plan: StudyPlan
    rounds: np.ndarray[tuple[int], np.dtype[np.int64]]
    arrays: Arrays = field(repr=False)

    def time_s(self, label: str) -> FloatArray:
        """Return the time of the rounds so far [s], (num_drops, num_checkpoints)."""
        return self.arrays[f"{label}/time_s"]

    def failures(self, label: str) -> FloatArray:
        """Return the failed clients so far, (num_drops, num_checkpoints)."""
        return self.arrays[f"{label}/failures_at"].astype(np.float64)

    def fraction(self, label: str) -> FloatArray:
        """Return the selection fractions so far, (num_drops, num_checkpoints, num_arms)."""
        return self.arrays[f"{label}/play_count_at"] / self.rounds[:, np.newaxis]

    @property
    def expected_time_s(self) -> FloatArray:
        """True means E min(tau, tau_max) [s], (num_drops, num_arms)."""
        return self.arrays["expected_time_s"]

    def gap_s(self, label: str) -> FloatArray:
        """Return the paper's cumulative gap [s]: against the best set of means, or the program."""
        if self.plan.floors is None:
            return literal_regret_s(
                self.time_s(label), self.rounds, self.expected_time_s, self.plan.num_selected
            )
        return regret_s(self.time_s(label), self.rounds, self.arrays["program_s"])

    def pseudo_s(self, label: str) -> FloatArray:
        """Return the regret of the paper's proof [s]."""
        cumulative = self.arrays[f"{label}/pseudo_time_s"]
        if self.plan.floors is None:
            return pseudo_regret_s(
                cumulative, self.rounds, self.expected_time_s, self.plan.num_selected
            )
        return regret_s(cumulative, self.rounds, self.arrays["program_s"])

    def honest_s(self, label: str) -> FloatArray:
        """Return the regret against what the best schedule really takes [s]."""
        if self.plan.floors is None:
            return best_set_regret_s(self.time_s(label), self.rounds, self.arrays["best_set_s"])
        return regret_s(self.time_s(label), self.rounds, self.arrays["program_real_s"])


def checkpoints(num_rounds: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rounds that are recorded: dense at the start, 20 among them, the last and half."""
    even = np.linspace(0, num_rounds, _NUM_CHECKPOINTS // 2 + 1)[1:]
    early = np.geomspace(1, num_rounds, _NUM_CHECKPOINTS // 2)
    chosen = np.concatenate([even, early, [20, num_rounds // 2, num_rounds]])
    rounded: np.ndarray[tuple[int], np.dtype[np.int64]] = np.unique(
        np.rint(chosen).astype(np.int64)
    )
    return rounded[(rounded >= 1) & (rounded <= num_rounds)]


def _compute_chunk(plan: StudyPlan, chunk: int) -> Arrays:
    results = run_chunk(
        plan.contenders,
        plan.environment,
        chunk,
        num_selected=plan.num_selected,
        tau_max_s=plan.tau_max_s,
        num_rounds=plan.num_rounds,
        num_seeds=plan.num_drops,
        seed=plan.seed,
        checkpoints=checkpoints(plan.num_rounds).tolist(),
        true_means=True,
    )
    arrays: Arrays = {}
    for label, result in results.items():
        arrays[f"{label}/time_s"] = result.time_s
        arrays[f"{label}/failures_at"] = result.failures_at.astype(np.int32)
        arrays[f"{label}/play_count_at"] = result.play_count_at.astype(np.int32)
        assert result.pseudo_time_s is not None
        arrays[f"{label}/pseudo_time_s"] = result.pseudo_time_s
    env = drop(plan.environment, chunk, plan.num_drops, plan.seed)
    means_s = env.expected_time_s(plan.tau_max_s)
    arrays["expected_time_s"] = means_s
    survival, weight_s = env.time_law(plan.tau_max_s)
    rows = len(means_s)
    if plan.floors is None:
        arrays["best_set_s"] = np.array(
            [
                best_fixed_set(
                    mean_slowest_of_law(survival[:, row], weight_s),
                    env.num_arms,
                    plan.num_selected,
                    exhaustive=False,
                ).cost_s
                for row in range(rows)
            ]
        )
        return arrays
    return arrays | _programs(plan, means_s, survival, weight_s)


def _programs(
    plan: StudyPlan, means_s: FloatArray, survival: FloatArray, weight_s: FloatArray
) -> Arrays:
    """Return the optimum of the linear program of each drop [s].

    ``program_s`` is the paper's, by means. ``program_real_s``, what the best schedule really
    takes, minimises E max; with many arms it would take hours.
    """
    assert plan.floors is not None
    solve = partial(
        best_stationary_policy,
        min_participation=plan.floors,
        num_selected=plan.num_selected,
        availability=plan.availability,
    )
    few = means_s.shape[1] <= MAX_EXACT_ARMS
    found: dict[bytes, list[float]] = {}  # fixed distances: all drops are the same
    for row, means in enumerate(means_s):
        if (key := means.tobytes()) not in found:
            found[key] = [solve(means).cost_s]
            if few:
                real_cost = mean_slowest_of_law(survival[:, row], weight_s)
                found[key].append(solve(real_cost).cost_s)
    columns = np.array([found[means.tobytes()] for means in means_s]).T
    names = ("program_s", "program_real_s") if few else ("program_s",)
    return dict(zip(names, columns, strict=True))


def ideal_plan(config: PaperConfig) -> StudyPlan:
    """Return K = 20, N = 5, T = 5000: all policies that need no training."""
    known_means = partial(_known_means, tau_max_s=config.tau_max_s)
    share = config.ideal_selected / config.ideal_clients
    floors = {"beta": config.beta, "min_participation": [share / 2] * config.ideal_clients}
    contenders = {
        **{name: Contender(name) for name in (*BASELINES, "modified-cs-ucb")},
        "cs-ucb-q": Contender("cs-ucb-q", floors),
        "oracle": Contender("oracle", from_environment=known_means),
    }
    return StudyPlan(
        name="ideal",
        contenders=contenders,
        environment=_environment(config, config.ideal_clients),
        num_selected=config.ideal_selected,
        num_rounds=config.ideal_rounds,
        tau_max_s=config.tau_max_s,
        num_drops=config.drops,
        seed=config.seed,
    )


def channels_plan(config: PaperConfig, num_selected: int) -> StudyPlan:
    """Return the ideal scenario with another number of channels; the same drops for each."""
    return StudyPlan(
        name=f"channels-{num_selected:02}",
        contenders={name: Contender(name) for name in BASELINES},
        environment=_environment(config, config.ideal_clients),
        num_selected=num_selected,
        num_rounds=config.ideal_rounds,
        tau_max_s=config.tau_max_s,
        num_drops=config.sweep_drops,
        seed=config.seed + 1,
    )


def beta_label(beta: float, *, truncate: bool) -> str:
    """Return how figures and tables call CS-UCB-Q with this beta."""
    return f"cs-ucb-q, beta={beta:g}" + ("" if truncate else ", untruncated")


def tradeoff_plan(config: PaperConfig) -> StudyPlan:
    """Return K = 3, N = 2: several beta, with and without the printed truncation, and no floors."""
    floors = config.floor_values
    contenders = {
        beta_label(beta, truncate=truncate): Contender(
            "cs-ucb-q", {"beta": beta, "truncate": truncate, "min_participation": floors}
        )
        for truncate in (True, False)
        for beta in config.beta_values
    }
    contenders |= {name: Contender(name) for name in ("modified-cs-ucb", "random", "round-robin")}
    return StudyPlan(
        name="tradeoff",
        contenders=contenders,
        environment=_environment(
            config,
            len(floors),
            availability=config.availability,
            distance_m=config.distance_values,
        ),
        num_selected=config.tradeoff_selected,
        num_rounds=config.tradeoff_rounds,
        tau_max_s=config.tau_max_s,
        num_drops=min(config.drops, SEEDS_PER_CHUNK) if config.distance_values else config.drops,
        seed=config.seed + 2,
        floors=tuple(floors),
        availability=config.availability,
    )


def scale_plan(config: PaperConfig, num_selected: int, rho: float) -> StudyPlan:
    """Return K = 20, T = 20000: CS-UCB-Q with floors rho s_k / sum s."""
    floors = config.scale_floors(rho)
    params = {"beta": config.beta, "min_participation": floors}
    return StudyPlan(
        name=f"scale-{num_selected:02}-{rho:g}",
        contenders={
            "cs-ucb-q": Contender("cs-ucb-q", params),
            "cs-ucb-q, untruncated": Contender("cs-ucb-q", {**params, "truncate": False}),
        },
        environment=_environment(config, config.scale_clients, availability=config.availability),
        num_selected=num_selected,
        num_rounds=config.scale_rounds,
        tau_max_s=config.tau_max_s,
        num_drops=config.scale_drops,
        seed=config.seed + 3,
        floors=tuple(floors),
        availability=config.availability,
    )


def _environment(config: PaperConfig, num_arms: int, **settings: Any) -> partial[Environment]:
    return partial(
        Environment, num_arms=num_arms, link=config.link(), compute=config.compute(), **settings
    )


def _known_means(env: Environment, tau_max_s: float) -> Mapping[str, FloatArray]:
    return {"expected_time_s": env.expected_time_s(tau_max_s)}


_Policies: TypeAlias = dict[str, dict[str, int | float | bool | str]]

# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of training runs of several policies; those of one seed see the same draws.

    Attributes
    ----------
    name : str
        Unique among all plans.
    policies : mapping of str to mapping
        Label to its settings, ``strategy`` and others.
    settings : mapping
        Their common settings, those of a simulation.
    num_seeds : int
        Runs of each policy.
    seed : int
        Their first seed.
    """

    name: str
    policies: Mapping[str, Mapping[str, int | float | bool | str]]
    settings: Mapping[str, int | float | bool | str]
    num_seeds: int
    seed: int

    def jobs(self) -> list[Job]:
        """Return one job per policy and seed."""
        num_rounds = int(self.settings["rounds"])
        return [
            Job(
                self._name(label, seed),
                partial(_train, {**self.settings, **policy, "seed": self.seed + seed}),
                num_rounds / (60.0 if policy["strategy"] == "local-accuracy" else 2500.0) + 3.0,
            )
            for label, policy in self.policies.items()
            for seed in range(self.num_seeds)
        ]

    def curve(self, results: Mapping[str, Arrays], label: str, key: str) -> FloatArray:
        """Return ``accuracy``, ``time_s`` or ``rounds``, (num_seeds, num_evaluations)."""
        return np.stack(
            [results[self._name(label, seed)][key] for seed in range(self.num_seeds)]
        ).astype(np.float64)

    def _name(self, label: str, seed: int) -> str:
        return f"{self.name}-{label.replace(', ', '-')}-{seed:03}"


def training_plans(config: PaperConfig) -> dict[str, TrainingPlan]:
    """Return the three training scenarios: ideal, non-ideal, and non-ideal with equal sizes."""
    common: dict[str, int | float | bool | str] = {
        "tau-max-s": config.tau_max_s,
        "batch-size": config.batch_size,
        "learning-rate": config.learning_rate,
        "local-steps": config.local_steps,
        "payload-bits": repr(config.payload_bits),
        "cell-radius-m": config.cell_radius_m,
        "path-loss-intercept-db": config.path_loss_intercept_db,
        "path-loss-slope-db": config.path_loss_slope_db,
        "tx-power-dbm": config.tx_power_dbm,
        "noise-dbm": config.noise_dbm,
        "bandwidth-hz": config.bandwidth_hz,
        "base-rate": config.base_rate,
    }
    ideal = {
        **common,
        "scenario": "ideal",
        "num-clients": config.ideal_clients,
        "num-selected": config.ideal_selected,
        "rounds": config.ideal_training_rounds,
        "eval-every": max(1, config.ideal_training_rounds // 100),
    }
    non_ideal = {
        **common,
        "num-clients": config.non_ideal_clients,
        "num-selected": config.non_ideal_selected,
        "availability": repr(config.availability),
        # The paper's c_k = (N/2) s_k / sum s.
        "fairness": f"proportional:{config.non_ideal_selected / 2:g}",
        "partitioner": f"by-label:{config.large_share},{config.small_share}",
        "rounds": config.non_ideal_training_rounds,
        "eval-every": max(1, config.non_ideal_training_rounds // 100),
    }
    others = ("modified-cs-ucb", "random", "round-robin", "local-accuracy")
    queues: _Policies = {
        "cs-ucb-q": {"strategy": "cs-ucb-q", "beta": config.beta},
        "cs-ucb-q, untruncated": {
            "strategy": "cs-ucb-q",
            "beta": config.beta,
            "truncate": False,
        },
    }
    heterogeneous: _Policies = {**queues, **{name: {"strategy": name} for name in others}}
    equal = {**non_ideal, "partitioner": f"by-label:{config.equal_share},{config.equal_share}"}
    names = (*BASELINES, "local-accuracy")
    homogeneous: _Policies = {name: {"strategy": name} for name in names}
    plans = (
        ("ideal", homogeneous, ideal),
        ("non-ideal", heterogeneous, non_ideal),
        ("equal", heterogeneous, equal),
    )
    return {
        name: TrainingPlan(f"train-{name}", policies, settings, config.training_seeds, config.seed)
        for name, policies, settings in plans
    }


def _train(settings: Mapping[str, Any]) -> Arrays:
    from ..engine.batched import run_batched
    from ..settings import SCENARIOS, SimulationConfig

    preset = {**SCENARIOS[str(settings.get("scenario", "non-ideal"))], "target-accuracy": 0.0}
    curve = run_batched(SimulationConfig.from_mapping({**preset, **settings}))
    return {
        "rounds": curve.rounds,
        "time_s": curve.time_s,
        "accuracy": curve.accuracy,
        "loss": curve.loss,
        "selections": curve.selections,
        "failures": curve.failures,
    }

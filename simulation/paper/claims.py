"""The paper's claims, each with a measured quantity, its interval and a verdict.

A verdict follows from the interval alone: the claim *holds* if all of the interval is on its side,
*does not hold* if none of it is, and is *not resolved* otherwise. Nothing is tuned to make a claim
hold, and where the printed algorithm and the paper's figure disagree both are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from flower_scheduling.strategies.base import FloatArray

from ..theory.estimate import Estimate, estimate, ratio_of_means
from .experiments import (
    BASELINES,
    TrainingPlan,
    beta_label,
    channels_plan,
    ideal_plan,
    scale_plan,
    tradeoff_plan,
    training_plans,
)
from .figures import Results

HOLDS: Final = "holds"
DOES_NOT_HOLD: Final = "does not hold"
NOT_RESOLVED: Final = "not resolved"

_Key = TypeVar("_Key")

# Accuracies that differ by less count as the same.
_SAME_ACCURACY: Final = 0.01


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim of the paper and its verdict.

    Attributes
    ----------
    claim : str
        What the paper says.
    measured : str
        What is estimated here, and from what.
    unit : str
        Of the estimate; empty for shares and ratios.
    estimate : Estimate
        With its 95 % confidence interval.
    side : str
        Where the estimate must be for the claim to hold, e.g. ``above 0``.
    verdict : str
        ``holds``, ``does not hold`` or ``not resolved``.
    note : str
        What else should be known.
    """

    claim: str
    measured: str
    unit: str
    estimate: Estimate
    side: str
    verdict: str
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return asdict(self)


def judge(results: Results) -> list[Claim]:
    """Judge every claim, from the results of all figures."""
    judges: Sequence[Callable[[Results], list[Claim]]] = (
        _after_twenty_rounds,
        _gap_widens,
        _fewer_failures,
        _logarithmic,
        _every_number_of_channels,
        _ideal_training,
        _smaller_beta,
        _slower_to_the_floor,
        _negative_regret,
        _larger_rho,
        _non_ideal_training,
    )
    return [claim for each in judges for claim in each(results)]


# --- ideal scenario -------------------------------------------------------------------------------


def _after_twenty_rounds(results: Results) -> list[Claim]:
    study = results.study(ideal_plan(results.config))
    (column,) = np.flatnonzero(study.rounds == 20)
    claims = []
    for other in BASELINES[1:]:
        saved = study.time_s(other)[:, column] - study.time_s("cs-ucb")[:, column]
        claims.append(
            _above(
                f"CS-UCB beats {other} after 20 rounds",
                f"time of {other} minus that of CS-UCB after 20 rounds, same draws",
                "s",
                estimate(saved),
                note=f"CS-UCB is ahead in {np.mean(saved > 0):.0%} of single drops.",
            )
        )
    return claims


def _gap_widens(results: Results) -> list[Claim]:
    study = results.study(ideal_plan(results.config))
    half = _half(study.rounds)
    claims = []
    for other in BASELINES[1:]:
        saved = study.time_s(other) - study.time_s("cs-ucb")
        claims.append(
            _above(
                f"What CS-UCB saves against {other} grows with the rounds",
                "time saved in the second half of the rounds, same draws",
                "s",
                estimate(saved[:, -1] - saved[:, half]),
                note=f"In all, {estimate(saved[:, -1]).mean:.1f} s of "
                f"{study.time_s(other)[:, -1].mean():.0f} s are saved.",
            )
        )
    return claims


def _fewer_failures(results: Results) -> list[Claim]:
    study = results.study(ideal_plan(results.config))
    ours = study.failures("cs-ucb")[:, -1]
    return [
        _above(
            f"CS-UCB has fewer failed clients than {other}",
            f"failed clients under {other} minus those under CS-UCB, all rounds",
            "clients",
            estimate(study.failures(other)[:, -1] - ours),
            note=f"{ours.mean():.1f} against {study.failures(other)[:, -1].mean():.1f}.",
        )
        for other in BASELINES[1:]
    ]


def _logarithmic(results: Results) -> list[Claim]:
    study = results.study(ideal_plan(results.config))
    half = _half(study.rounds)
    limit = math.log(study.rounds[-1]) / math.log(study.rounds[half])
    readings = {
        "pseudo-regret": study.pseudo_s("cs-ucb"),
        "honest regret": study.honest_s("cs-ucb"),
    }
    if results.config.ideal_selected == results.config.ideal_clients:
        return []  # no policy has any regret
    return [
        _below(
            f"By round {study.rounds[-1]} the regret of CS-UCB is seen to be logarithmic ({name})",
            f"{name} after {study.rounds[-1]} rounds over that after {study.rounds[half]}; "
            f"a logarithm would give {limit:.2f}, a line 2",
            "",
            ratio_of_means(regret[:, -1], regret[:, half]),
            limit=round(limit, 2),
            note="That it becomes so later is not judged here.",
        )
        for name, regret in readings.items()
    ]


def _every_number_of_channels(results: Results) -> list[Claim]:
    config = results.config
    studies = {n: results.study(channels_plan(config, n)) for n in config.channel_counts}
    claims = []
    for other in BASELINES[1:]:
        saved = {
            n: estimate(study.time_s(other)[:, -1] - study.time_s("cs-ucb")[:, -1])
            for n, study in studies.items()
        }
        worst = _worst(saved)
        claims.append(
            _above(
                f"CS-UCB beats {other} at every N",
                f"time of {other} minus that of CS-UCB at the N where it fares worst "
                f"(N = {worst} of {config.channels})",
                "s",
                saved[worst],
            )
        )
    counts = sorted(studies)
    steps = {
        n: estimate(studies[n].gap_s("cs-ucb")[:, -1] - studies[before].gap_s("cs-ucb")[:, -1])
        for before, n in pairwise(counts)
    }
    if steps:
        worst = _worst(steps)
        claims.append(
            _above(
                "The gap grows with N",
                "gap of CS-UCB at one N minus that at the N before, same drops, where it fares "
                f"worst (N = {worst})",
                "s",
                steps[worst],
                note="By the paper's definition of the gap, which grows with N even for the best "
                "set.",
            )
        )
    return claims


def _ideal_training(results: Results) -> list[Claim]:
    plan = training_plans(results.config)["ideal"]
    claims = []
    for other in BASELINES[1:]:
        accuracy = plan.curve(results.arrays, "cs-ucb", "accuracy")[:, -1]
        theirs = plan.curve(results.arrays, other, "accuracy")[:, -1]
        found = estimate(accuracy - theirs)
        inside = abs(found.low) < _SAME_ACCURACY and abs(found.high) < _SAME_ACCURACY
        outside = found.low > _SAME_ACCURACY or found.high < -_SAME_ACCURACY
        claims.append(
            Claim(
                f"Ideal: per round, CS-UCB learns as well as {other}",
                f"final test accuracy of CS-UCB minus that of {other}",
                "",
                found,
                f"within {_SAME_ACCURACY:g} of 0",
                HOLDS if inside else DOES_NOT_HOLD if outside else NOT_RESOLVED,
                f"{accuracy.mean():.3f} against {theirs.mean():.3f} after "
                f"{plan.settings['rounds']} rounds.",
            )
        )
        claims.append(
            _above(
                f"Ideal: CS-UCB needs less time than {other} to the same accuracy",
                f"time of {other} minus that of CS-UCB to the accuracy that both reach",
                "s",
                estimate(_time_saved(results, plan, "cs-ucb", other)),
            )
        )
    return claims


# --- non-ideal scenario ---------------------------------------------------------------------------


def _smaller_beta(results: Results) -> list[Claim]:
    config = results.config
    study = results.study(tradeoff_plan(config))
    claims = []
    for truncate in (True, False):
        totals = [
            study.time_s(beta_label(beta, truncate=truncate))[:, -1] for beta in config.beta_values
        ]
        steps = [estimate(larger - smaller) for larger, smaller in pairwise(totals)]
        if steps:
            worst = _worst(dict(enumerate(steps)))
            larger, smaller = config.beta_values[worst : worst + 2]
            claims.append(
                _above(
                    f"A smaller beta means a smaller gap ({_kind(truncate)})",
                    f"time with beta = {larger:g} minus that with {smaller:g}, the worst of "
                    "the neighbours",
                    "s",
                    steps[worst],
                    note="Totals: "
                    + ", ".join(
                        f"{beta:g}: {total.mean():.0f} s"
                        for beta, total in zip(config.beta_values, totals, strict=True)
                    )
                    + ".",
                )
            )
    return claims


def _slower_to_the_floor(results: Results) -> list[Claim]:
    config = results.config
    study = results.study(tradeoff_plan(config))
    largest, smallest = config.beta_values[0], config.beta_values[-1]
    half = _half(study.rounds)
    lacks = {
        (beta, truncate): (
            np.array(config.floor_values) - study.fraction(beta_label(beta, truncate=truncate))
        )
        for beta in (largest, smallest)
        for truncate in (True, False)
    }
    claims = []
    for truncate in (True, False):
        kind = _kind(truncate)
        # How far the clients that are below their floor are below it, together.
        slow, fast = (
            np.maximum(lacks[beta, truncate][:, half], 0.0).sum(axis=-1)
            for beta in (smallest, largest)
        )
        if smallest != largest:
            claims.append(
                _above(
                    f"A smaller beta is slower to the floors ({kind})",
                    f"share of rounds that clients lack to their floors after {study.rounds[half]} "
                    f"rounds, beta = {smallest:g} minus beta = {largest:g}",
                    "",
                    estimate(slow - fast),
                )
            )
        first = lacks[smallest, truncate][:, :, 0]
        settled = int(np.searchsorted(study.rounds, study.rounds[-1] // 100))
        best = int(first[:, settled:].mean(axis=0).argmin()) + settled
        claims.append(
            _above(
                f"beta = {smallest:g} violates client 1's floor throughout ({kind})",
                "client 1's floor minus its share of rounds where it comes nearest to it, after "
                f"the first hundredth of the rounds (round {study.rounds[best]})",
                "",
                estimate(first[:, best]),
            )
        )
    return claims


def _negative_regret(results: Results) -> list[Claim]:
    config = results.config
    study = results.study(tradeoff_plan(config))
    readings = {
        "by the paper's definition": study.gap_s("modified-cs-ucb")[:, -1],
        "against what the best schedule takes": study.honest_s("modified-cs-ucb")[:, -1],
    }
    return [
        _below(
            f"Modified CS-UCB has negative regret ({name})",
            "time of modified CS-UCB minus that of the linear program's optimum, which keeps the "
            "floors",
            "s",
            estimate(regret),
            note="It ignores the floors. Realised times exceed the program's maxima of means.",
        )
        for name, regret in readings.items()
    ]


def _larger_rho(results: Results) -> list[Claim]:
    config = results.config
    smallest, largest = config.rho_values[0], config.rho_values[-1]
    if smallest == largest:
        return []
    claims = []
    for label in ("cs-ucb-q", "cs-ucb-q, untruncated"):
        kind = _kind("untruncated" not in label)
        for what in ("delay", "gap"):
            found = {}
            for n in config.scale_channel_counts:
                small, large = (
                    results.study(scale_plan(config, n, rho)) for rho in (smallest, largest)
                )
                if what == "delay":
                    values = large.time_s(label)[:, -1] - small.time_s(label)[:, -1]
                else:
                    values = large.gap_s(label)[:, -1] - small.gap_s(label)[:, -1]
                found[n] = estimate(values)
            worst = _worst(found)
            measured = "total time" if what == "delay" else "gap to the program's optimum"
            claims.append(
                _above(
                    f"A larger rho means a larger {what} ({kind})",
                    f"{measured} with rho = {largest:g} minus that with {smallest:g}, at the N "
                    f"where it fares worst (N = {worst} of {config.scale_channels})",
                    "s",
                    found[worst],
                    note=""
                    if what == "delay"
                    else "The optimum pays for the floors as well: the regret may fall while the "
                    "delay grows.",
                )
            )
    return claims


def _non_ideal_training(results: Results) -> list[Claim]:
    config = results.config
    plans = training_plans(config)
    sizes = {
        "non-ideal": f"shares of {config.large_share} and {config.small_share}",
        "equal": f"equal shares of {config.equal_share}",
    }
    claims = []
    for name, text in sizes.items():
        plan = plans[name]
        final = {
            label: plan.curve(results.arrays, label, "accuracy")[:, -1] for label in plan.policies
        }
        others = [label for label in final if not label.startswith("cs-ucb-q")]
        for label in ("cs-ucb-q", "cs-ucb-q, untruncated"):
            rival = max(others, key=lambda other: final[other].mean())
            claims.append(
                _above(
                    f"CS-UCB-Q has the best accuracy on non-i.i.d. data "
                    f"({_kind('untruncated' not in label)}, {text})",
                    f"final test accuracy minus that of the best of the others, {rival}",
                    "",
                    estimate(final[label] - final[rival]),
                    note=", ".join(f"{key} {value.mean():.3f}" for key, value in final.items())
                    + f" after {plan.settings['rounds']} rounds.",
                )
            )
    return claims


# --- parts ----------------------------------------------------------------------------------------


def _above(
    claim: str, measured: str, unit: str, found: Estimate, *, limit: float = 0.0, note: str = ""
) -> Claim:
    verdict = HOLDS if found.low > limit else DOES_NOT_HOLD if found.high <= limit else NOT_RESOLVED
    return _claim(claim, measured, unit, found, limit, f"above {limit:g}", verdict, note)


def _below(
    claim: str, measured: str, unit: str, found: Estimate, *, limit: float = 0.0, note: str = ""
) -> Claim:
    verdict = HOLDS if found.high < limit else DOES_NOT_HOLD if found.low >= limit else NOT_RESOLVED
    return _claim(claim, measured, unit, found, limit, f"below {limit:g}", verdict, note)


def _claim(
    claim: str,
    measured: str,
    unit: str,
    found: Estimate,
    limit: float,
    side: str,
    verdict: str,
    note: str,
) -> Claim:
    if found.low == found.high == limit:
        verdict, note = NOT_RESOLVED, f"{note} Nothing differed in any repetition.".strip()
    return Claim(claim, measured, unit, found, side, verdict, note)


def _worst(found: Mapping[_Key, Estimate]) -> _Key:
    """Return where a claim about all of several cases fares worst: refuted, else least certain."""
    refuted = [key for key, case in found.items() if case.high <= 0]
    return min(refuted or found, key=lambda key: found[key].low)


def _half(rounds: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    """Return the column of the checkpoint at half of the rounds."""
    return int(np.searchsorted(rounds, rounds[-1] // 2))


def _kind(truncate: bool) -> str:
    return "as printed" if truncate else "untruncated"


def _time_saved(results: Results, plan: TrainingPlan, ours: str, theirs: str) -> FloatArray:
    """Return by how much sooner a policy reaches the accuracy that both reach [s], per seed."""
    accuracy = {label: plan.curve(results.arrays, label, "accuracy") for label in (ours, theirs)}
    time_s = {label: plan.curve(results.arrays, label, "time_s") for label in (ours, theirs)}
    saved = []
    for seed in range(plan.num_seeds):
        target = min(values[seed].max() for values in accuracy.values())
        reached = {
            label: time_s[label][seed, int(np.argmax(accuracy[label][seed] >= target))]
            for label in (ours, theirs)
        }
        saved.append(reached[theirs] - reached[ours])
    return np.array(saved)

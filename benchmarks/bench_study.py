"""How fast scheduling studies run, against a plain Python loop over clients.

    python benchmarks/bench_study.py

The peer is the same policies and the same law of latencies in idiomatic plain Python: lists, `math`
and `random`, one seed at a time. One seed-round is one round of one seed. Everything runs on one
core; every figure is the best of several repetitions.
"""

from __future__ import annotations

import math
import os
import platform
import random
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np  # noqa: E402 (after the number of threads is set)

from flower_scheduling.simulation.engine.study import run_study  # noqa: E402
from flower_scheduling.simulation.environments.paper import Environment  # noqa: E402
from flower_scheduling.strategies import RoundContext, RoundOutcome, SchedulingPolicy, build_policy  # noqa: E402

SEED = 1
TAU_MAX_S = 5.0
SEEDS = 200
REPEATS = 3


# --- the peer -------------------------------------------------------------------------------------


class PlainRandom:
    def __init__(self, num_arms: int, num_selected: int, rng: random.Random) -> None:
        self.arms, self.num_selected, self.rng = range(num_arms), num_selected, rng

    def ask(self, t: int) -> list[int]:
        return self.rng.sample(self.arms, self.num_selected)

    def tell(self, selected: list[int], time_s: list[float]) -> None:
        pass


class PlainUcb:
    """What CS-UCB and CS-UCB-Q share: the running means."""

    def __init__(self, num_arms: int, num_selected: int, rng: random.Random) -> None:
        self.arms, self.num_selected, self.rng = range(num_arms), num_selected, rng
        self.mean_reward = [0.0] * num_arms
        self.play_count = [0] * num_arms

    def tell(self, selected: list[int], time_s: list[float]) -> None:
        for arm in selected:
            reward = 1.0 - min(time_s[arm], TAU_MAX_S) / TAU_MAX_S
            self.play_count[arm] += 1
            self.mean_reward[arm] += (reward - self.mean_reward[arm]) / self.play_count[arm]


class PlainCsUcb(PlainUcb):
    def ask(self, t: int) -> list[int]:
        n = self.num_selected
        if t == 1:
            self.order = self.rng.sample(self.arms, len(self.arms))  # N divides K here
        if t * n <= len(self.arms):
            return self.order[(t - 1) * n : t * n]
        bonus = (n + 1) * math.log(t)
        index = [
            y + math.sqrt(bonus / z) for y, z in zip(self.mean_reward, self.play_count, strict=True)
        ]
        return sorted(self.arms, key=index.__getitem__, reverse=True)[:n]


class PlainCsUcbQ(PlainUcb):
    def __init__(self, num_arms: int, num_selected: int, rng: random.Random) -> None:
        super().__init__(num_arms, num_selected, rng)
        self.beta, self.floor = 1e-3, 0.5 * num_selected / num_arms
        self.queue = [0.0] * num_arms

    def ask(self, t: int) -> list[int]:
        bonus = 2.0 * math.log(t)
        index = [
            y + math.sqrt(bonus / z) if z else math.inf
            for y, z in zip(self.mean_reward, self.play_count, strict=True)
        ]
        ranked = [
            ((1.0 - self.beta) * min(u, 1.0) + self.beta * debt, u, self.rng.random(), arm)
            for arm, (u, debt) in enumerate(zip(index, self.queue, strict=True))
        ]
        ranked.sort(reverse=True)
        return [arm for *_, arm in ranked[: self.num_selected]]

    def tell(self, selected: list[int], time_s: list[float]) -> None:
        super().tell(selected, time_s)
        self.queue = [debt + self.floor for debt in self.queue]
        for arm in selected:
            self.queue[arm] -= 1.0
        self.queue = [max(debt, 0.0) for debt in self.queue]


PLAIN = {"random": PlainRandom, "cs-ucb": PlainCsUcb, "cs-ucb-q": PlainCsUcbQ}


def plain_times_s(rng: random.Random, snr: list[float]) -> list[float]:
    """Round-trip time of every client: policies are compared on the same draws."""
    times = []
    for k, mean_snr in enumerate(snr, start=1):
        download = 5000 / (15e3 * math.log2(1 + mean_snr * rng.expovariate(1.0)))
        upload = 5000 / (15e3 * math.log2(1 + mean_snr * rng.expovariate(1.0)))
        compute = 2 / rng.uniform((0.5 * k + 0.5) * 20, (0.5 * k + 1.5) * 20)
        times.append(download + compute + upload)
    return times


def plain_snr(rng: random.Random, num_arms: int) -> list[float]:
    distances_km = [0.5 * math.sqrt(1.0 - rng.random()) for _ in range(num_arms)]
    return [10 ** ((23 + 107 - 128.1 - 37.6 * math.log10(d)) / 10) for d in distances_km]


def plain_study(name: str, num_arms: int, num_selected: int, times: list[list[float]]) -> float:
    """Return the total time of one seed on given latencies, [s] of simulated time."""
    policy = PLAIN[name](num_arms, num_selected, random.Random(SEED))
    total_s = 0.0
    for t, time_s in enumerate(times, start=1):
        selected = policy.ask(t)
        policy.tell(selected, time_s)
        total_s += max(min(time_s[arm], TAU_MAX_S) for arm in selected)
    return total_s


# --- ours -----------------------------------------------------------------------------------------


def ours(
    name: str, num_arms: int, num_selected: int, batch_shape: tuple[int, ...]
) -> SchedulingPolicy:
    params = {"min_participation": np.full(num_arms, 0.5 * num_selected / num_arms)}
    return build_policy(
        name,
        num_arms=num_arms,
        num_selected=num_selected,
        tau_max_s=TAU_MAX_S,
        rng=np.random.default_rng(SEED),
        batch_shape=batch_shape,
        **(params if name == "cs-ucb-q" else {}),
    )


def our_study(name: str, num_arms: int, num_selected: int, times: list[np.ndarray]) -> float:
    """Return the mean total time over SEEDS seeds on given latencies, [s] of simulated time."""
    policy = ours(name, num_arms, num_selected, (SEEDS,))
    available = np.ones((SEEDS, num_arms), dtype=bool)
    total_s = np.zeros(SEEDS)
    for t, time_s in enumerate(times, start=1):
        selection = policy.ask(RoundContext(t, available))
        policy.tell(selection, RoundOutcome(time_s, time_s <= TAU_MAX_S))
        taken = np.minimum(time_s.take(selection.positions), TAU_MAX_S)
        total_s += np.ascontiguousarray(taken.reshape(SEEDS, -1).T).max(axis=0)
    return float(total_s.mean())


# --- measuring ------------------------------------------------------------------------------------


def best_s(work: Callable[[], object]) -> float:
    """Return the shortest of REPEATS wall-clock times [s]."""
    spent = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def row(label: str, ours_s: float, plain_s: float) -> None:
    print(f"{label:<44} {1 / ours_s:>14,.0f} {1 / plain_s:>14,.0f} {plain_s / ours_s:>7.1f}x")


def compare(num_arms: int, num_selected: int, rounds: int) -> None:
    env = Environment(num_arms=num_arms, batch_shape=(SEEDS,), seed=SEED)
    drawn = [env.round(t).round_trip_time_s for t in range(1, 51)]
    times = [drawn[t % 50] for t in range(rounds)]  # many rounds would not fit in memory
    drawn_plain = [time_s[0].tolist() for time_s in drawn]
    plain = [drawn_plain[t % 50] for t in range(rounds)]
    rng = random.Random(SEED)
    snr = plain_snr(rng, num_arms)

    def plain_with_draws(name: str) -> float:
        return plain_study(
            name, num_arms, num_selected, [plain_times_s(rng, snr) for _ in range(rounds)]
        )

    def ours_with_draws(name: str) -> object:
        return run_study(
            [name],
            partial(Environment, num_arms=num_arms),
            num_selected=num_selected,
            tau_max_s=TAU_MAX_S,
            num_rounds=rounds,
            num_seeds=SEEDS,
            seed=SEED,
        )

    for name in PLAIN:
        label = f"{name}, K={num_arms}, N={num_selected}"
        row(
            f"{label}, policy only",
            best_s(partial(our_study, name, num_arms, num_selected, times)) / (rounds * SEEDS),
            best_s(partial(plain_study, name, num_arms, num_selected, plain)) / rounds,
        )
        row(
            f"{label}, with draws",
            best_s(partial(ours_with_draws, name)) / (rounds * SEEDS),
            best_s(partial(plain_with_draws, name)) / rounds,
        )


def one_million(name: str) -> None:
    num_arms, num_selected = 1_000_000, 100
    rng = np.random.default_rng(SEED)
    everybody = np.ones(num_arms, dtype=bool)
    time_s = rng.uniform(0.1, 6.0, num_arms)

    def play(policy: SchedulingPolicy, rounds: range) -> list[float]:
        spent = []
        for t in rounds:
            start = time.perf_counter()
            selection = policy.ask(RoundContext(t, everybody))
            policy.tell(selection, RoundOutcome(time_s, everybody))
            spent.append(time.perf_counter() - start)
        return spent

    policy = ours(name, num_arms, num_selected, ())
    first_ms = 1e3 * np.median(play(policy, range(1, 11)))
    # Everybody tried: the other extreme, no ties.
    state = policy.state_dict()
    state["play_count"] = np.ones(num_arms, dtype=np.int64)
    state["mean_reward"] = rng.random(num_arms)
    policy.load_state_dict(state)
    later_ms = 1e3 * np.median(play(policy, range(11, 31)))
    del policy, state
    tracemalloc.start()
    policy = ours(name, num_arms, num_selected, ())
    play(policy, range(1, 4))
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    print(
        f"{name + ', K=1,000,000, N=100':<44} untried {first_ms:6.1f} ms, "
        f"tried {later_ms:6.1f} ms, peak {peak_mb:4.0f} MB"
    )


def paper_figure() -> None:
    start = time.perf_counter()
    results = run_study(
        ["random", "round-robin", "cs-ucb"],
        partial(Environment, num_arms=20),
        num_selected=5,
        tau_max_s=TAU_MAX_S,
        num_rounds=5000,
        num_seeds=SEEDS,
        seed=SEED,
    )
    spent = time.perf_counter() - start
    print(f"K=20, N=5, T=5000, 3 policies, {SEEDS} seeds: {spent:.2f} s")
    for label, result in results.items():
        print(
            f"  {label:<12} {result.total_time_s.mean():7.1f} s, "
            f"{result.failures.mean():5.1f} failures"
        )


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, numpy {np.__version__}, seed {SEED}")
    print(f"{'seed-rounds per second':<44} {'ours':>14} {'plain Python':>14} {'ratio':>8}")
    compare(num_arms=20, num_selected=5, rounds=2000)
    compare(num_arms=1000, num_selected=50, rounds=500)
    print("ask + tell, one seed")
    one_million("cs-ucb")
    one_million("cs-ucb-q")
    paper_figure()


if __name__ == "__main__":
    main()

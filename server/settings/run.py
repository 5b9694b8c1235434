"""Settings of a run that server and clients share; the one home of their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.strategies import POLICIES, parse_floors

from ..monitoring.trackers import TRACKERS, tracker_names
from .base import Settings

_LONGEST_WAIT_S: Final = 7 * 86400.0


@dataclass(frozen=True)
class ServerConfig(Settings):
    """What to schedule, how to train, when to stop. Each field is a flag and a TOML key."""

    strategy: str = field(default="cs-ucb-q-adaptive", metadata={"help": "Scheduling policy."})
    num_selected: int = field(
        default=5, metadata={"help": "Clients per round, N (the radio channels)."}
    )
    tau_max_s: float = field(default=5.0, metadata={"help": "Deadline of a round [s]."})
    beta: float = field(
        default=1e-3, metadata={"help": "Weight of the virtual queues against speed, 0 to 1."}
    )
    truncate: bool = field(
        default=True, metadata={"help": "Cap the index of cs-ucb-q at 1, as printed in the paper."}
    )
    fairness: str = field(
        default="heuristic:0.5",
        metadata={
            "help": "Guaranteed share of rounds: NAME=C,NAME=C, or equal:C, proportional:RHO, "
            "heuristic:PHI, none; numbers like 0.6,0.5,0.4 in simulations."
        },
    )
    rounds: int = field(default=100, metadata={"help": "Rounds at most."})
    target_accuracy: float = field(
        default=0.0, metadata={"help": "Stop at this test accuracy (0: never)."}
    )
    eval_every: int = field(
        default=10, metadata={"help": "Rounds between two evaluations on the test images."}
    )
    client_eval_every: int = field(
        default=0, metadata={"help": "Rounds between two evaluations on clients (0: never)."}
    )
    min_clients: int = field(
        default=0, metadata={"help": "Clients to wait for at the start (0: num-selected)."}
    )
    wait_s: float = field(
        default=60.0, metadata={"help": "Longest wait for clients in a round [s]."}
    )
    aggregation: str = field(
        default="fedavg", metadata={"help": "Flower strategy that aggregates, e.g. fedadam."}
    )
    aggregation_option: str = field(
        default="", metadata={"help": "Its options, e.g. eta=0.01,beta-1=0.9."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of everything random."})
    run_dir: str = field(
        default="", metadata={"help": "Folder for the results; must not exist yet."}
    )
    explain: bool = field(
        default=True,
        metadata={"help": "Record why each client was selected, some 20 bytes a client and round."},
    )
    tracker: str = field(
        default="",
        metadata={
            "help": "Where rounds are reported as well: " + ", ".join(TRACKERS) + "; several "
            "with commas between."
        },
    )
    max_update_norm: float = field(
        default=0.0,
        metadata={"help": "Refuse updates farther than this from the model (0: any)."},
    )
    checkpoint_every: int = field(
        default=1, metadata={"help": "Rounds between two checkpoints (0: never)."}
    )
    checkpoint_required: bool = field(
        default=True, metadata={"help": "Stop when a checkpoint cannot be written, or go on."}
    )
    initial_model: str = field(
        default="", metadata={"help": "Model to begin with, a model.safetensors of another run."}
    )
    model: str = field(default="logistic", metadata={"help": "logistic or cnn."})
    batch_size: int = field(default=2, metadata={"help": "Examples per minibatch."})
    learning_rate: float = field(default=0.001, metadata={"help": "Step size of local SGD."})
    local_steps: int = field(default=1, metadata={"help": "Minibatches per client and round."})
    partitioner: str = field(
        default="iid",
        metadata={
            "help": "Who holds which examples: iid, sizes:1500,1000,500, by-label, dirichlet:0.3."
        },
    )
    data_dir: str = field(
        default="", metadata={"help": "Folder of MNIST (default: the user's cache)."}
    )

    def __post_init__(self) -> None:
        for name in ("num_selected", "rounds", "eval_every", "batch_size", "local_steps"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("client_eval_every", "min_clients", "checkpoint_every"):
            self.require(name, getattr(self, name) >= 0, "0 or more")
        self.require("seed", 0 <= self.seed < 2**63, "0 or more, and below 2^63")
        self.require("wait_s", 0 <= self.wait_s <= _LONGEST_WAIT_S, "0 to 604800, a week")
        self.require("max_update_norm", self.max_update_norm >= 0, "0 or more")
        for name in ("tau_max_s", "learning_rate"):
            self.require(name, getattr(self, name) > 0, "above 0")
        for name in ("beta", "target_accuracy"):
            self.require(name, 0 <= getattr(self, name) <= 1, "a number in [0, 1]")
        runnable = runnable_policies()
        if self.strategy not in runnable:
            message = "must be one of " + ", ".join(runnable)
            raise ConfigError("strategy", self.strategy, message, nearest(self.strategy, runnable))
        parse_floors(self.fairness)
        tracker_names(self.tracker)


def runnable_policies() -> list[str]:
    """Return the policies that need nothing but what any run can give them."""
    common = {"num_arms", "num_selected", "tau_max_s", "rng"}
    return [
        name
        for name, spec in POLICIES.items()
        if all(key in common for key, required in spec.parameters().items() if required)
    ]


_OF_SOME: Final = {"beta": "beta", "truncate": "truncate", "fairness": "min_participation"}
"""Settings that only some policies take, and as which parameter."""


def idle_settings(given: Iterable[str], policies: Sequence[str]) -> list[str]:
    """Return a line for each given setting that none of the policies takes.

    Parameters
    ----------
    given : iterable of str
        Keys that the user has set.
    policies : sequence of str
        Names of the policies that are to run.
    """
    taken = {parameter for name in policies for parameter in POLICIES[name].parameters()}
    return [
        f"{key} has no effect: {', '.join(policies)} "
        f"{'has' if len(policies) == 1 else 'have'} no such parameter"
        for key in given
        if key in _OF_SOME and _OF_SOME[key] not in taken
    ]

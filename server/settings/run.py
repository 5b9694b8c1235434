"""Settings of a run that server and clients share; the one home of their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import model_validator

from flower_scheduling.schema import kebab
from flower_scheduling.strategies import POLICIES, find_policy, parse_floors, parse_options
from flower_scheduling.strategies.deadline import AUTO
from flower_scheduling.strategies.over_asking import spares_of
from flower_scheduling.strategies.registry import require_runnable

from ..monitoring.trackers.catalog import TRACKERS, tracker_names
from .base import Deadline, Settings, Spares, setting

LONGEST_WAIT_S: Final = 7 * 86400.0


class ServerConfig(Settings):
    """The settings of a run; each field is a flag and a TOML key.

    Attributes
    ----------
    FLOORS_BY_NUMBER : bool
        Whether floors may be a number for each arm.
    """

    FLOORS_BY_NUMBER: ClassVar[bool] = True

    strategy: str = setting("cs-ucb-q-adaptive", "Scheduling policy.")
    num_selected: int = setting(5, "Clients per round, N (the radio channels).", ge=1)
    num_spare: Spares = setting(
        "auto",
        "Spare clients, M: N + M are asked, and a round ends when N have answered; auto: none, but "
        "for oort, which asks 1.3 N.",
    )
    late_updates: Literal["use", "drop"] = setting(
        "drop", "Updates of spare clients that come later: use them in the next step, or drop them."
    )
    max_share: float = setting(
        1.0, "Largest share of rounds that any client may take (1: any).", gt=0, le=1
    )
    tau_max_s: Deadline = setting(
        5.0, "Deadline of a round [s]; auto: it is found from measured times."
    )
    mode: Literal["rounds", "buffered"] = setting(
        "rounds",
        "Wait for all clients of a round, or refill each of the N channels as it becomes free "
        "and change the model after every buffer-size updates.",
    )
    buffer_size: int = setting(0, "Updates of a buffered step (0: half of num-selected).", ge=0)
    max_staleness: int = setting(
        100, "Buffered or late: steps after which an update is not used any more.", ge=0
    )
    staleness_discount: float = setting(
        0.0, "Buffered or late: an update s steps old counts (1+s)^-THIS.", ge=0
    )
    even_weights: str = setting(
        "auto",
        "Buffered: true: updates weigh less the more of them their client delivers; auto: unless "
        "the policy selects by what clients report or send.",
    )
    local_work: Literal["equal", "equal-time"] = setting(
        "equal",
        "Local steps of a round: local-steps for all, or equal-time: as many as fit into the time "
        "of the N-th fastest client.",
    )
    least_work: float = setting(
        0.25, "equal-time: fewest steps, in times of local-steps.", gt=0, le=1
    )
    most_work: float = setting(
        4.0, "equal-time: most steps, in times of local-steps.", ge=1, le=1e6
    )
    strategy_option: str = setting(
        "", "Parameters of the policy, KEY=VALUE; several with commas between."
    )
    beta: float = setting(1e-3, "Weight of the virtual queues against speed, 0 to 1.", ge=0, le=1)
    truncate: bool = setting(True, "Cap the index of cs-ucb-q at 1, as printed in the paper.")
    fairness: str = setting(
        "heuristic:0.5",
        "Guaranteed share of rounds: NAME=C,NAME=C, or equal:C, proportional:RHO, "
        "heuristic:PHI, none; numbers like 0.6,0.5,0.4 in simulations.",
    )
    rounds: int = setting(100, "Rounds at most.", ge=1)
    target_accuracy: float = setting(0.0, "Stop at this test accuracy (0: never).", ge=0, le=1)
    eval_every: int = setting(10, "Rounds between two evaluations on the test images.", ge=1)
    client_eval_every: int = setting(
        0, "Rounds between two evaluations on clients (0: never).", ge=0
    )
    min_clients: int = setting(0, "Clients to wait for at the start (0: num-selected).", ge=0)
    wait_s: float = setting(
        60.0, "Longest wait for clients in a round [s].", ge=0, le=LONGEST_WAIT_S
    )
    aggregation: str = setting("fedavg", "Flower strategy that aggregates, e.g. fedadam.")
    aggregation_option: str = setting("", "Its options, e.g. eta=0.01,beta-1=0.9.")
    seed: int = setting(0, "Seed of everything random.", ge=0)
    run_dir: str = setting("", "Folder for the results; must not exist yet.")
    explain: bool = setting(
        True, "Record why each client was selected, some 20 bytes a client and round."
    )
    tracker: str = setting(
        "",
        "Where rounds are reported as well: " + ", ".join(TRACKERS) + "; several "
        "with commas between.",
    )
    max_update_norm: float = setting(
        0.0, "Refuse updates farther than this from the model (0: any).", ge=0
    )
    accept_unchanged: bool = setting(
        False, "Take updates that are the model as it was sent, or another client's, too."
    )
    checkpoint_every: int = setting(1, "Rounds between two checkpoints (0: never).", ge=0)
    checkpoint_required: bool = setting(True, "Stop when a checkpoint cannot be written, or go on.")
    initial_model: str = setting("", "Model to begin with, a model.safetensors of another run.")
    dataset: str = setting(
        "mnist",
        "Data set: mnist, fashion-mnist, kmnist, emnist, cifar10, or another one of torchvision as "
        "torchvision:CLASS, e.g. torchvision:SVHN.",
    )
    model: str = setting(
        "logistic", "logistic, mlp, cnn, or a classifier of torchvision.models, e.g. resnet18."
    )
    batch_size: int = setting(2, "Examples per minibatch.", ge=1)
    learning_rate: float = setting(0.001, "Step size of local SGD.", gt=0)
    local_steps: int = setting(1, "Minibatches per client and round.", ge=1)
    partitioner: str = setting(
        "iid",
        "Who holds which examples: iid, sizes:1500,1000,500, by-label, dirichlet:0.3, or one of "
        "Flower Datasets, flower:pathological,num-classes-per-partition=2.",
    )
    data_dir: str = setting("", "Folder of the data set (default: the user's cache).")

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        self.policy_params()
        parse_floors(self.fairness, numbers=self.FLOORS_BY_NUMBER)
        tracker_names(self.tracker)
        buffered = self.mode == "buffered"
        words = ("auto", "true", "false")
        self.require("even_weights", self.even_weights in words, "one of " + ", ".join(words))
        fits = buffered or not self.buffer_size or not self._decides("mode")
        self.require("buffer_size", fits, "0 without mode = buffered")
        allowed = not buffered or self.num_spare in (0, AUTO)
        self.require("num_spare", allowed, "0 with mode = buffered")
        drops = self.late_updates == "drop"
        fits = drops or self.spare > 0 or not self._decides("num-spare")
        self.require("late_updates", fits, "drop without num-spare")
        return self

    def _decides(self, key: str) -> bool:
        """Whether the run has this setting, and not another one that an app has in its code."""
        return True

    @property
    def spare(self) -> int:
        """Spare clients, M."""
        if self.num_spare != AUTO:
            return self.num_spare
        return 0 if self.mode == "buffered" else spares_of(self.strategy, self.num_selected)

    def server_config(self) -> ServerConfig:
        """Return the part that ServerApp and ClientApps see, without what a subclass adds."""
        return ServerConfig(**{name: getattr(self, name) for name in ServerConfig.model_fields})

    def policy_params(self) -> dict[str, Any]:
        """Return the policy's own parameters, from the settings for some and ``strategy-option``.

        Raises
        ------
        ConfigError
            If there is no such policy, or it has no such parameter, or needs one that is missing.
        """
        spec = find_policy(self.strategy, "strategy")
        options = parse_options(self.strategy, self.strategy_option)
        own = {"beta": self.beta, "truncate": self.truncate}
        params = {key: value for key, value in own.items() if key in spec.parameters()} | options
        require_runnable(self.strategy, params, "strategy")
        return params


def options_help(concerns: Callable[[str], bool] = lambda name: True) -> str:
    """Return a line that lists the parameters that ``strategy-option`` sets, with defaults.

    Parameters
    ----------
    concerns : callable
        Takes a policy's name; tells whether it is to be listed.
    """
    listed = []
    for name, spec in POLICIES.items():
        if concerns(name) and not spec.lacks() and (options := spec.options()):
            shown = ", ".join(f"{kebab(key)}={value}".lower() for key, value in options.items())
            listed.append(f"{name} {shown}")
    return "; ".join(listed)


_OF_SOME: Final = {"beta": "beta", "truncate": "truncate", "fairness": "min_participation"}
"""Settings that only some policies take, and as which parameter."""


def idle_settings(given: Mapping[str, object], policies: Sequence[str]) -> list[str]:
    """Return a line for each given setting that none of the policies takes.

    Parameters
    ----------
    given : mapping of str
        What the user has set, by its key. No floors are the same to every policy.
    policies : sequence of str
        Names of the policies that are to run.
    """
    taken = {parameter for name in policies for parameter in find_policy(name).parameters()}
    return [
        f"{key} has no effect: {', '.join(policies)} "
        f"{'has' if len(policies) == 1 else 'have'} no such parameter"
        for key, value in given.items()
        if key in _OF_SOME and _OF_SOME[key] not in taken and (key, value) != ("fairness", "none")
    ]

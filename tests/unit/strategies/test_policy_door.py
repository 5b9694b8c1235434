"""Policies of other people: instances, builders, registration, modules, entry points, options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from flower_scheduling import ScheduledStrategy
from flower_scheduling.errors import ConfigError, UnknownPolicyError
from flower_scheduling.server.app import build_strategy
from flower_scheduling.server.settings.run import ServerConfig
from flower_scheduling.simulation.engine.replayer import replay
from flower_scheduling.strategies import (
    POLICIES,
    PolicySpec,
    RoundContext,
    SchedulingPolicy,
    build_policy,
    find_policy,
    parse_options,
    register,
)
from flower_scheduling.strategies.selection import top_arms
from flower_scheduling.strategies.testing import check_policy

TEN_LINES = """
import numpy as np
from flower_scheduling.strategies import SchedulingPolicy
from flower_scheduling.strategies.selection import top_arms

class Greedy(SchedulingPolicy):
    \"\"\"Highest mean reward first, untried arms before all.\"\"\"

    def _select(self, context):
        index = np.where(self.play_count > 0, self.mean_reward, np.inf)
        return top_arms((index,), context.available, self.num_selected, self._rng)
"""


class Greedy(SchedulingPolicy):
    """Highest mean reward first, untried arms before all."""

    def __init__(self, *, patience: float = 0.5, **parameters):
        super().__init__(**parameters)
        self.patience = patience

    def _select(self, context):
        index = np.where(self.play_count > 0, self.mean_reward, np.inf)
        return top_arms((index,), context.available, self.num_selected, self._rng)


def shared(num_arms=0, **changes):
    rng = np.random.default_rng(0)
    return {"num_arms": num_arms, "num_selected": 2, "tau_max_s": 5.0, "rng": rng, **changes}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_policies.py").write_text(TEN_LINES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    return "my_policies:Greedy"


def test_a_class_without_a_name_is_called_after_itself() -> None:
    class MyOwnPolicy(Greedy):
        """Another."""

    assert (Greedy.name, MyOwnPolicy.name) == ("greedy", "my-own-policy")


def test_a_policy_is_found_by_module_and_by_file(module: str, tmp_path: Path) -> None:
    for name in (module, f"{tmp_path}/my_policies.py:Greedy", "my_policies.py:Greedy"):
        spec = find_policy(name)
        assert (spec.name, spec.summary) == (
            name,
            "Highest mean reward first, untried arms before all.",
        )
        assert name in POLICIES
        assert name not in list(POLICIES), "what was tried once is not listed to everybody"
        assert build_policy(name, **shared()).num_arms == 0
        check_policy(name, num_cases=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Greedy", "cannot be imported: ModuleNotFoundError"),
        ("my_policies:Gredy", "my_policies has no Gredy"),
        ("my_policies:np", "must be a type"),
        ("missing.py:Greedy", "cannot be imported: FileNotFoundError"),
        (":Greedy", "must be MODULE:ATTRIBUTE"),
    ],
)
def test_what_is_no_policy_is_one_line(module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find_policy(name)
    assert "\n" not in str(caught.value)
    assert name not in POLICIES


def test_a_module_that_fails_or_a_class_that_is_no_policy(module: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        find_policy("fails:Greedy")
    (tmp_path / "other.py").write_text("class Other:\n    def __init__(self, **kwargs): pass\n")
    with pytest.raises(ConfigError):
        build_strategy(ServerConfig(strategy="other:Other"))


def test_registered_policies_are_listed_and_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICIES, "_specs", dict(POLICIES._specs))
    register(PolicySpec.of(Greedy))
    register(PolicySpec.of(Greedy))  # the same again
    assert "greedy" in list(POLICIES)
    assert ServerConfig(strategy="greedy", strategy_option="patience=2").policy_params() == {
        "patience": 2.0
    }
    with pytest.raises(ConfigError, match="another policy is registered"):
        register(PolicySpec("cs-ucb", Greedy, "not ours"))


def test_an_instance_or_a_builder_schedules() -> None:
    instance = Greedy(**shared(), patience=1.0)
    strategy = ScheduledStrategy(FedAvg(), instance, num_selected=2, tau_max_s=5)
    strategy._policy.grow(3)
    assert strategy.policy is instance
    assert instance.ask(RoundContext(1, np.ones(3, bool))).mask.sum() == 2
    for builder in (Greedy, lambda **params: Greedy(**params)):
        strategy = (
            ScheduledStrategy(FedAvg(), builder, num_selected=2, tau_max_s=5, patience=0.25)
            if builder is Greedy
            else ScheduledStrategy(FedAvg(), builder, num_selected=2, tau_max_s=5)
        )
        strategy._policy.grow(3)
        assert isinstance(strategy.policy, Greedy)
        assert strategy.policy.num_arms == 3


@pytest.mark.parametrize(
    ("policy", "more", "message"),
    [
        (lambda: Greedy(**shared(3)), {}, "must have num_arms = 0"),
        (lambda: Greedy(**shared(num_selected=3)), {}, "num_selected = 2: the policy was built"),
        (lambda: Greedy(**shared(tau_max_s=9.0)), {}, "tau_max_s = 5: the policy was built"),
        (lambda: Greedy(**shared()), {"patience": 2.0}, "is a matter of the policy"),
        (lambda: 7, {}, "must be a name, a SchedulingPolicy or a builder"),
        (lambda: dict, {}, "not a policy"),
    ],
)
def test_unfit_policies_are_refused_at_construction(policy, more, message) -> None:
    with pytest.raises(ConfigError, match=message):
        ScheduledStrategy(FedAvg(), policy(), num_selected=2, tau_max_s=5, **more)


def test_growth_before_the_first_round_equals_building_with_arms() -> None:
    for name in ("cs-ucb", "cs-ucb-q", "cs-ucb-q-adaptive"):
        built, grown = build_policy(name, **shared(4)), build_policy(name, **shared(0))
        grown.add_arms(4)
        context = RoundContext(1, np.ones(4, bool))
        assert np.array_equal(built.ask(context).mask, grown.ask(context).mask)


# --- options --------------------------------------------------------------------------------------


def test_every_plain_parameter_of_every_policy_is_an_option() -> None:
    for name, spec in POLICIES.items():
        for key, default in spec.options().items():
            if default is not None:
                found = parse_options(name, f"{key.replace('_', '-')}={default}")
                assert found == {key: default}
                assert type(found[key]) is type(default)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d-ucb", "discont=0.9", "did you mean discount"),
        ("d-ucb", "discount", "must be KEY=VALUE"),
        ("d-ucb", "discount=0.9,discount=0.8", "each once"),
        ("d-ucb", "discount=fast", "discount must be a number"),
        ("sw-ucb", "window=2.5", "window must be a whole number"),
        ("e3cs", "graded=1", "graded must be true or false"),
        ("random", "beta=1", "parameters of random (none)"),
        ("cs-ucb-q", "min-participation=1", "parameters of cs-ucb-q (beta, truncate)"),
    ],
)
def test_wrong_options_are_one_line(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ServerConfig(strategy=name, strategy_option=text)


def test_options_reach_the_policy() -> None:
    config = ServerConfig(strategy="d-ucb", strategy_option="discount=0.5, exploration=2")
    assert build_strategy(config)._policy._build(2).discount == 0.5
    with pytest.raises(ConfigError, match=r"discount = 1\.5"):  # the policy's own check
        build_strategy(ServerConfig(strategy="d-ucb", strategy_option="discount=1.5"))


def test_options_lie_over_the_settings_of_the_same_name() -> None:
    config = ServerConfig(strategy="cs-ucb-q", beta=0.5, strategy_option="beta=0.25")
    assert config.policy_params() == {"beta": 0.25, "truncate": True}


# --- entry points ---------------------------------------------------------------------------------


class Point:
    """An entry point of an installed package."""

    dist = None

    def __init__(self, name, found):
        self.name, self.value, self._found = name, "theirs:Policy", found

    def load(self):
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_installed_policies_are_known_by_their_entry_point(monkeypatch) -> None:
    monkeypatch.setattr(POLICIES, "_specs", dict(POLICIES._specs))
    monkeypatch.setattr(POLICIES, "_faults", {})
    monkeypatch.setattr(POLICIES, "_searched", False)
    points = [
        Point("theirs", Greedy),
        Point("described", PolicySpec("x", Greedy, "a summary", uses=("loss",))),
        Point("broken", ImportError("no numba")),
        Point("cs-ucb", Greedy),
    ]
    monkeypatch.setattr("flower_scheduling.strategies.registry.entry_points", lambda group: points)
    assert find_policy("theirs").build is Greedy
    assert (find_policy("described").summary, find_policy("described").uses) == (
        *("a summary", ("loss",)),
    )
    assert find_policy("cs-ucb").build is not Greedy, "ours cannot be replaced"
    with pytest.raises(UnknownPolicyError, match="ImportError: no numba"):
        find_policy("broken")
    with pytest.raises(ConfigError, match="ImportError: no numba"):
        ServerConfig(strategy="broken")


@pytest.mark.parametrize(
    "refuse",
    [
        lambda name: ScheduledStrategy(FedAvg(), name, num_selected=1),
        lambda name: ServerConfig(strategy=name),
        lambda name: replay(mock.sentinel.record, [name]),
    ],
)
def test_an_unknown_name_is_refused_in_the_same_words_everywhere(
    refuse: Callable[[str], object],
) -> None:
    words = r"^(policy|strategy) = 'cs-ucbq': must be one of cs-ucb, .*, or MODULE:CLASS \(did you"
    with pytest.raises(UnknownPolicyError, match=words) as error:
        refuse("cs-ucbq")
    assert isinstance(error.value, ConfigError)
    assert "oracle" not in str(error.value), "it cannot be used here"


def test_help_lists_policies_and_their_parameters() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "flower_scheduling.simulation", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "400", **os.environ},
    ).stdout
    assert "MODULE:CLASS" in shown
    assert "discount=0.9975" in " ".join(shown.split())

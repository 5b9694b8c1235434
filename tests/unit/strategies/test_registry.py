"""Policies by name, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import flower_scheduling.strategies
from flower_scheduling.errors import ConfigError, UnknownPolicyError
from flower_scheduling.strategies import POLICIES, build_policy


def shared():
    return {
        "num_arms": 3,
        "num_selected": 2,
        "tau_max_s": 5.0,
        "rng": np.random.default_rng(0),
    }


def test_names_and_summaries():
    assert list(POLICIES) == [
        *("random", "round-robin", "local-accuracy", "cs-ucb"),
        *("modified-cs-ucb", "cs-ucb-q", "cs-ucb-adaptive", "cs-ucb-q-adaptive"),
        *("cs-ucb-q-loss", "proportional-fair", "oracle"),
        *("ucb-tuned", "kl-ucb", "d-ucb", "sw-ucb", "tscsf-b"),
        *("rbcs-f", "e3cs", "bsfl", "oort", "fedcs"),
        *("tifl", "pyramidfl", "pisces"),
    ]
    assert [name for name in POLICIES if POLICIES[name].comparator] == list(POLICIES)[11:]
    for name, spec in POLICIES.items():
        assert spec.name == name == spec.build.name
        assert spec.summary
        assert "\n" not in spec.summary
    assert POLICIES["local-accuracy"].needs == ("local_accuracy",)
    for name in ("oort", "tifl", "pyramidfl", "pisces"):
        assert POLICIES[name].reports == ("loss",)
        assert not POLICIES[name].needs, "it does with times alone"


def test_build_passes_parameters_on():
    policy = build_policy("cs-ucb-q", **shared(), beta=0.5, min_participation=[0.6, 0.5, 0.4])
    assert policy.name == "cs-ucb-q"
    assert policy.beta == 0.5


@pytest.mark.parametrize("name", ["cs-ucbq", "CS-UCB", "", None])
def test_unknown_name_lists_all(name):
    with pytest.raises(UnknownPolicyError) as error:
        build_policy(name, **shared())
    assert all(known in str(error.value) for known in POLICIES)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownPolicyError, match="did you mean round-robin"):
        build_policy("roundrobin", **shared())


def test_unknown_parameter_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean beta"):
        build_policy("cs-ucb-q", **shared(), betta=0.5)


@pytest.mark.parametrize(("name", "param"), [("random", "beta"), ("cs-ucb", "truncate")])
def test_a_parameter_of_another_policy(name, param):
    with pytest.raises(ConfigError, match=f"{param}.*is no parameter of {name}"):
        build_policy(name, **shared(), **{param: 0})


def test_missing_parameters():
    with pytest.raises(ConfigError, match="expected_time_s"):
        build_policy("oracle", **shared())
    with pytest.raises(ConfigError, match="num_arms"):
        build_policy("random")


def test_public_names_exist():
    strategies = flower_scheduling.strategies
    assert all(hasattr(strategies, name) for name in strategies.__all__)
    assert all(hasattr(flower_scheduling, name) for name in flower_scheduling.__all__)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("flower_scheduling.strategies", ("flwr", "torch", "scipy")),
        ("flower_scheduling.strategies.flower", ("torch", "torchvision")),
        ("flower_scheduling.client", ("flwr", "torch", "numpy")),
    ],
)
def test_import_is_light(module, heavy):
    code = f"import {module}, sys; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

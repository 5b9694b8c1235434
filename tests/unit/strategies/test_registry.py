"""Policies by name, and what importing them costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest

import flower_scheduling.strategies
from flower_scheduling.errors import ConfigError, UnknownPolicyError
from flower_scheduling.strategies import (
    POLICIES,
    PolicySpec,
    SchedulingPolicy,
    build_policy,
    comparators,
    policies,
    registry,
)


def shared():
    return {
        "num_arms": 3,
        "num_selected": 2,
        "tau_max_s": 5.0,
        "rng": np.random.default_rng(0),
    }


@pytest.mark.parametrize("package", [policies, comparators])
def test_every_policy_of_a_package_is_registered(package):
    """Also one whose author forgot to declare it."""
    modules = [
        import_module(found.name)
        for found in iter_modules(package.__path__, f"{package.__name__}.")
    ]
    written = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and issubclass(value, SchedulingPolicy)
        and not inspect.isabstract(value)
    }
    registered = {spec.build for spec in POLICIES.values()}
    assert written
    assert written <= registered


def test_a_new_comparator_is_one_file(tmp_path, monkeypatch):
    before = {spec.name for spec in registry._ours()}
    (tmp_path / "newest_ucb.py").write_text(
        "from flower_scheduling.strategies.comparators.kl_ucb import KlUcb\n"
        "from flower_scheduling.strategies.policy_spec import PolicySpec\n"
        "class NewestUcb(KlUcb):\n    pass\n"
        "SPEC = PolicySpec.of(NewestUcb, summary='UCB of tomorrow')\n"
    )
    monkeypatch.setattr(comparators, "__path__", [*comparators.__path__, str(tmp_path)])
    found = {spec.name: spec for spec in registry._ours()}
    assert found.keys() - before == {"newest-ucb"}
    assert found["newest-ucb"].comparator
    assert found["newest-ucb"].summary == "UCB of tomorrow"
    monkeypatch.delitem(sys.modules, f"{comparators.__name__}.newest_ucb")


def test_a_policy_describes_itself():
    for name, spec in POLICIES.items():
        assert spec.name == name == spec.build.name
        assert spec.summary
        assert "\n" not in spec.summary
        assert spec.comparator == (".comparators." in spec.build.__module__)
    assert POLICIES["local-accuracy"].needs == ("local_accuracy",)
    for name in ("oort", "tifl", "pyramidfl", "pisces"):
        assert POLICIES[name].reports == ("loss",)
        assert not POLICIES[name].needs, "it does with times alone"
        assert PolicySpec.of(POLICIES[name].build).reports == ("loss",), (
            "also where it is an object"
        )
    assert [name for name, spec in POLICIES.items() if spec.needs_updates] == ["delay-het"]
    assert PolicySpec.of(POLICIES["delay-het"].build).needs_updates


def test_it_is_known_what_a_policy_can_do_without_training():
    at_a_loss = {name for name, spec in POLICIES.items() if not spec.by_times_alone}
    assert at_a_loss == {"local-accuracy", "cs-ucb-q-loss", "delay-het"}
    by_data = {name for name, spec in POLICIES.items() if spec.by_data}
    assert by_data == at_a_loss | {"oort", "tifl", "pyramidfl", "pisces"}


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
    for name in ("roundrobin", "Round_Robin"):
        with pytest.raises(UnknownPolicyError, match="did you mean round-robin"):
            build_policy(name, **shared())


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

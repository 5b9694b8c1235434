"""Compression in simulations: a fleet's code, and link times by what crosses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_scheduling.client.wire.compression import Compression
from flower_scheduling.errors import ConfigError
from flower_scheduling.simulation.engine.batched import run_batched
from flower_scheduling.simulation.engine.runner import Simulation, SimulationResult
from flower_scheduling.simulation.settings import SCENARIOS, SimulationConfig

pytestmark = pytest.mark.usefixtures("mnist")


def run(compress: str, **changes: Any) -> SimulationResult:
    settings = {
        **SCENARIOS["ideal"],
        **{"scenario": "ideal", "strategy": "random", "rounds": 6, "eval-every": 6},
        **{"batch-size": 16, "local-steps": 5, "learning-rate": 0.02},
        **{"payload-bits": "model", "tau-max-s": 600.0, "compress": compress},
    }
    return Simulation(SimulationConfig.from_mapping({**settings, **changes})).run()


@pytest.mark.parametrize(
    ("compress", "down", "up"),
    [
        ("bfloat16", 0.5, 0.5),
        ("up=int8", 1.0, 0.25),
        ("up=int8,down=bfloat16", 0.5, 0.25),
        ("up=zstd", 1.0, 1.0),
    ],
)
def test_links_carry_what_is_left(compress: str, down: float, up: float) -> None:
    plain, less = run(""), run(compress)
    assert plain.records[0].sent_bytes is None
    for before, after in zip(plain.records, less.records, strict=True):
        assert before.selected == after.selected
        model_bytes = 31_400 * len(before.selected)
        assert after.sent_bytes == pytest.approx(down * model_bytes, rel=0.05)
        assert after.received_bytes is not None
        assert after.received_bytes < 1.08 * up * model_bytes
        for whole_s, part_s in zip(before.link_s, after.link_s, strict=True):
            assert whole_s is not None
            assert part_s is not None
            assert min(down, up) * whole_s <= part_s * 1.02
            assert part_s <= max(down, up) * whole_s * 1.02
    ends = [result.records[-1].accuracy for result in (plain, less)]
    assert ends[0] == pytest.approx(ends[1], abs=0.005)


def test_lossless_rounds_are_the_same_rounds() -> None:
    plain, less = run("", **{"client-eval-every": 3}), run("zstd", **{"client-eval-every": 3})
    assert plain.summary == less.summary
    assert [r.loss for r in plain.records] == [r.loss for r in less.records]


def test_batched_training_refuses_it() -> None:
    config = SimulationConfig.from_mapping({**SCENARIOS["ideal"], "compress": "up=int8"})
    with pytest.raises(ConfigError, match="compress = 'up=int8': must be empty in batched"):
        run_batched(config)


def test_the_setting_is_checked_with_the_others() -> None:
    with pytest.raises(ConfigError, match="compress = 'int8'"):
        SimulationConfig.from_mapping({"compress": "int8"})
    config = SimulationConfig.from_mapping({"compress": "up=int8"})
    assert config.compression == Compression(up="int8")
    assert np.isfinite(config.tau_max_s)

"""The emulated device waits as its models say, the same way for the same name and round."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flower_scheduling.client.link.emulation import EmulatedDevice, emulated, emulation_mod
from flower_scheduling.client.link.model import LinkModel
from flower_scheduling.client.wire.compression import WIRE_SHARE
from flower_scheduling.client.wire.protocol import (
    BASE_STEPS,
    COMPUTE_S,
    LINK_S,
    LOCAL_STEPS,
    REQUEST,
    TIMING,
)
from flower_scheduling.errors import ConfigError

LINKED = {"name": "a", "link": "rayleigh", "distance-m": 320.0}


@pytest.fixture(autouse=True)
def _identity():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def call(node_config, *, kind="train", server_round=1, app=None, run_config=None):
    """Return the reply and the waits, in order."""
    waits = []
    arrays = ArrayRecord({"w": Array(np.zeros(100, dtype=np.float32))})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": server_round})})
    message = Message(content, 7, kind)
    run_config = {"batch-size": 2, "local-steps": 3} if run_config is None else run_config
    context = Context(1, 7, node_config, RecordDict(), run_config)

    def answer(message, context):
        metrics = MetricRecord({"num-examples": 1})
        records = {"metrics": metrics, TIMING: ConfigRecord({COMPUTE_S: 0.001})}
        if kind == "train":
            records["arrays"] = arrays
        return Message(RecordDict(records), reply_to=message)

    reply = emulation_mod(message, context, app or answer, sleep=waits.append)
    return reply, waits


def test_nothing_configured_nothing_done():
    reply, waits = call({"name": "a", "partition-id": 3})
    assert waits == []
    assert dict(reply.content[TIMING]) == {COMPUTE_S: 0.001}
    assert call(LINKED, kind="query")[1] == []


def test_link_delays_both_ways_and_tells():
    reply, (download_s, upload_s) = call(LINKED)
    assert download_s != upload_s, "the two links fade independently"
    assert reply.content[TIMING][LINK_S] == pytest.approx(download_s + upload_s)
    assert reply.content[TIMING][COMPUTE_S] < 0.1
    # The law is that of the channel module: here its mean SNR bounds the draw loosely.
    link = LinkModel()
    typical = float(link.transfer_time_s(5000, link.mean_snr(320.0)))
    assert 0.3 * typical < download_s < 100 * typical


def test_a_compressed_transfer_takes_its_share_of_the_time():
    _, (download_s, upload_s) = call(LINKED)
    token = WIRE_SHARE.set((0.5, 0.25))
    _, (less_down_s, less_up_s) = call(LINKED)
    WIRE_SHARE.reset(token)
    assert less_down_s == pytest.approx(download_s / 2)
    assert less_up_s == pytest.approx(upload_s / 4)


def test_each_round_is_drawn_afresh_and_by_name():
    first, again = call(LINKED)[1], call(LINKED)[1]
    assert first == again
    assert call(LINKED, server_round=2)[1] != first
    assert call({**LINKED, "name": "b"})[1] != first


def test_training_and_evaluation_of_a_round_fade_independently():
    train, evaluate = call(LINKED)[1], call(LINKED, kind="evaluate")[1]
    assert train[0] != evaluate[0]
    assert call(LINKED, kind="evaluate")[1][0] == evaluate[0]
    device = EmulatedDevice.from_node_config(LINKED)
    # Of all rounds, not of this one: 200 pairs of independent exponentials.
    fading = np.array(
        [
            [device.rng(t, kind).standard_exponential() for kind in ("train", "evaluate")]
            for t in range(1, 201)
        ]
    )
    # The correlation of 200 independent pairs has a deviation of 0.07: 6 sigma, about 1e-9.
    assert abs(np.corrcoef(fading.T)[0, 1]) < 0.43


def test_training_keeps_the_times_that_runs_have_recorded():
    device = EmulatedDevice.from_node_config(LINKED)
    recorded = [device.link_s(device.rng(t), 3200.0) for t in (1, 2, 1000)]
    assert recorded == pytest.approx(
        [0.05006473623909478, 0.07867420319234907, 0.04016582068617991], rel=1e-12
    )


def test_draws_follow_the_channel_law():
    device = EmulatedDevice.from_node_config(LINKED)
    times = np.array([device.link_s(device.rng(t), 3200.0) for t in range(1, 4001)])
    median = np.median(times)
    expected = LinkModel().transfer_time_survival(median, 5000.0, 320.0)
    # Binomial deviation of the survival at the median: 0.008; 6 sigma, about 1e-9.
    assert expected == pytest.approx(0.5, abs=0.048)


def test_compute_rate_sets_the_time_of_an_update():
    reply, waits = call({"name": "a", "compute": "40"})
    assert reply.content[TIMING][COMPUTE_S] == pytest.approx(6 / 40)
    assert sum(waits) == pytest.approx(6 / 40, abs=0.05)
    times = [
        call({"name": "a", "compute": "20-60"}, server_round=t)[0].content[TIMING][COMPUTE_S]
        for t in range(1, 50)
    ]
    assert 6 / 60 <= min(times) < max(times) <= 6 / 20
    assert call({"name": "a", "compute": "40"}, kind="evaluate")[1][1:] == [0.0]


def test_an_app_without_minibatches_computes_over_its_examples():
    reply, _ = call({"name": "a", "compute": "40"}, run_config={"epochs": 1})
    assert reply.content[TIMING][COMPUTE_S] == pytest.approx(1 / 40), "num-examples of the reply"


def test_any_app_can_be_emulated(monkeypatch):
    waits = []
    monkeypatch.setattr(emulation_mod, "__kwdefaults__", {"sleep": waits.append})
    app = emulated(lambda message, context: Message(RecordDict(), reply_to=message))
    message = Message(RecordDict(), 7, "train")
    reply = app(message, Context(1, 7, LINKED, RecordDict(), {}))
    assert reply.content[TIMING][LINK_S] == pytest.approx(sum(waits))
    assert len(waits) == 2


def test_update_that_takes_longer_than_the_emulated_one_is_not_delayed():
    reply, waits = call({"name": "a", "compute": "1e9"})
    assert waits == [0.0, 0.0]
    assert reply.content[TIMING][LINK_S] == 0.0


def test_payload():
    small = EmulatedDevice.from_node_config(LINKED)
    real = EmulatedDevice.from_node_config({**LINKED, "payload-bits": "model"})
    assert real.link_s(real.rng(1), 50_000.0) == pytest.approx(
        10 * small.link_s(small.rng(1), 50_000.0)
    )
    assert small.link_s(small.rng(1), 0.0) == 0.0, "metrics alone cost nothing"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"link": "rician"}, "must be rayleigh"),
        ({"link": "rayleigh"}, "needs distance-m"),
        ({"link": "rayleigh", "distance-m": 0}, "distance-m = 0: must be above 0"),
        ({"link": "rayleigh", "distance-m": "far"}, "distance-m = 'far': must be a number"),
        ({"link": "rayleigh", "distance-m": True}, "distance-m = True: must be a number"),
        ({"link": "rayleigh", "distance-m": "inf"}, "distance-m = inf: must be a finite number"),
        ({"distance-m": "3"}, "node config distance-m = '3': needs link = rayleigh"),
        ({"payload-bits": "model"}, "payload-bits = 'model': needs link = rayleigh"),
        ({**LINKED, "bandwidth-hz": -1}, "bandwidth-hz = -1"),
        ({**LINKED, "payload-bits": "big"}, "payload-bits = 'big'"),
        ({"compute": "fast"}, "compute = 'fast'"),
        ({"compute": "60-20"}, "RATE or LOW-HIGH"),
        ({"compute": "0"}, "compute = '0'"),
        ({"compute": True}, "compute = True: must be RATE or LOW-HIGH"),
    ],
)
def test_wrong_configuration_is_refused(config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        EmulatedDevice.from_node_config(config)
    assert "\n" not in str(caught.value)


def test_numbers_may_be_texts_as_the_environment_has_them():
    as_text = {"name": "a", "link": "rayleigh", "distance-m": "320", "payload-bits": "5e3"}
    assert EmulatedDevice.from_node_config(as_text) == EmulatedDevice.from_node_config(LINKED)
    left_out = {"name": "a", "link": "", "compute": "", "distance-m": ""}
    assert EmulatedDevice.from_node_config(left_out) is None
    assert EmulatedDevice.from_node_config({"compute": 40}).compute_rate == (40.0, 40.0)


def test_error_replies_pass():
    from flwr.app import Error

    def failing(message, context):
        return Message(Error(2, "no"), reply_to=message)

    reply, _ = call(LINKED, app=failing)
    assert reply.has_error()


@pytest.mark.parametrize("run_config", [None, {"epochs": 1}])
def test_more_work_takes_the_longer(run_config):
    def answer(message, context):
        message.content[REQUEST] = ConfigRecord({LOCAL_STEPS: 40, BASE_STEPS: 4})
        records = {"metrics": MetricRecord({"num-examples": 6})}
        records[REQUEST] = ConfigRecord({LOCAL_STEPS: 10})  # of the 40 that it was asked for
        return Message(RecordDict(records), reply_to=message)

    reply, _ = call({"name": "a", "compute": "40"}, app=answer, run_config=run_config)
    assert reply.content[TIMING][COMPUTE_S] == pytest.approx(10 / 4 * 6 / 40)

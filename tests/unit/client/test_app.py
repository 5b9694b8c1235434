from __future__ import annotations

import subprocess
import sys
from threading import Thread

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import fixedclipping_mod
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.task_identity import TaskIdentity
from image_files import write_cifar10, write_idx_dataset

from flower_scheduling.client.app import app, create_client_app
from flower_scheduling.client.learning.datasets import data_digest, load_spec
from flower_scheduling.client.learning.images import scale_pixels
from flower_scheduling.client.learning.models import create_model, initial_arrays
from flower_scheduling.client.learning.partitions import build_partition
from flower_scheduling.client.learning.training import evaluate, train
from flower_scheduling.client.settings import ClientSettings, TrainRequest
from flower_scheduling.client.wire import protocol
from flower_scheduling.client.wire.frames import Packed
from flower_scheduling.client.wire.packing import pack, unpack
from flower_scheduling.errors import ClientConfigError, ConfigError, DataUnavailableError

pytestmark = pytest.mark.usefixtures("mnist", "task_identity")

NODE_CONFIG = {"partition-id": 3, "num-partitions": 20}
RUN_CONFIG = {
    "model": "logistic",
    "batch-size": 2,
    "learning-rate": 0.001,
    "local-steps": 1,
    "partitioner": "iid",
    "seed": 7,
    "data-dir": "",
}


@pytest.fixture
def task_identity(monkeypatch):
    for attribute in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, attribute, 1)


def context(node=(), **run):
    run_config = RUN_CONFIG | {key.replace("_", "-"): value for key, value in run.items()}
    return Context(
        run_id=1,
        node_id=9,
        node_config={k: v for k, v in (NODE_CONFIG | dict(node)).items() if v is not None},
        state=RecordDict(),
        run_config={k: v for k, v in run_config.items() if v is not None},
    )


def request(kind="train", arrays=None, **config):
    config = {"server-round": 1} | {k.replace("_", "-"): v for k, v in config.items()}
    content = RecordDict(
        {
            protocol.ARRAYS: arrays or initial_arrays("logistic"),
            protocol.CONFIG: ConfigRecord({k: v for k, v in config.items() if v is not None}),
        }
    )
    message = Message(content, dst_node_id=9, message_type=kind)
    message.metadata.__dict__["_message_id"] = "request-1"
    return message


def local_data(mnist, partitioner="iid", partition_id=3, num_partitions=20, seed=7):
    labels = mnist.train_labels.numpy()
    part = build_partition(partitioner, labels, num_partitions, seed)[partition_id]
    return mnist.train_images[part], mnist.train_labels[part]


def test_train_reply():
    reply = app(request(), context())
    assert reply.metadata.reply_to_message_id == "request-1"
    assert set(reply.content) == {protocol.ARRAYS, protocol.METRICS, protocol.TIMING}
    metrics = reply.content[protocol.METRICS]
    assert set(metrics) == {protocol.NUM_EXAMPLES, protocol.TRAIN_LOSS}
    assert metrics[protocol.NUM_EXAMPLES] == 3000
    assert metrics[protocol.TRAIN_LOSS] == pytest.approx(np.log(10))
    assert 0 < reply.content[protocol.TIMING][protocol.COMPUTE_S] < 5
    assert 0 < reply.content[protocol.TIMING][protocol.CODEC_S] < 5


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_large_arrays_are_let_go_once_the_model_has_them(kind, monkeypatch):
    monkeypatch.setattr("flower_scheduling.client.app._LARGE_BYTES", 0)
    message = request(kind)
    app(message, context())
    assert protocol.ARRAYS not in message.content


def test_a_mod_that_needs_what_was_received_has_it(monkeypatch):
    monkeypatch.setattr("flower_scheduling.client.app._LARGE_BYTES", 0)
    message = request()
    message.content[protocol.CONFIG]["clipping_norm"] = 1e-6  # Flower's key
    reply = create_client_app([fixedclipping_mod])(message, context())
    found = reply.content[protocol.ARRAYS]["weight"].numpy()
    assert 0 < np.linalg.norm(found) <= 1e-6, "clipped around the model of zeros"


def test_train_is_the_local_update_of_seed_client_and_round(mnist):
    reply = app(request(server_round=5), context(local_steps=3))
    model = create_model("logistic")
    train(
        model,
        *local_data(mnist),
        batch_size=2,
        learning_rate=0.001,
        local_steps=3,
        rng=np.random.default_rng([7, 3, 5]),
    )
    for key, array in model.arrays().items():
        assert reply.content[protocol.ARRAYS][key].data == array.data


def test_minibatches_differ_between_rounds_clients_and_seeds():
    def update(server_round=1, partition_id=3, seed=7):
        answer = app(
            request(server_round=server_round),
            context({"partition-id": partition_id}, seed=seed),
        )
        return answer.content[protocol.ARRAYS]["weight"].data

    assert update() == update()
    assert len({update(), update(server_round=2), update(partition_id=4), update(seed=8)}) == 4


def test_local_accuracy_is_that_of_the_received_model(mnist):
    trained = create_model("logistic")
    trained.views["bias"][4] = 1.0  # answers 4 whatever it sees
    reply = app(request(arrays=trained.arrays(), report="other local-accuracy"), context())
    _, expected = evaluate(trained, *local_data(mnist))
    assert reply.content[protocol.METRICS][protocol.LOCAL_ACCURACY] == expected
    plain = app(request(arrays=trained.arrays()), context())
    for key, array in plain.content[protocol.ARRAYS].items():
        assert array.data == reply.content[protocol.ARRAYS][key].data


def test_the_proximal_term_is_applied():
    free = app(request(), context(local_steps=5))
    held = app(request(proximal_mu=100.0), context(local_steps=5))
    norm = [
        np.linalg.norm(reply.content[protocol.ARRAYS]["weight"].numpy()) for reply in (free, held)
    ]
    assert 0 < norm[1] < norm[0]


def test_evaluate_reply(mnist):
    model = create_model("logistic")
    model.views["bias"][1] = 1.0
    reply = app(request("evaluate", model.arrays()), context())
    images, labels = local_data(mnist)
    loss, accuracy = evaluate(model, scale_pixels(images), labels)
    assert set(reply.content) == {protocol.METRICS}
    metrics = dict(reply.content[protocol.METRICS])
    assert metrics == {
        protocol.NUM_EXAMPLES: 3000,
        protocol.EVAL_LOSS: pytest.approx(loss),
        protocol.EVAL_ACCURACY: accuracy,
    }


def test_query_reply():
    info = app(request("query"), context(partitioner="by-label:1000,100"))
    assert dict(info.content[protocol.CLIENT_INFO]) == {
        protocol.NAME: "client-3",
        protocol.NUM_EXAMPLES: 100,
        protocol.LABEL_COUNTS: [0, 100, 0, 0, 0, 0, 0, 0, 0, 0],
    }
    named = app(request("query"), context({"name": "pump-17"}))
    assert named.content[protocol.CLIENT_INFO][protocol.NAME] == "pump-17"


def test_what_is_loaded_once_is_loaded_by_the_query(monkeypatch):
    """Else the first round trip would take longer, and be learned as the client's speed."""
    own = context({"name": "cold"}, seed=99)
    app(request("query"), own)
    for name in ("load_data", "create_model", "build_partition"):
        monkeypatch.setattr(f"flower_scheduling.client.app.{name}", None)
    assert app(request(), own).content[protocol.METRICS][protocol.NUM_EXAMPLES] > 0


def test_requests_and_replies_share_no_records():
    message = request()
    before = message.content[protocol.ARRAYS]["weight"].data
    reply = app(message, context())
    assert reply.content[protocol.ARRAYS] is not message.content[protocol.ARRAYS]
    assert message.content[protocol.ARRAYS]["weight"].data == before
    again = app(message, context())
    assert again.content[protocol.ARRAYS] is not reply.content[protocol.ARRAYS]


def test_the_cnn_trains_through_the_app():
    reply = app(request(arrays=initial_arrays("cnn", 1)), context(model="cnn"))
    assert reply.content[protocol.METRICS][protocol.TRAIN_LOSS] > 0


def test_mods_are_called_outermost_first():
    calls = []

    def mod(name):
        def wrapped(message, context, call_next):
            calls.append(name)
            return call_next(message, context)

        return wrapped

    create_client_app([mod("outer"), mod("inner")])(request(), context())
    assert calls == ["outer", "inner"]


def test_clients_in_threads_do_not_disturb_each_other():
    def update(partition_id):
        answer = app(request(), context({"partition-id": partition_id}, local_steps=50))
        return answer.content[protocol.ARRAYS]["weight"].data

    alone = [update(client) for client in range(4)]
    together = [b""] * 4

    def run(client):
        together[client] = update(client)

    threads = [Thread(target=run, args=(client,)) for client in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


@pytest.mark.parametrize(
    ("node", "run", "message"),
    [
        ({"partition-id": None}, {}, "node config partition-id = None: is missing"),
        ({"partition-id": 20}, {}, "partition-id = 20: must be below num-partitions = 20"),
        ({"partition-id": "3"}, {}, "node config partition-id = '3': must be a whole number"),
        ({"partition-id": -1}, {}, "node config partition-id = -1: must be at least 0"),
        ({"num-partitions": 0}, {}, "node config num-partitions = 0: must be at least 1"),
        ({}, {"model": None}, "run config model = None: is missing"),
        ({}, {"model": "logistc"}, "model = 'logistc': must be one of logistic, mlp, cnn, or"),
        ({}, {"model": 3}, "run config model = 3: must be a text"),
        ({}, {"batch_size": 0}, "run config batch-size = 0: must be at least 1"),
        ({}, {"batch_size": True}, "batch-size = True: must be a whole number"),
        ({}, {"batch_size": 2.0}, "batch-size = 2.0: must be a whole number"),
        ({}, {"learning_rate": 0}, "learning-rate = 0: must be above 0"),
        ({}, {"learning_rate": "fast"}, "learning-rate = 'fast': must be a number"),
        ({}, {"learning_rate": float("nan")}, "learning-rate = nan: must be a finite number"),
        ({}, {"local_steps": -1}, "local-steps = -1: must be at least 1"),
        ({}, {"partitioner": "idd"}, "partitioner = 'idd': must be one of iid,"),
        ({}, {"seed": -1}, "run config seed = -1: must be at least 0"),
    ],
)
def test_bad_configs_are_one_clear_line(node, run, message):
    with pytest.raises(ConfigError) as caught:
        app(request(), context(node, **run))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_true_seed_is_not_taken_for_the_cached_one():
    ClientSettings.from_context(context(seed=1))
    with pytest.raises(ConfigError, match="seed = True: must be a whole number"):
        ClientSettings.from_context(context(seed=True))


def test_settings_are_read_once():
    settings = ClientSettings.from_context(context(learning_rate=1))
    assert settings is ClientSettings.from_context(context(learning_rate=1))
    assert isinstance(settings.run.learning_rate, float)


def test_the_devices_data_folder_wins():
    settings = ClientSettings.from_context(context({"data-dir": "/mine"}, data_dir="/theirs"))
    assert settings.data_dir == "/mine"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"server_round": None}, "request server-round = None: is missing"),
        ({"server_round": "1"}, "server-round = '1': must be a whole number"),
        ({"server_round": -1}, "request server-round = -1: must be at least 0"),
        ({"proximal_mu": -0.1}, "proximal-mu = -0.1: must be at least 0"),
        ({"proximal_mu": True}, "proximal-mu = True: must be a number"),
    ],
)
def test_bad_requests(config, message):
    with pytest.raises(ConfigError, match=message):
        app(request(**config), context())


def test_the_requests_keys_are_the_protocols():
    keys = {protocol.SERVER_ROUND: 3, protocol.PROXIMAL_MU: 0.5, protocol.REPORT: "loss"}
    request = TrainRequest.from_config(keys)
    assert (request.server_round, request.proximal_mu, request.report) == (3, 0.5, "loss")


def test_a_client_may_be_called_a_number():
    assert ClientSettings.from_context(context({"name": 17})).node.name == "17"


def test_a_request_without_arrays():
    message = request()
    del message.content[protocol.ARRAYS]
    with pytest.raises(ClientConfigError, match="request lacks the ArrayRecord 'arrays'"):
        app(message, context())


@pytest.mark.parametrize(
    ("imported", "kept_out"),
    [
        (
            ("client", "client.wire.protocol"),
            {"numpy", "torch", "flwr", "grpc"},
        ),
        (
            ("client.link.model", "client.learning.partitions"),
            {"torch", "flwr", "scipy"},
        ),
        (
            ("client.cli", "client.wire.credentials", "client.wire.health"),
            {"numpy", "torch", "flwr"},
        ),
    ],
)
def test_imports_load_nothing_heavy(imported, kept_out):
    modules = ", ".join(f"flower_scheduling.{name}" for name in imported)
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not kept_out & set(done.stdout.split())


def test_messages_are_read_as_flower_reads_them() -> None:
    content = RecordDict(
        {
            "arrays": ArrayRecord([np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(1)]),
            "metrics": MetricRecord({"num-examples": 3, "many": [1.0, 2.0]}),
            "config": ConfigRecord({"text": "a", "raw": b"b", "flags": [True, False]}),
        }
    )
    request = Message(content, 7, "train", ttl=12.0, group_id="3")
    request.metadata.__dict__["_message_id"] = "id"
    for message in (
        request,
        Message(content, reply_to=request),
        Message(Error(2, "no"), reply_to=request),
        Message(RecordDict(), reply_to=request),
    ):
        data = message_to_proto(message).SerializeToString()
        flowers = message_from_proto(ProtoMessage.FromString(data))
        ours = unpack(pack(message))
        assert ours.metadata == flowers.metadata
        assert ours.has_error() == flowers.has_error()
        if message.has_error():
            assert (ours.error.code, ours.error.reason) == (2, "no")
            continue
        assert list(ours.content) == list(flowers.content)
        assert message_to_proto(ours).SerializeToString() == data
    with pytest.raises(Exception, match="parsing"):
        unpack(Packed(b"garbage"))


def test_a_client_that_is_meant_for_another_data_set_is_refused():
    with pytest.raises(DataUnavailableError) as caught:
        app(request(), context({"dataset": "kmnist"}))
    assert str(caught.value) == (
        "this client is started for the data set kmnist, the server trains on mnist: start it with "
        "--dataset mnist, or without"
    )
    app(request(), context({"dataset": "mnist"}))


def test_a_client_whose_files_are_not_the_servers_is_refused(tmp_path):
    write_idx_dataset(tmp_path)
    where = context({"num-partitions": 4}, dataset="fashion-mnist", data_dir=str(tmp_path))
    digest = data_digest("fashion-mnist", tmp_path)
    app(request(data_digest=digest), where)
    with pytest.raises(DataUnavailableError, match=f"digest {digest}, the server's is 0123"):
        app(request(data_digest="0123"), where)


def test_a_client_of_another_data_set_and_model(tmp_path, monkeypatch):
    write_cifar10(tmp_path, monkeypatch)
    where = context(
        {"num-partitions": 5}, dataset="cifar10", data_dir=str(tmp_path), model="resnet18"
    )
    spec = load_spec("cifar10")
    arrays = initial_arrays("resnet18", 0, spec)
    reply = app(request(arrays=arrays), where)
    assert reply.content[protocol.ARRAYS].keys() == arrays.keys()
    assert reply.content[protocol.METRICS][protocol.NUM_EXAMPLES] == 60
    again = app(request(arrays=arrays), where)
    for key, array in reply.content[protocol.ARRAYS].items():
        assert np.array_equal(array.numpy(), again.content[protocol.ARRAYS][key].numpy())


def test_as_many_steps_are_made_as_are_asked_for():
    message = request(server_round=5)
    message.content[protocol.REQUEST] = ConfigRecord({protocol.LOCAL_STEPS: 3})
    reply = app(message, context(local_steps=7))
    expected = app(request(server_round=5), context(local_steps=3))
    assert reply.content[protocol.REQUEST] == ConfigRecord({protocol.LOCAL_STEPS: 3})
    for key, array in reply.content[protocol.ARRAYS].items():
        assert array.data == expected.content[protocol.ARRAYS][key].data
    message.content[protocol.REQUEST] = ConfigRecord({protocol.LOCAL_STEPS: 0})
    with pytest.raises(ConfigError, match="request local-steps = 0: must be at least 1"):
        app(message, context())

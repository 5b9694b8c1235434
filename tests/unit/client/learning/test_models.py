from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch.nn import functional

from flower_scheduling.client.learning.datasets import DATASETS
from flower_scheduling.client.learning.images import MNIST_SPEC, ImageSpec, scale_pixels
from flower_scheduling.client.learning.models import (
    MODELS,
    check_trainable,
    create_model,
    initial_arrays,
)
from flower_scheduling.client.learning.training import _train_module, evaluate, train
from flower_scheduling.client.wire.arrays import decode_array, encode_array
from flower_scheduling.errors import ClientConfigError, ConfigError, TrainingDivergedError

OPTIONS = {"batch_size": 4, "learning_rate": 0.1, "local_steps": 3}


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (50, 28, 28), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def labels():
    return torch.randint(10, (50,), generator=torch.Generator().manual_seed(1))


def weights(model):
    return {key: view.copy() for key, view in model.views.items()}


def randomised(name):
    model = create_model(name, seed=5)
    rng = np.random.default_rng(0)
    for view in model.views.values():
        view[...] = rng.normal(scale=0.1, size=view.shape)
    return model


# --- arrays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, dtype=np.int64),
        np.zeros((0, 4)),
        np.array([True, False]),
        np.arange(4, dtype=">f8"),
    ],
)
def test_arrays_are_flowers_own_bytes(values):
    ours, flowers = encode_array(values), Array(values)
    assert (ours.dtype, ours.shape, ours.stype) == (flowers.dtype, flowers.shape, flowers.stype)
    assert ours.data == flowers.data
    decoded = decode_array(flowers)
    assert decoded.dtype == values.dtype
    np.testing.assert_array_equal(decoded, values)


def test_arrays_in_fortran_order():
    values = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(decode_array(Array(values)), values)
    np.testing.assert_array_equal(encode_array(values).numpy(), values)


def _npy(shape: str, data: bytes = b"") -> Array:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return Array(
        "float32", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00" + header.encode() + data
    )


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Array("float32", (1,), "torch.tensor", bytes(4)), "not an array in npy format"),
        (Array("float32", (1,), "numpy.ndarray", b""), "not an array in npy format"),
        (Array("float32", (1,), "numpy.ndarray", b"\x93NUMPY\x03\x00"), "not an array in npy"),
        (_npy("(2,)", bytes(7)), "promises 8 bytes, there are 7"),
        (_npy("(2,)", bytes(9)), "promises 8 bytes, there are 9"),
        (_npy("(1000000000000,)"), "promises 4000000000000 bytes, there are 0"),
        (_npy("(-1, -4)", bytes(16)), "its shape cannot be"),
        (_npy("(2"), "header cannot be read"),
    ],
)
def test_bytes_that_are_no_array_are_refused(array, message):
    with pytest.raises(ValueError, match=message):
        decode_array(array)


def test_pickled_objects_are_refused():
    with pytest.raises(ValueError, match="Python objects are refused"):
        decode_array(
            Array(
                "object",
                (1,),
                "numpy.ndarray",
                b"\x93NUMPY\x01\x00v\x00"
                + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(117)
                + b"\n",
            )
        )


# --- models -----------------------------------------------------------------------------------


def test_logistic_starts_from_zero():
    arrays = initial_arrays("logistic", seed=3)
    assert {key: array.shape for key, array in arrays.items()} == {
        "weight": (10, 784),
        "bias": (10,),
    }
    assert not any(array.numpy().any() for array in arrays.values())


def test_random_weights_follow_from_the_seed_alone():
    before = torch.random.get_rng_state()
    first, again, other = (initial_arrays("cnn", seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(first[key].data == again[key].data for key in first)
    assert any(first[key].data != other[key].data for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_carry_a_state_dict(name):
    model = randomised(name)
    state = model.arrays().to_torch_state_dict()
    assert state.keys() == model.module.state_dict().keys()
    other = create_model(name)
    other.load(ArrayRecord(state))
    assert all(torch.equal(other.module.state_dict()[key], state[key]) for key in state)


def test_arrays_are_a_copy():
    model = randomised("logistic")
    arrays = model.arrays()
    before = arrays["bias"].numpy()
    model.views["bias"][...] = 7.0
    np.testing.assert_array_equal(arrays["bias"].numpy(), before)


@pytest.mark.parametrize("name", MODELS)
def test_models_map_images_to_logits(name):
    assert create_model(name).module(torch.zeros(3, 28, 28)).shape == (3, 10)


def test_the_small_cnn_is_as_small_as_it_says():
    assert sum(view.size for view in create_model("cnn").views.values()) == 18_378


def test_wrong_arrays_are_named():
    model = create_model("logistic")
    with pytest.raises(ClientConfigError, match=r"\['0'\]: model 'logistic' has \['bias', 'weig"):
        model.load(ArrayRecord([np.zeros(3)]))
    arrays = model.arrays()
    arrays["bias"] = Array(np.zeros(1, dtype=np.float32))  # would broadcast
    with pytest.raises(ClientConfigError, match=r"'bias' of shape \(1,\): .* has \(10,\)"):
        model.load(arrays)


def test_an_unknown_model():
    expected = (
        r"model = 'cn': must be one of logistic, mlp, cnn, or a classifier of torchvision\.models, "
        r"e\.g\. resnet18 \(did you mean cnn\?\)"
    )
    with pytest.raises(ConfigError, match=expected):
        create_model("cn")


# --- training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("proximal_mu", [0.0, 0.5])
def test_logistic_gradient_by_hand_equals_autograd(images, labels, proximal_mu):
    by_hand, by_autograd = randomised("logistic"), randomised("logistic")
    loss = train(
        by_hand,
        images,
        labels,
        rng=np.random.default_rng(0),
        proximal_mu=proximal_mu,
        **OPTIONS,
    )
    batches = np.random.default_rng(0).integers(50, size=(3, 4))
    expected = _train_module(by_autograd, images, labels, batches, 0.1, proximal_mu)
    assert loss == pytest.approx(expected, rel=1e-6)
    for key, view in by_hand.views.items():
        np.testing.assert_allclose(view, by_autograd.views[key], atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("proximal_mu", [0.0, 0.5])
def test_training_equals_plain_torch(images, labels, name, proximal_mu):
    """Against torch's optimiser on the loss with the proximal term written into it."""
    model = randomised(name)
    reference = copy.deepcopy(model.module)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    start = [parameter.detach().clone() for parameter in reference.parameters()]
    losses = []
    for batch in torch.from_numpy(np.random.default_rng(2).integers(50, size=(3, 4))):
        loss = functional.cross_entropy(reference(scale_pixels(images[batch])), labels[batch])
        losses.append(loss.item())
        for parameter, origin in zip(reference.parameters(), start, strict=True):
            loss = loss + proximal_mu / 2 * (parameter - origin).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    trained = train(
        model, images, labels, rng=np.random.default_rng(2), proximal_mu=proximal_mu, **OPTIONS
    )
    assert trained == pytest.approx(np.mean(losses), rel=1e-5)
    for key, tensor in reference.state_dict().items():
        np.testing.assert_allclose(model.views[key], tensor.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_minibatches_follow_from_the_generator(images, labels, name):
    results = []
    for seed in (0, 0, 1):
        model = randomised(name)
        train(model, images, labels, rng=np.random.default_rng(seed), **OPTIONS)
        results.append(weights(model))
    first, again, other = results
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not all(np.array_equal(first[key], other[key]) for key in first)


def test_the_first_loss_from_zero_weights_is_ln_10(images, labels):
    loss = train(
        create_model("logistic"),
        images,
        labels,
        batch_size=2,
        learning_rate=0.001,
        local_steps=1,
        rng=np.random.default_rng(0),
    )
    assert loss == pytest.approx(math.log(10))


def test_the_gradient_is_unbiased(images, labels):
    """Mean of 4000 one-step updates against the full gradient; 6 sigma for each bias entry."""
    options = {"batch_size": 2, "learning_rate": 1.0, "local_steps": 1}
    rng = np.random.default_rng(3)
    start, model = randomised("logistic"), create_model("logistic")
    arrays = start.arrays()
    updates = np.empty((4000, 10))
    for update in updates:
        model.load(arrays)
        train(model, images, labels, rng=rng, **options)
        update[:] = start.views["bias"] - model.views["bias"]
    loss = functional.cross_entropy(start.module(scale_pixels(images)), labels)
    (_, expected) = torch.autograd.grad(loss, list(start.module.parameters()))
    standard_error = updates.std(axis=0) / math.sqrt(len(updates))
    assert (np.abs(updates.mean(axis=0) - expected.numpy()) < 6 * standard_error + 1e-6).all()


@pytest.mark.parametrize("name", MODELS)
def test_large_logits_stay_finite(images, labels, name):
    model = randomised(name)
    for view in model.views.values():
        view *= 1e4
    loss = train(model, images, labels, rng=np.random.default_rng(0), **OPTIONS)
    assert math.isfinite(loss)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_divergence_is_one_clear_error(images, labels, name, value):
    model = randomised(name)
    for view in model.views.values():
        view[...] = value
    with pytest.raises(TrainingDivergedError, match="use a smaller learning-rate"):
        train(model, images, labels, rng=np.random.default_rng(0), **OPTIONS)


def test_evaluate_by_hand(labels):
    model = create_model("logistic")
    model.views["bias"][4] = 2.0  # answers 4 whatever it sees
    images = torch.zeros(50, 28, 28)
    loss, accuracy = evaluate(model, images, labels)
    fours = int((labels == 4).sum())
    assert accuracy == fours / 50
    assert loss == pytest.approx(math.log(9 + math.exp(2)) - 2 * fours / 50)


@pytest.mark.parametrize("name", MODELS)
def test_evaluate_in_batches_changes_nothing(monkeypatch, images, labels, name):
    model = randomised(name)
    whole = evaluate(model, images, labels)
    monkeypatch.setattr("flower_scheduling.client.learning.training._EVALUATION_BATCH", 7)
    assert evaluate(model, images, labels) == pytest.approx(whole)
    assert evaluate(model, scale_pixels(images), labels) == pytest.approx(whole)


def test_logistic_learns_mnist(mnist):
    """The centralised counterpart of the paper's ideal case."""
    model = create_model("logistic")
    train(
        model,
        mnist.train_images,
        mnist.train_labels,
        batch_size=10,
        learning_rate=0.01,
        local_steps=3_000,
        rng=np.random.default_rng(0),
    )
    _, accuracy = evaluate(model, mnist.test_images, mnist.test_labels)
    assert accuracy > 0.86


def test_a_step_of_the_papers_size_makes_no_optimiser(mnist, monkeypatch):
    """A step takes some 30 us; making an optimiser for each call would take 1 ms."""

    def refuse(self, *args, **kwargs):
        raise AssertionError("an optimiser was made")

    monkeypatch.setattr(torch.optim.Optimizer, "__init__", refuse)
    model = create_model("logistic")
    before = model.arrays()
    model.load(before)
    train(
        model,
        mnist.train_images,
        mnist.train_labels,
        batch_size=2,
        learning_rate=0.001,
        local_steps=1,
        rng=np.random.default_rng(0),
    )
    assert any((model.arrays()[key].numpy() != before[key].numpy()).any() for key in before)


CIFAR10 = DATASETS["cifar10"].spec


@pytest.mark.parametrize("name", MODELS)
def test_models_take_the_shape_and_classes_of_a_data_set(name):
    spec = ImageSpec(3, 20, 24, 47, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    model = create_model(name, 0, spec)
    assert model.module(torch.zeros(2, 3, 20, 24)).shape == (2, 47)
    images = torch.zeros(10, 3, 20, 24, dtype=torch.uint8)
    labels = torch.arange(10)
    loss = train(
        model, images, labels, batch_size=2, learning_rate=0.1, local_steps=2, rng=rng_of(1)
    )
    assert loss > 0


def rng_of(seed):
    return np.random.default_rng(seed)


def test_logistic_regression_on_normalised_images_equals_autograd():
    spec = ImageSpec(3, 4, 4, 5, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    rng = rng_of(0)
    images = torch.from_numpy(rng.integers(256, size=(20, 3, 4, 4), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(5, size=20))
    model = create_model("logistic", 0, spec)
    train(model, images, labels, batch_size=4, learning_rate=0.1, local_steps=1, rng=rng_of(1))
    batch = rng_of(1).integers(20, size=4)
    reference = create_model("logistic", 0, spec).module
    loss = functional.cross_entropy(reference(spec.scale(images[batch])), labels[batch])
    loss.backward()
    expected = -0.1 * reference.weight.grad
    assert torch.allclose(torch.from_numpy(model.views["weight"]), expected, atol=1e-6)


def test_an_image_that_is_too_small_for_the_cnn():
    with pytest.raises(ConfigError, match=r"takes no images of 12 x 28 pixels \(it takes 13 x 13"):
        create_model("cnn", 0, ImageSpec(1, 12, 28, 10))


@pytest.mark.parametrize("spec", [MNIST_SPEC, CIFAR10], ids=["grey", "colour"])
@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_classifiers_of_torchvision_are_adapted_and_repeat(name, spec):
    rng = rng_of(0)
    images = torch.from_numpy(rng.integers(256, size=(8, *spec.shape), dtype=np.uint8))
    labels = torch.arange(8)
    results = []
    for _ in range(2):
        model = create_model(name, 3, spec)
        assert model.module(torch.zeros(2, *spec.shape)).shape == (2, 10)
        check_trainable(model, 4)
        torch.rand(1)  # what others draw from the global generator changes nothing
        before = torch.random.get_rng_state()
        loss = train(
            model, images, labels, batch_size=4, learning_rate=0.01, local_steps=2, rng=rng_of(5)
        )
        assert torch.equal(torch.random.get_rng_state(), before)
        results.append((loss, evaluate(model, images, labels), model.arrays()))
    assert results[0][:2] == results[1][:2]
    first, second = (result[2] for result in results)
    assert all(np.array_equal(first[key].numpy(), second[key].numpy()) for key in first)
    assert not any("num_batches_tracked" in key for key in first)


@pytest.mark.parametrize("name", ["alexnet", "vit_b_16"])
def test_a_classifier_that_does_not_fit_is_one_sentence(name):
    with pytest.raises(ConfigError, match=f"model = '{name}': takes no images of 28 x 28 pixels"):
        create_model(name)


def test_batch_normalisation_of_one_value_is_refused_and_leaves_the_model_as_it_was():
    model = create_model("shufflenet_v2_x0_5")
    before = {key: view.copy() for key, view in model.views.items()}
    check_trainable(model, 2)
    with pytest.raises(ConfigError, match=r"in minibatches of 1$"):
        check_trainable(model, 1)
    assert all(np.array_equal(view, before[key]) for key, view in model.views.items())
    assert not model.module.training

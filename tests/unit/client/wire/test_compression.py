"""Compression: bounds of error, what must come as it is, error feedback, and hostile claims."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from profiles import examples

from flower_scheduling.client.wire import compression, frames
from flower_scheduling.client.wire.compression import (
    SMALL_BYTES,
    Compression,
    SentModel,
    UpdateEncoder,
    expected_share,
    known_kinds,
    restore,
    value_encoder,
)
from flower_scheduling.client.wire.packing import pack, unpack
from flower_scheduling.errors import ConfigError, MissingExtraError

KINDS = ("bfloat16", "int8", "zstd")
LOSSLESS = ("", "zstd")
Model = dict[str, NDArray[Any]]


def content_of(model: Model, name: str = "arrays") -> RecordDict:
    arrays = ArrayRecord({key: Array(values) for key, values in model.items()})
    return RecordDict({name: arrays, "config": ConfigRecord({"a": 1})})


def message_of(content: RecordDict) -> Message:
    return make_message(Metadata(1, "m", 1, 7, "", "", 0.0, 60.0, "train"), content)


def crossed(packed: frames.Packed) -> frames.Packed:
    """Return a message as it is read off the wire."""
    frame = frames.decode(frames.encode(frames.Reply("m", packed)))
    assert isinstance(frame, frames.Reply)
    return frame.payload


def down(kind: str, model: Model) -> tuple[Model, SentModel, frames.Packed]:
    packed = pack(message_of(content_of(model)), encoder=value_encoder(kind))
    message = unpack(crossed(packed))
    return arrays_of(message), SentModel(message.content, packed.codes), packed


def arrays_of(message: Message) -> Model:
    (record,) = message.content.array_records.values()
    return {key: array.numpy() for key, array in record.items()}


def up(
    kind: str,
    model: Model,
    at_client: SentModel,
    trained: Model,
    updates: UpdateEncoder | None = None,
    name: str = "arrays",
) -> tuple[Model, frames.Packed]:
    encoder = (updates or UpdateEncoder()).encoder(kind, at_client)
    packed = pack(message_of(content_of(trained, name)), encoder=encoder)
    return arrays_of(unpack(crossed(packed), SentModel(content_of(model)))), packed


def weights(seed: int, shape: tuple[int, ...], dtype: str, scale: float) -> NDArray[Any]:
    return np.asarray(scale * np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


shapes = st.lists(st.integers(0, 60), min_size=0, max_size=3).map(tuple)
large_shapes = st.sampled_from([(1024,), (2049, 1), (3, 5, 700), (1025, 2), (66_000,), (1, 1100)])
floats = st.sampled_from(["float32", "float64"])
scales = st.sampled_from([1e-20, 1e-3, 1.0, 1e4, 1e14])


@examples(200)
@given(st.integers(0, 9), shapes | large_shapes, floats, scales)
def test_bfloat16_keeps_eight_bits(
    seed: int, shape: tuple[int, ...], dtype: str, scale: float
) -> None:
    model = {"w": weights(seed, shape, dtype, scale)}
    came, _, packed = down("bfloat16", model)
    assert came["w"].dtype == model["w"].dtype
    assert came["w"].shape == shape
    assert np.all(np.abs(came["w"] - model["w"]) <= 2.0**-8 * np.abs(model["w"]))
    if model["w"].nbytes >= SMALL_BYTES:
        assert len(packed.arrays[0]) == 2 * model["w"].size
    else:
        assert same(came["w"], model["w"])
        assert packed.codes == b""


def test_bfloat16_rounds_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(0).integers(0, 2**31, 5000, dtype=np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.abs(values) < 1e15]
    came, _, _ = down("bfloat16", {"w": values})
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    assert same(came["w"], expected)


@examples(200)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(["", "bfloat16", "zstd"]),
    st.integers(0, 9),
    large_shapes,
    floats,
    scales,
)
def test_updates_come_within_their_bound(
    kind: str, kind_down: str, seed: int, shape: tuple[int, ...], dtype: str, scale: float
) -> None:
    model = {"w": weights(seed, shape, dtype, scale), "b": np.zeros(3, dtype)}
    got, at_client, _ = down(kind_down, model)
    update = weights(seed + 100, shape, dtype, 1e-2 * scale)
    trained = {"w": got["w"] + update, "b": got["b"] + 1}
    came, _ = up(kind, model, at_client, trained)
    assert came["w"].dtype == model["w"].dtype
    assert came["w"].shape == shape
    assert same(came["b"], trained["b"])
    if kind == "zstd" and kind_down in LOSSLESS:
        assert same(came["w"], trained["w"])
        return
    true = (trained["w"] - got["w"]).astype(np.float64)
    error = np.abs((came["w"].astype(np.float64) - model["w"]) - true)
    allowed = {"bfloat16": 2.0**-8, "int8": 0.51 / 127, "zstd": 0.0}[kind] * np.abs(true).max()
    assert error.max() <= allowed + 4 * np.finfo(dtype).eps * np.abs(model["w"]).max()


@pytest.mark.parametrize("kind", ["", *KINDS])
@pytest.mark.parametrize("kind_down", ["", "bfloat16", "zstd"])
def test_what_a_client_has_not_changed_costs_nothing_and_stays(kind: str, kind_down: str) -> None:
    model = {"w": weights(1, (60, 60), "float32", 1.0), "n": np.arange(2000)}
    got, at_client, _ = down(kind_down, model)
    came, packed = up(kind, model, at_client, got)
    assert all(same(came[key], model[key]) for key in model)
    if kind or kind_down == "bfloat16":
        assert sum(map(len, packed.arrays)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_small_updates_are_not_lost_in_a_rounded_model(kind: str) -> None:
    """A model that is broadcast in eight bits still learns steps of a thousandth of a bit."""
    model = {"w": np.full(2000, 1.003, np.float32)}
    for _ in range(100):
        got, at_client, _ = down("bfloat16", model)
        model, _ = up(kind, model, at_client, {"w": got["w"] + np.float32(1e-5)})
    assert model["w"] == pytest.approx(1.003 + 100 * 1e-5, abs=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.finfo(np.float32).min, 2e15])
@pytest.mark.parametrize("kind", KINDS)
def test_masks_come_as_they_are(kind: str, value: float) -> None:
    mask = weights(2, (50, 50), "float32", 1.0)
    mask[3, 7:9] = value
    model = {"mask": mask, "w": weights(1, (50, 50), "float32", 1.0)}
    got, at_client, _ = down("bfloat16" if kind != "zstd" else kind, model)
    assert same(got["mask"], mask)
    moved = mask.copy()
    moved[0, 0] += 1
    came, _ = up(kind, model, at_client, {"mask": moved, "w": got["w"] * np.float32(1.001)})
    assert same(came["mask"], moved)
    diverged = np.where(np.arange(2500).reshape(50, 50) == 5, np.float32(value), got["w"])
    came, _ = up(kind, model, at_client, {"mask": mask, "w": diverged})
    assert same(came["w"], diverged)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "values",
    [
        np.arange(5000, dtype=np.int64),
        np.ones(5000, dtype=bool),
        np.linspace(0, 1, 5000, dtype=np.float16),
        np.linspace(0, 1, 5000, dtype=np.complex64),
        np.linspace(0, 1, 5000, dtype=">f4"),
        np.asfortranarray(weights(0, (80, 80), "float32", 1.0)),
        weights(0, (80, 160), "float32", 1.0)[:, ::2],
        np.zeros((0, 5), np.float32),
        np.float32(3.5),
        np.array(["a", "bc"] * 3000),
    ],
    ids=lambda values: f"{values.dtype}-{values.shape}",
)
def test_all_else_comes_bit_for_bit(kind: str, values: NDArray[Any]) -> None:
    model = {"w": values}
    array = Array(np.asarray(values))
    content = RecordDict({"arrays": ArrayRecord({"w": array})})
    encoder = value_encoder(kind)
    again = unpack(crossed(pack(message_of(content), encoder=encoder))).content["arrays"]
    assert isinstance(again, ArrayRecord)
    lossy = kind == "bfloat16" and values.dtype == np.float32 and values.nbytes >= SMALL_BYTES
    tolerance = 2.0**-8 * np.abs(values).max() if lossy else 0
    if lossy:
        assert np.abs(again["w"].numpy() - values).max() <= tolerance
    else:
        assert np.array_equal(again["w"].numpy(), values)
        assert again["w"].numpy().dtype == values.dtype
    assert again["w"].shape == np.shape(model["w"])


def test_other_kinds_of_arrays_go_as_they_are() -> None:
    array = Array(dtype="float32", shape=(2000,), stype="own.format", data=bytes(8000))
    content = RecordDict({"arrays": ArrayRecord({"w": array})})
    for kind in KINDS:
        packed = pack(message_of(content), encoder=value_encoder(kind))
        assert packed.codes == b""
        assert packed.arrays == (array.data,)
    assert UpdateEncoder().encoder("int8", SentModel(content)) is not None
    assert pack(
        message_of(content), encoder=UpdateEncoder().encoder("int8", SentModel(content))
    ).arrays == (array.data,)


def test_sums_of_updates_are_the_true_sums() -> None:
    rng = np.random.default_rng(5)
    model = {"w": weights(1, (3000,), "float32", 1.0)}
    updates = UpdateEncoder()
    true = sent = np.zeros(3000)
    for _ in range(50):
        step = (0.01 * rng.standard_normal(3000)).astype(np.float32)
        step[0] = 1e-5  # below a step of int8: without feedback it would never arrive
        _, at_client, _ = down("", model)
        came, packed = up("int8", model, at_client, {"w": model["w"] + step}, updates)
        assert len(packed.arrays[0]) == 3000 + 4 * 3
        true, sent = true + step, sent + (came["w"] - model["w"])
    assert np.abs(true - sent).max() <= 0.04 / 127
    assert sent[0] == pytest.approx(50e-5, abs=0.04 / 127)
    again = UpdateEncoder()
    again.load_state_dict(updates.state_dict())
    _, at_client, _ = down("", model)
    step_model = {"w": model["w"] + step}
    a, b = (up("int8", model, at_client, step_model, one)[0] for one in (updates, again))
    assert same(a["w"], b["w"])


def test_gradients_under_the_models_names_are_not_spoilt() -> None:
    model = {"w": weights(1, (3000,), "float32", 1.0)}
    gradient = {"w": weights(2, (3000,), "float32", 1e-3)}
    _, at_client, _ = down("", model)
    for kind in ("int8", "zstd"):
        came, _ = up(kind, model, at_client, gradient)
        assert same(came["w"], gradient["w"])
    came, _ = up("bfloat16", model, at_client, gradient)
    assert np.abs(came["w"] - gradient["w"]).max() <= 2.0**-8 * np.abs(gradient["w"]).max()


def test_other_names_and_shapes() -> None:
    model = {"w": weights(1, (3000,), "float32", 1.0)}
    _, at_client, _ = down("", model)
    trained = {"w": model["w"] * np.float32(1.01)}
    came, packed = up("int8", model, at_client, trained, name="new-weights")
    assert packed.codes, "the only record of each is the other's"
    assert np.abs(came["w"] - trained["w"]).max() < 1e-3
    other = {"v": trained["w"], "w": weights(3, (60, 50), "float32", 1.0)}
    came, packed = up("int8", model, at_client, other)
    assert packed.codes == b""
    assert all(same(came[key], other[key]) for key in other)


def test_metrics_and_errors_are_left_alone() -> None:
    content = RecordDict({"metrics": MetricRecord({"num-examples": 3})})
    packed = pack(message_of(content), encoder=value_encoder("bfloat16"))
    assert unpack(crossed(packed)).content == content


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Compression()),
        ("bfloat16", Compression("bfloat16", "bfloat16")),
        ("up=int8,down=bfloat16", Compression("bfloat16", "int8")),
        (" down = zstd ", Compression("zstd", "")),
        ("up=zstd", Compression("", "zstd")),
    ],
)
def test_the_setting(text: str, expected: Compression) -> None:
    assert Compression.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int8", r"down must be bfloat16 or zstd \(int8 is for updates: up=int8\)"),
        ("up=bfloat", r"up must be bfloat16, int8 or zstd \(did you mean bfloat16"),
        ("sideways=zstd", "'sideways' must be up or down"),
        ("up=zstd,up=int8", "has several values for up"),
        ("bfloat16,down=zstd", "has several values for down"),
        ("gzip", "down must be bfloat16 or zstd"),
    ],
)
def test_wrong_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match="^compress = .*: .*" + message):
        Compression.parse(text)


def test_zstd_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_scheduling.extras.find_spec", lambda name: None)
    monkeypatch.setattr(compression, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert known_kinds.__wrapped__() == ["bfloat16", "int8"]
    with pytest.raises(MissingExtraError, match=r"pip install 'flower-client-scheduling\[zstd\]'"):
        Compression.parse("up=zstd")
    with pytest.raises(ValueError, match="zstandard is not installed"):
        restore(3, b"\x28\xb5\x2f\xfd", "float32", (2000,))


def test_expected_share_is_what_crosses() -> None:
    model = {"w": weights(1, (4000,), "float32", 1.0), "b": np.zeros(10, np.float32)}
    arrays = content_of(model).array_records["arrays"]
    whole = 16_040
    assert expected_share("", arrays) == expected_share("zstd", arrays) == 1
    assert expected_share("bfloat16", arrays) == 8_040 / whole
    assert expected_share("int8", arrays) == pytest.approx(4_040 / whole, rel=0.01)
    assert expected_share("int8", ArrayRecord()) == 1


# --- hostile claims -------------------------------------------------------------------------------

MODEL = Array(weights(0, (2000,), "float32", 1.0))
try_restore = functools.partial(restore, dtype="float32", shape=(2000,), base=MODEL)


def zstd_of(size: int) -> bytes:
    import zstandard

    data: bytes = zstandard.ZstdCompressor().compress(bytes(size))
    return data


@pytest.mark.parametrize(
    ("code", "data", "changes"),
    [
        (0x01, bytes(10), {}),  # fewer halves than values
        (0x01, bytes(4000), {"shape": (2**40,)}),
        (0x01, bytes(4000), {"shape": (2**62, 2**62)}),
        (0x01, bytes(4000), {"shape": (-1, -2000)}),
        (0x01, b"", {"shape": (0,)}),
        (0x01, bytes(4000), {"dtype": "int64"}),
        (0x01, bytes(4000), {"dtype": "object"}),
        (0x01, bytes(4000), {"dtype": "f4,f4"}),
        (0x01, bytes(4000), {"dtype": "no dtype"}),
        (0x01, bytes(4000), {"shape": (1,) * 70_000}),
        (0x12, bytes(2000), {}),  # no scales
        (0x12, bytes(2008), {"base": None}),
        (0x12, bytes(2008), {"shape": (2, 1000)}),
        (0x12, bytes(1008 + 2000), {"dtype": "float64"}),
        (0x30, b"", {"base": None}),
        (0x30, b"x", {}),
        (0x20, bytes(8000), {}),
        (0x10, bytes(7999), {}),
        (0x00, bytes(8000), {}),
        (0x05, bytes(8000), {}),
        (0x3F, bytes(8000), {}),
        (0xFF, bytes(8000), {}),
        (0x03, zstd_of(2**26), {}),  # a bomb
        (0x03, zstd_of(8000)[:-3], {}),
        (0x03, zstd_of(8000) + b"more", {}),
        (0x03, b"not compressed", {}),
        (0x03, b"", {}),
        (0x03, zstd_of(2**26), {"shape": (2**24,), "max_bytes": 2**20}),
        (0x01, bytes(4000), {"max_bytes": 7999}),
    ],
)
def test_hostile_arrays_are_refused(code: int, data: bytes, changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        try_restore(code, data, **changes)


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    import zstandard

    compressor = zstandard.ZstdCompressor(write_content_size=False)
    with pytest.raises(ValueError, match="encoded array"):
        try_restore(0x03, compressor.compress(bytes(8000)))


@examples(300)
@given(st.integers(0, 0x3F), st.binary(max_size=3000), st.integers(0, 2500))
def test_any_bytes_are_an_array_of_that_size_or_refused(code: int, data: bytes, size: int) -> None:
    try:
        found = try_restore(code, data, shape=(size,))
    except ValueError:
        return
    assert len(found) == 128 + 4 * size


def test_encoded_arrays_have_a_bound_together() -> None:
    model = {str(i): weights(i, (2000,), "float32", 1.0) for i in range(4)}
    packed = pack(message_of(content_of(model)), encoder=value_encoder("bfloat16"))
    unpack(packed, max_bytes=4 * 8128)
    with pytest.raises(ValueError, match="an array of 8000 bytes, 7"):
        unpack(packed, max_bytes=4 * 8000 - 1)


def test_scales_that_are_no_numbers_give_arrays_that_are_refused_later() -> None:
    data = np.array([np.nan, np.inf], "<f4").tobytes() + bytes(2000)
    found = np.frombuffer(try_restore(0x12, data), np.float32, offset=128)
    assert not np.isfinite(found).any()

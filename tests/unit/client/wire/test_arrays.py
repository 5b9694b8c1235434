"""Arrays off the wire: what lies about its size is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from flwr.app import Array
from hostile import peak_mb

from flower_scheduling.client.wire.arrays import FastArray, decode_array, encode_array


def npy(header: str, data: bytes = b"") -> Array:
    text = header.encode("latin1") + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data
    return Array("float32", (2,), "numpy.ndarray", content)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr':'<f4','fortran_order':False,'shape':(True,)}",
        "{'descr':'<f4','fortran_order':False,'shape':(-1,-1)}",
        f"{{'descr':'<f4','fortran_order':False,'shape':(0,{10**30})}}",
        f"{{'descr':'<f4','fortran_order':False,'shape':{(1,) * 70}}}",
        "{'descr':'V0','fortran_order':False,'shape':(3,)}",
        "{'descr':'|O','fortran_order':False,'shape':(1,)}",
        "{'descr':" + "(" * 5000 + "}",
        "{'descr':'<f4','fortran_order':False,'shape':(999999999999,)}",
        "-" * 60_000,
    ],
)
def test_array_whose_header_lies_cannot_be_read(header: str) -> None:
    before = peak_mb()
    for data in (b"", bytes(4)):
        with pytest.raises(ValueError, match=r"."):
            decode_array(npy(header, data))
    assert peak_mb() - before < 10


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "?", "i1", "f2", "c16", "M8[s]", "U3"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1000, 600)])
def test_array_is_written_as_flower_writes_it(
    shape: tuple[int, ...], dtype: str, order: str
) -> None:
    values = (np.arange(np.prod(shape)) % 100).reshape(shape).astype(dtype).copy(order=order)
    array = encode_array(values)
    flowers = Array(np.ascontiguousarray(values).reshape(shape))
    assert (array.data, array.dtype, array.shape) == (flowers.data, flowers.dtype, flowers.shape)
    assert type(array.data) is bytes
    np.testing.assert_array_equal(decode_array(array), values)


def test_array_of_numpy_has_bytes_when_they_are_read() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = FastArray.of_numpy(values)
    assert decode_array(array) is values
    assert not values.flags.writeable
    flowers = Array(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert (array.dtype, array.shape, array.stype, array.data) == (
        flowers.dtype,
        flowers.shape,
        flowers.stype,
        flowers.data,
    )
    assert not np.shares_memory(decode_array(array), values), "nothing is held twice"
    np.testing.assert_array_equal(decode_array(array), values)
    assert array.object_id == flowers.object_id
    array.numpy()[:] = 7.0
    np.testing.assert_array_equal(decode_array(array), values)


def test_new_bytes_are_new_values() -> None:
    array = FastArray.of(Array(np.zeros(3)))
    assert decode_array(array) is decode_array(array)
    assert not decode_array(array).flags.writeable
    array.data = Array(np.ones(3)).data
    np.testing.assert_array_equal(decode_array(array), np.ones(3))


def test_copies_of_an_array_cannot_be_changed_either() -> None:
    array = encode_array(np.arange(3.0))
    for again in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        assert again == array
        assert not decode_array(again).flags.writeable


def test_array_of_python_objects_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="Python objects are refused"):
        encode_array(np.array([None]))

"""Fast conversion between numpy arrays and Flower's ``Array``.

``Array`` holds the bytes of an ``.npy`` file. Writing and parsing its header takes numpy about
20 us per array, a fifth of a small client's whole round, though all messages of a model carry
the same few headers. They are cached here; the bytes on the wire stay exactly Flower's.
"""

from __future__ import annotations

import functools
import io
import math
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flower_scheduling._flwr import array_as

__all__ = ["AnyArray", "FastArray", "decode_array", "encode_array", "fast_record", "npy_header"]

AnyArray: TypeAlias = NDArray[Any]

_STYPE: Final = "numpy.ndarray"  # Flower's name for .npy content
_LARGE_BYTES: Final = 2**20
_MAGIC: Final = b"\x93NUMPY\x01\x00"  # of .npy 1.0, which numpy writes for plain dtypes


class FastArray(Array):
    """Flower's ``Array``, decoded once; made of numpy values, it has bytes when they are read.

    Where both ends of a message are in one process, nobody reads them.
    """

    @classmethod
    def of(cls, array: Array) -> FastArray:
        """Return an array like this one that shares its bytes."""
        if isinstance(array, FastArray):
            return array
        return array_as(cls, array)

    @classmethod
    def of_numpy(cls, values: AnyArray) -> FastArray:
        """Return an array of these values, in C order, that must not change from now on."""
        array = cls.__new__(cls)
        values.setflags(write=False)
        dtype = _header(values.dtype, values.shape)[1]
        array.__dict__.update(dtype=dtype, shape=values.shape, stype=_STYPE, _view=values)
        return array

    @property
    def data(self) -> bytes:
        """The bytes of an ``.npy`` file."""
        data: bytes | None = self.__dict__.get("data")
        if data is None:
            view = self.__dict__["_view"]
            header, _ = _header(view.dtype, view.shape)
            if view.nbytes < _LARGE_BYTES:
                data = header + view.tobytes()
            else:  # one copy instead of two
                data = b"".join((header, view.reshape(-1).view(np.uint8).data))
            self.__dict__["data"] = data
            # From now on a view of the bytes: nothing is held twice.
            view = np.frombuffer(data, view.dtype, offset=len(header)).reshape(view.shape)
            self.__dict__["_view"] = view
        return data

    @data.setter
    def data(self, data: bytes) -> None:
        self.__dict__["data"] = data
        self.__dict__.pop("_view", None)

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles are made of: the bytes, which cannot change."""
        self.data  # noqa: B018
        return {name: value for name, value in self.__dict__.items() if name != "_view"}

    def deflate(self) -> bytes:
        """Return the bytes of a plain ``Array``.

        They name the class (flwr 1.42), and a SuperLink refuses objects of unknown classes.
        """
        self.slice_array()  # cached in this object, so that no chunk is hashed twice
        return array_as(Array, self).deflate()

    def numpy(self) -> NDArray[Any]:
        """Return a copy that the caller may change, like Flower's method."""
        return decode_array(self).copy()


def fast_record(record: ArrayRecord) -> ArrayRecord:
    """Return a copy of a record whose arrays are fast to decode.

    Both share the arrays' bytes, which cannot change.
    """
    copy = record.copy()
    for key, array in record.items():
        if not isinstance(array, FastArray):
            copy[key] = FastArray.of(array)
    return copy


def encode_array(values: AnyArray) -> FastArray:
    """Convert an array to Flower's ``Array``, like ``Array(values)`` but faster.

    Parameters
    ----------
    values : (...) array of a plain dtype
        Copied, so that it may change afterwards.

    Returns
    -------
    Array
        In C order, whatever the order of ``values``.
    """
    return FastArray.of_numpy(np.array(values, order="C"))


def decode_array(array: Array) -> AnyArray:
    """Convert Flower's ``Array`` to numpy, like ``array.numpy()`` but faster and without a copy.

    ``array.numpy()`` parses the header every time, which takes 20 us, and allocates what a hostile
    header claims. Headers repeat, so their parsed form is cached, and the size is checked against
    the bytes that are there.

    Parameters
    ----------
    array : Array
        As numpy writes it (npy format 1.0).

    Returns
    -------
    (...) array
        A read-only view of the message's bytes, or of what its sender in this process holds.

    Raises
    ------
    ValueError
        If the bytes are not those of exactly one plain array.
    """
    held: AnyArray | None = array.__dict__.get("_view")
    if held is not None and array.stype == _STYPE:
        return held
    data = array.data
    if array.stype != _STYPE or data[:8] != _MAGIC:
        raise ValueError("not an array in npy format 1.0")
    start = 10 + int.from_bytes(data[8:10], "little")
    dtype, shape, order = _layout(data[:start])
    size = math.prod(shape) * dtype.itemsize
    if len(data) - start != size:
        raise ValueError(f"the header promises {size} bytes, there are {len(data) - start}")
    view = np.frombuffer(data, dtype, offset=start).reshape(shape, order=order)
    if isinstance(array, FastArray):
        array.__dict__["_view"] = view
    return view


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the bytes before the values of an array in C order."""
    return _header(dtype, shape)[0]


@functools.lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, str]:
    """Return the start of the file, and the dtype's name."""
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are refused")
    stream = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": description, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue(), str(dtype)


@functools.lru_cache(maxsize=1024)
def _layout(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], Literal["C", "F"]]:
    """Parse a header."""
    stream = io.BytesIO(header[8:])
    try:
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception:  # numpy lets errors of Python's tokenizer and parser through
        raise ValueError("the header cannot be read") from None
    if dtype.hasobject:
        raise ValueError("arrays of Python objects are refused")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its shape cannot be {shape}")  # True counts as 1, but not to numpy
    return dtype, shape, "F" if fortran_order else "C"

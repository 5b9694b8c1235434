"""Files of safetensors in pieces: an array is written from where it is, without a copy.

The library writes a file as a whole, holds the interpreter's lock meanwhile, and tells of a full
disk by a text; it is what reads the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# By numpy's names, in the order in which the library sorts them: the last are the first in a file.
_DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
_RANKS: Final = {name: rank for rank, name in enumerate(_DTYPES)}
_PIECE_BYTES: Final = 2**20


def can_store(dtype: np.dtype[Any]) -> bool:
    """Tell whether the format has arrays of a dtype."""
    return dtype.name in _DTYPES


def tensor_file(
    arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield a file's bytes in pieces, the same bytes as those of ``safetensors.numpy.save``.

    Parameters
    ----------
    arrays : mapping of str to array
        Of dtypes that the format has, in any order of bytes and axes; they must not change
        meanwhile.
    metadata : mapping of str to str, optional
        For the header.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    names = sorted(arrays, key=lambda name: (-_RANKS[arrays[name].dtype.name], name))
    end = 0
    for name in names:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield from _pieces(arrays[name])


def _pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    data = plain.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _PIECE_BYTES):
        yield data[begin : begin + _PIECE_BYTES]

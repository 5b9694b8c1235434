"""Arrays with fewer bytes: what ``--compress`` does to a message, array by array.

Each array of a message has a code, one byte, beside its size (:mod:`.frames`); 0 is the array as it
is. The low half of a code says how the bytes are encoded, the high half what was encoded: the
array's values, or how they differ from the model that the reply answers. Receivers know dtype and
shape from the message's outline, and so how large an array becomes before they take memory for it.

Differences are added to the *sender's own* model: what the download lost is not lost from the
model, and an array that a client has not changed comes back bit for bit.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Self, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from flower_scheduling.errors import ConfigError, nearest
from flower_scheduling.extras import require_extra

from .arrays import AnyArray, decode_array, npy_header
from .frames import NO_LIMIT, Buffer

__all__ = [
    "NO_COMPRESSION",
    "SMALL_BYTES",
    "WIRE_SHARE",
    "Compression",
    "Encoder",
    "SentModel",
    "UpdateEncoder",
    "expected_share",
    "known_kinds",
    "plain_bytes",
    "restore",
    "value_encoder",
]

BFLOAT16: Final = "bfloat16"
INT8: Final = "int8"
ZSTD: Final = "zstd"
_OF_DIRECTION: Final = {"down": (BFLOAT16, ZSTD), "up": (BFLOAT16, INT8, ZSTD)}
SMALL_BYTES: Final = 4096
"""Smaller arrays go as they are."""

# Low half of a code
_PLAIN, _BFLOAT16, _INT8, _ZSTD = range(4)
_HOW: Final = 0x0F
# High half: of values, of their difference to the model, of their bits that differ, or none at all
_VALUES, _MINUS, _XOR, _SAME = 0x00, 0x10, 0x20, 0x30
_LOSSY: Final = (_BFLOAT16, _INT8)

_BLOCK: Final = 1024  # values with a scale of their own
_CHUNK: Final = 64 * _BLOCK  # values at a time, so that they stay in the processor's cache
_FLOATS: Final = ("float32", "float64")
_LARGEST: Final = 1e15  # of a value; larger ones are masks, which must come as they are
_LEAST: Final = 1e-30  # of a block's values; below it a scale would not be exact
_STEPS: Final = 127
_ZSTD_LEVEL: Final = 1  # of floats no level makes less, and 3 takes twice as long
_HELPS: Final = 0.95  # of the bytes: encoding that leaves more is not worth its time

WIRE_SHARE: Final = ContextVar("WIRE_SHARE", default=(1.0, 1.0))
"""Shares of the bytes of a message, and of its reply, that cross: what an emulated link takes."""

Encoder: TypeAlias = Callable[[str, str, Array], tuple[int, Buffer] | None]
"""Takes record, key and array; returns code and bytes, or nothing for the array as it is."""


@functools.cache
def known_kinds() -> list[str]:
    """Return the kinds of compression that this process can do."""
    return [BFLOAT16, INT8, *([ZSTD] if find_spec("zstandard") else [])]


@dataclass(frozen=True, slots=True)
class Compression:
    """The kinds of compression of a run, empty where there is none.

    Attributes
    ----------
    down : str
        From server to clients: ``bfloat16`` or ``zstd``.
    up : str
        From clients to server: ``bfloat16``, ``int8`` or ``zstd``.
    """

    down: str = ""
    up: str = ""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.down or self.up)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the setting: ``up=int8,down=bfloat16``, or one word for both directions.

        Raises
        ------
        ConfigError
            If it is none, with key ``compress``.
        MissingExtraError
            If it needs a package that is not installed.
        """
        found: dict[str, str] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            direction, equals, kind = map(str.strip, part.partition("="))
            if not equals:
                direction, kind = "", direction
            for each in [direction] if direction else list(_OF_DIRECTION):
                if each not in _OF_DIRECTION:
                    raise ConfigError("compress", text, f"{each!r} must be up or down")
                if kind not in (kinds := _OF_DIRECTION[each]):
                    hint = nearest(kind, kinds)
                    if kind == INT8:
                        hint = "int8 is for updates: up=int8"
                    raise ConfigError("compress", text, f"{each} must be {_listed(kinds)}", hint)
                if each in found:
                    raise ConfigError("compress", text, f"has several values for {each}")
                found[each] = kind
        if ZSTD in found.values():
            require_extra(f"compress = {text!r}", "zstd")
        return cls(**found)


NO_COMPRESSION: Final = Compression()


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + " or " + words[-1]


class SentModel:
    """The arrays of a message: those of its reply are encoded and restored against them.

    Parameters
    ----------
    content : RecordDict
        The message's content, as it was sent or as it came.
    codes : bytes
        The codes with which its arrays came.
    """

    def __init__(self, content: RecordDict, codes: bytes = b"") -> None:
        records = content.array_records
        arrays = [(name, key, array) for name, one in records.items() for key, array in one.items()]
        self._arrays = {(name, key): array for name, key, array in arrays}
        self._only = next(iter(records)) if len(records) == 1 else None
        self._lossy = {
            (name, key)
            for (name, key, _), code in zip(arrays, codes, strict=False)
            if code & _HOW in _LOSSY
        }

    @property
    def was_rounded(self) -> bool:
        """Whether any array came rounded."""
        return bool(self._lossy)

    def find(self, record: str, key: str) -> tuple[Array, bool] | None:
        """Return the array that a reply's array is the successor of, and whether it was rounded.

        That of the same record and key, or of the only record.
        """
        for place in ((record, key), (self._only or record, key)):
            if (array := self._arrays.get(place)) is not None:
                return array, place in self._lossy
        return None


def expected_share(kind: str, arrays: ArrayRecord) -> float:
    """Return the share of a model's bytes that cross, in (0, 1].

    What ``zstd`` saves depends on the values, and counts as nothing.
    """
    sizes = [decode_array(array).nbytes for array in arrays.values()]
    left = float(sum(sizes))
    for array, size in zip(arrays.values(), sizes, strict=True):
        if size < SMALL_BYTES or array.dtype not in _FLOATS:
            continue
        itemsize = np.dtype(array.dtype).itemsize
        if kind == BFLOAT16:
            left -= size - 2 * size / itemsize
        elif kind == INT8:
            left -= size - (1 + 4 / _BLOCK) * size / itemsize
    return left / sum(sizes) if left else 1.0


# --- sending --------------------------------------------------------------------------------------


def value_encoder(kind: str) -> Encoder | None:
    """Return the encoder of a model, without anything to compare it with; none for no kind."""
    return functools.partial(_encode_values, kind) if kind else None


def _encode_values(kind: str, record: str, key: str, array: Array) -> tuple[int, Buffer] | None:
    values = _flat(array)
    if values is None:
        return None
    if kind == BFLOAT16 and _is_ordinary(values):
        return _BFLOAT16, _bytes_of(_to_bfloat16(values))
    if kind == ZSTD and (data := _to_zstd(values)) is not None:
        return _ZSTD, data
    return None


class UpdateEncoder:
    """Encoder of one client's replies, with error feedback.

    What ``int8`` has lost of an update is kept here, as float32, and added to the client's next.
    """

    def __init__(self) -> None:
        self._lost: dict[str, dict[str, NDArray[np.float32]]] = {}

    def encoder(self, kind: str, model: SentModel) -> Encoder | None:
        """Return the encoder of the reply to a message; none if it has nothing to do.

        Parameters
        ----------
        kind : str
            The kind that the server asks for, possibly empty.
        model : SentModel
            The message's arrays as they came.
        """
        return functools.partial(self._encode, kind, model) if kind or model.was_rounded else None

    def _encode(
        self, kind: str, model: SentModel, record: str, key: str, array: Array
    ) -> tuple[int, Buffer] | None:
        values = _flat(array)
        if values is None:
            return None
        found = model.find(record, key)
        base = None if found is None else _flat(found[0])
        if (
            found is None
            or base is None
            or (base.dtype, found[0].shape) != (values.dtype, array.shape)
        ):
            return _encode_values(kind, record, key, array)
        rounded = found[1]
        lost = self._lost.get(record, {}).get(key)
        if lost is None and _is_same(values, base):
            return _SAME, b""
        if (rounded or kind in (BFLOAT16, INT8)) and _is_update(values, base):
            return self._encode_update(kind, values, base, record, key)
        if kind == ZSTD and not rounded:
            data = _to_zstd(_raw(values) ^ _raw(base), values.itemsize)
            return None if data is None else (_XOR | _ZSTD, data)
        return _encode_values(kind, record, key, array)

    def _encode_update(
        self, kind: str, values: AnyArray, base: AnyArray, record: str, key: str
    ) -> tuple[int, Buffer]:
        if kind == BFLOAT16:
            return _MINUS | _BFLOAT16, _bytes_of(_to_bfloat16(values, base))
        if kind == INT8:
            kept = self._lost.setdefault(record, {})
            if (lost := kept.get(key)) is None or lost.size != values.size:
                lost = kept[key] = np.zeros(values.size, dtype=np.float32)
            return _MINUS | _INT8, _bytes_of(_to_int8(values, base, lost))
        update = values - base
        if kind == ZSTD and (data := _to_zstd(update)) is not None:
            return _MINUS | _ZSTD, data
        return _MINUS, _bytes_of(update)

    def state_dict(self) -> dict[str, Any]:
        """Return what was lost and not yet sent, by record and key."""
        return {record: dict(kept) for record, kept in self._lost.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` left off."""
        self._lost = {
            record: {key: np.array(lost, dtype=np.float32) for key, lost in kept.items()}
            for record, kept in state.items()
        }


# --- receiving ------------------------------------------------------------------------------------


def restore(
    code: int,
    data: Buffer,
    dtype: str,
    shape: tuple[int, ...],
    base: Array | None = None,
    max_bytes: int = NO_LIMIT,
) -> bytes:
    """Return an array in Flower's bytes from what came.

    Parameters
    ----------
    code : int
        How it was encoded, not 0.
    data : bytes or memoryview
        What came.
    dtype, shape
        Of the array, as the message's outline says; not trusted.
    base : Array, optional
        The receiver's own array, to which the sender's is an update.
    max_bytes : int
        Most that the array may have [bytes].

    Raises
    ------
    ValueError
        If nothing is encoded so, or the sizes do not agree.
    """
    how, what = code & _HOW, code & ~_HOW
    kind = np.dtype(dtype) if dtype.isidentifier() else np.dtype("V")
    if kind.kind not in "biufc" or str(kind) != dtype:
        raise ValueError(f"an encoded array of {dtype[:20]!r}")
    if not all(length >= 0 for length in shape):
        raise ValueError(f"its shape cannot be {shape}")
    size = math.prod(shape)
    if not 0 < size * kind.itemsize <= max_bytes:
        raise ValueError(f"an array of {size * kind.itemsize} bytes, {max_bytes} at most")
    old = None
    if what != _VALUES:
        old = None if base is None else _view(base)
        if old is None or old.dtype != kind or old.shape != shape:
            raise ValueError("an update of an array that was not sent")
        if what == _SAME and not how and not len(data):
            assert base is not None
            return base.data
        old = old.reshape(-1)
    read = _READERS.get(how)
    if (
        read is None
        or what not in (_VALUES, _MINUS, _XOR)
        or (what == _XOR and how != _ZSTD)
        or (kind.kind != "f" and (what == _MINUS or how in _LOSSY))
        or code == _PLAIN
    ):
        raise ValueError(f"an array of the unknown code {code}")
    _check_size(how, data, size, kind.itemsize)
    head = npy_header(kind, shape)
    file = io.BytesIO(head)  # written in place, and given away without a copy
    file.seek(len(head) + size * kind.itemsize - 1)
    file.write(b"\0")
    with file.getbuffer() as buffer:
        values = np.frombuffer(buffer, dtype=kind, offset=len(head))
        with np.errstate(all="ignore"):  # what is not finite is refused later, by its name
            read(data, values)
            if what == _MINUS:
                assert old is not None
                values += old
            elif what == _XOR:
                assert old is not None
                bits = _raw(values)
                bits ^= _raw(old)
                del bits
        del values
    return file.getvalue()


def _check_size(how: int, data: Buffer, size: int, itemsize: int) -> None:
    """Refuse bytes from which no array of so many values can come, before memory is taken."""
    if how == _ZSTD:
        zstd = _zstd()
        try:
            come, due = zstd.frame_content_size(data), size * itemsize
        except zstd.ZstdError:
            raise ValueError("its compressed bytes cannot be read") from None
    else:
        blocks = -(-size // _BLOCK)
        sizes = {_PLAIN: itemsize * size, _BFLOAT16: 2 * size, _INT8: 4 * blocks + size}
        come, due = len(data), sizes[how]
    if come != due:
        raise ValueError(f"an encoded array of {come} bytes, not {due}")


# --- encodings ------------------------------------------------------------------------------------


def _to_bfloat16(values: AnyArray, base: AnyArray | None = None) -> NDArray[np.uint16]:
    """Return the upper halves of float32 values, or of their difference, rounded to nearest even.

    Trusted to be finite and far from overflow.
    """
    halves = np.empty(values.size, dtype="<u2")
    for part in _chunks(values.size):
        chunk = values[part] if base is None else values[part] - base[part]
        bits = np.ascontiguousarray(chunk, dtype="<f4").view(np.uint32)
        rounded = bits >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits
        rounded >>= 16
        halves[part] = rounded
    return halves


def _from_bfloat16(data: Buffer, out: AnyArray) -> None:
    halves = np.frombuffer(data, dtype="<u2")
    for part in _chunks(out.size):
        bits = halves[part].astype(np.uint32)
        bits <<= 16
        out[part] = bits.view(np.float32)


def _to_int8(values: AnyArray, base: AnyArray, lost: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the scales of all blocks, then whole numbers: the update, and what was lost before.

    What is lost now is left in ``lost``.
    """
    size = values.size
    blocks = -(-size // _BLOCK)
    data = np.empty(4 * blocks + size, dtype=np.uint8)
    scales, whole = data[: 4 * blocks].view("<f4"), data[4 * blocks :].view(np.int8)
    for part, width in _rows(size):
        lost[part] += values[part] - base[part]
        update = lost[part].reshape(-1, width)
        peak = np.maximum(update.max(axis=1), -update.min(axis=1))
        peak[peak < _LEAST] = 0
        scale = peak / np.float32(_STEPS)
        factor = np.divide(_STEPS, peak, out=np.zeros_like(peak), where=peak > 0)
        steps = update * factor[:, None]
        np.rint(steps, out=steps)
        scales[_blocks(part)] = scale
        whole[part] = steps.reshape(-1)
        steps *= scale[:, None]
        update -= steps
    return data


def _from_int8(data: Buffer, out: AnyArray) -> None:
    blocks = -(-out.size // _BLOCK)
    scales = np.frombuffer(data, dtype="<f4", count=blocks)
    whole = np.frombuffer(data, dtype=np.int8, offset=4 * blocks)
    for part, width in _rows(out.size):
        steps = whole[part].reshape(-1, width).astype(np.float32)
        steps *= scales[_blocks(part)][:, None]
        out[part] = steps.reshape(-1)


def _to_zstd(values: AnyArray, itemsize: int | None = None) -> Buffer | None:
    """Return the bytes, compressed; none where that does not help.

    The first bytes of all values come first, then the second ones: signs and exponents are alike.
    """
    itemsize = itemsize or values.itemsize
    items = _raw(values).reshape(-1, itemsize)
    planes = np.empty((itemsize, len(items)), dtype=np.uint8)
    for part in _chunks(len(items)):
        planes[:, part] = items[part].T
    data: bytes = _zstd().ZstdCompressor(level=_ZSTD_LEVEL).compress(planes)
    return data if len(data) <= _HELPS * values.nbytes else None


def _from_zstd(data: Buffer, out: AnyArray) -> None:
    zstd = _zstd()
    try:
        whole = zstd.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstd.ZstdError:
        raise ValueError("its compressed bytes cannot be read") from None
    planes = np.frombuffer(whole, dtype=np.uint8).reshape(out.itemsize, -1)
    items = _raw(out).reshape(-1, out.itemsize)
    for part in _chunks(len(items)):
        items[part] = planes[:, part].T


def _from_plain(data: Buffer, out: AnyArray) -> None:
    out[:] = np.frombuffer(data, dtype=out.dtype)


_READERS: Final[Mapping[int, Callable[[Buffer, AnyArray], None]]] = {
    _PLAIN: _from_plain,
    _BFLOAT16: _from_bfloat16,
    _INT8: _from_int8,
    _ZSTD: _from_zstd,
}


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ValueError("zstandard is not installed") from None
    return zstandard


# --- arrays ---------------------------------------------------------------------------------------


def _view(array: Array) -> AnyArray | None:
    """Return an array's values; none if they are not plain numbers in C order."""
    try:
        values = decode_array(array)
    except ValueError:
        return None
    dtype = values.dtype
    plain = dtype.kind in "biufc" and dtype.isnative and str(dtype) == array.dtype
    if not plain or values.shape != tuple(array.shape) or not values.flags.c_contiguous:
        return None
    return values


def plain_bytes(array: Array) -> int:
    """Return the size of an array of plain numbers as it is, without making its bytes."""
    values = decode_array(array)
    return len(npy_header(values.dtype, values.shape)) + values.nbytes


def _flat(array: Array) -> AnyArray | None:
    """Return the values of an array that is worth encoding, in one row."""
    values = _view(array)
    return None if values is None or values.nbytes < SMALL_BYTES else values.reshape(-1)


def _raw(values: AnyArray) -> NDArray[np.uint8]:
    return values.view(np.uint8)


def _bytes_of(values: AnyArray) -> memoryview:
    return _raw(values).data


def _is_same(values: AnyArray, base: AnyArray) -> bool:
    return all(np.array_equal(_raw(values[p]), _raw(base[p])) for p in _chunks(values.size))


def _is_ordinary(values: AnyArray) -> bool:
    """Tell whether these are floats that may be rounded: finite, and no masks."""
    if str(values.dtype) not in _FLOATS:
        return False
    return bool(values.min() >= -_LARGEST and values.max() <= _LARGEST)  # False with NaN


def _is_update(values: AnyArray, base: AnyArray) -> bool:
    """Tell whether values are nearer to the model than to zero, as a trained model's are.

    An app may send gradients under the model's names: their difference to the model is useless.
    """
    if not (_is_ordinary(values) and _is_ordinary(base)):
        return False
    far = size = 0.0
    for part in _chunks(values.size):
        update = values[part] - base[part]
        far += float(np.dot(update, update))
        size += float(np.dot(values[part], values[part]))
    return far <= size


def _chunks(size: int) -> Iterator[slice]:
    for begin in range(0, size, _CHUNK):
        yield slice(begin, min(begin + _CHUNK, size))


def _rows(size: int) -> Iterator[tuple[slice, int]]:
    """Cut values into chunks of whole blocks, and a last block that may be shorter."""
    whole = size - size % _BLOCK
    for part in _chunks(whole):
        yield part, _BLOCK
    if whole < size:
        yield slice(whole, size), size - whole


def _blocks(part: slice) -> slice:
    return slice(part.start // _BLOCK, -(-part.stop // _BLOCK))

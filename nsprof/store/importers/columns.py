"""Text as columns: where lines, words and numbers stand, found by numpy; equal pieces made one by Arrow.

A piece is text[start:end]; no Python object is made for one, only for the distinct ones that a caller asks for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nsprof.store.importers.codes import SetLookupOptions, call

__all__ = [
    "HEX",
    "Pieces",
    "between",
    "digits_after",
    "distinct",
    "found",
    "marked",
    "met_again",
    "mostly_known",
    "newlines",
    "plus_0x",
    "positions",
    "records",
    "repeats",
    "scattered",
    "separators",
]

_PROBE = 600
_OFTEN = 10
_CHUNK = 1 << 18  # a mask of this many bytes stays in the processor's cache

#: value of a hexadecimal digit, 16 for a blank, 255 for any other byte
HEX = np.full(256, 255, "u1")
HEX[np.frombuffer(b"0123456789", "u1")] = np.arange(10)
HEX[np.frombuffer(b"abcdef", "u1")] = np.arange(10, 16)
HEX[32] = 16


@dataclass(slots=True)
class Pieces:
    """Pieces standing one behind the other: piece i is data[offsets[i]:offsets[i+1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Pieces:
        """Some texts as pieces."""
        offsets = np.zeros(len(texts) + 1, "i8")
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return cls(np.frombuffer(b"".join(texts), "u1"), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def tolist(self) -> list[bytes]:
        """All of them as bytes."""
        whole = self.data.tobytes()
        return [whole[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]


def positions(text: NDArray[np.uint8], byte: int) -> NDArray[np.int64]:
    """Where a byte stands."""
    return _where(text, lambda part: part == byte)


def _where(text: NDArray[np.uint8], mask: Callable[[NDArray[np.uint8]], NDArray[np.bool_]]) -> NDArray[np.int64]:
    found: list[NDArray[np.int64]] = []
    for at in range(0, len(text), _CHUNK):
        part = np.flatnonzero(mask(text[at : at + _CHUNK]))
        part += at
        found.append(part)
    return np.concatenate(found) if found else np.zeros(0, "i8")


def plus_0x(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where `+0x` stands."""
    at = positions(text, 43)
    at = at[at < len(text) - 2]
    found: NDArray[np.int64] = at[(text[at + 1] == 48) & (text[at + 2] == 120)]
    return found


def marked(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`np.flatnonzero` of a mask in which hits are many and apart, as separators of words are.

    Looked at in pairs: for less than a tenth of hits numpy takes a branch each, which the processor guesses wrong.
    """
    even = mask[: len(mask) & ~1]
    found = np.flatnonzero(even.view("u2").astype(bool))
    if len(found) != np.count_nonzero(even):  # both of a pair
        return np.flatnonzero(mask)
    found <<= 1
    first = even.take(found)
    found += 1
    found -= first.view("i1")
    return np.append(found, len(even)) if len(even) < len(mask) and mask[-1] else found


def separators(text: NDArray[np.uint8], byte: int, also: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a byte that is met often stands, and some more places, which ascend; all in order."""
    found: list[NDArray[np.int64]] = []
    edges = np.searchsorted(also, np.arange(0, len(text) + _CHUNK, _CHUNK)).tolist()
    for index, at in enumerate(range(0, len(text), _CHUNK)):
        mask = text[at : at + _CHUNK] == byte
        mask[also[edges[index] : edges[index + 1]] - at] = True
        part = marked(mask)
        part += at
        found.append(part)
    return np.concatenate(found) if found else np.zeros(0, "i8")


def newlines(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where lines end; a last line without an end ends where the text does."""
    found = positions(text, 10)
    if len(text) and text[-1] != 10:
        found = np.append(found, len(text))
    return found


def distinct(
    text: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int32], Pieces]:
    """(which of the distinct pieces each one is, those pieces in order of first appearance).

    The pieces must stand in order and apart in a text of less than 2 GiB.
    """
    number = len(start)
    if not number:
        return np.zeros(0, "i4"), Pieces(np.zeros(0, "u1"), np.zeros(1, "i8"))
    coded = call("dictionary_encode", [_array(text, start, end)])
    codes = np.frombuffer(coded.indices.buffers()[1], "i4", count=2 * number)[0::2]
    return codes, _pieces(coded.dictionary)


def _array(text: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]) -> pa.BinaryArray:
    """The pieces at even places. What lies between them is at the odd ones, as nulls, which are not looked at."""
    number = len(start)
    offsets = np.empty(2 * number + 1, "i4")
    offsets[0:-1:2] = start
    offsets[1::2] = end
    offsets[-1] = end[-1]
    valid = np.packbits(np.tile(np.array([True, False]), number), bitorder="little")
    return pa.BinaryArray.from_buffers(
        pa.binary(), 2 * number, [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def found(
    text: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64], pieces: Pieces
) -> NDArray[np.int32]:
    """Which of some pieces, all different, each piece of a text is, -1 for none; as `distinct`, one at least."""
    codes, missed = _index_in(_array(text, start, end), pieces)
    codes = codes[0::2].copy()
    codes[missed[missed & 1 == 0] >> 1] = -1
    return codes


def between(
    text: NDArray[np.uint8], ends: NDArray[np.int64], wanted: NDArray[np.bool_] | None, known: Pieces | None = None
) -> tuple[NDArray[np.int32], Pieces]:
    """`distinct` of pieces that stand one behind the other, the first one at the begin of the text, each up to one of
    `ends` and with it; the numbers of those not `wanted` mean nothing.

    With `known` ones the numbers are those of them, and behind them those of the pieces given back, which are others.
    """
    if not len(ends):
        return distinct(text, ends, ends)
    array, offsets = _in_a_row(text, ends, wanted)
    if known is None:
        coded = call("dictionary_encode", [array])
        return np.frombuffer(coded.indices.buffers()[1], "i4", count=len(ends)), _pieces(coded.dictionary)
    codes, missed = _index_in(array, known)
    if wanted is not None:
        missed = missed[wanted[missed]]
    more, pieces = distinct(text, offsets[missed].astype("i8"), ends[missed] + 1)
    if len(missed):
        codes = codes.copy()
        codes[missed] = more + np.int32(len(known))
    return codes, pieces


def mostly_known(text: NDArray[np.uint8], ends: NDArray[np.int64], wanted: NDArray[np.bool_], known: Pieces) -> bool:
    """Whether nearly all pieces are among `known` ones, which makes `between` quicker; judged by the first ones."""
    ends, wanted = ends[: _PROBE * _OFTEN], wanted[: _PROBE * _OFTEN]
    if not len(ends):
        return False
    missed = _index_in(_in_a_row(text, ends, wanted)[0], known)[1]
    return int(np.count_nonzero(wanted[missed])) * _OFTEN < len(ends)


def _in_a_row(
    text: NDArray[np.uint8], ends: NDArray[np.int64], wanted: NDArray[np.bool_] | None
) -> tuple[pa.BinaryArray, NDArray[np.int32]]:
    """Pieces that stand one behind the other, those not wanted as nulls; and their offsets."""
    offsets = np.empty(len(ends) + 1, "i4")
    offsets[0] = 0
    np.add(ends, 1, out=offsets[1:], casting="unsafe")
    valid = pa.py_buffer(np.packbits(wanted, bitorder="little")) if wanted is not None else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers), offsets


def _index_in(array: pa.BinaryArray, known: Pieces) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(the number among `known` of each piece, those that are none of them or null, whose number means nothing)."""
    offsets = pa.py_buffer(known.offsets.astype("i4"))
    among = pa.BinaryArray.from_buffers(pa.binary(), len(known), [None, offsets, pa.py_buffer(known.data)])
    got = call("index_in", [array], SetLookupOptions(among, skip_nulls=True))
    codes = np.frombuffer(got.buffers()[1], "i4", count=len(array))
    if got.null_count == array.null_count:
        return codes, np.zeros(0, "i8")
    bits = np.frombuffer(got.buffers()[0], "u1")
    return codes, np.flatnonzero(np.unpackbits(bits, count=len(array), bitorder="little") == 0)


def _pieces(array: pa.BinaryArray) -> Pieces:
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, "i4", count=len(array) + 1, offset=4 * array.offset).astype("i8")
    return Pieces(np.frombuffer(data, "u1") if data is not None and len(data) else np.zeros(0, "u1"), at)


def repeats(buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64], often: int = _OFTEN) -> bool:
    """Whether pieces stand there so `often` each, or more, judged by how many of some hundred are equal."""
    some = scattered(len(start))
    return met_again(buf, start[some], end[some], len(start), often)


def scattered(number: int) -> NDArray[np.int64]:
    """Some hundred of so many rows: scattered, since what stands at equal distances may be equal always, or never."""
    scatter = np.arange(1, _PROBE + 1 if number else 1, dtype="u8") * np.uint64(0x9E3779B97F4A7C15)
    scatter = (scatter ^ scatter >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(11)
    rows = np.sort(scatter % np.uint64(max(number, 1))).astype("i8")
    new = np.ones(len(rows), bool)
    np.not_equal(rows[1:], rows[:-1], out=new[1:])
    picked: NDArray[np.int64] = rows[new]  # (np.unique would load numpy's masked arrays, which takes 8 ms)
    return picked


def met_again(
    buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64], number: int, often: int
) -> bool:
    """`repeats` of `number` pieces, of which those of `scattered` are given."""
    texts = {buf[a:b].tobytes() for a, b in zip(start.tolist(), end.tolist(), strict=True)}
    # Among k of n pieces of d equally frequent texts, k * k / (2 * d) are met again.
    return (len(start) - len(texts)) * 2 * number > often * len(start) ** 2


def records(text: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """The `width` bytes from each position on, a row each; those outside the text are its edge's."""
    rows: NDArray[np.uint8]
    if len(text) < width:
        rows = text[(at[:, None] + np.arange(width)).clip(0, max(len(text) - 1, 0))]
        return rows
    inside = at.clip(0, len(text) - width)
    wide = np.ndarray((len(text) - width + 1,), f"V{width}", text, strides=(1,))
    rows = wide[inside].view("u1").reshape(-1, width)
    for row in np.flatnonzero(inside != at).tolist():
        rows[row] = text[(at[row] + np.arange(width)).clip(0, len(text) - 1)]
    return rows


def digits_after(text: NDArray[np.uint8], at: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Where the run of at most `limit` hexadecimal digits that begins at each position ends."""
    at = at.copy()
    active = np.arange(len(at))
    top = len(text) - 1
    for _ in range(limit):
        active = active[HEX[text[np.minimum(at[active], top)]] < 16]
        active = active[at[active] <= top]
        if not len(active):
            break
        at[active] += 1
    return at

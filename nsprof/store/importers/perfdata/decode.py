"""PERF_RECORD_SAMPLE, thousands at a time: every field of every sample format by numpy.

Field order and sizes: perf_output_sample() in kernel/events/core.c and include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers.assemble import U64, hash_rows, take_rows
from nsprof.store.importers.codes import Index, codes
from nsprof.store.importers.perfdata import header as h

__all__ = ["Chains", "Columns", "SomeChains", "decode", "read_values"]

_CONTEXT_MAX = U64(2**64 - 4095)
_CONTEXT_USER = U64(2**64 - 512)
_READ_ENABLED, _READ_RUNNING, _READ_ID, _READ_GROUP, _READ_LOST = 1, 2, 4, 8, 16
_BRANCH_HW_INDEX, _BRANCH_COUNTERS = 1 << 17, 1 << 19
_MIX = U64(0xA0761D6478BD642F)


@dataclass(slots=True)
class Columns:
    """Decoded samples. `bad` rows lie beyond their record and must be left out; -1 cpu is unknown."""

    mode: NDArray[np.uint8]
    ip: NDArray[np.uint64]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    time: NDArray[np.uint64]
    id: NDArray[np.uint64]
    cpu: NDArray[np.int64]
    period: NDArray[np.uint64] | None
    chain_at: NDArray[np.int64]
    chain_len: NDArray[np.int64]
    branches: NDArray[np.int64]
    cgroup: NDArray[np.uint64] | None
    bad: NDArray[np.bool_]
    read: ReadAt | None
    address: NDArray[np.uint64] | None  # of the data
    branch_at: NDArray[np.int64]
    branch_words: int  # from one branch entry to the next
    latency: NDArray[np.uint64] | None  # PERF_SAMPLE_WEIGHT, or the first part of PERF_SAMPLE_WEIGHT_STRUCT
    data_source: NDArray[np.uint64] | None
    physical: NDArray[np.uint64] | None  # address of the data


@dataclass(slots=True)
class ReadAt:
    """Where the values of PERF_SAMPLE_READ stand: the first one, how many, words from one to the next, and how many
    words after a value its id stands (0: there are no ids)."""

    at: NDArray[np.int64]
    count: NDArray[np.int64]
    width: int
    id_shift: int

    def take(self, rows: NDArray[np.int64]) -> ReadAt:
        """The same for some of the rows."""
        return ReadAt(self.at[rows], self.count[rows], self.width, self.id_shift)


class _Cursor:
    """A position in every record at once, in 8-byte words; what would leave its record is bad, and reads as 0."""

    def __init__(self, words: NDArray[Any], at: NDArray[np.int64], end: NDArray[np.int64], order: str) -> None:
        self.words = words
        self.at = at
        self.end = end
        self.order = order
        self.bad = np.zeros(len(at), bool)

    def u64(self) -> NDArray[np.uint64]:
        self.bad |= self.at >= self.end
        got = self.words[np.minimum(self.at, len(self.words) - 1)].astype("u8")
        self.at = self.at + 1
        return got

    def halves(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The two 32-bit numbers of a word in file order, signed."""
        word = self.u64()
        low = (word & U64(0xFFFFFFFF)).astype("u4").view("i4").astype("i8")
        high = (word >> U64(32)).astype("u4").view("i4").astype("i8")
        return (low, high) if self.order == "<" else (high, low)

    def skip(self, words: NDArray[np.int64] | int) -> None:
        """Step over `words` (clipped: a senseless number makes the row bad, never the position wrap)."""
        step = np.asarray(words)
        left = self.end - self.at
        wrong = (step < 0) | (step > left)
        self.bad |= wrong
        self.at = self.at + np.where(wrong, 0, step)

    def number(self) -> NDArray[np.int64]:
        """A word that counts things in the record: bad when larger than the record."""
        word = self.u64()
        wrong = word > (self.end - self.at).clip(0).astype("u8")
        self.bad |= wrong
        return np.where(wrong, U64(0), word).astype("i8")


def decode(
    words: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64], attr: h.Attr, order: str
) -> Columns:
    """Columns of the samples whose records are words[start:end] (the header being the first word)."""
    kind = attr.sample_type
    n = len(start)
    cursor = _Cursor(words, start, end, order)
    head = cursor.u64()
    mode = ((head >> U64(32 if order == "<" else 16)) & U64(7)).astype("u1")
    zero_u = np.zeros(n, "u8")
    zero = np.zeros(n, "i8")
    made: dict[str, Any] = {"id": zero_u}
    if kind & h.IDENTIFIER:
        made["id"] = cursor.u64()
    made["ip"] = cursor.u64() if kind & h.IP else zero_u
    made["pid"], made["tid"] = cursor.halves() if kind & h.TID else (zero - 1, zero - 1)
    made["time"] = cursor.u64() if kind & h.TIME else zero_u
    made["address"] = cursor.u64() if kind & h.ADDR else None
    if kind & h.ID:
        made["id"] = cursor.u64()
    if kind & h.STREAM_ID:
        cursor.skip(1)
    made["cpu"] = cursor.halves()[0] if kind & h.CPU else zero - 1
    made["period"] = cursor.u64() if kind & h.PERIOD else None
    made["read"] = _read(cursor, attr.read_format) if kind & h.READ else None
    made["chain_at"], made["chain_len"] = cursor.at, zero
    if kind & h.CALLCHAIN:
        made["chain_len"] = cursor.number()
        made["chain_at"] = cursor.at
        cursor.skip(made["chain_len"])
    made.update(_tail(cursor, attr))
    return Columns(mode=mode, bad=cursor.bad, **made)


def _read(cursor: _Cursor, form: int) -> ReadAt:
    width = 1 + bool(form & _READ_ID) + bool(form & _READ_LOST)
    times = bool(form & _READ_ENABLED) + bool(form & _READ_RUNNING)
    if form & _READ_GROUP:
        count = cursor.number()
        cursor.skip(times)
        at = cursor.at
        cursor.skip(count * width)
        return ReadAt(at, count, width, 1 if form & _READ_ID else 0)
    at = cursor.at
    cursor.skip(times + width)  # value, times, id, lost: here the times stand between value and id
    return ReadAt(at, np.ones(len(at), "i8"), times + width, 1 + times if form & _READ_ID else 0)


def _tail(cursor: _Cursor, attr: h.Attr) -> dict[str, Any]:
    """Everything after the call chain; sizes of what is not kept prove that the record was understood."""
    kind = attr.sample_type
    made: dict[str, Any] = {"branches": np.zeros(len(cursor.at), "i8"), "branch_at": cursor.at, "branch_words": 3}
    if kind & h.RAW:
        _sized(cursor, of_32_bits=True)
    if kind & h.BRANCH_STACK:
        made["branches"] = cursor.number()
        cursor.skip(1 if attr.branch_sample_type & _BRANCH_HW_INDEX else 0)
        made["branch_at"] = cursor.at
        cursor.skip(made["branches"] * 3)
        # The counters of the branches follow all of them, a word each.
        cursor.skip(made["branches"] if attr.branch_sample_type & _BRANCH_COUNTERS else 0)
    if kind & h.REGS_USER:
        _registers(cursor, attr.regs_user)
    if kind & h.STACK_USER:
        size = _sized(cursor)
        cursor.skip((size > 0).astype("i8"))  # dyn_size is there only when the dump is
    latency = cursor.u64() if kind & (h.WEIGHT | h.WEIGHT_STRUCT) else None
    made["latency"] = latency & U64(0xFFFFFFFF) if latency is not None and kind & h.WEIGHT_STRUCT else latency
    made["data_source"] = cursor.u64() if kind & h.DATA_SRC else None
    if kind & h.TRANSACTION:
        cursor.skip(1)
    if kind & h.REGS_INTR:
        _registers(cursor, attr.regs_intr)
    made["physical"] = cursor.u64() if kind & h.PHYS_ADDR else None
    made["cgroup"] = cursor.u64() if kind & h.CGROUP else None
    if kind & h.DATA_PAGE_SIZE:
        cursor.skip(1)
    if kind & h.CODE_PAGE_SIZE:
        cursor.skip(1)
    if kind & h.AUX:
        _sized(cursor)
    return made


def _registers(cursor: _Cursor, mask: int) -> None:
    abi = cursor.u64()
    cursor.skip(np.where(abi != 0, mask.bit_count(), 0).astype("i8"))


def _sized(cursor: _Cursor, *, of_32_bits: bool = False) -> NDArray[np.int64]:
    """A blob with its size before it; the size of a RAW one is 32 bits and shares its word with the data."""
    if of_32_bits:
        size = cursor.halves()[0] & 0xFFFFFFFF
        cursor.skip((np.maximum(size - 4, 0) + 7) >> 3)
        return size
    size = np.minimum(cursor.u64(), U64(1 << 32)).astype("i8")
    cursor.skip((size + 7) >> 3)
    return size


def read_values(words: NDArray[Any], where: ReadAt) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(row, id, value) of every counter value in PERF_SAMPLE_READ, row after row; ids are 0 where there are none."""
    row = np.repeat(np.arange(len(where.at)), where.count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(where.count) - where.count, where.count)
    at = where.at[row] + nth * where.width
    top = len(words) - 1
    value = words[np.clip(at, 0, top)].astype("u8")
    if not where.id_shift:
        return row, np.zeros(len(row), "u8"), value
    return row, words[np.clip(at + where.id_shift, 0, top)].astype("u8"), value


@dataclass(slots=True)
class SomeChains:
    """The distinct call chains of some samples: which one each sample has, and of each its key, its words
    flat[offsets[i]:offsets[i+1]], and the cpumode of its first sample; `addresses` counts those of all samples."""

    which: NDArray[np.int32]
    key: NDArray[np.uint64]
    flat: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    mode: NDArray[np.uint8]
    addresses: int


class Chains:
    """Distinct call chains seen so far. A chain with user addresses belongs to its process, so the pid is in its key.

    `rows` holds the raw words (context markers included) of each; `pid`, `first_time` and `mode` of its first sample.
    """

    def __init__(self) -> None:
        self._known = Index()
        self._flat: list[NDArray[np.uint64]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._mode: list[NDArray[np.uint8]] = []
        self.addresses = 0

    def __len__(self) -> int:
        return len(self._known)

    def add(self, some: SomeChains) -> NDArray[np.uint32]:
        """Chain numbers of the samples of a batch."""
        self.addresses += some.addresses
        numbers, fresh = self._known.add(some.key)
        if len(fresh):
            offsets, flat = take_rows(some.flat, some.offsets, fresh)
            self._flat.append(flat)
            self._lengths.append(np.diff(offsets))
            self._mode.append(some.mode[fresh])
        return numbers.view("u4")[some.which]

    @staticmethod
    def of(words: NDArray[Any], cols: Columns, rows: NDArray[np.int64]) -> SomeChains:
        """The distinct chains of the samples `rows` (all good ones of a batch)."""
        lengths = cols.chain_len[rows].copy()
        lone = lengths == 0
        addresses = int(lengths.sum())
        lengths[lone] = 1
        offsets = np.zeros(len(rows) + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        pick = np.arange(int(offsets[-1]), dtype="i8")
        pick += np.repeat(cols.chain_at[rows] - offsets[:-1], lengths)
        flat = words.take(pick, mode="clip").astype("u8", copy=False)
        del pick
        flat[offsets[:-1][lone]] = cols.ip[rows][lone]
        key = hash_rows(flat, offsets)
        mode = cols.mode[rows]
        user = np.where(lone, (mode == 2) | (mode == 0), False)
        marked = np.flatnonzero(flat == _CONTEXT_USER)
        user[np.searchsorted(offsets, marked, side="right") - 1] = True
        unmarked = ~lone & (flat[offsets[:-1]] < _CONTEXT_MAX)  # chains of old or foreign recorders
        user |= unmarked & (mode != 1)
        key ^= np.where(user, (cols.pid[rows].astype("u8") + U64(2)) * _MIX, U64(0))
        key ^= np.where(lone | unmarked, (mode.astype("u8") + U64(1)) << U64(56), U64(0))
        which, first = codes(key)
        kept_offsets, kept = take_rows(flat, offsets, first)
        return SomeChains(which, key[first], kept, kept_offsets, mode[first], addresses)

    def table(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8]]:
        """(words, offsets, cpumode of the first sample) of all chains in number order."""
        if not self._flat:
            return np.zeros(0, "u8"), np.zeros(1, "i8"), np.zeros(0, "u1")
        lengths = np.concatenate(self._lengths)
        offsets = np.zeros(len(lengths) + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        flat = np.empty(int(offsets[-1]), "u8")
        self._flat.reverse()
        at = 0
        while self._flat:  # each part is let go when it is copied
            part = self._flat.pop()
            flat[at : at + len(part)] = part
            at += len(part)
            del part
        return flat, offsets, np.concatenate(self._mode)

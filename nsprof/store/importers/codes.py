"""Numbers for equal values: which of the distinct ones each value of a column is, by hash tables without Python.

`codes` is for a column that is there as a whole, `Index` for one that comes in parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Index", "SetLookupOptions", "call", "codes", "first_rows"]

try:
    # pyarrow.compute loads this, and then makes hundreds of Python functions that are not wanted here.
    from pyarrow._compute import SetLookupOptions
    from pyarrow._compute import call_function as call
except ImportError:
    from pyarrow.compute import SetLookupOptions
    from pyarrow.compute import call_function as call

U64 = np.uint64
_GOLDEN = U64(0x9E3779B97F4A7C15)
_ROOM = 3  # places of the table for every value in it


def codes(values: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(which of the distinct values each one is, the row where each distinct one first stands), the distinct ones
    numbered in the order of their appearance. `values` are integers of 64 bits."""
    if not len(values):
        return np.zeros(0, "i4"), np.zeros(0, "i8")
    column = np.ascontiguousarray(values, "u8" if values.dtype.kind == "u" else "i8")
    array = pa.Array.from_buffers(pa.uint64(), len(column), [None, pa.py_buffer(column)])
    indices = call("dictionary_encode", [array]).indices
    found = np.frombuffer(indices.buffers()[1], "i4", count=len(column))
    return found, first_rows(found)


def first_rows(codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Row of the first appearance of every code, where codes are numbered in the order of their appearance."""
    top = np.maximum.accumulate(codes)
    new = np.empty(len(codes), bool)
    new[:1] = True
    np.greater(top[1:], top[:-1], out=new[1:])
    return np.flatnonzero(new)


class Index:
    """A growing set of 64-bit values, each with a number in the order in which it came.

    An open table with linear probing, asked and filled by columns. The value 0 marks a free place, so that 0 itself
    counts as 1: values are hashes, or addresses, which neither is.
    """

    def __init__(self, bits: int = 12) -> None:
        self._bits = bits
        self._value = np.zeros(1 << bits, "u8")
        self._number = np.zeros(1 << bits, "i4")
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, values: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(number of every value, the rows of those that were not known, which got the numbers from the former length
        on in this order). The values must differ from each other: see `codes`."""
        values = np.where(values == 0, U64(1), values)
        numbers = self._find(values)
        fresh = np.flatnonzero(numbers < 0)
        if len(fresh):
            given = np.arange(self._length, self._length + len(fresh), dtype="i4")
            self._length += len(fresh)
            self._grow()
            self._put(values[fresh], given)
            numbers[fresh] = given
        return numbers, fresh

    def _slot(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return (values * _GOLDEN) >> U64(64 - self._bits)

    def _find(self, values: NDArray[np.uint64]) -> NDArray[np.int32]:
        mask = U64((1 << self._bits) - 1)
        slot = self._slot(values)
        there = self._value[slot]
        numbers = np.where(there == values, self._number[slot], np.int32(-1))
        left = np.flatnonzero((there != values) & (there != 0))
        slot = slot[left]
        while len(left):
            slot = (slot + U64(1)) & mask
            there, wanted = self._value[slot], values[left]
            hit = there == wanted
            numbers[left[hit]] = self._number[slot[hit]]
            going = ~hit & (there != 0)
            left, slot = left[going], slot[going]
        return numbers

    def _grow(self) -> None:
        bits = self._bits
        while self._length * _ROOM > 1 << bits:
            bits += 2
        if bits == self._bits:
            return
        old = np.flatnonzero(self._value)
        values, numbers = self._value[old], self._number[old]
        self._bits = bits
        self._value, self._number = np.zeros(1 << bits, "u8"), np.zeros(1 << bits, "i4")
        self._put(values, numbers)

    def _put(self, values: NDArray[np.uint64], numbers: NDArray[np.int32]) -> None:
        """Find places for values that are not in the table, all of them different."""
        mask = U64((1 << self._bits) - 1)
        slot = self._slot(values)
        while len(values):
            free = self._value[slot] == 0
            self._value[slot[free]] = values[free]  # of several for one place the last one gets it
            mine = self._value[slot] == values
            self._number[slot[mine]] = numbers[mine]
            values, numbers, slot = values[~mine], numbers[~mine], (slot[~mine] + U64(1)) & mask

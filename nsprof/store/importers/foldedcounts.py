"""The numbers at the ends of lines of folded stacks, by columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers import columns as c

__all__ = ["counts"]

_TAIL = 8  # bytes at the end of a line in which a count mostly stands, with the blank before it
_DIGITS = 15  # so many make a number that a double holds exactly
_ZEROS, _LOW, _HIGH, _ONES, _TEN = (np.uint64(0x0101010101010101 * byte) for byte in (48, 127, 128, 1, 118))
_PAIRS = np.uint64(0xFF000000FF)


def _tails(
    buf: NDArray[np.uint8], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """(number, its digits, the byte before it) of the digits before each place, which has 8 bytes before it; of eight
    or more the last eight, and "" for the byte."""
    # As one word: the last byte is the highest. All bytes up to the last that is no digit are made zero.
    word = np.ascontiguousarray(c.records(buf, end - _TAIL, _TAIL)).view("<u8").reshape(-1)
    digit = word ^ _ZEROS
    other = ((digit & _LOW) + _TEN) | digit
    other &= _HIGH
    for shift in (8, 16, 32):
        other |= other >> np.uint64(shift)
    other >>= np.uint64(7)
    count = _TAIL - ((other * _ONES) >> np.uint64(56)).astype("i8")
    digit &= ~(other * np.uint64(255))
    # Digits to pairs, to fours, to eight.
    digit = digit * np.uint64(10) + (digit >> np.uint64(8))
    digit = (digit & _PAIRS) * np.uint64(1000000 << 32 | 100) + ((digit >> np.uint64(16)) & _PAIRS) * np.uint64(
        10000 << 32 | 1
    )
    digit >>= np.uint64(32)
    before = (word >> (8 * (7 - np.minimum(count, 7))).astype("u8")).astype("u1")
    before[count == 8] = 0
    return digit.astype("i8"), count, before


def _short_counts(
    buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """`counts` of lines that end with a blank and one to seven digits, or with as many on both sides of a point; -1
    for the others."""
    value = np.zeros(len(end))
    stop = np.full(len(end), -1, "i8")
    rows = np.flatnonzero(end - start > _TAIL)
    number, count, before = _tails(buf, end[rows])
    fine = (before == 32) & (count > 0)
    done = rows[fine]
    value[done] = number[fine]
    stop[done] = end[done] - 1 - count[fine]
    point = np.flatnonzero((before == 46) & (count > 0))
    point = point[(end - start)[rows[point]] - count[point] - 1 > _TAIL]
    if len(point):
        rows, scale = rows[point], 10 ** count[point]
        at = end[rows] - 1 - count[point]
        whole, digits, before = _tails(buf, at)
        fine = (before == 32) & (digits > 0)
        done = rows[fine]
        value[done] = (whole * scale + number[point])[fine] / scale[fine]
        stop[done] = (at - 1 - digits)[fine]
    return value, stop


def counts(
    buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(number at the end of every line, where the blank before it stands or -1): digits, perhaps with a point."""
    value, stop = _short_counts(buf, start, end)
    active = np.flatnonzero((stop < 0) & (end - start > 2))
    at = end[active] - 1
    number, scale = np.zeros(len(active)), np.ones(len(active))
    point = np.zeros(len(active))  # 10 to the number of digits behind the point, 0 before there is one
    last = np.zeros(len(active), "u1")
    for _ in range(_DIGITS + 2):
        byte = buf[at]
        digit = byte - np.uint8(48)
        done = (byte == 32) & (last >= 48)
        if done.any():
            rows = np.flatnonzero(done)
            stop[active[rows]] = at[rows]
            value[active[rows]] = number[rows] / np.where(point[rows] > 0, point[rows], 1.0)
        go = (digit < 10) | ((byte == 46) & (point == 0))
        go &= (at > start[active]) & (scale < 10.0**_DIGITS)
        dots = (byte == 46) & go
        if dots.any():
            point[dots] = scale[dots]
            digit[dots] = 0
            scale[dots] /= 10.0
        if not go.all():
            active, at, number, scale, point = active[go], at[go], number[go], scale[go], point[go]
            byte, digit = byte[go], digit[go]
        if not len(active):
            break
        number += digit * scale
        scale *= 10.0
        last = byte
        at = at - 1
    return value, stop

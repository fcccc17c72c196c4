"""Header lines of `perf script` as columns: where the time stands, what it is, the texts before and behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers import columns as c

__all__ = ["HeadTexts", "head_texts"]

_ROUNDS = 24
_MAX_HEADER = 4096
_MAX_SECONDS = 10  # digits


@dataclass(slots=True)
class HeadTexts:
    """Header lines that have a time: which ones of the `number` given (`rows`), the time, and the texts before it
    (`who`) and behind it (`what`), equal ones being one; `end` is where what was read ends."""

    number: int
    rows: NDArray[np.int64]
    time_ns: NDArray[np.uint64]
    end: NDArray[np.int64]
    who: NDArray[np.int32]
    who_texts: c.Pieces
    what: NDArray[np.int32]
    what_texts: c.Pieces


def head_texts(
    buf: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64], *, flat: bool = False
) -> HeadTexts:
    """What stands in header lines. `flat`: something else may follow the event in its line."""
    colon, fraction, seconds = _colons(buf, begin, end)
    rows = np.flatnonzero(colon >= 0)
    time, good = _times(buf, colon[rows], fraction[rows], seconds[rows])
    rows, time = rows[good], time[good]
    stop = end[rows]
    if flat:
        behind, fits = _behind_event(buf, colon[rows], stop)
        rows, time, stop = rows[fits], time[fits], behind[fits]
    stamp = colon[rows] - fraction[rows] - 1 - seconds[rows]
    who, who_texts = c.distinct(buf, begin[rows], stamp - 1)
    what, what_texts = c.distinct(buf, colon[rows], stop)
    return HeadTexts(len(begin), rows, time, stop, who, who_texts, what, what_texts)


def _behind_event(
    buf: NDArray[np.uint8], colon: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(place behind the event's colon, whether there is one) of lines whose time ends in a colon."""
    if not len(colon):
        return np.zeros(0, "i8"), np.zeros(0, bool)
    low, high = int(colon[0]), int(end[-1])
    all_of = c.positions(buf[low:high], 58) + low
    following = buf[np.minimum(all_of + 1, len(buf) - 1)]
    all_of = all_of[(following == 32) | (following == 10) | (all_of + 1 == len(buf))]
    at = np.searchsorted(all_of, colon, side="right")
    there = np.append(all_of, len(buf))[at]
    return there + 1, there < end


def _colons(
    buf: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(where the colon behind the time stands or -1, digits of its fraction, digits of its seconds).

    Counted from its end a header's time stands where it stood in one of the headers before, mostly.
    """
    colon, fraction, seconds = np.full(len(begin), -1, "i8"), np.zeros(len(begin), "i8"), np.zeros(len(begin), "i8")
    todo = np.flatnonzero(end - begin <= _MAX_HEADER)
    for turn in range(_ROUNDS):
        if not len(todo):
            return colon, fraction, seconds
        first = int(todo[0])
        at, digits, whole = _find_colon(buf[begin[first] : end[first]].tobytes())
        if at < 0:
            todo = todo[1:]
            continue
        there = end[todo] - (int(end[first] - begin[first]) - at)
        before = there - digits - whole - 2
        same = before > begin[todo]
        there, before = there.clip(0), before.clip(0)
        same &= (buf[there] == 58) & (buf[there - digits - 1] == 46) & (buf[before] == 32)
        same &= buf[np.minimum(there + 1, len(buf) - 1)] == 32
        same[0] = True
        colon[todo[same]], fraction[todo[same]], seconds[todo[same]] = there[same], digits, whole
        todo = todo[~same]
        if turn >= 8 and int(same.sum()) * 50 < len(todo):
            break
    for row, at, stop in zip(todo.tolist(), begin[todo].tolist(), end[todo].tolist(), strict=True):
        found, fraction[row], seconds[row] = _find_colon(buf[at:stop].tobytes())
        colon[row] = at + found if found >= 0 else -1
    return colon, fraction, seconds


def _find_colon(head: bytes) -> tuple[int, int, int]:
    """(place of the colon behind ` seconds.fraction`, digits of the fraction, of the seconds); (-1, 0, 0) if there is
    none."""
    at = head.find(b": ")
    dot = head.rfind(b".", 0, max(at, 0))
    if at < 0 or not 3 <= at - dot - 1 <= 9 or dot < 2 or not head[dot + 1 : at].isdigit():
        return -1, 0, 0
    blank = head.rfind(b" ", 0, dot)
    if blank < 1 or not 1 <= dot - blank - 1 <= _MAX_SECONDS or not head[blank + 1 : dot].isdigit():
        return -1, 0, 0
    return at, at - dot - 1, dot - blank - 1


def _times(
    buf: NDArray[np.uint8], colon: NDArray[np.int64], fraction: NDArray[np.int64], seconds: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(nanoseconds, whether all of the number's digits are some)."""
    nanoseconds = np.zeros(len(colon), "u8")
    good = np.zeros(len(colon), bool)
    form = fraction * (_MAX_SECONDS + 1) + seconds
    for each in np.unique(form).tolist():
        places, whole = divmod(each, _MAX_SECONDS + 1)
        rows = np.flatnonzero(form == each)
        digits = c.records(buf, colon[rows] - places - 1 - whole, whole + 1 + places) - np.uint8(48)
        digits = np.delete(digits, whole, axis=1)  # the point
        good[rows] = (digits < 10).all(axis=1)
        # Doubles hold numbers of so few digits exactly.
        value = digits[:, :whole].astype("f8") @ 10.0 ** np.arange(whole - 1, -1, -1)
        part = digits[:, whole:].astype("f8") @ 10.0 ** np.arange(8, 8 - places, -1)
        nanoseconds[rows] = value.astype("u8") * np.uint64(1_000_000_000) + part.astype("u8")
    return nanoseconds, good

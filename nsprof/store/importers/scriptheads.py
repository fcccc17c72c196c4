"""Header lines of `perf script` as columns: where the time stands, what it is, the texts before and behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers import columns as c
from nsprof.store.importers.scriptlayout import Layout

__all__ = ["HeadTexts", "head_texts"]

_ROUNDS = 24
_MAX_HEADER = 4096
_MAX_SECONDS = 10  # digits
_MAX_EVENT, _MAX_PERIOD, _BLANKS = 256, 19, 64


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
    buf: NDArray[np.uint8],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    *,
    flat: bool = False,
    layout: Layout | None = None,
) -> HeadTexts:
    """What stands in header lines. `flat`: something else may follow the event in its line. `layout`: of headers
    without a time."""
    if layout is not None:
        return _untimed(buf, begin, end, flat=flat, layout=layout)
    colon, fraction, seconds = _colons(buf, begin, end)
    rows = np.flatnonzero(colon >= 0)
    time, good = _times(buf, colon[rows], fraction[rows], seconds[rows])
    rows, time = rows[good], time[good]
    stop = end[rows]
    if flat:
        behind, fits = _behind_event(buf, colon[rows], stop)
        rows, time, stop = rows[fits], time[fits], behind[fits]
    stamp = colon[rows] - fraction[rows] - 1 - seconds[rows]
    who, who_texts = c.distinct(buf, begin[rows], np.maximum(stamp - 1, begin[rows]))
    what, what_texts = c.distinct(buf, colon[rows], stop)
    return HeadTexts(len(begin), rows, time, stop, who, who_texts, what, what_texts)


def _untimed(
    buf: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64], *, flat: bool, layout: Layout
) -> HeadTexts:
    """`head_texts` of headers without a time: the event's colon is the first one with a blank behind it."""
    behind, fits = _behind_event(buf, begin, end) if len(begin) else (begin, np.zeros(0, bool))
    rows = np.flatnonzero(fits & (end - begin <= _MAX_HEADER))
    stop = behind[rows] if flat else end[rows]
    low = begin[rows]
    event = _back(buf, behind[rows] - 1, low, _MAX_EVENT, blanks=False)
    what = who_end = event
    if layout.number:
        number_end = _back(buf, event, low, _BLANKS, blanks=True)
        number = _back(buf, number_end, low, _MAX_PERIOD, blanks=False)
        who_end = number
        what = number if layout.number == "period" else event
    who_end = _back(buf, who_end, low, _BLANKS, blanks=True)
    who, who_texts = c.distinct(buf, low, who_end)
    told, what_texts = c.distinct(buf, what, stop)
    none = np.full(len(rows), 2**64 - 1, "u8")
    return HeadTexts(len(begin), rows, none, stop, who, who_texts, told, what_texts)


def _back(
    buf: NDArray[np.uint8], at: NDArray[np.int64], low: NDArray[np.int64], limit: int, *, blanks: bool
) -> NDArray[np.int64]:
    """Where the run of at most `limit` blanks, or of other bytes, that ends before each place begins."""
    at = at.copy()
    active = np.flatnonzero(at > low)
    for _ in range(limit):
        active = active[(buf[at[active] - 1] == 32) == blanks]
        if not len(active):
            break
        at[active] -= 1
        active = active[at[active] > low[active]]
    return at


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
        alone = before == begin[todo] - 1  # nothing stands before the time
        same = (before >= begin[todo]) | alone
        there, before = there.clip(0), before.clip(0)
        same &= (buf[there] == 58) & (buf[there - digits - 1] == 46) & ((buf[before] == 32) | alone)
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
    if at < 0 or not 3 <= at - dot - 1 <= 9 or dot < 1 or not head[dot + 1 : at].isdigit():
        return -1, 0, 0
    blank = head.rfind(b" ", 0, dot)
    if not 1 <= dot - blank - 1 <= _MAX_SECONDS or not head[blank + 1 : dot].isdigit():
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
        begin = colon[rows] - places
        value, fine = _digits(buf, begin - 1 - whole, whole)
        part, fine_too = _digits(buf, begin, places)
        good[rows] = fine & fine_too
        nanoseconds[rows] = value * np.uint64(1_000_000_000) + part * np.uint64(10 ** (9 - places))
    return nanoseconds, good


def _digits(
    buf: NDArray[np.uint8], at: NDArray[np.int64], width: int
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(the numbers of `width` decimal digits at some places, whether all of their bytes are digits)."""
    value, good = np.zeros(len(at), "u8"), np.ones(len(at), bool)
    for done in range(0, width, 8):
        # Up to eight digits, with zeros before them, are one word, in which they are added up by pairs, then fours.
        count = min(8, width - done)
        bytes_ = np.zeros((len(at), 8), "u1")
        bytes_[:, 8 - count :] = c.records(buf, at + done, count) - np.uint8(48)
        word = bytes_.view("<u8").ravel()
        good &= ((word + np.uint64(0x7676767676767676)) | word) & np.uint64(0x8080808080808080) == 0
        word = (word * np.uint64(2561) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
        word = (word * np.uint64(6553601) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
        word = word * np.uint64(42949672960001) >> np.uint64(32)
        value = value * np.uint64(10**count) + word
    return value, good

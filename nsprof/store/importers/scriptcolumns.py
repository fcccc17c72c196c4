"""Blocks of `perf script` - a header line and its stack, ended by a blank line - read as columns.

Text repeats itself: a line is parsed once for every distinct text without its address and offset, a header's two parts
(who and what) once each; times and addresses are read by numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import FrameKind
from nsprof.store.importers import assemble as a
from nsprof.store.importers import columns as c
from nsprof.store.importers.scripttables import BY_ADDRESS, KERNEL_HALF, MEMO_ROWS, NO_DSO, REST, Tables, header_match

__all__ = ["add_blocks", "frames_of"]

_ROUNDS = 24
_MAX_HEADER = 4096
_UNKNOWN = np.frombuffer(b"[unknown] (", "u1")
_NAME_AT = 18  # tab, address in 16 columns, blank


def add_blocks(tables: Tables, text: memoryview, *, beside: bool) -> Iterator[tuple[bytes, bool]]:
    """Take in all blocks of the usual form; yields the others, in order, each with whether the block before it is
    one of them too (`beside`: whether the last one of the stretch before was)."""
    buf = np.frombuffer(text, "u1")
    ends = c.newlines(buf)
    head, last = _blocks(ends)
    begin = _starts(ends, head)
    task, cpu, event, weight, time, known = _headers(tables, buf, begin, ends[head])
    leaf = np.full(len(head), -1, "i8")
    rest = np.full(len(head), -1, "i8")
    rows = np.flatnonzero(known & (last > head))
    if len(rows):
        first = ends[head[rows]] + 1
        stop = ends[head[rows] + 1]
        bottom = ends[last[rows]]
        which, pieces = c.distinct(buf, first, stop)
        leaf[rows] = frames_of(tables, pieces)[which]
        which, pieces = c.distinct(buf, np.minimum(stop + 1, bottom), bottom)
        rest[rows] = _rests(tables, pieces)[which]
    whole = (leaf >= 0) & (rest >= 0)
    pick = np.flatnonzero(whole)
    tables.columns.append(
        (
            task[pick].astype("u4"),
            cpu[pick].astype("u2"),
            event[pick].astype("u2"),
            weight[pick],
            time[pick],
            leaf[pick].astype("u4"),
            rest[pick].astype("u4"),
        )
    )
    odd = np.flatnonzero(~whole)
    tables.last_is_odd = bool(len(whole)) and not whole[-1]
    follows = ~whole[odd - 1]
    if len(odd) and odd[0] == 0:
        follows[0] = beside
    stops = ends[last[odd]]
    for at, stop_at, joined in zip(begin[odd].tolist(), stops.tolist(), follows.tolist(), strict=True):
        yield bytes(text[at:stop_at]), joined


def _starts(ends: NDArray[np.int64], line: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where lines begin."""
    at = ends[line - 1] + 1
    at[line == 0] = 0
    return at


def _blocks(ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(first line, last line) of every block of lines that are not empty."""
    empty = np.flatnonzero(np.diff(ends) == 1) + 1
    if len(ends) and ends[0] == 0:
        empty = np.concatenate([[0], empty])
    first = np.concatenate([[0], empty + 1])
    last = np.concatenate([empty - 1, [len(ends) - 1]])
    full = last >= first
    return first[full], last[full]


def _headers(
    tables: Tables, buf: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.uint64], NDArray[np.bool_]]:
    """(task, cpu, event, weight, time_ns, whether the line was understood) of the first line of every block."""
    number = len(begin)
    colon, fraction = _colons(buf, begin, end)
    rows = np.flatnonzero(colon >= 0)
    time, stamp, good = _times(buf, begin[rows], colon[rows], fraction[rows])
    rows, stamp = rows[good], stamp[good]
    times = np.zeros(number, "u8")
    times[rows] = time[good]
    task, cpu, event = (np.full(number, -1, "i8") for _ in range(3))
    weight = np.zeros(number)
    which, pieces = c.distinct(buf, begin[rows], stamp - 1)
    found = np.array([_who(tables, text) for text in pieces.tolist()], "i8").reshape(-1, 2)
    task[rows], cpu[rows] = found[which, 0], found[which, 1]
    which, pieces = c.distinct(buf, colon[rows], end[rows])
    meaning = [_what(tables, text) for text in pieces.tolist()]
    event[rows] = np.array([m[0] for m in meaning], "i8")[which]
    weight[rows] = np.array([m[1] for m in meaning], "f8")[which]
    return task, cpu, event, weight, times, (task >= 0) & (event >= 0)


def _colons(
    buf: NDArray[np.uint8], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(where the colon behind the time stands or -1, digits of its fraction).

    Counted from its end a header's colon stands where it stood in one of the headers before, mostly.
    """
    colon, fraction = np.full(len(begin), -1, "i8"), np.zeros(len(begin), "i8")
    todo = np.flatnonzero(end - begin <= _MAX_HEADER)
    for turn in range(_ROUNDS):
        if not len(todo):
            return colon, fraction
        first = int(todo[0])
        at, digits = _find_colon(buf[begin[first] : end[first]].tobytes())
        if at < 0:
            todo = todo[1:]
            continue
        there = (end[todo] - (int(end[first] - begin[first]) - at)).clip(0)
        same = (there - digits - 2 > begin[todo]) & (buf[there] == 58) & (buf[there - digits - 1] == 46)
        same &= (buf[np.minimum(there + 1, len(buf) - 1)] == 32) & (buf[there - 1] >= 48)
        same[0] = True
        colon[todo[same]], fraction[todo[same]] = there[same], digits
        todo = todo[~same]
        if turn >= 8 and int(same.sum()) * 50 < len(todo):
            break
    for row, at, stop in zip(todo.tolist(), begin[todo].tolist(), end[todo].tolist(), strict=True):
        found, fraction[row] = _find_colon(buf[at:stop].tobytes())
        colon[row] = at + found if found >= 0 else -1
    return colon, fraction


def _find_colon(head: bytes) -> tuple[int, int]:
    """(place of the colon behind `seconds.fraction`, digits of the fraction); (-1, 0) if there is none."""
    at = head.find(b": ")
    dot = head.rfind(b".", 0, max(at, 0))
    if at < 0 or not 3 <= at - dot - 1 <= 9 or dot < 2 or not head[dot + 1 : at].isdigit():
        return -1, 0
    return at, at - dot - 1


def _times(
    buf: NDArray[np.uint8], begin: NDArray[np.int64], colon: NDArray[np.int64], fraction: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.bool_]]:
    """(nanoseconds, where the number begins, whether it is one that a blank stands before)."""
    part = np.zeros(len(colon), "u8")
    good = np.ones(len(colon), bool)
    ten = np.uint64(10)
    for step in range(1, 10):
        inside = step <= fraction
        digit = buf[colon - fraction - 1 + np.minimum(step, fraction)] - np.uint8(48)
        good &= (digit < 10) | ~inside
        part = part * ten + np.where(inside, digit, 0).astype("u8")
    at = colon - fraction - 2
    whole = np.zeros(len(colon), "u8")
    scale = np.uint64(1_000_000_000)
    active = good.copy()
    for _ in range(12):
        digit = buf[at.clip(0)] - np.uint8(48)
        active &= (digit < 10) & (at > begin)
        if not active.any():
            break
        whole += np.where(active, digit, 0).astype("u8") * scale
        at = np.where(active, at - 1, at)
        scale *= ten
    good &= (at > begin) & (buf[at.clip(0)] == 32) & (at < colon - fraction - 2)
    return whole + part, at + 1, good


def _who(tables: Tables, text: bytes) -> tuple[int, int]:
    """(task, cpu) of what stands before the time; (-1, 0) if that is nothing of the kind."""
    got = tables.who.get(text)
    if got is None:
        found = header_match(text + b" 1.000000: 1 x:")
        fits = found is not None and found["time"] and found.start("time") == len(text) + 1
        got = tables.who_of(found) if found is not None and fits else (-1, 0)
        if len(tables.who) > MEMO_ROWS:
            tables.who.clear()
        tables.who[text] = got
    return got


def _what(tables: Tables, text: bytes) -> tuple[int, float]:
    """(event, weight) of what stands behind the time, from its colon on; (-1, 0) if that is nothing of the kind."""
    period, _, name = text[1:].lstrip().partition(b" ")
    counted = period.isdigit() and len(period) < 20
    key = name.lstrip() if counted else text  # with period: one look-up for all periods of an event
    got = tables.what.get((counted, key))
    if got is None:
        found = header_match(b"x 1 1.000000" + text)
        rest = REST.match(found["rest"]) if found is not None and found.end("time") == 12 else None
        if rest is None or (rest["period"] is not None) != counted:
            got = -1
        else:
            got = tables.what_of(rest)[0]
        if len(tables.what) > MEMO_ROWS:
            tables.what.clear()
        tables.what[counted, key] = got
    return got, float(period) if counted else 1.0


def _rests(tables: Tables, pieces: c.Pieces) -> NDArray[np.int64]:
    """Numbers of stacks without their leaf, given as text; -1 where a line is no frame."""
    start, end, first = c.lines_of(pieces)
    out = np.full(len(pieces), tables.empty, "i8")
    if not len(start):
        return out
    which, lines = c.distinct(pieces.data, start, end)
    flat = frames_of(tables, lines)[which]
    full = np.flatnonzero(np.diff(first) > 0)
    bad = np.minimum.reduceat(flat, first[full]) < 0
    out[full[bad]] = -1
    stacks, row = a.unique_stacks(flat.clip(0).astype("u4"), np.append(first[full], len(flat)))
    base = tables.stacks(stacks.frames, stacks.offsets)
    out[full[~bad]] = base + row[~bad]
    return out


def frames_of(tables: Tables, lines: c.Pieces) -> NDArray[np.int64]:
    """Frame of every (distinct) stack line; -1 for what is none.

    Lines that differ in address and offset only have one frame, unless its name or kind hangs on the address.
    """
    out = np.full(len(lines), -2, "i8")
    data, start, end = lines.data, lines.offsets[:-1], lines.offsets[1:]
    usual = np.flatnonzero(end - start > _NAME_AT + 3)
    if len(usual):
        address, good = _addresses(data, start[usual])
        good &= data[end[usual] - 1] == 41
        usual, address = usual[good], address[good]
    if len(usual):
        plus = c.plus_0x(data)
        low = np.searchsorted(plus, start[usual])
        count = np.searchsorted(plus, end[usual]) - low
        name = start[usual] + _NAME_AT
        nameless = count == 0
        for place, byte in enumerate(_UNKNOWN):
            nameless &= data[np.minimum(name + place, len(data) - 1)] == byte
        nowhere = _nameless(tables, lines, out, usual[nameless], address[nameless])
        out[usual[nameless][nowhere]] = tables.frame_number("[unknown]", "", FrameKind.USER, False)
        _offset_named(tables, lines, out, usual[count == 1], plus[low[count == 1]])
        bare = (count == 0) & ~nameless
        _same_text(tables, lines, out, usual[bare], name[bare])
    for row in np.flatnonzero(out == -2).tolist():
        out[row] = tables.line(lines[row])
    return out


def _addresses(data: NDArray[np.uint8], start: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(address, whether a line begins with a tab, blanks and hexadecimal digits in 16 columns, a blank, and more)."""
    column = c.HEX[data[start[:, None] + np.arange(1, 17)]]
    digit = column < 16
    good = (digit | (column == 16)).all(axis=1) & digit[:, -1] & ~(digit[:, :-1] & ~digit[:, 1:]).any(axis=1)
    good &= (data[start] == 9) & (data[start + 17] == 32) & (data[start + _NAME_AT] > 32)
    pairs = (column[:, 0::2] & 15) << 4 | (column[:, 1::2] & 15)
    return np.ascontiguousarray(pairs).view(">u8").ravel().astype("u8"), good


def _nameless(
    tables: Tables, lines: c.Pieces, out: NDArray[np.int64], rows: NDArray[np.int64], address: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Lines of `[unknown] (DSO)`: their frames, as far as those do not hang on the address; returns which lines are
    in no DSO and no kernel."""
    nowhere = np.zeros(len(rows), bool)
    if not len(rows):
        return nowhere
    which, places = c.distinct(lines.data, lines.offsets[rows] + _NAME_AT + 10, lines.offsets[rows + 1])
    for number, text in enumerate(places.tolist()):
        mine = which == number
        if text == b"([unknown])":
            nowhere = mine & (address < KERNEL_HALF)
        elif not text.endswith(BY_ADDRESS):
            out[rows[mine]] = tables.parse_frame(lines[int(rows[np.argmax(mine)])])
    return nowhere


def _offset_named(
    tables: Tables, lines: c.Pieces, out: NDArray[np.int64], rows: NDArray[np.int64], plus: NDArray[np.int64]
) -> None:
    """Lines of `name+0xoffset (DSO)`."""
    data = lines.data
    place = c.digits_after(data, plus + 3, 16)
    good = (plus > lines.offsets[rows] + _NAME_AT) & (place > plus + 3) & (place + 2 < lines.offsets[rows + 1])
    good &= (data[np.minimum(place, len(data) - 1)] == 32) & (data[np.minimum(place + 1, len(data) - 1)] == 40)
    rows, plus, place = rows[good], plus[good], place[good]
    left, names = c.distinct(data, lines.offsets[rows] + _NAME_AT, plus)
    right, places = c.distinct(data, place, lines.offsets[rows + 1])
    first, which = c.distinct_pairs(left, right)
    frames = np.full(len(first), -2, "i8")
    for number, row in enumerate(first.tolist()):
        key = names[left[row]] + places[right[row]]
        frames[number] = _learn(tables, key, lines[int(rows[row])])
    out[rows] = frames[which] if len(first) else out[rows]


def _same_text(
    tables: Tables, lines: c.Pieces, out: NDArray[np.int64], rows: NDArray[np.int64], name: NDArray[np.int64]
) -> None:
    """Lines of `name (DSO)`, without an offset."""
    which, texts = c.distinct(lines.data, name, lines.offsets[rows + 1])
    first = np.full(len(texts), -1, "i8")
    first[which[::-1]] = np.arange(len(which))[::-1]
    frames = np.full(len(texts), -2, "i8")
    for number, text in enumerate(texts.tolist()):
        frames[number] = _learn(tables, text, lines[int(rows[first[number]])])
    if len(texts):
        out[rows] = frames[which]


def _learn(tables: Tables, key: bytes, line: bytes) -> int:
    """The frame of a name and its DSO, taken from a line with them; -2 where every such line must be parsed."""
    got = tables.symbols.get(key)
    if got is None:
        got = tables.parse_frame(line)
        if got < 0 or not tables.named[got] or key.endswith(NO_DSO):
            return -2
        if len(tables.symbols) > MEMO_ROWS:
            tables.symbols.clear()
        tables.symbols[key] = got
    return got

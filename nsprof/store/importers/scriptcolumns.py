"""Blocks of `perf script` - a header line and its stack, ended by a blank line - read as columns.

Text repeats itself: a line is parsed once for every distinct text without its address and offset, a header's two
parts (who and what) once each; times and addresses are read by numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers import assemble as a
from nsprof.store.importers import columns as c
from nsprof.store.importers.codes import first_rows
from nsprof.store.importers.scriptheads import HeadTexts, head_texts
from nsprof.store.importers.scriptlayout import Layout
from nsprof.store.importers.scriptlines import NAME_AT, LineTexts, line_texts
from nsprof.store.importers.scripttables import (
    BY_ADDRESS,
    BY_HALF,
    BY_LINE,
    KERNEL_HALF,
    MEMO_ROWS,
    NO_DSO,
    REST,
    UNSEEN,
    Tables,
    header_match,
)

__all__ = ["Blocks", "add_blocks", "blocks", "frames_of"]

_MANY = 16  # lines without a blank one between them that may be samples by themselves
_LINES = 100_000
_BLANKS = 24
_UNKNOWN = np.frombuffer(b"[unknown] (", "u1")


@dataclass(slots=True)
class Blocks:
    """The blocks of a stretch of text, each a header line and a stack mostly, as far as they are read without
    knowing what was read before."""

    text: memoryview
    ends: NDArray[np.int64]  # of all lines
    head: NDArray[np.int64]  # first line of every block
    last: NDArray[np.int64]
    heads: HeadTexts
    usable: NDArray[np.int64]  # the blocks whose stacks were read
    stacks: StackTexts


@dataclass(slots=True)
class StackTexts:
    """Stacks of some blocks: `leaves`, a line each, and `lines`, the rests of distinct stacks one behind the other,
    each from begin[i] to begin[i+1], and which of them stands below each leaf (`rest`).

    Where no stack is met again `leaves` is None: then each stack is in `lines` whole.
    """

    leaves: LineTexts | None
    lines: LineTexts
    begin: NDArray[np.int64]
    rest: NDArray[np.int32]


def blocks(text: memoryview, layout: Layout | None = None) -> Blocks:
    """Take a stretch of text apart; `layout` is that of headers without a time, if the text has such."""
    buf = np.frombuffer(text, "u1")
    ends = c.newlines(buf)
    head, last = _blocks(ends)
    heads = head_texts(buf, _starts(ends, head), ends[head], layout=layout)
    second = buf[np.minimum(ends[head] + 1, len(buf) - 1)] if len(buf) else buf
    stacked = (last > head) & ((second == 9) | (second == 32))  # else a line without a stack, and another
    usable = heads.rows[stacked[heads.rows]]
    return Blocks(text, ends, head, last, heads, usable, _stack_texts(buf, ends, head[usable], last[usable]))


def add_blocks(tables: Tables, got: Blocks, *, beside: bool) -> Iterator[tuple[bytes, bool]]:
    """Take in all blocks of the usual form; yields the others, in order, each with whether the block before it is
    one of them too (`beside`: whether the last one of the stretch before was)."""
    buf = np.frombuffer(got.text, "u1")
    ends, head, last = got.ends, got.head, got.last
    heads = _meanings(tables, got.heads)
    leaf, rest = np.full(len(head), -1, "i8"), np.full(len(head), -1, "i8")
    if len(got.usable):
        leaf[got.usable], rest[got.usable] = _stacks(tables, buf, got.stacks)
    whole = heads.known & (leaf >= 0) & (rest >= 0)
    tables.columns.append(heads.columns(np.flatnonzero(whole), leaf, rest))
    odd = np.flatnonzero(~whole)
    tables.last_is_odd = bool(len(whole)) and not whole[-1]
    follows = ~whole[odd - 1]
    if len(odd) and odd[0] == 0:
        follows[0] = beside
    for block, joined in zip(odd.tolist(), follows.tolist(), strict=True):
        first, final = int(head[block]), int(last[block])
        lines = _samples_a_line(tables, buf, ends, first, final) if final - first >= _MANY else None
        if lines is None:
            yield bytes(got.text[_starts(ends, head[block : block + 1])[0] : ends[final]]), joined
            continue
        for line in lines:
            yield bytes(got.text[ends[line - 1] + 1 if line else 0 : ends[line]]), False


@dataclass(slots=True)
class _Heads:
    """What header lines say; `known` whether each was understood, `end` where what was read of it ends."""

    task: NDArray[np.int64]
    cpu: NDArray[np.int64]
    event: NDArray[np.int64]
    weight: NDArray[np.float64]
    time: NDArray[np.uint64]
    end: NDArray[np.int64]
    anonymous: NDArray[np.bool_]  # without a pid

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each line was understood."""
        return (self.task >= 0) & (self.event >= 0)

    def columns(self, rows: NDArray[np.int64], leaf: NDArray[np.int64], rest: NDArray[np.int64]) -> tuple[Any, ...]:
        """The columns of some rows, as `Tables.columns` wants them."""
        return (
            self.task[rows].astype("u4"),
            self.cpu[rows].astype("u2"),
            self.event[rows].astype("u2"),
            self.weight[rows],
            self.time[rows],
            leaf[rows].astype("u4"),
            rest[rows].astype("u4"),
        )


def _samples_a_line(
    tables: Tables, buf: NDArray[np.uint8], ends: NDArray[np.int64], first: int, last: int
) -> list[int] | None:
    """Take in lines that are samples by themselves, their frame behind the event (recorded without call chains);
    returns the lines that are not, or None, with nothing taken in, where some seem to belong to those above them."""
    made: list[tuple[Any, ...]] = []
    others: list[NDArray[np.int64]] = []
    bare = 0
    for low in range(first, last + 1, _LINES):
        line = np.arange(low, min(low + _LINES, last + 1))
        begin, end = _starts(ends, line), ends[line]
        if (buf[begin] == 9).any():
            return None
        heads = _meanings(tables, head_texts(buf, begin, end, flat=True, layout=tables.layout))
        leaf = np.full(len(line), -1, "i8")
        framed = buf[end - 1] == 41
        framed |= _bare_frames(buf, heads.end, end)
        heads.event[heads.anonymous & ~framed & (end - heads.end > 1)] = -1
        leaf[heads.known & ~framed] = tables.unknown
        bare += int((heads.known & ~framed).sum())
        rows = np.flatnonzero(heads.known & framed)
        at = heads.end[rows]
        for _ in range(_BLANKS):
            at = at + (buf[at] == 32)
        stop = c.digits_after(buf, at, 16)
        fits = (stop > at) & (stop - NAME_AT + 1 >= heads.end[rows]) & (stop < end[rows])
        rows, stop = rows[fits], stop[fits]
        which, pieces = c.distinct(buf, stop - NAME_AT + 1, end[rows])
        leaf[rows] = frames_of(tables, pieces)[which]
        left = line[leaf < 0]
        if (buf[_starts(ends, left)] == 32).any():
            return None
        others.append(left)
        made.append(heads.columns(np.flatnonzero(leaf >= 0), leaf, np.full(len(line), tables.empty)))
    tables.columns.extend(made)
    tables.bare += bare
    return [line for part in others for line in part.tolist()]


def _bare_frames(buf: NDArray[np.uint8], at: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an address and a name without a DSO seem to stand behind the events."""
    top = len(buf) - 1
    for _ in range(_BLANKS):
        at = at + (buf[np.minimum(at, top)] == 32)
    stop = c.digits_after(buf, at, 16)
    found: NDArray[np.bool_] = (stop - at >= 8) & (stop + 1 < end) & (buf[np.minimum(stop, top)] == 32)
    return found


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


def _meanings(tables: Tables, texts: HeadTexts) -> _Heads:
    """What header lines say."""
    number, rows = texts.number, texts.rows
    times = np.zeros(number, "u8")
    times[rows] = texts.time_ns
    stops = np.zeros(number, "i8")
    stops[rows] = texts.end
    task, cpu, event = (np.full(number, -1, "i8") for _ in range(3))
    weight, anonymous = np.zeros(number), np.zeros(number, bool)
    found = np.array([_who(tables, text) for text in texts.who_texts.tolist()], "i8").reshape(-1, 3)
    task[rows], cpu[rows] = found[texts.who, 0], found[texts.who, 1]
    colon = b":" if tables.layout is not None else b""  # where a time would end
    said = texts.what_texts.tolist()
    meaning = [_what(tables, colon + text) for text in said]
    event[rows] = np.array([m[0] for m in meaning], "i8")[texts.what]
    weight[rows] = np.array([m[1] for m in meaning], "f8")[texts.what]
    if tables.layout is None and found[:, 2].any():
        # Words with a time in front of them are a sample's header only if there is an event and nothing else.
        anonymous[rows] = found[texts.who, 2] > 0
        more = np.array([not text.rstrip().endswith(b":") for text in said], bool)
        event[rows[anonymous[rows] & more[texts.what]]] = -1
    return _Heads(task, cpu, event, weight, times, stops, anonymous)


def _who(tables: Tables, text: bytes) -> tuple[int, int, int]:
    """(task, cpu, whether there is no pid) of what stands before the time; the task is -1 if that is nothing of the
    kind."""
    got = tables.who.get(text)
    if got is None:
        if tables.layout is not None:
            found, fits = tables.layout.who.match(text), True
        else:
            found = header_match(text + b" 1.000000: 1 x:")
            fits = found is not None and bool(found["time"]) and found.start("time") == len(text) + 1
        got = (*tables.who_of(found), int(not found["pid"])) if found is not None and fits else (-1, 0, 0)
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
        fits = rest is not None and (rest["period"] is not None) == counted
        got = tables.what_of(rest)[0] if rest is not None and fits else -1
        if len(tables.what) > MEMO_ROWS:
            tables.what.clear()
        tables.what[counted, key] = got
    return got, float(period) if counted else 1.0


def _stack_texts(
    buf: NDArray[np.uint8], ends: NDArray[np.int64], head: NDArray[np.int64], last: NDArray[np.int64]
) -> StackTexts:
    """The lines of some blocks' stacks. Where stacks repeat themselves as text, each text is looked at once."""
    top, bottom = ends[head + 1], ends[last]
    if not c.repeats(buf, top, bottom):
        step = np.zeros(len(ends) + 1, "i1")  # from one line to the next: into a stack, and out of it
        step[head + 1] = 1
        step[last + 1] -= 1
        inside = np.cumsum(step[:-1], dtype="i1").view(bool)
        begin = np.zeros(len(head) + 1, "i8")
        np.cumsum(last - head, out=begin[1:])
        lines = line_texts(buf, ends[:-1][inside[1:]] + 1, ends[inside])
        return StackTexts(None, lines, begin, np.zeros(0, "i4"))
    leaves = line_texts(buf, ends[head] + 1, top)
    rest, _ = c.distinct(buf, np.minimum(top + 1, bottom), bottom)
    seen = first_rows(rest)
    line, begin = _ranges(head[seen] + 2, last[seen])
    return StackTexts(leaves, line_texts(buf, ends[line - 1] + 1, ends[line]), begin, rest)


def _stacks(tables: Tables, buf: NDArray[np.uint8], got: StackTexts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(leaf frame, number of the stack below it) of every block; -1 where a line is no frame."""
    frame = _frames(tables, buf, got.lines)
    if got.leaves is not None:
        return _frames(tables, buf, got.leaves), _rests(tables, frame, got.begin)[got.rest]
    top = got.begin[:-1]
    below = np.ones(len(frame), bool)
    below[top] = False
    return frame[top], _rests(tables, frame[below], got.begin - np.arange(len(got.begin)))


def _frames(tables: Tables, buf: NDArray[np.uint8], lines: LineTexts) -> NDArray[np.int64]:
    """Frame of every line; -1 for what is none."""
    seen = tables.tails
    if len(seen) > MEMO_ROWS:
        seen.clear()
    told = [seen.get(text, UNSEEN) for text in lines.tails]
    for number, text in enumerate(lines.tails) if UNSEEN in told else ():
        if told[number] == UNSEEN:
            told[number] = seen[text] = tables.tail(text)
    out = np.array([*told, BY_LINE], "i8")[lines.tail]  # the last one is for those of another form, -1
    if out.size and int(out.min()) < -1:
        half = np.flatnonzero(out == BY_HALF)
        if len(half):
            out[half] = np.where(lines.kernel(buf, half), BY_LINE, tables.nowhere)
        odd = np.flatnonzero(out == BY_LINE)
        which, pieces = c.distinct(buf, lines.start[odd], lines.end[odd])
        out[odd] = frames_of(tables, pieces)[which]
    return out


def _ranges(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the numbers first[i]..last[i] one behind the other, where those of each i begin, and the end)."""
    length = last - first + 1
    begin = np.zeros(len(length) + 1, "i8")
    np.cumsum(length, out=begin[1:])
    return np.arange(int(begin[-1])) + np.repeat(first - begin[:-1], length), begin


def _rests(tables: Tables, frame: NDArray[np.int64], begin: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the stacks frame[begin[i]:begin[i+1]]; -1 for one with a line that is no frame."""
    full = np.diff(begin) > 0
    bad = np.zeros(len(full), bool)
    if len(frame):
        bad[full] = np.minimum.reduceat(frame, begin[:-1][full]) < 0
    stacks, row = a.unique_stacks(frame.clip(0).astype("u4"), begin)
    return np.where(bad, -1, tables.stacks(stacks.frames, stacks.offsets) + row)


def frames_of(tables: Tables, lines: c.Pieces) -> NDArray[np.int64]:
    """Frame of every (distinct) stack line; -1 for what is none.

    Lines that differ in address and offset only have one frame, unless its name or kind hangs on the address.
    """
    out = np.full(len(lines), -2, "i8")
    data, start, end = lines.data, lines.offsets[:-1], lines.offsets[1:]
    usual = np.flatnonzero(end - start > NAME_AT + 3)
    if len(usual):
        address, good = _addresses(data, start[usual])
        good &= data[end[usual] - 1] == 41
        usual, address = usual[good], address[good]
    if len(usual):
        plus = c.plus_0x(data)
        low = np.searchsorted(plus, start[usual])
        count = np.searchsorted(plus, end[usual]) - low
        name = start[usual] + NAME_AT
        nameless = count == 0
        for place, byte in enumerate(_UNKNOWN):
            nameless &= data[np.minimum(name + place, len(data) - 1)] == byte
        nowhere = _nameless(tables, lines, out, usual[nameless], address[nameless])
        out[usual[nameless][nowhere]] = tables.nowhere
        _offset_named(tables, lines, out, usual[count == 1], plus[low[count == 1]])
        bare = (count == 0) & ~nameless
        _same_text(tables, lines, out, usual[bare], name[bare])
    for row in np.flatnonzero(out == -2).tolist():
        out[row] = tables.line(lines[row])
    return out


def _addresses(data: NDArray[np.uint8], start: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """(address, whether a line begins with a tab, blanks and hexadecimal digits in 16 columns, a blank, and more)."""
    column = c.HEX[c.records(data, start + 1, 16)]
    digit = column < 16
    good = (digit | (column == 16)).all(axis=1) & digit[:, -1] & ~(digit[:, :-1] & ~digit[:, 1:]).any(axis=1)
    good &= ((data[start] == 9) | (data[start] == 32)) & (data[start + 17] == 32) & (data[start + NAME_AT] > 32)
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
    which, places = c.distinct(lines.data, lines.offsets[rows] + NAME_AT + 10, lines.offsets[rows + 1])
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
    good = (plus > lines.offsets[rows] + NAME_AT) & (place > plus + 3) & (place + 2 < lines.offsets[rows + 1])
    good &= (data[np.minimum(place, len(data) - 1)] == 32) & (data[np.minimum(place + 1, len(data) - 1)] == 40)
    rows, plus, place = rows[good], plus[good], place[good]
    left, names = c.distinct(data, lines.offsets[rows] + NAME_AT, plus)
    right, places = c.distinct(data, place, lines.offsets[rows + 1])
    first, which = a.grouped(left.astype("i8") << 32 | right)
    frames = np.full(len(first), -2, "i8")
    name, dso = names.tolist(), places.tolist()
    for number, row in enumerate(first.tolist()):
        text, place_of = name[left[row]], dso[right[row]]
        got = tables.symbols.get(text + place_of)
        if got is None:
            got = _learn(tables, text, place_of, lines, int(rows[row]))
        frames[number] = got
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
        frames[number] = _learn(tables, text, b"", lines, int(rows[first[number]]))
    if len(texts):
        out[rows] = frames[which]


def _learn(tables: Tables, name: bytes, dso: bytes, lines: c.Pieces, row: int) -> int:
    """The frame of a name and its DSO, taken from a line with them; -2 where every such line must be parsed."""
    key = name + dso
    if dso.startswith((b" ([", b" (/")) and not name.startswith(b"[") and not dso.startswith(b" ([unknown"):
        got = tables.kernel_or_user(name, dso[2:-1])
    else:
        got = tables.parse_frame(lines[row])
        if got < 0 or not tables.named[got] or key.endswith(NO_DSO):
            return -2
    if len(tables.symbols) > MEMO_ROWS:
        tables.symbols.clear()
    tables.symbols[key] = got
    return got

"""Folded stacks: `root;caller;leaf count`, one a line, as stackcollapse-*.pl, bcc, py-spy and inferno write them.

Lines are read as columns: where the numbers and the frames stand is found by numpy, equal stacks and equal frames by
Arrow; Python sees the distinct frames only.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, FrameKind, Frames, Profile, Run, Stacks
from nsprof.store.importers import assemble as a
from nsprof.store.importers import columns as c
from nsprof.store.importers.ahead import ahead
from nsprof.store.importers.text import KERNEL_ENTRY, cuts, kernel_dso, stretches, to_utf8

__all__ = ["import_folded", "looks_like", "to_utf8"]

_LINE = re.compile(rb"\S.*[; ]?.* [0-9]+(?:\.[0-9]*)?$")
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?$")
_TWO = re.compile(rb"\S.* [0-9]+(?:\.[0-9]*)? [0-9]+(?:\.[0-9]*)?$")
_HEAD = 1 << 16
_MANY = 0.9  # of the lines with two counts, and it is a comparison of two files
_WINDOW = 2 << 20
_DENSE = 9  # a semicolon in so few bytes, and positions would take far more memory than text
_LONG = 4 << 20
_TAIL = 8  # bytes at the end of a line in which a count mostly stands, with the blank before it
_LINES = 1 << 14
_DIGITS = 15  # so many make a number that a double holds exactly
_MOST = 2**53  # up to here a double holds every whole number
_MAX_DEPTH = 100_000
_STRETCHES = 1.5  # the larger a stretch, the more often stacks are met in it again, and the more memory it takes
_ROOT = 48  # a root of fewer bytes is looked for
_SELDOM = 2  # times that what stands below roots must be met for it to be worth it
_MIX = np.uint64(0x9E3779B97F4A7C15)
_LEFT_OUT = "lines that are no `frames count`, left out"


def looks_like(head: bytes) -> bool:
    """Whether some line is `a;b;c 12` and most are."""
    lines = _first_lines(head)
    good = [x for x in lines if len(x) < 1 << 16 and _NUMBER.match(x.rpartition(b" ")[2]) and b" " in x.strip()]
    return bool(good) and len(good) * 2 >= len(lines) and any(b";" in x for x in good)


def _first_lines(head: bytes) -> list[bytes]:
    """Some hundred lines that are whole, no remarks and not empty."""
    lines = [x for x in to_utf8(head).replace(b"\r\n", b"\n").split(b"\n") if x.strip()]
    if len(head) >= _HEAD and len(lines) > 1:
        lines = lines[:-1]
    return [x for x in lines[:500] if not x.startswith((b"#", b"//"))]


def _refuse_two_counts(head: bytes, name: str) -> None:
    """Raises ProfileFormatError for what difffolded.pl and inferno-diff-folded write: `frames before after`."""
    lines = _first_lines(head)
    two = sum(len(x) < _HEAD and _TWO.match(x) is not None for x in lines)
    if two and two >= _MANY * len(lines):
        raise ProfileFormatError(
            f"{name}: two counts a line, as difffolded writes them: a comparison, not a profile",
            "give one side, or import the two files separately and compare them (nsprof diff)",
        )


def import_folded(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, whether lines had to be left out) of folded stacks.

    Equal stacks are added up; fractional counts keep their weight. Frames marked `_[k]` (stackcollapse --kernel), and
    those leafward of a known kernel entry function, are kernel frames.
    """
    _refuse_two_counts(bytes(buf[:_HEAD]), name)
    table = _Table()
    for parts in ahead(_parts, stretches(buf, b"\n", _STRETCHES)):
        for part in parts:
            table.add(part)
    if not table.rows and not table.bad:
        raise ProfileFormatError(f"{name}: no folded stacks in it")
    return table.profile(name), bool(table.bad)


@dataclass(slots=True)
class _Part:
    """Some lines: their frames (name, module, kind, source); the stacks, leaf first, as numbers of those; of each
    stack how many frames it has, what it weighs, a key that equal ones share, and its context."""

    frames: list[tuple[str, str, int, str]]
    flat: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    weight: NDArray[np.float64]
    key: NDArray[np.uint64]
    context: NDArray[np.uint8]
    lines: int = 0
    bad: int = 0
    first_bad: int = 0


def _parts(text: memoryview) -> list[_Part]:
    """A stretch of text taken apart."""
    buf = np.frombuffer(text, "u1")
    if len(text) > _WINDOW and np.count_nonzero(buf[:_WINDOW] == 59) * _DENSE > _WINDOW:
        # Far more frames than text usually has: less of it at once.
        return [part for each in cuts(text, b"\n", _WINDOW) for part in _part(np.frombuffer(each, "u1"), each)]
    return _part(buf, text)


def _part(buf: NDArray[np.uint8], text: memoryview) -> list[_Part]:
    ends = c.newlines(buf)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    weight, stop = _counts(buf, starts, ends)
    first = buf[np.minimum(starts, len(buf) - 1)]
    usual = (stop > starts) & (first > 32) & (first != 35) & (first != 47) & (stop - starts < _LONG)
    rows = np.flatnonzero(usual)
    other = np.flatnonzero(~usual & (ends > starts))
    start, stop, weight = starts[rows], stop[rows], weight[rows]
    if len(rows) and c.repeats(buf, start, stop):
        which, pieces = c.distinct(buf, start, stop + 1)  # with the blank behind each, which parts it from the next
        weight = np.bincount(which, weights=weight).astype("f8")
        separator = pieces.data == 59
        separator[pieces.offsets[1:] - 1] = True
        made = _named(*_frames(pieces.data, np.flatnonzero(separator), 32), weight)
    elif len(rows) and (under := _under_roots(buf, start, stop, weight)) is not None:
        made = under
    else:
        separator = buf == 59
        for row in other.tolist():
            separator[starts[row] : ends[row]] = False
        separator[stop] = True
        whole = len(ends) - (len(buf) > 0 and int(buf[-1]) != 10)
        separator[ends[:whole]] = True
        texts, flat, lengths = _frames(buf, np.flatnonzero(separator), 10, unended=whole < len(ends))
        made = _named(texts, flat, lengths[usual], weight)
    parts = [made]
    if len(other):
        lines = [bytes(text[a:b]) for a, b in zip(starts[other].tolist(), ends[other].tolist(), strict=True)]
        parts.append(_odd_lines(lines, other))
    parts[-1].lines = len(ends)
    return parts


def _under_roots(
    buf: NDArray[np.uint8], start: NDArray[np.int64], stop: NDArray[np.int64], weight: NDArray[np.float64]
) -> _Part | None:
    """Stacks that differ in their root (a process, a container) more than below it: what stands below is looked at
    once. None where that is met only once itself, or where a root says something about the frames below it."""
    window = c.records(buf, start, _ROOT) == 59
    at = window.argmax(axis=1)
    begin = start + at + 1
    if not window[np.arange(len(at)), at].all() or (begin >= stop).any() or not c.repeats(buf, begin, stop, _SELDOM):
        return None
    root, roots = c.distinct(buf, start, begin - 1)
    above = [_frame_of(text) for text in roots.tolist()]
    if any(frame.entry or frame.row[2] != FrameKind.UNKNOWN for frame in above):
        return None
    which, pieces = c.distinct(buf, begin, stop + 1)
    separator = pieces.data == 59
    separator[pieces.offsets[1:] - 1] = True
    below = _named(*_frames(pieces.data, np.flatnonzero(separator), 32), np.zeros(0))
    # Each with a last frame more, for the root.
    under = np.zeros(len(below.lengths) + 1, "i8")
    np.cumsum(below.lengths + 1, out=under[1:])
    flat = np.zeros(int(under[-1]), "u4")
    inside = np.ones(len(flat), bool)
    inside[under[1:] - 1] = False
    flat[inside] = below.flat
    row = which.astype("i8")
    offsets, flat = a.take_rows(flat, under, row)
    flat[offsets[1:] - 1] = len(below.frames) + root
    # As _keys() makes them, what stands below the root hashed once.
    words = np.zeros(len(inside), "u8")
    words[inside] = _words([hash(frame) for frame in below.frames])[below.flat]
    key = a.hash_rows(words, under)[row] * _MIX ^ _words([frame.hash for frame in above])[root]
    frames = [*below.frames, *(frame.row for frame in above)]
    return _Part(frames, flat, np.diff(offsets), weight, key, below.context[row])


def _frames(
    buf: NDArray[np.uint8], separator: NDArray[np.int64], last: int, *, unended: bool = False
) -> tuple[list[bytes], NDArray[np.int32], NDArray[np.int64]]:
    """(distinct frames, the number of each frame, each line's from its last to its first, frames of each line).

    A frame ends at a separator. `last` is the separator that ends a line: 32 is a frame's end too, 10 ends none;
    `unended` that the last line lacks it.
    """
    ending = buf[separator] == last
    which, pieces = c.between(buf, separator, ~ending if last == 10 else None)
    ends = np.flatnonzero(ending)
    if unended:
        ends = np.append(ends, len(separator))
    lengths = np.diff(ends, prepend=-1) - (last == 10)
    offsets = np.zeros(len(lengths) + 1, "i8")
    np.cumsum(lengths, out=offsets[1:])
    flat = np.empty(len(which), "i4")
    for first, stop in a.spans(offsets, 1 << 15):
        low, high = int(offsets[first]), int(offsets[stop])
        mirror = np.repeat(offsets[first:stop] + offsets[first + 1 : stop + 1] - 1, lengths[first:stop])
        mirror -= np.arange(low, high)
        flat[low:high] = which[mirror]
    return [text[:-1] for text in pieces.tolist()], flat, lengths


def _odd_lines(lines: list[bytes], rows: NDArray[np.int64]) -> _Part:
    """Lines that are not just frames, a blank and a plain number; `rows` are their numbers, from 0."""
    texts: dict[bytes, int] = {}
    flat: list[int] = []
    lengths: list[int] = []
    weight: list[float] = []
    bad: list[int] = []
    for line, row in zip(lines, rows.tolist(), strict=True):
        if not line.strip() or line.startswith((b"#", b"//")):
            continue
        stack, _, count = line.rpartition(b" ")
        fits = stack.strip() and len(count) <= 40 and _NUMBER.match(count)
        if not fits or not math.isfinite(float(count)):  # 1e999
            bad.append(row + 1)
            continue
        frames = stack.rsplit(b";", _MAX_DEPTH)[-_MAX_DEPTH:]
        flat.extend(texts.setdefault(frame, len(texts)) for frame in reversed(frames))
        lengths.append(len(frames))
        weight.append(float(count))
    made = _named(list(texts), np.array(flat, "i4"), np.array(lengths, "i8"), np.array(weight, "f8"))
    made.bad, made.first_bad = len(bad), bad[0] if bad else 0
    return made


class _Table:
    """Stacks read so far: their frames as numbers of one table, leaf first, and what `_Part` says of each."""

    def __init__(self) -> None:
        self.frames = a.FrameTable()
        self.rows = 0
        self.bad = 0
        self._first_bad = 0
        self._lines = 0
        self._flat: list[NDArray[np.uint32]] = []
        self._columns: list[tuple[NDArray[Any], ...]] = []

    def add(self, part: _Part) -> None:
        """Take in some lines."""
        number = np.array([self.frames.add(*frame) for frame in part.frames], "u4")
        if len(part.lengths):
            self._flat.append(number[part.flat])
            self._columns.append((part.lengths, part.weight, part.key, part.context))
        if part.bad:
            self._first_bad = self._first_bad or self._lines + part.first_bad
        self.bad += part.bad
        self.rows += len(part.lengths)
        self._lines += part.lines

    def profile(self, name: str) -> Profile:
        """The finished profile; equal stacks become one."""
        empty = (np.zeros(0, "i8"), np.zeros(0), np.zeros(0, "u8"), np.zeros(0, "u1"))
        lengths, weight, key, context = (np.concatenate(each) for each in zip(empty, *self._columns, strict=True))
        offsets = np.zeros(self.rows + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        flat = np.empty(int(offsets[-1]), "u4")
        at = 0
        self._flat.reverse()
        while self._flat:  # each is let go when it is copied
            part = self._flat.pop()
            flat[at : at + len(part)] = part
            at += len(part)
            del part
        notes = [f"{self.bad} {_LEFT_OUT} (the first is line {self._first_bad:,})"] if self.bad else []
        if not (weight == np.floor(weight)).all():
            notes.append("fractional counts: weights are kept as they are, sample counts are rounded up")
        first, which = a.grouped(key)
        if len(first) < len(key):
            order = np.argsort(first)
            rank = np.empty(len(order), "i8")
            rank[order] = np.arange(len(order))
            weight = np.bincount(rank[which], weights=weight).astype("f8")
            context = context[first[order]]
            offsets, flat = a.take_rows(flat, offsets, first[order])
        if (weight > _MOST).any():
            notes.append(f"counts above {_MOST:,}: weights are kept as they are, sample counts are held at that")
        made = a.Rows(
            event=np.zeros(len(weight), "u1"),
            stack=np.arange(len(weight)),
            weight=weight,
            count=np.ceil(np.clip(weight, 0, _MOST)).astype("u8"),
            context=context,
            events=[Event("samples", "count")],
        )
        run = Run(scenario=Path(name).name, losses=a.no_losses())
        meta = a.source_meta("folded", name, notes)
        return a.assemble(made, self.frames.frames(), Stacks(offsets, flat), run=run, meta=meta)


def _short_counts(
    buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """`_counts` of lines that end with a blank and one to seven digits; -1 for the others."""
    value = np.zeros(len(end))
    stop = np.full(len(end), -1, "i8")
    rows = np.flatnonzero(end - start > _TAIL)
    for low in range(0, len(rows), _LINES):
        some = rows[low : low + _LINES]
        tail = np.ascontiguousarray(c.records(buf, end[some] - _TAIL, _TAIL).T)
        number, scale = np.zeros(len(some), "i4"), np.ones(len(some), "i4")
        going, length = np.ones(len(some), bool), np.zeros(len(some), "i8")
        for byte in tail[::-1]:
            digit = byte - np.uint8(48)
            ended = going & (byte == 32)
            length[ended] = -length[ended]  # negative: known
            going &= digit < 10
            if not going.any():
                break
            number += np.where(going, digit * scale, np.int32(0))
            length += going
            scale *= np.int32(10)
        fine = length < 0
        done = some[fine]
        value[done] = number[fine]
        stop[done] = end[done] - 1 + length[fine]
    return value, stop


def _counts(
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


_MARK = {b"_[k]": FrameKind.KERNEL, b"_[j]": FrameKind.USER, b"_[w]": FrameKind.USER, b"_[i]": FrameKind.UNKNOWN}
_DSO = re.compile(r"(.+) \((\[[^()]+\]|[^()]*\.ko[^()]*)\)$")


class _Frame(NamedTuple):
    """What the text of a frame says: the row of a frame table, whether it is a kernel entry function, has a name, and
    a hash of the row."""

    row: tuple[str, str, int, str]
    entry: bool
    named: bool
    hash: int


@functools.lru_cache(1 << 16)
def _frame_of(text: bytes) -> _Frame:
    """A frame: its kind is that of its mark or its DSO."""
    kind = _MARK.get(text[-4:], FrameKind.UNKNOWN)
    bare = (text[:-4] if text[-4:] in _MARK else text).strip()
    name = bare.decode("utf-8", "backslashreplace") or "[unknown]"
    module = ""
    if name.endswith(")") and (found := _DSO.match(name)):
        kind, module = kernel_dso(found[2])
        name = found[1]
    row = (name, module, int(kind), "")
    return _Frame(row, name in KERNEL_ENTRY, not name.startswith(("[unknown", "0x")), hash(row))


@functools.lru_cache(1 << 16)
def _as_kernel(frame: _Frame) -> _Frame:
    row = (*frame.row[:2], int(FrameKind.KERNEL), "")
    return frame._replace(row=row, hash=hash(row))


def _named(
    texts: list[bytes], flat: NDArray[np.int32], lengths: NDArray[np.int64], weight: NDArray[np.float64]
) -> _Part:
    """Stacks of frames that are numbers of `texts`, with frames: kernel ones by marks, DSOs and entry functions."""
    offsets = np.zeros(len(lengths) + 1, "i8")
    np.cumsum(lengths, out=offsets[1:])
    frames = [_frame_of(text) for text in texts]
    number = len(frames)
    inner = _leafward(flat, offsets, np.array([frame.entry for frame in frames], bool))
    if inner is not None:
        code = np.multiply(inner, np.int32(number), dtype="i4")
        code += flat
        met = np.zeros(2 * number, bool)
        met[code] = True
        own = np.arange(2 * number, dtype="i4")
        for index in np.flatnonzero(met[number:]).tolist():
            own[number + index] = len(frames)
            frames.append(_as_kernel(frames[index]))
        flat = own[code]
    rows = [frame.row for frame in frames]
    table = Frames(
        tuple(row[0] for row in rows), ("",) * len(rows), np.array([row[2] for row in rows], "u1"), ("",) * len(rows)
    )
    named = np.array([frame.named for frame in frames], bool)
    stacks = Stacks(offsets, flat.astype("u4"))
    context, _ = a.context_column(table, stacks, named=named, idle=False)
    key = _keys(_words([frame.hash for frame in frames])[stacks.frames], offsets)
    return _Part(rows, stacks.frames, lengths, weight, key, context)


def _words(hashes: list[int]) -> NDArray[np.uint64]:
    return np.array(hashes, "i8").view("u8")


def _keys(words: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A key of each stack from its frames' words, which are overwritten: equal stacks share it wherever they stand in
    the input. The root goes in by itself, so that what stands below several roots can be hashed once."""
    last = offsets[1:] - 1
    root = words[last]
    words[last] = 0
    return a.hash_rows(words, offsets) * _MIX ^ root


def _leafward(
    flat: NDArray[np.int32], offsets: NDArray[np.int64], entry: NDArray[np.bool_]
) -> NDArray[np.bool_] | None:
    """Which frames are leafward of their stack's outermost kernel entry function, with it; None if there is none."""
    if not entry.any():
        return None
    at = np.flatnonzero(entry[flat])
    before = np.searchsorted(at, offsets)  # how many of them stand before each row
    row = np.flatnonzero(before[1:] > before[:-1])
    step = np.zeros(len(flat) + 1, "i1")
    step[offsets[row]] = 1
    step[at[before[row + 1] - 1] + 1] -= 1  # rows are leaf first: the last one of a row is the outermost
    return np.cumsum(step[:-1], dtype="i1").view(bool)

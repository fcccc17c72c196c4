"""Folded stacks: `root;caller;leaf count`, one a line, as stackcollapse-*.pl, bcc, py-spy and inferno write them.

Lines are read as columns: where the numbers and the frames stand is found by numpy, equal stacks and equal frames by
Arrow; Python sees the distinct frames only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
_WINDOW = 1 << 20
_DENSE = 5  # a semicolon in so few bytes, and positions would take far more memory than text
_LONG = 4 << 20
_DIGITS = 15  # so many make a number that a double holds exactly
_MAX_DEPTH = 100_000
_FRAMES = 1 << 16  # worked on at once, which stay in the processor's cache
_LEFT_OUT = "lines that are no `frames count`, left out"


def looks_like(head: bytes) -> bool:
    """Whether some line is `a;b;c 12` and most are."""
    lines = [x for x in to_utf8(head).replace(b"\r\n", b"\n").split(b"\n") if x.strip()]
    if len(head) >= 1 << 16 and len(lines) > 1:
        lines = lines[:-1]
    lines = [x for x in lines[:500] if not x.startswith((b"#", b"//"))]
    good = [x for x in lines if len(x) < 1 << 16 and _NUMBER.match(x.rpartition(b" ")[2]) and b" " in x.strip()]
    return bool(good) and len(good) * 2 >= len(lines) and any(b";" in x for x in good)


def import_folded(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, whether lines had to be left out) of folded stacks.

    Equal stacks are added up; fractional counts keep their weight. Frames marked `_[k]` (stackcollapse --kernel), and
    those leafward of a known kernel entry function, are kernel frames.
    """
    table = _Table()
    for parts in ahead(_parts, stretches(buf, b"\n")):
        for part in parts:
            table.add(part)
    if not table.rows and not table.bad:
        raise ProfileFormatError(f"{name}: no folded stacks in it")
    return table.profile(name), bool(table.bad)


@dataclass(slots=True)
class _Part:
    """The lines of some text: frames as numbers of `texts`, stacks and each one's frames from the last to the first,
    so that a stack begins with its leaf; how many frames each has and what it weighs. `odd` are the lines of another
    form, with their numbers among the `lines`."""

    lines: int
    texts: list[bytes]
    flat: NDArray[np.int32]
    lengths: NDArray[np.int64]
    weight: NDArray[np.float64]
    odd: list[tuple[int, bytes]]


def _parts(text: memoryview) -> list[_Part]:
    """A stretch of text taken apart."""
    buf = np.frombuffer(text, "u1")
    if len(text) > _WINDOW and np.count_nonzero(buf[:_WINDOW] == 59) * _DENSE > _WINDOW:
        # Far more frames than text usually has: less of it at once.
        return [_part(np.frombuffer(part, "u1"), part) for part in cuts(text, b"\n", _WINDOW)]
    return [_part(buf, text)]


def _part(buf: NDArray[np.uint8], text: memoryview) -> _Part:
    ends = c.newlines(buf)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    weight, stop = _counts(buf, starts, ends)
    first = buf[np.minimum(starts, len(buf) - 1)]
    usual = (stop > starts) & (first > 32) & (first != 35) & (first != 47) & (stop - starts < _LONG)
    rows = np.flatnonzero(usual)
    other = np.flatnonzero(~usual & (ends > starts))
    odd = [
        (row + 1, bytes(text[at:end]))
        for row, at, end in zip(other.tolist(), starts[other].tolist(), ends[other].tolist(), strict=True)
    ]
    start, stop, weight = starts[rows], stop[rows], weight[rows]
    if len(rows) and c.repeats(buf, start, stop):
        which, pieces = c.distinct(
            buf, start, stop + 1
        )  # each with the blank behind it, which parts it from the next
        weight = np.bincount(which, weights=weight).astype("f8")
        separator = pieces.data == 59
        separator[pieces.offsets[1:] - 1] = True
        texts, flat, lengths = _frames(pieces.data, np.flatnonzero(separator), 32)
    else:
        separator = buf == 59
        for row in other.tolist():
            separator[starts[row] : ends[row]] = False
        separator[stop] = True
        whole = len(ends) - (len(buf) > 0 and int(buf[-1]) != 10)
        separator[ends[:whole]] = True
        texts, flat, lengths = _frames(buf, np.flatnonzero(separator), 10, unended=whole < len(ends))
        lengths = lengths[usual[::-1]]
    return _Part(len(ends), texts, flat, lengths, weight[::-1], odd)


def _frames(
    buf: NDArray[np.uint8], separator: NDArray[np.int64], last: int, *, unended: bool = False
) -> tuple[list[bytes], NDArray[np.int32], NDArray[np.int64]]:
    """(distinct frames, the number of each frame, frames of each line), all from the end of the text to its begin.

    A frame ends at a separator. `last` is the separator that ends a line: 32 is a frame's end too, 10 ends none;
    `unended` that the last line lacks it.
    """
    ending = buf[separator] == last
    which, pieces = c.between(buf, separator, ~ending if last == 10 else None)
    ends = np.flatnonzero(ending)
    if unended:
        ends = np.append(ends, len(separator))
    lengths = np.diff(ends, prepend=-1) - (last == 10)
    return [text[:-1] for text in pieces.tolist()], which[::-1], lengths[::-1]


class _Table:
    """Stacks read so far: their frames as numbers of `texts`, leaf first, and what they weigh."""

    def __init__(self) -> None:
        self.texts: dict[bytes, int] = {}
        self.rows = 0
        self.bad = 0
        self.first_bad = 0
        self._lines = 0
        self._flat: list[NDArray[np.uint32]] = []
        self._lengths: list[NDArray[np.int64]] = []
        self._weight: list[NDArray[np.float64]] = []

    def add(self, part: _Part) -> None:
        """Take in some lines."""
        texts = self.texts
        number = np.array([texts.setdefault(text, len(texts)) for text in part.texts], "u4")
        if len(part.lengths):
            self._keep(number[part.flat], part.lengths, part.weight)
        for line, text in part.odd:
            self._line(text, self._lines + line)
        self._lines += part.lines

    def _keep(self, leaf_first: NDArray[np.uint32], lengths: NDArray[np.int64], weight: NDArray[np.float64]) -> None:
        self._flat.append(leaf_first)
        self._lengths.append(lengths)
        self._weight.append(weight)
        self.rows += len(lengths)

    def _line(self, line: bytes, number: int) -> None:
        """A line that is not just frames, a blank and a plain number."""
        if not line.strip() or line.startswith((b"#", b"//")):
            return
        stack, _, count = line.rpartition(b" ")
        if not stack.strip() or len(count) > 40 or not _NUMBER.match(count):
            self.bad += 1
            self.first_bad = self.first_bad or number
            return
        frames = stack.rsplit(b";", _MAX_DEPTH)[-_MAX_DEPTH:]
        texts = self.texts
        numbers = np.array([texts.setdefault(frame, len(texts)) for frame in reversed(frames)], "u4")
        self._keep(numbers, np.array([len(numbers)]), np.array([float(count)]))

    def profile(self, name: str) -> Profile:
        """The finished profile; equal stacks of different stretches become one."""
        offsets = np.zeros(self.rows + 1, "i8")
        if self.rows:
            np.cumsum(np.concatenate(self._lengths), out=offsets[1:])
        flat = np.empty(int(offsets[-1]), "u4")
        at = 0
        self._flat.reverse()
        while self._flat:  # each is let go when it is copied
            part = self._flat.pop()
            flat[at : at + len(part)] = part
            at += len(part)
            del part
        weight = np.concatenate(self._weight) if self._weight else np.zeros(0)
        notes = [f"{self.bad} {_LEFT_OUT} (the first is line {self.first_bad:,})"] if self.bad else []
        stacks, stack = a.unique_stacks(flat, offsets)
        flat = np.zeros(0, "u4")
        frames, flat, named = kinds_of(list(self.texts), stacks.frames, stacks.offsets)
        stacks = Stacks(stacks.offsets, flat)
        if not (weight == np.floor(weight)).all():
            notes.append("fractional counts: weights are kept as they are, sample counts are rounded up")
        weight = np.bincount(stack, weights=weight, minlength=len(stacks)).astype("f8")
        made = a.Rows(
            event=np.zeros(len(stacks), "u1"),
            stack=np.arange(len(stacks)),
            weight=weight,
            count=np.ceil(np.clip(weight, 0, 2**53)).astype("u8"),
            events=[Event("samples", "count")],
        )
        run = Run(scenario=Path(name).name, losses=a.no_losses())
        meta = a.source_meta("folded", name, notes)
        return a.assemble(made, frames, stacks, run=run, meta=meta, named=named)


def _counts(
    buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(number at the end of every line, where the blank before it stands or -1): digits, perhaps with a point."""
    value = np.zeros(len(end))
    stop = np.full(len(end), -1, "i8")
    active = np.flatnonzero(end - start > 2)
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


def kinds_of(
    texts: list[bytes], flat: NDArray[np.uint32], offsets: NDArray[np.int64]
) -> tuple[Frames, NDArray[np.uint32], NDArray[np.bool_]]:
    """(frames, flat renumbered to them, which have a name): kinds from marks, DSOs and kernel entry functions."""
    names: list[str] = []
    modules: list[str] = []
    kinds = np.zeros(len(texts), "u1")
    entry = np.zeros(len(texts), bool)
    for index, text in enumerate(texts):
        kind = _MARK.get(text[-4:], FrameKind.UNKNOWN)
        bare = (text[:-4] if text[-4:] in _MARK else text).strip()
        name = bare.decode("utf-8", "backslashreplace") or "[unknown]"
        module = ""
        if name.endswith(")") and (found := _DSO.match(name)):
            kind, module = kernel_dso(found[2])
            name = found[1]
        names.append(name)
        modules.append(module)
        kinds[index] = kind
        entry[index] = name in KERNEL_ENTRY
    table = a.FrameTable()
    own = np.array([table.add(n, m, int(k)) for n, m, k in zip(names, modules, kinds, strict=True)], "u4")
    inner = _leafward(flat, offsets, entry)
    if inner is None:
        flat = own[flat] if len(table.rows) < len(own) else flat
    else:
        number = len(own)
        met = np.zeros(2 * number, bool)
        code = flat.astype("u4", copy=True)
        for low in range(0, len(code), _FRAMES):
            some = code[low : low + _FRAMES]
            some += inner[low : low + _FRAMES] * np.uint32(number)
            met[some] = True
        as_kernel = own.copy()
        for index in np.flatnonzero(met[number:] & (kinds != FrameKind.KERNEL)).tolist():
            as_kernel[index] = table.add(names[index], modules[index], FrameKind.KERNEL)
        flat = np.concatenate([own, as_kernel])[code]
    named = np.array([not n.startswith(("[unknown", "0x")) for n, *_ in table.rows], bool)
    return table.frames(), flat.astype("u4", copy=False), named


def _leafward(
    flat: NDArray[np.uint32], offsets: NDArray[np.int64], entry: NDArray[np.bool_]
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

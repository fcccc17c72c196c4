"""Folded stacks: `root;caller;leaf count`, one a line, as stackcollapse-*.pl, bcc, py-spy and inferno write them.

Lines are read as columns: where the numbers and the frames stand is found by numpy, equal stacks and equal frames by
Arrow; Python sees the distinct frames only.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, FrameKind, Frames, Profile, Run, Stacks
from nsprof.store.importers import assemble as a
from nsprof.store.importers import columns as c
from nsprof.store.importers.text import KERNEL_ENTRY, cuts, kernel_dso, stretches, to_utf8

__all__ = ["import_folded", "looks_like", "to_utf8"]

_LINE = re.compile(rb"\S.*[; ]?.* [0-9]+(?:\.[0-9]*)?$")
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?$")
_WINDOW = 1 << 20
_DENSE = 5  # a semicolon in so few bytes, and positions would take far more memory than text
_LONG = 4 << 20
_DIGITS = 15  # so many make a number that a double holds exactly
_MAX_DEPTH = 100_000
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
    for stretch in stretches(buf, b"\n"):
        table.add(stretch)
    if not table.rows and not table.bad:
        raise ProfileFormatError(f"{name}: no folded stacks in it")
    return table.profile(name), bool(table.bad)


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

    def add(self, text: memoryview) -> None:
        """Take in the lines of a stretch of text."""
        buf = np.frombuffer(text, "u1")
        if len(text) > _WINDOW and np.count_nonzero(buf[:_WINDOW] == 59) * _DENSE > _WINDOW:
            for part in cuts(text, b"\n", _WINDOW):  # far more frames than text usually has: less of it at once
                self._add(np.frombuffer(part, "u1"), part)
        else:
            self._add(buf, text)

    def _add(self, buf: NDArray[np.uint8], text: memoryview) -> None:
        ends = c.newlines(buf)
        if not len(ends):
            return
        starts = np.concatenate([[0], ends[:-1] + 1])
        weight, stop = _counts(buf, starts, ends)
        first = buf[np.minimum(starts, len(buf) - 1)]
        usual = (stop > starts) & (first > 32) & (first != 35) & (first != 47) & (stop - starts < _LONG)
        rows = np.flatnonzero(usual)
        start, stop, weight = starts[rows], stop[rows], weight[rows]
        if len(rows) and c.repeats(buf, start, stop):
            which, pieces = c.distinct(buf, start, stop)
            self._columns(
                pieces.data, pieces.offsets[:-1], pieces.offsets[1:], np.bincount(which, weights=weight).astype("f8")
            )
        elif len(rows):
            self._columns(buf, start, stop, weight)
        odd = np.flatnonzero(~usual & (ends > starts))
        for row, at, end in zip(odd.tolist(), starts[odd].tolist(), ends[odd].tolist(), strict=True):
            self._line(bytes(text[at:end]), self._lines + row + 1)
        self._lines += len(ends)

    def _columns(
        self,
        buf: NDArray[np.uint8],
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        weight: NDArray[np.float64],
    ) -> None:
        """Stacks that stand at text[start:stop]."""
        semicolon = c.positions(buf[: int(stop[-1])], 59)
        # How many semicolons stand before each stack and before its end tells which ones are inside it.
        low, high = np.searchsorted(semicolon, start), np.searchsorted(semicolon, stop)
        if int((high - low).sum()) != len(semicolon):
            inside = np.zeros(len(semicolon) + 1, "i4")
            np.add.at(inside, low, 1)
            np.add.at(inside, high, -1)
            semicolon = semicolon[np.cumsum(inside[:-1]) > 0]
        lengths = high - low + 1
        offsets = np.zeros(len(start) + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        begin, end = np.empty(int(offsets[-1]), "i8"), np.empty(int(offsets[-1]), "i8")
        leads = np.zeros(len(begin), bool)
        leads[offsets[:-1]] = True
        begin[leads], begin[~leads] = start, semicolon + 1
        leads[offsets[:-1]] = False
        leads[offsets[1:] - 1] = True
        end[leads], end[~leads] = stop, semicolon
        which, pieces = c.distinct(buf, begin, end)
        texts = self.texts
        number = np.array([texts.setdefault(text, len(texts)) for text in pieces.tolist()], "u4")
        self._keep(number[which], lengths, weight)

    def _keep(self, root_first: NDArray[np.uint32], lengths: NDArray[np.int64], weight: NDArray[np.float64]) -> None:
        """Put stacks away, each turned round so that it begins with its leaf."""
        offsets = np.zeros(len(lengths) + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        flat = np.empty(len(root_first), "u4")
        for first, last in a.spans(offsets, 1 << 15):
            low, high = int(offsets[first]), int(offsets[last])
            mirror = np.repeat(offsets[first:last] + offsets[first + 1 : last + 1] - 1, lengths[first:last])
            mirror -= np.arange(low, high)
            flat[low:high] = root_first[mirror]
        self._flat.append(flat)
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
        numbers = np.array([texts.setdefault(frame, len(texts)) for frame in frames], "u4")
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
    inferred = _leafward(flat, offsets, entry)
    inferred = inferred[kinds[flat[inferred]] != FrameKind.KERNEL] if len(inferred) else inferred
    promoted = flat[inferred]
    flat = own[flat] if len(table.rows) < len(own) else flat
    if len(promoted):
        as_kernel = own.copy()
        met = np.zeros(len(texts), bool)
        met[promoted] = True
        for index in np.flatnonzero(met).tolist():
            as_kernel[index] = table.add(names[index], modules[index], FrameKind.KERNEL)
        flat = flat.copy()
        flat[inferred] = as_kernel[promoted]
    named = np.array([not n.startswith(("[unknown", "0x")) for n, *_ in table.rows], bool)
    return table.frames(), flat.astype("u4", copy=False), named


def _leafward(flat: NDArray[np.uint32], offsets: NDArray[np.int64], entry: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where the frames stand that are leafward of their stack's outermost kernel entry function, with it."""
    if not entry.any():
        return np.zeros(0, "i8")
    at = np.flatnonzero(entry[flat])
    row = np.searchsorted(offsets, at, side="right") - 1
    outer = np.ones(len(at), bool)
    outer[:-1] = row[1:] != row[:-1]  # rows are leaf first: the last one of a row is the outermost
    at, row = at[outer], row[outer]
    length = at - offsets[row] + 1
    begin = np.cumsum(length) - length
    where: NDArray[np.int64] = np.arange(int(length.sum())) + np.repeat(offsets[row] - begin, length)
    return where

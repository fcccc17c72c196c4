"""Folded stacks: `root;caller;leaf count`, one a line, as stackcollapse-*.pl, bcc, py-spy and inferno write them.

Lines are read as columns: where the numbers and the frames stand is found by numpy, equal stacks and equal frames by
Arrow; Python sees the distinct frames only.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, Profile, Run, Stacks
from nsprof.store.importers import assemble as a
from nsprof.store.importers import columns as c
from nsprof.store.importers.ahead import ahead
from nsprof.store.importers.foldedcounts import counts
from nsprof.store.importers.foldedstacks import ENTERS, SAID, Known, Local, Stacked, keys_below, stacked
from nsprof.store.importers.text import cuts, stretches, to_utf8

__all__ = ["import_folded", "looks_like", "to_utf8"]

_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?$")
_TWO = re.compile(rb"\S.* [0-9]+(?:\.[0-9]*)? [0-9]+(?:\.[0-9]*)?$")
_HEAD = 1 << 16
_MANY = 0.9  # of the lines with two counts, and it is a comparison of two files
_WINDOW = 2 << 20
_DENSE = 9  # a semicolon in so few bytes, and positions would take far more memory than text
_LONG = 4 << 20
_MOST = 2**53  # up to here a double holds every whole number
_MAX_DEPTH = 100_000
_STRETCHES = 1.5  # the larger a stretch, the more often stacks are met in it again, and the more memory it takes
_ROOT = 48  # a root of fewer bytes is looked for
_SELDOM = 2  # times that what stands below roots must be met for it to be worth it
_WORDS = 1 << 15
_NONE = 0xFFFFFFFF
_FEW = 4096
_RUN = 32  # stacks one behind the other that make copying them as one quicker
_MOSTLY = 4  # one line in so many may be another than those of the first stretch
_LONE = 1  # the number of a stretch that takes nothing from the first and gives nothing to others
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
    met = _Met()
    table = _Table(met.frames)
    for parts in ahead(functools.partial(_parts, met), enumerate(stretches(buf, b"\n", _STRETCHES))):
        for part in parts:
            table.add(part)
    if not table.rows and not table.bad:
        raise ProfileFormatError(f"{name}: no folded stacks in it")
    return table.profile(name), bool(table.bad)


@dataclass(slots=True)
class _Part:
    """Some lines: of each what it weighs, how many frames its stack has, the stack's key and context. The stacks are
    those of `made` in order or, where there is a `which`, that one of them, below that one of the `roots` (numbers of
    `Known`) where there are any."""

    made: Stacked
    lengths: NDArray[np.int64]
    weight: NDArray[np.float64]
    key: NDArray[np.uint64]
    context: NDArray[np.uint8]
    which: NDArray[np.int32] | None = None
    root: NDArray[np.int32] | None = None
    roots: NDArray[np.int64] | None = None
    lines: int = 0
    bad: int = 0
    first_bad: int = 0

    @classmethod
    def of(cls, made: Stacked, weight: NDArray[np.float64]) -> _Part:
        """A stack a line."""
        return cls(made, np.diff(made.offsets), weight, made.key, made.context)

    def frames(self) -> NDArray[np.int64]:
        """The numbers of `Known` that are met, in the order of the lines; roots behind the others."""
        return self.made.met if self.roots is None else np.concatenate([self.made.met, self.roots])

    def write(self, number: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
        """The frames of all stacks, one behind the other; `number` is a frame's, by its number of `Known`."""
        made = self.made
        mine = number if made.numbers is None else number[made.numbers]
        if self.which is None:
            for low in range(0, len(out), _WORDS):
                out[low : low + _WORDS] = mine[made.flat[low : low + _WORDS]]
            return
        extra = self.root is not None  # a place more behind each stack, for the root
        at = made.offsets + np.arange(len(made.offsets)) * extra
        own = np.ones(int(at[-1]), bool)
        if extra:
            own[at[1:] - 1] = False
        flat = np.zeros(len(own), "u4")
        flat[own] = mine[made.flat]
        offsets = np.zeros(len(self.lengths) + 1, "i8")
        np.cumsum(self.lengths, out=offsets[1:])
        begin = at[self.which]
        turns = np.flatnonzero(np.diff(self.which) != 1) + 1
        if len(turns) * _RUN < len(begin):  # mostly one after the other, as in sorted text
            for first, stop in itertools.pairwise([0, *turns.tolist(), len(begin)]):
                low, high = int(offsets[first]), int(offsets[stop])
                out[low:high] = flat[begin[first] : begin[first] + high - low]
        else:
            begin -= offsets[:-1]
            for first, stop in a.spans(offsets, _WORDS):
                pick = np.repeat(begin[first:stop], self.lengths[first:stop])
                pick += np.arange(offsets[first], offsets[stop])
                out[offsets[first] : offsets[stop]] = flat[pick]
        if self.root is not None and self.roots is not None:
            out[offsets[1:] - 1] = number[self.roots][self.root]


class _Met:
    """What is known of the lines before: their frames, and the stacks of the first stretch where lines repeat them,
    the texts of its frames where they do not.

    Those of the first only, and for the third on, when it is finished for certain: what comes out does not depend on
    which thread is quicker.
    """

    def __init__(self) -> None:
        self.frames = Known()
        self._first: dict[bool, tuple[c.Pieces, Stacked]] = {}
        self._texts: tuple[c.Pieces, Local] | None = None

    def stacks(
        self,
        buf: NDArray[np.uint8],
        start: NDArray[np.int64],
        stop: NDArray[np.int64],
        stretch: int,
        *,
        below: bool = False,
    ) -> tuple[NDArray[np.int32], Stacked]:
        """(which of the stacks each line has, those stacks): text between two places that is met again and again."""
        end = stop + 1  # with the blank behind each, which parts it from the next
        if stretch > 1 and below in self._first:
            pieces, made = self._first[below]
            which = c.found(buf, start, end, pieces)
            rows = np.flatnonzero(which < 0)
            if not len(rows):
                return which, made
            if len(rows) * _MOSTLY < len(which):
                more, pieces = c.distinct(buf, start[rows], end[rows])
                which[rows] = more + np.int32(len(made.key))
                return which, made.and_then(self._read(pieces, below))
        which, pieces = c.distinct(buf, start, end)
        made = self._read(pieces, below)
        if stretch == 0:
            self._first[below] = pieces, made
        return which, made

    def lines(
        self, buf: NDArray[np.uint8], where: NDArray[np.int64], rows: NDArray[np.int64], stretch: int
    ) -> Stacked:
        """The stacks of some lines; `where` are the separators of all, the ends of lines among them."""
        ending = buf[np.minimum(where, len(buf) - 1)] == 10
        # The count behind each stack is a piece as well, which is not looked at.
        wanted = ~ending
        if stretch > 1 and self._texts is not None and c.mostly_known(buf, where, wanted, self._texts[0]):
            known, local = self._texts
            codes, texts = c.between(buf, where, wanted, known)
            if len(texts):
                local = local.and_then(self.frames.local(_texts(texts)))
        else:
            codes, texts = c.between(buf, where, wanted)
            local = self.frames.local(_texts(texts))
            if stretch == 0:
                self._texts = texts, local
        last = np.flatnonzero(ending)
        if not len(ending) or not ending[-1]:  # a last line that is not ended
            last = np.append(last, len(where))
        begin = np.concatenate([[0], last[:-1] + 1])[: len(last)]
        return stacked(codes, begin[rows], (last - begin)[rows], local)

    def _read(self, pieces: c.Pieces, below: bool) -> Stacked:
        """Stacks that stand one behind the other, a blank behind each."""
        end = pieces.offsets[1:] - 1
        where = c.separators(pieces.data, 59, end)
        last = np.searchsorted(where, end)
        begin = np.concatenate([[0], last[:-1] + 1])[: len(last)]
        codes, texts = c.between(pieces.data, where, None)
        made = stacked(codes, begin, last - begin + 1, self.frames.local(_texts(texts)), below=below)
        return made.by_known()


def _parts(met: _Met, stretch: tuple[int, memoryview]) -> list[_Part]:
    """A stretch of text, and its number, taken apart."""
    number, text = stretch
    buf = np.frombuffer(text, "u1")
    if len(text) > _WINDOW and np.count_nonzero(buf[:_WINDOW] == 59) * _DENSE > _WINDOW:
        # Far more frames than text usually has: less of it at once.
        less = cuts(text, b"\n", _WINDOW)
        return [part for each in less for part in _part(met, _LONE, np.frombuffer(each, "u1"), each)]
    return _part(met, number, buf, text)


def _part(met: _Met, stretch: int, buf: NDArray[np.uint8], text: memoryview) -> list[_Part]:
    ends = c.newlines(buf)
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    weight, stop = counts(buf, starts, ends)
    first = buf[np.minimum(starts, len(buf) - 1)]
    usual = (stop > starts) & (first > 32) & (first != 35) & (first != 47) & (stop - starts < _LONG)
    rows = np.flatnonzero(usual)
    other = np.flatnonzero(~usual & (ends > starts))
    start, stop, weight = starts[rows], stop[rows], weight[rows]
    if len(rows) and c.repeats(buf, start, stop):
        which, stacks = met.stacks(buf, start, stop, stretch)
        there = np.flatnonzero(np.bincount(which, minlength=len(stacks.key))).astype("i4")
        weight = np.bincount(which, weights=weight, minlength=len(stacks.key)).astype("f8")[there]
        lengths = np.diff(stacks.offsets)[there]
        made = _Part(stacks, lengths, weight, stacks.key[there], stacks.context[there], there)
    elif len(rows) and (under := _under_roots(met, stretch, buf, start, stop, weight)) is not None:
        made = under
    else:
        whole = len(ends) - (len(buf) > 0 and int(buf[-1]) != 10)
        where = c.separators(buf, 59, np.sort(np.concatenate([stop, ends[:whole]])))
        if len(other):
            where = _without(where, starts[other], ends[other])
        made = _Part.of(met.lines(buf, where, rows, stretch), weight)
    parts = [made]
    if len(other):
        lines = [bytes(text[a:b]) for a, b in zip(starts[other].tolist(), ends[other].tolist(), strict=True)]
        parts.append(_odd_lines(met.frames, lines, other))
    parts[-1].lines = len(ends)
    return parts


def _without(places: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places, in order, that are not inside of stretches, in order as well."""
    low, high = np.searchsorted(places, start), np.searchsorted(places, end)
    some = high > low
    inside = np.zeros(len(places) + 1, "i8")
    inside[low[some]] += 1
    inside[high[some]] -= 1
    left: NDArray[np.int64] = places[np.cumsum(inside[:-1]) == 0]
    return left


def _texts(pieces: c.Pieces) -> list[bytes]:
    """Frames, of pieces that end with a separator each."""
    whole = pieces.data.tobytes()
    return [whole[a : b - 1] for a, b in itertools.pairwise(pieces.offsets.tolist())]


def _under_roots(
    met: _Met,
    stretch: int,
    buf: NDArray[np.uint8],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    weight: NDArray[np.float64],
) -> _Part | None:
    """Stacks that differ in their root (a process, a container) more than below it: what stands below is looked at
    once. None where that is met only once itself, or where a root says something about the frames below it."""
    some = c.scattered(len(start))
    begin, found = _below_roots(buf, start[some])
    if not found or not c.met_again(buf, begin, stop[some], len(start), _SELDOM):
        return None
    begin, found = _below_roots(buf, start)
    if not found or (begin >= stop).any():
        return None
    root, names = c.distinct(buf, start, begin - 1)
    above = met.frames.local(names.tolist())
    if (above.said[: above.texts] & (ENTERS | SAID)).any():
        return None
    which, made = met.stacks(buf, begin, stop, stretch, below=True)
    key = keys_below(made.key[which], above.word[root])
    lengths = np.diff(made.offsets)[which] + 1
    roots = above.number[: above.texts]
    return _Part(made, lengths, weight, key, made.context[which], which, root, roots)


def _odd_lines(known: Known, lines: list[bytes], rows: NDArray[np.int64]) -> _Part:
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
        flat.extend(texts.setdefault(frame, len(texts)) for frame in frames)
        lengths.append(len(frames))
        weight.append(float(count))
    local = known.local(list(texts))
    size = np.array(lengths, "i8")
    made = _Part.of(stacked(np.array(flat, "i4"), np.cumsum(size) - size, size, local), np.array(weight, "f8"))
    made.bad, made.first_bad = len(bad), bad[0] if bad else 0
    return made


def _first_of_each(key: NDArray[np.uint64], weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """The rows where keys stand first, in order; the weights of the others are added to theirs."""
    ordered = np.sort(key)  # far quicker than finding out how
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return np.arange(len(key))
    if len(again) > len(key) >> 4:
        first, which = a.grouped(key)
        sums = np.bincount(which, weights=weight)
        kept = np.sort(first)
    else:
        again = again[np.append(True, again[1:] != again[:-1])]
        which = np.searchsorted(again, key)
        which[which == len(again)] = 0
        rows = np.flatnonzero(again[which] == key)
        which = which[rows]
        first = np.full(len(again), len(key))
        np.minimum.at(first, which, rows)
        sums = np.bincount(which, weights=weight[rows])
        only = np.ones(len(key), bool)
        only[rows] = False
        only[first] = True
        kept = np.flatnonzero(only)
    weight[first] = sums
    return kept


def _kept_rows(
    flat: NDArray[np.uint32], offsets: NDArray[np.int64], kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """(offsets, flat) of some rows, in order; where nearly all are kept they move up in `flat` itself."""
    if len(offsets) - 1 - len(kept) > _FEW:
        return a.take_rows(flat, offsets, kept)
    behind = np.flatnonzero(np.diff(kept) > 1)  # the last row of each run of rows that are kept
    end = 0
    for first, last in zip(
        kept[np.append(0, behind + 1)].tolist(), kept[np.append(behind, -1)].tolist(), strict=True
    ):
        low, high = int(offsets[first]), int(offsets[last + 1])
        if end < low:
            flat[end : end + high - low] = flat[low:high]
        end += high - low
    new = np.zeros(len(kept) + 1, "i8")
    np.cumsum(np.diff(offsets)[kept], out=new[1:])
    return new, flat[:end]


class _Table:
    """Lines read so far, and the numbers of their frames in the table to be."""

    def __init__(self, known: Known) -> None:
        self.rows = 0
        self.bad = 0
        self._known = known
        self._frames = a.FrameTable()
        self._number = np.full(1 << 10, _NONE, "u4")  # of the numbers of `known`
        self._first_bad = 0
        self._lines = 0
        self._parts: list[_Part] = []

    def add(self, part: _Part) -> None:
        """Take in some lines. Their frames get numbers in the order of the lines, whatever thread met them first."""
        if len(self._number) < len(self._known):
            more = max(len(self._known), 2 * len(self._number)) - len(self._number)
            self._number = np.concatenate([self._number, np.full(more, _NONE, "u4")])
        met = part.frames()
        for number in met[self._number[met] == _NONE].tolist():
            self._number[number] = self._frames.add(*self._known.row(number))
        if len(part.weight):
            self._parts.append(part)
        if part.bad:
            self._first_bad = self._first_bad or self._lines + part.first_bad
        self.bad += part.bad
        self.rows += len(part.weight)
        self._lines += part.lines

    def _written(self, offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The frames of all lines; the parts are let go."""
        flat = np.empty(int(offsets[-1]), "u4")

        def jobs() -> Iterator[tuple[_Part, NDArray[np.uint32]]]:
            row = 0
            self._parts.reverse()
            while self._parts:
                part = self._parts.pop()
                yield part, flat[offsets[row] : offsets[row + len(part.weight)]]
                row += len(part.weight)

        for _ in ahead(lambda job: job[0].write(self._number, job[1]), jobs()):
            pass
        return flat

    def profile(self, name: str) -> Profile:
        """The finished profile; equal stacks become one."""
        columns = [(part.lengths, part.weight, part.key, part.context) for part in self._parts]
        empty = (np.zeros(0, "i8"), np.zeros(0), np.zeros(0, "u8"), np.zeros(0, "u1"))
        lengths, weight, key, context = (np.concatenate(each) for each in zip(empty, *columns, strict=True))
        del columns
        offsets = np.zeros(self.rows + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        flat = self._written(offsets)
        notes = [f"{self.bad} {_LEFT_OUT} (the first is line {self._first_bad:,})"] if self.bad else []
        if not (weight == np.floor(weight)).all():
            notes.append("fractional counts: weights are kept as they are, sample counts are rounded up")
        kept = _first_of_each(key, weight)
        if len(kept) < len(key):
            weight, context = weight[kept], context[kept]
            offsets, flat = _kept_rows(flat, offsets, kept)
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
        return a.assemble(made, self._frames.frames(), Stacks(offsets, flat), run=run, meta=meta)


def _below_roots(buf: NDArray[np.uint8], start: NDArray[np.int64]) -> tuple[NDArray[np.int64], bool]:
    """(where what stands below the root of each line begins, whether all their roots are short ones)."""
    window = c.records(buf, start, _ROOT) == 59
    at = window.argmax(axis=1)
    return start + at + 1, bool(window[np.arange(len(at)), at].all())

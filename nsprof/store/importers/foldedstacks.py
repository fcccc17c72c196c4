"""Frames and stacks of folded text as numbers: what the text of a frame says, asked once an import, and what that
means for the stacks it stands in, by columns that stay in the processor's cache."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.kernelnames import context_of
from nsprof.model.profile import Context, FrameKind
from nsprof.store.importers import assemble as a
from nsprof.store.importers.text import KERNEL_ENTRY, kernel_dso

__all__ = ["ENTERS", "SAID", "Known", "Local", "Stacked", "keys_below", "stacked"]

_MARK = {b"_[k]": FrameKind.KERNEL, b"_[j]": FrameKind.USER, b"_[w]": FrameKind.USER, b"_[i]": FrameKind.UNKNOWN}
_DSO = re.compile(r"(.+) \((\[[^()]+\]|[^()]*\.ko[^()]*)\)$")
_WORDS = 1 << 15  # frames looked at in one go: their columns of 8 bytes stay in the processor's cache
_MIX = np.uint64(0x9E3779B97F4A7C15)

# What is said of a frame, in one byte.
_KERNEL, _USER, _SWITCHES, _NAMED = 1, 2, 4, 8  # kernel code, user code, sets the context, has a name
ENTERS, SAID = 16, 32  #: all leafward of it is kernel code; its kind is known

_Row = tuple[str, str, int, str]


def _row_of(text: bytes) -> _Row:
    """The row of a frame table for the text of a frame: its kind is that of its mark or its DSO."""
    kind = _MARK.get(text[-4:], FrameKind.UNKNOWN)
    bare = (text[:-4] if text[-4:] in _MARK else text).strip()
    name = bare.decode("utf-8", "backslashreplace") or "[unknown]"
    module = ""
    if name.endswith(")") and (found := _DSO.match(name)):
        kind, module = kernel_dso(found[2])
        name = found[1]
    return name, module, int(kind), ""


def _as_kernel(row: _Row) -> _Row:
    """The same leafward of a kernel entry function."""
    return row[0], row[1], int(FrameKind.KERNEL), ""


def _said(row: _Row) -> tuple[int, int]:
    """(what is said of a frame, the context that stacks have in which it is the leafmost to set one, or 0)."""
    name, _, kind, _ = row
    said = ENTERS if name in KERNEL_ENTRY else 0
    if kind != FrameKind.UNKNOWN:
        said |= SAID
    if kind == FrameKind.USER:
        return said | _USER, 0
    if kind not in (FrameKind.KERNEL, FrameKind.BPF, FrameKind.PROFILER):
        return said, 0
    said |= _KERNEL if name.startswith(("[unknown", "0x")) else _KERNEL | _NAMED
    context = context_of([name])
    return (said, 0) if context is Context.TASK else (said | _SWITCHES, int(context))


class Known:
    """The texts of frames met so far. Each has two numbers: 2n as it stands, 2n + 1 leafward of a kernel entry.

    May be asked from several threads.
    """

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}
        self._rows: list[_Row] = []
        self._lock = threading.Lock()
        self._said = np.zeros(1 << 10, "u1")
        self._context = np.zeros(1 << 10, "u1")
        self._word = np.zeros(1 << 10, "u8")

    def __len__(self) -> int:
        """Numbers given, two a text."""
        return 2 * len(self._rows)

    def row(self, number: int) -> _Row:
        """The row of a frame table that a number stands for."""
        row = self._rows[number >> 1]
        return _as_kernel(row) if number & 1 else row

    def local(self, texts: list[bytes]) -> Local:
        """The columns of some texts, in their order."""
        found = list(map(self._number.get, texts))
        if None in found:
            with self._lock:
                self._add([text for text in dict.fromkeys(texts) if text not in self._number])
            found = [self._number[text] for text in texts]
        number = np.array(found, "i8") * 2
        number = np.concatenate([number, number + 1])
        return Local(number, self._said[number], self._context[number], self._word[number])

    def _add(self, texts: list[bytes]) -> None:
        """Give numbers to texts that have none. Their columns are there before others can find them."""
        rows = [_row_of(text) for text in texts]
        both = [each for row in rows for each in (row, _as_kernel(row))]
        said = [_said(row) for row in both]
        first, end = len(self), len(self) + len(both)
        if end > len(self._said):
            more = np.zeros(max(end, 2 * len(self._said)) - len(self._said), "u1")
            self._said = np.concatenate([self._said, more])
            self._context = np.concatenate([self._context, more])
            self._word = np.concatenate([self._word, more.astype("u8")])
        self._said[first:end] = [each for each, _ in said]
        self._context[first:end] = [each for _, each in said]
        self._word[first:end] = np.array([hash(row) for row in both], "i8").view("u8")
        self._rows += rows
        self._number.update(zip(texts, range(first >> 1, end >> 1), strict=True))


@dataclass(slots=True)
class Local:
    """Some texts, numbered from 0 here and, leafward of a kernel entry, from their count on: of each its number in
    `Known`, what is said of it, the context that it sets, and a word for the keys of stacks."""

    number: NDArray[np.int64]
    said: NDArray[np.uint8]
    context: NDArray[np.uint8]
    word: NDArray[np.uint64]

    @property
    def texts(self) -> int:
        """How many texts."""
        return len(self.number) // 2

    def and_then(self, other: Local) -> Local:
        """These texts and some more."""
        columns = []
        for name in ("number", "said", "context", "word"):
            mine, theirs = getattr(self, name), getattr(other, name)
            (a, b), (x, y) = np.split(mine, 2), np.split(theirs, 2)
            columns.append(np.concatenate([a, x, b, y]))
        return Local(*columns)


@dataclass(slots=True)
class Stacked:
    """Stacks, leaf first: stack i is flat[offsets[i]:offsets[i+1]], positions in `numbers` or, where that is None,
    numbers of `Known` themselves; a key that equal ones share, wherever they stand in the input; their contexts; the
    numbers of `Known` that are met, in the order of the input: frames as they stand, then those in kernel code."""

    flat: NDArray[np.int32]
    offsets: NDArray[np.int64]
    key: NDArray[np.uint64]
    context: NDArray[np.uint8]
    met: NDArray[np.int64]
    numbers: NDArray[np.int64] | None = None

    def by_known(self) -> Stacked:
        """The same as numbers of `Known`."""
        if self.numbers is None:
            return self
        flat = self.numbers.astype("i4")[self.flat]
        return Stacked(flat, self.offsets, self.key, self.context, self.met)

    def and_then(self, other: Stacked) -> Stacked:
        """These and some others, both as numbers of `Known`."""
        return Stacked(
            np.concatenate([self.flat, other.flat]),
            np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]),
            np.concatenate([self.key, other.key]),
            np.concatenate([self.context, other.context]),
            np.concatenate([self.met, other.met]),
        )


def stacked(
    which: NDArray[np.int32],
    begin: NDArray[np.int64],
    lengths: NDArray[np.int64],
    local: Local,
    *,
    below: bool = False,
) -> Stacked:
    """Stack i is which[begin[i]:begin[i] + lengths[i]], root first, with at least one frame each.

    Equal stacks share a key whether they are given whole or, as `below`, without the root that `keys_below` adds.
    """
    offsets = np.zeros(len(lengths) + 1, "i8")
    np.cumsum(lengths, out=offsets[1:])
    out = Stacked(
        np.empty(int(offsets[-1]), "i4"),
        offsets,
        np.empty(len(lengths), "u8"),
        np.empty(len(lengths), "u1"),
        local.number[: local.texts],
        local.number,
    )
    if not len(lengths):
        return out
    factor = _factors(int(lengths.max()))
    last = begin + lengths - 1
    contexts = _Contexts(local)
    for first, stop in a.spans(offsets, _WORDS):
        low, high = int(offsets[first]), int(offsets[stop])
        at = offsets[first : stop + 1] - low
        size = lengths[first:stop]
        depth = np.arange(high - low)
        depth -= np.repeat(at[:-1], size)  # 0 is the leaf
        code = np.repeat(last[first:stop], size)
        code -= depth
        code = which[code].astype("i8")
        out.context[first:stop] = contexts.of(code, at, size)
        out.flat[low:high] = code
        word = local.word[code]
        root = word[at[1:] - 1]
        word *= factor[depth]
        if not below:
            word[at[1:] - 1] = 0
        key = np.add.reduceat(word, at[:-1])
        out.key[first:stop] = key if below else keys_below(key, root)
    out.met = np.concatenate([out.met, local.number[contexts.met()]])
    return out


def keys_below(key: NDArray[np.uint64], root: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keys of stacks out of those of what stands below their roots, and the words of these."""
    key = (key ^ key >> np.uint64(31)) * _MIX
    return (key ^ key >> np.uint64(29)) ^ root


def _factors(depth: int) -> NDArray[np.uint64]:
    """A number for every depth. Sums of words times these are the same for two different stacks with a probability of
    about 2**-63: the words are Python's hashes, which differ from process to process."""
    number = np.arange(1, depth + 1, dtype="u8") * _MIX
    number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return number ^ number >> np.uint64(31)


class _Contexts:
    """Finds the frames leafward of kernel entry functions and the contexts of stacks, some stacks at a time."""

    def __init__(self, local: Local) -> None:
        texts = local.texts
        self._local = local
        self._marks = (local.said[:texts] & ENTERS) | (local.said[texts:] & _SWITCHES)
        self._any = bool(self._marks.any())
        self._said = bool((local.said[:texts] & SAID).any())
        self._met = np.zeros(2 * texts, bool)

    def met(self) -> NDArray[np.int64]:
        """The numbers of frames met leafward of a kernel entry, in order."""
        texts = self._local.texts
        return np.flatnonzero(self._met[texts:]) + texts

    def of(self, code: NDArray[np.int64], at: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The context of each stack code[at[i]:at[i+1]], of `size` frames, as `kernelnames.context_of` has it. Frames
        leafward of their stack's outermost kernel entry function, and that one, get their other number."""
        context = np.zeros(len(size), "u1")
        if self._any:
            marks = self._marks[code]
            hits = np.flatnonzero(marks)
            marks = marks[hits]
            entry = hits[marks & ENTERS > 0]
            before = np.searchsorted(entry, at)  # how many of them stand before each stack
            row = np.flatnonzero(before[1:] > before[:-1])
            if len(row):
                outermost = entry[before[row + 1] - 1]  # leaf first: the last one of a stack
                self._enter(code, size, row, outermost + 1 - at[row])
                context[row] = Context.TASK
                last = np.full(len(size), -1)
                last[row] = outermost
                hits = hits[marks & _SWITCHES > 0]
                hits = hits[hits <= last[np.searchsorted(at, hits, side="right") - 1]]
                self._switch(context, code, at, hits)
        if not self._said:
            return context
        # Marks and DSOs say of other frames as well what they are.
        said = self._local.said[code]
        every = np.bitwise_or.reduceat(said, at[:-1])
        kernel = every & _KERNEL > 0
        context = np.where(kernel, np.uint8(Context.TASK), np.uint8(Context.UNKNOWN))
        context[~kernel & (every & _USER > 0)] = Context.USER
        self._switch(context, code, at, np.flatnonzero((said & _SWITCHES) > 0))
        context[kernel & (every & _NAMED == 0)] = Context.UNKNOWN
        return context

    def _enter(
        self, code: NDArray[np.int64], size: NDArray[np.int64], row: NDArray[np.int64], inside: NDArray[np.int64]
    ) -> None:
        """Give so many frames of some stacks, from the leaf on, their other number."""
        length = np.zeros(2 * len(size), "i8")
        length[1::2] = size
        length[2 * row] = inside
        length[1::2] -= length[0::2]
        shift = np.zeros(len(length), "i8")
        shift[0::2] = self._local.texts
        code += np.repeat(shift, length)
        self._met[code] = True

    def _switch(
        self, context: NDArray[np.uint8], code: NDArray[np.int64], at: NDArray[np.int64], hits: NDArray[np.int64]
    ) -> None:
        """Set the contexts that frames at some places set, the leafmost of each stack."""
        row = np.searchsorted(at, hits, side="right") - 1
        leafmost = np.ones(len(hits), bool)
        np.not_equal(row[1:], row[:-1], out=leafmost[1:])
        hits = hits[leafmost]
        context[row[leafmost]] = self._local.context[code[hits]]

"""Folded stacks: `root;caller;leaf count`, one a line, as stackcollapse-*.pl, bcc, py-spy and inferno write them.

A line costs two dictionary look-ups: the text before its last frame names a node of a tree of frames (most lines
share it with others), the last frame is looked up by itself. Stacks are read off the tree at the end, by numpy.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, FrameKind, Frames, Profile, Run
from nsprof.store.importers import assemble as a
from nsprof.store.importers.text import KERNEL_ENTRY, kernel_dso, to_utf8, windows

__all__ = ["TreeTables", "finish", "import_folded", "looks_like", "to_utf8"]

_LINE = re.compile(rb"\S.*[; ]?.* [0-9]+(?:\.[0-9]*)?$")
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?$")
_MEMO_BYTES = 64 << 20
_MEMO_ROWS = 300_000
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


class TreeTables:
    """The tree: node n has a parent and a frame text. Node 0 is the root above all stacks."""

    def __init__(self, memo_bytes: int = _MEMO_BYTES) -> None:
        self.memo_bytes = memo_bytes
        self.texts: dict[bytes, int] = {}
        self.children: dict[int, int] = {}
        self.parent = array("I", [0])
        self.frame = array("I", [0])
        self.prefixes: dict[bytes, int] = {b"": 0}
        self.prefix_bytes = 0

    def child(self, parent: int, text: bytes) -> int:
        """The node of a frame called from another."""
        frame = self.texts.setdefault(text, len(self.texts))
        key = parent << 32 | frame
        node = self.children.get(key)
        if node is None:
            node = self.children[key] = len(self.parent)
            self.parent.append(parent)
            self.frame.append(frame)
        return node

    def path(self, text: bytes) -> int:
        """The node of a prefix `a;b;c`, remembered together with the prefixes on the way."""
        todo: list[bytes] = []
        at = text
        node = self.prefixes.get(at)
        while node is None:
            at, semicolon, frame = at.rpartition(b";")
            todo.append(frame)
            node = self.prefixes.get(at) if semicolon else 0
            if len(todo) > 64 and node is None:  # deep and new: from the root, without remembering every prefix
                todo = text.split(b";")[::-1]
                if len(todo) > _MAX_DEPTH:
                    todo = todo[-_MAX_DEPTH:]
                node, at = 0, text
                break
        if self.prefix_bytes > self.memo_bytes:
            self.prefixes = {b"": 0}
            self.prefix_bytes = 0
        remember = at is not text
        for frame in reversed(todo):
            node = self.child(node, frame)
            if remember:
                at = at + b";" + frame if at else frame
                self.prefixes[at] = node
                self.prefix_bytes += len(at) + 120
        if not remember:
            self.prefixes[text] = node
            self.prefix_bytes += len(text) + 120
        return node

    def stacks(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """(frames leaf first, offsets) of nodes, by walking up from all of them at once."""
        parent = np.frombuffer(self.parent, "u4").astype("i8")
        frame = np.frombuffer(self.frame, "u4")
        depth = _depths(parent)
        lengths = depth[nodes]
        offsets = np.zeros(len(nodes) + 1, "i8")
        np.cumsum(lengths, out=offsets[1:])
        flat = np.zeros(int(offsets[-1]), "u4")
        here = nodes.astype("i8").copy()
        where = offsets[:-1].copy()
        rows = np.flatnonzero(here > 0)
        while len(rows):
            flat[where[rows]] = frame[here[rows]]
            where[rows] += 1
            here[rows] = parent[here[rows]]
            rows = rows[here[rows] > 0]
        return flat, offsets


def _depths(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distance from node 0 of every node, by pointer doubling."""
    depth = (np.arange(len(parent)) > 0).astype("i8")
    jump = parent.copy()
    while (jump > 0).any():
        depth = depth + depth[jump]
        jump = jump[jump]
    return depth


def import_folded(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, whether lines had to be left out) of folded stacks.

    Equal stacks are added up; fractional counts keep their weight. Frames marked `_[k]` (stackcollapse --kernel), and
    those leafward of a known kernel entry function, are kernel frames.
    """
    tree = TreeTables(max(_MEMO_BYTES, len(buf) // 2))
    lines = _Lines(tree)
    nodes: list[NDArray[np.int64]] = []
    weights: list[NDArray[np.float64]] = []
    for window in windows(buf, b"\n"):
        node, weight = lines.add(window.split(b"\n"))
        nodes.append(node)
        weights.append(weight)
    left_out = lines.bad
    at = np.concatenate(nodes) if nodes else np.zeros(0, "u4")
    weight_column = np.concatenate(weights) if weights else np.zeros(0)
    if not len(at) and not left_out:
        raise ProfileFormatError(f"{name}: no folded stacks in it")
    notes = [f"{left_out} {_LEFT_OUT}"] if left_out else []
    distinct, inverse = np.unique(at, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=weight_column, minlength=len(distinct))
    profile = finish(tree, distinct.astype("i8"), total.astype("f8"), name=name, notes=notes)
    return profile, bool(left_out)


class _Lines:
    """Reads lines: what stands before the last semicolon is a node of the tree, behind it stand a frame and a number.

    Nodes and frames are remembered by their text, so that a line costs two cuts and two look-ups; which child of the
    node that makes is found for distinct pairs only.
    """

    def __init__(self, tree: TreeTables) -> None:
        self.tree = tree
        self.bad = 0
        self._leaves: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._repeated: bool | None = None

    def add(self, lines: list[bytes]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(node, weight) of the distinct stacks of some lines; lines that are none are counted in `bad`."""
        times = np.ones(1)
        if self._repeated is not False:
            # Logs of single samples repeat their lines: those are counted first, in C.
            counted = Counter(lines)
            self._repeated = len(counted) * 2 < len(lines)
            lines, times = list(counted), np.fromiter(counted.values(), "f8", count=len(counted))
        parents, leaves, counts = self._split(lines)
        weight = self._numbers(lines, counts) * times
        parent = np.array(parents, "i8")
        good = np.flatnonzero((parent >= 0) & ~np.isnan(weight))
        pair = parent[good] << 32 | np.array(leaves, "i8")[good]
        distinct, inverse = np.unique(pair, return_inverse=True)
        total = np.bincount(inverse.ravel(), weights=weight[good], minlength=len(distinct))
        child, names = self.tree.child, self._names
        made = [child(each >> 32, names[each & 0xFFFFFFFF]) for each in distinct.tolist()]
        return np.array(made, "i8"), total.astype("f8")

    def _split(self, lines: list[bytes]) -> tuple[list[int], list[int], list[bytes]]:
        """(node above or -1, leaf number, count as text) of every line; -1 is a remark or empty."""
        tree, leaves = self.tree, self._leaves
        prefixes = tree.prefixes
        parents: list[int] = []
        numbers: list[int] = []
        counts: list[bytes] = []
        add, number_of, count_of = parents.append, numbers.append, counts.append
        for line in lines:
            stack, _, count = line.rpartition(b" ")
            above, _, text = stack.rpartition(b";")
            parent = prefixes.get(above)
            leaf = leaves.get(text)
            if parent is None or leaf is None:
                if not line.strip() or line.startswith((b"#", b"//")):
                    parent, leaf, count = -1, 0, b"0"
                elif not _NUMBER.match(count) and not _NUMBER.match(line.strip().rpartition(b" ")[2]):
                    parent, leaf = 0, 0  # no number: told from a bad one later, and not worth a node
                else:
                    parent, leaf = tree.path(above), self._leaf(text)
                    prefixes = tree.prefixes
            add(parent)
            number_of(leaf)
            count_of(count)
        return parents, numbers, counts

    def _leaf(self, text: bytes) -> int:
        number = self._leaves.get(text)
        if number is None:
            if len(self._leaves) > _MEMO_ROWS:
                self._leaves.clear()
            number = self._leaves[text] = len(self._names)
            self._names.append(text)
        return number

    def _numbers(self, lines: list[bytes], counts: list[bytes]) -> NDArray[np.float64]:
        """The counts as numbers; nan, and one more in `bad`, for what is none."""
        if b"".join(counts).isdigit() and max(map(len, counts)) < 40:
            with contextlib.suppress(ValueError):  # an empty one hides in the joined text: found one by one below
                return np.array(list(map(int, counts)), "f8")
        out = np.full(len(counts), np.nan)
        for row, count in enumerate(counts):
            if len(count) < 40 and _NUMBER.match(count) and lines[row].rpartition(b" ")[0].strip():
                out[row] = float(count)
            elif lines[row].strip() and not lines[row].startswith((b"#", b"//")):
                self.bad += 1
        return out


def finish(
    tree: TreeTables,
    nodes: NDArray[np.int64],
    weight: NDArray[np.float64],
    *,
    name: str,
    notes: list[str],
) -> Profile:
    """A profile of stacks given as nodes of a tree, one row each."""
    flat, offsets = tree.stacks(nodes)
    frames, flat, named = kinds_of(list(tree.texts), flat, offsets)
    stacks, stack = a.unique_stacks(flat, offsets)
    whole = weight == np.floor(weight)
    if not whole.all():
        notes.append("fractional counts: weights are kept as they are, sample counts are rounded up")
    made = a.Rows(
        event=np.zeros(len(nodes), "u1"),
        stack=stack,
        weight=weight,
        count=np.ceil(np.clip(weight, 0, 2**53)).astype("u8"),
        events=[Event("samples", "count")],
    )
    return a.assemble(
        made,
        frames,
        stacks,
        run=Run(scenario=Path(name).name, losses=a.no_losses()),
        meta=a.source_meta("folded", name, notes),
        named=named,
    )


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
    kernel = kinds == FrameKind.KERNEL
    inferred = np.zeros(len(flat), bool)
    if len(flat) and entry.any():
        # Rows are leaf first: everything before the last entry function of a row is leafward of it.
        at = np.where(entry[flat], np.arange(len(flat)), -1)
        full = np.diff(offsets) > 0
        last = np.full(len(offsets) - 1, -1, "i8")
        last[full] = np.maximum.reduceat(at, offsets[:-1][full])
        inferred = np.arange(len(flat)) <= np.repeat(last, np.diff(offsets))
    table = a.FrameTable()
    own = np.array([table.add(n, m, int(k)) for n, m, k in zip(names, modules, kinds, strict=True)], "u4")
    new = own[flat] if len(flat) else flat
    promote = np.unique(flat[inferred & ~kernel[flat]]) if len(flat) else flat
    if len(promote):
        as_kernel = own.copy()
        for index in promote.tolist():
            as_kernel[index] = table.add(names[index], modules[index], FrameKind.KERNEL)
        new = np.where(inferred, as_kernel[flat], new)
    named = np.array([not n.startswith(("[unknown", "0x")) for n, *_ in table.rows], bool)
    return table.frames(), new.astype("u4"), named

"""Where each frame goes: a FlameTree becomes rectangles, all in numpy.

Widths are costs. In a differential graph a frame's width is its cost on one side (`size_by`), and frames that exist
on the other side only keep a width of their own there, so that nothing vanishes; see docs/flamegraph.md. Frames
narrower than the threshold are folded into one "narrower frames" sibling, so every sum stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.results import FlameTree

__all__ = ["NARROW", "NARROW_NAME", "SIZE_BY", "Drawing", "Folded", "fold", "inclusive", "judged", "layout"]

SIZE_BY = ("new", "base", "both")
#: `kind` of the sibling that stands for frames too narrow to keep.
NARROW = 255
NARROW_NAME = "(narrower frames)"
#: Normal quantile of 99 %: a change within so many standard deviations of the ticks' own counting noise is grey.
NOISE_Z = 2.576

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A laid-out tree in depth-first order; all columns have one length.

    `source` is the node's number in `tree`; `x` and `width` are costs from the left edge; `cost_*` and `ticks_*` are
    inclusive. `shade` is the relative change (new - base) / max(new, base) in -1..1, 0 for a plain graph; `grey`
    marks changes without evidence, `gone` frames without any cost on the new side, `added` those without any on
    the base side.
    """

    tree: FlameTree
    source: Ints
    depth: Ints
    parent: Ints
    x: Floats
    width: Floats
    cost_new: Floats
    cost_base: Floats
    ticks_new: Floats
    ticks_base: Floats
    shade: Floats
    grey: NDArray[np.bool_]
    gone: NDArray[np.bool_]
    added: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.x)

    @property
    def total(self) -> float:
        """Width of the root, as a cost."""
        return float(self.width[0]) if len(self.width) else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A tree whose narrow frames were put together: `frames` of them, holding `share` of the total width.

    `threshold` is the least width kept, as a share of the total.
    """

    tree: FlameTree
    frames: int
    share: float
    threshold: float


def _depths(parent: Ints) -> Ints:
    """Distance to the root of every node, by pointer jumping: log2(depth) passes over the columns."""
    depth = (parent >= 0).astype(np.int64)
    up = parent.astype(np.int64)
    while True:
        live = np.flatnonzero(up >= 0)
        if not len(live):
            return depth
        depth[live] += depth[up[live]]
        up[live] = up[up[live]]


def _levels(depth: Ints) -> list[Ints]:
    """Node numbers level by level."""
    order = np.argsort(depth.astype(np.uint16) if len(depth) and depth.max() < 65536 else depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(depth) else []


def _sum_up(levels: list[Ints], parent: Ints, column: Floats) -> Floats:
    total = column.astype(np.float64, copy=True)
    place = np.empty(len(column), np.int64)
    for level in levels:
        place[level] = np.arange(len(level))
    for upper, lower in zip(reversed(levels[:-1]), reversed(levels[1:]), strict=True):
        total[upper] += np.bincount(place[parent[lower]], total[lower], len(upper))
    return total


def inclusive(parent: NDArray[np.int32], *columns: Floats) -> tuple[Floats, ...]:
    """Each column summed over the node and everything below it."""
    up = np.asarray(parent, np.int64)
    levels = _levels(_depths(up))
    return tuple(_sum_up(levels, up, column) for column in columns)


def _own_width(tree: FlameTree, new: Floats, base: Floats, size_by: str) -> Floats:
    if not tree.differential:
        return np.asarray(tree.self_new, np.float64)
    if size_by == "both":
        return np.maximum(tree.self_new, tree.self_base)
    if size_by == "base":
        return tree.self_base + np.where(base == 0, tree.self_new, 0.0)
    return tree.self_new + np.where(new == 0, tree.self_base, 0.0)


def judged(tree: FlameTree) -> bool:
    """Whether the runs allowed a verdict on any function or path."""
    return tree.shown is not None or any(found.get("verdict") in ("+", "-", "~") for found in tree.findings.values())


def _evidence(tree: FlameTree) -> Floats | None:
    """Per node: its own delta if its function's change was found significant, else 0; None without any verdict
    (with few runs a side there are intervals, but no function can be judged)."""
    if not judged(tree):
        return None
    good = np.zeros(len(tree.strings), np.bool_)
    for index, text in enumerate(tree.strings):
        good[index] = tree.findings.get(text, {}).get("verdict") in ("+", "-")
    return np.where(good[tree.name], tree.self_new - tree.self_base, 0.0)


def _grey(tree: FlameTree, sums: dict[str, Floats]) -> NDArray[np.bool_]:
    """Where the change is not evidenced.

    Two tests, either greys: the change is significant neither by the path's inclusive cost (`shown`, from the runs)
    nor by at least half of it from functions whose own change is (`findings`); and the change is within the counting
    noise of its own ticks. The second alone where there are no verdicts; neither where nothing was sampled.
    """
    delta = sums["new"] - sums["base"]
    grey = np.zeros(len(delta), np.bool_)
    if "evidence" in sums:
        grey |= sums["evidence"] * np.sign(delta) < 0.5 * np.abs(delta)
        if tree.shown is not None:
            grey &= ~tree.shown
    ticks_new, ticks_base = sums["ticks_new"][0], sums["ticks_base"][0]
    if tree.measure.kind == "sampled" and (ticks_new or ticks_base):
        # One tick stands for total/ticks; a count n has variance n, so a cost c has variance c x cost of a tick.
        tick_new = sums["new"][0] / ticks_new if ticks_new else 0.0
        tick_base = sums["base"][0] / ticks_base if ticks_base else 0.0
        noise = np.sqrt(sums["new"] * tick_new + sums["base"] * tick_base)
        grey |= np.abs(delta) < NOISE_Z * noise
    return grey


def _threshold(width: Floats, share: float, limit: int) -> float:
    """The least width to keep: `share` of the total, or more where over `limit` frames would be left."""
    if not len(width):
        return 0.0
    least = float(width[0]) * share
    if np.count_nonzero(width >= least) > limit:
        least = max(least, float(np.partition(width, len(width) - limit)[len(width) - limit]))
    return least


def _widths(tree: FlameTree, levels: list[Ints], parent: Ints, size_by: str) -> tuple[Floats, Floats, Floats]:
    """Inclusive new, base and width of every node."""
    new = _sum_up(levels, parent, np.asarray(tree.self_new, np.float64))
    if not tree.differential:
        return new, np.zeros(len(new)), new
    base = _sum_up(levels, parent, np.asarray(tree.self_base, np.float64))
    return new, base, _sum_up(levels, parent, _own_width(tree, new, base, size_by))


def fold(tree: FlameTree, *, size_by: str = "new", min_share: float = 0.0, limit: int = 1 << 30) -> Folded:
    """Put frames narrower than `min_share` of the root together, one "narrower frames" sibling a parent.

    At most about `limit` frames stay (ties at the threshold may add a few) beside those siblings. Every inclusive
    cost that stays is exactly what it was. Frames without any cost disappear.
    """
    parent = np.asarray(tree.parent, np.int64)
    levels = _levels(_depths(parent))
    new, base, width = _widths(tree, levels, parent, size_by)
    least = _threshold(width, min_share, limit)
    keep = (width >= least) & (width > 0)
    if len(keep):
        keep[0] = True
    kept = np.flatnonzero(keep)
    # The topmost folded frames (their parent stays, they do not) carry the cost of everything below them.
    edge = np.flatnonzero(~keep & (width > 0) & np.where(parent >= 0, keep[parent], False))
    holders, slot = np.unique(parent[edge], return_inverse=True)
    narrow = len(holders)

    def column(own: NDArray[Any], full: Floats | None = None) -> NDArray[Any]:
        tail = np.bincount(slot, full[edge], narrow) if full is not None and narrow else np.zeros(narrow)
        return np.concatenate([own[kept], tail.astype(own.dtype)])

    number = np.cumsum(keep) - 1
    up = np.where(parent[kept] >= 0, number[parent[kept]], -1)
    name, kind = column(tree.name), column(tree.kind)
    name[len(kept) :] = len(tree.strings)
    kind[len(kept) :] = NARROW
    module = column(tree.module)
    module[len(kept) :] = len(tree.strings) + 1
    smaller = replace(
        tree,
        strings=(*tree.strings, NARROW_NAME, ""),
        name=name,
        module=module,
        kind=kind,
        parent=np.concatenate([up, number[holders]]).astype(np.int32),
        self_new=column(tree.self_new, new),
        self_base=column(tree.self_base, base),
        samples_new=column(tree.samples_new, _sum_up(levels, parent, np.asarray(tree.samples_new, np.float64))),
        samples_base=column(tree.samples_base, _sum_up(levels, parent, np.asarray(tree.samples_base, np.float64))),
    )
    if tree.shown is not None:
        smaller = replace(smaller, shown=column(tree.shown))
    total = float(width[0]) if len(width) else 0.0
    gone = int(np.count_nonzero(~keep & (width > 0)))
    return Folded(smaller, gone, float(width[edge].sum()) / total if total else 0.0, least / total if total else 0.0)


def layout(tree: FlameTree, *, size_by: str = "new") -> Drawing:
    """Totals, colours and positions. `size_by` is one of SIZE_BY (no matter in a plain graph).

    Siblings are sorted by name, so that two graphs can be compared by eye; "narrower frames" come last.
    """
    parent = np.asarray(tree.parent, np.int64)
    levels = _levels(_depths(parent))
    new, base, width = _widths(tree, levels, parent, size_by)
    sums = {"new": new, "base": base}
    sums["ticks_new"] = _sum_up(levels, parent, np.asarray(tree.samples_new, np.float64))
    sums["ticks_base"] = _sum_up(levels, parent, np.asarray(tree.samples_base, np.float64))
    evidence = _evidence(tree) if tree.differential else None
    if evidence is not None:
        sums["evidence"] = _sum_up(levels, parent, evidence)
    grey = _grey(tree, sums) if tree.differential else np.zeros(len(width), np.bool_)
    rank = np.empty(len(tree.strings), np.int64)
    rank[sorted(range(len(tree.strings)), key=tree.strings.__getitem__)] = np.arange(len(tree.strings))
    order_key = np.where(tree.kind == NARROW, len(rank), rank[tree.name]) if len(parent) else np.zeros(0, np.int64)
    depth, x, place = _positions(parent, width, order_key)
    put = np.empty(len(parent), np.int64)
    put[place] = np.arange(len(parent))
    top = np.maximum(new, base)
    shade = np.divide(new - base, top, out=np.zeros(len(top)), where=top > 0)
    return Drawing(
        tree=tree,
        source=put,
        depth=depth[put],
        parent=np.where(parent[put] >= 0, place[parent[put]], -1),
        x=x[put],
        width=width[put],
        cost_new=new[put],
        cost_base=base[put],
        ticks_new=sums["ticks_new"][put],
        ticks_base=sums["ticks_base"][put],
        shade=shade[put] if tree.differential else np.zeros(len(put)),
        grey=grey[put],
        gone=((new == 0) & (base > 0))[put] & tree.differential,
        added=((base == 0) & (new > 0))[put] & tree.differential,
    )


def _positions(parent: Ints, width: Floats, order_key: Ints) -> tuple[Ints, Floats, Ints]:
    """Depth, left edge and depth-first number of every node; siblings in the order of `order_key`."""
    depth = _depths(parent)
    levels = _levels(depth)
    size = _sum_up(levels, parent, np.ones(len(parent))).astype(np.int64)
    x = np.zeros(len(parent))
    place = np.zeros(len(parent), np.int64)
    for unsorted in levels[1:]:
        level = unsorted[np.lexsort((order_key[unsorted], place[parent[unsorted]]))]
        up = parent[level]
        first = np.concatenate([[True], up[1:] != up[:-1]])
        group = np.cumsum(first) - 1
        start = np.flatnonzero(first)
        before = np.concatenate([[0.0], np.cumsum(width[level])[:-1]])
        ahead = np.concatenate([[0], np.cumsum(size[level])[:-1]])
        x[level] = x[up] + before - before[start][group]
        place[level] = place[up] + 1 + ahead - ahead[start][group]
    return depth, x, place

"""Call trees for flame graphs, plain and differential, widths in unit cost.

Trees are merged level by level with numpy, never path by path: 100,000 stacks are some 100 array operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.comparing import compare, sides_of
from nsprof.analyse.filters import Filter
from nsprof.analyse.flame_shown import shown_paths
from nsprof.analyse.grouping import group
from nsprof.analyse.selection import HOP_KINDS, Question, View, sums, view
from nsprof.analyse.stacks import Functions, StackTable, function_table, interrupt_cut, row_categories, stack_table
from nsprof.model.profile import FrameKind, Profile
from nsprof.model.results import FlameTree, Measure

__all__ = ["flame", "flame_diff"]

UNKNOWN_NAME = "[no stack]"


def flame(
    profile: Profile,
    *,
    scenario: str | None = None,
    runs: Sequence[int] | None = None,
    event: str | None = None,
    per: str | None = None,
    by: str | None = None,
    where: Filter | None = None,
    reverse: bool = False,
    join_contexts: bool = False,
) -> FlameTree:
    """The call tree of one scenario; arguments as in `report`.

    `by` puts one node a namespace, device, ... between the root and the stacks. `reverse` starts at the leaves, so
    that a function's callers hang above it. A softirq or hardirq is a tower of its own, cut off from whatever it
    interrupted, as totals are; `join_contexts` leaves the stacks whole.
    """
    chosen = view(profile, scenario=scenario, runs=runs, event=event, per=per, where=where, hop=by in HOP_KINDS)
    functions, maps = function_table([profile.frames])
    table = stack_table(profile, maps[0], len(functions), join_contexts=join_contexts)
    paths = [_paths(chosen, table, maps[0], by, reverse=reverse, join_contexts=join_contexts)]
    return _tree(paths, functions, chosen.measure, title=chosen.title, notes=chosen.notes)


def flame_diff(
    base: Profile,
    new: Profile,
    *,
    base_scenario: str | None = None,
    new_scenario: str | None = None,
    event: str | None = None,
    per: str | None = None,
    by: str | None = None,
    where: Filter | None = None,
    reverse: bool = False,
    join_contexts: bool = False,
    min_effect: float | str = 0.0,
    force: bool = False,
) -> FlameTree:
    """The call tree of both sides in one, each node with its cost on either; arguments as in `diff`.

    `findings` holds each function's verdict, q and interval. Raises ComparisonError as `diff` does.
    """
    asked = Question(base_scenario, new_scenario, event, per, by, where, join_contexts, force)
    sides = sides_of(base, new, asked)
    compared = compare(sides, by=by if by != "run" else None, min_effect=min_effect)
    paths = [
        _paths(v, t, m, by, reverse=reverse, join_contexts=join_contexts)
        for v, t, m in zip(sides.views, sides.tables, sides.maps, strict=True)
    ]
    findings = {
        row.name: {
            "verdict": row.verdict,
            "q": None if math.isnan(row.q) else row.q,
            "low": row.interval.low if row.interval else None,
            "high": row.interval.high if row.interval else None,
            "delta": row.delta,
            "status": row.status,
            "skid_share": row.skid_share,
        }
        for row in compared.functions
    }
    return _tree(
        paths,
        sides.functions,
        sides.measure,
        title=sides.titles[1],
        base_title=sides.titles[0],
        notes=compared.warnings + compared.notes,
        findings=findings,
        views=sides.views,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """Weighted paths of names, root first, in compressed rows; names from `extra` count down from -1."""

    offsets: NDArray[np.int64]
    names: NDArray[np.int32]
    cost: NDArray[np.float64]
    samples: NDArray[np.float64]
    extra: tuple[str, ...]
    of_row: NDArray[np.int64]  # which path each row of the view is


def _paths(
    chosen: View,
    table: StackTable,
    frame_function: NDArray[np.int64],
    by: str | None,
    *,
    reverse: bool,
    join_contexts: bool,
) -> _Paths:
    """One path a distinct (group, stack) of a view."""
    profile = chosen.profile
    stack = chosen.column("stack")
    if by:
        split = group(chosen, by, row_categories(chosen, table))
        number, labels = split.number, split.labels
    else:
        number, labels = np.zeros(len(stack), "i8"), ()
    empty = table.leaf[stack] < 0
    pseudo = np.where(empty, np.where(chosen.column("context") == 1, 1, 2), 0)
    code = (number * 3 + pseudo) * (len(profile.stacks) + 1) + stack
    distinct, inverse = np.unique(code, return_inverse=True)
    share = chosen.cost / len(chosen.runs)
    cost = sums(inverse, share, len(distinct))
    samples = sums(inverse, chosen.count, len(distinct))
    which, stacks = np.divmod(distinct, len(profile.stacks) + 1)
    groups, pseudos = np.divmod(which, 3)
    _, _, cut = interrupt_cut(profile)
    lengths = np.diff(profile.stacks.offsets)[stacks] if join_contexts else cut[stacks] + 1
    lengths = np.where(pseudos > 0, 0, lengths)
    body = frame_function.astype("i4")[_ragged(profile, stacks, lengths, reverse)]
    extra = ("[user]", UNKNOWN_NAME, *labels)
    heads = [-3 - groups] if by else []
    names, offsets = _with_heads(body, lengths, heads, np.where(pseudos > 0, -pseudos, 0))
    return _Paths(offsets, names, cost, samples, extra, inverse)


def _ragged(
    profile: Profile, stacks: NDArray[np.int64], lengths: NDArray[np.int64], reverse: bool
) -> NDArray[np.uint32]:
    """The first `length` frames of each stack, leaf first if `reverse`, else turned round; one after the other."""
    at = _inside(lengths)
    if not reverse:
        np.subtract(np.repeat((lengths - 1).astype("i4"), lengths), at, out=at)
    at += np.repeat(profile.stacks.offsets[stacks].astype("i4"), lengths)
    return profile.stacks.frames[at]


def _inside(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """0, 1, ... length - 1 for each length, one after the other."""
    inside = np.arange(int(lengths.sum()), dtype="i4")
    inside -= np.repeat((np.cumsum(lengths) - lengths).astype("i4"), lengths)
    return inside


def _with_heads(
    body: NDArray[np.int32], lengths: NDArray[np.int64], heads: Sequence[NDArray[np.int64]], tail: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Rows with `heads` before and, where `tail` is not 0, that name after them."""
    full = lengths + len(heads) + (tail != 0)
    offsets = np.zeros(len(lengths) + 1, "i8")
    np.cumsum(full, out=offsets[1:])
    if len(body) == offsets[-1]:
        return body, offsets
    names = np.empty(int(offsets[-1]), "i4")
    for i, head in enumerate(heads):
        names[offsets[:-1] + i] = head
    inside = _inside(lengths)
    inside += np.repeat((offsets[:-1] + len(heads)).astype("i4"), lengths)
    names[inside] = body
    with_tail = np.flatnonzero(tail)
    names[offsets[1:][with_tail] - 1] = tail[with_tail]
    return names, offsets


def _tree(
    sides: Sequence[_Paths],
    functions: Functions,
    measure: Measure,
    *,
    title: str,
    base_title: str = "",
    notes: tuple[str, ...] = (),
    findings: dict[str, dict[str, Any]] | None = None,
    views: Sequence[View] = (),
) -> FlameTree:
    """Merge one side (plain) or base and new (differential) into one tree."""
    # Group labels of both sides become one list of names.
    extra = {label: i for i, label in enumerate(dict.fromkeys(x for side in sides for x in side.extra))}
    rows = []
    for side in sides:
        to_common = np.array([-1 - extra[x] for x in side.extra], "i4")
        row, pseudo = side.names, np.flatnonzero(side.names < 0)
        if len(pseudo):
            row = row.copy()
            row[pseudo] = to_common[-1 - row[pseudo]]
        rows.append(row)
    names = np.concatenate(rows)
    shift = np.cumsum([0, *(len(r) for r in rows)])
    offsets = np.concatenate([[0], *(s.offsets[1:] + shift[i] for i, s in enumerate(sides))]).astype("i8")
    node_name, parent, end = _merge(names, offsets)
    split = len(sides[0].cost)
    columns = []
    ends = [end] if len(sides) == 1 else [end[:split], end[split:]]
    for values in ("cost", "samples"):
        per_side = [getattr(s, values) for s in sides]
        columns.append([sums(e, v, len(parent)) for e, v in zip(ends, per_side, strict=True)])
    zero = np.zeros(len(parent))
    differential = len(sides) == 2
    strings, name, module, kind = _strings(node_name, functions, list(extra))
    at = [e[side.of_row] for e, side in zip(ends, sides, strict=True)]
    return FlameTree(
        strings=strings,
        name=name,
        module=module,
        kind=kind,
        parent=parent.astype("i4"),
        self_new=columns[0][-1],
        self_base=columns[0][0] if differential else zero,
        samples_new=columns[1][-1],
        samples_base=columns[1][0] if differential else zero,
        measure=measure,
        differential=differential,
        title=title,
        base_title=base_title,
        notes=notes,
        findings=findings or {},
        shown=shown_paths(views, at, parent, columns[1][0] + columns[1][1]) if views else None,
    )


def _merge(
    names: NDArray[np.int32], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(name of each node, its parent, node at which each path ends); node 0 is the root, named the lowest integer."""
    low = int(names.min(initial=0))
    width = int(names.max(initial=0)) - low + 1
    node_names = [np.array([np.iinfo("i8").min])]
    parents = [np.array([-1], "i8")]
    at = np.zeros(len(offsets) - 1, "i8")
    lengths = np.diff(offsets)
    made = 1
    for level in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > level)
        code = at[active] * width + (names[offsets[:-1][active] + level] - low)
        distinct, inverse = np.unique(code, return_inverse=True)
        node_names.append(distinct % width + low)
        parents.append(distinct // width)
        at[active] = inverse + made
        made += len(distinct)
    return np.concatenate(node_names), np.concatenate(parents), at


def _strings(
    node_name: NDArray[np.int64], functions: Functions, extra: list[str]
) -> tuple[tuple[str, ...], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint8]]:
    """Interned strings and, per node, the numbers of its name and module, and its kind."""
    strings: dict[str, int] = {"all": 0, "": 1}
    distinct, inverse = np.unique(node_name, return_inverse=True)
    name, module, kind = [], [], []
    for number in distinct.tolist():
        if number == np.iinfo("i8").min:
            own, of, what = "all", "", FrameKind.UNKNOWN
        elif number < 0:
            own, of, what = extra[-1 - number], "", FrameKind.USER if number == -1 else FrameKind.UNKNOWN
        else:
            own, of, what = functions.name[number], functions.module[number], FrameKind(functions.kind[number])
        name.append(strings.setdefault(own, len(strings)))
        module.append(strings.setdefault(of, len(strings)))
        kind.append(int(what))
    return (
        tuple(strings),
        np.array(name, "u4")[inverse],
        np.array(module, "u4")[inverse],
        np.array(kind, "u1")[inverse],
    )

"""Which causes may own which sample: a walk from the leaf to the root, so that no ns is counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes.others import not_own_tasks
from nsprof.analyse.causes.rule import Owned, Rule
from nsprof.analyse.comparing import Sides
from nsprof.analyse.stacks import Functions, StackTable
from nsprof.model.profile import Profile

__all__ = ["Claims", "claims_of", "matching"]

#: How many frames above a softirq its interrupt's entry stands.
_ENTRY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """`groups` are the different sequences of causes (indices, leafmost first) that may own a sample, `frames` the
    functions by which they may; `key` gives for each side the group of every sample row; `marked` per side and row
    the set of signatures on its stack. `instead` and `instead_key` are the like for paths that causes replace: pairs
    of (cause, function)."""

    groups: tuple[tuple[int, ...], ...]
    frames: tuple[tuple[int, ...], ...]
    key: tuple[NDArray[np.int64], NDArray[np.int64]]
    marks: tuple[frozenset[int], ...]
    marked: tuple[NDArray[np.int64], NDArray[np.int64]]
    instead: tuple[tuple[tuple[int, int], ...], ...]
    instead_key: tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class _Pattern:
    rule: int
    leaf: bool
    under: frozenset[int]
    not_under: frozenset[int]
    conditional: bool
    passes_to: frozenset[int]
    late: bool


def matching(functions: Functions, names: Sequence[str]) -> frozenset[int]:
    """Functions that the names mean; `*` at the end makes a prefix."""
    exact = {n for n in names if not n.endswith("*")}
    prefixes = tuple(n[:-1] for n in names if n.endswith("*"))
    return frozenset(
        i for i, name in enumerate(functions.name) if name in exact or (prefixes and name.startswith(prefixes))
    )


def _patterns(each: Sequence[Sequence[Owned]], functions: Functions) -> dict[int, list[_Pattern]]:
    found: dict[int, list[_Pattern]] = {}
    for number, paths in enumerate(each):
        for owned in paths:
            pattern = _pattern(number, owned, functions)
            for function in matching(functions, owned.names):
                found.setdefault(function, []).append(pattern)
    return found


def _pattern(number: int, owned: Owned, functions: Functions) -> _Pattern:
    return _Pattern(
        number,
        owned.leaf,
        matching(functions, owned.under),
        matching(functions, owned.not_under),
        bool(owned.under),
        matching(functions, owned.passes_to),
        owned.late,
    )


def claims_of(
    rules: Sequence[Rule],
    sides: Sides,
    maps: Sequence[NDArray[np.int64]],
    leave: Sequence[NDArray[np.bool_]] | None = None,
) -> Claims:
    """Walk every stack that has samples once. `maps` gives frame -> function of both profiles; rows that `leave`
    marks are nobody's."""
    patterns = _patterns([r.owns for r in rules], sides.functions)
    replaced = _patterns([r.replaces for r in rules], sides.functions)
    signatures: dict[int, list[int]] = {}
    for number, rule in enumerate(rules):
        for function in matching(sides.functions, rule.signature):
            signatures.setdefault(function, []).append(number)
    groups: dict[tuple[tuple[int, int], ...], int] = {(): 0}
    marks: dict[frozenset[int], int] = {frozenset(): 0}
    gone: dict[tuple[tuple[int, int], ...], int] = {(): 0}
    keys, marked, instead = [], [], []
    for side, (chosen, table, frame_function) in enumerate(zip(sides.views, sides.tables, maps, strict=True)):
        stack, late = chosen.column("stack"), chosen.skid
        key = (stack * 2 + late) * 2 + not_own_tasks(chosen)
        unique, inverse = np.unique(key, return_inverse=True)
        group_of, mark_of, gone_of = (np.zeros(len(unique), "i8") for _ in range(3))
        for i, code in enumerate(unique.tolist()):
            path, entry = _path(chosen.profile, table, frame_function, code // 4)
            group = _candidates(path, patterns, first=code // 2 % 2, entry=entry)
            if code % 2:
                group = tuple((r, f) for r, f in group if not rules[r].control)
            group_of[i] = groups.setdefault(group, len(groups))
            other = _candidates(path, replaced, first=code // 2 % 2)
            gone_of[i] = gone.setdefault(other, len(gone))
            mark = frozenset(r for f in path for r in signatures.get(f, ()))
            mark_of[i] = marks.setdefault(mark, len(marks))
        kept = np.ones(len(stack), bool) if leave is None else ~leave[side]
        keys.append(np.where(kept, group_of[inverse], 0))
        marked.append(np.where(kept, mark_of[inverse], 0))
        instead.append(np.where(kept, gone_of[inverse], 0))
    who = tuple(tuple(r for r, _ in g) for g in groups)
    by = tuple(tuple(f for _, f in g) for g in groups)
    return Claims(
        who, by, (keys[0], keys[1]), tuple(marks), (marked[0], marked[1]), tuple(gone), (instead[0], instead[1])
    )


def _path(
    profile: Profile, table: StackTable, frame_function: NDArray[np.int64], stack: int
) -> tuple[list[int], list[int]]:
    """Functions of a stack, leaf first, as far as the interrupt that it runs in; and of that interrupt's entry."""
    frames, end = profile.stacks[stack], int(table.cut[stack]) + 1
    made: list[int] = frame_function[frames[: end + _ENTRY]].tolist()
    return made[:end], made[end:]


def _candidates(
    path: list[int], patterns: dict[int, list[_Pattern]], *, first: int, entry: Sequence[int] = ()
) -> tuple[tuple[int, int], ...]:
    """(cause, function) of those that may own the path, leafmost first. A late sample's leaf is where it landed: it
    owns nothing, unless the interrupt that it landed in tells (`entry`)."""
    found: dict[int, int] = {}
    for pattern in patterns.get(path[0], ()) if first and path else ():
        if pattern.late and not pattern.under.isdisjoint(entry):
            found[pattern.rule] = path[0]
    for position in range(first, len(path)):
        for pattern in patterns.get(path[position], ()):
            if pattern.late or pattern.rule in found or (pattern.leaf and position != first):
                continue
            if pattern.passes_to and not pattern.passes_to.isdisjoint(path[:position]):
                continue
            above = path[position + 1 :]
            if pattern.conditional and pattern.under.isdisjoint(above):
                continue
            if pattern.not_under and not pattern.not_under.isdisjoint(above):
                continue
            found[pattern.rule] = path[position]
    return tuple(found.items())

"""Functions and call stacks of a profile as arrays: who is leaf where, who is on which stack, which category it has.

Functions are told apart by name without compiler suffixes; kernel functions by the name alone, because the same one
is in the image of one kernel and in a module of the other. Inclusive totals end at the leafmost softirq or hardirq
entry frame: whatever lies below it on the stack was interrupted and did not ask for the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from nsprof.analyse import categories
from nsprof.analyse.selection import View
from nsprof.kernelnames import HARDIRQ_ENTRY, SOFTIRQ_ENTRY, fold_suffixes
from nsprof.model.profile import Context, FrameKind, Frames, Profile

__all__ = ["USER_NAME", "Functions", "StackTable", "function_table", "stack_table"]

#: The function of samples that were in user space while user stacks were not recorded.
USER_NAME = "[user]"

_ENTRIES = SOFTIRQ_ENTRY | HARDIRQ_ENTRY
_OWN_MODULE = (FrameKind.USER, FrameKind.BPF, FrameKind.PROFILER)


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """The functions of one or more profiles: parallel tuples; the last one is `USER_NAME`."""

    name: tuple[str, ...]
    module: tuple[str, ...]
    kind: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.name)

    @property
    def user(self) -> int:
        """Index of `USER_NAME`."""
        return len(self.name) - 1


def function_table(frame_sets: Sequence[Frames]) -> tuple[Functions, list[NDArray[np.int64]]]:
    """One table of functions for several profiles, and for each its map frame -> function."""
    index: dict[tuple[str, str, int], int] = {}
    modules: list[str] = []
    maps = []
    for frames in frame_sets:
        made = np.zeros(len(frames), "i8")
        for i, (name, module, kind) in enumerate(zip(frames.name, frames.module, frames.kind.tolist(), strict=True)):
            own = kind in _OWN_MODULE
            # What a symboliser does not know the kind of is compared by name, as kernel functions are.
            key = (fold_suffixes(name), module if own else "", kind if own else int(FrameKind.KERNEL))
            number = index.setdefault(key, len(modules))
            if number == len(modules):
                modules.append(module)
            elif module and not modules[number]:
                modules[number] = module
            made[i] = number
        maps.append(made)
    keys = list(index)
    functions = Functions(
        (*(k[0] for k in keys), USER_NAME), (*modules, ""), (*(k[2] for k in keys), int(FrameKind.USER))
    )
    return functions, maps


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """Per stack: its leaf function (-1: empty stack) and categories; `member` is the stack x function incidence.

    `cut` is the position of the last frame that counts for totals.
    """

    leaf: NDArray[np.int32]
    category: NDArray[np.int8]
    category_late: NDArray[np.int8]
    member: Any  # scipy.sparse.csr_array of ones, shape (functions, stacks)
    cut: NDArray[np.int64]


def interrupt_cut(profile: Profile) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """(stack, position) of every frame in `Stacks.frames`, and per stack the position of its interrupt entry, or of
    its last frame where there is none. (32 bits: there are as many as all stacks have frames, which is what memory
    goes into; a file that has more than fit is refused when it is read.)"""
    stacks, frames = profile.stacks, profile.frames
    lengths = np.diff(stacks.offsets)
    stack = np.repeat(np.arange(len(stacks), dtype="i4"), lengths)
    position = np.arange(len(stacks.frames), dtype="i4")
    position -= np.repeat(stacks.offsets[:-1].astype("i4"), lengths)
    entry = np.array([fold_suffixes(n) in _ENTRIES for n in frames.name], bool) & (frames.kind != FrameKind.USER)
    cut = lengths - 1
    where = np.flatnonzero(entry[stacks.frames])[::-1]
    cut[stack[where]] = position[where]
    return stack, position, cut


def stack_table(
    profile: Profile, frame_function: NDArray[np.int64], functions: int, *, join_contexts: bool = False
) -> StackTable:
    """The stacks of a profile in terms of functions. `join_contexts` lets totals run through interrupt entries."""
    stack, position, cut = interrupt_cut(profile)
    number = len(profile.stacks)
    flat = profile.stacks.frames
    function = frame_function.astype("i4")[flat] if len(flat) else np.zeros(0, "i4")
    inside = position <= cut[stack]
    category, late = categories.stack_categories(
        profile.frames, flat, stack=stack, position=position, inside=inside, stacks=number
    )
    leaf = np.full(number, -1, "i4")
    leaf[stack[position == 0]] = function[position == 0]
    del position
    if not (join_contexts or inside.all()):
        function, stack = function[inside], stack[inside]
    # Recursion counts once a stack: duplicates are summed, then set to one.
    member = sparse.csr_array((np.ones(len(stack), "i1"), (function, stack)), shape=(functions, number))
    member.sum_duplicates()
    member.data[:] = 1
    return StackTable(leaf, category, late, member, cut)


def leaf_functions(chosen: View, table: StackTable, functions: Functions) -> NDArray[np.int64]:
    """The function in which each row's sample was; -1 where no stack tells."""
    leaf = table.leaf[chosen.column("stack")]
    return np.where((leaf < 0) & (chosen.column("context") == int(Context.USER)), functions.user, leaf)


def row_categories(chosen: View, table: StackTable) -> NDArray[np.int64]:
    """Each row's category as an index into `categories.ALL`."""
    stack = chosen.column("stack")
    category = np.where(chosen.skid, table.category_late[stack], table.category[stack]).astype("i8")
    user = chosen.column("context") == int(Context.USER)
    return np.where(user & (category != categories.PROFILER), categories.USER, category)


def function_categories(
    functions: Functions, sides: Sequence[tuple[View, NDArray[np.int64], NDArray[np.int64]]]
) -> tuple[str, ...]:
    """Each function's category: the one that most of its own cost falls into (a helper's depends on its callers);
    by its name where it has no cost of its own. `sides` are (view, leaf function, category) of the rows."""
    wide = len(categories.ALL)
    table = np.zeros(len(functions) * wide)
    for chosen, leaf, category in sides:
        keep = leaf >= 0
        table += np.bincount(
            leaf[keep] * wide + category[keep], weights=chosen.cost[keep] / len(chosen.runs), minlength=len(table)
        )
    by_function = table.reshape(len(functions), wide)
    most, there = by_function.argmax(axis=1), by_function.sum(axis=1) > 0
    return tuple(
        categories.ALL[most[i]]
        if there[i]
        else categories.category_of(functions.name[i], functions.module[i], functions.kind[i])
        for i in range(len(functions))
    )


def totals_by_run(chosen: View, table: StackTable, functions: Functions) -> NDArray[np.float64]:
    """Inclusive unit cost by function and run, shape (functions, runs)."""
    by_stack = chosen.by_run(chosen.column("stack"), len(table.leaf))
    totals: NDArray[np.float64] = np.asarray(table.member @ by_stack)
    own = leaf_functions(chosen, table, functions)
    unstacked = np.where((own == functions.user) & (table.leaf[chosen.column("stack")] < 0), own, -1)
    return totals + chosen.by_run(unstacked, len(functions))

"""The datapath category of a call stack.

The rule: walking from the leaf to the root, the first function with a category of its own (STRONG in
`category_names`) decides; helpers (memcpy, slab, locks, RCU, retpolines, ...) are passed over, so they belong to
their nearest categorised caller; where there is none, the leafmost weak helper's own category; else `other`.
A function that the table does not know follows its caller too, unless that is a mere entry point (ROOTS: the system
call itself, the softirq loop, a kernel thread), under which anything may run: then it is `other`.
Checksum, copy, skb alloc/free and contended or sleeping locks have categories of their own. Uncontended spin locks
(`_raw_spin_lock` itself) follow their caller, while `native_queued_spin_lock_slowpath` is `locking`.

A sample that arrived late (skid) landed where interrupts came back on: its time was spent in the section that ended
there, which is the work of the caller (`_raw_spin_unlock_irqrestore` in `__wake_up_common_lock` in
`sock_def_readable`; the softirq loop or the system call entry for the entries themselves). So the leaf is passed over
and the caller decides the category, though nothing says which function it was; without a categorised caller the
sample is `skid`.

Any frame of nsprof's own before the interrupt entry makes the sample `profiler`; no stack, or one of bare addresses,
makes it `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import category_names as names
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import FrameKind, Frames

__all__ = ["ALL", "NOT_COVERED", "category_of", "frame_classes", "stack_categories"]

#: Datapath categories, then the classes that are no part of the datapath.
ALL = (*names.CATEGORIES, "user", "profiler", "skid", "unknown")
_INDEX = {name: i for i, name in enumerate(ALL)}
OTHER, USER, PROFILER, SKID, UNKNOWN = (_INDEX[n] for n in ("other", "user", "profiler", "skid", "unknown"))

#: Kernel samples of these classes are not counted as covered.
NOT_COVERED = ("other", "skid", "unknown")

_NONE, _UNLISTED = -1, -2


def _flatten(table: dict[str, tuple[str, ...]]) -> dict[str, int]:
    return {name: _INDEX[category] for category, all_names in table.items() for name in all_names}


_EXACT = _flatten(names.EXACT)
_WEAK = _flatten(names.WEAK)
#: prefix -> (category or none, strong)
_PREFIX: dict[str, tuple[int, bool]] = {
    **dict.fromkeys(names.HELPER_PREFIXES, (_NONE, False)),
    **{p: (c, False) for p, c in _flatten(names.WEAK_PREFIXES).items()},
    **{p: (c, True) for p, c in _flatten(names.PREFIXES).items()},
}
_LONGEST = max(map(len, _PREFIX))


@lru_cache(maxsize=200_000)
def _lookup(name: str, module: str) -> tuple[int, bool]:
    """(category or -1, strong) of a kernel function by its folded name; (-2, False) when it is not in the table."""
    if name in _EXACT:
        return _EXACT[name], True
    if name in names.HELPERS:
        return _NONE, False
    if name in _WEAK:
        return _WEAK[name], False
    for length in range(min(len(name), _LONGEST), 1, -1):
        found = _PREFIX.get(name[:length])
        if found is not None:
            return found
    module_category = names.MODULES.get(module.strip("[]"))
    if module_category is not None:
        return _INDEX[module_category], True
    return _UNLISTED, False


def category_of(name: str, module: str = "", kind: int = FrameKind.KERNEL) -> str:
    """The category that a function has by itself; "" for helpers and for names that the table does not know."""
    if kind == FrameKind.PROFILER:
        return "profiler"
    if kind == FrameKind.USER:
        return "user"
    if kind == FrameKind.BPF:
        return "BPF"
    found, _ = _lookup(fold_suffixes(name), module)
    return ALL[found] if found >= 0 else ""


def frame_classes(frames: Frames) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Per frame: its category as an index into `ALL` (-1: a helper, -2: not in the table); whether it is strong."""
    category = np.full(len(frames), _NONE, "i1")
    strong = np.zeros(len(frames), bool)
    fixed = {FrameKind.PROFILER: PROFILER, FrameKind.USER: USER, FrameKind.BPF: _INDEX["BPF"]}
    for i, (name, module, kind) in enumerate(_rows(frames)):
        if kind in fixed:
            category[i], strong[i] = fixed[FrameKind(kind)], True
        else:
            category[i], strong[i] = _lookup(fold_suffixes(name), module)
    return category, strong


def _is_nameless(name: str) -> bool:
    return name.startswith("0x") or name in ("", "[unknown]", "[unknown kernel]")


def _is_root(name: str) -> bool:
    return name in names.ROOTS or name.startswith(names.ROOT_PREFIXES)


def _rows(frames: Frames) -> Iterable[tuple[str, str, int]]:
    return zip(frames.name, frames.module, frames.kind.tolist(), strict=True)


def stack_categories(
    frames: Frames,
    flat: NDArray[Any],
    *,
    stack: NDArray[Any],
    position: NDArray[Any],
    inside: NDArray[Any],
    stacks: int,
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Categories of all stacks, on time and skidded, as indices into `ALL`.

    `flat` holds all frames of all stacks leaf first, `stack` and `position` say where each stands, `inside` whether
    it lies leafward of (or at) the stack's interrupt entry.
    """
    category, strong = frame_classes(frames)
    of_frame, is_strong = category[flat], strong[flat]
    kind = frames.kind[flat]
    profiled, empty, kernel_leaf = np.zeros(stacks, bool), np.ones(stacks, bool), np.zeros(stacks, bool)
    profiled[stack[inside & (kind == FrameKind.PROFILER)]] = True
    empty[stack] = False
    nameless = np.array([_is_nameless(n) for n in frames.name], bool)[flat] & (kind != FrameKind.USER)
    unresolved = np.zeros(stacks, bool)
    unresolved[stack[nameless & (position == 0)]] = True
    unresolved[stack[~nameless]] = False
    kernel_leaf[stack[(position == 0) & (kind != FrameKind.USER)]] = True
    # The program that made the system call does not make kernel work "user".
    usable = ~(kernel_leaf[stack] & (kind == FrameKind.USER)) & (of_frame >= 0)
    unlisted = of_frame == _UNLISTED

    root = np.array([_is_root(fold_suffixes(n)) for n in frames.name], bool)[flat]
    far = np.iinfo("i8").max

    def first(mask: NDArray[Any], values: NDArray[Any], default: int) -> NDArray[np.int64]:
        """Per stack the value of its leafmost frame in `mask`: backwards, since later writes win."""
        result = np.full(stacks, default, "i8")
        where = np.flatnonzero(mask)[::-1]
        result[stack[where]] = values[where]
        return result

    def decide(counted: NDArray[Any], default: int) -> NDArray[np.int8]:
        strong, weak = usable & is_strong & counted, usable & ~is_strong & counted
        result = first(weak, of_frame, default)
        strong_at = first(strong, position, far)
        found = strong_at < far
        result[found] = first(strong, of_frame, default)[found]
        by_root = found & (first(strong, root, 0) > 0)
        result[by_root & (first(unlisted & counted, position, far) < strong_at)] = OTHER
        result[profiled] = PROFILER
        result[empty | unresolved] = UNKNOWN
        return result.astype("i1")

    on_time = decide(np.ones(len(flat), bool), OTHER)
    late = decide(position > 0, SKID)
    return on_time, np.where(kernel_leaf, late, on_time)

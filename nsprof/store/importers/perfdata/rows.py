"""Stacks, tasks and namespaces of decoded samples: what a process and an address meant at a sample's time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import Namespace
from nsprof.store.importers import assemble as a
from nsprof.store.importers.ahead import ahead
from nsprof.store.importers.perfdata import decode as d
from nsprof.store.importers.perfdata.places import Places
from nsprof.store.importers.perfdata.resolve import CONTEXT_MAX, Resolver, modes_of
from nsprof.store.importers.perfdata.sideband import Side, at_times

__all__ = ["lives_of", "namespaces", "stacks", "tasks"]

_WORDS = 1 << 18


def lives_of(side: Side, pid: NDArray[Any], time: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Which of the lives of its pid each row is in: a process that called exec, or whose pid was used again, has
    several, in which one address means different things. 0 for all where no pid has several."""
    life = np.zeros(len(pid), "i8")
    reused = [p for p, lives in side.spaces.items() if len(lives) > 1]
    if reused and len(pid):
        first, which = a.grouped(pid)
        several = np.isin(pid[first], reused)
        rows_of = np.flatnonzero(several[which])
        rows_of = rows_of[np.argsort(which[rows_of], kind="stable")]
        cuts = np.searchsorted(which[rows_of], np.flatnonzero(several))
        for rows in np.split(rows_of, cuts[1:]) if len(cuts) else ():
            starts = np.array([t for t, _ in side.spaces[int(pid[rows[0]])]], "u8")
            life[rows] = np.searchsorted(starts, time[rows], side="right")
    return life


def stacks(
    resolver: Resolver, side: Side, chains: d.Chains, columns: dict[str, NDArray[Any]]
) -> tuple[Any, NDArray[np.int64]]:
    """(unique stacks of frames, the stack of every sample)."""
    flat, offsets, mode = chains.table()
    chain = columns["chain"].astype("i8")
    number = len(offsets) - 1
    # A process that called exec, or whose pid was used again, has chains with different meanings of one address.
    pid, time, split = columns["pid"], columns["time"], chain
    life = lives_of(side, pid, time)
    if life.any():
        split = life * number + chain
    first, variant = a.grouped(split)
    source, space = chain[first], a.grouped(pid[first].astype("i8") << 24 | life[first])[1]
    order = np.argsort(space, kind="stable")  # what is mapped where is looked up for a whole address space
    place = np.empty(len(order), "i8")
    place[order] = np.arange(len(order))
    source, space, first, variant = source[order], space[order], first[order], place[variant]
    places = Places(resolver, space, pid[first], time[first])
    ends = np.zeros(len(source) + 1, "i8")
    np.cumsum(np.diff(offsets)[source], out=ends[1:])
    numbers: list[NDArray[np.int32]] = []
    counts: list[NDArray[np.int64]] = []

    def addresses(span: tuple[int, int]) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64], int, int]:
        low, high = span
        at, words = a.take_rows(flat, offsets, source[low:high])
        lengths = np.diff(at)
        row = np.repeat(np.arange(high - low), lengths)
        modes = modes_of(words, at, mode[source[low:high]])
        keep = (words < CONTEXT_MAX) | (lengths == 1)[row]
        return words[keep], modes[keep], row[keep], low, high

    # Some at a time: addresses take far more room than frames.
    for words, modes, row, low, high in ahead(addresses, a.spans(ends, _WORDS)):
        counts.append(np.bincount(row, minlength=high - low))
        numbers.append(places.number(words, modes, row + low))
    offsets2 = np.zeros(len(source) + 1, "i8")
    if counts:
        np.cumsum(np.concatenate(counts), out=offsets2[1:])
    frame = places.frames()
    frames = [frame[each] for each in numbers]
    made, of_variant = a.unique_stacks(np.concatenate(frames) if frames else np.zeros(0, "u4"), offsets2)
    return made, of_variant[variant]


def tasks(side: Side, columns: dict[str, NDArray[Any]]) -> tuple[NDArray[np.int64], list[tuple[int, int, str]]]:
    """Task of every sample: process, thread, and the name the thread had then."""
    code = columns["pid"].astype("i8") << 32 | (columns["tid"].astype("i8") & 0xFFFFFFFF)
    first, which = a.grouped(code)
    number = np.zeros(len(first), "i8")
    table: dict[tuple[int, int, str], int] = {}
    renamed: dict[int, tuple[int, int, list[tuple[int, str]]]] = {}
    for index, each in enumerate(code[first].tolist()):
        pid, tid = each >> 32, np.int64(each).astype("i4").item()
        history = side.comms.get(tid) or side.comms.get(pid) or [(0, _nameless(pid, tid))]
        if len({name for _, name in history}) == 1:
            number[index] = table.setdefault((pid, tid, history[0][1]), len(table))
        else:
            renamed[index] = pid, tid, history
    task = number[which]
    if renamed:
        several = np.zeros(len(first), bool)
        several[list(renamed)] = True
        rows_of = np.flatnonzero(several[which])
        rows_of = rows_of[np.argsort(which[rows_of], kind="stable")]
        ends = np.searchsorted(which[rows_of], np.fromiter(renamed, "i8"), side="right")
        for rows, (pid, tid, history) in zip(np.split(rows_of, ends[:-1]), renamed.values(), strict=True):
            names, held = at_times(history, columns["time"][rows])
            used, held = np.unique(held, return_inverse=True)
            numbers = [table.setdefault((pid, tid, names[u]), len(table)) for u in used.tolist()]
            task[rows] = np.array(numbers, "i8")[held.ravel()]
    return task, list(table)


def _nameless(pid: int, tid: int) -> str:
    if tid == 0 and pid == 0:
        return "swapper"
    return f":{tid}" if tid > 0 else ""


def namespaces(side: Side, columns: dict[str, NDArray[Any]]) -> tuple[NDArray[Any] | None, list[Namespace]]:
    """Network namespace of every sample's task, where the file says (perf record --namespaces)."""
    if not side.netns:
        return None, []
    out = np.zeros(len(columns["tid"]), "u4")
    table: dict[int, int] = {}
    for tid in np.unique(columns["tid"]).tolist():
        history = side.netns.get(tid)
        if history:
            rows = np.flatnonzero(columns["tid"] == tid)
            inodes, which = at_times(history, columns["time"][rows])
            used, which = np.unique(which, return_inverse=True)
            number = [table.setdefault(inodes[u], len(table)) + 1 for u in used.tolist()]
            out[rows] = np.array(number, "u4")[which.ravel()]
    return out, [Namespace(min(inode, 2**63 - 1)) for inode in table]

"""From columns with one row a sample to a Profile: stacks made unique, rows added up, contexts found.

Nothing here makes a Python object a sample: Python loops run over distinct frames, tasks and stacks only.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof import __version__
from nsprof.errors import ProfileFormatError
from nsprof.kernelnames import context_of
from nsprof.model.profile import (
    Context,
    Event,
    FrameKind,
    Frames,
    Lateness,
    Losses,
    Namespace,
    Profile,
    Run,
    Samples,
    Stacks,
    Task,
)
from nsprof.store.importers.codes import codes

__all__ = [
    "FrameTable",
    "Rows",
    "aggregate",
    "assemble",
    "context_column",
    "grouped",
    "hash_rows",
    "take_rows",
    "unique_stacks",
]

U64 = np.uint64
_K1, _K2, _K3 = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0xD6E8FEB86659FD93)
_MAX_EVENTS = 256
_WORDS = 1 << 15
_FEW = 4096
_PROBE = 1024
_IS_KERNEL, _IS_USER, _IS_ENTRY, _IS_IDLE, _IS_NAMED = 1, 2, 4, 8, 16


class FrameTable:
    """Frames being collected: the same (name, module, kind, source) is one index."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int, str], int] = {}

    def add(self, name: str, module: str = "", kind: int = FrameKind.KERNEL, source: str = "") -> int:
        """Index of a frame."""
        return self.rows.setdefault((name, module, int(kind), source), len(self.rows))

    def frames(self) -> Frames:
        """The finished table."""
        rows = list(self.rows)
        return Frames(
            tuple(r[0] for r in rows),
            tuple(r[1] for r in rows),
            np.array([r[2] for r in rows], "u1"),
            tuple(r[3] for r in rows),
        )


@dataclass(slots=True)
class Rows:
    """One row a sample (or a group of equal ones): numpy columns of one length, the tables beside them.

    `time_ns` may be None where the input has no times; then there is one slice. `cpu` 65535 stands for unknown.
    """

    event: NDArray[Any]
    stack: NDArray[Any]
    weight: NDArray[Any]
    task: NDArray[Any] | None = None
    cpu: NDArray[Any] | None = None
    time_ns: NDArray[Any] | None = None
    count: NDArray[Any] | None = None
    task_ns: NDArray[Any] | None = None
    events: Sequence[Event] = ()
    tasks: Sequence[tuple[int, int, str]] = ()
    namespaces: Sequence[Namespace] = ()
    context: NDArray[Any] | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def hash_rows(flat: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each row flat[offsets[i]:offsets[i+1]] (order matters; an empty row is 0).

    Two different rows among a million share a hash with a probability of about 3e-8.
    """
    lengths = np.diff(offsets)
    out = np.zeros(len(lengths), "u8")
    for first, last in spans(offsets, _WORDS):
        _hash_some(flat, offsets[first : last + 1], lengths[first:last], out[first:last])
    return out


def spans(offsets: NDArray[np.int64], words: int) -> Iterator[tuple[int, int]]:
    """Rows in groups of about so many words, whose temporary arrays stay in the processor's cache."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        last = int(np.searchsorted(offsets, offsets[first] + words, side="right")) - 1
        last = min(max(last, first + 1), rows)
        yield first, last
        first = last


def _hash_some(
    flat: NDArray[Any], offsets: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint64]
) -> None:
    full = lengths > 0
    low, high = int(offsets[0]), int(offsets[-1])
    if low == high:
        return
    starts = offsets[:-1]
    word = np.arange(low, high, dtype="i8")
    word -= np.repeat(starts, lengths)
    word = word.view("u8")
    word *= _K3
    word += np.asarray(flat[low:high], "u8")
    word *= _K1
    word ^= word >> U64(32)
    word *= _K2
    word ^= word >> U64(29)
    word *= _K1
    out[full] = np.add.reduceat(word, (starts - low)[full])
    out[full] ^= lengths[full].astype("u8") * _K2


def grouped(code: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row where each distinct value first stands, which of them each row is), the values ascending.

    What np.unique gives with return_index and return_inverse. Of long columns in which values are met again only the
    distinct ones are sorted: sorting is what takes the time.
    """
    if not len(code):
        return np.zeros(0, "i8"), np.zeros(0, "i8")
    some = np.sort(code[:: max(1, len(code) // _PROBE)] if len(code) > _FEW else code[:0])
    if (some[1:] == some[:-1]).any():
        number, seen = codes(code)
        order = np.argsort(code[seen])
        rank = np.empty(len(order), "i8")
        rank[order] = np.arange(len(order))
        return seen[order], rank[number]
    order = np.argsort(code)
    ordered = code[order]
    new = np.empty(len(code), bool)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    which = np.empty(len(code), "i8")
    which[order] = np.cumsum(new) - 1
    return np.minimum.reduceat(order, np.flatnonzero(new)), which


def unique_stacks(flat: NDArray[Any], offsets: NDArray[np.int64]) -> tuple[Stacks, NDArray[np.int64]]:
    """Equal rows become one stack, in order of first appearance; returns them and each row's stack index."""
    hashes = hash_rows(flat, offsets)
    first, inverse = grouped(hashes)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), "i8")
    rank[order] = np.arange(len(order))
    keep = first[order]
    if len(keep) == len(hashes):
        return Stacks(
            offsets - offsets[0], np.asarray(flat)[offsets[0] : offsets[-1]].astype("u4", copy=False)
        ), rank[inverse]
    new, kept = take_rows(flat, offsets, keep)
    return Stacks(new, kept.astype("u4", copy=False)), rank[inverse]


def take_rows(
    flat: NDArray[Any], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """(offsets, flat) of some of the rows flat[offsets[i]:offsets[i+1]]."""
    lengths = np.diff(offsets)[rows]
    new = np.zeros(len(rows) + 1, "i8")
    np.cumsum(lengths, out=new[1:])
    out = np.empty(int(new[-1]), np.asarray(flat).dtype)
    shift = offsets[:-1][rows] - new[:-1]
    for first, last in spans(new, _WORDS):
        low, high = int(new[first]), int(new[last])
        pick = np.arange(low, high, dtype="i8")
        pick += np.repeat(shift[first:last], lengths[first:last])
        out[low:high] = flat[pick]
    return new, out


def context_column(
    frames: Frames, stacks: Stacks, *, named: NDArray[np.bool_] | None = None, idle: bool = True
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Context of every stack, for ordinary tasks and for the idle task: `kernelnames.context_of`, columnwise.

    `named` says which frames have a name at all: a stack whose kernel frames are all nameless is UNKNOWN. Without
    `idle` the column for the idle task says nothing.
    """
    kinds = np.asarray(frames.kind)
    kernel = (kinds == FrameKind.KERNEL) | (kinds == FrameKind.BPF) | (kinds == FrameKind.PROFILER)
    sort = np.where(kernel, np.uint8(_IS_KERNEL), np.where(kinds == FrameKind.USER, np.uint8(_IS_USER), np.uint8(0)))
    sort[kernel & (named if named is not None else True)] |= _IS_NAMED
    alone = np.zeros(len(frames), "u1")
    for index in np.flatnonzero(kernel).tolist():
        context, idles = _context_alone(frames.name[index])
        if context is not Context.TASK:
            alone[index] = context
            sort[index] |= _IS_ENTRY if context else 0
        if idles:
            sort[index] |= _IS_IDLE
    plain, swapper = np.zeros(len(stacks), "u1"), np.zeros(len(stacks), "u1")
    offsets = stacks.offsets
    for first, last in spans(offsets, _WORDS):
        flat = stacks.frames[offsets[first] : offsets[last]]
        at = offsets[first : last + 1] - offsets[first]
        plain[first:last], swapper[first:last] = _contexts(flat, at, sort, alone, idle=idle)
    return plain, swapper


@functools.lru_cache(1 << 16)
def _context_alone(name: str) -> tuple[Context, bool]:
    """(context of a stack of this kernel function alone, whether it idles)."""
    return context_of([name]), context_of([name], swapper=True) is Context.IDLE


def _contexts(
    flat: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    sort: NDArray[np.uint8],
    alone: NDArray[np.uint8],
    *,
    idle: bool,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """`context_column` for some stacks; `sort` and `alone` say of every frame what kind of code it is."""
    count = len(offsets) - 1
    plain, swapper = np.zeros(count, "u1"), np.zeros(count, "u1")
    some = np.flatnonzero(np.diff(offsets) > 0)
    if not len(some):
        return plain, swapper
    sorts = sort[flat]
    every = np.zeros(count, "u1")
    every[some] = np.bitwise_or.reduceat(sorts, offsets[some])
    has = every & _IS_KERNEL > 0
    plain[:] = np.where(has, np.uint8(Context.TASK), np.where(every & _IS_USER > 0, Context.USER, Context.UNKNOWN))
    swapper[:] = np.where(has, np.uint8(Context.SCHED), plain)
    for mask in (_IS_ENTRY, _IS_KERNEL) if idle else (_IS_ENTRY,):  # idle in its leaf decides, for the idle task
        hits = np.flatnonzero(sorts & mask)
        row = np.searchsorted(offsets, hits, side="right") - 1
        leafmost = np.ones(len(hits), bool)
        leafmost[1:] = row[1:] != row[:-1]
        hits, row = hits[leafmost], row[leafmost]
        if mask == _IS_ENTRY:
            plain[row] = swapper[row] = alone[flat[hits]]
        else:
            swapper[row[sorts[hits] & _IS_IDLE > 0]] = Context.IDLE
    blank = has & (every & _IS_NAMED == 0)
    plain[blank] = swapper[blank] = Context.UNKNOWN
    return plain, swapper


def aggregate(columns: dict[str, NDArray[Any]]) -> Samples:
    """Samples with equal keys added up; `columns` as of Samples, the keys not given being zero."""
    keys = {k: np.asarray(v) for k, v in columns.items() if k not in ("count", "weight")}
    count = columns["count"]
    length = len(count)
    if not length:
        return Samples()
    stack = keys.get("stack", count[:0])
    if len(stack) and (stack[1:] > stack[:-1]).all():  # all different
        return Samples.build(
            length, **keys, count=np.asarray(count, "u8"), weight=np.asarray(columns["weight"], "f8")
        )
    code = np.zeros(length, "u8")
    span = 1
    for column in keys.values():
        top = int(column.max()) + 1
        if top == 1:
            continue
        if span * top >= 1 << 63:
            code = grouped(code)[1].astype("u8")
            span = int(code.max()) + 1
        code = code * U64(top) + column.astype("u8")
        span *= top
    first, inverse = grouped(code)
    made: dict[str, NDArray[Any]] = {name: column[first] for name, column in keys.items()}
    made["count"] = np.bincount(inverse, weights=np.asarray(count, "f8")).astype("u8")
    made["weight"] = np.bincount(inverse, weights=np.asarray(columns["weight"], "f8"))
    return Samples.build(len(first), **made)


def assemble(
    rows: Rows,
    frames: Frames,
    stacks: Stacks,
    *,
    run: Run,
    meta: Mapping[str, Any],
    named: NDArray[np.bool_] | None = None,
) -> Profile:
    """A Profile with one run out of columns and tables.

    Raises ProfileFormatError for more events than a profile can hold.
    """
    length = len(rows.stack)
    events = list(rows.events)
    if len(events) > _MAX_EVENTS:
        raise ProfileFormatError(f"{len(events)} different events: a profile holds {_MAX_EVENTS}")
    task = rows.task if rows.task is not None else np.zeros(length, "u4")
    tasks = list(rows.tasks) or [(0, 0, "")]
    context = rows.context
    if context is None:
        plain, swapper = context_column(frames, stacks, named=named, idle=bool(rows.tasks))
        idle = np.array([t[1] == 0 and t[0] <= 0 and (t[2] == "" or t[2].startswith("swapper")) for t in tasks], bool)
        if rows.tasks:
            context = np.where(idle[task], swapper[rows.stack], plain[rows.stack]) if length else plain[:0]
        else:
            context = plain[rows.stack] if length else plain[:0]
    count = rows.count if rows.count is not None else np.ones(length, "u8")
    columns: dict[str, NDArray[Any]] = {
        "slice": _slices(rows.time_ns, length),
        "event": rows.event,
        "cpu": rows.cpu if rows.cpu is not None else np.zeros(length, "u2"),
        "task": task,
        "task_ns": rows.task_ns if rows.task_ns is not None else np.zeros(length, "u4"),
        "context": context,
        "stack": rows.stack,
        "count": count,
        "weight": rows.weight,
        **rows.extra,
    }
    samples = aggregate(columns)
    if "lateness" not in columns:
        samples = replace(samples, lateness=np.full(len(samples), Lateness.UNKNOWN, "u1"))
    if rows.time_ns is not None and length and not run.duration_s:
        run = replace(run, duration_s=float(int(rows.time_ns.max()) - int(rows.time_ns.min())) / 1e9)
    losses = replace(run.losses, seen=int(np.asarray(count, "f8").sum()))
    return Profile(
        events=tuple(events),
        runs=(replace(run, losses=losses),),
        namespaces=tuple(rows.namespaces),
        tasks=tuple(Task(*t) for t in tasks),
        frames=frames,
        stacks=stacks,
        samples=samples,
        meta=dict(meta),
    )


def _slices(time_ns: NDArray[Any] | None, length: int) -> NDArray[Any]:
    if time_ns is None or not length:
        return np.zeros(length, "u4")
    time = np.asarray(time_ns, "u8")
    seconds = (time - time.min()) // U64(1_000_000_000)
    out: NDArray[Any] = np.minimum(seconds, U64(0xFFFFFFFF)).astype("u4")
    return out


def source_meta(importer: str, name: str, notes: Sequence[str], **more: Any) -> dict[str, Any]:
    """The `meta` of an imported profile."""
    return {
        "tool": {"name": "nsprof", "version": __version__},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "source": {"importer": importer, "file": name, **{k: v for k, v in more.items() if v}},
        "notes": list(notes),
    }


def no_losses(**known: int) -> Losses:
    """Losses of an import: what was expected cannot be known."""
    return Losses(expected=-1, **known)

"""From columns with one row a sample to a Profile: stacks made unique, rows added up, contexts found.

Nothing here makes a Python object a sample: Python loops run over distinct frames, tasks and stacks only.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
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

__all__ = ["FrameTable", "Rows", "aggregate", "assemble", "context_column", "hash_rows", "unique_stacks"]

U64 = np.uint64
_K1, _K2, _K3 = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0xD6E8FEB86659FD93)
_MAX_EVENTS = 256


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
    full = lengths > 0
    if not full.any():
        return out
    starts = offsets[:-1]
    position = np.arange(int(offsets[0]), int(offsets[-1]), dtype="i8")
    position -= np.repeat(starts, lengths)
    word = position.astype("u8")
    word *= _K3
    word += np.asarray(flat, "u8")
    word *= _K1
    word ^= word >> U64(32)
    word *= _K2
    word ^= word >> U64(29)
    word *= _K1
    out[full] = np.add.reduceat(word, (starts - offsets[0])[full])
    out[full] ^= lengths[full].astype("u8") * _K2
    return out


def unique_stacks(flat: NDArray[Any], offsets: NDArray[np.int64]) -> tuple[Stacks, NDArray[np.int64]]:
    """Equal rows become one stack, in order of first appearance; returns them and each row's stack index."""
    hashes = hash_rows(flat, offsets)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), "i8")
    rank[order] = np.arange(len(order))
    keep = first[order]
    lengths = np.diff(offsets)[keep]
    new = np.zeros(len(keep) + 1, "i8")
    np.cumsum(lengths, out=new[1:])
    pick = np.arange(int(new[-1]), dtype="i8") + np.repeat(offsets[:-1][keep] - new[:-1], lengths)
    return Stacks(new, np.asarray(flat)[pick].astype("u4")), rank[inverse.ravel()]


def context_column(
    frames: Frames, stacks: Stacks, *, named: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Context of every stack, for ordinary tasks and for the idle task: `kernelnames.context_of`, columnwise.

    `named` says which frames have a name at all: a stack whose kernel frames are all nameless is UNKNOWN.
    """
    count = len(stacks)
    kinds = np.asarray(frames.kind)
    kernel = (kinds == FrameKind.KERNEL) | (kinds == FrameKind.BPF) | (kinds == FrameKind.PROFILER)
    alone = np.zeros(len(frames), "u1")
    idle = np.zeros(len(frames), bool)
    for index in np.flatnonzero(kernel):
        name = [frames.name[index]]
        alone[index] = context_of(name)
        idle[index] = context_of(name, swapper=True) is Context.IDLE
    alone[alone == Context.TASK] = 0
    flat, offsets = stacks.frames, stacks.offsets
    row = np.repeat(np.arange(count), np.diff(offsets))
    at = np.arange(len(flat))
    is_kernel = kernel[flat] if len(flat) else np.zeros(0, bool)

    def leafmost(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        found = np.full(count, -1, "i8")
        hits = at[mask][::-1]
        found[row[hits]] = hits  # written from root to leaf: the leafmost stays
        return found

    entry = leafmost(is_kernel & (alone[flat] != 0)) if len(flat) else np.full(count, -1, "i8")
    leaf = leafmost(is_kernel)
    user = leafmost(kinds[flat] == FrameKind.USER) if len(flat) else leaf
    base = np.where(leaf >= 0, np.uint8(Context.TASK), np.where(user >= 0, Context.USER, Context.UNKNOWN))
    base[entry >= 0] = alone[flat[entry[entry >= 0]]]
    swapper = np.where((leaf >= 0) & (entry < 0), np.uint8(Context.SCHED), base)
    has = leaf >= 0
    swapper[has] = np.where(idle[flat[leaf[has]]], np.uint8(Context.IDLE), swapper[has])
    if named is not None and len(flat):
        blank = has & (leafmost(is_kernel & named[flat]) < 0)
        base[blank] = swapper[blank] = Context.UNKNOWN
    return base.astype("u1"), swapper.astype("u1")


def aggregate(columns: dict[str, NDArray[Any]]) -> Samples:
    """Samples with equal keys added up; `columns` as of Samples, the keys not given being zero."""
    keys = {k: np.asarray(v) for k, v in columns.items() if k not in ("count", "weight")}
    count = columns["count"]
    length = len(count)
    if not length:
        return Samples()
    code = np.zeros(length, "u8")
    span = 1
    for column in keys.values():
        top = int(column.max()) + 1
        if span * top >= 1 << 63:
            code = np.unique(code, return_inverse=True)[1].ravel().astype("u8")
            span = int(code.max()) + 1
        code = code * U64(top) + column.astype("u8")
        span *= top
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    inverse = inverse.ravel()
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
        plain, swapper = context_column(frames, stacks, named=named)
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

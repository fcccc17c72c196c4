"""Text of `perf script`, in the forms that people have.

A sample is a header line and a stack, ended by a blank line. Blocks of that form are read as columns
(`scriptcolumns`); whatever else stands in the text is read line by line, here.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

from nsprof.model.profile import Profile, Run, Stacks
from nsprof.store.importers import assemble as a
from nsprof.store.importers.ahead import ahead
from nsprof.store.importers.scriptlayout import layout_of
from nsprof.store.importers.scripttables import NO_TIME, SOURCE, TRACE, Tables, header_match
from nsprof.store.importers.text import stretches, to_utf8

__all__ = ["import_perf_script", "looks_like"]

_TAIL = 1 << 14
_INFO = re.compile(rb"# (hostname|os release|cpudesc|arch|cmdline|nrcpus online) : (.*)$")


def looks_like(head: bytes) -> bool:
    """Whether the first lines of a text include the header line of a sample."""
    for line in to_utf8(head).replace(b"\r\n", b"\n").split(b"\n")[:400]:
        if (
            len(line) < 4096
            and not line.startswith((b"#", b"\t"))
            and b":" in line
            and (header_match(line) or TRACE.match(line))
        ):
            return True
    return layout_of(memoryview(head)) is not None


def import_perf_script(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, whether lines had to be left out) of a `perf script` text.

    Every header line is a sample, also where its stack is missing or unreadable: that is said in the notes.
    """
    from nsprof.store.importers.scriptcolumns import add_blocks, blocks

    tables = Tables(layout_of(buf))
    buf = _whole_lines(tables, buf)
    beside = False
    for got in ahead(functools.partial(blocks, layout=tables.layout), stretches(buf, b"\n\n")):
        for piece, follows in add_blocks(tables, got, beside=beside):
            _slowly(tables, piece, follows=follows)
        beside = tables.last_is_odd
        tables.flush()
    tables.flush(last=True)
    return _profile(tables, name)


def _whole_lines(tables: Tables, buf: memoryview) -> memoryview:
    """The text without a last stack line that was cut off: it has no end and no DSO, and the one before has a DSO."""
    tail = bytes(buf[-_TAIL:])
    lines = tail.split(b"\n")
    last = lines[-1].rstrip()
    if not last.startswith((b"\t", b" ")) or last.endswith(b")") or header_match(last, tables.layout):
        return buf
    before = next((line for line in reversed(lines[1:-1]) if line.startswith((b"\t", b"  "))), b"")
    if not before.rstrip().endswith(b")"):
        return buf
    tables.trouble["stack line cut off at the end of the file, left out with what followed it"] += 1
    return buf[: len(buf) - len(lines[-1])]


def _slowly(tables: Tables, piece: bytes, *, follows: bool) -> None:
    """A block that is not just one header and its stack: line by line. `follows`: so was the one before it."""
    head: tuple[int, int, int, float, int, int] | None = None
    frames: list[int] = []
    orphans = 0
    for line in piece.split(b"\n"):
        if not line.strip():
            continue
        if line.startswith(b"#"):
            _information(tables, line)
            continue
        frame = tables.line(line) if line[:1] in b" \t" else -1
        if frame >= 0:
            if head is None:
                orphans += 1
            frames.append(frame)
            continue
        parsed = None if line.startswith(b"\t") else tables.header(line)
        if parsed is not None:
            _finish(tables, head, frames, orphans, follows=follows)
            head, frames, orphans = parsed, [], 0
        elif b"PERF_RECORD_" in line:
            tables.trouble["lines about tasks and mappings, left out"] += 1
        elif not (SOURCE.match(line) and frames):
            tables.trouble["lines that are neither a sample nor a frame, left out"] += 1
    _finish(tables, head, frames, orphans, follows=follows)


def _finish(
    tables: Tables,
    head: tuple[int, int, int, float, int, int] | None,
    frames: list[int],
    orphans: int,
    *,
    follows: bool,
) -> None:
    if head is None:
        if (
            follows
            and orphans
            and tables.leaf
            and tables.leaf[-1] == tables.unknown
            and tables.rest[-1] == tables.empty
        ):
            # A blank line between a header and its stack: nothing else can come before a stack.
            tables.leaf[-1], tables.rest[-1] = frames[0], tables.stack(frames[1:])
            tables.bare -= 1
            tables.trouble["stacks parted from their header by a blank line, joined to it"] += 1
        elif orphans:
            tables.trouble["stack lines without a header, left out"] += orphans
        return
    if not frames and head[5] >= 0:
        frames = [head[5]]
    if not frames:
        tables.bare += 1
        tables.add(head, tables.unknown, tables.empty)
        return
    tables.add(head, frames[0], tables.stack(frames[1:]))


def _information(tables: Tables, line: bytes) -> None:
    found = _INFO.match(line)
    if found:
        key = found[1].decode().replace("os release", "osrelease").replace("nrcpus online", "nrcpus")
        tables.info.setdefault(key, found[2].decode("utf-8", "backslashreplace").strip())


def _profile(tables: Tables, name: str) -> tuple[Profile, bool]:
    if tables.columns:
        columns = [np.concatenate(c) for c in zip(*tables.columns, strict=True)]
    else:
        columns = [np.zeros(0, k) for k in ("u4", "u2", "u2", "f8", "u8", "u4", "u4")]
    tables.columns.clear()
    task, cpu, event, weight, time, leaf, rest = columns
    stacks, stack = _stacks(tables, leaf, rest)
    damaged = any("left out" in what and "tasks" not in what for what in tables.trouble)
    notes = [f"{count} {what}" for what, count in tables.trouble.items()]
    if tables.bare:
        notes.append(f"{tables.bare} samples without a stack: their frame is [unknown]")
    if tables.layout is not None and tables.layout.note:
        notes.append(tables.layout.note)
    if not len(stack):
        notes.append("no samples in it")
    timed = bool(len(time)) and bool((time != np.uint64(NO_TIME)).all())
    cpus = tables.info.get("nrcpus", "0")
    run = Run(
        scenario=Path(name).name,
        kernel=tables.info.get("osrelease", ""),
        cpus=int(cpus) if cpus.isdigit() else 0,
        command=tuple(tables.info.get("cmdline", "").split()),
        losses=a.no_losses(no_stack=tables.bare),
    )
    rows = a.Rows(
        event=event,
        stack=stack,
        weight=weight,
        task=task,
        cpu=cpu,
        time_ns=time if timed else None,
        events=list(tables.events),
        tasks=list(tables.tasks),
    )
    info = {k: v for k, v in tables.info.items() if k in ("hostname", "osrelease", "arch", "cpudesc")}
    profile = a.assemble(
        rows,
        tables.frames.frames(),
        stacks,
        run=run,
        meta=a.source_meta("perf-script", name, notes, **info),
        named=np.array(tables.named, bool),
    )
    return profile, damaged


def _stacks(tables: Tables, leaf: Any, rest: Any) -> tuple[Stacks, Any]:
    """Stacks out of (leaf frame, stack below it) pairs."""
    pair = leaf.astype("u8") << np.uint64(32) | rest.astype("u8")
    first, which = a.grouped(pair)
    distinct = pair[first]
    below = (distinct & np.uint64(0xFFFFFFFF)).astype("i8")
    old = np.frombuffer(tables.offsets, "i8")
    flat = np.frombuffer(tables.flat, "u4") if len(tables.flat) else np.zeros(0, "u4")
    lengths = np.diff(old)[below] + 1
    offsets = np.zeros(len(below) + 1, "i8")
    np.cumsum(lengths, out=offsets[1:])
    pick = np.arange(int(offsets[-1]), dtype="i8") + np.repeat(old[:-1][below] - offsets[:-1] - 1, lengths)
    frames = flat[np.clip(pick, 0, max(len(flat) - 1, 0))] if len(flat) else np.zeros(len(pick), "u4")
    frames = frames.astype("u4")
    frames[offsets[:-1]] = (distinct >> np.uint64(32)).astype("u4")
    stacks, of_pair = a.unique_stacks(frames, offsets)
    return stacks, of_pair[which]

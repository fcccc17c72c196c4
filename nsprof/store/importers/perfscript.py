"""Text of `perf script`, in the forms that people have.

A sample is a header line and a stack, ended by a blank line. Text repeats itself, so the work is done once for every
distinct header prefix (who), header rest (what), leaf line and remaining stack; a sample costs a few dictionary
look-ups, and no object stays behind but its numbers.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from nsprof.model.profile import Event, FrameKind, Profile, Run, Stacks
from nsprof.store.importers import assemble as a
from nsprof.store.importers.perfdata.header import event_unit
from nsprof.store.importers.text import kernel_dso, to_utf8, windows

__all__ = ["import_perf_script", "looks_like"]

_HEADER = re.compile(
    rb"[ ]*(?P<comm>\S(?:.{0,62}?\S)??)\s+(?P<pid>-?\d{1,10})(?:/(?P<tid>-?\d{1,10}))?\s+"
    rb"(?:\[(?P<cpu>\d{1,5})\]\s+)?"
    rb"(?:(?P<time>\d{1,12}\.\d{3,9}):\s*)?"
    rb"(?P<rest>(?:\d{1,19}\s+)?(?=[^\s:]*[A-Za-z])[^\s:]+(?::[^\s:]+)*:(?:\s.*|))$"
)
_REST = re.compile(rb"(?:(?P<period>\d{1,19})\s+)?(?P<event>[^\s:]+(?::[^\s:]+)*):(?:\s+(?P<more>.*))?$", re.DOTALL)
_TRACE = re.compile(  # perf trace: milliseconds, comm/tid, event(payload)
    rb"\s*(?P<time>\d{1,12}\.\d{3}) (?:\([^)]*\): )?(?P<comm>.{1,64})/(?P<tid>-?\d{1,10}) "
    rb"(?P<event>[\w-]+:[\w-]+)\(.*\)$"
)
_FRAME = re.compile(
    rb"\s+(?P<ip>[0-9a-f]+)\s+(?P<name>\S.*?)?(?:\+0x[0-9a-f]+)? "
    rb"\((?P<dso>(?:[/\[]|inlined\)$|bpf_prog_|anon|memfd).*)\)\s*$"
)
_FRAME_ANY_DSO = re.compile(rb"\s+(?P<ip>[0-9a-f]+)\s+(?P<name>\S.*?)(?:\+0x[0-9a-f]+)? \((?P<dso>[^()]*)\)\s*$")
_FRAME_BARE = re.compile(rb"\s+(?P<ip>[0-9a-f]{3,16})(?:\s+(?P<name>\S.*?)(?:\+0x[0-9a-f]+)?)?(?P<dso>)\s*$")
_FRAME_NO_IP = re.compile(rb"\s+(?P<ip>)(?P<name>\S.*?)(?:\+0x[0-9a-f]+)? \((?P<dso>[/\[].*)\)\s*$")
_ADDRESS = re.compile(rb"\t *[0-9a-f]+ \S")
_NOWHERE = b" [unknown] ([unknown])"
_BY_ADDRESS = (b"([unknown])", b"([kernel.kallsyms])", b"()", b"(inlined)", b"])")
_SOURCE = re.compile(rb"\s+\S+:\d+(?: \(discriminator \d+\))?$")
_INFO = re.compile(rb"# (hostname|os release|cpudesc|arch|cmdline|nrcpus online) : (.*)$")

_NO_TIME = 2**64 - 1
_MEMO_BYTES = 96 << 20
_MEMO_ROWS = 400_000
_KERNEL_HALF = 0xFFFF_8000_0000_0000


def looks_like(head: bytes) -> bool:
    """Whether the first lines of a text include the header line of a sample."""
    for line in to_utf8(head).replace(b"\r\n", b"\n").split(b"\n")[:400]:
        if (
            len(line) < 4096
            and not line.startswith((b"#", b"\t"))
            and b":" in line
            and (_header_match(line) or _TRACE.match(line))
        ):
            return True
    return False


def _header_match(line: bytes) -> re.Match[bytes] | None:
    found = _HEADER.match(line[:4096])
    if found is None or b"PERF_RECORD_" in found["rest"]:
        return None
    return found


class _Tables:
    """Frames, stacks, tasks and events seen so far; the columns of the samples."""

    def __init__(self) -> None:
        self.frames = a.FrameTable()
        self.named: list[bool] = []
        self.lines: dict[bytes, int] = {}
        self.symbols: dict[bytes, int] = {}
        self.bodies: dict[bytes, int] = {}
        self.body_bytes = 0
        self.flat = array("I")
        self.offsets = array("q", [0])
        self.who: dict[bytes, tuple[int, int]] = {}
        self.what: dict[bytes, tuple[int, float, int]] = {}
        self.tasks: dict[tuple[int, int, str], int] = {}
        self.events: dict[Event, int] = {}
        self.info: dict[str, str] = {}
        self.trouble: Counter[str] = Counter()
        self.columns: list[tuple[Any, ...]] = []
        self.task: list[int] = []
        self.cpu: list[int] = []
        self.event: list[int] = []
        self.weight: list[float] = []
        self.time: list[int] = []
        self.leaf: list[int] = []
        self.rest: list[int] = []
        self.bare = 0
        self.unknown = self.frame_number("[unknown]", "", FrameKind.UNKNOWN, False)
        self.empty = self.body(b"")

    def frame_number(self, name: str, module: str, kind: FrameKind, named: bool) -> int:
        index = self.frames.add(name, module, kind)
        if index == len(self.named):
            self.named.append(named)
        return index

    def line(self, text: bytes) -> int:
        """Frame of a stack line; -1 when it is none."""
        got = self.lines.get(text)
        if got is None:
            if len(self.lines) > _MEMO_ROWS:
                self.lines.clear()
            got = self.lines[text] = self._known_symbol(text)
        return got

    def _known_symbol(self, text: bytes) -> int:
        """The frame of a line that differs in address and offset only from one that was parsed; else parse it."""
        if text.endswith(_NOWHERE) and _ADDRESS.match(text) and int(text[: -len(_NOWHERE)][-16:], 16) < _KERNEL_HALF:
            return self.frame_number("[unknown]", "", FrameKind.USER, False)
        cut = text.rfind(b"+0x")
        place = text.find(b" (", cut) if cut >= 0 else text.find(b"[unknown] (") + 9
        if place < 9 or not _ADDRESS.match(text) or text.count(b"+0x") > 1:
            return self._parse_frame(text)
        key = text.lstrip().partition(b" ")[2].partition(b"+0x" if cut >= 0 else b" (")[0] + text[place:]
        got = self.symbols.get(key)
        if got is None:
            got = self._parse_frame(text)
            # A nameless frame whose kind hangs on its address, or whose name is its address, stands for itself only.
            if got >= 0 and (self.named[got] or (cut < 0 and not key.endswith(_BY_ADDRESS))):
                if len(self.symbols) > _MEMO_ROWS:
                    self.symbols.clear()
                self.symbols[key] = got
        return got

    def _parse_frame(self, text: bytes) -> int:
        found = (
            _FRAME.match(text) or _FRAME_ANY_DSO.match(text) or _FRAME_BARE.match(text) or _FRAME_NO_IP.match(text)
        )
        if found is None or (not text.startswith(b"\t") and _header_match(text)):
            return -1
        name = (found["name"] or b"[unknown]").decode("utf-8", "backslashreplace")
        kind, module = kernel_dso(found["dso"].decode("utf-8", "backslashreplace"))
        address = int(found["ip"][-16:], 16) if found["ip"] else 0
        if kind is FrameKind.UNKNOWN and found["dso"] != b"inlined":
            kind = FrameKind.KERNEL if address >= _KERNEL_HALF else FrameKind.USER if found["ip"] else kind
        named = name != "[unknown]"
        if name.startswith("[0x") and name.endswith("]"):
            name, named = name[1:-1], False
        if not named and kind is FrameKind.KERNEL and found["ip"]:
            name = f"{address:#018x}"
        return self.frame_number(name, module, kind, named)

    def body(self, text: bytes) -> int:
        """Number of a stack given as text without its leaf line; -1 when some line of it is no frame."""
        lines = text.split(b"\n") if text else []
        known = list(map(self.lines.get, lines))
        frames = [self.line(lines[i]) if f is None else f for i, f in enumerate(known)]
        if frames and min(frames) < 0:
            return -1
        if self.body_bytes > _MEMO_BYTES:
            self.bodies.clear()
            self.body_bytes = 0
        self.flat.extend(frames)
        self.offsets.append(len(self.flat))
        number = self.bodies[text] = len(self.offsets) - 2
        self.body_bytes += len(text) + 150
        return number

    def header(self, line: bytes) -> tuple[int, int, int, float, int, int] | None:
        """(task, cpu, event, weight, time_ns, leaf frame or -1) of a header line, None when it is none."""
        found = _header_match(line)
        if found is None:
            return self._trace_header(line)
        rest = _REST.match(found["rest"])
        if rest is None:
            return None
        task, cpu = self._who(found)
        event, weight, leaf = self._what(rest)
        return task, cpu, event, weight, _nanoseconds(found["time"]), leaf

    def _who(self, found: re.Match[bytes]) -> tuple[int, int]:
        pid = int(found["pid"])
        tid = int(found["tid"]) if found["tid"] else pid
        tgid = pid if found["tid"] else (0 if pid == 0 else -1)
        comm = found["comm"].decode("utf-8", "backslashreplace")
        task = self.tasks.setdefault((tgid if found["tid"] else pid, tid, comm), len(self.tasks))
        return task, min(int(found["cpu"]), 0xFFFF) if found["cpu"] else 0xFFFF

    def _what(self, rest: re.Match[bytes]) -> tuple[int, float, int]:
        name = rest["event"].decode("utf-8", "backslashreplace")
        weight = float(rest["period"]) if rest["period"] else 1.0
        unit = event_unit(name) if rest["period"] else "count"
        event = self.events.setdefault(Event(name, unit), len(self.events))
        more = (rest["more"] or b"").rstrip()
        leaf = self.line(b"\t" + more.lstrip()) if more and _FRAME.match(b"\t" + more.lstrip()) else -1
        return event, weight, leaf

    def _trace_header(self, line: bytes) -> tuple[int, int, int, float, int, int] | None:
        found = _TRACE.match(line[:4096])
        if found is None:
            return None
        tid = int(found["tid"])
        comm = found["comm"].decode("utf-8", "backslashreplace")
        task = self.tasks.setdefault((tid, tid, "swapper" if comm == ":0" else comm), len(self.tasks))
        event = self.events.setdefault(Event(found["event"].decode(errors="replace"), "count"), len(self.events))
        return task, 0xFFFF, event, 1.0, int(float(found["time"]) * 1e6), -1

    def add(self, head: tuple[int, int, int, float, int, int], leaf: int, rest: int) -> None:
        self.task.append(head[0])
        self.cpu.append(head[1])
        self.event.append(head[2])
        self.weight.append(head[3])
        self.time.append(head[4])
        self.leaf.append(leaf)
        self.rest.append(rest)

    def flush(self, *, last: bool = False) -> None:
        """Put the lists away as numpy columns - but for the last row, which a stray stack may still belong to."""
        if len(self.task) > (0 if last else 1):
            lists = (self.task, self.cpu, self.event, self.weight, self.time, self.leaf, self.rest)
            kinds = ("u4", "u2", "u2", "f8", "u8", "u4", "u4")
            stop = None if last else -1
            self.columns.append(tuple(np.array(x, k)[:stop] for x, k in zip(lists, kinds, strict=True)))
            for values in (self.task, self.cpu, self.event, self.time, self.leaf, self.rest):
                del values[:stop]
            del self.weight[:stop]


def _nanoseconds(text: bytes | None) -> int:
    if not text:
        return _NO_TIME
    seconds, _, fraction = text.partition(b".")
    return int(seconds) * 1_000_000_000 + int(fraction.ljust(9, b"0"))


def import_perf_script(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, whether lines had to be left out) of a `perf script` text.

    Every header line is a sample, also where its stack is missing or unreadable: that is said in the notes.
    """
    tables = _Tables()
    for window in windows(buf, b"\n\n"):
        _pieces(tables, window.split(b"\n\n"))
        tables.flush()
    tables.flush(last=True)
    return _profile(tables, name)


def _pieces(tables: _Tables, pieces: list[bytes]) -> None:
    """Add the samples of some blank-line separated pieces; the loop that everything else keeps short."""
    bodies, lines, who, what = tables.bodies, tables.lines, tables.who, tables.what
    task, cpu, event, weight = tables.task.append, tables.cpu.append, tables.event.append, tables.weight.append
    time, leaf_, rest_ = tables.time.append, tables.leaf.append, tables.rest.append
    for piece in pieces:
        parts = piece.split(b"\n", 2)
        if len(parts) == 3:
            head, first, body = parts
        elif len(parts) == 2:
            head, first = parts
            body = b""
        else:
            _slowly(tables, piece)
            continue
        rest = bodies.get(body)
        leaf = lines.get(first)
        if rest is None:
            rest = tables.body(body)
        if leaf is None:
            leaf = tables.line(first)
        if rest < 0 or leaf < 0:
            _slowly(tables, piece)
            continue
        colon = head.find(b": ")
        space = head.rfind(b" ", 0, colon)
        known = who.get(head[:space])
        meaning = what.get(head[colon:])
        if known is None or meaning is None:
            _learn(tables, piece, head, (space, colon), (leaf, rest))
            continue
        stamp = head[space + 1 : colon]
        task(known[0])
        cpu(known[1])
        event(meaning[0])
        weight(meaning[1])
        time(int(stamp.replace(b".", b"")) * _SCALE[len(stamp) - stamp.find(b".")])
        leaf_(leaf)
        rest_(rest)


#: length of ".fraction" -> what makes nanoseconds of the digits
_SCALE = [0, 0, *(10 ** (9 - digits) for digits in range(1, 10)), *([0] * 20)]
_TIMED = re.compile(rb"\d{1,12}\.\d{3,9}$")


def _learn(tables: _Tables, piece: bytes, head: bytes, cuts: tuple[int, int], stack: tuple[int, int]) -> None:
    """A header whose parts were not met before: parse it, and remember them if they are of the usual form."""
    parsed = tables.header(head)
    space, colon = cuts
    if parsed is None:
        _slowly(tables, piece)
        return
    tables.add(parsed, *stack)
    found = _header_match(head)
    if found is None or not found["time"] or not _TIMED.match(head[space + 1 : colon]):
        return
    if found.start("time") != space + 1 or found.end("time") != colon:
        return
    if len(tables.who) > _MEMO_ROWS:
        tables.who.clear()
    if len(tables.what) > _MEMO_ROWS:
        tables.what.clear()
    tables.who[head[:space]] = parsed[0], parsed[1]
    tables.what[head[colon:]] = parsed[2], parsed[3], parsed[5]


def _slowly(tables: _Tables, piece: bytes) -> None:
    """A piece that is not just one header and its stack: line by line."""
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
            _finish(tables, head, frames, orphans)
            head, frames, orphans = parsed, [], 0
        elif b"PERF_RECORD_" in line:
            tables.trouble["lines about tasks and mappings, left out"] += 1
        elif not (_SOURCE.match(line) and frames):
            tables.trouble["lines that are neither a sample nor a frame, left out"] += 1
    _finish(tables, head, frames, orphans)


def _finish(
    tables: _Tables, head: tuple[int, int, int, float, int, int] | None, frames: list[int], orphans: int
) -> None:
    if head is None:
        if orphans and tables.leaf and tables.leaf[-1] == tables.unknown and tables.rest[-1] == tables.empty:
            # A blank line between a header and its stack: nothing else can come before a stack.
            tables.leaf[-1], tables.rest[-1] = frames[0], _row(tables, frames[1:])
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
    tables.add(head, frames[0], _row(tables, frames[1:]))


def _row(tables: _Tables, frames: list[int]) -> int:
    if not frames:
        return tables.empty
    tables.flat.extend(frames)
    tables.offsets.append(len(tables.flat))
    return len(tables.offsets) - 2


def _information(tables: _Tables, line: bytes) -> None:
    found = _INFO.match(line)
    if found:
        key = found[1].decode().replace("os release", "osrelease").replace("nrcpus online", "nrcpus")
        tables.info.setdefault(key, found[2].decode("utf-8", "backslashreplace").strip())


def _profile(tables: _Tables, name: str) -> tuple[Profile, bool]:
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
    if not len(stack):
        notes.append("no samples in it")
    timed = bool(len(time)) and bool((time != np.uint64(_NO_TIME)).all())
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


def _stacks(tables: _Tables, leaf: Any, rest: Any) -> tuple[Stacks, Any]:
    """Stacks out of (leaf frame, stack below it) pairs."""
    pair = leaf.astype("u8") << np.uint64(32) | rest.astype("u8")
    distinct, inverse = np.unique(pair, return_inverse=True)
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
    return stacks, of_pair[inverse.ravel()]

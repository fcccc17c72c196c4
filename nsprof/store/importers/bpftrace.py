"""Maps that bpftrace prints (`@[kstack, comm]: 3`) and the text of bcc's profile and offcputime."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, FrameKind, Profile, Run
from nsprof.store.importers import assemble as a
from nsprof.store.importers.text import KERNEL_ENTRY, kernel_dso, to_utf8, windows

__all__ = ["import_bcc_profile", "import_bpftrace", "looks_like_bcc", "looks_like_map"]

_OPEN = re.compile(rb"@[A-Za-z0-9_]*\[\s*(.*)$")
_CLOSE = re.compile(rb"(.*)\]:\s*(-?\d{1,18})\s*$")
_FRAME = re.compile(rb"\s+(?:([0-9a-f]{8,16})\s+)?(\S.*?)(?:\+(?:0x)?[0-9a-f]+)?(?: \(([^()]*)\))?,?$")
_TASK = re.compile(rb"\s+-\s+(.{1,64}?)\s+\((\d{1,10})\)$")  # bcc writes `-    comm (pid)` below the frames
_COUNT = re.compile(rb"\s+(\d{1,18})$")
_HINT = re.compile(rb"Sampling at \d+|Tracing off-CPU|\S.*Hertz of .* by ")
_MAX_FRAMES = 4096


def looks_like_map(head: bytes) -> bool:
    """Whether there is a bpftrace map whose key spans lines."""
    text = to_utf8(head).replace(b"\r\n", b"\n")
    return re.search(rb"^@[A-Za-z0-9_]*\[\s*(?:\n|.*\]: -?\d+\s*$)", text, re.MULTILINE) is not None


def looks_like_bcc(head: bytes) -> bool:
    """Whether there is a block of indented frames ending in `- comm (pid)` and an indented count."""
    text = head.replace(b"\r\n", b"\n")
    return re.search(rb"^ {4}\S.*\n {4}(?:-|\S+)\s+.*\(\d+\)\n {8}\d+$", text, re.MULTILINE) is not None


class _Build:
    """Stacks with counts and tasks, on their way into a profile."""

    def __init__(self) -> None:
        self.frames = a.FrameTable()
        self.rows: list[tuple[int, int, int]] = []
        self.flat: list[int] = []
        self.offsets = [0]
        self.stacks: dict[tuple[int, ...], int] = {}
        self.tasks: dict[tuple[int, int, str], int] = {}
        self.trouble: Counter[str] = Counter()

    def add(self, frames: list[tuple[str, str, FrameKind]], task: tuple[int, int, str], count: int) -> None:
        """One map entry: frames leaf first."""
        inferred = max((i for i, f in enumerate(frames) if f[0] in KERNEL_ENTRY), default=-1)
        numbers = tuple(
            self.frames.add(n, m, FrameKind.KERNEL if i <= inferred and k is FrameKind.UNKNOWN else k)
            for i, (n, m, k) in enumerate(frames or [("[unknown]", "", FrameKind.UNKNOWN)])
        )
        stack = self.stacks.get(numbers)
        if stack is None:
            stack = self.stacks[numbers] = len(self.stacks)
            self.flat.extend(numbers)
            self.offsets.append(len(self.flat))
        self.rows.append((stack, self.tasks.setdefault(task, len(self.tasks)), count))

    def profile(self, name: str, importer: str, event: Event, notes: list[str]) -> Profile:
        stacks, row = a.unique_stacks(np.array(self.flat, "u4"), np.array(self.offsets, "i8"))
        columns = np.array(self.rows, "i8").reshape(-1, 3)
        notes = [*notes, *(f"{count} {what}" for what, count in self.trouble.items())]
        frames = self.frames.frames()
        made = a.Rows(
            event=np.zeros(len(columns), "u1"),
            stack=row[columns[:, 0]] if len(columns) else columns[:, 0],
            weight=columns[:, 2].astype("f8"),
            count=columns[:, 2].clip(0),
            task=columns[:, 1],
            events=[event],
            tasks=list(self.tasks),
        )
        named = np.array([not n.startswith(("[unknown", "0x")) for n in frames.name], bool)
        run = Run(scenario=Path(name).name, losses=a.no_losses())
        return a.assemble(made, frames, stacks, run=run, meta=a.source_meta(importer, name, notes), named=named)


def _frame(found: re.Match[bytes], kind: FrameKind) -> tuple[str, str, FrameKind]:
    name = found[2].decode("utf-8", "backslashreplace")
    module = ""
    if found[3]:
        told, module = kernel_dso(found[3].decode("utf-8", "backslashreplace"))
        kind = told if told is not FrameKind.UNKNOWN else kind
    elif name.endswith("]") and " [" in name:  # bpftrace -v perf mode: symbol [module]
        name, _, module = name[:-1].rpartition(" [")
        kind = FrameKind.KERNEL
    return name, module, kind


def import_bpftrace(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, damaged) of bpftrace maps keyed by stacks; several stacks of a key stand for leaf part and root part.

    Keys that are no stack (pid, comm) become the task where they are told apart.
    """
    build = _Build()
    inside = False
    frames: list[tuple[str, str, FrameKind]] = []
    words: list[bytes] = []
    for window in windows(buf, b"\n"):
        for line in window.split(b"\n"):
            opened = None if inside else _OPEN.match(line)
            if opened:
                inside, frames, words = True, [], []
            if not inside:
                if line.strip() and not line.startswith((b"Attaching", b"Attached", b"#")):
                    build.trouble["lines outside of maps, left out"] += 1
                continue
            text = opened[1] if opened else line
            closed = _CLOSE.match(text)
            body = closed[1] if closed else text
            if body.strip(b" ,\n"):
                found = _FRAME.match(body) if body[:1] in b" \t" else None
                if found and len(frames) < _MAX_FRAMES:
                    frames.append(_frame(found, FrameKind.UNKNOWN))
                else:
                    words.extend(w.strip() for w in body.strip(b" ,").split(b",") if w.strip())
            if closed:
                build.add(frames, _task(words), int(closed[2]))
                inside = False
    if inside:
        build.trouble["map entry cut off at the end, left out"] += 1
    if not build.rows:
        raise ProfileFormatError(f"{name}: no map of stacks in it")
    damaged = any("cut off" in what for what in build.trouble)
    return build.profile(name, "bpftrace", Event("samples", "count"), []), damaged


def _task(words: list[bytes]) -> tuple[int, int, str]:
    """The task in the parts of a key that are no stack: the first number is a pid, the first word a comm."""
    pid = next((int(w) for w in words if re.fullmatch(rb"\d{1,10}", w)), 0)
    comm = next((w for w in words if not re.fullmatch(rb"-?\d+", w)), b"")
    return pid, pid, comm.decode("utf-8", "backslashreplace")


def import_bcc_profile(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, damaged) of bcc's profile (samples) or offcputime (microseconds), not folded."""
    build = _Build()
    frames: list[tuple[str, str, FrameKind]] = []
    task: tuple[int, int, str] | None = None
    off_cpu = False
    for window in windows(buf, b"\n"):
        for line in window.split(b"\n"):
            count = _COUNT.match(line) if task else None
            owner = _TASK.match(line)
            if not line.strip():
                continue
            if not line.startswith((b" ", b"\t")):
                off_cpu = off_cpu or line.startswith(b"Tracing off-CPU")
                if not _HINT.match(line):
                    build.trouble["lines outside of stacks, left out"] += 1
            elif count and task:
                build.add(frames, task, int(count[1]))
                frames, task = [], None
            elif owner:
                task = int(owner[2]), int(owner[2]), owner[1].decode("utf-8", "backslashreplace")
            elif line.strip() == b"--":
                # profile -d: what stands above the delimiter is the kernel's part
                frames = [(n, m, FrameKind.KERNEL if k is FrameKind.UNKNOWN else k) for n, m, k in frames]
            elif (found := _FRAME.match(line)) and len(frames) < _MAX_FRAMES:
                frames.append(_frame(found, FrameKind.UNKNOWN))
            else:
                build.trouble["lines that are no frame, left out"] += 1
    if not build.rows:
        raise ProfileFormatError(f"{name}: no stack with a count in it")
    event = Event("off-cpu", "ns") if off_cpu else Event("samples", "count")
    profile = build.profile(name, "bcc-profile", event, [])
    if off_cpu:
        from dataclasses import replace

        profile = profile.with_(samples=replace(profile.samples, weight=profile.samples.weight * 1000.0))
    cut = bool(frames)
    return profile, cut

"""pprof profiles (profile.proto of github.com/google/pprof), read from the wire format without a protobuf library."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import (
    Context,
    Device,
    Direction,
    Event,
    FrameKind,
    Lateness,
    Namespace,
    Profile,
    Run,
)
from nsprof.store.importers import assemble as a
from nsprof.store.importers.text import event_unit, kernel_dso

__all__ = ["import_pprof", "looks_like"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_STACK = 100_000
_UNITS = {
    "nanoseconds": ("ns", 1.0),
    "microseconds": ("ns", 1e3),
    "milliseconds": ("ns", 1e6),
    "seconds": ("ns", 1e9),
}


class _Broken(Exception):
    """The wire format ends or makes no sense at `at`."""

    def __init__(self, at: int) -> None:
        super().__init__(str(at))
        self.at = at


def _varint(buf: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    start = at
    while True:
        if at >= len(buf) or shift > 63:
            raise _Broken(start)
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def _fields(buf: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of a message; raises _Broken where it ends early."""
    at = 0
    while at < len(buf):
        start = at
        key, at = _varint(buf, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise _Broken(start)
        if kind == _VARINT:
            value, at = _varint(buf, at)
            yield number, kind, value
        elif kind == _BYTES:
            size, at = _varint(buf, at)
            if at + size > len(buf):
                raise _Broken(start)
            yield number, kind, buf[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            if at + size > len(buf):
                raise _Broken(start)
            yield number, kind, int.from_bytes(buf[at : at + size], "little")
            at += size
        else:
            raise _Broken(start)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _numbers(kind: int, value: Any) -> list[int]:
    """A repeated integer, packed or not."""
    if kind == _VARINT:
        return [value]
    if kind != _BYTES:
        return []
    out: list[int] = []
    at = 0
    while at < len(value):
        each, at = _varint(value, at)
        out.append(each)
    return out


def looks_like(head: bytes) -> bool:
    """Whether the bytes begin like a Profile message (sample_type or another of its fields, wire types right)."""
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 16)
        except zlib.error:
            return False
    allowed = {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 0, 8: 0, 9: 0, 10: 0, 11: 2, 12: 0, 13: None, 14: 0, 15: 0}
    seen = 0
    try:
        for number, kind, value in _fields(head):
            if number not in allowed or allowed[number] not in (None, kind):
                return False
            if number == 1 and any(n not in (1, 2) or k != _VARINT for n, k, _ in _fields(value)):
                return False
            seen += 1
            if seen > 100:
                return True
    except _Broken:
        return seen > 2
    return seen > 2


@dataclass(slots=True)
class _Message:
    """The fields of a Profile that matter, as raw as possible."""

    types: list[tuple[int, int]] = field(default_factory=list)
    samples: list[bytes] = field(default_factory=list)
    mappings: dict[int, tuple[int, bool]] = field(default_factory=dict)
    locations: dict[int, tuple[int, int, list[tuple[int, int]]]] = field(default_factory=dict)
    functions: dict[int, tuple[int, int]] = field(default_factory=dict)
    strings: list[bytes] = field(default_factory=list)
    comments: list[int] = field(default_factory=list)
    time_ns: int = 0
    duration_ns: int = 0
    period: int = 0
    period_type: tuple[int, int] = (0, 0)
    damage: str = ""

    def text(self, index: int) -> str:
        """String of the table; "" for an index beyond it."""
        return self.strings[index].decode("utf-8", "backslashreplace") if index < len(self.strings) else ""


def _pairs(raw: bytes) -> dict[int, int]:
    return {n: v for n, k, v in _fields(raw) if k == _VARINT}


def _parse(raw: bytes) -> _Message:
    out = _Message()
    try:
        for number, kind, value in _fields(raw):
            if kind == _BYTES:
                _nested(out, number, value)
            elif number == 9:
                out.time_ns = value
            elif number == 10:
                out.duration_ns = value
            elif number == 12:
                out.period = _signed(value)
            if number == 13:
                out.comments.extend(_numbers(kind, value))
    except _Broken as broken:
        out.damage = f"damaged: the protobuf message breaks at byte {broken.at}; what stands before it was kept"
    return out


def _nested(out: _Message, number: int, value: bytes) -> None:
    if number == 6:
        out.strings.append(value)
    elif number == 2:
        out.samples.append(value)
    elif number in (1, 11):
        pair = _pairs(value)
        if number == 1:
            out.types.append((pair.get(1, 0), pair.get(2, 0)))
        else:
            out.period_type = pair.get(1, 0), pair.get(2, 0)
    elif number == 3:
        pair = _pairs(value)
        out.mappings[pair.get(1, 0)] = pair.get(5, 0), bool(pair.get(7, 0))
    elif number == 5:
        pair = _pairs(value)
        out.functions[pair.get(1, 0)] = pair.get(2, 0), pair.get(4, 0)
    elif number == 4:
        lines = []
        for n, k, v in _fields(value):
            if n == 4 and k == _BYTES:
                line = _pairs(v)
                lines.append((line.get(1, 0), _signed(line.get(2, 0))))
        pair = _pairs(value)
        out.locations[pair.get(1, 0)] = pair.get(2, 0), pair.get(3, 0), lines


class _Frames:
    """Frames of locations; a location with inlined functions is several, the innermost first."""

    def __init__(self, message: _Message) -> None:
        self.message = message
        self.table = a.FrameTable()
        self.known: dict[int, list[int]] = {}

    def of(self, location: int) -> list[int]:
        got = self.known.get(location)
        if got is None:
            got = self.known[location] = self._make(location)
        return got

    def _make(self, location: int) -> list[int]:
        message = self.message
        mapping, address, lines = message.locations.get(location, (0, 0, []))
        file = message.text(message.mappings.get(mapping, (0, False))[0])
        kind, module = kernel_dso(file)
        if kind is FrameKind.UNKNOWN and file.startswith("[kernel"):
            kind = FrameKind.KERNEL
        if not lines:
            name = f"{address:#018x}" if address else "[unknown]"
            return [self.table.add(name if kind is FrameKind.KERNEL or not file else "[unknown]", module, kind)]
        out = []
        for function, line in lines:
            name_at, file_at = message.functions.get(function, (0, 0))
            name, source = message.text(name_at) or "[unknown]", message.text(file_at)
            out.append(self.table.add(name, module, kind, f"{source}:{line}" if source and line > 0 else source))
        return out


def import_pprof(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, damaged) of a pprof file. Every sample type is an event of its own; labels become namespace, device,
    context, cpu, task and scenario where they have these names (as nsprof's export writes them)."""
    message = _parse(bytes(buf))
    if not message.types or not message.strings:
        raise ProfileFormatError(f"{name}: no pprof profile ({message.damage or 'it names no sample type'})")
    if len(message.types) > 200:
        raise ProfileFormatError(f"{name}: {len(message.types)} sample types are too many")
    got = _Gathered(message, _Frames(message), _Labels(), _count_index(message))
    bad = 0
    for raw in message.samples:
        try:
            locations, values, label = _sample(raw, message)
        except _Broken:
            bad += 1
            continue
        if len(locations) > _MAX_STACK or len(values) > len(message.types):
            bad += 1
            continue
        got.add(locations, values, label)
    notes = [message.damage] if message.damage else []
    if bad:
        notes.append(f"damaged: {bad} samples are malformed and were left out")
    return _profile(name, got, notes), bool(notes)


def _count_index(message: _Message) -> dict[int, int]:
    """Sample types that are the counts of another: `x_samples/count` for `x`, `samples/count` for the only other."""
    names = [message.text(t) for t, _ in message.types]
    units = [message.text(u) for _, u in message.types]
    out = {}
    for index, each in enumerate(names):
        partner = next((i for i, n in enumerate(names) if n == f"{each}_samples" and units[i] == "count"), None)
        if partner is None and len(names) == 2 and index != 0 and names[0] == "samples" and units[0] == "count":
            partner = 0
        if partner is not None and partner != index:
            out[index] = partner
    return out


def _sample(raw: bytes, message: _Message) -> tuple[list[int], list[int], dict[str, str | int]]:
    locations: list[int] = []
    values: list[int] = []
    label: dict[str, str | int] = {}
    for number, kind, value in _fields(raw):
        if number == 1:
            locations.extend(_numbers(kind, value))
        elif number == 2:
            values.extend(_signed(v) for v in _numbers(kind, value))
        elif number == 3 and kind == _BYTES:
            pair = _pairs(value)
            key = message.text(pair.get(1, 0))
            label[key] = message.text(pair[2]) if pair.get(2) else _signed(pair.get(3, 0))
    return locations, values, label


class _Labels:
    """What labels say, as columns: cpu, task, task_ns, hop_ns, hop_dev, context, run, slice, hop_dir, hop_depth,
    lateness."""

    def __init__(self) -> None:
        self.tasks: dict[tuple[int, int, str], int] = {}
        self.namespaces: dict[str, int] = {}
        self.devices: dict[tuple[int, str], int] = {}
        self.runs: dict[tuple[str, int], int] = {}
        self.seen = False

    def add(self, label: dict[str, str | int]) -> tuple[int, ...]:
        def number(key: str, default: int = 0) -> int:
            value = label.get(key, default)
            return value if isinstance(value, int) and 0 <= value < 1 << 31 else default

        self.seen = self.seen or bool(label)
        comm = str(label.get("comm", label.get("thread_comm", "")))
        task = self.tasks.setdefault((number("pid"), number("tid", number("pid")), comm), len(self.tasks))
        task_ns, hop_ns = (self._namespace(label.get(k, "")) for k in ("task_namespace", "namespace"))
        device = str(label.get("device", ""))
        hop_dev = self.devices.setdefault((hop_ns, device), len(self.devices)) + 1 if device else 0
        words = Context.__members__
        context = words.get(str(label.get("context", "")).upper(), Context.UNKNOWN) if "context" in label else -1
        run = self.runs.setdefault((str(label.get("scenario", "")), number("run")), len(self.runs))
        direction = Direction.__members__.get(str(label.get("direction", "")).upper(), Direction.UNKNOWN)
        lateness = Lateness.__members__.get(str(label.get("lateness", "")).upper(), Lateness.UNKNOWN)
        where = (min(number("cpu", 0xFFFF), 0xFFFF), task, task_ns, hop_ns, hop_dev, int(context))
        return (*where, min(run, 0xFFFF), number("second"), int(direction), min(number("depth"), 255), int(lateness))

    def _namespace(self, name: str | int) -> int:
        return self.namespaces.setdefault(str(name), len(self.namespaces)) + 1 if name else 0


@dataclass(slots=True)
class _Gathered:
    """Samples read so far: stacks in compressed rows; (stack, event, value), count (-1: unknown) and labels a row."""

    message: _Message
    frames: _Frames
    labels: _Labels
    count_of: dict[int, int]
    flat: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    labelled: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, locations: list[int], values: list[int], label: dict[str, str | int]) -> None:
        """One sample: a row for each of its values that is not 0 and is no count of another."""
        for location in locations:
            self.flat.extend(self.frames.of(location))
        if len(self.flat) == self.offsets[-1]:
            self.flat.append(self.frames.table.add("[unknown]", "", FrameKind.UNKNOWN))
        self.offsets.append(len(self.flat))
        where = self.labels.add(label)
        for index, value in enumerate(values):
            if value and index not in self.count_of.values():
                partner = self.count_of.get(index)
                known = partner is not None and partner < len(values)
                self.rows.append((len(self.offsets) - 2, index, value))
                self.counts.append(max(0, values[partner]) if known and partner is not None else -1)
                self.labelled.append(where)


def _profile(name: str, got: _Gathered, notes: list[str]) -> Profile:
    message, frames, labels, count_of = got.message, got.frames, got.labels, got.count_of
    flat, offsets, rows, counts, labelled = got.flat, got.offsets, got.rows, got.counts, got.labelled
    stacks, of_row = a.unique_stacks(np.array(flat, "u4"), np.array(offsets, "i8"))
    table = np.array(rows, "i8").reshape(-1, 3)
    where = np.array(labelled, "i8").reshape(-1, 11)
    events: list[Event] = []
    scale = np.ones(len(message.types))
    number = np.zeros(len(message.types), "u1")
    for index, (kind, unit_at) in enumerate(message.types):
        if index in count_of.values():
            continue
        kind_name, unit = message.text(kind) or "samples", message.text(unit_at)
        unit, scale[index] = _UNITS.get(unit, (unit or "count", 1.0))
        if unit == "count":
            unit = event_unit(kind_name) if event_unit(kind_name) not in ("ns",) else "count"
        number[index] = len(events)
        same = message.period_type == (kind, unit_at)
        events.append(Event(kind_name, unit, period=int(max(0, message.period) * scale[index]) if same else 0))
    weight = table[:, 2] * scale[table[:, 1]]
    known = np.array(counts, "i8")
    plain, _ = a.context_column(frames.table.frames(), stacks)
    stack = of_row[table[:, 0]] if len(table) else table[:, 0]
    context = np.where(where[:, 5] >= 0, where[:, 5], plain[stack] if len(stack) else 0)
    # A weight that no sample stands for (another tool rounded it away) is still of one at least.
    guess = np.where(known > 0, known, np.ceil(np.abs(weight)) if _counts_itself(events) else 1)
    names = [scenario for scenario, _ in labels.runs] or [""]
    made = a.Rows(
        event=number[table[:, 1]],
        stack=stack,
        weight=weight,
        count=guess,
        cpu=where[:, 0],
        task=where[:, 1],
        task_ns=where[:, 2],
        context=context,
        events=events,
        tasks=list(labels.tasks),
        namespaces=[_namespace(n) for n in labels.namespaces],
        extra={
            "run": where[:, 6],
            "hop_ns": where[:, 3],
            "hop_dev": where[:, 4],
            "slice": where[:, 7],
            "hop_dir": where[:, 8],
            "hop_depth": where[:, 9],
            "lateness": where[:, 10],
        },
    )
    run = Run(
        scenario=names[0] or Path(name).name,
        started=message.time_ns / 1e9,
        duration_s=message.duration_ns / 1e9,
        losses=a.no_losses(),
    )
    comments = [message.text(c) for c in message.comments if message.text(c)]
    several = max(Counter(names).values())
    means = [f"{several} runs of one scenario: figures that are not per unit of work are the mean of a run"] * (
        several > 1
    )
    meta = a.source_meta("pprof", name, [*notes, *means, *comments])
    profile = a.assemble(made, frames.table.frames(), stacks, run=run, meta=meta)
    more = tuple(Run(scenario=n, losses=a.no_losses()) for n in names[1:65536])
    devices = tuple(Device(ns, 0, dev) for ns, dev in labels.devices)
    return profile.with_(runs=profile.runs + more, devices=devices)


def _counts_itself(events: list[Event]) -> bool:
    return len(events) == 1 and events[0].unit == "count"


def _namespace(name: str) -> Namespace:
    if name.startswith("net:[") and name.endswith("]") and name[5:-1].isdigit():
        return Namespace(min(int(name[5:-1]), 2**63 - 1))
    return Namespace(0, name=name)

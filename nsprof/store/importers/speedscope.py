"""speedscope's own JSON (https://www.speedscope.app/file-format-schema.json): sampled and evented profiles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, FrameKind, Profile, Run
from nsprof.store.importers import assemble as a
from nsprof.store.importers.text import KERNEL_ENTRY, kernel_dso, to_utf8

__all__ = ["import_speedscope", "looks_like"]

_UNITS = {"nanoseconds": 1.0, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
_MAX_BYTES = 1 << 30


def looks_like(head: bytes) -> bool:
    """Whether it is JSON that names speedscope's schema, or has its `shared` frames and `profiles`."""
    text = to_utf8(head).lstrip()
    return text.startswith(b"{") and (
        b"speedscope.app/file-format-schema.json" in text or (b'"shared"' in text and b'"frames"' in text)
    )


def import_speedscope(buf: memoryview, name: str) -> tuple[Profile, bool]:
    """(profile, damaged). Each unit is an event; a profile's name becomes the thread's name.

    Raises ProfileFormatError for JSON that is damaged or is not of this form.
    """
    if len(buf) > _MAX_BYTES:
        raise ProfileFormatError(f"{name}: {len(buf)} bytes of JSON are too many")
    try:
        data = json.loads(to_utf8(bytes(buf)))
        cut = ""
    except (ValueError, RecursionError) as error:
        data, cut = _before(to_utf8(bytes(buf)), error, name)
    try:
        return _convert(data, name, cut)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, ValueError) as error:
        raise ProfileFormatError(f"{name}: not of speedscope's form ({type(error).__name__}: {error})") from error


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_MAX_NESTING = 64


def _before(raw: bytes, error: Exception, name: str) -> tuple[Any, str]:
    """(what stands whole before the place where JSON breaks, words about it).

    The text is cut behind the last value that is complete, and what is still open there is closed.
    """
    place = getattr(error, "pos", None)
    failure = ProfileFormatError(f"{name}: its JSON is damaged ({error})")
    if not isinstance(place, int):
        raise failure from error
    text = raw.decode("utf-8", "replace")[:place].encode()
    opened: list[bytes] = []
    good: tuple[int, list[bytes]] = 0, []
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in (b"[", b"{"):
            opened.append(b"]" if sign == b"[" else b"}")
            if len(opened) > _MAX_NESTING:
                raise failure from error
        elif sign in (b"]", b"}"):
            if not opened or opened.pop() != sign:
                raise failure from error
            good = token.end(), opened.copy()
        elif sign == b"," and opened and opened[-1] == b"]":
            good = token.start(), opened.copy()
    end, closing = good
    try:
        whole = json.loads(text[:end] + b"".join(reversed(closing)))
    except ValueError:
        raise failure from error
    return whole, f"damaged: its JSON breaks at character {place:,} ({error})"


class _Tables:
    def __init__(self, frames: list[dict[str, Any]], *, cut: bool) -> None:
        self.cut = cut  # frames that are missing are unknown then
        self.table = a.FrameTable()
        self.own = [self._frame(f) for f in frames]
        self.flat: list[int] = []
        self.offsets = [0]
        self.stacks: dict[tuple[int, ...], int] = {}
        self.rows: list[tuple[int, int, int, float]] = []
        self.events: dict[Event, int] = {}
        self.tasks: dict[tuple[int, int, str], int] = {}
        self.open_at_end = 0

    @staticmethod
    def _frame(frame: dict[str, Any]) -> tuple[str, str, FrameKind, str]:
        """(name, module, kind, source): a file without a line that is a DSO is the module."""
        name, file, line = str(frame["name"]), str(frame.get("file") or ""), frame.get("line")
        kind, module = kernel_dso(file)
        if line or kind is FrameKind.UNKNOWN or (kind is FrameKind.USER and "/" in file):
            return name, "", FrameKind.UNKNOWN, (f"{file}:{int(line)}" if line else file)
        return name, module, kind, ""

    def stack(self, root_first: list[int]) -> int:
        """Number of a stack of frame numbers of the file."""
        named = [self.own[i] if 0 <= i < len(self.own) else self._missing(i) for i in reversed(root_first)]
        inferred = max((i for i, frame in enumerate(named) if frame[0] in KERNEL_ENTRY), default=-1)
        rows = [
            self.table.add(n, m, FrameKind.KERNEL if i <= inferred and k is FrameKind.UNKNOWN else k, s)
            for i, (n, m, k, s) in enumerate(named)
        ]
        key = tuple(rows or [self.table.add("[unknown]", "", FrameKind.UNKNOWN)])
        number = self.stacks.get(key)
        if number is None:
            number = self.stacks[key] = len(self.stacks)
            self.flat.extend(key)
            self.offsets.append(len(self.flat))
        return number

    def _missing(self, index: int) -> tuple[str, str, FrameKind, str]:
        if index >= 0 and self.cut:
            return "[unknown]", "", FrameKind.UNKNOWN, ""
        raise IndexError(f"frame {index}")


def _convert(data: dict[str, Any], name: str, cut: str) -> tuple[Profile, bool]:
    shared = data.get("shared", {}).get("frames", []) if cut else data["shared"]["frames"]
    tables = _Tables(shared, cut=bool(cut))
    notes = [f"{cut}; what stands before it was kept"] if cut else []
    if (
        cut
        and data.get("profiles")
        and len(data["profiles"][-1].get("samples", ())) > len(data["profiles"][-1].get("weights", ()))
    ):
        last = data["profiles"][-1]
        left = len(last["samples"]) - len(last.setdefault("weights", []))
        last["samples"] = last["samples"][: len(last["weights"])]
        notes.append(f"damaged: {left} samples have lost their weights and were left out")
    for profile in data.get("profiles", ()) if cut else data["profiles"]:
        unit = str(profile.get("unit", "none"))
        event = (
            Event("cpu-clock", "ns") if unit in _UNITS else Event("samples", "bytes" if unit == "bytes" else "count")
        )
        number = tables.events.setdefault(event, len(tables.events))
        task = tables.tasks.setdefault(_task(str(profile.get("name", ""))), len(tables.tasks))
        scale = _UNITS.get(unit, 1.0)
        if profile["type"] == "sampled":
            for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
                tables.rows.append((tables.stack(stack), number, task, float(weight) * scale))
        elif profile["type"] == "evented":
            _evented(tables, profile, number, task, scale)
        else:
            raise ValueError(f"profile type {profile['type']!r}")
    stacks, of_stack = a.unique_stacks(np.array(tables.flat, "u4"), np.array(tables.offsets, "i8"))
    weight = _whole(np.array([r[3] for r in tables.rows], "f8"))
    if not np.isfinite(weight).all():
        raise ValueError("weights that are no numbers")
    columns = np.array([r[:3] for r in tables.rows], "i8").reshape(-1, 3)
    clock = np.array([e.unit == "ns" for e in tables.events] or [False])
    count = np.where(clock[columns[:, 1]], 1, np.ceil(weight.clip(0, 2**53))) if len(columns) else weight
    rows = a.Rows(
        event=columns[:, 1],
        stack=of_stack[columns[:, 0]] if len(columns) else columns[:, 0],
        weight=weight,
        count=count,
        task=columns[:, 2],
        events=list(tables.events),
        tasks=list(tables.tasks),
    )
    if tables.open_at_end:
        notes.append(f"damaged: {tables.open_at_end} frames are opened and never closed, or closed out of order")
    damaged = bool(notes)
    notes.append(
        "the format holds weights, not counts: each of its entries counts as one sample here, whatever it weighs"
    )
    run = Run(scenario=str(data.get("name") or Path(name).name), losses=a.no_losses())
    meta = a.source_meta("speedscope", name, notes, exporter=str(data.get("exporter", "")))
    frames = tables.table.frames()
    return a.assemble(rows, frames, stacks, run=run, meta=meta), damaged


def _whole(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whole nanoseconds (or bytes) again, where the way through seconds as binary fractions cost the last digit."""
    near = np.rint(weight)
    return np.where(np.abs(weight - near) <= 4 * np.spacing(np.abs(weight)), near, weight)


_THREAD = re.compile(r'(?:.*: )?(?:Thread (?:0x)?)(\d{1,18}) "(.*)"', re.DOTALL)


def _task(name: str) -> tuple[int, int, str]:
    """The task in a profile's name as py-spy writes it (`Thread 12 "comm"`), else the name itself."""
    found = _THREAD.match(name)
    return (-1, int(found[1]), found[2]) if found else (-1, -1, name)


def _evented(tables: _Tables, profile: dict[str, Any], event: int, task: int, scale: float) -> None:
    """Open/close events: the time between two events belongs to the stack that is open between them."""
    open_frames: list[int] = []
    last = float(profile.get("startValue", 0))
    for each in profile["events"]:
        at = float(each["at"])
        if open_frames and at > last:
            tables.rows.append((tables.stack(open_frames), event, task, (at - last) * scale))
        last = at
        frame = int(each["frame"])
        if each["type"] == "O":
            open_frames.append(frame)
            if len(open_frames) > 100_000:
                raise ValueError("frames nested more than 100,000 deep")
        elif open_frames and open_frames[-1] == frame:
            open_frames.pop()
        else:
            tables.open_at_end += 1
    tables.open_at_end += len(open_frames)

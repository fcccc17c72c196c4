"""Firefox Profiler JSON: the "processed profile" format, version 47 (profiler.firefox.com upgrades older ones).

Tables are columns in each thread: samples -> stackTable -> frameTable -> funcTable -> stringArray. Described in
docs-developer/processed-profile-format.md and CHANGELOG-formats.md of github.com/firefox-devtools/profiler.
"""

from __future__ import annotations

import json
from typing import IO, Any

import numpy as np

from nsprof import __version__
from nsprof.model.profile import Context, FrameKind, Profile
from nsprof.store.exporters.select import dso_of, one_event, rows_of, source_of, thread_of

__all__ = ["write"]

PROCESSED_VERSION = 47
_GECKO_VERSION = 29
_CATEGORIES = ("Other", "User", "Kernel", "BPF", "nsprof")
_COLORS = ("grey", "yellow", "orange", "blue", "red")
_OF_KIND = {FrameKind.UNKNOWN: 0, FrameKind.USER: 1, FrameKind.KERNEL: 2, FrameKind.BPF: 3, FrameKind.PROFILER: 4}


def write(profile: Profile, stream: IO[bytes], *, event: str | None = None, scenario: str | None = None) -> None:
    """One thread a task (and run, and event). Weights are milliseconds for clocks (`tracing-ms`), else plain numbers
    (`samples`); samples of one second stand one after the other in it."""
    samples = rows_of(profile, scenario)
    if event is not None:
        _, samples = one_event(profile, samples, event, "firefox")
    order = np.lexsort((samples.stack, samples.slice, samples.task, samples.run, samples.event))
    key = np.stack([samples.event, samples.run, samples.task], axis=1).astype("i8")[order]
    cuts: list[int] = (np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1).tolist() if len(key) else []
    threads = [_thread(profile, samples, rows) for rows in np.split(order, cuts) if len(rows)]
    run = profile.runs[0] if profile.runs else None
    data = {
        "meta": _meta(profile, run.started * 1e3 if run else 0.0),
        "libs": [],
        "pages": [],
        "counters": [],
        "profilerOverhead": [],
        "threads": threads,
    }
    stream.write(json.dumps(data, separators=(",", ":")).encode())


def _meta(profile: Profile, started_ms: float) -> dict[str, Any]:
    periods = [e.period / 1e6 for e in profile.events if e.unit == "ns" and e.period]
    return {
        "version": _GECKO_VERSION,
        "preprocessedProfileVersion": PROCESSED_VERSION,
        "interval": periods[0] if periods else 1,
        "startTime": started_ms,
        "processType": 0,
        "product": ", ".join(profile.scenarios) or "nsprof",
        "stackwalk": 1,
        "debug": False,
        "importedFrom": f"nsprof {__version__}",
        "oscpu": profile.runs[0].kernel if profile.runs else "",
        "categories": [
            {"name": n, "color": c, "subcategories": ["Other"]} for n, c in zip(_CATEGORIES, _COLORS, strict=True)
        ],
        "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
        "markerSchema": [],
        "symbolicated": True,
        "usesOnlyOneStackType": True,
        "doesNotUseFrameImplementation": True,
        "sourceCodeIsNotOnSearchfox": True,
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
    }


class _Tables:
    """Strings, functions, frames, resources and stacks of one thread, made as they are met."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.strings: dict[str, int] = {}
        self.resources: dict[str, int] = {}
        self.funcs: dict[int, int] = {}
        self.stacks: dict[tuple[int, int], int] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text.encode("utf-8", "backslashreplace").decode(), len(self.strings))

    def stack(self, root_first: list[int]) -> int | None:
        at = -1
        for frame in root_first:
            number = self.funcs.setdefault(frame, len(self.funcs))
            at = self.stacks.setdefault((at, number), len(self.stacks))
        return at if at >= 0 else None

    def category(self, frame: int) -> int:
        return _OF_KIND[FrameKind(int(self.profile.frames.kind[frame]))]

    def tables(self) -> dict[str, Any]:
        frames = list(self.funcs)
        source = [source_of(self.profile.frames.source[f]) for f in frames]
        n = len(frames)
        func = {
            "length": n,
            "name": [self.string(self.profile.frames.name[f]) for f in frames],
            "isJS": [False] * n,
            "relevantForJS": [False] * n,
            "resource": [self._resource(f) for f in frames],
            "fileName": [self.string(file) if file else None for file, _ in source],
            "lineNumber": [None] * n,
            "columnNumber": [None] * n,
        }
        categories = [self.category(f) for f in frames]
        frame = {
            "length": n,
            "address": [-1] * n,
            "inlineDepth": [0] * n,
            "category": categories,
            "subcategory": [0] * n,
            "func": list(range(n)),
            "nativeSymbol": [None] * n,
            "innerWindowID": [0] * n,
            "implementation": [None] * n,
            "line": [line or None for _, line in source],
            "column": [None] * n,
        }
        stack = {
            "length": len(self.stacks),
            "frame": [f for _, f in self.stacks],
            "prefix": [p if p >= 0 else None for p, _ in self.stacks],
            "category": [categories[f] for _, f in self.stacks],
            "subcategory": [0] * len(self.stacks),
        }
        resource = {
            "length": len(self.resources),
            "lib": [None] * len(self.resources),
            "name": [self.string(r) for r in self.resources],
            "host": [None] * len(self.resources),
            "type": [1] * len(self.resources),  # a library
        }
        return {"funcTable": func, "frameTable": frame, "stackTable": stack, "resourceTable": resource}

    def _resource(self, frame: int) -> int:
        dso = dso_of(int(self.profile.frames.kind[frame]), self.profile.frames.module[frame])
        return self.resources.setdefault(dso, len(self.resources)) if dso else -1


def _thread(profile: Profile, samples: Any, rows: Any) -> dict[str, Any]:
    first = int(rows[0])
    event = profile.events[int(samples.event[first])]
    run = profile.runs[int(samples.run[first])]
    tgid, tid, comm = thread_of(profile, int(samples.task[first]))
    tables = _Tables(profile)
    stack = [tables.stack(profile.stacks[s][::-1].tolist()) for s in samples.stack[rows].tolist()]
    clock = event.unit == "ns"
    weight = samples.weight[rows] / 1e6 if clock else samples.weight[rows]
    seconds = samples.slice[rows].astype("f8") * 1e3
    begins = np.concatenate([[True], np.diff(seconds) != 0])
    length = weight if clock else np.ones(len(rows))
    before = np.cumsum(length) - length
    inside = before - np.repeat(before[begins], np.diff(np.append(np.flatnonzero(begins), len(rows))))
    time = np.maximum.accumulate(seconds + inside)
    made = tables.tables()
    name = comm or "unknown"
    if len(profile.events) > 1:
        name += f" {event.name}"
    contexts = sorted({Context(c).name.lower() for c in np.unique(samples.context[rows]).tolist()})
    return {
        "processType": "default",
        "processName": f"{run.scenario}: {comm or 'unknown'} ({', '.join(contexts)})",
        "processStartupTime": 0,
        "processShutdownTime": None,
        "registerTime": 0,
        "unregisterTime": None,
        "pausedRanges": [],
        "name": name,
        "isMainThread": tgid == tid,
        "pid": str(tgid),
        "tid": tid,
        "showMarkersInTimeline": False,
        "samples": {
            "length": len(rows),
            "stack": stack,
            "time": time.tolist(),
            "weight": weight.tolist(),
            "weightType": "tracing-ms" if clock else "samples",
            **({"threadCPUDelta": np.rint(samples.weight[rows]).astype("i8").tolist()} if clock else {}),
        },
        "markers": {k: [] for k in ("category", "data", "endTime", "name", "phase", "startTime")} | {"length": 0},
        "nativeSymbols": {k: [] for k in ("address", "functionSize", "libIndex", "name")} | {"length": 0},
        **made,
        "stringArray": list(tables.strings),
    }

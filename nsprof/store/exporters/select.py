"""What the exporters share: which rows, and frames as the text formats name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import UsageError
from nsprof.model.profile import Context, Direction, FrameKind, Lateness, Profile, Samples

__all__ = ["ROOTS", "cleaned", "dso_of", "frame_file", "one_event", "prefixes", "rows_of", "source_of", "thread_of"]

#: what may stand above the stacks as root frames
ROOTS = ("scenario", "namespace", "device", "context", "comm", "cpu")
_NO_CPU = 0xFFFF


def rows_of(profile: Profile, scenario: str | None = None) -> Samples:
    """The sample rows, of one scenario if named. Raises UsageError for a scenario that was not recorded."""
    if scenario is None:
        return profile.samples
    if scenario not in profile.scenarios:
        raise UsageError(f"no scenario {scenario} in this profile", f"there are: {', '.join(profile.scenarios)}")
    runs = [i for i, run in enumerate(profile.runs) if run.scenario == scenario]
    return profile.samples.take(np.isin(profile.samples.run, runs))


def one_event(profile: Profile, samples: Samples, event: str | None, format: str) -> tuple[int, Samples]:
    """(event index, its rows). Raises UsageError where several were sampled and none is named."""
    sampled = np.unique(samples.event).tolist()
    names = {profile.events[i].name: i for i in sampled}
    if event is not None:
        chosen = next((i for i, e in enumerate(profile.events) if e.name == event), None)
        if chosen is None:
            raise UsageError(f"no event {event} in this profile", f"there are: {', '.join(names) or 'none'}")
        return chosen, samples.take(samples.event == chosen)
    if len(sampled) > 1:
        raise UsageError(
            f"{format} holds one event and this profile has {len(sampled)}: {', '.join(names)}",
            f"add --event {next(iter(names))}",
        )
    return (sampled[0] if sampled else 0), samples


def cleaned(name: str) -> str:
    """A name that cannot break a line-based format: no semicolon, no control character."""
    return "".join(":" if c == ";" else c if c.isprintable() else "?" for c in name)


def source_of(source: str) -> tuple[str, int]:
    """("file", line) of "file:line"; line 0 if there is none."""
    file, colon, line = source.rpartition(":")
    return (file, int(line)) if colon and line.isdigit() else (source, 0)


def dso_of(kind: int, module: str) -> str:
    """Kind and module of a frame as perf prints a DSO; "" for an unknown one."""
    if kind in (FrameKind.KERNEL, FrameKind.PROFILER):
        return f"[{module}]" if module else "[kernel.kallsyms]"
    if kind == FrameKind.BPF:
        return "[bpf]"
    return module


def frame_file(profile: Profile, index: int) -> tuple[str, int]:
    """(file, line) of a frame: its source where that is known, else its DSO."""
    source = profile.frames.source[index]
    if source:
        return source_of(source)
    return dso_of(int(profile.frames.kind[index]), profile.frames.module[index]), 0


def thread_of(profile: Profile, task: int) -> tuple[int, int, str]:
    """(process, thread, name) of a task number; zeros where the profile has no tasks."""
    if task >= len(profile.tasks):
        return 0, 0, ""
    each = profile.tasks[task]
    return each.tgid, each.pid, each.comm


def namespace_label(profile: Profile, number: int) -> str:
    """Label of a namespace column's value; "" for the unknown one."""
    return profile.namespaces[number - 1].label if number else ""


def device_name(profile: Profile, number: int) -> str:
    """Name of a device column's value; "" for the unknown one."""
    return profile.devices[number - 1].name if number else ""


def prefixes(profile: Profile, samples: Samples, roots: Sequence[str]) -> tuple[list[list[str]], NDArray[np.int64]]:
    """(distinct lists of root frames, which of them each row has)."""
    for each in roots:
        if each not in ROOTS:
            raise UsageError(f"no such root: {each}", f"any of: {', '.join(ROOTS)}")
    columns = {
        "scenario": samples.run,
        "namespace": samples.hop_ns,
        "device": samples.hop_dev,
        "context": samples.context,
        "comm": samples.task,
        "cpu": samples.cpu,
    }
    if not roots or not len(samples):
        return [[]], np.zeros(len(samples), "i8")
    keys = np.stack([np.asarray(columns[r], "i8") for r in roots], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    words = [[_root(profile, r, int(v)) for r, v in zip(roots, row, strict=True)] for row in distinct.tolist()]
    return words, which.ravel()


def _root(profile: Profile, what: str, value: int) -> str:
    if what == "scenario":
        return profile.runs[value].scenario if value < len(profile.runs) else "unknown"
    if what == "namespace":
        return namespace_label(profile, value) or "unknown"
    if what == "device":
        return device_name(profile, value) or "unknown"
    if what == "context":
        return Context(value).name.lower()
    if what == "cpu":
        return f"cpu {value}" if value != _NO_CPU else "cpu unknown"
    return thread_of(profile, value)[2] or "unknown"


def readable(profile: Profile, samples: Samples) -> dict[str, list[Any] | NDArray[Any]]:
    """Columns of a row a sample in words, without the stacks."""
    runs, events, tasks = (
        profile.runs,
        profile.events,
        [thread_of(profile, i) for i in range(len(profile.tasks) or 1)],
    )
    names = ["", *(n.label for n in profile.namespaces)]
    devices = ["", *(d.name for d in profile.devices)]
    run, task = samples.run.tolist(), samples.task.tolist()
    cpu = np.where(samples.cpu == _NO_CPU, -1, samples.cpu.astype("i4"))
    return {
        "run": samples.run,
        "scenario": [runs[r].scenario for r in run],
        "second": samples.slice,
        "event": [events[e].name for e in samples.event.tolist()],
        "unit": [events[e].unit for e in samples.event.tolist()],
        "kind": [events[e].kind for e in samples.event.tolist()],
        "cpu": cpu,
        "tgid": [tasks[t][0] for t in task],
        "pid": [tasks[t][1] for t in task],
        "comm": [tasks[t][2] for t in task],
        "task_namespace": [names[n] for n in samples.task_ns.tolist()],
        "namespace": [names[n] for n in samples.hop_ns.tolist()],
        "device": [devices[n] for n in samples.hop_dev.tolist()],
        "direction": [Direction(d).name.lower() for d in samples.hop_dir.tolist()],
        "depth": samples.hop_depth,
        "context": [Context(c).name.lower() for c in samples.context.tolist()],
        "lateness": [Lateness(x).name.lower() for x in samples.lateness.tolist()],
        "count": samples.count,
        "weight": samples.weight,
    }

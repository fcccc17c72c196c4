"""Putting a profile together from pieces, and several profiles into one.

The builder interns: the same frame, stack, task, namespace or device added twice is one row, so runs recorded one
after the other share their tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import (
    Counter,
    Device,
    Event,
    FrameKind,
    Frames,
    LedgerLine,
    Namespace,
    ProbeInfo,
    Profile,
    Run,
    Samples,
    Stacks,
    Task,
)

__all__ = ["ProfileBuilder", "merge"]


class ProfileBuilder:
    """Collects the rows of a Profile; every `add`-like method returns the row's number.

    `namespace` and `device` return index + 1, as the sample columns hold them (0 stays unknown).
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.counters: list[Counter] = []
        self.ledger: list[LedgerLine] = []
        self.probes: list[ProbeInfo] = []
        self.meta: dict[str, Any] = {}
        self._events: dict[Event, int] = {}
        self._namespaces: dict[tuple[int, int, int], int] = {}
        self._namespace_rows: list[Namespace] = []
        self._devices: dict[tuple[int, int, str], int] = {}
        self._device_rows: list[Device] = []
        self._tasks: dict[Task, int] = {}
        self._frames: dict[tuple[str, str, int, str], int] = {}
        self._stacks: dict[bytes, int] = {}
        self._stack_rows: list[NDArray[np.uint32]] = []
        self._samples: list[Samples] = []

    def event(self, event: Event) -> int:
        """Index of an event; equal events are one."""
        return self._events.setdefault(event, len(self._events))

    def namespace(self, namespace: Namespace) -> int:
        """Index + 1 of a namespace, by (inode, cookie, birth_slice); a later name or role fills an empty one."""
        key = (namespace.inode, namespace.cookie, namespace.birth_slice)
        index = self._namespaces.setdefault(key, len(self._namespace_rows))
        if index == len(self._namespace_rows):
            self._namespace_rows.append(namespace)
        else:
            old = self._namespace_rows[index]
            self._namespace_rows[index] = replace(
                old, name=old.name or namespace.name, role=old.role or namespace.role
            )
        return index + 1

    def device(self, device: Device) -> int:
        """Index + 1 of a device, by (namespace, ifindex, name)."""
        key = (device.namespace, device.ifindex, device.name)
        index = self._devices.setdefault(key, len(self._device_rows))
        if index == len(self._device_rows):
            self._device_rows.append(device)
        return index + 1

    def task(self, tgid: int, pid: int, comm: str) -> int:
        """Index of a task."""
        return self._tasks.setdefault(Task(tgid, pid, comm), len(self._tasks))

    def frame(self, name: str, module: str = "", kind: int = FrameKind.KERNEL, source: str = "") -> int:
        """Index of a frame."""
        return self._frames.setdefault((name, module, int(kind), source), len(self._frames))

    def stack(self, frames: Sequence[int] | NDArray[Any]) -> int:
        """Index of a stack of frame indices, leaf first."""
        row = np.asarray(frames, "u4")
        index = self._stacks.setdefault(row.tobytes(), len(self._stack_rows))
        if index == len(self._stack_rows):
            self._stack_rows.append(row)
        return index

    def samples(self, samples: Samples) -> None:
        """Append sample rows whose columns already hold this builder's indices."""
        self._samples.append(samples)

    def build(self) -> Profile:
        """The finished profile. Duplicate probes (same name, target, rung and state) are added up."""
        columns = (
            {name: np.concatenate([getattr(s, name) for s in self._samples]) for name in Samples.__dataclass_fields__}
            if self._samples
            else {}
        )
        names = tuple(self._frames)
        offsets = np.zeros(len(self._stack_rows) + 1, "i8")
        np.cumsum([len(r) for r in self._stack_rows], out=offsets[1:])
        flat = np.concatenate(self._stack_rows) if self._stack_rows else np.zeros(0, "u4")
        return Profile(
            events=tuple(self._events),
            runs=tuple(self.runs),
            namespaces=tuple(self._namespace_rows),
            devices=tuple(self._device_rows),
            tasks=tuple(self._tasks),
            frames=Frames(
                tuple(n[0] for n in names),
                tuple(n[1] for n in names),
                np.array([n[2] for n in names], "u1"),
                tuple(n[3] for n in names),
            ),
            stacks=Stacks(offsets, flat),
            samples=Samples(**columns) if columns else Samples(),
            counters=tuple(self.counters),
            ledger=tuple(self.ledger),
            probes=_sum_probes(self.probes),
            meta=dict(self.meta),
        )

    def append(self, profile: Profile, *, rename: Mapping[str, str] | None = None) -> None:
        """Add all rows of another profile; `rename` maps its scenario names to new ones."""
        rename = rename or {}
        run_base = len(self.runs)
        self.runs.extend(replace(r, scenario=rename.get(r.scenario, r.scenario)) for r in profile.runs)
        event = np.array([self.event(e) for e in profile.events], "u1")
        space = np.array([0, *(self.namespace(n) for n in profile.namespaces)], "u4")
        device = np.array(
            [0, *(self.device(replace(d, namespace=int(space[d.namespace]))) for d in profile.devices)], "u4"
        )
        task = np.array([self.task(t.tgid, t.pid, t.comm) for t in profile.tasks], "u4")
        f = profile.frames
        frame = np.array(
            [self.frame(n, m, int(k), s) for n, m, k, s in zip(f.name, f.module, f.kind, f.source, strict=True)],
            "u4",
        )
        stack = np.array([self.stack(frame[profile.stacks[i]]) for i in range(len(profile.stacks))], "u4")
        s = profile.samples
        if len(s):
            self.samples(
                replace(
                    s,
                    run=(s.run + run_base).astype("u2"),
                    event=event[s.event],
                    task=task[s.task] if len(task) else s.task,
                    task_ns=space[s.task_ns],
                    hop_ns=space[s.hop_ns],
                    hop_dev=device[s.hop_dev],
                    stack=stack[s.stack],
                )
            )
        self.counters.extend(
            c._replace(run=c.run + run_base, namespace=int(space[c.namespace])) for c in profile.counters
        )
        self.ledger.extend(
            replace(
                line,
                run=line.run + run_base,
                namespace=int(space[line.namespace]),
                device=int(device[line.device]),
                stack=int(stack[line.stack]) if line.stack >= 0 else -1,
            )
            for line in profile.ledger
        )
        self.probes.extend(profile.probes)
        for key, value in profile.meta.items():
            self.meta.setdefault(key, value)


def merge(profiles: Iterable[Profile]) -> Profile:
    """One profile of the runs of all, in order; metadata are the first one's (which must know what it does)."""
    builder = ProfileBuilder()
    for profile in profiles:
        builder.append(profile)
    return builder.build()


def _sum_probes(probes: Iterable[ProbeInfo]) -> tuple[ProbeInfo, ...]:
    rows: dict[tuple[str, str, str, str], ProbeInfo] = {}
    for probe in probes:
        key = (probe.name, probe.target, probe.rung, probe.state)
        old = rows.get(key)
        rows[key] = probe if old is None else replace(old, hits=old.hits + probe.hits)
    return tuple(rows.values())

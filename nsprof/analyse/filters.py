"""Which sample rows a question is about: filters, the sides of a scenario, other load on the same CPUs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import EvidenceError, UsageError
from nsprof.model.profile import Context, Direction, Profile

__all__ = ["Filter", "device_label", "effective_namespace", "near", "other_load", "row_mask"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which samples to keep; empty tuples keep all.

    `namespaces` are labels, inodes or `net:[inode]`; `devices` names or `NAMESPACE:DEVICE`; `contexts` names of
    `Context` in lower case; `tasks` comms or PIDs; `slices` first and last second of the run, inclusive. `side` is
    whose CPUs are meant where a run tells them apart: "dut" (device under test), "remote", "all". `everyone` counts
    the tasks of namespaces that have no part in the scenario too (see `other_load`).
    """

    namespaces: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    slices: tuple[int, int] | None = None
    everyone: bool = False
    side: Literal["dut", "remote", "all"] = "dut"

    @property
    def is_partial(self) -> bool:
        """Whether the samples kept are less than everything the chosen CPUs did."""
        return bool(self.namespaces or self.devices or self.contexts or self.cpus or self.tasks or self.slices)

    @property
    def needs_hop(self) -> bool:
        """Whether hop probes make the answer better."""
        return bool(self.namespaces or self.devices)


def near(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known[:12])}" if known else ""


def other_load(profile: Profile) -> NDArray[np.bool_]:
    """Samples that have no part in the scenario: their namespace is none of those made for it, or watched.

    Of work in user or task context the task's namespace tells. A softirq in a foreign task may well serve the
    scenario: it is foreign only where the hop probes know the namespace that it serves, and only against namespaces
    that nsprof made (the packets of a watched one cross others that are not named). Kernel threads and the idle task
    belong to the initial namespace; what the idle task does (SCHED) is kept, since waking up is part of the path.
    """
    roles = np.array([False, *(bool(n.role) for n in profile.namespaces)])
    samples = profile.samples
    if not roles.any():
        return np.zeros(len(samples), bool)
    own = np.isin(samples.context, (Context.TASK, Context.USER)) & np.isin(
        samples.hop_dir, (Direction.UNKNOWN, Direction.TASK, Direction.PROBE)
    )
    foreign: NDArray[np.bool_] = own & (samples.task_ns != 0) & ~roles[samples.task_ns]
    made = np.array([False, *(n.made for n in profile.namespaces)])
    if made.any():
        foreign |= (samples.hop_ns != 0) & ~made[samples.hop_ns]
    return foreign


def row_mask(
    profile: Profile, runs: Sequence[int], event_rows: NDArray[np.bool_], where: Filter
) -> tuple[NDArray[np.bool_], str]:
    """Rows of the runs and events that pass the filter (never idle ones), and a note on the CPUs meant."""
    samples = profile.samples
    run_there = np.zeros(len(profile.runs), bool)
    run_there[list(runs)] = True
    mask = run_there[samples.run] & event_rows[samples.event] & (samples.context != Context.IDLE)
    side_mask, note = _side(profile, runs, where.side)
    if side_mask is not None:
        mask &= side_mask
    if where.cpus:
        mask &= np.isin(samples.cpu, where.cpus)
    if where.contexts:
        wanted = [_context(name) for name in where.contexts]
        mask &= np.isin(samples.context, wanted)
    if where.slices is not None:
        mask &= (samples.slice >= where.slices[0]) & (samples.slice <= where.slices[1])
    if where.tasks:
        mask &= _task_mask(profile, where.tasks)[samples.task]
    if where.namespaces:
        wanted_ns = _namespaces(profile, where.namespaces)
        mask &= wanted_ns[effective_namespace(profile)]
    if where.devices:
        mask &= _devices(profile, where.devices)[samples.hop_dev]
    return mask, note


def _side(profile: Profile, runs: Sequence[int], side: str) -> tuple[NDArray[np.bool_] | None, str]:
    """Rows on the CPUs of one side, where the runs tell sides apart."""
    sets = [profile.runs[i].dut_cpus if side == "dut" else profile.runs[i].remote_cpus for i in runs]
    if side == "all" or not any(sets):
        return None, ""
    top = max([int(profile.samples.cpu.max(initial=0)), *(c for s in sets for c in s)]) + 1
    allowed = np.zeros((len(profile.runs), top), bool)
    for i, cpus in zip(runs, sets, strict=True):
        allowed[i, list(cpus) if cpus else slice(None)] = True
    chosen = sorted({c for s in sets for c in s})
    label = "device under test" if side == "dut" else "remote end"
    note = f"CPUs of the {label}: {', '.join(map(str, chosen))}"
    if side == "dut":
        note += " (--side remote or all for the others)"
    return allowed[profile.samples.run, profile.samples.cpu], note


def _context(name: str) -> int:
    try:
        return int(Context[name.upper()])
    except KeyError:
        raise UsageError(f"no context {name!r}", near(name.lower(), [c.name.lower() for c in Context])) from None


def _task_mask(profile: Profile, words: Sequence[str]) -> NDArray[np.bool_]:
    if not profile.tasks:
        raise EvidenceError("the profile does not know its tasks")
    mask = np.zeros(len(profile.tasks), bool)
    for word in words:
        hits = [i for i, t in enumerate(profile.tasks) if word in (t.comm, str(t.tgid), str(t.pid))]
        if not hits:
            raise UsageError(
                f"no task {word!r} in the profile", near(word, dict.fromkeys(t.comm for t in profile.tasks))
            )
        mask[hits] = True
    return mask


def _namespaces(profile: Profile, words: Sequence[str]) -> NDArray[np.bool_]:
    mask = np.zeros(len(profile.namespaces) + 1, bool)
    for word in words:
        hits = [
            i + 1
            for i, n in enumerate(profile.namespaces)
            if word in (n.label, n.name, str(n.inode), f"net:[{n.inode}]") and word
        ]
        if word == "unknown":
            hits.append(0)
        if not hits:
            raise UsageError(
                f"no namespace {word!r} in the profile", near(word, [n.label for n in profile.namespaces])
            )
        mask[hits] = True
    return mask


def _devices(profile: Profile, words: Sequence[str]) -> NDArray[np.bool_]:
    mask = np.zeros(len(profile.devices) + 1, bool)
    labels = [device_label(profile, i + 1) for i in range(len(profile.devices))]
    for word in words:
        hits = [i + 1 for i, d in enumerate(profile.devices) if word in (d.name, labels[i])]
        if word == "unknown":
            hits.append(0)
        if not hits:
            raise UsageError(f"no device {word!r} in the profile", near(word, labels))
        mask[hits] = True
    return mask


def device_label(profile: Profile, index_plus_one: int) -> str:
    """`namespace:device`, since every pod has an eth0."""
    if not index_plus_one:
        return "unknown"
    device = profile.devices[index_plus_one - 1]
    return f"{profile.namespace_label(device.namespace)}:{device.name}"


def effective_namespace(profile: Profile, rows: NDArray[Any] | None = None) -> NDArray[np.int64]:
    """The namespace that the CPU worked for: the hop's; without one, in task context, the task's; else 0."""
    s = profile.samples if rows is None else profile.samples.take(rows)
    own = np.isin(s.context, (Context.TASK, Context.USER)) & np.isin(s.hop_dir, (Direction.UNKNOWN, Direction.TASK))
    return np.where(s.hop_ns != 0, s.hop_ns, np.where(own, s.task_ns, 0)).astype("i8")

"""A profile: everything recorded in one or more runs, immutable, columnar where there is a row a sample.

Identifiers are positions in the profile's own tuples (`stack` in `Stacks`, `event` in `Profile.events`, ...),
so tables join by indexing. Two sentinels: namespace and device columns hold index + 1, with 0 = unknown; an
unknown is a value and is never folded into another row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import nsprof.model.onethread  # noqa: F401 - it loads numpy, so it must come first

# isort: split
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Context",
    "Counter",
    "Device",
    "Direction",
    "Event",
    "FrameKind",
    "Frames",
    "Lateness",
    "LedgerLine",
    "Losses",
    "Namespace",
    "ProbeInfo",
    "Profile",
    "Run",
    "Samples",
    "Stacks",
    "Task",
    "Value",
    "no_samples",
]


class Context(IntEnum):
    """In what the CPU was when sampled; the leafmost softirq/hardirq entry frame decides.

    ksoftirqd and threaded NAPI are SOFTIRQ. IDLE is a swapper leaf in halt/poll, and a late tick (SKID) that was due
    while the CPU slept, wherever it landed; other swapper work is SCHED. USER has no kernel frame at all.
    """

    UNKNOWN = 0
    USER = 1
    TASK = 2
    SOFTIRQ = 3
    HARDIRQ = 4
    NMI = 5
    IDLE = 6
    SCHED = 7


class Lateness(IntEnum):
    """Whether the clock tick was delivered on time. SKID: it fell into an irqs-off section and landed late."""

    ON_TIME = 0
    SKID = 1
    UNKNOWN = 2


class Direction(IntEnum):
    """What the CPU was doing with the packet of the sample's hop.

    TASK: no packet, the task's own namespace. BETWEEN: in the softirq loop or a driver's poll, no packet in hand.
    PROBE: in one of nsprof's own (or another tracer's) probes. UNKNOWN: a packet whose hop is not known, or no hop
    probes.
    """

    UNKNOWN = 0
    RX = 1
    TX = 2
    TASK = 3
    FORWARD = 4
    BETWEEN = 5
    PROBE = 6


class FrameKind(IntEnum):
    """Where a frame's code lives. PROFILER is nsprof's own (BPF program, trampoline, sampler) code."""

    UNKNOWN = 0
    KERNEL = 1
    USER = 2
    BPF = 3
    PROFILER = 4


@dataclass(frozen=True, slots=True)
class Event:
    """What was sampled, counted or modelled. Different events are never added together.

    `unit` is the unit of `Samples.weight` ("ns", "cycles", "instructions", "misses", "lines", "count").
    `kind` is "sampled", "counted" or "modelled". `period` is the nominal sample period in `unit` (0: variable),
    `frequency_hz` what was asked for (0: not frequency-driven).
    """

    name: str
    unit: str
    kind: str = "sampled"
    period: int = 0
    frequency_hz: int = 0


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace. Identity is (inode, cookie) - or (inode, birth_slice) where there is no cookie.

    `name` is the best name found (netns name, pod/container name), "" if none; `role` is "host", "remote" or
    "container" of a topology that nsprof made, "watched" where the user named it, "" for all others.
    """

    inode: int
    cookie: int = 0
    birth_slice: int = 0
    name: str = ""
    role: str = ""

    @property
    def made(self) -> bool:
        """Whether nsprof made it: then it has no traffic but the scenario's, and its like in other runs is it too."""
        return self.role in ("host", "remote", "container")

    @property
    def label(self) -> str:
        """The name, or `net:[inode]` as the last resort."""
        return self.name or (f"net:[{self.inode}]" if self.inode else "unknown")


@dataclass(frozen=True, slots=True)
class Device:
    """A network device, identified by (namespace, ifindex). `namespace` is index + 1, 0 = unknown."""

    namespace: int
    ifindex: int
    name: str
    kind: str = ""
    mtu: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Process and thread that was current when a sample was taken (innocent of softirq work)."""

    tgid: int
    pid: int
    comm: str


class Value(NamedTuple):
    """One typed result of a workload: ("throughput", 941.4, "Mbit/s", "netperf")."""

    name: str
    value: float
    unit: str
    source: str = ""


class Counter(NamedTuple):
    """How a kernel counter moved during a run. `delta` is after - before, `start` the value before.

    `scope` is "device", "netns", "cpu", "softnet", "irq" or "system"; `namespace` index + 1 (0: none), `device`
    the device name ("" if none), `cpu` -1 if none. Names are the kernel's (`rx_packets`, `Udp.InDatagrams`).
    """

    run: int
    scope: str
    namespace: int
    device: str
    cpu: int
    name: str
    start: float
    delta: float


@dataclass(frozen=True, slots=True)
class Losses:
    """What did not reach the profile, in samples unless said otherwise. -1: could not be known.

    `expected` counts the ticks due on busy CPUs, `seen` those that were stored; their difference is the loss.
    The other fields say where it went as far as that is known.
    """

    expected: int = -1
    seen: int = 0
    stack_collisions: int = 0
    map_full: int = 0
    throttled: int = 0
    lost_records: int = 0
    no_stack: int = 0

    @property
    def lost_share(self) -> float:
        """(expected - seen) / expected, floored at 0; nan when expected is unknown or 0."""
        if self.expected <= 0:
            return float("nan")
        return max(0.0, (self.expected - self.seen) / self.expected)

    @property
    def damaged_share(self) -> float:
        """Share of the seen samples whose stack is missing (collision or unreadable)."""
        if self.seen <= 0:
            return 0.0
        return (self.stack_collisions + self.no_stack) / self.seen


@dataclass(frozen=True, slots=True)
class ProbeInfo:
    """One attached (or refused) probe: on which rung it stands, its hits and its calibrated cost."""

    name: str
    target: str
    rung: str  # tp_btf, raw_tp, fentry, kprobe, tracepoint, counters, perf_event, none
    state: str = "attached"  # attached, refused, shed
    reason: str = ""  # why refused or shed, and what is lost by it
    hits: int = 0
    cost_ns_per_hit: float = 0.0
    attach_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Events on packets that only probes can count: copies, checksums, segments, fragments, drops.

    `namespace` and `device` are index + 1; `stack` an index into `Stacks` or -1; `value_bytes` -1 where bytes
    mean nothing.
    """

    run: int
    what: str
    detail: str
    namespace: int
    device: int
    stack: int
    calls: int
    value_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of one scenario.

    `denominators` maps a name of `units.DENOMINATORS` to how many there were (what unit costs divide by);
    `cpu_busy_s` maps cpu number to busy seconds (wall - idle - iowait) in the window, `lost_by_cpu` to the share of
    its samples that were lost (empty: not known CPU by CPU); `dut_cpus` are the CPUs of
    the device under test (empty: all), `remote_cpus` those of the remote end. `probes_on` names the probe sets
    that were attached (cost figures come from runs without "hop", splits by hop from runs with it).
    `status` is the command's exit status (-1: not run by nsprof). `failed` holds the reason a run is unusable.
    """

    scenario: str
    kernel: str = ""
    label: str = ""
    started: float = 0.0
    duration_s: float = 0.0
    cpus: int = 0
    cpu_busy_s: Mapping[int, float] = field(default_factory=dict)
    cpu_steal_s: float = 0.0
    dut_cpus: tuple[int, ...] = ()
    remote_cpus: tuple[int, ...] = ()
    denominators: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""  # what the denominators were read from, e.g. "w0 in host (rx+tx)"
    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    losses: Losses = Losses()
    probes_on: tuple[str, ...] = ()
    lost_by_cpu: Mapping[int, float] = field(default_factory=dict)
    own_cpu_s: float = 0.0  # nsprof's own CPU time in the window, BPF included (see docs/method.md)
    command: tuple[str, ...] = ()
    status: int = -1
    failed: str = ""
    warmup: bool = False


def _u(dtype: str) -> NDArray[Any]:
    return np.zeros(0, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One row a distinct key, all columns numpy arrays of one length (see the dtypes).

    Key: run, slice (seconds since the run began), event, cpu, task, task_ns (namespace of the task), hop_ns and
    hop_dev and hop_dir and hop_depth (for which packet the CPU worked), context, stack, lateness.
    Values: `count` (ticks) and `weight` (the sum of sample_period, in the event's unit).
    """

    run: NDArray[np.uint16] = field(default_factory=lambda: _u("u2"))
    slice: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))
    event: NDArray[np.uint8] = field(default_factory=lambda: _u("u1"))
    cpu: NDArray[np.uint16] = field(default_factory=lambda: _u("u2"))
    task: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))
    task_ns: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))
    hop_ns: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))
    hop_dev: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))
    hop_dir: NDArray[np.uint8] = field(default_factory=lambda: _u("u1"))
    hop_depth: NDArray[np.uint8] = field(default_factory=lambda: _u("u1"))
    context: NDArray[np.uint8] = field(default_factory=lambda: _u("u1"))
    stack: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))
    lateness: NDArray[np.uint8] = field(default_factory=lambda: _u("u1"))
    count: NDArray[np.uint64] = field(default_factory=lambda: _u("u8"))
    weight: NDArray[np.float64] = field(default_factory=lambda: _u("f8"))

    def __len__(self) -> int:
        return len(self.weight)

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(lengths) != 1:
            raise ValueError(f"sample columns differ in length: {sorted(lengths)}")

    def take(self, rows: NDArray[Any]) -> Samples:
        """The rows selected by a boolean mask or by positions."""
        return Samples(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    @classmethod
    def build(cls, length: int, **columns: Any) -> Samples:
        """Samples of `length` rows; columns not given are zero; given ones are cast to the column's dtype."""
        empty = cls()
        made: dict[str, NDArray[Any]] = {}
        for name in cls.__dataclass_fields__:
            dtype = getattr(empty, name).dtype
            if name in columns:
                made[name] = np.broadcast_to(np.asarray(columns.pop(name), dtype=dtype), (length,))
            else:
                made[name] = np.zeros(length, dtype)
        if columns:
            raise TypeError(f"no such sample columns: {sorted(columns)}")
        return cls(**made)


def no_samples() -> Samples:
    """An empty sample table."""
    return Samples()


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """Call stacks in compressed rows: stack i is `frames[offsets[i]:offsets[i+1]]`, leaf first."""

    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, "i8"))
    frames: NDArray[np.uint32] = field(default_factory=lambda: _u("u4"))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.uint32]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.frames[self.offsets[index] : self.offsets[index + 1]]

    @classmethod
    def from_lists(cls, stacks: Sequence[Sequence[int]]) -> Stacks:
        """From one sequence of frame indices a stack, leaf first."""
        offsets = np.zeros(len(stacks) + 1, "i8")
        np.cumsum([len(s) for s in stacks], out=offsets[1:])
        flat = np.fromiter((f for s in stacks for f in s), "u4", count=int(offsets[-1]))
        return cls(offsets, flat)


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Resolved call-stack entries. `name` as the kernel names it; `module` "" for the kernel image, else the
    module, BPF or DSO name; `kind` a FrameKind; `source` "file:line" where debug info gave it, else ""."""

    name: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    kind: NDArray[np.uint8] = field(default_factory=lambda: _u("u1"))
    source: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def __post_init__(self) -> None:
        if not self.source and self.name:
            object.__setattr__(self, "source", ("",) * len(self.name))
        if not len(self.name) == len(self.module) == len(self.kind) == len(self.source):
            raise ValueError("frame columns differ in length")


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """All that was recorded. Immutable; `with_` makes a changed copy.

    `meta` is JSON: "tool" (name, version), "created" (ISO time), "host" (the snapshot, see docs/file-format.md),
    "topology", "source" (importer and file for imported profiles), "notes" (list of strings for the reader),
    "boot_id", "own_cost" and whatever a later version adds.
    """

    events: tuple[Event, ...] = ()
    runs: tuple[Run, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    devices: tuple[Device, ...] = ()
    tasks: tuple[Task, ...] = ()
    frames: Frames = field(default_factory=Frames)
    stacks: Stacks = field(default_factory=Stacks)
    samples: Samples = field(default_factory=Samples)
    counters: tuple[Counter, ...] = ()
    ledger: tuple[LedgerLine, ...] = ()
    probes: tuple[ProbeInfo, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def with_(self, **changes: Any) -> Profile:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the scenarios recorded, in order of first appearance."""
        return tuple(dict.fromkeys(run.scenario for run in self.runs))

    def runs_of(self, scenario: str) -> tuple[int, ...]:
        """Indices of the usable runs of one scenario (neither failed nor warm-up, nor a counting pass)."""
        return tuple(
            i
            for i, run in enumerate(self.runs)
            if run.scenario == scenario and not run.failed and not run.warmup and "ledger" not in run.probes_on
        )

    def ledger_runs_of(self, scenario: str) -> tuple[int, ...]:
        """Indices of the usable counting passes of one scenario, which have ledger lines instead of samples."""
        return tuple(
            i
            for i, run in enumerate(self.runs)
            if run.scenario == scenario and not run.failed and not run.warmup and "ledger" in run.probes_on
        )

    def namespace_label(self, index_plus_one: int) -> str:
        """Name for a namespace column value; "unknown" for 0."""
        return self.namespaces[index_plus_one - 1].label if index_plus_one else "unknown"

    def device_label(self, index_plus_one: int) -> str:
        """Name for a device column value; "unknown" for 0."""
        return self.devices[index_plus_one - 1].name if index_plus_one else "unknown"

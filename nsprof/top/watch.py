"""What `nsprof top` sees in one interval: samples added up by namespace, device, context and function."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.hop.context import STANDING, hop_columns, standing
from nsprof.collect.sampling.batch import Window, after_interrupt_enable, kernel_names, losses
from nsprof.collect.sampling.maps import DUE_IDLE
from nsprof.collect.sampling.sampler import RawBatch, Sampler, SamplerConfig
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.collect.system import cputime
from nsprof.collect.system.cputime import CpuTimes
from nsprof.errors import PreflightError, ProbeError
from nsprof.kernelnames import context_of
from nsprof.model.profile import Context, Lateness, Losses
from nsprof.top.devices import Devices, Key, Reading

__all__ = ["Cell", "Moment", "Snapshot", "Watch", "watching"]

#: Namespaces whose counters are read each time because they were sampled, the busiest first.
_MOST_READ = 96
#: Stacks that are remembered; beyond, those are dropped that no kept sample has.
_STACKS_MAX = 20_000

#: (inode, cookie, ifindex) a row is about; inode 0: nobody's, ifindex 0: no device.
RowKey = tuple[int, int, int]


@dataclass(slots=True)
class Cell:
    """ns of CPU for one row: by context, by function (self time), and how much of a function's arrived late."""

    contexts: dict[int, float] = field(default_factory=dict)
    functions: dict[str, float] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)

    @property
    def ns(self) -> float:
        """All of it."""
        return sum(self.contexts.values())

    def add(self, context: int, function: str, ns: float, late_ns: float) -> None:
        """Add samples."""
        self.contexts[context] = self.contexts.get(context, 0.0) + ns
        self.functions[function] = self.functions.get(function, 0.0) + ns
        if late_ns:
            self.late[function] = self.late.get(function, 0.0) + late_ns


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """The end of one interval: its raw samples, and every running total as it stood then.

    The samples end at `at_s`, give or take `uncertain_s`: they are taken while sampling goes on.
    """

    at_s: float
    uncertain_s: float
    wall: float
    batch: RawBatch
    ticks: RawBatch
    window: Window
    cpu: CpuTimes
    own_s: float
    counters: Mapping[Key, Reading]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One interval. `busy_s` is by CPU; `losses` are those of all kept intervals; `own_s` is nsprof's CPU time.

    `uncertain_s` is how much longer or shorter than `seconds` the span of the samples may have been.
    """

    number: int
    wall: float
    seconds: float
    cells: Mapping[RowKey, Cell]
    busy_s: Mapping[int, float]
    losses: Losses
    own_s: float
    samples: int
    uncertain_s: float = 0.0


class Watch:
    """Samples the machine until closed. `hop` says whether softirq work is told by namespace, `notes` why not."""

    def __init__(self, sampler: Sampler, notes: tuple[str, ...], keep_s: int) -> None:
        self.sampler = sampler
        self.hop = sampler.config.hop
        self.notes = notes
        self.keep_s = keep_s
        self.devices = Devices()
        self.symbols = KernelSymbols()
        self.stacks: dict[int, Any] = {}
        self.moments: deque[Moment] = deque()
        self._classes: dict[tuple[int, int, bool], int] = {}
        self._class_rows: list[tuple[int, tuple[int, int, bool], bool, str]] = []
        self._number = 0

    def begin(self) -> None:
        """Switch sampling on."""
        self.devices.look()
        self.devices.read((), turns=256)
        self.sampler.start()
        self.moments.append(self._moment())

    def end(self) -> None:
        """Switch it off. Harmless when it is off."""
        self.sampler.stop()

    def _moment(self) -> Moment:
        cpu = cputime.read()
        # Nothing between these two: what is sampled between them is due in one interval and seen in the other.
        window = self.sampler.so_far()
        batch = self.sampler.read()
        hits = sum(int(t["hits"].sum()) for t in window.tallies)
        own_s = time.process_time() + hits * self.sampler.cost_ns_per_hit / 1e9 + self.sampler.probes_cost_s()
        began_s, ended_s = self.sampler.taken_s
        for key, record in batch.stacks.items():
            if key not in self.stacks:
                self.stacks[key] = record.copy()
        return Moment(
            (began_s + ended_s) / 2,
            (ended_s - began_s) / 2,
            time.time(),
            replace(batch, stacks={}),
            _ticks(batch),
            window,
            cpu,
            own_s,
            self.devices.now,
        )

    def tick(self, shown: tuple[int, ...] = ()) -> Snapshot:
        """Close one interval. `shown` are inodes of namespaces on the screen, whose counters are read in any case."""
        before, moment = self.moments[-1], self._moment()
        cells = self._cells(moment.batch)
        busiest = sorted(cells, key=lambda row: -cells[row].ns)[:_MOST_READ]
        inodes = [row[0] for row in busiest if row[0]]
        self.devices.look(inodes)
        self.devices.read((*inodes, *shown))
        moment = replace(moment, counters=self.devices.now)
        self.moments.append(moment)
        while len(self.moments) > 2 and moment.at_s - self.moments[1].at_s >= self.keep_s:
            self.moments.popleft()
        self._number += 1
        if len(self.stacks) > _STACKS_MAX:
            self._prune()
        return Snapshot(
            self._number,
            moment.wall,
            moment.at_s - before.at_s,
            cells,
            _busy(before, moment),
            losses(
                self._joined([m.ticks for m in self.moments][1:]),
                busy_s=cputime.busy_seconds(self.moments[0].cpu, moment.cpu),
            ),
            moment.own_s - before.own_s,
            int(moment.batch.values["count"].sum()),
            before.uncertain_s + moment.uncertain_s,
        )

    def kept(self) -> RawBatch:
        """The samples of all kept intervals as one batch with one window."""
        return self._joined([m.batch for m in self.moments][1:])

    def _joined(self, batches: list[RawBatch]) -> RawBatch:
        return replace(
            batches[-1],
            keys=np.concatenate([b.keys for b in batches]),
            values=np.concatenate([b.values for b in batches]),
            stacks=self.stacks,
            windows=(_difference(self.moments[0].window, self.moments[-1].window),),
        )

    def _prune(self) -> None:
        used = {int(key) for m in self.moments for key in np.unique(m.batch.keys["kernel_stack"])}
        self.stacks = {key: record for key, record in self.stacks.items() if key in used}
        self._classes.clear()
        self._class_rows.clear()

    # ---- adding up ----

    def _cells(self, batch: RawBatch) -> dict[RowKey, Cell]:
        keys, values = batch.keys, batch.values
        cells: dict[RowKey, Cell] = {}
        if not len(keys):
            return cells
        number = self._class_of(keys)
        rows = self._class_rows
        standings = np.array([r[1] for r in rows], STANDING)[number]
        skid = np.array([r[2] for r in rows], bool)[number]
        hop = hop_columns(keys, standings)
        late = (skid | (keys["lateness"] == Lateness.SKID)).astype("u8")
        table = np.stack(
            [hop["inode"].astype("u8"), hop["cookie"], hop["ifindex"].astype("u8"), number.astype("u8"), late], axis=1
        )
        unique, inverse = np.unique(table, axis=0, return_inverse=True)
        # A tick that was due while the CPU slept is idle time, wherever it landed.
        counted = np.where(keys["lateness"] == DUE_IDLE, 0.0, values["weight"].astype("f8"))
        weights = np.bincount(inverse.reshape(-1), counted, len(unique))
        for (inode, cookie, ifindex, at, is_late), ns in zip(unique.tolist(), weights.tolist(), strict=True):
            context, _, _, leaf = rows[at]
            if context != Context.IDLE:
                cell = cells.setdefault((inode, cookie, ifindex), Cell())
                cell.add(context, leaf, ns, ns if is_late else 0.0)
        return cells

    def _class_of(self, keys: NDArray[Any]) -> NDArray[np.int64]:
        """What each sample's stack says, as a number into `_class_rows`; a stack is taken apart only once."""
        table = np.stack(
            [keys["kernel_stack"].astype("u8"), keys["user_mode"].astype("u8"), (keys["pid"] == 0).astype("u8")],
            axis=1,
        )
        unique, inverse = np.unique(table, axis=0, return_inverse=True)
        numbers = []
        for stack, user_mode, swapper in unique.tolist():
            key = (stack, user_mode, bool(swapper))
            found = self._classes.get(key)
            if found is None:
                found = len(self._class_rows)
                self._class_rows.append(self._classify(*key))
                if not stack or stack in self.stacks:  # a stack still unseen may be seen the next time
                    self._classes[key] = found
            numbers.append(found)
        return np.array(numbers, "i8")[inverse.reshape(-1)]

    def _classify(self, stack: int, user_mode: int, swapper: bool) -> tuple[int, tuple[int, int, bool], bool, str]:
        """(context, standing, skid, function) of a stack."""
        record = self.stacks.get(stack) if stack else None
        if record is None:
            context = Context.USER if user_mode else Context.UNKNOWN
            return context, standing((), context), False, "[user]" if user_mode else "[no stack]"
        names = kernel_names(self.symbols, record)
        context = context_of(names, has_user=bool(user_mode), swapper=swapper)
        return (
            context,
            standing(names, context),
            after_interrupt_enable(record["code"].tobytes()),
            names[0] or "[unknown]",
        )


def _busy(before: Moment, after: Moment) -> dict[int, float]:
    """Busy seconds by CPU in the interval. A CPU's times are read there, which on a busy one takes its time: so its
    busy share between its own two readings counts, not their difference."""
    seconds = after.at_s - before.at_s
    found = {}
    for cpu, busy_s in cputime.busy_seconds(before.cpu, after.cpu).items():
        wall_s = (after.cpu.idle[cpu][0] - before.cpu.idle[cpu][0]) / 1e9
        found[cpu] = min(busy_s / wall_s, 1.0) * seconds if wall_s > 0 else 0.0
    return found


def _ticks(batch: RawBatch) -> RawBatch:
    """A batch with one row a CPU for the idle task and one for all others: as much as losses are reckoned from."""
    cpu, idle = batch.keys["cpu"].astype("i8"), batch.keys["pid"] == 0
    counts = np.bincount(2 * cpu + idle, batch.values["count"].astype("f8")) if len(batch) else np.zeros(0)
    rows = np.flatnonzero(counts)
    keys, values = np.zeros(len(rows), batch.keys.dtype), np.zeros(len(rows), batch.values.dtype)
    keys["cpu"], keys["pid"] = rows // 2, 1 - rows % 2
    values["count"] = counts[rows]
    return replace(batch, keys=keys, values=values, stacks={})


def _difference(first: Window, last: Window) -> Window:
    """What was counted between two looks at the same running window."""
    tallies = last.tallies.copy()
    for name in ("hits", "weight", "map_full", "stack_full", "no_stack", "late", "missed"):
        tallies[name] = last.tallies[name] - first.tallies[name]
    unknown = (first.throttled < 0) | (last.throttled < 0)
    return Window(
        start_ns=first.end_ns,
        end_ns=last.end_ns,
        counts=last.counts - first.counts,
        throttled=np.where(unknown, -1, last.throttled - first.throttled),
        tallies=tallies,
        idle_s={cpu: s - first.idle_s.get(cpu, s) for cpu, s in last.idle_s.items()},
        attach_ms=last.attach_ms,
    )


@contextmanager
def watching(*, frequency_hz: int, hop: bool, keep_s: int) -> Iterator[Watch]:
    """A Watch with its sampler loaded and calibrated; detached and unloaded at the end.

    Where hop probes do not stand, it samples without them and `notes` says so. Raises PreflightError or ProbeError
    where nothing can be sampled.
    """
    config = SamplerConfig(frequency_hz=frequency_hz, hop=hop)
    notes: list[str] = []
    try:
        sampler = Sampler(config).__enter__()
    except ProbeError as error:
        if not hop:
            raise
        notes.append(f"softirq CPU is not told by namespace: {error.message}")
        sampler = Sampler(replace(config, hop=False)).__enter__()
    except PreflightError as error:
        raise PreflightError(
            f"nsprof top samples through BPF: {error.message}",
            error.hint or "nsprof record --watch NETNS --duration 10 samples through perf where BPF is missing",
        ) from error
    try:
        sampler.calibrate(0.2)
        watch = Watch(sampler, tuple(notes), keep_s)
        try:
            yield watch
        finally:
            watch.end()
    finally:
        sampler.close()

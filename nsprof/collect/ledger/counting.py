"""The ledger: what packets pay for (copies, checksums, segments, fragments, drops), counted by probes in a window.

    with Ledger(budget_share=0.02) as ledger:
        ledger.start(); ...; ledger.stop()
        batch = ledger.read()

Probes cost CPU a hit. While they are attached, a watcher reckons their share of the machine's CPU time from hits and
calibrated cost; over the budget the most expensive probe is detached ("shed"), and the profile says which and when.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.bpf.loader import online_cpus
from nsprof.collect.ladder.finding import Attached, attach
from nsprof.collect.ledger.probes import KEY, VALUE, Group, Probe, open_functions, open_tracepoints
from nsprof.collect.sampling.cost import ROUND_TRIPS, Echo, paired_difference_ns
from nsprof.errors import ProbeError
from nsprof.model.profile import ProbeInfo

__all__ = ["BUDGET_SHARE", "Batch", "Ledger"]

#: Default of --probe-budget: share of the CPU time of all online CPUs.
BUDGET_SHARE = 0.02
#: The watcher looks this often; a probe is shed after two looks over the budget in a row.
_LOOK_S = 0.25
#: Probes that calibration attaches, those that are hit by a datagram over loopback on any kernel.
_CALIBRATED = ("queue", "xmit", "receive", "_copy_from_iter", "_copy_to_iter", "enqueue_to_backlog")
#: Rungs that are measured together: on return it is more, by the ratio of what is assumed.
_RUNGS = (("tp_btf", "raw_tp"), ("fentry", "fexit"), ("kprobe_multi",), ("kprobe", "kretprobe"))
#: Assumed before calibration, and for rungs that the calibration's packets do not hit: twice what was ever measured.
_ASSUMED_NS = {
    "tp_btf": 200.0,
    "raw_tp": 250.0,
    "fentry": 300.0,
    "fexit": 400.0,
    "kprobe": 600.0,
    "kretprobe": 1000.0,
    "kprobe_multi": 500.0,
}


@dataclass(frozen=True, slots=True)
class Batch:
    """What a window counted: rows of KEY and VALUE, stacks by (group, id), events lost to a full table."""

    rows: tuple[tuple[NDArray[Any], NDArray[Any]], ...] = ()
    stacks: dict[tuple[int, int], NDArray[np.uint64]] = field(default_factory=dict)
    lost: int = 0
    functions: tuple[Probe, ...] = ()
    events: tuple[Probe, ...] = ()
    shed_s: dict[str, float] = field(default_factory=dict)  # probe -> seconds after the window began


class Ledger:
    """Use it as a context manager. Raises PreflightError or ProbeError when not even tracepoints can be had.

    `functions` names the functions to probe instead of the table's; unknown names are refused rows of
    `probe_infos()`, with near misses. `budget_share` 0 switches the watcher off.
    Without `calibrate` a hit's cost is assumed.
    """

    def __init__(
        self,
        *,
        budget_share: float = BUDGET_SHARE,
        functions: Sequence[str] = (),
        say: Callable[[str], None] | None = None,
        calibrate: bool = True,
    ) -> None:
        self.budget_share = budget_share
        self.functions = tuple(functions)
        self.costs_ns: dict[str, float] = {}
        self.shed: list[str] = []
        self.attach_s = self.detach_s = 0.0
        self._say = say or (lambda text: None)
        self._groups: list[Group] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._begun_s = 0.0
        self._shed_s: dict[str, float] = {}
        self._lost = 0
        self._calibrated = calibrate
        self.refusals: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._groups.append(open_tracepoints())
            self._groups.append(open_functions(self.functions))
            if self._calibrated:
                self.calibrate()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def probes(self) -> list[Probe]:
        """All probes, tracepoints first."""
        return [probe for group in self._groups for probe in group.probes]

    def start(self) -> None:
        """Attach everything, then count; the budget's watcher begins. Attaching takes `attach_s` seconds."""
        for probe in self.probes:
            probe.shed = ""  # each window has its own traffic
        self._shed_s = {}
        self._clear()
        self._attach()
        self.refusals = [f"{probe.name}: {probe.details}" for probe in self.probes if probe.details]
        if not any(probe.attached for probe in self.probes):
            reasons = "; ".join(dict.fromkeys(probe.reason for probe in self.probes if probe.reason))
            raise ProbeError(f"no probe of the ledger can be attached: {reasons}", "nsprof doctor tells why")
        self._gate(True)
        self._begun_s = time.monotonic()
        self._ended.clear()
        if self.budget_share > 0:
            self._watcher = threading.Thread(target=self._watch, name="nsprof-budget", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """Count no more, detach everything (in `detach_s` seconds), take the hits; harmless when not attached."""
        begun = time.perf_counter()
        self._gate(False)
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        with self._lock:
            for probe in self.probes:
                probe.detach()
            self.detach_s = time.perf_counter() - begun
            for group in self._groups:
                if group.program is None:
                    continue
                tally = group.tally()
                for probe in group.probes:
                    probe.hits += int(tally[probe.slot])
                self._lost += int(tally[group.slots - 1])

    def read(self) -> Batch:
        """What was counted since the last start(), removed from the tables."""
        rows, stacks = [], {}
        for number, group in enumerate(self._groups):
            keys, values = group.take() if group.program is not None else (np.zeros(0, KEY), np.zeros(0, VALUE))
            rows.append((keys, values))
            for each in np.unique(keys["stack"][keys["stack"] >= 0]).tolist():
                stacks[number, each] = group.stack(each)
        lost, self._lost = self._lost, 0
        functions = tuple(self._groups[1].probes) if len(self._groups) > 1 else ()
        events = tuple(self._groups[0].probes) if self._groups else ()
        return Batch(tuple(rows), stacks, lost, functions, events, dict(self._shed_s))

    def probe_infos(self) -> tuple[ProbeInfo, ...]:
        """One row a probe since the last call: its rung, or why it has none, or when it was shed."""
        rows = tuple(probe.info(self._cost_ns(probe)) for probe in self.probes)
        for probe in self.probes:
            probe.hits = 0
        return rows

    def cost_s(self) -> float:
        """CPU seconds of the hits not yet told by probe_infos(), at the calibrated cost."""
        return sum(probe.hits * self._cost_ns(probe) for probe in self.probes) / 1e9

    def calibrate(self, seconds: float = 0.3) -> None:
        """Measure what a hit costs on each rung in use: the same datagrams over loopback with some probes on and off.

        On the rungs of functions it is the backlog, which every datagram over loopback passes once, and the copies
        between user space and kernel where they are open to probes.
        """
        self._attach()
        used = {probe.rung for probe in self.probes}
        for probe in self.probes:
            probe.detach()
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        try:
            self._gate(True)
            with Echo() as work:
                for rungs in _RUNGS:
                    if used & set(rungs):
                        self._calibrate(work, rungs, seconds)
        finally:
            os.sched_setaffinity(0, before)
            self._gate(False)
            self._clear()

    def _calibrate(self, work: Callable[[], None], rungs: tuple[str, ...], seconds: float) -> None:
        """On the entry rungs; a return costs more (docs/probes/calls.md), by the ratio of what is assumed."""
        chosen = [probe for probe in self.probes if probe.name in _CALIBRATED and probe.found is not None]
        attached: list[Attached] = []
        batches = [group for group in self._groups if "kprobe_multi" in rungs]

        def on() -> None:
            for group in batches:
                group.attach_batches([probe for probe in chosen if probe in group.probes])
            for probe in chosen:
                codes = {rung: code for rung, code in probe.codes.items() if rung in rungs}
                if codes and probe.found is not None:
                    attached.append(attach(probe.found, codes, name="nsprof_calibrate"))

        def off() -> None:
            while attached:
                attached.pop().close()
            for probe in chosen:
                probe.detach()

        try:
            self._clear()
            on()
            work()
            off()
            hits = sum(int(group.tally()[p.slot]) for group in self._groups if group.program for p in group.probes)
            if hits < ROUND_TRIPS:
                return  # the probes do not stand there: the assumed cost stays
            added, _ = paired_difference_ns(work, on=on, off=off, seconds=seconds, repeats=2)
        except ProbeError:
            return  # this rung is not granted after all: the assumed cost stays
        finally:
            off()
        for rung in rungs:
            self.costs_ns[rung] = max(0.0, added / hits) * _ASSUMED_NS[rung] / _ASSUMED_NS[rungs[0]]

    def _cost_ns(self, probe: Probe) -> float:
        return self.costs_ns.get(probe.rung, _ASSUMED_NS.get(probe.rung, 0.0))

    def _attach(self) -> None:
        begun = time.perf_counter()
        for group in self._groups:
            group.attach()
        self.attach_s = time.perf_counter() - begun

    def _gate(self, open_: bool) -> None:
        for group in self._groups:
            if group.program is not None:
                group.open_gate(open_)

    def _clear(self) -> None:
        from nsprof.collect.bpf.loader import possible_cpus

        for group in self._groups:
            if group.program is not None:
                group.take()
                hits = group.map("hits", "u4", "u8", group.slots)
                for slot in range(group.slots):
                    hits.set(slot, np.zeros(possible_cpus(), "u8"))

    def _watch(self) -> None:
        seen, then = self._spent_ns(), time.monotonic()
        over = 0
        while not self._ended.wait(_LOOK_S):
            spent, now = self._spent_ns(), time.monotonic()
            new = {probe: ns - seen.get(probe, 0.0) for probe, ns in spent.items()}
            share = sum(new.values()) / ((now - then) * 1e9 * len(online_cpus()))
            seen, then = spent, now
            over = over + 1 if share > self.budget_share else 0
            if over >= 2:
                over = 0
                self._shed(max(new, key=lambda name: new[name]), share)

    def _spent_ns(self) -> dict[str, float]:
        """What each attached probe has cost so far in this window, in ns, by its name."""
        found: dict[str, float] = {}
        for group in self._groups:
            if group.program is not None:
                tally = group.tally()
                found |= {p.name: int(tally[p.slot]) * self._cost_ns(p) for p in group.probes if p.attached}
        return found

    def _shed(self, name: str, share: float) -> None:
        probe = next(each for each in self.probes if each.name == name)
        after = self._shed_s[name] = time.monotonic() - self._begun_s
        probe.shed = (
            f"{after:.1f} s after the window began: the ledger cost {share * 100:.1f} % of the CPUs, "
            f"over its budget of {self.budget_share * 100:g} %; counted until then only: {probe.lost}"
        )
        with self._lock:
            next(group for group in self._groups if probe in group.probes).remove(probe)
        self.shed.append(name)
        self._say(f"probe {name} shed {probe.shed}")

    def close(self) -> None:
        """Detach and unload. Calling it twice is harmless."""
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        while self._groups:
            self._groups.pop().close()

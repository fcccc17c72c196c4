"""The events that can be sampled: perf's names, what a weight of theirs is measured in, how they are opened."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from nsprof.collect.bpf.syscalls import perf_event_open
from nsprof.errors import UsageError
from nsprof.model.profile import Event

__all__ = ["EVENTS", "EventSpec", "event_spec"]

_HARDWARE, _SOFTWARE = 0, 1  # enum perf_type_id


@dataclass(frozen=True, slots=True)
class EventSpec:
    """A perf event. `timer` events tick on a per-CPU timer, with a due time against which lateness is told."""

    name: str
    kind: int
    config: int
    unit: str
    timer: bool = False

    @property
    def software_counter(self) -> bool:
        """Whether the kernel counts it in software and adapts its period (such an event reports the next period)."""
        return self.kind == _SOFTWARE and not self.timer

    def timer_period_ns(self, frequency_hz: int) -> int:
        """Nanoseconds between two ticks; 0 when the event is no timer. The kernel divides so, too."""
        return 1_000_000_000 // frequency_hz if self.timer else 0

    def event(self, frequency_hz: int) -> Event:
        """The profile's event."""
        return Event(self.name, self.unit, "sampled", self.timer_period_ns(frequency_hz), frequency_hz)

    def open(self, cpu: int, frequency_hz: int) -> int:
        """A disabled descriptor on one CPU. Timers get a fixed period, counters adapt theirs. Raises OSError."""
        if self.timer:
            return perf_event_open(self.kind, self.config, cpu, period=self.timer_period_ns(frequency_hz))
        return perf_event_open(self.kind, self.config, cpu, frequency_hz=frequency_hz)


# enum perf_sw_ids and perf_hw_id, include/uapi/linux/perf_event.h
EVENTS = {
    spec.name: spec
    for spec in (
        EventSpec("cpu-clock", _SOFTWARE, 0, "ns", timer=True),
        EventSpec("task-clock", _SOFTWARE, 1, "ns", timer=True),
        EventSpec("page-faults", _SOFTWARE, 2, "count"),
        EventSpec("context-switches", _SOFTWARE, 3, "count"),
        EventSpec("cpu-migrations", _SOFTWARE, 4, "count"),
        EventSpec("minor-faults", _SOFTWARE, 5, "count"),
        EventSpec("major-faults", _SOFTWARE, 6, "count"),
        EventSpec("alignment-faults", _SOFTWARE, 7, "count"),
        EventSpec("cycles", _HARDWARE, 0, "cycles"),
        EventSpec("instructions", _HARDWARE, 1, "instructions"),
        EventSpec("cache-references", _HARDWARE, 2, "count"),
        EventSpec("cache-misses", _HARDWARE, 3, "misses"),
        EventSpec("branches", _HARDWARE, 4, "count"),
        EventSpec("branch-misses", _HARDWARE, 5, "misses"),
    )
}
_ALIASES = {"faults": "page-faults", "cs": "context-switches", "migrations": "cpu-migrations", "cpu-cycles": "cycles"}


def event_spec(name: str) -> EventSpec:
    """The event of that name (perf's names and aliases). Raises UsageError with the nearest names."""
    spec = EVENTS.get(_ALIASES.get(name, name))
    if spec is None:
        near = difflib.get_close_matches(name, EVENTS, n=2) or sorted(EVENTS)
        raise UsageError(f"no event {name!r} to sample", f"one of: {', '.join(near)}")
    return spec

"""The sampler: BPF programs on perf events of every CPU, added up in the kernel, read as numpy columns.

    with Sampler(SamplerConfig()) as sampler:   # compiled and loaded, nothing attached
        sampler.start(); ...; sampler.stop()    # cheap, any number of times
        batch = sampler.read()                  # the raw samples since the last read
    add_batch(builder, batch, run_index, symbols=KernelSymbols())

What is counted and lost, and how, is in docs/method.md (Sampling, Lateness, Losses, Own cost).
"""

from __future__ import annotations

import mmap
import os
import resource
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.bpf import loader
from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.hop import probes as hops
from nsprof.collect.sampling.batch import RawBatch, Window, add_batch
from nsprof.collect.sampling.cost import cost_per_hit_ns
from nsprof.collect.sampling.events import EventSpec, event_spec
from nsprof.collect.sampling.maps import CONTROL, EVENTS_MAX, SAMPLE_KEY, SAMPLE_VALUE, STACK, TALLY
from nsprof.errors import PreflightError, ProbeError, UsageError
from nsprof.model.profile import ProbeInfo

__all__ = ["LATE_NS", "RawBatch", "Sampler", "SamplerConfig", "add_batch"]

#: A tick later than this against its timer's due time fell into an interrupts-off section (docs/method.md).
LATE_NS = 10_000

_RECORD_THROTTLE = 5  # enum perf_event_type


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """What to sample. `frequency_hz` is perf's -F: timers tick so often, counters adapt their period to it.

    `samples_max` and `stacks_max` bound the kernel's tables (0: from CPUs and frequency); what finds no room is
    counted as lost. `hop` attaches the hop probes with start(), on the best of `hop_rungs` (all of them when empty).
    `late_ns` is the threshold of lateness.
    """

    events: tuple[str, ...] = ("cpu-clock",)
    frequency_hz: int = 499
    user_stacks: bool = False
    hop: bool = False
    samples_max: int = 0
    stacks_max: int = 0
    late_ns: int = LATE_NS
    lateness_histogram: bool = False
    hop_rungs: tuple[str, ...] = ()


@dataclass(slots=True)
class _Opened:
    """One perf event on one CPU."""

    event: int
    cpu: int
    fd: int
    ring: mmap.mmap | None


@dataclass(slots=True)
class _State:
    program: loader.Program
    functions: list[int]
    samples: loader_syscall.MapReader
    stacks: loader_syscall.MapReader
    tallies: loader_syscall.MapReader
    control: loader_syscall.MapReader
    hop: hops.HopProbes | None
    opened: list[_Opened] = field(default_factory=list)


class Sampler:
    """Samples the whole machine; use it as a context manager. start() and stop() may alternate many times."""

    def __init__(self, config: SamplerConfig | None = None) -> None:
        """Raises UsageError for events or a frequency that cannot be meant; touches nothing yet."""
        self.config = config or SamplerConfig()
        if not 1 <= self.config.frequency_hz <= 100_000:
            raise UsageError(
                f"sampling frequency {self.config.frequency_hz} Hz is not between 1 and 100000",
                "nsprof record -F 499",
            )
        if not 1 <= len(self.config.events) <= EVENTS_MAX:
            raise UsageError(f"{len(self.config.events)} events: between 1 and {EVENTS_MAX} can be sampled at once")
        if len(set(self.config.events)) != len(self.config.events):
            raise UsageError(f"an event is named twice: {','.join(self.config.events)}")
        self.events: tuple[EventSpec, ...] = tuple(event_spec(name) for name in self.config.events)
        self.cost_ns_per_hit = 0.0
        self.refused: tuple[str, ...] = ()
        self._state: _State | None = None
        self._windows: list[Window] = []
        self._stack_cache: dict[int, NDArray[Any]] = {}
        self._pending: list[tuple[NDArray[Any], NDArray[Any]]] = []
        #: time.monotonic() before and after samples were last taken out of the kernel's table
        self.taken_s = (0.0, 0.0)
        self._window: dict[str, Any] = {}
        self._own_cpu_s = 0.0

    # ---- life ----

    def __enter__(self) -> Self:
        """Compile and load. Raises PreflightError (BCC, BTF, an event this kernel lacks) or ProbeError."""
        self.check_events()
        cpus = os.sysconf("SC_NPROCESSORS_ONLN")
        samples_max = self.config.samples_max or max(65_536, 32 * cpus * self.config.frequency_hz)
        stacks_max = self.config.stacks_max or (16_384 if cpus <= 16 else 65_536)
        defines: dict[str, int | str] = {"SAMPLES_MAX": samples_max, "STACKS_MAX": stacks_max}
        features = loader.features()
        if features.task_btf:
            defines["DIRECT_LOADS"] = 1
        if features.probe_read:
            defines["PROBE_READ"] = 1
        if self.config.user_stacks:
            defines["USER_STACKS"] = 1
        if self.config.lateness_histogram:
            defines["LATENESS_HISTOGRAM"] = 1
        hop = hops.HopProbes(rungs=hops.rungs_named(self.config.hop_rungs)) if self.config.hop else None
        program = None
        try:
            if hop is not None:
                hop.load()
                defines |= hop.defines()
            program = loader.compile_program("sampler", defines, lent=hop.lent() if hop is not None else None)
            functions = [program.load(f"on_event_{number}", loader.PERF_EVENT) for number in range(len(self.events))]
            self._state = _State(
                program,
                functions,
                program.map("samples", SAMPLE_KEY, SAMPLE_VALUE, samples_max),
                program.map("stacks", "u8", STACK, stacks_max),
                program.map("tallies", "u4", TALLY, EVENTS_MAX),
                program.map("control", "u4", CONTROL, 1),
                hop,
            )
        except BaseException:
            if program is not None:
                program.close()
            if hop is not None:
                hop.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach and unload everything. Calling it twice is harmless."""
        state, self._state = self._state, None
        if state is None:
            return
        _close_events(state.opened)
        state.program.close()
        if state.hop is not None:
            state.hop.close()

    def _loaded(self) -> _State:
        if self._state is None:
            raise ProbeError("the sampler is not loaded", "use it inside `with Sampler(config) as sampler:`")
        return self._state

    # ---- start and stop ----

    def start(self) -> None:
        """Attach to every online CPU and begin a window. Raises ProbeError; then nothing stays attached."""
        state = self._loaded()
        if state.opened:
            raise ProbeError("the sampler is running already")
        begun = time.perf_counter()
        cpus = loader.online_cpus()
        possible = loader.possible_cpus()
        for number in range(len(self.events)):
            state.tallies.set(number, np.zeros(possible, TALLY))
        try:
            if state.hop is not None:
                state.hop.attach()
            for number, spec in enumerate(self.events):
                for cpu in cpus:
                    state.opened.append(self._open(number, spec, cpu, state.functions[number]))
            control = np.zeros(1, CONTROL)
            control["late_ns"] = self.config.late_ns
            control["software"] = sum(1 << n for n, spec in enumerate(self.events) if spec.software_counter)
            for number, spec in enumerate(self.events):
                control["period_ns"][0][number] = spec.timer_period_ns(self.config.frequency_hz)
            control["start_ns"] = time.monotonic_ns()
            state.control.set(0, control)
            idle = _idle_s()
            for each in state.opened:
                loader_syscall.perf_ioctl(each.fd, "enable")
        except OSError as error:
            self._detach(state)
            raise ProbeError(f"sampling cannot be switched on: {error.strerror}", "nsprof doctor") from error
        except BaseException:
            self._detach(state)
            raise
        self._window = {
            "start_ns": int(control["start_ns"][0]),
            "idle": idle,
            "attach_ms": (time.perf_counter() - begun) * 1e3,
            "usage": _own_usage_s(),
            "hop_cost_s": state.hop.cost_s() if state.hop is not None else 0.0,
        }

    def stop(self) -> None:
        """Detach and end the window. Harmless when nothing is attached."""
        state = self._loaded()
        if not state.opened:
            return
        for each in state.opened:
            loader_syscall.perf_ioctl(each.fd, "disable")
        end_ns = time.monotonic_ns()
        idle = _idle_s()
        used_s = _own_usage_s() - self._window["usage"]
        counts, throttled, tallies = self._counted(state)
        self._detach(state)
        hits = int(tallies["hits"].sum())
        self._own_cpu_s += used_s + hits * self.cost_ns_per_hit / 1e9
        if state.hop is not None:
            self._own_cpu_s += state.hop.cost_s() - self._window["hop_cost_s"]
        before = self._window["idle"]
        self._windows.append(
            Window(
                start_ns=self._window["start_ns"],
                end_ns=end_ns,
                counts=counts,
                throttled=throttled,
                tallies=tallies,
                idle_s={cpu: idle[cpu] - before[cpu] for cpu in idle if cpu in before},
                attach_ms=self._window["attach_ms"],
            )
        )

    def _counted(self, state: _State) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Events' own counts by CPU, throttles and tallies of the window up to now."""
        counts = np.zeros((len(self.events), loader.possible_cpus()), "u8")
        throttled = np.zeros(len(self.events), "i8")
        for each in state.opened:
            counts[each.event, each.cpu] = struct.unpack("<QQQ", os.read(each.fd, 24))[0]
            throttled[each.event] += _throttles(each.ring)
        tallies = np.stack([state.tallies.get(number, loader.possible_cpus()) for number in range(len(self.events))])
        return counts, throttled, tallies

    def so_far(self) -> Window:
        """What the running window has counted up to now; the window goes on. Raises ProbeError when none runs."""
        state = self._loaded()
        if not state.opened:
            raise ProbeError("no window is running")
        counts, throttled, tallies = self._counted(state)
        before, idle = self._window["idle"], _idle_s()
        return Window(
            start_ns=self._window["start_ns"],
            end_ns=time.monotonic_ns(),
            counts=counts,
            throttled=throttled,
            tallies=tallies,
            idle_s={cpu: idle[cpu] - before[cpu] for cpu in idle if cpu in before},
            attach_ms=self._window["attach_ms"],
        )

    def probes_cost_s(self) -> float:
        """CPU seconds that the hop probes have cost so far, the running window included; 0.0 without them."""
        state = self._loaded()
        return state.hop.cost_s() if state.hop is not None else 0.0

    def _detach(self, state: _State) -> None:
        _close_events(state.opened)
        if state.hop is not None:
            state.hop.detach()

    def _open(self, number: int, spec: EventSpec, cpu: int, function: int) -> _Opened:
        fd = spec.open(cpu, self.config.frequency_hz)
        try:
            loader_syscall.perf_ioctl(fd, "set_bpf", function)
            return _Opened(number, cpu, fd, _ring(fd))
        except OSError:
            os.close(fd)
            raise

    def check_events(self) -> None:
        """Raises PreflightError naming the event or frequency that this kernel does not allow."""
        _check_rate(self.config.frequency_hz)
        for spec in self.events:
            self._try_event(spec)

    def _try_event(self, spec: EventSpec) -> None:
        try:
            os.close(spec.open(loader.online_cpus()[0], self.config.frequency_hz))
        except PermissionError as error:
            raise PreflightError(
                f"sampling {spec.name} system-wide is not permitted: {error.strerror}",
                "run as root (sudo nsprof ...)",
            ) from error
        except OSError as error:
            raise PreflightError(
                f"this kernel has no event {spec.name}: {error.strerror}",
                "cpu-clock is there on every kernel: -e cpu-clock",
            ) from error

    # ---- reading ----

    def poll(self) -> None:
        """Move what has been sampled so far out of the kernel's tables, so that they do not fill up.

        Call it every few seconds of a long window; sampling goes on meanwhile and nothing is lost by it.
        """
        state = self._loaded()
        began_s = time.monotonic()
        keys, values = state.samples.take()
        self.taken_s = (began_s, time.monotonic())
        if len(keys):
            self._pending.append((keys, values))
        # Stacks after samples: a sample's stack is in the table before the sample is, so none is missed.
        hashes, stacks = state.stacks.take()
        for each, stack in zip(hashes.tolist(), stacks, strict=True):
            self._stack_cache[each] = stack

    def read(self) -> RawBatch:
        """Everything sampled since the last read, of the windows stopped since then. Call it after stop()."""
        self.poll()
        pending, self._pending = self._pending, []
        windows, self._windows = self._windows, []
        stacks, self._stack_cache = self._stack_cache, {}
        if pending:
            keys = np.concatenate([p[0] for p in pending])
            values = np.concatenate([p[1] for p in pending])
        else:
            keys, values = np.zeros(0, SAMPLE_KEY), np.zeros(0, SAMPLE_VALUE)
        return RawBatch(
            events=tuple(spec.event(self.config.frequency_hz) for spec in self.events),
            periods_ns=tuple(spec.timer_period_ns(self.config.frequency_hz) for spec in self.events),
            keys=keys,
            values=values,
            stacks=stacks,
            windows=tuple(windows),
            text_readable=loader.features().probe_read,
        )

    # ---- cost ----

    def own_cpu_s(self) -> float:
        """CPU seconds that nsprof used in the windows so far: hits at their calibrated cost, and this process.

        The process's own time includes whatever else it did meanwhile. Without calibrate() a hit costs 0 here.
        """
        return self._own_cpu_s

    def calibrate(self, seconds: float = 0.4) -> float:
        """Measure what one hit costs, in ns, interrupt included, and keep it for own_cpu_s(). See docs/method.md.

        The hop probes, where they are loaded, are calibrated as well.
        """
        state = self._loaded()
        if state.opened:
            raise ProbeError("the sampler cannot be calibrated while it runs")
        spec = event_spec("cpu-clock")
        try:
            self.cost_ns_per_hit = cost_per_hit_ns(state.functions[0], open_event=spec.open, seconds=seconds)
        except OSError as error:
            raise ProbeError(f"the sampler's cost cannot be measured: {error.strerror}") from error
        if state.hop is not None:
            state.hop.calibrate(seconds)
        state.samples.take()  # what the calibration sampled is nobody's
        state.stacks.take()
        return self.cost_ns_per_hit

    def probe_infos(self, windows: tuple[Window, ...] = ()) -> tuple[ProbeInfo, ...]:
        """The sampler's programs, and the hop probes where they are on, as the profile lists them."""
        hits = [sum(int(w.tallies["hits"][n].sum()) for w in windows) for n in range(len(self.events))]
        attach_ms = max((w.attach_ms for w in windows), default=0.0)
        own = tuple(
            ProbeInfo(
                "sampler",
                spec.name,
                "perf_event",
                hits=hits[n],
                cost_ns_per_hit=self.cost_ns_per_hit,
                attach_ms=attach_ms,
            )
            for n, spec in enumerate(self.events)
        )
        state = self._state
        return own + (state.hop.probe_infos() if state is not None and state.hop is not None else ())


def _close_events(opened: list[_Opened]) -> None:
    while opened:
        each = opened.pop()
        if each.ring is not None:
            each.ring.close()
        os.close(each.fd)


def _ring(fd: int) -> mmap.mmap | None:
    """The event's own ring of one page: samples do not come here, the kernel's notices of throttling do."""
    try:
        return mmap.mmap(fd, 2 * mmap.PAGESIZE)
    except OSError:  # the locked-memory limit of a user without CAP_IPC_LOCK: throttling is not seen then
        return None


def _throttles(ring: mmap.mmap | None) -> int:
    """How many PERF_RECORD_THROTTLE the ring holds; -1 where there is no ring."""
    if ring is None:
        return -1
    head = struct.unpack_from("<Q", ring, 1024)[0]  # data_head
    at, found = 0, 0
    while at + 8 <= min(head, mmap.PAGESIZE):
        kind, _, size = struct.unpack_from("<IHH", ring, mmap.PAGESIZE + at)
        if size < 8:
            break
        found += kind == _RECORD_THROTTLE
        at += size
    return found


def _check_rate(frequency_hz: int) -> None:
    path = Path("/proc/sys/kernel/perf_event_max_sample_rate")
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):
        return
    if frequency_hz > limit:
        raise PreflightError(
            f"the kernel allows {limit} samples/s a CPU (kernel.perf_event_max_sample_rate), not {frequency_hz}",
            f"sysctl -w kernel.perf_event_max_sample_rate={2 * frequency_hz}",
        )


def _idle_s() -> Mapping[int, float]:
    """Idle + iowait seconds of each CPU so far (10 ms steps)."""
    hertz = os.sysconf("SC_CLK_TCK")
    found: dict[int, float] = {}
    for line in Path("/proc/stat").read_text().splitlines():
        words = line.split()
        if words and words[0].startswith("cpu") and words[0][3:].isdigit():
            found[int(words[0][3:])] = (int(words[4]) + int(words[5])) / hertz
    return found


def _own_usage_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

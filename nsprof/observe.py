"""One window of observation around some traffic: what `record` and `bench` have in common.

For every window: counters, sampler on, traffic, sampler off, counters again, drain, resolve. Everything goes into
one ProfileBuilder; an Observer is loaded once and used for many windows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from nsprof.collect.sampling.sampler import SamplerConfig
from nsprof.collect.system import counters, cputime
from nsprof.collect.system.cputime import CpuTimes
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Counter, Device, Namespace, Run, Value
from nsprof.sources import BpfSource, LedgerSource, Names, PerfSource, open_source

__all__ = ["Observer", "Scene", "Traffic"]

#: The kernel's tables are emptied this often in a window; they are sized for several times as long.
_POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went on in a window and what it gave. A plain wait has no command and status 0.

    `denominators` are those that only the tool knows (transactions, KB of payload); `failed` is why the figures
    cannot be used, in one line.
    """

    command: tuple[str, ...] = ()
    status: int = 0
    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    denominators: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a window takes place.

    `namespaces` maps the paths whose counters are read to what is known of them; `ends` are the paths of the two ends
    of the traffic (one is enough); `reference` is (path, device) whose skbs are the unit, None for the busiest.
    """

    scenario: str
    namespaces: Mapping[str, Namespace]
    ends: tuple[str, ...] = ()
    reference: tuple[str, str] | None = None
    dut_cpus: tuple[int, ...] = ()
    remote_cpus: tuple[int, ...] = ()
    label: str = ""
    kernel: str = ""
    devices: Callable[[], Sequence[tuple[str, Device]]] | None = None


class Observer:
    """Samples and counts; use it as a context manager.

    Sampling is BPF's where it can be had, else `perf record`'s: then `fallback` says why in one line. Raises
    PreflightError when this machine can do neither, or lacks an event.
    """

    def __init__(
        self,
        config: SamplerConfig,
        opener: Callable[[SamplerConfig], BpfSource | PerfSource | LedgerSource] = open_source,
    ) -> None:
        self.config = config
        self.fallback = ""
        self._opener = opener
        self._source: BpfSource | PerfSource | LedgerSource | None = None
        self._own_s = 0.0

    def __enter__(self) -> Self:
        self._source = self._opener(self.config)
        self.fallback = self._source.fallback
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._source is not None:
            self._source.close()

    def window(self, builder: ProfileBuilder, scene: Scene, work: Callable[[], Traffic]) -> Run:
        """Observe `work` and add it to the builder as one run. What `work` raises, it raises too, after detaching."""
        paths = {path: builder.namespace(ns) for path, ns in scene.namespaces.items()}
        before = counters.take(paths)
        started = time.time()
        with self._sampling() as times:
            traffic = work()
        # CPU times are those of the moments at which sampling was switched on and off: attaching and detaching
        # costs CPU that no sample can show.
        before = replace(before, cpu=times[0])
        after = replace(counters.take(paths, closing=True), cpu=times[1])
        index = len(builder.runs)
        rows = counters.delta(before, after, index, paths)
        builder.counters.extend(rows)
        busy = counters.busy_seconds(before, after)
        source = self._opened()
        losses = source.add(
            builder,
            index,
            Names(namespace=_names(scene.namespaces.values()), device=_device_names(before, after)),
            busy,
        )
        reference = _reference(scene, rows, paths)
        own_s = source.own_cpu_s()
        run = Run(
            scenario=scene.scenario,
            kernel=scene.kernel,
            label=scene.label,
            started=started,
            duration_s=counters.wall_seconds(before, after),
            cpus=len(busy),
            cpu_busy_s=busy,
            cpu_steal_s=counters.steal_seconds(before, after),
            dut_cpus=scene.dut_cpus,
            remote_cpus=scene.remote_cpus,
            denominators=_denominators(traffic, scene, rows, paths, reference),
            reference=_reference_text(paths, scene, reference),
            values=traffic.values,
            warnings=(*traffic.warnings, *_lost_namespaces(scene, before, after)),
            lost_by_cpu=dict(source.lost_by_cpu),
            losses=losses,
            probes_on=source.probes_on,
            own_cpu_s=own_s - self._own_s,
            command=traffic.command,
            status=traffic.status,
            failed=traffic.failed,
        )
        self._own_s = own_s
        builder.runs.append(run)
        return run

    def _opened(self) -> BpfSource | PerfSource | LedgerSource:
        if self._source is None:
            raise RuntimeError("an Observer observes inside `with Observer(config) as observer:`")
        return self._source

    @contextmanager
    def _sampling(self) -> Iterator[list[CpuTimes]]:
        """Sampler on within the block; its tables are emptied now and then by a thread.

        Yields a list that holds the CPU times at the beginning and, after the block, also those at the end.
        """
        source, ended = self._opened(), threading.Event()
        times: list[CpuTimes] = []

        def drain() -> None:
            while not ended.wait(_POLL_S):
                source.poll()

        drainer = threading.Thread(target=drain, name="nsprof-drain", daemon=True)
        source.start()
        try:
            times.append(cputime.read())
            drainer.start()
            yield times
        finally:
            ended.set()
            if drainer.ident is not None:
                drainer.join()
            times.append(cputime.read())
            source.stop()

    def discard(self) -> None:
        """Throw away what a broken-off window has sampled."""
        self._opened().discard()


def _names(known: object) -> Callable[[int, int], Namespace]:
    rows = [ns for ns in known if isinstance(ns, Namespace)]  # type: ignore[attr-defined]
    by_cookie = {ns.cookie: ns for ns in rows if ns.cookie}
    by_inode = {ns.inode: ns for ns in rows if not ns.cookie}

    def find(inode: int, cookie: int) -> Namespace:
        found = by_cookie.get(cookie) or by_inode.get(inode)
        # Without a cookie on either side the inode decides; with one, a reused inode is another namespace.
        return found or Namespace(inode, cookie)

    return find


def _device_names(
    before: counters.CounterSnapshot, after: counters.CounterSnapshot
) -> Callable[[int, int, int], Device | None]:
    table: dict[tuple[int, int], str] = {}
    for shot in (before, after):
        for ns in shot.namespaces.values():
            for ifindex, (name, _) in ns.devices.items():
                table[ns.inode, ifindex] = name

    def find(inode: int, cookie: int, ifindex: int) -> Device | None:
        del cookie
        name = table.get((inode, ifindex))
        return Device(0, ifindex, name) if name else None

    return find


def _reference(scene: Scene, rows: Sequence[Counter], paths: Mapping[str, int]) -> tuple[int, str] | None:
    """(namespace + 1, device) whose skbs are the unit: the one asked for, else the busiest of the namespaces that the
    traffic is about (lo only if no other moved). None where nothing moved there: a unit from somebody else's device
    would be worse than none."""
    if scene.reference and scene.reference[0]:
        return paths[scene.reference[0]], scene.reference[1]
    wanted = scene.reference[1] if scene.reference else ""
    ends = {paths[path] for path in scene.ends if path in paths}
    moved: dict[tuple[int, str], float] = {}
    for row in rows:
        if row.scope != "device" or row.name not in ("rx_packets", "tx_packets"):
            continue
        if row.device == wanted or (not wanted and row.namespace in ends):
            key = (row.namespace, row.device)
            moved[key] = moved.get(key, 0.0) + row.delta
    best = max(moved.items(), key=lambda item: (item[0][0] in ends, item[0][1] != "lo", item[1]), default=None)
    return best[0] if best and best[1] > 0 else None


def _reference_text(paths: Mapping[str, int], scene: Scene, reference: tuple[int, str] | None) -> str:
    if reference is None:
        return ""
    label = next(ns.label for path, ns in scene.namespaces.items() if paths[path] == reference[0])
    return f"{reference[1]} in {label} ({'tx' if reference[1] == 'lo' else 'rx + tx'})"


def _denominators(
    traffic: Traffic,
    scene: Scene,
    rows: Sequence[Counter],
    paths: Mapping[str, int],
    reference: tuple[int, str] | None,
) -> dict[str, float]:
    found: dict[str, float] = {}
    if reference is not None:
        ends = [paths[path] for path in scene.ends if path in paths]
        found = counters.reference_denominators(rows, namespace=reference[0], device=reference[1], ends=ends)
    found.update(traffic.denominators)  # the tool knows its own transactions best
    return {name: value for name, value in found.items() if value > 0}


def _lost_namespaces(scene: Scene, before: counters.CounterSnapshot, after: counters.CounterSnapshot) -> list[str]:
    """Of the namespaces that the traffic is about, each by name; the others come and go as they like."""
    ours = {path for path, ns in scene.namespaces.items() if ns.role or path in scene.ends}
    lost = counters.lost_namespaces(before, after)
    return [f"counters of {path}: {why}" for path, why in lost.items() if path in ours]

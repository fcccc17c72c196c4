"""Where samples come from: BPF on perf events, or `perf record` where BPF is not to be had; and the ledger.

All are started and stopped around a window and add what they saw to a ProfileBuilder, as samples or ledger lines of
one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nsprof.collect.bpf.syscalls import program_infos
from nsprof.collect.ledger.counting import Ledger
from nsprof.collect.ledger.lines import add_lines
from nsprof.collect.sampling.batch import lost_share_by_cpu
from nsprof.collect.sampling.perf_fallback import PerfRecorder
from nsprof.collect.sampling.sampler import Sampler, SamplerConfig, add_batch
from nsprof.collect.symbols.kernel import KALLSYMS, MODULES, KernelSymbols
from nsprof.errors import PreflightError, ProbeError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Device, Losses, Namespace

__all__ = ["BpfSource", "LedgerSource", "Names", "PerfSource", "open_source"]


@dataclass(frozen=True, slots=True)
class Names:
    """What is known of namespaces, by (inode, cookie), and of devices, by (inode, cookie, ifindex)."""

    namespace: Callable[[int, int], Namespace]
    device: Callable[[int, int, int], Device | None]


def open_source(config: SamplerConfig) -> BpfSource | PerfSource:
    """The best source that this machine has. Raises PreflightError naming the lack when it has none."""
    sampler = Sampler(config)
    sampler.check_events()  # what no source can sample is no reason to fall back
    try:
        sampler.__enter__()
    except (PreflightError, ProbeError) as error:
        return PerfSource(config, error.message)
    try:
        sampler.calibrate()
        symbols = _Symbols(trampolines=config.hop)
        symbols.now()  # hidden symbols are found out before the recording, not after it
    except BaseException:
        sampler.close()
        raise
    return BpfSource(sampler, symbols)


class _Symbols:
    """The kernel's symbols as they are now, read and taken apart again only where something has changed them.

    Modules and BPF programs are named by the kernel in a few system calls, the table takes 30 to 300 ms to read and
    400 ms to take apart. `trampolines` come and go with attached probes, which nothing but the table itself tells.
    """

    def __init__(self, *, trampolines: bool) -> None:
        self._trampolines = trampolines
        self._seen: tuple[bytes, ...] = ()
        self._parsed: KernelSymbols | None = None

    def now(self) -> KernelSymbols:
        """Raises PreflightError when they are hidden or cannot be read."""
        seen = self._marks()
        if self._parsed is None or seen != self._seen:
            self._parsed, self._seen = KernelSymbols(), seen
        return self._parsed

    def _marks(self) -> tuple[bytes, ...]:
        marks = [name.encode() for name in sorted(program_infos())]
        for path in (MODULES, *((KALLSYMS,) if self._trampolines else ())):
            try:
                marks.append(path.read_bytes())
            except OSError:  # a kernel without modules; hidden symbols are told when they are parsed
                marks.append(b"")
        return tuple(marks)


class BpfSource:
    """The sampler of `collect`."""

    fallback = ""

    def __init__(self, sampler: Sampler, symbols: _Symbols) -> None:
        self._sampler = sampler
        self._symbols = symbols
        self.lost_by_cpu: Mapping[int, float] = {}
        self.probes_on: tuple[str, ...] = ("hop",) if sampler.config.hop else ()

    def start(self) -> None:
        self._sampler.start()

    def stop(self) -> None:
        self._sampler.stop()

    def poll(self) -> None:
        self._sampler.poll()

    def discard(self) -> None:
        self._sampler.read()

    def close(self) -> None:
        self._sampler.close()

    def own_cpu_s(self) -> float:
        """CPU seconds of nsprof's own so far (docs/method.md, Own cost)."""
        return self._sampler.own_cpu_s()

    def add(self, builder: ProfileBuilder, run: int, names: Names, busy_s: Mapping[int, float]) -> Losses:
        """Drain, resolve and add everything sampled since the last time as samples of `run`."""
        batch = self._sampler.read()
        losses = add_batch(
            builder,
            batch,
            run,
            symbols=self._symbols.now(),
            namespace_of=names.namespace,
            device_of=names.device,
            busy_s=busy_s,
        )
        builder.probes.extend(self._sampler.probe_infos(batch.windows))
        self.lost_by_cpu = lost_share_by_cpu(batch, busy_s=busy_s)
        return losses


class PerfSource:
    """`perf record -a -g` underneath. Namespaces, hops and lateness stay unknown: perf does not tell them."""

    probes_on: tuple[str, ...] = ()
    #: perf tells losses of the whole machine only.
    lost_by_cpu: Mapping[int, float] = MappingProxyType({})

    def __init__(self, config: SamplerConfig, reason: str) -> None:
        PerfRecorder(config.events, config.frequency_hz, reason=reason).close()  # perf is there, or say so now
        self.fallback = f"sampled by perf record, since BPF sampling is not to be had here: {reason}"
        self._config = config
        self._recorder: PerfRecorder | None = None
        self._path: Path | None = None

    def start(self) -> None:
        self.discard()
        self._recorder = PerfRecorder(self._config.events, self._config.frequency_hz)
        self._recorder.start()

    def stop(self) -> None:
        if self._recorder is not None and self._path is None:
            self._path = self._recorder.stop()

    def poll(self) -> None:
        """Nothing to do: perf writes its file by itself."""

    def discard(self) -> None:
        recorder, self._recorder, self._path = self._recorder, None, None
        if recorder is not None:
            recorder.close()

    def close(self) -> None:
        self.discard()

    def own_cpu_s(self) -> float:
        """Not known: perf's cost in interrupts is nobody's own."""
        return 0.0

    def add(self, builder: ProfileBuilder, run: int, names: Names, busy_s: Mapping[int, float]) -> Losses:
        """Read perf's file and add it as samples of `run`, which must be the next one to be appended."""
        del names, busy_s
        from nsprof.store import importers

        if self._path is None:
            return Losses()
        imported = importers.import_file(self._path)
        self.discard()
        builder.append(imported)
        losses = builder.runs[run].losses if len(builder.runs) > run else Losses()
        del builder.runs[run:]  # the caller knows more of the run than perf's file does
        for key in ("source", "host"):
            builder.meta.pop(key, None)
        return losses


class LedgerSource:
    """The ledger instead of samples: a pass of its own, since its probes make packets dearer."""

    fallback = ""
    probes_on: tuple[str, ...] = ("ledger",)
    #: Nothing is sampled.
    lost_by_cpu: Mapping[int, float] = MappingProxyType({})

    def __init__(self, ledger: Ledger) -> None:
        """Loads and calibrates the probes. Raises PreflightError or ProbeError where there are none to be had."""
        self._ledger = ledger
        self._cost_s = 0.0
        self._symbols: KernelSymbols | None = None
        self._modules: tuple[str, ...] = ()
        ledger.__enter__()

    def start(self) -> None:
        self._ledger.start()

    def stop(self) -> None:
        self._ledger.stop()

    def poll(self) -> None:
        """Nothing to do: the tables are sized for a whole window."""

    def discard(self) -> None:
        self._ledger.read()

    def close(self) -> None:
        self._ledger.close()

    def own_cpu_s(self) -> float:
        """CPU seconds of the probes' hits so far, at their calibrated cost."""
        return self._cost_s + self._ledger.cost_s()

    def add(self, builder: ProfileBuilder, run: int, names: Names, busy_s: Mapping[int, float]) -> Losses:
        """Add everything counted in the window as ledger lines of `run`."""
        del busy_s
        self._cost_s += self._ledger.cost_s()
        batch = self._ledger.read()
        add_lines(
            builder,
            batch,
            run,
            namespace_of=names.namespace,
            device_of=names.device,
            symbols=self._names(),
        )
        builder.probes.extend(self._ledger.probe_infos())
        return Losses(map_full=batch.lost)

    def _names(self) -> KernelSymbols:
        """The kernel's symbols, read again only when modules have come or gone."""
        try:
            lines = Path("/proc/modules").read_text(errors="surrogateescape").splitlines()
        except OSError:  # a kernel without modules
            lines = []
        modules = tuple(line.split(maxsplit=1)[0] for line in lines)
        if self._symbols is None or modules != self._modules:
            self._symbols, self._modules = KernelSymbols(), modules
        return self._symbols

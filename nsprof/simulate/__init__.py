"""`nsprof simulate`: boots, trees, and a profile of exact counts per packet that every reading command takes.

simulate(SimulateOptions(kernels=("debian:6.1",), scenarios=("host", "veth-bridge")))  ->  Profile, Findings

One boot a kernel, scenario and seed, so that no scenario sees what another left behind; in it the network is built
anew until one has no bad luck with its hash seeds. Of the samples the modal one stands for all (docs/simulate.md);
what the others have on top of it is the background.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from nsprof.errors import UsageError, VmError
from nsprof.files import private_cache
from nsprof.kernelnames import fold_suffixes
from nsprof.model.scenario import TopologySpec
from nsprof.simulate.background import Background, background_of
from nsprof.simulate.paths import check_path, skbs_of
from nsprof.simulate.plans import Perturbations, plan_for
from nsprof.simulate.profile import profile_of
from nsprof.vm import kernels, tcg_build, tcg_machine, tcg_output
from nsprof.vm.guest_minimal import GuestJob, Plan, program_files
from nsprof.vm.machine import qemu_program
from nsprof.vm.tcg_output import QUANTITIES, Output, TreeSample

__all__ = [
    "DEFAULT_CACHES",
    "WORKLOADS",
    "Measurement",
    "SimulateOptions",
    "measure_all",
    "measure_each",
    "newest_kernel",
    "profile_of",
]

#: workload -> (default size in bytes, what one repetition is called)
WORKLOADS = {
    "udp-rr": (64, "transaction"),
    "udp-stream": (64, "datagram"),
    "tcp-rr": (64, "transaction"),
    "tcp-stream": (16384, "kb"),
    "tcp-crr": (64, "transaction"),
}
#: A server core of 2023: 48 KiB 12-way L1D, 32 KiB 8-way L1I, 2 MiB 16-way L2.
DEFAULT_CACHES = (("l1d", "48:12"), ("l1i", "32:8"), ("l2", "2048:16"))
_REGION = 1
#: Ticks of the guest's clock (1 GHz) an instruction.
TICKS = 1 << tcg_machine.ICOUNT_SHIFT


@dataclass(frozen=True)
class SimulateOptions:
    """What to simulate. Kernels are SPECs as `nsprof vm` takes them; `seeds` one a boot."""

    kernels: tuple[str, ...]
    scenarios: tuple[str, ...] = ("host", "veth-route", "veth-bridge")
    workload: str = "udp-rr"
    size: int = 0
    family: int = 4
    packets: int = 0
    samples: int = 20
    warmup: int = 200
    containers: int = 1
    mtu: int = 0
    perturbations: Perturbations = field(default_factory=Perturbations)
    footprint: bool = False
    caches: tuple[tuple[str, str], ...] = ()
    boots: int = 0
    rounds: int = 4
    seed: int = 1
    mitigations: str = "off"
    modules: Path | None = None
    addresses: bool = False
    snapshot_dir: Path | None = None
    qemu: str = ""
    command: tuple[str, ...] = ()
    jobs: int = 0
    timeout_s: float = tcg_machine.TIMEOUT_S

    @property
    def per_sample(self) -> int:
        """Repetitions in a sample: one where lines are looked at (a footprint is that of one packet), else ten."""
        if self.command:
            return 1
        return self.packets or (1 if self.footprint or self.caches else 10)

    @property
    def bytes_each(self) -> int:
        """Payload of one repetition in one direction."""
        return self.size or WORKLOADS[self.workload][0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the boots: three where misses are modelled, since one boot's misses say nothing."""
        return tuple(range(self.seed, self.seed + (self.boots or (3 if self.caches else 1))))


@dataclass(frozen=True)
class Measurement:
    """One boot: the modal tree and what the other samples had besides.

    `placements` are the instructions (kernel and user) of a repetition in each network that was tried; the last
    one is the network measured.
    """

    kernel: kernels.Kernel
    scenario: str
    seed: int
    plan: Plan
    output: Output
    sample: TreeSample
    modal_share: float
    samples: tuple[TreeSample, ...]
    placements: tuple[float, ...]
    ticks: tuple[int, ...]
    counters: Mapping[str, int]
    repetitions: int
    denominators: Mapping[str, float]
    modules: Mapping[int, str]
    wall_s: float
    symbols: Path
    snapshot: Path | None = None

    @property
    def instructions(self) -> float:
        """Kernel instructions a repetition (transaction, datagram, write) in the modal sample."""
        return self.sample.instructions / self.repetitions

    @property
    def bad_luck(self) -> float:
        """Instructions a repetition that the measured network costs more than the cheapest of those tried."""
        return self.placements[-1] - min(self.placements) if self.placements else 0.0

    @property
    def minimum(self) -> float:
        """The cheapest sample's, a repetition."""
        return min(s.instructions for s in self.samples) / self.repetitions

    @property
    def worst(self) -> TreeSample:
        """The dearest sample."""
        return max(self.samples, key=lambda s: s.instructions)

    @cached_property
    def others(self) -> Background:
        """What the samples that are not the modal one have more."""
        return background_of(self.output, self.sample, self.samples)

    @property
    def background(self) -> float:
        """Instructions a repetition that the mean sample has above the modal one: timers, RCU, refills."""
        return self.others.instructions / len(self.samples) / self.repetitions

    def functions(self, quantity: str = "instructions", sample: TreeSample | None = None) -> dict[str, float]:
        """Function (compiler suffixes folded) -> self count a repetition."""
        column = QUANTITIES.index(quantity) + 1
        found: Counter[str] = Counter()
        for node, row in (sample or self.sample).counts.items():
            if row[column]:
                found[fold_suffixes(self.output.nodes[node].name)] += row[column]
        return {name: count / self.repetitions for name, count in found.items()}

    def calls(self) -> dict[str, int]:
        """Function -> calls in the modal sample."""
        found: Counter[str] = Counter()
        for node, row in self.sample.counts.items():
            found[fold_suffixes(self.output.nodes[node].name)] += row[0]
        return dict(found)

    def excess(self) -> dict[str, float]:
        """Function -> what the worst sample has above the modal one, a sample, dearest first."""
        worst, usual = self.functions(sample=self.worst), self.functions()
        more = {name: (count - usual.get(name, 0.0)) * self.repetitions for name, count in worst.items()}
        return dict(sorted(((n, c) for n, c in more.items() if c > 0), key=lambda item: -item[1]))


def measure_all(
    options: SimulateOptions,
    progress: Callable[[str], None] | None = None,
    finished: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Every kernel, scenario and seed, in that order; as many boots at once as there are CPUs.

    Raises UsageError or VmError; no QEMU is left running then. `progress` hears of each finished boot; `finished`
    gets its measurement, in the boot's thread, so that what it does with it goes on beside other boots.
    """
    return measure_each([options], progress, finished)[0]


def measure_each(
    points: Sequence[SimulateOptions],
    progress: Callable[[str], None] | None = None,
    finished: Callable[[Measurement], None] | None = None,
) -> list[list[Measurement]]:
    """`measure_all` for several options, all boots in one queue."""
    work: list[tuple[int, SimulateOptions, kernels.Kernel, Plan, int]] = []
    resolved: dict[str, kernels.Kernel] = {}
    for number, options in enumerate(points):
        _check(options)
        plans = [_plan(options, scenario) for scenario in options.scenarios]
        for spec in options.kernels:
            kernel = resolved.get(spec) or kernels.resolve(spec, modules=options.modules)
            resolved[spec] = kernel
            work += [(number, options, kernel, plan, seed) for plan in plans for seed in options.seeds]
    tcg_build.plugin(tcg_build.api_version(points[0].qemu or qemu_program()))
    tcg_build.traffic()
    tcg_machine.start_all()
    ready: set[tuple[str, tuple[str, ...]]] = set()
    for _, options, kernel, plan, seed in work:  # the symbols first: boots at once would wait for one another
        if (kernel.spec, plan.modules) not in ready:
            ready.add((kernel.spec, plan.modules))
            if progress is not None and not tcg_machine.symbols_path(kernel, plan).exists():
                progress(f"{kernel.release} {plan.name}: its symbols are read first, once")
            tcg_machine.symbols(kernel, plan, _boot_options(options, seed))

    def one(item: tuple[int, SimulateOptions, kernels.Kernel, Plan, int]) -> Measurement:
        _, options, kernel, plan, seed = item
        measured = measure(options, kernel, plan, seed)
        if progress is not None:
            progress(f"{kernel.release} {plan.name} seed {seed}: {measured.instructions:,.0f} instructions")
        if finished is not None:
            finished(measured)
        return measured

    jobs = points[0].jobs or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max_workers=max(1, min(jobs, len(work)))) as pool:
        # First seeds first: what is done with them goes on beside the other seeds' boots.
        futures = {at: pool.submit(one, work[at]) for at in sorted(range(len(work)), key=lambda at: work[at][4])}
        try:
            done = [futures[at].result() for at in range(len(work))]
        except BaseException:
            tcg_machine.stop_all()
            pool.shutdown(wait=True, cancel_futures=True)
            tcg_machine.start_all()
            raise
    return [[m for m, item in zip(done, work, strict=True) if item[0] == number] for number in range(len(points))]


def newest_kernel() -> str:
    """The SPEC of the newest kernel at hand: in /boot with its modules, else in nsprof's cache, else Debian's."""

    def age(release: str) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", release))

    found: dict[str, str] = {}
    for image in Path("/boot").glob("vmlinuz-*"):
        release = image.name.removeprefix("vmlinuz-")
        if Path("/lib/modules", release).is_dir() and os.access(image, os.R_OK):
            found[release] = str(image)
    for tree in private_cache("kernels").glob("linux-image-*_*"):
        package = tree.name.partition("_")[0]
        found.setdefault(package.removeprefix("linux-image-"), f"debian:{package}")
    return found[max(found, key=age)] if found else "debian:6.12"


def _check(options: SimulateOptions) -> None:
    if options.workload not in WORKLOADS and not options.command:
        raise UsageError(f"no workload {options.workload!r}", "there are: " + ", ".join(WORKLOADS))
    if not options.kernels:
        raise UsageError("no kernel to simulate", "--kernel debian:6.1")
    limit = 65507 if options.workload.startswith("udp") else 1 << 18
    if not options.command and not 1 <= options.bytes_each <= limit:
        raise UsageError(f"--size {options.size}: must be 1 to {limit} with {options.workload}")
    if not 1 <= options.rounds <= 64 or not 0 <= options.boots <= 64:
        raise UsageError("--rounds must be 1 to 64, --boots at most 64")
    if not 1 <= options.samples <= 4096 or not 0 <= options.packets <= 100_000:
        raise UsageError("--samples must be 1 to 4096, --packets 1 to 100000")


def _plan(options: SimulateOptions, scenario: str) -> Plan:
    containers = 1 if scenario in ("host", "device") else options.containers
    spec = TopologySpec(scenario, containers=containers, family=options.family, mtu=options.mtu)
    return plan_for(spec, options.perturbations)


def _boot_options(options: SimulateOptions, seed: int) -> tcg_machine.BootOptions:
    memory = 512 + 2 * options.containers + (256 if options.command else 0)
    return tcg_machine.BootOptions(
        seed=seed,
        memory_mb=memory + memory % 2,
        mitigations=options.mitigations,
        footprint=options.footprint,
        addresses=options.addresses,
        caches=options.caches,
        qemu=options.qemu,
        timeout_s=options.timeout_s,
    )


def measure(options: SimulateOptions, kernel: kernels.Kernel, plan: Plan, seed: int) -> Measurement:
    """One boot. Raises VmError when the path that the scenario is about was not the one executed."""
    workload = "command" if options.command else options.workload
    arguments = [f"workload={workload}", f"family={plan.family}", f"packets={options.per_sample}"]
    arguments += [f"samples={options.samples}", f"warmup={options.warmup}", f"address={plan.address}"]
    if not options.command:
        arguments.append(f"size={options.bytes_each}")
    arguments += [f"client=/run/netns/{plan.client}", f"server=/run/netns/{plan.server}"]
    arguments += [f"count=/run/netns/{plan.count_netns}", f"device={plan.wire}"]
    files = program_files(options.command[0]) if options.command else {}
    job = GuestJob(
        plan, tuple(arguments), 1 if options.command else options.rounds, seed, command=options.command, files=files
    )
    boot_options = _boot_options(options, seed)
    if options.snapshot_dir is not None:
        boot_options = replace(boot_options, snapshot=options.snapshot_dir / f"{kernel.release}-{plan.name}-{seed}")
    got = tcg_machine.boot(kernel, job, boot_options)
    output = tcg_output.parse(got.output)
    samples = tuple(output.of(_REGION))
    if len(samples) != options.samples:
        raise VmError(f"the guest took {len(samples)} samples, {options.samples} were asked for")
    sample, share = tcg_output.modal(samples)
    counters, transactions = _counters(got, options)
    symbols = tcg_machine.symbols(kernel, plan, boot_options)
    measured = Measurement(
        kernel=kernel,
        scenario=plan.name,
        seed=seed,
        plan=plan,
        output=output,
        sample=sample,
        modal_share=share,
        samples=samples,
        placements=tuple(int(line[0]) / TICKS / options.per_sample for line in got.of("placement")),
        ticks=tuple(int(line[1]) for line in got.of("ticks")),
        counters=counters,
        repetitions=options.per_sample,
        denominators={},
        modules=tcg_machine.module_names(symbols, {node.address for node in output.nodes.values()}),
        wall_s=got.wall_s,
        symbols=symbols,
        snapshot=boot_options.snapshot if output.snapshot else None,
    )
    per_repetition = (counters["rx_packets"] + counters["tx_packets"]) / max(1, transactions)
    if not options.command:
        check_path(plan, options, measured.calls(), per_repetition)
    return replace(measured, denominators=_denominators(options, measured.calls(), plan, per_repetition))


def _counters(got: tcg_machine.Boot, options: SimulateOptions) -> tuple[dict[str, int], int]:
    """How the wire's counters moved, and over how many repetitions."""
    seen: dict[str, dict[str, int]] = {}
    for when, _, *words in got.of("counters"):
        seen[when] = {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
    extra = got.of("extra")
    if "before" not in seen or "after" not in seen or not extra:
        raise VmError("the guest's traffic program said nothing of the wire's counters")
    moved = {name: seen["after"][name] - before for name, before in seen["before"].items()}
    return moved, int(extra[0][0]) + options.samples * options.per_sample


def _denominators(
    options: SimulateOptions, calls: Mapping[str, int], plan: Plan, per_repetition: float
) -> dict[str, float]:
    count = options.per_sample
    skbs = skbs_of(plan, calls) if not options.command else round(per_repetition * count, 6)
    if options.command:
        return {"skb": skbs or 1.0, "operation": float(count)}
    noun = WORKLOADS[options.workload][1]
    found = {noun: count * (options.bytes_each / 1024 if noun == "kb" else 1.0), "skb": float(skbs)}
    if noun == "kb":
        found["operation"] = float(count)
    return found


def iter_by_scenario(measurements: Sequence[Measurement]) -> Iterator[tuple[str, str, list[Measurement]]]:
    """(kernel spec, scenario, its boots), in order."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.kernel.spec, m.scenario), []).append(m)
    for (spec, scenario), group in groups.items():
        yield spec, scenario, group

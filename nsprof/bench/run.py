"""The runs of a bench, one after the other in fair order, into one profile.

Every run builds its topology anew, so that no run inherits another's neighbour entries, hash chains or conntrack.
"""

from __future__ import annotations

import os
import platform
import random
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsprof import topology, workload
from nsprof.bench import far, pktgen, resume, stopping, warmup
from nsprof.bench.plan import Case, Plan, Progress, part_of
from nsprof.collect.ledger.counting import Ledger
from nsprof.collect.sampling.sampler import SamplerConfig
from nsprof.collect.system import host
from nsprof.errors import NsprofError, PreflightError, WorkloadError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile, Run
from nsprof.model.scenario import Place
from nsprof.observe import Observer, Scene, Traffic
from nsprof.sources import LedgerSource

__all__ = ["Result", "run_plan"]

Advance = Callable[[int, int, str], None]
Prepare = Callable[[Case, Any], AbstractContextManager[None]]
#: With --until a bench goes on for so many runs a case at most, unless --runs says otherwise.
MOST_RUNS = 100
#: An unfinished bench is written to its file this often.
_CHECKPOINT_S = 30.0


#: Notes on how a bench ended, which no longer hold when it goes on.
_PASSING = ("broken off by", "resumed with", "--max-time", "stopped by its own data")


def _nothing(case: Case, topo: Any) -> AbstractContextManager[None]:
    del case, topo
    return nullcontext()


def _silent(done: int, total: int, what: str) -> None:
    del done, total, what


@dataclass(frozen=True, slots=True)
class Result:
    """A bench's profile, and whether Ctrl-C broke it off."""

    profile: Profile
    interrupted: bool


@dataclass(slots=True)
class _Bench:
    """A bench under way."""

    plan: Plan
    seed: int
    builder: ProfileBuilder = field(default_factory=ProfileBuilder)
    warm: dict[int, tuple[int, Run]] = field(default_factory=dict)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    topologies: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    earlier: int = 0
    started: float = field(default_factory=time.monotonic)
    prepare: Prepare = _nothing

    def profile(self) -> Profile:
        """What there is so far."""
        self._describe()
        return warmup.take_out(self.builder.build(), self.warm)

    def _describe(self) -> None:
        from nsprof import __version__

        meta, plan = self.builder.meta, self.plan
        meta["tool"] = {"name": "nsprof", "version": __version__}
        meta["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        meta.setdefault("host", host.snapshot({}))
        meta["topology"] = {**meta.get("topology", {}), **self.topologies}
        if self.notes:
            meta["notes"] = list(dict.fromkeys([*meta.get("notes", []), *self.notes]))
        old = meta.get("bench", {})
        meta["bench"] = {
            "command": list(plan.cases[0].command),
            "scenarios": [c.label for c in plan.cases],
            "runs": plan.runs,
            "seed": self.seed,
            "containers": max(c.spec.containers for c in plan.cases),
            "busy": plan.cases[0].busy,
            "baseline": plan.baseline,
            "plan": plan.describe(),
            "conditions": [*old.get("conditions", [])[: self.earlier], *self.conditions],
        }


def run_plan(
    plan: Plan,
    *,
    advance: Advance = _silent,
    earlier: Profile | None = None,
    checkpoint: Callable[[Profile], None] | None = None,
    prepare: Prepare = _nothing,
) -> Result:
    """Run all cases in fair order.

    `advance(done, total, text)` is called before each run and at the end. `earlier` is a profile of the same plan
    to go on with; `checkpoint` gets the unfinished profile now and then; `prepare(case, topology)` is a context in
    which each run happens, for whatever is to be there besides. A run that fails is kept with its reason and the
    others go on. Raises NsprofError when nothing can be measured at all.
    """
    seed = plan.seed
    if seed is None and earlier is not None:
        seed = earlier.meta.get("bench", {}).get("seed")
    if seed is None:
        seed = random.SystemRandom().randrange(2**31)
    if os.geteuid() != 0:
        raise PreflightError("bench makes network namespaces, which needs root", "sudo nsprof bench ...")
    load_modules(plan.needs)
    bench = _Bench(plan, seed, prepare=prepare)
    interrupted = False
    with ExitStack() as stack:
        base: dict[str, Any] = {"events": plan.events, "frequency_hz": plan.frequency_hz}
        kinds = [stack.enter_context(Observer(SamplerConfig(**base)))]
        if plan.hop:
            kinds.append(stack.enter_context(Observer(SamplerConfig(hop=True, **base))))
        bench.notes += far.notes(plan)
        if kinds[0].fallback:
            bench.notes.append(kinds[0].fallback)
        if earlier is not None:
            bench.builder.append(earlier)
            kept = [n for n in earlier.meta.get("notes", []) if not n.startswith(_PASSING)]
            bench.builder.meta["notes"] = kept
            bench.earlier = len(earlier.meta.get("bench", {}).get("conditions", []))
        try:
            _all_runs(bench, kinds, advance, earlier, checkpoint)
            if plan.count:
                _count(bench, advance)
        except KeyboardInterrupt:
            interrupted = True
            bench.notes.append(f"broken off by Ctrl-C after {len(bench.builder.runs)} runs; --resume goes on")
    if not bench.builder.runs:
        if interrupted:
            raise KeyboardInterrupt
        raise WorkloadError("no run was made", "give --max-time more seconds")
    return Result(bench.profile(), interrupted)


def _all_runs(
    bench: _Bench,
    kinds: Sequence[Observer],
    advance: Advance,
    earlier: Profile | None,
    checkpoint: Callable[[Profile], None] | None,
) -> None:
    plan = bench.plan
    names = [f"{kind}:{case.name}" for case in plan.cases for kind in range(len(kinds))]
    done = resume.earlier_runs(earlier, kinds=len(kinds)) if earlier is not None else {}
    progress = Progress({name: min(count, plan.runs) for name, count in done.items()})
    left = list(progress.left(names, plan.runs, bench.seed))
    total = sum(map(len, left)) + len(bench.builder.runs)
    if earlier is not None:
        bench.notes.append(f"resumed with {sum(progress.done.values())} of {len(names) * plan.runs} runs there")
    saved = time.monotonic()
    for number, block in enumerate(left):
        for name in block:
            if plan.max_time_s and time.monotonic() - bench.started > plan.max_time_s:
                bench.notes.append(
                    f"--max-time {plan.max_time_s:g} s ended the bench after "
                    f"{len(bench.builder.runs)} of {total} runs"
                )
                return
            kind, _, case = name.partition(":")
            advance(len(bench.builder.runs), total, case)
            _one_run(bench, kinds[int(kind)], plan.case(case))
            if checkpoint is not None and time.monotonic() - saved > _CHECKPOINT_S:
                checkpoint(bench.profile())
                saved = time.monotonic()
        if plan.until and number + 1 < len(left) and _enough(bench):
            return
    advance(total, total, "")


def _count(bench: _Bench, advance: Advance) -> None:
    """One pass of each case with the ledger's probes instead of the sampler, after the runs that costs come from."""
    before, total = len(bench.builder.runs), len(bench.builder.runs) + len(bench.plan.cases)
    with Observer(SamplerConfig(), lambda _: LedgerSource(Ledger())) as observer:
        for number, case in enumerate(bench.plan.cases):
            advance(before + number, total, f"{case.name}, counting")
            _one_run(bench, observer, case)
    advance(total, total, "")


def _enough(bench: _Bench) -> bool:
    """Whether every case's difference to its baseline is known to within `until`."""
    plan = bench.plan
    fewest = min(sum(r.scenario == c.name and not r.failed for r in bench.builder.runs) for c in plan.cases)
    if fewest < stopping.LEAST_RUNS:
        return False
    pairs = [(base, c.name) for c in plan.cases if (base := base_of(plan, c.part)) != c.name]
    widths = stopping.half_widths(bench.profile(), pairs)
    if not widths or max(widths.values()) > plan.until:
        return False
    bench.notes.append(
        f"stopped by its own data after {fewest} runs a scenario: every difference is known to within "
        f"{plan.until:.1%} of the baseline (widest {max(widths.values()):.2%})"
    )
    return True


def base_of(plan: Plan, part: str) -> str:
    """The name of the baseline's case in a part."""
    cases = [c for c in plan.cases if c.part == part]
    wanted = plan.baseline.rpartition(":")[2] or "host"
    return next((c.name for c in cases if c.label == wanted), cases[0].name)


def _one_run(bench: _Bench, observer: Observer, case: Case) -> None:
    builder = bench.builder
    number = len(builder.runs)
    before = _condition()
    try:
        _observed(bench, observer, case)
    except NsprofError as error:
        observer.discard()
        if not any(not r.failed for r in builder.runs) and number <= len(bench.plan.cases):
            # The very first runs already fail: the words or the set-up are wrong, not one run.
            raise
        builder.runs.append(Run(case.name, kernel=platform.release(), started=time.time(), failed=error.message))
    except BaseException:
        observer.discard()
        raise
    bench.conditions.append({"run": number, "before": before, "after": _condition()})
    run = builder.runs[number]
    if run.failed and all(r.failed for r in builder.runs) and len(builder.runs) <= len(bench.plan.cases):
        raise WorkloadError(f"scenario {case.name}: {run.failed}")


def _observed(bench: _Bench, observer: Observer, case: Case) -> None:
    builder = bench.builder
    with topology.build(case.spec) as topo, bench.prepare(case, topo):
        clients = topo.clients if case.busy == "all" else topo.clients[:1]
        if pktgen.is_pktgen(case.command):
            clients = topo.clients
        ends = [p for p in (clients[0].netns_path, topo.server.netns_path) if p]
        paths = [p for p in (topo.host.netns_path, topo.server.netns_path) if p]
        paths += [c.netns_path for c in topo.clients]
        reference = (topo.reference[0].netns_path, topo.reference[1])
        if pktgen.is_pktgen(case.command):
            reference = (topo.clients[0].netns_path, "eth0")
        scene = Scene(
            scenario=case.name,
            namespaces=dict(zip(dict.fromkeys(paths), topo.namespaces, strict=True)),
            ends=tuple(ends),
            reference=reference,
            dut_cpus=topo.dut_cpus if not pktgen.is_pktgen(case.command) else (),
            remote_cpus=topo.remote_cpus if not pktgen.is_pktgen(case.command) else (),
            kernel=platform.release(),
        )
        if case.name not in bench.topologies:
            places = {p.name: p.netns_path for p in (topo.host, topo.server, topo.client) if p.netns_path}
            found = host.snapshot(places, tools=False)
            # Settings of the whole machine may be others in another scenario of the same file.
            bench.topologies[case.name] = {
                **topo.describe(),
                "namespaces": found["namespaces"],
                "host": {"sysctl": found["sysctl"]},
            }
        watch = warmup.RateWatch(*reference)
        number = len(builder.runs)
        if pktgen.is_pktgen(case.command):
            with watch.watching():
                run = observer.window(builder, scene, lambda: pktgen.drive(case.command, clients))
        else:
            run = _with_servers(
                bench.plan, case, topo, clients, lambda work: _window(observer, bench, scene, watch, work)
            )
        if "ledger" in run.probes_on:
            return  # counts cannot be cut at a moment
        kept, warm = warmup.trim(run, warmup.cut_of(watch), number)
        builder.runs[number] = kept
        if warm is not None:
            bench.warm[number] = (int(warm.duration_s), warm)


def _window(
    observer: Observer, bench: _Bench, scene: Scene, watch: warmup.RateWatch, work: Callable[[], Traffic]
) -> Run:
    def watched() -> Traffic:
        with watch.watching():
            return work()

    return observer.window(bench.builder, scene, watched)


def _with_servers(
    plan: Plan,
    case: Case,
    topo: Any,
    clients: Sequence[Place],
    observe: Callable[[Callable[[], Traffic]], Run],
) -> Run:
    """Servers up, then the window. In reverse every container has a server and the clients run in the remote."""
    if not case.reverse:
        driver = workload.driver(case.command, timeout_s=plan.timeout_s)
        with far.serving(driver, topo, len(clients)):
            addresses = [topo.server_address] * len(clients)
            return observe(lambda: _drive([driver], [list(clients)], [addresses]))
    with ExitStack() as stack:
        drivers = [workload.driver(case.command, timeout_s=plan.timeout_s) for _ in clients]
        for driver, place in zip(drivers, clients, strict=True):
            stack.enter_context(driver.servers(place, 1))
        return observe(
            lambda: _drive(drivers, [[topo.server]] * len(drivers), [[place.address] for place in clients])
        )


def _drive(
    drivers: Sequence[workload.Driver], places: Sequence[Sequence[Place]], addresses: Sequence[Sequence[str]]
) -> Traffic:
    if len(drivers) == 1:
        outcomes = list(drivers[0].run_many(places[0], addresses[0]))
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(drivers)) as pool:
            jobs = [pool.submit(d.run_many, p, a) for d, p, a in zip(drivers, places, addresses, strict=True)]
            outcomes = [o for job in jobs for o in job.result()]
    parts = [workload.denominators(drivers[0].tool, o.argv, o.values) for o in outcomes]
    common = set.intersection(*(set(p) for p in parts))
    return Traffic(
        command=outcomes[0].argv,
        status=max(o.status for o in outcomes),
        values=workload.combined(outcomes),
        warnings=tuple(dict.fromkeys(w for o in outcomes for w in o.warnings)),
        denominators={key: sum(p[key] for p in parts) for key in common},
        failed=next((o.failed for o in outcomes if o.failed), ""),
    )


def load_modules(names: Sequence[str]) -> None:
    """Load the kernel modules that an experiment needs. Raises PreflightError naming the way out."""
    for name in names:
        if Path("/sys/module", name.replace("-", "_")).exists():
            continue
        try:
            done = subprocess.run(["modprobe", "--", name], capture_output=True, text=True, timeout=60, check=False)
            said = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            loaded = done.returncode == 0
        except (FileNotFoundError, subprocess.TimeoutExpired) as error:
            loaded, said = False, [str(error)]
        if not loaded:
            raise PreflightError(
                f"this kernel ({platform.release()}) has no module {name}, which the experiment needs: {said[0]}",
                "run it on a kernel that has it, in a virtual machine: nsprof bench FILE --kernel debian:6.1",
            )


def _condition() -> dict[str, Any]:
    """What the machine was like: load, and clock rates of the CPUs as far as the kernel tells them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found: dict[str, Any] = {"load": round(os.getloadavg()[0], 2)}
    rates = [float(m) for m in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    if rates:
        found["mhz"] = [min(rates), max(rates)]
    return found


def only_part(profile: Profile, part: str) -> Profile:
    """The profile with the runs of one part, under their labels; the others count for nothing."""
    from dataclasses import replace

    runs = tuple(
        replace(run, scenario=part_of(run.scenario)[1])
        if part_of(run.scenario)[0] == part
        else replace(run, warmup=True)
        for run in profile.runs
    )

    return profile.with_(runs=runs)

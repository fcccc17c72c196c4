"""`nsprof bench`: scenarios interleaved in fair order, one profile, one table.

Every run builds its topology anew, so that no run inherits another's neighbour entries, hash chains or conntrack.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from nsprof import topology, workload
from nsprof.collect import host
from nsprof.collect.sampler import SamplerConfig
from nsprof.errors import UsageError, WorkloadError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile
from nsprof.model.scenario import Place, TopologySpec, parse_offloads
from nsprof.observe import Observer, Scene, Traffic
from nsprof.topology.plan import check_spec
from nsprof.units import parse_rate

__all__ = ["BenchOptions", "fair_order", "run_bench"]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line of `nsprof bench` says; `command` is the traffic generator's words."""

    command: tuple[str, ...]
    scenarios: tuple[str, ...] = ("host", "veth-bridge")
    runs: int = 3
    baseline: str = ""
    frequency_hz: int = 499
    events: tuple[str, ...] = ("cpu-clock",)
    hop: bool = False
    containers: int = 1
    busy: str = "one"
    wire_rate: str = ""
    mtu: int = 0
    offload: str = ""
    ipv6: bool = False
    host_netns: str = "own"
    pin: bool = True
    timeout_s: float = 0.0
    max_time_s: float = 0.0
    seed: int | None = None


def fair_order(names: Sequence[str], runs: int, seed: int) -> list[str]:
    """Each name `runs` times, in ABBA blocks of random order: a drift in time adds the same to every name."""
    draw = random.Random(seed)  # noqa: S311 - a balanced order, not a secret
    order: list[str] = []
    for _ in range((runs + 1) // 2):
        block = list(names)
        draw.shuffle(block)
        order += block + block[::-1]
    return order[: runs * len(names)] if runs % 2 == 0 else order[: (runs - 1) * len(names)] + block


def run_bench(
    options: BenchOptions, advance: Callable[[int, int, str], None] = lambda done, total, what: None
) -> tuple[Profile, bool]:
    """Run the scenarios in fair order: (profile of all runs, whether it was broken off by Ctrl-C).

    `advance(done, total, text)` is called before each run and at the end. A run that fails is kept with its reason
    and the others go on. Raises NsprofError when nothing can be measured at all.
    """
    specs = {name: _spec(options, name) for name in options.scenarios}
    if len(specs) != len(options.scenarios):
        raise UsageError(f"a scenario is named twice: {','.join(options.scenarios)}")
    for spec in specs.values():
        check_spec(spec, topology.SHAPES)
    workload.driver(options.command)  # an empty command is refused before anything is built
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    builder, interrupted = ProfileBuilder(), False
    with ExitStack() as stack:
        base = {"events": options.events, "frequency_hz": options.frequency_hz}
        kinds = [stack.enter_context(Observer(SamplerConfig(**base)))]  # type: ignore[arg-type]
        if options.hop:
            kinds.append(stack.enter_context(Observer(SamplerConfig(hop=True, **base))))  # type: ignore[arg-type]
        if kinds[0].fallback:
            builder.meta["notes"] = [kinds[0].fallback]
        plan = list(_plan(options, seed, kinds))
        started = time.monotonic()
        try:
            for number, (name, observer) in enumerate(plan):
                if options.max_time_s and time.monotonic() - started > options.max_time_s:
                    builder.meta.setdefault("notes", []).append(
                        f"--max-time {options.max_time_s:g} s ended the bench after {number} of {len(plan)} runs"
                    )
                    break
                advance(number, len(plan), name)
                _one_run(builder, observer, options, specs[name], name)
            advance(len(plan), len(plan), "")
        except KeyboardInterrupt:
            interrupted = True
            builder.meta.setdefault("notes", []).append(f"broken off by Ctrl-C after {len(builder.runs)} runs")
    if not builder.runs:
        if interrupted:
            raise KeyboardInterrupt
        raise WorkloadError("no run was made", "give --max-time more seconds")
    _describe(builder, options, seed)
    return builder.build(), interrupted


def _plan(options: BenchOptions, seed: int, kinds: Sequence[Observer]) -> Iterator[tuple[str, Observer]]:
    names = [f"{kind}:{name}" for name in options.scenarios for kind in range(len(kinds))]
    for entry in fair_order(names, options.runs, seed):
        kind, _, name = entry.partition(":")
        yield name, kinds[int(kind)]


def _spec(options: BenchOptions, shape: str) -> TopologySpec:
    try:
        rate = parse_rate(options.wire_rate) if options.wire_rate else 0
    except ValueError as error:
        raise UsageError(f"--wire-rate: {error}", "--wire-rate 1gbit") from error
    return TopologySpec(
        shape=shape,
        containers=options.containers,
        family=6 if options.ipv6 else 4,
        mtu=options.mtu,
        wire_rate_bps=rate,
        offloads=parse_offloads(options.offload),
        host_netns=options.host_netns,
        pin=options.pin,
    )


def _one_run(
    builder: ProfileBuilder, observer: Observer, options: BenchOptions, spec: TopologySpec, name: str
) -> None:
    with topology.build(spec) as topo:
        driver = workload.driver(options.command, timeout_s=options.timeout_s)
        clients = topo.clients if options.busy == "all" else topo.clients[:1]
        paths = [topo.host.netns_path, topo.server.netns_path, *(c.netns_path for c in topo.clients)]
        scene = Scene(
            scenario=name,
            namespaces=dict(zip(dict.fromkeys(paths), topo.namespaces, strict=True)),
            ends=(clients[0].netns_path, topo.server.netns_path),
            reference=(topo.reference[0].netns_path, topo.reference[1]),
            dut_cpus=topo.dut_cpus,
            remote_cpus=topo.remote_cpus,
            kernel=platform.release(),
        )
        described = builder.meta.setdefault("topology", {})
        if name not in described:
            ends = {place.name: place.netns_path for place in (topo.host, topo.server, topo.client)}
            described[name] = {**topo.describe(), "namespaces": host.snapshot(ends, tools=False)["namespaces"]}
        with driver.servers(topo.server, len(clients)):
            try:
                run = observer.window(builder, scene, lambda: _drive(driver, clients, topo.server_address))
            except BaseException:
                observer.discard()
                raise
    if run.failed and len(builder.runs) <= len(options.scenarios) and all(r.failed for r in builder.runs):
        # The very first runs already fail: the words or the set-up are wrong, not one run.
        raise WorkloadError(f"scenario {name}: {run.failed}")


def _drive(driver: workload.Driver, clients: Sequence[Place], address: str) -> Traffic:
    outcomes = driver.run_many(clients, [address] * len(clients))
    parts = [workload.denominators(driver.tool, o.argv, o.values) for o in outcomes]
    common = set.intersection(*(set(p) for p in parts))
    return Traffic(
        command=outcomes[0].argv,
        status=max(o.status for o in outcomes),
        values=workload.combined(outcomes),
        warnings=tuple(dict.fromkeys(w for o in outcomes for w in o.warnings)),
        denominators={key: sum(p[key] for p in parts) for key in common},
        failed=next((o.failed for o in outcomes if o.failed), ""),
    )


def _describe(builder: ProfileBuilder, options: BenchOptions, seed: int) -> None:
    from nsprof import __version__

    builder.meta["tool"] = {"name": "nsprof", "version": __version__}
    builder.meta["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    builder.meta["host"] = host.snapshot({})
    builder.meta["bench"] = {
        "command": list(options.command),
        "scenarios": list(options.scenarios),
        "runs": options.runs,
        "seed": seed,
        "containers": options.containers,
        "busy": options.busy,
        "baseline": options.baseline,
    }

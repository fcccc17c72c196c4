"""Faults that the simulator can inject, judged in exact instructions: no noise, and kernels that are not here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from nsprof import simulate, store
from nsprof.errors import NsprofError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile
from nsprof.model.scenario import TopologySpec
from nsprof.simulate.plans import Perturbations
from tests.causes_bed import Fault


@dataclass(frozen=True)
class Simulated:
    """One fault: options of `nsprof simulate` on both sides, and the right causes."""

    name: str
    expect: tuple[str, ...]
    fault: dict[str, Any]
    clean: dict[str, Any] = field(default_factory=dict)
    both: tuple[str, ...] = ()


def _rules(number: int) -> dict[str, Any]:
    return {"perturbations": Perturbations(rules=number)}


_OFF = {"tso": False, "gso": False}
_STREAM = {"workload": "tcp-stream", "packets": 2, "samples": 6}
_BIG = {"workload": "udp-stream", "size": 4000, "mtu": 9000}

SIMULATED: tuple[Simulated, ...] = (
    Simulated("rules-100", ("netfilter-rules",), _rules(100)),
    Simulated("rules-500", ("netfilter-rules",), _rules(500)),
    Simulated("rules-300-v6", ("netfilter-rules",), {"family": 6, **_rules(300)}, {"family": 6}),
    Simulated(
        "rules-100-forward", ("netfilter-rules",), {"scenarios": ("veth-route",), **_rules(100)},
        {"scenarios": ("veth-route",)},
    ),
    Simulated("hop-bridge", ("extra-hop-bridge", "extra-hop-veth"), {"scenarios": ("veth-bridge",)}),
    Simulated("hop-route", ("extra-hop-routing", "extra-hop-veth"), {"scenarios": ("veth-route",)}),
    Simulated("hop-macvlan", ("extra-hop-device",), {"scenarios": ("macvlan",)}),
    Simulated("hop-vrf", ("extra-hop-routing", "extra-hop-device", "extra-hop-veth"), {"scenarios": ("vrf",)}),
    Simulated(
        "br-nf", ("bridge-netfilter",), {"scenarios": ("veth-bridge",), "perturbations": Perturbations(br_nf=True)},
        {"scenarios": ("veth-bridge",)},
    ),
    Simulated("fragments-3", ("ip-fragmentation",), {**_BIG, "mtu": 1500}, _BIG),
    Simulated("fragments-3-v6", ("ip-fragmentation",), {**_BIG, "mtu": 1500, "family": 6}, {**_BIG, "family": 6}),
    Simulated(
        "tso-gso-off", ("software-segmentation",), {**_STREAM, "perturbations": Perturbations(offloads=_OFF)}, _STREAM
    ),
    Simulated(
        "checksum-off", ("software-checksum",),
        {"workload": "udp-stream", "size": 1400, "perturbations": Perturbations(offloads={"tx": False})},
        {"workload": "udp-stream", "size": 1400},
    ),
    Simulated("mitigations", ("mitigations",), {"mitigations": "auto"}),
    Simulated("small-writes", ("small-writes",), {**_STREAM, "size": 64, "packets": 40}, _STREAM),
    Simulated(
        "rules-300 + fragments", ("netfilter-rules",), {**_BIG, "mtu": 1500, **_rules(300)}, _BIG,
        both=("netfilter-rules", "ip-fragmentation"),
    ),
)  # fmt: skip


def _options(kernel: str, given: dict[str, Any]) -> simulate.SimulateOptions:
    base: dict[str, Any] = {"kernels": (kernel,), "scenarios": ("host",), "samples": 8, "warmup": 100, "jobs": 1}
    return simulate.SimulateOptions(**{**base, **given})


def _facts(options: simulate.SimulateOptions) -> dict[str, Any]:
    """What was set up, as a host snapshot would say it."""
    more, shape = options.perturbations, options.scenarios[0]
    offloads = {"tx": "tx-checksum-ip-generic", "tso": "tx-tcp-segmentation", "gso": "tx-generic-segmentation"}
    device = {
        "kind": "veth", "mtu": options.mtu or 1500,
        "offloads": {long: bool(more.offloads.get(short, True)) for short, long in offloads.items()},
    }  # fmt: skip
    devices = {"w0": device}
    for part, kind in (("bridge", "bridge"), ("macvlan", "macvlan"), ("vrf", "vrf")):
        if part in shape:
            devices[f"{kind}0"] = {"kind": kind, "mtu": options.mtu or 1500}
    return {
        "datapath": {"nft_rules": more.rules, "routes": more.routes, "bridge_ports": {}},
        "sysctl": {
            "net.bridge.bridge-nf-call-iptables": "1" if more.br_nf else "0",
            "net.ipv4.ip_forward": "1" if "route" in shape or shape == "vrf" else "0",
        },
        "devices": devices,
    }


def _one(options: simulate.SimulateOptions, cache: dict[str, Profile]) -> Profile:
    key = repr(replace(options, jobs=1))
    if key not in cache:
        cache[key] = simulate.profile_of(options, simulate.measure_all(options))
    return cache[key]


def pair_of(fault: Simulated, kernel: str, cache: dict[str, Profile]) -> Profile:
    """One profile with the scenarios "clean" and "fault"."""
    builder = ProfileBuilder()
    topology: dict[str, Any] = {}
    commands: dict[str, tuple[str, ...]] = {}
    for name, given in (("clean", fault.clean), ("fault", fault.fault)):
        options = _options(kernel, given)
        profile = _one(options, cache)
        builder.append(profile, rename={options.scenarios[0]: name})
        topology[name] = {"namespaces": {"host": _facts(options)}}
        size = simulate.WORKLOADS[options.workload][0] if not options.size else options.size
        commands[name] = ("netperf", "-t", options.workload, "-m", str(size))
        spec = TopologySpec(options.scenarios[0], family=options.family)
        topology[name]["shape"] = spec.shape
        topology[name]["mitigations"] = options.mitigations
    builder.meta["topology"] = topology
    builder.runs[:] = [replace(run, command=commands[run.scenario]) for run in builder.runs]
    return builder.build()


def _as_fault(fault: Simulated) -> Fault:
    # netperf's streams are counted in KB, too: by the write, small ones would look cheap.
    per = "kb" if fault.fault.get("workload") == "tcp-stream" else None
    return Fault(fault.name, fault.expect, TopologySpec("host"), (), both=fault.both, per=per)


def simulated(kernels: Sequence[str], only: Sequence[str], keep: Path | None) -> Iterator[tuple[Fault, str, Profile]]:
    """Boot and yield (fault, kernel, pair)."""
    for kernel in kernels:
        cache: dict[str, Profile] = {}
        for fault in SIMULATED:
            if only and fault.name not in only:
                continue
            try:
                profile = pair_of(fault, kernel, cache)
            except NsprofError as error:
                print(f"{fault.name} on {kernel}: could not be injected: {error}", file=sys.stderr, flush=True)
                continue
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                store.save(profile, keep / f"sim-{kernel.replace(':', '-')}-{fault.name.replace(' ', '_')}.nsprof")
            yield _as_fault(fault), kernel, profile


def seeds(kernels: Sequence[str], number: int, keep: Path | None) -> Iterator[tuple[Fault, str, Profile]]:
    """Pairs without a fault: every two boots of one scenario that differ in nothing but the seed."""
    for kernel in kernels:
        for shape in ("host", "veth-bridge"):
            made: dict[int, Profile] = {}
            for seed in range(1, number + 1):
                options = _options(kernel, {"scenarios": (shape,), "seed": seed})
                try:
                    made[seed] = _boot(options, keep, f"aa-{kernel.replace(':', '-')}-{shape}-{seed}")
                except NsprofError as error:
                    print(f"{shape} on {kernel}, seed {seed}: {error}", file=sys.stderr, flush=True)
            for one, two in combinations(made, 2):
                builder = ProfileBuilder()
                for name, seed in (("clean", one), ("fault", two)):
                    builder.append(made[seed], rename={shape: name})
                yield Fault(f"{shape}, seeds {one} and {two}", (), TopologySpec(shape), ()), kernel, builder.build()


def _boot(options: simulate.SimulateOptions, keep: Path | None, name: str) -> Profile:
    """A boot, or what an earlier one has left in `keep`."""
    path = keep / f"{name}.nsprof" if keep else None
    if path is not None and path.exists():
        return store.open_any(path)
    profile = simulate.profile_of(options, simulate.measure_all(options))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.save(profile, path)
    return profile


def stored(folder: Path) -> Iterator[tuple[Fault, str, Profile]]:
    """Pairs that `--keep` has stored."""
    for fault in SIMULATED:
        for path in sorted(folder.glob(f"sim-*-{fault.name.replace(' ', '_')}.nsprof")):
            kernel = path.name.removeprefix("sim-").removesuffix(f"-{fault.name.replace(' ', '_')}.nsprof")
            if kernel.count("-") == 1:
                yield _as_fault(fault), kernel.replace("-", ":"), store.open_any(path)

"""A simulation as a profile that every reading command takes."""

from __future__ import annotations

import datetime
import platform
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsprof import __version__
from nsprof.kernelnames import context_of
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Counter as CounterRow
from nsprof.model.profile import Device, Event, Namespace, Profile, Run, Samples, Value
from nsprof.simulate.hops import UNKNOWN, hop_of, hops_are_known
from nsprof.vm.machine import qemu_program
from nsprof.vm.tcg_output import QUANTITIES

if TYPE_CHECKING:
    from nsprof.simulate import Measurement, SimulateOptions

__all__ = ["profile_of"]

UNITS = {"instructions": "instructions", "rep-iterations": "iterations", "loads": "loads", "stores": "stores"}


def profile_of(options: SimulateOptions, measurements: Sequence[Measurement]) -> Profile:
    """One run a boot. Sample rows are the nodes of the modal tree, stacks leaf first; weights are exact counts.

    Events are of kind "modelled". Kernels are called by release, or by SPEC where two have the same.
    """
    builder = ProfileBuilder()
    releases = {m.kernel.spec: m.kernel.release for m in measurements}
    alike = Counter(releases.values())
    names = {spec: release if alike[release] == 1 else spec for spec, release in releases.items()}
    details: list[dict[str, Any]] = []
    for number, m in enumerate(measurements):
        builder.runs.append(_run(options, m, names[m.kernel.spec]))
        spaces, devices = _places(builder, m)
        space = spaces[m.plan.count_netns]
        for key, delta in m.counters.items():
            builder.counters.append(CounterRow(number, "device", space, m.plan.wire, -1, key, 0.0, float(delta)))
        builder.samples(_samples(builder, number, m, spaces, devices))
        details.append(_details(m))
    builder.meta = {
        "tool": {"name": "nsprof", "version": __version__},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "source": {"kind": "simulate", "qemu": options.qemu or qemu_program()},
        "host": {"kernel": ", ".join(dict.fromkeys(m.kernel.release for m in measurements))},
        "notes": [
            "modelled: exact counts of the kernel executed under QEMU's TCG; no prefetch, speculation, page walks "
            "or coherence"
        ],
        "simulate": {
            "workload": options.workload,
            "size_bytes": options.bytes_each if not options.command else 0,
            "family": options.family,
            "packets_per_sample": options.per_sample,
            "samples": options.samples,
            "warmup": options.warmup,
            "mitigations": options.mitigations,
            "running_kernel": platform.release(),
            "caches": dict(options.caches),
            "runs": details,
        },
    }
    return builder.build()


def _run(options: SimulateOptions, m: Measurement, kernel: str) -> Run:
    noun = next(iter(m.denominators))
    per = f"instructions/{noun}"
    values = (
        Value("instructions", m.sample.instructions / m.denominators[noun], per, "simulate"),
        Value("background", m.background * m.repetitions / m.denominators[noun], per, "simulate"),
    )
    warnings = () if m.modal_share >= 0.5 else (f"only {m.modal_share:.0%} of the samples are alike",)
    return Run(
        scenario=m.scenario,
        kernel=kernel,
        label=f"seed {m.seed}",
        cpus=1,
        duration_s=0.0,
        denominators=dict(m.denominators),
        reference=f"{m.plan.wire} in {m.plan.count_netns} (rx+tx)",
        values=values,
        warnings=warnings,
        command=options.command or ("simulate", options.workload),
        status=0,
    )


def _places(builder: ProfileBuilder, m: Measurement) -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Namespaces and devices of the scenario in the profile. They have no inode: a guest's means nothing outside."""
    ends = ("host", "remote", m.plan.client, m.plan.count_netns)
    spaces = {}
    for name in dict.fromkeys(ends):
        role = name if name in ("host", "remote") else "container"
        spaces[name] = builder.namespace(Namespace(1 + m.plan.netns.index(name), 1, 0, name, role))
    found = [(m.plan.count_netns, m.plan.wire)]
    for hops in m.plan.hops or ():
        found += [*hops.sent, *hops.received]
    unique = dict.fromkeys(found)
    numbers = {place: number for number, place in enumerate(unique, start=1)}
    return spaces, {p: builder.device(Device(spaces[p[0]], numbers[p], p[1], _kind(p[1]))) for p in unique}


def _kind(device: str) -> str:
    return "bridge" if device.startswith("br") else "veth"


def _samples(
    builder: ProfileBuilder, run: int, m: Measurement, spaces: dict[str, int], devices: dict[tuple[str, str], int]
) -> Samples:
    rows: list[tuple[int, ...]] = []
    known = hops_are_known(m)
    task = builder.task(1, 1, "traffic")
    events = [
        builder.event(Event(name, UNITS.get(name, name.split("-")[-1]), "modelled")) if m.sample.sum_of(name) else -1
        for name in QUANTITIES
    ]
    frames: dict[int, int] = {}
    for node, counts in m.sample.counts.items():
        path = m.output.path(node)
        for each in path:
            if each not in frames:
                what = m.output.nodes[each]
                frames[each] = builder.frame(what.name, m.modules.get(what.address, ""))
        stack = builder.stack([frames[each] for each in path])
        context = context_of(m.output.names(node))
        hop = hop_of(m, node, context) if known else UNKNOWN
        place = spaces.get(hop.netns, 0), devices.get((hop.netns, hop.device), 0), int(hop.direction)
        rows += [(e, stack, int(context), *place, c) for e, c in zip(events, counts[1:], strict=True) if c and e >= 0]
    event, stack_column, context_column, space, device, direction, weight = zip(*rows, strict=True)
    return Samples.build(
        len(rows),
        run=run,
        event=event,
        task=task,
        context=context_column,
        stack=stack_column,
        task_ns=spaces[m.plan.client],
        hop_ns=space,
        hop_dev=device,
        hop_dir=direction,
        count=weight,
        weight=weight,
    )


def _details(m: Measurement) -> dict[str, Any]:
    """What the file tells of a boot besides its modal tree."""
    return {
        "scenario": m.scenario,
        "kernel": m.kernel.release,
        "seed": m.seed,
        "instructions": m.sample.instructions,
        "modal_share": m.modal_share,
        "modal_sample": m.sample.index,
        "hash_placements": list(m.placements),
        "hash_bad_luck": m.bad_luck,
        "minimum": min(s.instructions for s in m.samples),
        "worst": m.worst.instructions,
        "worst_contains": dict(list(m.excess().items())[:10]),
        "background": m.background * m.repetitions,
        "background_kinds": [
            {
                "what": kind.name,
                "samples": kind.samples,
                "instructions": kind.instructions,
                "functions": dict(kind.functions[:20]),
            }
            for kind in m.others.kinds
        ],
        "hops_known": hops_are_known(m),
        "unmatched_returns": m.sample.unmatched,
        "unmatched_returns_all": sum(s.unmatched for s in m.samples),
        "user_instructions": m.sample.totals["user"],
        "tree": dict(m.sample.totals),
        "calls": m.sample.totals["calls"],
        "totals": [s.instructions for s in m.samples],
        "wall_s": round(m.wall_s, 3),
    }

"""What a bench is going to run: cases (a workload through a topology), how often, and in which order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsprof import topology, workload
from nsprof.errors import UsageError
from nsprof.model.scenario import TopologySpec, parse_offloads
from nsprof.topology.plan import check_spec
from nsprof.units import parse_rate

__all__ = ["BenchOptions", "Case", "Plan", "blocks", "fair_order", "part_of", "plan_of", "topology_spec"]


@dataclass(frozen=True, slots=True)
class Case:
    """One workload through one topology: a line of a table.

    `part` is the table ("" where there is one only), `label` the line in it. With `reverse` the client runs in the
    remote namespace and the server in the container. `busy` is "one" or "all" of the containers.
    """

    part: str
    label: str
    spec: TopologySpec
    command: tuple[str, ...]
    reverse: bool = False
    busy: str = "one"

    @property
    def name(self) -> str:
        """What `Run.scenario` says."""
        return f"{self.part}/{self.label}" if self.part else self.label


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole bench. `runs` of each case (at most, where `until` is given), `until` the wanted half-width as a share
    of the baseline's unit cost (0: none). `count` adds a counting pass of each case at the end (nsprof ledger).
    `tables` are the report's, `per` its unit ("": the workload's), `experiment` the file's path ("" without)."""

    cases: tuple[Case, ...]
    runs: int = 3
    baseline: str = ""
    frequency_hz: int = 499
    events: tuple[str, ...] = ("cpu-clock",)
    hop: bool = False
    count: bool = False
    timeout_s: float = 0.0
    max_time_s: float = 0.0
    until: float = 0.0
    seed: int | None = None
    title: str = ""
    about: str = ""
    needs: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("document", "delta")
    per: str = ""
    experiment: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The tables, in order."""
        return tuple(dict.fromkeys(c.part for c in self.cases))

    def case(self, name: str) -> Case:
        """The case of that name."""
        return next(c for c in self.cases if c.name == name)

    def describe(self) -> dict[str, Any]:
        """What the profile keeps of the plan, as JSON; equal plans have equal descriptions."""
        return {
            "title": self.title,
            "experiment": self.experiment,
            "baseline": self.baseline,
            "tables": list(self.tables),
            "per": self.per,
            "cases": [
                {
                    "name": c.name,
                    "part": c.part,
                    "label": c.label,
                    "command": list(c.command),
                    "reverse": c.reverse,
                    "busy": c.busy,
                    "shape": c.spec.shape,
                    "containers": c.spec.containers,
                    "family": c.spec.family,
                    "mtu": c.spec.mtu,
                    "wire_rate_bps": c.spec.wire_rate_bps,
                    "offloads": dict(c.spec.offloads),
                    "host_netns": c.spec.host_netns,
                    "pin": c.spec.pin,
                    **{k: v for k, v in (("uplink", c.spec.uplink), ("remote", c.spec.remote)) if v},
                }
                for c in self.cases
            ],
            "frequency_hz": self.frequency_hz,
            "events": list(self.events),
            "hop": self.hop,
        }


def part_of(name: str) -> tuple[str, str]:
    """(part, label) of a run's scenario."""
    part, slash, label = name.partition("/")
    return (part, label) if slash else ("", name)


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
    count: bool = False
    containers: int = 1
    busy: str = "one"
    reverse: bool = False
    wire_rate: str = ""
    mtu: int = 0
    offload: str = ""
    ipv6: bool = False
    host_netns: str = "own"
    pin: bool = True
    timeout_s: float = 0.0
    max_time_s: float = 0.0
    until: float = 0.0
    seed: int | None = None


def topology_spec(shape: str, knobs: Mapping[str, Any], *, where: str = "--wire-rate") -> TopologySpec:
    """The spec of a shape with the knobs of the command line or of a file's [topology]. Raises NsprofError."""
    try:
        rate = parse_rate(knobs["wire_rate"]) if knobs.get("wire_rate") else 0
    except ValueError as error:
        raise UsageError(f"{where}: {error}", "--wire-rate 1gbit") from error
    if knobs.get("wire_rate") and not rate:
        raise UsageError(f"{where} {knobs['wire_rate']}: no rate", f"leave {where} out for no limit")
    spec = TopologySpec(
        shape=shape,
        containers=knobs.get("containers", 1),
        family=6 if knobs.get("ipv6") else 4,
        mtu=knobs.get("mtu", 0),
        wire_rate_bps=rate,
        offloads=parse_offloads(knobs.get("offload", "")),
        host_netns=knobs.get("host_netns", "own"),
        pin=knobs.get("pin", True),
        uplink=knobs.get("uplink", ""),
        remote=knobs.get("remote", ""),
        take_uplink=knobs.get("take_uplink", False),
    )
    check_spec(spec, topology.SHAPES)
    return spec


_KNOBS = ("containers", "ipv6", "mtu", "wire_rate", "offload", "host_netns", "pin")


def plan_of(options: BenchOptions) -> Plan:
    """The plan of a command line. Raises NsprofError for what cannot be meant, before anything is built."""
    if len(set(options.scenarios)) != len(options.scenarios):
        raise UsageError(f"a scenario is named twice: {','.join(options.scenarios)}")
    if not options.scenarios:
        raise UsageError("no scenario is named", "--scenario host,veth-bridge")
    knobs = {name: getattr(options, name) for name in _KNOBS}
    specs = {shape: topology_spec(shape, knobs) for shape in options.scenarios}
    workload.driver(options.command)
    if options.baseline and options.baseline.rpartition(":")[2] not in specs:
        raise UsageError(
            f"--baseline {options.baseline}: that scenario is not run", f"one of {', '.join(options.scenarios)}"
        )
    return Plan(
        cases=tuple(
            Case("", shape, spec, tuple(options.command), reverse=options.reverse, busy=options.busy)
            for shape, spec in specs.items()
        ),
        runs=options.runs,
        baseline=options.baseline,
        frequency_hz=options.frequency_hz,
        events=options.events,
        hop=options.hop,
        count=options.count,
        timeout_s=options.timeout_s,
        max_time_s=options.max_time_s,
        until=options.until,
        seed=options.seed,
    )


def blocks(names: Sequence[str], runs: int, seed: int) -> Iterator[list[str]]:
    """Blocks in which each name comes once: ABBA, drawn at random for every second block, `runs` blocks in all."""
    draw = random.Random(seed)  # noqa: S311 - a balanced order, not a secret
    for number in range(runs):
        if number % 2 == 0:
            block = list(names)
            draw.shuffle(block)
            yield list(block)
        else:
            yield block[::-1]


def fair_order(names: Sequence[str], runs: int, seed: int) -> list[str]:
    """Each name `runs` times, in ABBA blocks of random order: a drift in time adds the same to every name."""
    return [name for block in blocks(names, runs, seed) for name in block]


@dataclass(slots=True)
class Progress:
    """How far a bench is: finished runs per name (of usable runs), for `blocks` to go on from."""

    done: dict[str, int] = field(default_factory=dict)

    def left(self, names: Sequence[str], runs: int, seed: int) -> Iterator[list[str]]:
        """The blocks that remain, without the runs that are done."""
        skip = dict(self.done)
        for block in blocks(names, runs, seed):
            rest = []
            for name in block:
                if skip.get(name, 0) > 0:
                    skip[name] -= 1
                else:
                    rest.append(name)
            if rest:
                yield rest

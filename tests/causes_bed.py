"""A fault put into a topology of its own, measured against its clean twin; and what `explain` makes of the pair.

Both topologies stand at the same time and their windows alternate (ABBA), so that what changes on the machine
changes both sides.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nsprof import topology, workload
from nsprof.collect import host
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile
from nsprof.model.scenario import Place, TopologySpec
from nsprof.observe import Observer, Scene, Traffic
from nsprof.topology.construction import Topology

#: What a fault does to a standing topology; what it opens it gives to the stack, which ends it.
Apply = Callable[[Topology, ExitStack], None]


def nothing(topo: Topology, stack: ExitStack) -> None:
    """No fault."""


@dataclass(frozen=True)
class Fault:
    """One fault and its clean twin. `expect`: the causes that are right in first place (one of them). `everyone`
    explains the whole machine, where the fault is somebody else's load."""

    name: str
    expect: tuple[str, ...]
    spec: TopologySpec
    command: tuple[str, ...]
    apply: Apply = nothing
    clean_spec: TopologySpec | None = None
    clean_command: tuple[str, ...] = ()
    prepare: Apply = nothing
    both: tuple[str, ...] = field(default=())
    side: Literal["dut", "remote", "all"] = "dut"
    everyone: bool = False

    @property
    def twin(self) -> Fault:
        """The clean side against itself."""
        spec, command = self.clean_spec or self.spec, self.clean_command or self.command
        return replace(
            self, name=f"{self.name} (clean)", expect=(), spec=spec, command=command, apply=nothing,
            clean_spec=None, clean_command=(), both=(),
        )  # fmt: skip


@dataclass
class _Stand:
    name: str
    topo: Topology
    driver: workload.Driver
    described: dict[str, Any]


@contextmanager
def _stand(name: str, fault: Fault, *, faulty: bool) -> Iterator[_Stand]:
    spec = fault.spec if faulty else fault.clean_spec or fault.spec
    command = fault.command if faulty else fault.clean_command or fault.command
    with ExitStack() as stack:
        topo = stack.enter_context(topology.build(spec))
        fault.prepare(topo, stack)
        if faulty:
            fault.apply(topo, stack)
        driver = workload.driver(command, timeout_s=30.0)
        stack.enter_context(driver.servers(topo.server, 1))
        yield _Stand(name, topo, driver, topo.describe())


def _describe(stand: _Stand) -> dict[str, Any]:
    places: tuple[Place, ...] = (stand.topo.host, stand.topo.server, stand.topo.client)
    ends = {place.name: place.netns_path for place in places}
    return {**stand.described, "namespaces": host.snapshot(ends, tools=False)["namespaces"]}


def measure(observer: Observer, fault: Fault, *, runs: int = 3) -> Profile:
    """One profile with the scenarios "clean" and "fault", `runs` runs each after one that is thrown away."""
    builder = ProfileBuilder()
    with ExitStack() as stack:
        stands = [
            stack.enter_context(_stand("clean", fault, faulty=False)),
            stack.enter_context(_stand("fault", fault, faulty=True)),
        ]
        order = [s for i in range(runs) for s in (stands if i % 2 == 0 else stands[::-1])]
        for stand in order:
            run = _window(observer, builder, stand)
            if run.failed:
                raise RuntimeError(f"{fault.name}, {stand.name}: {run.failed}")
            if stand.name not in builder.meta.setdefault("topology", {}):
                builder.meta["topology"][stand.name] = _describe(stand)  # after traffic: what it leaves is seen
    builder.meta["host"] = host.snapshot({}, tools=False)
    return builder.build()


def _window(observer: Observer, builder: ProfileBuilder, stand: _Stand) -> Any:
    topo = stand.topo
    paths = [topo.host.netns_path, topo.server.netns_path, *(c.netns_path for c in topo.clients)]
    scene = Scene(
        scenario=stand.name,
        namespaces=dict(zip(dict.fromkeys(paths), topo.namespaces, strict=True)),
        ends=(topo.client.netns_path, topo.server.netns_path),
        reference=(topo.reference[0].netns_path, topo.reference[1]),
        dut_cpus=topo.dut_cpus,
        remote_cpus=topo.remote_cpus,
        kernel=platform.release(),
    )

    def work() -> Traffic:
        outcome = stand.driver.run_many([topo.client], [topo.server_address])[0]
        found = workload.denominators(stand.driver.tool, outcome.argv, outcome.values)
        return Traffic(
            command=outcome.argv, status=outcome.status, values=outcome.values, warnings=outcome.warnings,
            denominators=found, failed=outcome.failed,
        )  # fmt: skip

    started = time.monotonic()
    run = observer.window(builder, scene, work)
    if time.monotonic() - started > 60:
        raise RuntimeError(f"{stand.name}: a window took more than a minute")
    return run

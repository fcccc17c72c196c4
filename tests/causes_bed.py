"""A fault put into a topology of its own, measured against its clean twin; and what `explain` makes of the pair.

Both topologies stand at the same time and their windows alternate (ABBA), so that what changes on the machine
changes both sides.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nsprof import topology, workload
from nsprof.collect.system import host
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile
from nsprof.model.scenario import Place, TopologySpec
from nsprof.netns import spawn
from nsprof.observe import Observer, Scene, Traffic
from nsprof.topology.construction import Topology

#: What a fault does to a standing topology; what it opens it gives to the stack, which ends it.
Apply = Callable[[Topology, ExitStack], None]
#: Commands that run beside the traffic, during the windows of their own side only.
Beside = Callable[[Topology], Sequence[tuple[Place, tuple[str, ...]]]]


#: What holds while windows of the faulty side are open: settings of the whole machine, which both sides share.
During = Callable[[], AbstractContextManager[None]]


def nobody(topo: Topology) -> Sequence[tuple[Place, tuple[str, ...]]]:
    """Nothing beside."""
    return ()


def nothing(topo: Topology, stack: ExitStack) -> None:
    """No fault."""


@dataclass(frozen=True)
class Fault:
    """One fault and its clean twin. `expect`: the causes that are right in first place (one of them). `beside` runs
    beside the traffic of the faulty side, `always` beside that of both. `everyone`
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
    clean_apply: Apply = nothing
    settle_s: float = 0.5
    beside: Beside = nobody
    always: Beside = nobody
    during: During = nullcontext
    side: Literal["dut", "remote", "all"] = "dut"
    everyone: bool = False
    per: str | None = None  # the unit of work, where that is not the workload's own

    @property
    def twin(self) -> Fault:
        """The clean side against itself."""
        spec, command = self.clean_spec or self.spec, self.clean_command or self.command
        return replace(
            self, name=f"{self.name} (clean)", expect=(), spec=spec, command=command, apply=self.clean_apply,
            clean_spec=None, clean_command=(), both=(), beside=nobody, during=nullcontext,
        )  # fmt: skip


@dataclass
class _Stand:
    name: str
    topo: Topology
    driver: workload.Driver
    described: dict[str, Any]
    beside: tuple[tuple[Place, tuple[str, ...]], ...] = ()
    settle_s: float = 0.5
    during: During = nullcontext


@contextmanager
def _stand(name: str, fault: Fault, *, faulty: bool) -> Iterator[_Stand]:
    spec = fault.spec if faulty else fault.clean_spec or fault.spec
    command = fault.command if faulty else fault.clean_command or fault.command
    with ExitStack() as stack:
        topo = stack.enter_context(topology.build(spec))
        fault.prepare(topo, stack)
        (fault.apply if faulty else fault.clean_apply)(topo, stack)
        driver = workload.driver(command, timeout_s=30.0)
        stack.enter_context(driver.servers(topo.server, 1))
        others = (*fault.always(topo), *(fault.beside(topo) if faulty else ()))
        yield _Stand(
            name, topo, driver, topo.describe(), others, fault.settle_s, fault.during if faulty else nullcontext
        )


@contextmanager
def running(commands: Sequence[tuple[Place, tuple[str, ...]]], settle_s: float) -> Iterator[None]:
    """Commands in their namespaces, pinned as the place is, begun so long before the block and ended with it. Raises
    RuntimeError for one that ends by itself with an error."""
    processes = []
    try:
        for place, argv in commands:
            processes.append(
                spawn(
                    argv, netns=place.netns_path or None, cpus=place.cpus, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, new_group=True,
                )
            )  # fmt: skip
        if processes:
            time.sleep(settle_s)
        for (_, argv), process in zip(commands, processes, strict=True):
            if process.poll():
                raise RuntimeError(f"{argv[0]} beside the traffic ended with status {process.returncode}")
        yield
    finally:
        for process in processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that `running` started, and its group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            return


def _describe(stand: _Stand) -> dict[str, Any]:
    places: tuple[Place, ...] = (stand.topo.host, stand.topo.server, stand.topo.client)
    ends = {place.name: place.netns_path for place in places}
    found = host.snapshot(ends, tools=False)
    return {**stand.described, "namespaces": found["namespaces"], "host": {"sysctl": found["sysctl"]}}


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
            with running(stand.beside, stand.settle_s), stand.during():
                run = _window(observer, builder, stand)
                if stand.name not in builder.meta.setdefault("topology", {}):
                    builder.meta["topology"][stand.name] = _describe(stand)  # after traffic: what it leaves is seen
            if stand.beside:
                time.sleep(stand.settle_s)  # the kernel goes on clearing up what ended
            if run.failed:
                raise RuntimeError(f"{fault.name}, {stand.name}: {run.failed}")
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

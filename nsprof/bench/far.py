"""The remote end that is no namespace: another machine behind an uplink, or a guest behind virtio, tap and bridge."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from nsprof import workload
from nsprof.bench.plan import Case, Plan
from nsprof.errors import UsageError, WorkloadError
from nsprof.topology.plan import Addresses, Macs, check_spec, ssh_host
from nsprof.topology.shapes import SHAPES
from nsprof.workload import process, ready
from nsprof.workload.base import quoted_words

__all__ = ["GUEST_KERNEL", "notes", "serving", "with_far_end"]

#: What the guest at the remote end boots.
GUEST_KERNEL = "debian:6.1"
#: How long a server at another machine may take until it answers, seconds.
_ANSWER_S = 15.0


def with_far_end(plan: Plan, *, uplink: str, remote: str, take_uplink: bool) -> tuple[Plan, list[str]]:
    """The plan with another remote end, and what had to be left out for it, a line each.

    Raises UsageError or TopologyError for what cannot be.
    """
    cases, left = [], []
    for case in plan.cases:
        spec = replace(case.spec, uplink=uplink, remote=remote, take_uplink=take_uplink)
        check_spec(spec, SHAPES)
        turned = _turned(case)
        if turned is None:
            left.append(f"{case.name} is left out: its client would run at the remote end")
        else:
            cases.append(replace(turned, spec=spec))
    if not cases:
        raise UsageError(left[0], "a workload that the container starts: TCP_MAERTS, iperf3 -R, ...")
    return replace(plan, cases=tuple(cases)), left


def _turned(case: Case) -> Case | None:
    """A case whose client runs at this end: a stream to the container is asked for by the container."""
    if case.command[0] == "pktgen":
        return None
    if not case.reverse:
        return case
    words = list(case.command)
    tool = workload.recognise(words)
    if tool == "iperf3":
        return replace(case, reverse=False, command=(*words, "-R"))
    if tool == "netperf" and "TCP_STREAM" in words:
        words[words.index("TCP_STREAM")] = "TCP_MAERTS"
        return replace(case, reverse=False, command=tuple(words))
    return None


def notes(plan: Plan) -> list[str]:
    """What a reader of the figures must know of the remote end."""
    found = []
    for spec in {(c.spec.uplink, c.spec.remote): c.spec for c in plan.cases}.values():
        if spec.uplink:
            found.append(f"the remote end is another machine ({spec.remote}) on uplink {spec.uplink}: not measured")
        elif spec.remote == "vm":
            found.append(
                f"the remote end is a guest ({GUEST_KERNEL}) behind virtio, tap and bridge, emulated by QEMU: "
                "figures of the remote end's CPUs are the emulation's"
            )
    return found


@contextmanager
def serving(driver: workload.Driver, topo: Any, clients: int) -> Iterator[None]:
    """The servers that so many clients dial are there within the block.

    Raises CommandNotFound, WorkloadError or VmError.
    """
    if topo.far == "namespace":
        with driver.servers(topo.server, clients):
            yield
        return
    with ExitStack() as stack:
        server = stack.enter_context(driver.servers_elsewhere(topo.server_address, clients))
        ports = tuple(dict.fromkeys(server.ports))
        family = 6 if ":" in topo.server_address else 4
        commands = [driver.server_argv(port, family) for port in ports if driver.server_program]
        if topo.far == "vm":
            stack.enter_context(_guest(topo, commands))
            _check_answers(driver, topo, ports if commands else (), started=True)
        elif commands:
            host = ssh_host(topo.spec)
            if host:
                for words in commands:
                    stack.enter_context(_over_ssh(host, words))
            _check_answers(driver, topo, ports, started=bool(host))
        yield


def _check_answers(driver: workload.Driver, topo: Any, ports: Sequence[int], *, started: bool) -> None:
    """Whether the servers answer, with a connection that says nothing (they take it for a client that went away)."""
    address = topo.server_address
    for port in ports:
        wrong = ready.wait_answering(topo.client.netns_path, address, port, _ANSWER_S if started else 3.0)
        if wrong:
            words = " ".join(driver.server_argv(port, 6 if ":" in address else 4))
            raise WorkloadError(
                f"no {driver.server_program} answers at {address} port {port}: {wrong}",
                f"at the other machine: {words}, or --remote ssh:USER@HOST",
            )


@contextmanager
def _over_ssh(host: str, words: Sequence[str]) -> Iterator[None]:
    """A server at the other machine; it ends when the connection does, whoever ends that."""
    # Without a terminal there is no hang-up: the far shell waits for the end of its input instead. The words are
    # nsprof's own, and quoted.
    far = f"{shlex.join(words)} </dev/null & p=$!; trap 'kill $p 2>/dev/null' EXIT; cat >/dev/null; kill $p"
    argv = ["ssh", "-T", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", host, far]
    with tempfile.TemporaryFile() as said:
        child = process.start(
            argv, netns=None, cpus=(), output=said, package_hint="ssh: apt install openssh-client", keep_input=True
        )
        try:
            yield
        except WorkloadError as error:
            if child.poll() is not None:
                said.seek(0)
                reason = quoted_words(said.read(100_000)) or f"exit status {child.returncode}"
                raise WorkloadError(f"ssh {host}: {reason}", "ssh must work there without a password") from error
            raise
        finally:
            if child.stdin is not None:
                child.stdin.close()
            process.stop(child)


@contextmanager
def _guest(topo: Any, commands: Sequence[Sequence[str]]) -> Iterator[None]:
    from nsprof.topology.maker import TAP
    from nsprof.vm import resolve
    from nsprof.vm.far_end import serving_guest

    addresses = Addresses(topo.spec.family)
    with serving_guest(
        resolve(GUEST_KERNEL),
        commands,
        netns=topo.server.netns_path,
        tap=TAP,
        mac=Macs.guest,
        address=f"{addresses.remote}/{addresses.prefix}",
        routes=((addresses.pods, addresses.host),),
        mtu=topo.spec.mtu,
        cpus=topo.remote_cpus,
    ):
        topo.wait_reachable(timeout_s=30.0)
        yield

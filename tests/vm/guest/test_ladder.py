"""The ladder on a kernel that has all rungs: 23 datagrams are 23 calls on each, and nothing stays attached."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.bpf.loader import Program
from nsprof.collect.ladder.count import RETURN, CallCounter, with_slot
from nsprof.collect.ladder.finding import attach, find, kernel_symbols
from nsprof.errors import ProbeError
from nsprof.model.scenario import TopologySpec
from nsprof.netns import entered
from nsprof.topology import Topology, build

DATAGRAMS = 23


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    compiled = CallCounter.compile()
    yield compiled
    compiled.close()


@pytest.fixture(scope="module")
def topology() -> Iterator[Topology]:
    with build(TopologySpec("veth-route", pin=False)) as topo:
        kernel_symbols.cache_clear()  # modules have been loaded since
        yield topo


def _send(topo: Topology, count: int) -> None:
    with entered(topo.server.netns_path):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with entered(topo.client.netns_path):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server, client:
        server.bind((topo.server_address, 7778))
        server.settimeout(5)
        for number in range(count):
            client.sendto(bytes([number]), (topo.server_address, 7778))
            assert server.recv(10) == bytes([number])


def _count(program: Program, topo: Topology, rungs: Sequence[str], functions: Sequence[str]) -> CallCounter:
    _send(topo, 1)  # neighbours are known from here on
    with CallCounter(functions, returns=functions, rungs=rungs, program=program) as counter:
        _send(topo, DATAGRAMS)
        counts = counter.read()
        assert counter.refused == {}
        print({key: (probe.rung, counts[key]) for key, probe in counter.attached.items()})
        for function in functions:
            assert counts[function] == DATAGRAMS
            assert counts[function + RETURN] == DATAGRAMS
    return counter


def test_fentry_and_fexit_count_23(program: Program, topology: Topology) -> None:
    counter = _count(program, topology, ("fentry", "fexit"), ["udp_rcv", "udp_sendmsg", "ip_forward"])
    assert {probe.rung for probe in counter.attached.values()} == {"fentry", "fexit"}


def test_kprobe_and_kretprobe_count_23(program: Program, topology: Topology) -> None:
    counter = _count(program, topology, ("kprobe", "kretprobe"), ["udp_rcv", "udp_sendmsg", "ip_forward"])
    assert {probe.rung for probe in counter.attached.values()} == {"kprobe", "kretprobe"}


def test_function_in_a_module_falls_to_the_kprobe(program: Program, topology: Topology) -> None:
    every = ("fentry", "fexit", "kprobe", "kretprobe")
    with CallCounter(["veth_xmit"], returns=["veth_xmit"], rungs=every, program=program) as counter:
        _send(topology, DATAGRAMS)
        assert counter.attached["veth_xmit"].rung == "kprobe"
        # container to host, host to remote: two veth pairs on the way
        assert counter.read() == {"veth_xmit": 2 * DATAGRAMS, "veth_xmit" + RETURN: 2 * DATAGRAMS}
        (row, _) = counter.probe_infos()
        assert "lies in module veth" in row.reason


def test_variant_of_a_function_is_counted_and_named(program: Program, topology: Topology) -> None:
    path = ("ip_rcv_finish_core", "ip_rcv_core", "__udp4_lib_rcv", "udp_unicast_rcv_skb", "ip_finish_output2")
    table = kernel_symbols()
    only = [name for name in path if name in table.by_function and table.by_function[name][0][0] != name]
    if not only:
        pytest.skip("no function on the receive path of this kernel exists as a compiler's variant only")
    with CallCounter(only, program=program) as counter:
        _send(topology, DATAGRAMS)
        for name, calls in counter.read().items():
            print(name, table.by_function[name], calls)
            assert calls in (DATAGRAMS, 2 * DATAGRAMS)  # the receiver's side alone, or the router's too
        assert all("exists: its arguments may be moved" in row.reason for row in counter.probe_infos())


def test_bad_names_are_refused_and_the_rest_goes_on(program: Program, topology: Topology) -> None:
    names = ["udp_rvc", "udp_rcv", "*", "clear_page_erms"]
    with CallCounter(names, program=program) as counter:
        _send(topology, DATAGRAMS)
        rows = {row.name: row for row in counter.probe_infos()}
        assert counter.read()["udp_rcv"] == DATAGRAMS
    assert rows["udp_rvc"].state == "refused"
    assert "did you mean udp_rcv" in rows["udp_rvc"].reason
    assert rows["*"].state == "refused"


def _closed_function() -> str:
    """A function that the kernel closes to kprobes and that has no place for a trampoline either."""
    forbidden = [line.split()[1] for line in Path("/sys/kernel/debug/kprobes/blacklist").read_text().splitlines()]
    traced = set(Path("/sys/kernel/tracing/available_filter_functions").read_text().split())
    table = kernel_symbols()
    return next(name for name in forbidden if name not in traced and len(table.by_function.get(name, [])) == 1)


def test_closed_function_is_refused_with_both_reasons(program: Program) -> None:
    code = program.code("on_call")
    found = find(_closed_function())
    with pytest.raises(ProbeError, match=r"cannot be probed: fentry: .*; kprobe: .*closed to probes") as caught:
        attach(found, {"fentry": with_slot(code, 0), "kprobe": with_slot(code, 0)})
    print(caught.value)


def test_nothing_stays_attached_after_sigkill(program: Program) -> None:
    code = program.code("on_call")

    def loaded() -> int:
        return sum("nsprof_left" in name for name in loader_syscall.program_infos())

    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            held = [
                attach(find("udp_rcv"), {rung: with_slot(code, 0)}, name="nsprof_left")
                for rung in ("fentry", "kprobe")
            ]
            os.write(told, b"y" if len(held) == 2 else b"n")
            time.sleep(100)
        finally:
            os._exit(1)
    os.close(told)
    assert os.read(ready, 1) == b"y"
    os.close(ready)
    assert loaded() > 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    end = time.monotonic() + 5
    while loaded() and time.monotonic() < end:
        time.sleep(0.05)
    assert loaded() == 0


def test_each_call_is_one_hit_on_every_rung(program: Program) -> None:
    """The counts are asserted; the times are printed only: under TCG they say little of a real machine."""
    calls = 20_000
    cost_ns: dict[str, float] = {}
    sets = {
        "none": (),
        "fentry": ("fentry",),
        "fexit": ("fexit",),
        "kprobe": ("kprobe",),
        "kretprobe": ("kretprobe",),
    }
    best = dict.fromkeys(sets, float("inf"))
    for _ in range(3):
        for rung, rungs in sets.items():
            on_return = rung in ("fexit", "kretprobe")
            names = ["__x64_sys_getppid"] if rungs else []
            words = {"returns": names} if on_return else {}
            with CallCounter([] if on_return else names, rungs=rungs, program=program, **words) as counter:
                begun = time.perf_counter()
                for _ in range(calls):
                    os.getppid()
                best[rung] = min(best[rung], (time.perf_counter() - begun) * 1e9 / calls)
                counts = counter.read()
            assert counter.refused == {}
            if rungs:
                assert calls <= next(iter(counts.values())) <= calls + 100  # others may ask for their parent too
    for rung in sets:
        cost_ns[rung] = best[rung] - best["none"]
    print("ns a hit over an unprobed call:", {rung: round(cost) for rung, cost in cost_ns.items()})


def test_tracepoint_is_taken_before_the_function(program: Program, topology: Topology) -> None:
    point = {"netif_receive_skb": "netif_receive_skb", "gone_in_this_kernel": "netif_receive_skb"}
    for rungs in (("tp_btf", "kprobe"), ("raw_tp", "kprobe")):
        with CallCounter(list(point), tracepoints=point, rungs=rungs, program=program) as counter:
            _send(topology, DATAGRAMS)
            rows = {row.name: row for row in counter.probe_infos()}
        assert {row.rung for row in rows.values()} == {rungs[0]}
        assert {row.hits for row in rows.values()} == {2 * DATAGRAMS}  # at the host and at the remote end
        assert "is not in this kernel" in rows["gone_in_this_kernel"].reason


def test_attaching_takes_under_a_second(program: Program, topology: Topology) -> None:
    functions = ["netif_receive_skb", "ip_rcv", "ip_forward", "udp_rcv", "udp_sendmsg", "dev_hard_start_xmit"]
    functions += ["pskb_expand_head", "skb_checksum_help", "__skb_gso_segment", "ip_do_fragment", "veth_xmit"]
    with CallCounter(functions, returns=["dev_hard_start_xmit"], program=program) as counter:
        took = {key: round(probe.attach_ms, 1) for key, probe in counter.attached.items()}
        print(
            f"attached {len(took)} probes in {counter.attach_ms():.0f} ms: {took}; refused: {list(counter.refused)}"
        )
        assert len(took) >= 11
        assert counter.attach_ms() < 1000


def test_probes_come_and_go_under_traffic(program: Program, topology: Topology) -> None:
    """The kernel rewrites its text under packets on two CPUs; QEMU with a thread a CPU did not survive this."""
    functions = ("udp_rcv", "ip_output")
    sender = os.fork()
    if sender == 0:
        try:
            while True:
                _send(topology, DATAGRAMS)
        finally:
            os._exit(1)  # only a failure comes here
    try:
        end = time.monotonic() + 15
        rounds = 0
        while time.monotonic() < end:
            for rungs in (("fentry", "fexit"), ("kprobe", "kretprobe")):
                with CallCounter(functions, returns=functions, rungs=rungs, program=program) as counter:
                    assert counter.refused == {}
            rounds += 1
        assert os.waitpid(sender, os.WNOHANG) == (0, 0), "the traffic did not go on"
        print(f"attached and detached {2 * rounds} times")
    finally:
        os.kill(sender, signal.SIGKILL)
        os.waitpid(sender, 0)

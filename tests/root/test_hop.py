"""Hop context on this kernel: right namespace and device, judged by the samples' own frames."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from nsprof import netns
from nsprof.collect.bpf import bcc_door, headers
from nsprof.collect.hop import probes as hop
from nsprof.collect.sampling.sampler import Sampler
from nsprof.errors import ProbeError
from nsprof.model.profile import Context, Direction
from tests.root.hop_bed import (
    SINK,
    Bed,
    Flow,
    Seen,
    Verdict,
    bed,
    bridged,
    hop_sampler,
    judge,
    observe,
    phase,
    python,
    rows,
    run_flows,
    segment,
)
from tests.vm.guest.hopping import check_rung

pytestmark = [pytest.mark.root, pytest.mark.bpf]

SECONDS = 2.5
Truth = Callable[[str, Seen], set[str] | None]


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    with hop_sampler(1999) as made:
        yield made


@pytest.fixture
def made() -> Iterator[Bed]:
    with bed() as one:
        yield one


def observed(made: Bed, sampler: Sampler, flows: list[Flow], sinks: list[str]) -> tuple[list[Seen], dict[int, str]]:
    senders = run_flows(made, flows, sinks, SECONDS, observe(sampler, SECONDS))
    return rows(made, sampler), senders


def assert_right(verdict: Verdict, *, at_least: int = 60) -> None:
    print(verdict)
    assert verdict.decidable >= at_least, f"too few samples to judge: {verdict}"
    assert verdict.right >= 0.95 * verdict.decidable, str(verdict)
    assert verdict.wrong <= 0.01 * verdict.decidable, str(verdict)


def down(bridge: set[str], tx: set[str]) -> Truth:
    """Traffic from `r` to c1 over IPv4 and to c2 over IPv6; where GRO is on, at the bridge's port already."""
    allowed = {"bridge": bridge, "tx": tx, "v4": {"c1:eth0"}, "v6": {"c2:eth0"}}
    allowed |= {"gro4": {"h:vr", "c1:eth0"}, "gro6": {"h:vr", "c2:eth0"}}

    def truth(said: str, row: Seen) -> set[str] | None:
        return allowed.get(said)

    return truth


HOST = {"h:vc1", "h:vc2"}


def test_two_busy_containers_towards_the_wire(made: Bed, sampler: Sampler) -> None:
    bridged(made)
    seen, senders = observed(made, sampler, [Flow("c1", "198.18.9.1"), Flow("c2", "fd09::1")], ["r"])

    def truth(said: str, row: Seen) -> set[str] | None:
        who = None if "run_ksoftirqd" in row.frames else senders.get(row.pid)
        if said == "bridge":
            return {f"h:v{who}"} if who else HOST
        return {"tx": {"h:vr"}, "v4": {"r:eth0"}, "v6": {"r:eth0"}}.get(said)

    assert_right(judge(seen, truth))
    assert not [row for row in seen if "c3" in row.label], "the idle container got samples"


def test_two_busy_containers_from_the_wire(made: Bed, sampler: Sampler) -> None:
    bridged(made)
    seen, _ = observed(made, sampler, [Flow("r", "198.18.9.2"), Flow("r", "fd09::3")], ["c1", "c2"])
    assert_right(judge(seen, down({"h:vr"}, HOST)))
    assert not [row for row in seen if "c3" in row.label], "the idle container got samples"


def test_two_senders_on_one_cpu_are_told_apart_by_who_runs(made: Bed, sampler: Sampler) -> None:
    bridged(made)
    flows = [Flow("c1", "198.18.9.1", cpu=0), Flow("c2", "198.18.9.1", cpu=0)]
    seen, senders = observed(made, sampler, flows, ["r"])

    def truth(said: str, row: Seen) -> set[str] | None:
        who = None if "run_ksoftirqd" in row.frames else senders.get(row.pid)
        return {f"h:v{who}"} if said == "bridge" and who else None

    assert_right(judge(seen, truth), at_least=30)


def test_a_transmission_in_a_system_call_has_its_device_and_the_rest_the_task_s_namespace(
    made: Bed, sampler: Sampler
) -> None:
    bridged(made)
    seen, senders = observed(made, sampler, [Flow("c1", "198.18.9.1")], ["r"])
    inode = netns.inode(made.path("c1"))
    mine = [row for row in seen if row.pid in senders and row.context == Context.TASK]
    sending = [row for row in mine if "dev_hard_start_xmit" in row.frames[1:] and row.direction == Direction.TX]
    assert sum(row.count for row in sending) > 10
    assert {row.label for row in sending} == {"c1:eth0"}
    outside = [row for row in mine if row.direction == Direction.TASK]
    assert sum(row.count for row in outside) > 10 and {row.task_ns for row in outside} == {inode}


def test_routed_packets_are_forwarded_by_the_device_they_came_in_on(made: Bed, sampler: Sampler) -> None:
    made.add("h", "r", "c1", "c2")
    made.sysctl("h", "net/ipv4/ip_forward", "1")
    made.sysctl("h", "net/ipv6/conf/all/forwarding", "1")
    for number, name in enumerate(("r", "c1", "c2"), 1):
        made.pair("h", f"v{name}", name, "eth0")
        made.address("h", f"v{name}", f"198.18.2{number}.254/24", f"fd0{number}::fe/64")
        made.address(name, "eth0", f"198.18.2{number}.1/24", f"fd0{number}::1/64")
        made.ip(name, "route", "add", "default", "via", f"198.18.2{number}.254")
        made.ip(name, "-6", "route", "add", "default", "via", f"fd0{number}::fe")
    seen, _ = observed(made, sampler, [Flow("c1", "198.18.21.1"), Flow("c2", "fd01::1")], ["r"])

    def truth(said: str, row: Seen) -> set[str] | None:
        forwarded = {"ip_forward", "ip6_forward"} & set(segment(row.frames) or ())
        if said in ("v4", "v6"):
            host = "h:vc1" if said == "v4" else "h:vc2"
            return {host} if forwarded else {host, "r:eth0"}
        return {"tx": {"h:vr"}}.get(said)

    assert_right(judge(seen, truth))
    forwarding = [row for row in seen if row.direction == Direction.FORWARD and row.label in HOST]
    assert {row.label for row in forwarding} == HOST


def ethtool(made: Bed, name: str, device: str, *words: str) -> None:
    with netns.entered(made.path(name)):
        subprocess.run(["ethtool", "-K", device, *words], check=True, capture_output=True)


def test_gro(made: Bed, sampler: Sampler) -> None:
    bridged(made)
    for name in ("c1", "c2", "r"):
        ethtool(made, name, "eth0", "gro", "on", "tso", "off")
        ethtool(made, "h", f"v{name}", "gro", "on", "tso", "off")
    seen, _ = observed(made, sampler, [Flow("r", "198.18.9.2"), Flow("r", "fd09::3")], ["c1", "c2"])
    assert any("veth_poll" in row.frames for row in seen), "the pairs run NAPI"
    assert_right(judge(seen, down({"h:vr"}, HOST)))
    gro = [row for row in seen if phase(segment(row.frames) or ()).startswith("gro")]
    assert sum(row.count for row in gro) > 20, "GRO of both protocols was seen"


def test_rps_moves_the_packet_to_the_other_cpu_and_not_to_another_hop(made: Bed, sampler: Sampler) -> None:
    bridged(made)
    for name in ("c1", "c2"):
        # sysfs shows the devices of the namespace it was mounted in
        words = ["ip", "netns", "exec", made.full(name), "tee", "/sys/class/net/eth0/queues/rx-0/rps_cpus"]
        subprocess.run(words, input=b"2\n", check=True, capture_output=True)
    flows = [Flow("r", "198.18.9.2", cpu=0), Flow("r", "fd09::3", cpu=0)]
    seen, _ = observed(made, sampler, flows, ["c1", "c2"])
    assert_right(judge(seen, down({"h:vr"}, HOST)))


def test_macvlan(made: Bed, sampler: Sampler) -> None:
    made.add("h", "r", "c1", "c2")
    made.pair("h", "wire", "r", "eth0")
    made.address("r", "eth0", "198.18.9.1/24", "fd09::1/64")
    for number, name in enumerate(("c1", "c2"), 2):
        made.ip("h", "link", "add", f"m{name}", "link", "wire", "type", "macvlan", "mode", "bridge")
        made.ip("h", "link", "set", f"m{name}", "netns", made.full(name), "name", "eth0")
        made.ip(name, "link", "set", "eth0", "up")
        made.address(name, "eth0", f"198.18.9.{number}/24", f"fd09::{number}/64")
    seen, _ = observed(made, sampler, [Flow("r", "198.18.9.2"), Flow("r", "fd09::3")], ["c1", "c2"])
    assert_right(judge(seen, down(set(), {"r:eth0"})))


def test_vxlan(made: Bed, sampler: Sampler) -> None:
    made.add("h", "r", "c1")
    made.pair("h", "up0", "r", "wire")
    made.address("h", "up0", "198.18.30.1/24")
    made.address("r", "wire", "198.18.30.2/24")
    for name, local, remote in (("h", 1, 2), ("r", 2, 1)):
        ends = ("local", f"198.18.30.{local}", "remote", f"198.18.30.{remote}")
        made.ip(name, "link", "add", "vx", "type", "vxlan", "id", "77", *ends, "dstport", "4789")
    made.ip("h", "link", "set", "vx", "netns", made.full("c1"))
    for number, name in enumerate(("c1", "r"), 1):
        made.ip(name, "link", "set", "vx", "up")
        made.address(name, "vx", f"fd31::{number}/64")
    seen, senders = observed(made, sampler, [Flow("c1", "fd31::2")], ["r"])

    def truth(said: str, row: Seen) -> set[str] | None:
        inner = "gro_cell_poll" in row.frames
        return {("v6", True): {"r:vx"}, ("v4", False): {"r:wire"}}.get((said, inner))

    assert_right(judge(seen, truth))
    # Nested transmissions: the tunnel's own work is the container's, what lies below it the host's.
    below: dict[str, set[str]] = {"veth_xmit": set(), "vxlan_xmit": set()}
    for row in seen:
        mine = row.pid in senders and row.context == Context.TASK and row.direction == Direction.TX
        if mine and row.label and "dev_hard_start_xmit" in row.frames[1:]:
            entered = row.frames[row.frames.index("dev_hard_start_xmit", 1) - 1]
            if entered in below:
                below[entered].add(row.label)
    assert below["veth_xmit"] <= {"h:up0"} and below["vxlan_xmit"] == {"c1:vx"}, below


def test_threaded_napi(made: Bed, sampler: Sampler) -> None:
    bridged(made)
    for name in ("c1", "c2"):
        ethtool(made, name, "eth0", "gro", "on")
        ethtool(made, "h", f"v{name}", "tso", "off")
        words = ["ip", "netns", "exec", made.full(name), "tee", "/sys/class/net/eth0/threaded"]
        subprocess.run(words, input=b"1\n", check=True, capture_output=True)
    seen, _ = observed(made, sampler, [Flow("r", "198.18.9.2"), Flow("r", "fd09::3")], ["c1", "c2"])
    threaded = [row for row in seen if any("napi_threaded_poll" in f for f in row.frames)]
    assert {row.context for row in threaded if row.label} == {Context.SOFTIRQ}
    assert_right(judge(threaded, down(set(), set())))
    assert_right(judge(seen, down({"h:vr"}, HOST)))


# Datagrams to everybody: between two bridges with two links between them each goes round for ever.
SHOUT = """
import socket, sys, time
family, address = (socket.AF_INET6, "ff02::1") if sys.argv[1] == "6" else (socket.AF_INET, "198.18.9.255")
s = socket.socket(family, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
if family == socket.AF_INET6:
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex("br0"))
else:
    s.bind(("198.18.9.1", 0))
for _ in range(20): s.sendto(b"x" * 64, (address, 9000)); time.sleep(0.002)
"""


def test_ksoftirqd_carries_the_packets_namespace(made: Bed, sampler: Sampler) -> None:
    """A loop of bridges never lets the softirq end, so its thread takes over. IPv4 is c1's, IPv6 c2's."""
    made.add("c1", "c2")
    made.sysctl("c1", "net/ipv6/conf/default/disable_ipv6", "1")
    made.sysctl("c1", "net/ipv6/conf/all/disable_ipv6", "1")
    for name in ("c1", "c2"):
        made.ip(name, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    for link in ("la", "lb"):
        made.pair("c1", link, "c2", link)
        for name in ("c1", "c2"):
            made.ip(name, "link", "set", link, "master", "br0")
    for name, address in (("c1", "198.18.9.1/24"), ("c2", "fd09::2/64")):
        made.ip(name, "link", "set", "br0", "up")
        made.address(name, "br0", address)
    sink = [python(SINK, SECONDS + 5, at=made.path(name)) for name in ("c1", "c2")]
    try:
        for process in sink:
            assert process.stdout is not None
            process.stdout.readline()
        for name, family in (("c1", "4"), ("c2", "6")):
            shouting = python(SHOUT, family, at=made.path(name), cpu=0)
            assert shouting.wait(timeout=20) == 0
            assert shouting.stdout is not None
            shouting.stdout.close()
        observe(sampler, SECONDS)()
    finally:
        for link in ("la", "lb"):  # the storm ends here
            made.ip("c1", "link", "set", link, "down")
        for process in sink:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    seen = [row for row in rows(made, sampler) if "run_ksoftirqd" in row.frames]

    def truth(said: str, row: Seen) -> set[str] | None:
        if said in ("bridge", "tx"):
            return {f"{name}:{link}" for name in ("c1", "c2") for link in ("la", "lb")}
        udp = {"udp_rcv", "__udp4_lib_rcv"} & set(row.frames), {"udpv6_rcv", "__udp6_lib_rcv"} & set(row.frames)
        return {"c1:br0"} if udp[0] else {"c2:br0"} if udp[1] else None

    assert_right(judge(seen, truth))
    assert {"c1:br0", "c2:br0"} <= {row.label for row in seen}


_PEER = """
int nsprof_peer(struct __sk_buff *skb) {
    return bpf_redirect_peer(skb->protocol == 0xdd86 ? V6 : V4, 0);
}
"""


@pytest.fixture(scope="module")
def redirect() -> Iterator[Callable[[dict[str, int]], int]]:
    """Loads a program for a device's ingress that hands packets to the peers of other devices, as Cilium's does."""
    os.environ["BCC_KERNEL_SOURCE"] = str(headers.header_tree())
    bcc = bcc_door.load()
    made: list[Any] = []

    def load(indexes: dict[str, int]) -> int:
        flags = [f"-D{name}={index}" for name, index in indexes.items()]
        made.append(bcc.BPF(text=_PEER.encode(), cflags=[*flags, "-Wno-everything"]))
        return int(made[-1].load_func(b"nsprof_peer", bcc.BPF.SCHED_CLS).fd)

    yield load
    for each in made:
        each.cleanup()


def test_a_packet_that_tc_hands_to_a_container_s_own_device(
    made: Bed, sampler: Sampler, redirect: Callable[[dict[str, int]], int]
) -> None:
    """bpf_redirect_peer: no transmission and no second reception, the packet is suddenly in the container."""
    made.add("h", "r", "c1", "c2")
    made.pair("h", "vr", "r", "eth0")
    made.address("r", "eth0", "198.18.9.1/24", "fd09::1/64")
    with netns.entered(made.path("h")):
        for number, name in enumerate(("c1", "c2"), 2):
            made.pair("h", f"v{name}", name, "eth0")
            made.address(name, "eth0", f"198.18.9.{number}/24", f"fd09::{number}/64")
        with IPRoute() as door:
            find = {key: door.link_lookup(ifname=f"v{name}")[0] for key, name in (("V4", "c1"), ("V6", "c2"))}
            index = door.link_lookup(ifname="vr")[0]
            door.tc("add", "clsact", index)
            words = ("add-filter", "bpf", index, ":1")
            door.tc(*words, fd=redirect(find), name="nsprof_peer", parent="ffff:fff2", direct_action=True)
    for name, address in (("c1", "198.18.9.2"), ("c2", "fd09::3")):
        with netns.entered(made.path(name)), IPRoute() as door:
            link = door.get_links(ifname="eth0")[0].get_attr("IFLA_ADDRESS")
        made.ip("r", "neigh", "add", address, "lladdr", link, "dev", "eth0", "nud", "permanent")
    seen, _ = observed(made, sampler, [Flow("r", "198.18.9.2"), Flow("r", "fd09::3")], ["c1", "c2"])
    assert_right(judge(seen, down(set(), set())))
    assert {row.label for row in seen if row.direction == Direction.RX} >= {"c1:eth0", "c2:eth0"}


@pytest.fixture
def tracefs() -> Iterator[None]:
    """Mounted where tools look for it, as systemd does; taken away again if it was not."""
    place = Path("/sys/kernel/tracing")
    mounted = (place / "events").exists()
    if not mounted:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(place)], check=True, capture_output=True)
    try:
        yield
    finally:
        if not mounted:
            subprocess.run(["umount", str(place)], check=True, capture_output=True)


@pytest.mark.usefixtures("tracefs")
def test_devices_are_told_apart_by_name_on_classic_tracepoints(made: Bed) -> None:
    bridged(made)
    check_rung("tracepoint", made)


@pytest.mark.usefixtures("tracefs")
@pytest.mark.parametrize("name", [rung.name for rung in hop.RUNGS])
def test_each_rung_holds_or_says_why_not(name: str) -> None:
    probes = hop.HopProbes(rungs=hop.rungs_named([name]))
    try:
        try:
            probes.load()
        except ProbeError as error:
            assert name not in ("tp_btf", "raw_tp", "tracepoint"), error.message
            assert error.message.startswith(f"hop probe hop_tx stands on no rung of this kernel: {name}: ")
            assert probes.probe_infos() == ()
            pytest.skip(error.message)
        probes.attach()
        time.sleep(0.05)
        probes.detach()
        infos = probes.probe_infos()
        assert {info.rung for info in infos} == {name}
        assert sum(info.attach_ms for info in infos) < 1000
        if name == "kprobe":
            assert probes.reach_bytes == 0
        else:
            assert probes.reach_bytes != hop.REACH_BYTES and 32 <= probes.reach_bytes < 1024
    finally:
        probes.close()


def test_a_rung_whose_arguments_lie_elsewhere_is_refused_by_what_it_sees() -> None:
    good = next(rung for rung in hop.RUNGS if rung.name == "raw_tp")

    def attach(fd: int, spot: hop.Spot) -> int:
        return good.attach(fd, hop.Spot(spot.program, "kfree_skb"))

    wrong = dataclasses.replace(good, name="wrong", attach=attach)
    probes = hop.HopProbes(rungs=(wrong, good))
    try:
        probes.load()
        rows = {info.name: info for info in probes.probe_infos()}
        assert rows["hop_tx"].rung == "raw_tp"
        assert "wrong: a packet over lo is not seen" in rows["hop_tx"].reason
    finally:
        probes.close()


def test_no_rung_is_one_clear_error_and_leaves_nothing_loaded() -> None:
    def refuse(*_: object) -> int:
        raise ProbeError("not today")

    probes = hop.HopProbes(rungs=(hop.Rung("tp_btf", lambda: {"DIRECT_LOADS": 1}, refuse, refuse),))
    with pytest.raises(ProbeError, match="tp_btf: not today"):
        probes.load()
    assert probes.probe_infos() == ()


def test_the_context_s_layout_is_the_program_s() -> None:
    from tests.root.test_sampler import map_sizes

    probes = hop.HopProbes()
    try:
        probes.load()
        assert probes._map is not None
        assert map_sizes(probes._map.fd)[1] == hop.HOP_CPU.itemsize
    finally:
        probes.close()


def test_a_namespace_that_goes_away_while_attached_does_no_harm(made: Bed, sampler: Sampler) -> None:
    bridged(made)

    def vanish() -> None:
        time.sleep(SECONDS / 2)
        subprocess.run(["ip", "netns", "del", made.full("c2")], check=True, capture_output=True)

    thread = threading.Thread(target=vanish)
    thread.start()
    try:
        seen, _ = observed(made, sampler, [Flow("c1", "198.18.9.1"), Flow("r", "fd09::3")], ["r"])
    finally:
        thread.join()
    assert any(row.label.startswith("h:") for row in seen)
    assert not Path("/run/netns", made.full("c2")).exists()

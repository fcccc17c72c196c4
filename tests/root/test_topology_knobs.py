"""Offloads, rate, MTU, steering and pinning are really set: read back by other means, and seen in the traffic."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nsprof import netns
from nsprof.errors import TopologyError
from nsprof.model.scenario import Place, TopologySpec
from nsprof.topology import Topology, build, ethtool
from tests.support import REPO

pytestmark = pytest.mark.root


def packets_sent(place: Place, device: str) -> int:
    with netns.entered(place.netns_path):
        text = Path("/proc/thread-self/net/dev").read_text()
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{device}:"))
    return int(line.split(":")[1].split()[9])


def stream(topo: Topology, size: int, limit_s: float = 20.0) -> tuple[float, int, int]:
    """Send `size` bytes by TCP from client to server: (seconds, skbs, segments) at the wire's near end.

    Segments are what TCP says it sent: Tcp.OutSegs of the client's namespace.
    """
    six = ":" in topo.server_address
    family = socket.AF_INET6 if six else socket.AF_INET
    with netns.entered(topo.server.netns_path):
        listener = socket.create_server((topo.server_address, 0), family=family)
    got = threading.Event()

    def sink() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(limit_s)
            left = size
            while left > 0 and (piece := peer.recv(1 << 20)):
                left -= len(piece)
        if left == 0:
            got.set()

    reader = threading.Thread(target=sink)
    reader.start()
    with listener, netns.entered(topo.client.netns_path), socket.socket(family) as sender:
        sender.settimeout(limit_s)
        sender.connect(listener.getsockname()[:2])
        skbs, segments = packets_sent(*topo.reference), out_segments()
        began = time.monotonic()
        sender.sendall(b"x" * size)
        reader.join(limit_s)
        took = time.monotonic() - began
        result = took, packets_sent(*topo.reference) - skbs, out_segments() - segments
    assert got.is_set()
    return result


def out_segments() -> int:
    rows = [line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines() if "Tcp:" in line]
    return int(dict(zip(rows[0], rows[1], strict=True))["OutSegs"])


def ethtool_says(place: Place, device: str) -> dict[str, bool]:
    """Read by the ethtool program, which asks over netlink: independent of nsprof's ioctl."""
    if not shutil.which("ethtool"):
        pytest.skip("the ethtool program is not installed")
    with netns.spawn(["ethtool", "-k", device], netns=place.netns_path, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=10)
    lines = [line.split(":") for line in out.decode().splitlines() if ":" in line]
    return {name.strip(): value.strip().startswith("on") for name, value in lines}


_LONG = {
    "tx": "tx-checksumming",
    "rx": "rx-checksumming",
    "sg": "scatter-gather",
    "tso": "tcp-segmentation-offload",
    "gso": "generic-segmentation-offload",
    "gro": "generic-receive-offload",
}


@pytest.mark.parametrize(
    "wanted",
    [
        {"tso": False, "gso": False, "gro": False, "tx": False},
        {"gro": True, "tso": True, "tx": True, "rx": True, "sg": True, "gso": True},
        {"tso": False},
        {"sg": False, "tso": False},
        {"rx": False, "gso": False},
    ],
    ids=lambda w: ",".join(f"{k}={'on' if v else 'off'}" for k, v in w.items()),
)
def test_offloads_are_set_on_every_device_of_the_chain(wanted: dict[str, bool]) -> None:
    with build(TopologySpec("veth-bridge", offloads=wanted)) as topo:
        for place, device in ((topo.host, "w0"), (topo.server, "eth0"), (topo.client, "eth0"), (topo.host, "v0")):
            said = ethtool_says(place, device)
            assert {name: said[_LONG[name]] for name in wanted} == wanted, (place.name, device)
            with netns.entered(place.netns_path):
                mine = ethtool.read_all(device)
            assert mine == {name: said[long] for name, long in _LONG.items()}
        assert topo.describe()["offloads"]["w0 in host"].items() >= wanted.items()


def test_an_offload_that_cannot_be_is_refused_and_not_passed_over() -> None:
    # TCP segmentation needs scatter-gather and checksums.
    with (
        pytest.raises(TopologyError, match="offload tso cannot be turned on"),
        build(TopologySpec("host", offloads={"tso": True, "sg": False})),
    ):
        pass


def test_without_segmentation_offload_every_segment_is_an_skb_of_its_own() -> None:
    size = 8 << 20
    with build(TopologySpec("veth-bridge")) as topo:
        _, skbs_on, segments_on = stream(topo, size)
    with build(TopologySpec("veth-bridge", offloads={"tso": False, "gso": False})) as topo:
        _, skbs_off, segments_off = stream(topo, size)
    assert segments_on > 10 * skbs_on
    assert abs(skbs_off - segments_off) <= 0.02 * segments_off
    assert skbs_off >= size / 1460


@pytest.mark.parametrize("shape", ["host", "veth-route"])
def test_the_wire_rate_limits_and_passes_gso_skbs_whole(shape: str) -> None:
    rate, size = 200_000_000, 8 << 20
    with build(TopologySpec(shape, wire_rate_bps=rate)) as topo:
        took, skbs, segments = stream(topo, size)
        about = topo.describe()["shaper"]
    # What may go out at once is the bucket; headers are 1514/1448 of the payload.
    reached = (size - about["burst_bytes"]) * 8 / took
    assert reached < rate * 1.02
    assert reached > rate * 0.3, "the shaper, not the machine, was to be the limit"
    assert segments > 4 * skbs


@pytest.mark.parametrize("shape", ["veth-route", "veth-bridge", "macvlan", "vxlan"])
def test_the_mtu_holds_along_the_whole_chain(shape: str) -> None:
    with build(TopologySpec(shape, mtu=1400)) as topo:
        overhead = 50 if shape == "vxlan" else 0
        found = {(topo.namespaces[d.namespace - 1].name, d.name): d.mtu for d in topo.devices()}
        assert found["host", "w0"] == found["remote", "eth0"] == 1400
        assert found["c0", "eth0"] == 1400 - overhead
        for (_, name), mtu in found.items():
            if name.startswith(("v", "br")):
                assert mtu == 1400 - overhead


def steering(place: Place, device: str) -> list[str]:
    """rps_cpus of a device, through a sysfs mounted in its namespace by a thread of its own."""
    found: list[str] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def look() -> None:
        fd = os.open(place.netns_path, os.O_RDONLY)
        assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
        assert libc.mount(b"", b"/", None, 16384 | (1 << 18), None) == 0
        assert libc.setns(fd, netns.CLONE_NEWNET) == 0
        os.close(fd)
        assert libc.mount(b"x", b"/sys", b"sysfs", 0, None) == 0
        found.extend(p.read_text().strip() for p in Path(f"/sys/class/net/{device}/queues").glob("rx-*/rps_cpus"))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can be pinned apart")
@pytest.mark.parametrize("shape", ["host", "device", "veth-bridge"])
def test_each_sides_receive_softirq_is_steered_to_its_own_cpus(shape: str) -> None:
    with build(TopologySpec(shape)) as topo:
        assert topo.dut_cpus and topo.remote_cpus
        assert not set(topo.dut_cpus) & set(topo.remote_cpus)
        assert topo.client.cpus == topo.dut_cpus and topo.server.cpus == topo.remote_cpus
        for (place, device), cpus in ((topo.reference, topo.dut_cpus), ((topo.server, "eth0"), topo.remote_cpus)):
            masks = steering(place, device)
            assert masks
            assert {int(m.replace(",", ""), 16) for m in masks} == {sum(1 << c for c in cpus)}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU: nothing can be pinned apart")
def test_packets_sent_on_one_side_are_received_by_softirq_on_the_other_sides_cpu() -> None:
    """In softnet_stat: packets processed by a CPU, and times that another CPU had to wake it for steered ones (a CPU
    that is at work already is not woken, so that this second number may be a little smaller)."""

    def softnet() -> tuple[int, int]:
        rows = [line.split() for line in Path("/proc/net/softnet_stat").read_text().splitlines()]
        by_cpu = {int(row[12], 16) if len(row) > 12 else i: row for i, row in enumerate(rows)}
        remote = [by_cpu[cpu] for cpu in topo.remote_cpus]
        return sum(int(row[0], 16) for row in remote), sum(int(row[9], 16) for row in remote)

    count = 499
    with build(TopologySpec("host")) as topo:
        with netns.entered(topo.server.netns_path), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind((topo.server_address, 0))
            server.settimeout(5)
            with netns.entered(topo.client.netns_path):
                client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with client:
                before = os.sched_getaffinity(0)
                os.sched_setaffinity(0, topo.dut_cpus)
                try:
                    start = softnet()
                    for _ in range(count):
                        client.sendto(b"x", server.getsockname())
                        server.recv(10)
                    end = softnet()
                finally:
                    os.sched_setaffinity(0, before)
        assert end[0] - start[0] >= count
        assert end[1] - start[1] > 0.5 * count


def test_without_pinning_nothing_is_steered() -> None:
    with build(TopologySpec("host", pin=False)) as topo:
        assert topo.dut_cpus == topo.remote_cpus == topo.client.cpus == ()
        assert {int(m.replace(",", ""), 16) for m in steering(topo.host, "w0")} == {0}


def test_containers_come_up_at_least_three_times_faster_than_by_ip_commands() -> None:
    """scripts/bench_topology.py in small; in turns, the best of three rounds, as the machine may be busy."""
    if not shutil.which("ip"):
        pytest.skip("the ip program is not installed")
    spec = importlib.util.spec_from_file_location("bench_topology", REPO / "scripts" / "bench_topology.py")
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.by_nsprof(1)
    rounds = [(bench.by_ip(30), bench.by_nsprof(30)) for _ in range(3)]
    assert max(theirs[0] / mine[0] for theirs, mine in rounds) > 3
    assert max(theirs[1] / mine[1] for theirs, mine in rounds) > 3


def test_all_of_a_thousand_containers_can_be_busy() -> None:
    """The kernel keeps 1,024 neighbours that it had to ask for, in all namespaces together: beyond, packets drop."""
    with build(TopologySpec("veth-bridge", containers=1000)) as topo:
        assert topo.describe()["neighbours"] == "permanent"
        with netns.entered(topo.server.netns_path):
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with server:
            server.bind((topo.server_address, 0))
            server.settimeout(5)
            for client in topo.clients:
                with netns.entered(client.netns_path), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    sender.settimeout(5)
                    sender.sendto(client.name.encode(), server.getsockname())
                    data, peer = server.recvfrom(100)
                    assert (data, peer[0]) == (client.name.encode(), client.address)
                    server.sendto(b"back", peer)
                    assert sender.recv(10) == b"back"

"""Counters against known traffic, namespaces that vanish or are replaced, and the cost for a thousand of them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsprof.collect.system import counters, host, names
from nsprof.netns import entered
from tests.support import need

pytestmark = pytest.mark.root
COUNT = 23


def ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


@pytest.fixture
def space() -> Iterator[str]:
    need("root")
    name = f"nsct-{os.getpid()}"
    ip(f"netns add {name}")
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    try:
        yield name
    finally:
        if Path(f"/run/netns/{name}").exists():
            ip(f"netns del {name}")


def send(path: str, count: int) -> None:
    with (
        entered(path),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        for _ in range(count):
            sender.sendto(b"x" * 100, receiver.getsockname())
            receiver.recv(200)


def test_known_datagrams_are_counted_exactly_and_nothing_else(space: str) -> None:
    path = f"/run/netns/{space}"
    before = counters.take([path])
    send(path, COUNT)
    rows = counters.delta(before, counters.take([path], closing=True), 0, {path: 1})
    moved = {(c.scope, c.device, c.name): c.delta for c in rows if c.namespace == 1}
    assert moved["netns", "", "Udp.InDatagrams"] == COUNT
    assert moved["netns", "", "Udp.OutDatagrams"] == COUNT
    assert moved["netns", "", "IpExt.InOctets"] == COUNT * 128
    assert moved["device", "lo", "rx_packets"] == COUNT
    assert moved["device", "lo", "tx_bytes"] == COUNT * 128  # lo counts without a link header
    assert moved["device", "lo", "rx_dropped"] == 0
    assert counters.reference_denominators(rows, namespace=1, device="lo", ends=[1]) == {
        "skb": COUNT,  # loopback receives what it sends: counted once
        "segment": COUNT,
    }


def switch(space: str, device: str, on: int) -> None:
    """TSO, GSO and GRO of a device, by the ethtool ioctls."""
    with entered(f"/run/netns/{space}"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for command in (0x1F, 0x24, 0x2C):  # ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO
            value = ctypes.create_string_buffer(struct.pack("II", command, on))
            fcntl.ioctl(channel, 0x8946, struct.pack("16sQ16x", device.encode(), ctypes.addressof(value)))


def transfer(near: str, far: str, address: str, amount: int) -> None:
    with entered(far):
        server = socket.create_server((address, 0))
    with server:
        receiver = threading.Thread(target=lambda: swallow(server))
        receiver.start()
        with entered(near), socket.create_connection(server.getsockname(), 5) as client:
            client.sendall(bytes(amount))
        receiver.join()


def swallow(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while connection.recv(1 << 20):
            pass


def test_segments_are_the_same_with_and_without_segmentation_offload_and_skbs_are_not(space: str) -> None:
    other = f"{space}-far"
    ip(f"netns add {other}", f"link add w0 netns {space} type veth peer name w0 netns {other}")
    paths = {f"/run/netns/{name}": index for index, name in enumerate((space, other), start=1)}
    near, far = paths
    try:
        for name, address in ((space, "198.18.0.1"), (other, "198.18.0.2")):
            for words in (f"addr add {address}/24 dev w0", "link set w0 up", "link set lo up"):
                subprocess.run(["ip", "-n", name, *words.split()], check=True)
        found, again = [], []
        for on in (1, 0):
            switch(space, "w0", on)
            switch(other, "w0", on)
            before = counters.take(paths)
            transfer(near, far, "198.18.0.2", 30_000_000)
            rows = counters.delta(before, counters.take(paths, closing=True), 0, paths)
            moved = {c.name: c.delta for c in rows if c.namespace == 1 and c.scope == "netns"}
            divided = counters.reference_denominators(rows, namespace=1, device="w0", ends=(1, 2))
            again.append(moved["Tcp.RetransSegs"])
            found.append((divided["segment"], divided["skb"], rows))
        with_offload, without = found
        # What was sent again is no difference between the settings.
        assert with_offload[0] == pytest.approx(without[0], abs=0.001 * without[0] + sum(again))
        # MSS at MTU 1500 with timestamps
        assert with_offload[0] == pytest.approx(30_000_000 / 1448, abs=0.002 * 30_000_000 / 1448 + again[0])
        sent = [
            next(c.delta for c in f[2] if (c.namespace, c.device, c.name) == (1, "w0", "tx_packets")) for f in found
        ]
        assert sent[1] > 15 * sent[0]
    finally:
        ip(f"netns del {other}")


def test_qdisc_drops_are_counted(space: str) -> None:
    path = f"/run/netns/{space}"
    shaper = "qdisc add dev lo root tbf rate 8kbit burst 200 limit 200"
    subprocess.run(["tc", "-n", space, *shaper.split()], check=True)
    with (
        entered(path),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,  # so that no ICMP error adds packets
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        before = counters.take([path])
        for _ in range(COUNT):
            sender.sendto(b"x" * 100, receiver.getsockname())
        after = counters.take([path], closing=True)
    moved = {c.name: c.delta for c in counters.delta(before, after, 0, {path: 1}) if c.device == "lo"}
    assert moved["qdisc.drops"] > 0
    assert moved["qdisc.drops"] + moved.get("qdisc.qlen", 0) + moved["tx_packets"] == COUNT


def test_namespace_that_vanishes_or_is_replaced_is_told_and_has_no_rows(space: str) -> None:
    path = f"/run/netns/{space}"
    before = counters.take([path, "/proc/self/ns/net"])
    ip(f"netns del {space}")
    gone = counters.take([path, "/proc/self/ns/net"], closing=True)
    assert "vanished" in counters.lost_namespaces(before, gone)[path]
    assert "/proc/self/ns/net" in gone.namespaces
    ip(f"netns add {space}")
    again = counters.take([path], closing=True)
    if before.namespaces[path].cookie:  # the inode is often the same one
        assert "another namespace" in counters.lost_namespaces(before, again)[path]
        assert not [c for c in counters.delta(before, again, 0, {path: 1}) if c.namespace]


def test_path_that_is_no_namespace_is_a_reason_not_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    snap = counters.take([str(file), "/proc/self/ns/net"])
    assert "not a network namespace" in snap.missing[str(file)]
    assert list(snap.namespaces) == ["/proc/self/ns/net"]


def test_hundred_namespaces_cost_well_under_a_millisecond_each_of_cpu(space: str) -> None:
    made = [f"{space}-{i}" for i in range(100)]
    ip(*(f"netns add {name}" for name in made))
    try:
        paths = [f"/run/netns/{name}" for name in made]
        counters.take(paths)
        used = time.process_time()
        snap = counters.take(paths)
        used = time.process_time() - used
        assert len(snap.namespaces) == 100
        assert used < 0.2  # seconds of CPU; 0.04 on an idle machine
    finally:
        ip(*(f"netns del {name}" for name in made))


def test_snapshot_sees_devices_settings_of_another_namespace(space: str) -> None:
    ip(f"link add v0 mtu 1400 netns {space} type veth peer name v1 netns {space}")
    subprocess.run(["ip", "netns", "exec", space, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
    subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "1gbit", "burst", "128k",
                    "latency", "10ms"], check=True)  # fmt: skip
    script = "echo 2 > /sys/class/net/v0/queues/rx-0/rps_cpus"
    subprocess.run(["ip", "netns", "exec", space, "sh", "-c", script], check=True)
    shot = host.snapshot({"there": f"/run/netns/{space}", "here": None}, tools=False)["namespaces"]
    device = shot["there"]["devices"]["v0"]
    assert (device["kind"], device["driver"], device["mtu"]) == ("veth", "veth", 1400)
    assert device["qdiscs"] == ["tbf"]
    assert device["offloads"]["tx-tcp-segmentation"] is True
    assert device["rps"] == {"rx-0": "2"}
    assert shot["there"]["sysctl"]["net.ipv4.ip_forward"] == "1"
    assert "v0" not in shot["here"]["devices"]


def test_snapshot_mounts_nothing(space: str) -> None:
    def sysfs() -> list[str]:  # others may make namespaces, which are mounts too, at the same time
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - sysfs " in line]

    before = sysfs()
    host.snapshot({"x": f"/run/netns/{space}"}, tools=False)
    assert sysfs() == before


def test_namespace_of_a_process_without_name_is_called_after_it(space: str) -> None:
    path = f"/run/netns/{space}"
    child = subprocess.Popen(["unshare", "--net", "sleep", "30"])
    try:
        inode = 0
        own = Path("/proc/self/ns/net").stat().st_ino
        deadline = time.monotonic() + 5
        while inode in (0, own) and time.monotonic() < deadline:
            inode = Path(f"/proc/{child.pid}/ns/net").stat().st_ino
        found = names.names_of([inode, Path(path).stat().st_ino])
        assert found[Path(path).stat().st_ino] == space
        assert inode in found
    finally:
        child.kill()
        child.wait()

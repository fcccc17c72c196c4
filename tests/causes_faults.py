"""Faults for the proof of `explain`: each is one thing done to a topology of nsprof's own."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nsprof.model.scenario import Place, TopologySpec
from nsprof.netns import entered, spawn
from nsprof.topology.construction import Topology
from nsprof.topology.namespaces import set_receive_cpus
from tests.causes_bed import Apply, Fault

UDP_RR = ("netperf", "-t", "UDP_RR", "-l", "1")
TCP_RR = ("netperf", "-t", "TCP_RR", "-l", "1")
TCP_STREAM = ("netperf", "-t", "TCP_STREAM", "-l", "1")


def udp_stream(size: int, *more: str) -> tuple[str, ...]:
    """Datagrams of one size as fast as they go."""
    return ("netperf", "-t", "UDP_STREAM", "-l", "1", "--", "-m", str(size), *more)


def tcp_stream(*words: str) -> tuple[str, ...]:
    """A TCP stream with test-specific options."""
    return (*TCP_STREAM, "--", *words)


def run_in(path: str, argv: tuple[str, ...] | list[str], text: str = "") -> None:
    """Run a command in a namespace with `text` on its stdin; raises RuntimeError with its words if it fails."""
    with spawn(argv, netns=path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, err = process.communicate(text.encode(), timeout=60)
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {err.decode().strip().splitlines()[:1]}")


def _path(topo: Topology, where: str) -> str:
    return {"client": topo.client, "host": topo.host, "server": topo.server}[where].netns_path


#: Stops the servers of its namespace for 3 ms again and again: a reader that comes when its CPU lets it.
_PAUSER = """
import os, signal, sys, time
own = os.stat('/proc/self/ns/net').st_ino
def servers():
    for p in filter(str.isdecimal, os.listdir('/proc')):
        try:
            if open(f'/proc/{p}/comm').read().strip() == 'netserver' and os.stat(f'/proc/{p}/ns/net').st_ino == own:
                yield int(p)
        except (FileNotFoundError, ProcessLookupError):
            continue
def each(pids, sign):
    for pid in pids:
        try: os.kill(pid, sign)
        except ProcessLookupError: continue
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pids = []
try:
    while True:
        pids = list(servers())
        for _ in range(40):
            each(pids, signal.SIGSTOP); time.sleep(.003); each(pids, signal.SIGCONT); time.sleep(.007)
finally:
    each(pids, signal.SIGCONT)
"""


def pausing_server(topo: Topology) -> Sequence[tuple[Place, tuple[str, ...]]]:
    """Beside the traffic, on the server's CPU: a buffer of 90 datagrams bridges a pause, one of two does not."""
    place = topo.server
    return ((Place(place.netns_path, place.name, place.address, (1,)), (sys.executable, "-c", _PAUSER)),)


def nft(where: str, chain: str, lines: list[str], family: str = "inet") -> Apply:
    """One chain with these rules."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        body = "\n".join(lines)
        run_in(
            _path(topo, where),
            ["nft", "-f", "-"],
            f"table {family} fault {{\n chain c {{\n  {chain};\n{body}\n }}\n}}\n",
        )

    return apply


def linear(number: int, family: int = 4) -> list[str]:
    """Rules that match nothing."""
    if family == 6:
        return [f"ip6 daddr 2001:db8:{i >> 8:x}:{i & 255:x}::1 drop" for i in range(number)]
    return [f"ip daddr 10.{i >> 8}.{i & 255}.1 drop" for i in range(number)]


def argvs(where: str, *commands: str) -> Apply:
    """Commands, run one after the other; {dev} is the client's device."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        dev = "eth0" if topo.client.role == "container" else topo.reference[1]
        for command in commands:
            run_in(_path(topo, where), command.format(dev=dev, wire=topo.reference[1]).split())

    return apply


def both(*faults: Apply) -> Apply:
    """Several at once."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        for fault in faults:
            fault(topo, stack)

    return apply


def sysctl(where: str, name: str, value: str) -> Apply:
    """A setting of the namespace."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        with entered(_path(topo, where)):
            Path("/proc/sys/net", name).write_text(value)

    return apply


def packet_socket(where: str) -> Apply:
    """A packet socket on all protocols that nobody reads."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        with entered(_path(topo, where)):
            stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))

    return apply


def u32_filters(where: str, number: int) -> Apply:
    """tc filters that match nothing, on what the client sends."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        dev = "eth0" if topo.client.role == "container" else topo.reference[1]
        kind = "ip"
        lines = [f"qdisc add dev {dev} clsact"] + [
            f"filter add dev {dev} egress prio {i + 1} protocol {kind} u32 match ip dst 10.{i >> 8}.{i & 255}.1/32"
            for i in range(number)
        ]
        run_in(_path(topo, where), ["tc", "-batch", "-"], "\n".join(lines) + "\n")

    return apply


def policy_rules(where: str, number: int) -> Apply:
    """Policy routing rules that match nothing."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        lines = [f"rule add from 10.{i >> 8}.{i & 255}.1 table 7 prio {100 + i}" for i in range(number)]
        run_in(_path(topo, where), ["ip", "-batch", "-"], "\n".join(lines) + "\n")

    return apply


def receive_cpus(where: str, *cpus: int) -> Apply:
    """RPS of a device sends its packets to these CPUs: of the container's eth0, or of the server's."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        set_receive_cpus([(_path(topo, where), "eth0", cpus)])

    return apply


def xdp(where: str, *, generic: bool) -> Apply:
    """An XDP program that passes every packet, on the wire's near end."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        from pyroute2 import IPRoute

        program = _pass_program()
        stack.callback(os.close, program)
        with entered(_path(topo, where)), IPRoute() as ipr:
            index = ipr.link_lookup(ifname=topo.reference[1])[0]
            flags = 2 if generic else 4  # XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE
            ipr.link("set", index=index, IFLA_XDP={"attrs": [("IFLA_XDP_FD", program), ("IFLA_XDP_FLAGS", flags)]})

    return apply


def _pass_program() -> int:
    """A loaded XDP program of two instructions: r0 = XDP_PASS; exit."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    head = struct.pack("<IIQQ", 6, 2, ctypes.addressof(instructions), ctypes.addressof(licence))
    attribute = ctypes.create_string_buffer(head.ljust(128, b"\0"), 128)
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    fd: int = ctypes.CDLL(None, use_errno=True).syscall(number, 5, attribute, 128)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "BPF_PROG_LOAD")
    return fd


_V4, _V6 = TopologySpec("host"), TopologySpec("host", family=6)
_ROUTE, _BRIDGE = TopologySpec("veth-route"), TopologySpec("veth-bridge")
_OUT, _FORWARD = "type filter hook output priority 0", "type filter hook forward priority 0"

FAULTS: tuple[Fault, ...] = (
    Fault("nft-2000-output", ("netfilter-rules",), _V4, UDP_RR, nft("client", _OUT, linear(2000))),
    Fault("nft-300-output", ("netfilter-rules",), _V4, UDP_RR, nft("client", _OUT, linear(300))),
    Fault("nft-1000-output-v6", ("netfilter-rules",), _V6, UDP_RR, nft("client", _OUT, linear(1000, 6))),
    Fault("nft-1000-forward", ("netfilter-rules",), _ROUTE, TCP_RR, nft("host", _FORWARD, linear(1000))),
    Fault(
        "conntrack",
        ("conntrack",),
        _ROUTE,
        UDP_RR,
        nft("host", _FORWARD, ["ct state established accept"]),
    ),
    Fault(
        "masquerade",
        ("conntrack", "nat"),
        _ROUTE,
        UDP_RR,
        nft("host", "type nat hook postrouting priority 100", ['oifname "w0" masquerade']),
    ),
    Fault(
        "checksum-off",
        ("software-checksum",),
        TopologySpec("host", offloads={"tx": False}),
        udp_stream(1400),
        clean_spec=_V4,
        per="skb",  # how many of the datagrams are read differs more between runs than a checksum costs
    ),
    Fault(
        "tso-gso-off",
        ("software-segmentation",),
        TopologySpec("host", offloads={"tso": False, "gso": False}),
        TCP_STREAM,
        clean_spec=_V4,
    ),
    Fault(
        "tso-gso-off-v6",
        ("software-segmentation",),
        TopologySpec("host", family=6, offloads={"tso": False, "gso": False}),
        TCP_STREAM,
        clean_spec=_V6,
    ),
    Fault(
        "fragments-3",
        ("ip-fragmentation",),
        TopologySpec("host", mtu=1500),
        udp_stream(4000),
        clean_spec=TopologySpec("host", mtu=9000),
    ),
    Fault(
        "fragments-3-v6",
        ("ip-fragmentation",),
        TopologySpec("host", mtu=1500, family=6),
        udp_stream(4000),
        clean_spec=TopologySpec("host", mtu=9000, family=6),
    ),
    Fault(
        "fragments-6-container",
        ("ip-fragmentation",),
        TopologySpec("veth-bridge", mtu=1400),
        udp_stream(8000),
        clean_spec=TopologySpec("veth-bridge", mtu=9000),
    ),
    Fault("packet-socket", ("packet-socket",), _V4, UDP_RR, packet_socket("client")),
    Fault("packet-socket-stream", ("packet-socket",), _V4, udp_stream(512), packet_socket("client")),
    Fault("tc-u32-500", ("tc-filters",), _V4, UDP_RR, u32_filters("client", 500)),
    Fault("policy-rules-1000", ("policy-rules",), _ROUTE, UDP_RR, policy_rules("host", 1000)),
    Fault(
        "bridge-netfilter",
        ("bridge-netfilter",),
        _BRIDGE,
        UDP_RR,
        sysctl("host", "bridge/bridge-nf-call-iptables", "1"),
        prepare=sysctl("host", "bridge/bridge-nf-call-iptables", "0"),
    ),
    Fault(
        "ebtables-500",
        ("ebtables",),
        _BRIDGE,
        UDP_RR,
        nft("host", _FORWARD, linear(500), family="bridge"),
        prepare=sysctl("host", "bridge/bridge-nf-call-iptables", "0"),
    ),
    Fault(
        "xdp-generic", ("xdp-generic",), _V4, ("netperf", "-t", "TCP_MAERTS", "-l", "1"), xdp("host", generic=True)
    ),
    Fault("xdp-veth", ("xdp-veth",), _V4, ("netperf", "-t", "TCP_MAERTS", "-l", "1"), xdp("host", generic=False)),
    Fault("shaped-200mbit", ("shaped",), TopologySpec("host", wire_rate_bps=200_000_000), TCP_STREAM, clean_spec=_V4),
    Fault(
        "small-writes", ("small-writes",), _V4, tcp_stream("-m", "64", "-D"), clean_command=tcp_stream("-m", "16384")
    ),
    Fault(
        "tiny-receive-buffer",
        ("socket-buffer",),
        _V4,
        udp_stream(1400, "-S", "2048"),  # the receiver's only: a sender with as small a buffer would overrun nobody
        clean_command=udp_stream(1400),
        prepare=argvs("client", "tc qdisc add dev {dev} root tbf rate 50mbit burst 16k limit 1m"),
        always=pausing_server,
        side="all",
    ),
    Fault(
        "tiny-window", ("window-limited",), _V4, tcp_stream("-s", "2048", "-S", "2048"), clean_command=tcp_stream()
    ),
    Fault(
        "drop-5-percent",
        ("retransmits",),
        _V4,
        TCP_STREAM,
        nft("server", "type filter hook input priority 0", ["numgen random mod 20 0 drop"]),
    ),
    Fault("vxlan", ("tunnel",), TopologySpec("vxlan"), UDP_RR, clean_spec=_BRIDGE),
    Fault(
        "hop-bridge",
        ("extra-hop-bridge", "extra-hop-veth"),
        _BRIDGE,
        UDP_RR,
        clean_spec=_V4,
        prepare=sysctl("host", "bridge/bridge-nf-call-iptables", "0"),  # on by default where the kernel has it
    ),
    Fault("hop-route", ("extra-hop-routing", "extra-hop-veth"), _ROUTE, UDP_RR, clean_spec=_V4),
    Fault("hop-macvlan", ("extra-hop-device",), TopologySpec("macvlan"), UDP_RR, clean_spec=_V4),
    Fault(
        "flooding-30",
        ("flooding",),
        TopologySpec("veth-bridge", containers=30),
        udp_stream(512),
        argvs(
            "host",
            "ip link set {wire} type bridge_slave learning off",
            "ip link set {wire} type bridge_slave fdb_flush",
        ),
    ),
    Fault("qdisc-pfifo", ("qdisc",), _V4, UDP_RR, argvs("client", "tc qdisc add dev {dev} root pfifo")),
    # What the host forwards on CPU 0 goes to CPU 1 and wakes its reader on CPU 0 again.
    Fault("receive-on-other-cpu", ("cross-cpu",), _ROUTE, UDP_RR, receive_cpus("client", 1), side="all"),
    Fault("tc-u32-100", ("tc-filters",), _V4, UDP_RR, u32_filters("client", 100)),
    Fault("policy-rules-300", ("policy-rules",), _ROUTE, UDP_RR, policy_rules("host", 300)),
    Fault(
        "ebtables-150",
        ("ebtables",),
        _BRIDGE,
        UDP_RR,
        nft("host", _FORWARD, linear(150), family="bridge"),
        prepare=sysctl("host", "bridge/bridge-nf-call-iptables", "0"),
    ),
    Fault(
        "gro-for-requests",
        ("gro-useless",),
        # A veth joins only what comes from a device without TSO (veth_skb_is_eligible_for_gro).
        TopologySpec("host", offloads={"gro": True, "tso": False}),
        TCP_RR,
        clean_spec=TopologySpec("host", offloads={"gro": False, "tso": False}),
        side="all",
    ),
    Fault(
        "qdisc-htb",
        ("qdisc", "shaped"),
        _V4,
        UDP_RR,
        argvs(
            "client",
            "tc qdisc add dev {dev} root handle 1: htb default 1",
            "tc class add dev {dev} parent 1: classid 1:1 htb rate 10gbit",
        ),
    ),
    Fault(
        "mtu-1500-of-9000",
        ("mtu-small",),
        TopologySpec("host", mtu=1500, offloads={"tso": False, "gso": False}),
        TCP_STREAM,
        clean_spec=TopologySpec("host", mtu=9000, offloads={"tso": False, "gso": False}),
    ),
    Fault(
        "hop-nat",
        ("conntrack", "nat", "extra-hop-routing", "extra-hop-bridge", "extra-hop-veth"),
        TopologySpec("veth-nat"),
        UDP_RR,
        clean_spec=_V4,
        prepare=sysctl("host", "bridge/bridge-nf-call-iptables", "0"),
    ),
)

PAIRS: tuple[Fault, ...] = (
    Fault(
        "nft-1000 + packet-socket",
        ("netfilter-rules", "packet-socket"),
        _V4,
        UDP_RR,
        both(nft("client", _OUT, linear(1000)), packet_socket("client")),
        both=("netfilter-rules", "packet-socket"),
    ),
    Fault(
        "nft-1000 + tc-u32-300",
        ("netfilter-rules", "tc-filters"),
        _V4,
        UDP_RR,
        both(nft("client", _OUT, linear(1000)), u32_filters("client", 300)),
        both=("netfilter-rules", "tc-filters"),
    ),
    Fault(
        "fragments + nft-300",
        ("ip-fragmentation", "netfilter-rules"),
        TopologySpec("host", mtu=1500),
        udp_stream(4000),
        nft("client", _OUT, linear(300)),
        clean_spec=TopologySpec("host", mtu=9000),
        both=("ip-fragmentation", "netfilter-rules"),
    ),
)

#: A/A pairs: the clean sides of some faults against themselves; there must be no finding.
TWINS: tuple[Fault, ...] = tuple(
    fault.twin
    for fault in FAULTS
    if fault.name
    in {
        "nft-2000-output", "nft-1000-output-v6", "nft-1000-forward", "tso-gso-off", "fragments-3", "packet-socket",
        "bridge-netfilter", "xdp-generic", "tiny-receive-buffer", "hop-bridge", "small-writes", "policy-rules-1000",
    }
)  # fmt: skip

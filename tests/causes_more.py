"""More faults: loss, somebody else's load, locks, overloaded receivers, settings of the whole machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nsprof.model.scenario import Place, TopologySpec
from nsprof.topology.construction import Topology
from tests.causes_bed import Apply, Beside, During, Fault
from tests.causes_faults import (
    TCP_RR,
    TCP_STREAM,
    UDP_RR,
    argvs,
    both,
    linear,
    nft,
    receive_cpus,
    run_in,
    sysctl,
    udp_stream,
)  # fmt: skip

__all__ = ["GUEST", "MORE"]

_V4, _ROUTE = TopologySpec("host"), TopologySpec("veth-route")
_IN, _OUT = "type filter hook input priority 0", "type filter hook output priority 0"
#: Namespaces come and go, one after the other, under a /run/netns of its own that ends with it. No Python around it:
#: what an interpreter costs is no namespace's.
_CHURN = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    "mkdir -p /run/netns && mount -t tmpfs none /run/netns && while :; do ip netns add c; ip netns del c; done",
)  # fmt: skip
_HOG = (sys.executable, "-c", "while True: pass")


def together(*each: Beside) -> Beside:
    """Several commands beside the traffic."""

    def commands(topo: Topology) -> Sequence[tuple[Place, tuple[str, ...]]]:
        return [command for one in each for command in one(topo)]

    return commands


def beside(where: str, *argv: str, cpus: tuple[int, ...] = ()) -> Beside:
    """A command that runs beside the traffic: in the namespace of client, host or server, or nsprof's own ("")."""

    def commands(topo: Topology) -> Sequence[tuple[Place, tuple[str, ...]]]:
        known = {"client": topo.client, "host": topo.host, "server": topo.server}
        place = known[where] if where else Place("", "", "")
        words = tuple(word.replace("{server}", topo.server_address) for word in argv)
        return ((Place(place.netns_path, place.name, place.address, cpus), words),)

    return commands


def machine(name: str, value: str) -> During:
    """A setting of the whole machine, for guests."""

    @contextmanager
    def setting() -> Iterator[None]:
        path = Path("/proc/sys/net", name)
        before = path.read_text()
        path.write_text(value)
        try:
            yield
        finally:
            path.write_text(before)

    return setting


def host_mtu(size: int) -> Apply:
    """A smaller MTU on the wire's near end only: too small for what the container sends, and nobody there knows."""

    def apply(topo: Topology, stack: ExitStack) -> None:
        run_in(topo.host.netns_path, ["ip", "link", "set", topo.reference[1], "mtu", str(size)])

    return apply


#: Stops every process of a name in its own network namespace for 40 of 50 ms, and lets it go on at its end.
_SLEEPER = (
    sys.executable, "-c",
    "import os, signal, sys, time\n"
    "own = os.stat('/proc/self/ns/net').st_ino\n"
    "def each(sign):\n"
    " for p in filter(str.isdecimal, os.listdir('/proc')):\n"
    "  try:\n"
    "   named = open(f'/proc/{p}/comm').read().strip() == sys.argv[1]\n"
    "   if named and os.stat(f'/proc/{p}/ns/net').st_ino == own: os.kill(int(p), sign)\n"
    "  except (FileNotFoundError, ProcessLookupError): continue\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    "try:\n"
    " while True:\n"
    "  each(signal.SIGSTOP); time.sleep(.04); each(signal.SIGCONT); time.sleep(.01)\n"
    "finally: each(signal.SIGCONT)\n",
)  # fmt: skip


MORE: tuple[Fault, ...] = (
    Fault(
        "pmtu-black-hole",
        ("pmtu-black-hole",),
        _ROUTE,
        ("netperf", "-t", "TCP_STREAM", "-l", "3"),
        both(
            host_mtu(1300),
            nft("client", _IN, ["icmp type destination-unreachable drop"]),
        ),
        prepare=sysctl("client", "ipv4/tcp_mtu_probing", "1"),  # or the connection would never end
    ),
    Fault(
        "wrong-checksums-udp",
        ("wrong-checksums",),
        TopologySpec("host", offloads={"tx": False}),
        udp_stream(1400),
        nft("client", _OUT, ["meta l4proto udp numgen random mod 5 0 udp checksum set 0x1234"]),
        clean_apply=nft("client", _OUT, ["meta l4proto udp numgen random mod 5 0 counter"]),
    ),
    Fault(
        "wrong-checksums-tcp",
        ("wrong-checksums",),
        TopologySpec("host", offloads={"tx": False}),
        TCP_STREAM,
        nft("client", _OUT, ["tcp dport != 12865 numgen random mod 200 0 tcp checksum set 0x1234"]),
        clean_apply=nft("client", _OUT, ["tcp dport != 12865 numgen random mod 200 0 counter"]),
    ),
    Fault(
        "churn-beside",
        ("namespace-churn",),
        _V4,
        UDP_RR,
        beside=beside("", *_CHURN),
        settle_s=1,
        everyone=True,
        side="all",
    ),
    Fault(
        "qdisc-lock-2-senders",
        ("qdisc-lock", "qdisc"),
        TopologySpec("host", pin=False),
        udp_stream(64),
        argvs("client", "tc qdisc add dev {dev} root pfifo limit 10000"),
        always=beside("client", "netperf", "-H", "{server}", "-t", "UDP_STREAM", "-l", "30", "--", "-m", "64"),
        side="all",
    ),
    Fault(
        "shaped-htb-100mbit",
        ("shaped",),
        _V4,
        TCP_STREAM,
        argvs(
            "client",
            "tc qdisc add dev {dev} root handle 1: htb default 1",
            "tc class add dev {dev} parent 1: classid 1:1 htb rate 100mbit burst 64k",
        ),
    ),
    Fault(
        "shaped-tbf-50mbit-udp",
        ("shaped",),
        _V4,
        udp_stream(1400),
        argvs("client", "tc qdisc add dev {dev} root tbf rate 50mbit burst 64k latency 20ms"),
    ),
    Fault(
        "gro-off",
        ("gro-lost",),
        TopologySpec("host", offloads={"gro": False, "tso": False, "gso": False}),
        TCP_STREAM,
        clean_spec=TopologySpec("host", offloads={"gro": True, "tso": False, "gso": False}),
        side="all",
    ),
    Fault(
        "receiver-overloaded",
        ("netfilter-rules", "softirq-bottleneck", "ksoftirqd"),
        _V4,
        udp_stream(64),
        nft("server", _IN, linear(3000)),
        side="remote",
    ),
    Fault(
        "slow-peer",
        ("waiting",),
        _V4,
        UDP_RR,
        beside=together(*(beside("", *_HOG, cpus=(1,)) for _ in range(3))),
    ),
    Fault("server-sleeps", ("waiting",), _V4, UDP_RR, beside=beside("server", *_SLEEPER, "netserver", cpus=(1,))),
    Fault(
        "receive-on-one-cpu",
        ("softirq-bottleneck",),
        TopologySpec("host", offloads={"tso": False, "gso": False, "gro": False}),
        ("iperf3", "-t", "1", "-P", "24"),  # of eight flows six or more may hash to one CPU on the clean side, too
        receive_cpus("server", 1),
        clean_apply=receive_cpus("server", 0, 1),
        prepare=nft("server", _IN, linear(1000)),
        side="all",
    ),
    Fault(
        "policed-100mbit",
        ("retransmits",),
        _V4,
        TCP_STREAM,
        nft("server", _IN, ["limit rate over 12 mbytes/second burst 64 kbytes drop"]),
    ),
)

#: What needs settings of the whole machine, or devices that this kernel has not: inside a guest only.
GUEST: tuple[Fault, ...] = (
    Fault(
        "guest-budget-1",
        ("time-squeeze",),
        _V4,
        udp_stream(64),
        during=machine("core/netdev_budget", "1"),
        side="all",
    ),
    Fault(
        "guest-backlog-5",
        ("backlog-overflow",),
        _V4,
        udp_stream(64),
        during=machine("core/netdev_max_backlog", "5"),
        side="all",
    ),
    Fault(
        "guest-netem-delay",
        ("shaped", "waiting"),
        _V4,
        TCP_RR,
        argvs("client", "tc qdisc add dev {dev} root netem delay 5ms"),
    ),
    Fault(
        "guest-netem-loss",
        ("shaped", "retransmits"),
        _V4,
        TCP_STREAM,
        argvs("client", "tc qdisc add dev {dev} root netem loss 5%"),
    ),
)

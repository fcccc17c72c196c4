"""Test bed of the ledger: two ends, a router between them, datagrams of known number and size, and what was counted.

c:eth0 (1) -- (2) pc:h:pr (2) -- (1) eth0:r        198.18.81.0/24 and 198.18.82.0/24
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nsprof import netns
from nsprof.collect.ledger.counting import Ledger
from nsprof.collect.sampling.sampler import SamplerConfig
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Namespace, Profile
from nsprof.observe import Observer, Scene, Traffic
from nsprof.sources import LedgerSource
from tests.root.hop_bed import Bed

CLIENT, REMOTE, REMOTE6 = "198.18.81.1", "198.18.82.1", "fd82::1"
COUNT = 23
_UDP_SEGMENT = 103  # include/uapi/linux/udp.h
_IP_MTU_DISCOVER, _DONT, _PROBE = 10, 0, 3  # include/uapi/linux/in.h: IP_PMTUDISC_*
_IPV6_MTU_DISCOVER = 23  # include/uapi/linux/in6.h


@contextlib.contextmanager
def routed(tag: str = "") -> Iterator[Bed]:
    """c and r with a router h between them; neighbours are fixed and IPv6 is off: no ARP, no MLD."""
    made = Bed(f"lg{os.getpid()}{tag}")
    try:
        made.add("c", "h", "r")
        for name in ("c", "h", "r"):
            made.sysctl(name, "net/ipv6/conf/default/disable_ipv6", "1")  # no multicast reports in the counts
        for end, net in (("c", 81), ("r", 82)):
            made.pair("h", f"p{end}", end, "eth0")
            made.address(end, "eth0", f"198.18.{net}.1/24")
            made.address("h", f"p{end}", f"198.18.{net}.2/24")
            made.ip(end, "route", "add", "default", "via", f"198.18.{net}.2")
        made.sysctl("h", "net/ipv4/ip_forward", "1")
        settle(made)
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def routed6(tag: str = "6") -> Iterator[Bed]:
    """The same with IPv6 alone: fd81::/64 and fd82::/64. Multicast reports may pass beside the test's packets."""
    made = Bed(f"lg{os.getpid()}{tag}")
    try:
        made.add("c", "h", "r")
        for end, net in (("c", 81), ("r", 82)):
            made.pair("h", f"p{end}", end, "eth0")
            made.address(end, "eth0", f"fd{net}::1/64")
            made.address("h", f"p{end}", f"fd{net}::2/64")
            made.ip(end, "-6", "route", "add", "default", "via", f"fd{net}::2")
        made.sysctl("h", "net/ipv6/conf/all/forwarding", "1")
        yield made
    finally:
        made.close()


def settle(made: Bed) -> None:
    """All neighbours are known for good: nothing but the test's own packets moves."""
    for end, net in (("c", 81), ("r", 82)):
        for here, device, other, theirs, last in ((end, "eth0", "h", f"p{end}", 2), ("h", f"p{end}", end, "eth0", 1)):
            words = ("neigh", "replace", f"198.18.{net}.{last}", "lladdr", mac(made, other, theirs))
            made.ip(here, *words, "dev", device, "nud", "permanent")


def mac(made: Bed, name: str, device: str) -> str:
    done = subprocess.run(
        ["ip", "-n", made.full(name), "-br", "link", "show", "dev", device],
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout.split()[2]


def ethtool(made: Bed, name: str, device: str, *features: str) -> None:
    """`ethtool -K device FEATURE on|off ...` in a namespace."""
    argv = ["ip", "netns", "exec", made.full(name), "ethtool", "-K", device, *features]
    subprocess.run(argv, check=True, capture_output=True, timeout=20)


def datagrams(
    made: Bed, count: int, size: int, *, segment: int = 0, to: str = REMOTE, forbid: bool = False
) -> Callable[[], Traffic]:
    """`count` datagrams of `size` bytes from c to a socket in r, each read there (unless fragments are forbidden)."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET

    def work() -> Traffic:
        with netns.entered(made.path("r")):
            sink = socket.socket(family, socket.SOCK_DGRAM)
        with netns.entered(made.path("c")):
            source = socket.socket(family, socket.SOCK_DGRAM)
        with sink, source:
            sink.bind((to, 9000))
            sink.settimeout(10)
            if family == socket.AF_INET:
                source.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE if forbid else _DONT)
            elif forbid:
                source.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PROBE)
            if segment:
                source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, segment)
            for _ in range(count):
                source.sendto(b"x" * size, (to, 9000))
                got = size if forbid else 0
                while got < size:
                    got += len(sink.recv(65535))
        return Traffic()

    return work


@dataclass
class Seen:
    """A profile with one counting pass, asked by namespace's short name."""

    profile: Profile
    made: Bed

    def lines(self, what: str, name: str = "", device: str = "", detail: str = "") -> list[tuple[int, int, str]]:
        """(calls, bytes, caller stack as text) of each line."""
        p = self.profile
        return [
            (
                line.calls,
                line.value_bytes,
                " < ".join(p.frames.name[f] for f in p.stacks[line.stack]) if line.stack >= 0 else "",
            )
            for line in p.ledger
            if line.what == what
            and (not name or p.namespace_label(line.namespace) == self.made.full(name))
            and (not device or p.device_label(line.device) == device)
            and detail in line.detail
        ]

    def calls(self, what: str, name: str = "", device: str = "", detail: str = "") -> int:
        return sum(row[0] for row in self.lines(what, name, device, detail))

    def size(self, what: str, name: str = "", device: str = "", detail: str = "") -> int:
        return sum(row[1] for row in self.lines(what, name, device, detail))

    def rung(self, probe: str) -> str:
        return next(row.rung for row in self.profile.probes if row.name == probe)


@contextlib.contextmanager
def observer(ledger: Ledger | None = None) -> Iterator[Observer]:
    """The probes, loaded once for many windows; without a budget, so that counts are exact, and costs are assumed."""
    given = ledger or Ledger(budget_share=0, calibrate=False)
    with Observer(SamplerConfig(), lambda _: LedgerSource(given)) as watching:
        yield watching


def counted(watching: Observer, made: Bed, work: Callable[[], Traffic]) -> Seen:
    """One window around `work`."""
    builder = ProfileBuilder()
    spaces = {
        made.path(n): Namespace(netns.inode(made.path(n)), netns.cookie(made.path(n)), name=made.full(n))
        for n in made.names
    }
    watching.window(builder, Scene("test", spaces, ends=(made.path("c"), made.path("r"))), work)
    return Seen(builder.build(), made)

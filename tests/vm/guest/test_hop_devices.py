"""Hop context across devices that not every host's kernel has: netkit pairs, bonds, VLANs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from nsprof.collect.sampling.sampler import Sampler, SamplerConfig
from tests.root.hop_bed import Bed, Flow, Seen, bed, segment
from tests.vm.guest.hopping import NEIGHBOURS, Truth, judged


@pytest.fixture
def made() -> Iterator[Bed]:
    with bed() as one:
        yield one


def _check(made: Bed, truth: Truth) -> list[Seen]:
    with Sampler(SamplerConfig(frequency_hz=499, hop=True)) as sampler:
        flows = [Flow("r", "198.18.22.1"), Flow("r", "fd03::1")]
        return judged(sampler, made, flows, truth, lambda row: not any(f.startswith(NEIGHBOURS) for f in row.frames))


def _forwarding(made: Bed) -> None:
    made.sysctl("h", "net/ipv4/ip_forward", "1")
    made.sysctl("h", "net/ipv6/conf/all/forwarding", "1")


def _routed(made: Bed, number: int, host_device: str, name: str) -> None:
    """Subnet `number` between the host's device and the container's eth0; IPv4 and IPv6."""
    made.address("h", host_device, f"198.18.2{number}.254/24", f"fd0{number}::fe/64")
    made.address(name, "eth0", f"198.18.2{number}.1/24", f"fd0{number}::1/64")
    made.ip(name, "route", "add", "default", "via", f"198.18.2{number}.254")
    made.ip(name, "-6", "route", "add", "default", "via", f"fd0{number}::fe")


def _netkit(made: Bed, device: str, name: str) -> None:
    """A netkit pair of layer 3, the default. This iproute2 may not know the kind, so the kernel names the peer."""
    made.ip("h", "link", "add", device, "type", "netkit")
    listed = subprocess.run(["ip", "-n", made.full("h"), "-o", "link"], capture_output=True, text=True, check=True)
    peer = next(w.partition("@")[0] for w in listed.stdout.split() if w.endswith(f"@{device}:"))
    made.ip("h", "link", "set", peer, "netns", made.full(name), "name", "eth0")
    made.ip("h", "link", "set", device, "up")
    made.ip(name, "link", "set", "eth0", "up")


def test_netkit(made: Bed) -> None:
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 7):
        pytest.skip("netkit came with Linux 6.7")
    made.add("h", "r", "c1", "c2")
    _forwarding(made)
    made.pair("h", "vr", "r", "eth0")
    _routed(made, 1, "vr", "r")
    for number, name in enumerate(("c1", "c2"), 2):
        _netkit(made, f"v{name}", name)
        _routed(made, number, f"v{name}", name)

    def truth(said: str, row: Seen) -> set[str] | None:
        if said in ("v4", "v6"):
            inside = "c1:eth0" if said == "v4" else "c2:eth0"
            forwarded = {"ip_forward", "ip6_forward"} & set(segment(row.frames) or ())
            return {"h:vr"} if forwarded else {"h:vr", inside}
        return {"tx": {"h:vc1", "h:vc2"}}.get(said)

    seen = _check(made, truth)
    inside = {row.label for row in seen if row.label in ("c1:eth0", "c2:eth0")}
    assert inside == {"c1:eth0", "c2:eth0"}, "what the containers received is the host's"


def test_a_bond_below_the_bridge(made: Bed) -> None:
    """The remote end's packets come by two slaves of a bond, which is a port of the host's bridge."""
    if subprocess.run(["modprobe", "-q", "bonding"], check=False).returncode:
        pytest.skip("this kernel has no bonding")
    made.add("h", "r", "c1", "c2")
    made.sysctl("h", "net/ipv6/conf/default/disable_ipv6", "1")
    for name in ("h", "r"):
        made.ip(name, "link", "add", "bond0", "type", "bond", "mode", "balance-rr", "miimon", "100")
    for slave in ("s1", "s2"):
        made.ip("h", "link", "add", slave, "type", "veth", "peer", "name", slave, "netns", made.full("r"))
        for name in ("h", "r"):
            made.ip(name, "link", "set", slave, "master", "bond0")
            made.ip(name, "link", "set", slave, "up")
    made.ip("h", "link", "add", "br0", "type", "bridge")
    for name in ("h", "r"):
        made.ip(name, "link", "set", "bond0", "up")
    made.ip("h", "link", "set", "br0", "up")
    made.ip("h", "link", "set", "bond0", "master", "br0")
    made.address("r", "bond0", "198.18.22.9/24", "fd03::9/64")
    for name, address in (("c1", "198.18.22.1/24"), ("c2", "fd03::1/64")):
        made.pair("h", f"v{name}", name, "eth0")
        made.ip("h", "link", "set", f"v{name}", "master", "br0")
        made.address(name, "eth0", address)
    ports = {"h:bond0", "h:s1", "h:s2"}

    def truth(said: str, row: Seen) -> set[str] | None:
        return {"bridge": ports, "tx": {"h:vc1", "h:vc2"}, "v4": {"c1:eth0"}, "v6": {"c2:eth0"}}.get(said)

    _check(made, truth)


@pytest.mark.parametrize("bonded", [False, True], ids=["pair", "bond"])
def test_vlans_whose_devices_are_the_containers_own(bonded: bool, made: Bed) -> None:
    """Tagged packets come in by the host's device and are the containers' from the receive core on."""
    if bonded and subprocess.run(["modprobe", "-q", "bonding"], check=False).returncode:
        pytest.skip("this kernel has no bonding")
    if subprocess.run(["modprobe", "-q", "8021q"], check=False).returncode:
        pytest.skip("this kernel has no VLANs")
    made.add("h", "r", "c1", "c2")
    made.sysctl("h", "net/ipv6/conf/default/disable_ipv6", "1")
    made.ip("h", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", made.full("r"))
    lower = "wire"
    for name in ("h", "r"):
        if bonded:
            lower = "bond0"
            made.ip(name, "link", "add", lower, "type", "bond", "mode", "active-backup", "miimon", "100")
            made.ip(name, "link", "set", "wire", "master", lower)
        made.ip(name, "link", "set", "wire", "up")
        made.ip(name, "link", "set", lower, "up")
    for number, (name, prefix) in enumerate((("c1", "198.18.22.{}/24"), ("c2", "fd03::{}/64")), 5):
        for place in ("h", "r"):
            made.ip(place, "link", "add", "link", lower, "name", f"v{number}", "type", "vlan", "id", str(number))
        made.ip("h", "link", "set", f"v{number}", "netns", made.full(name), "name", "eth0")
        made.ip(name, "link", "set", "eth0", "up")
        made.ip("r", "link", "set", f"v{number}", "up")
        made.address(name, "eth0", prefix.format(1))
        made.address("r", f"v{number}", prefix.format(9))

    def truth(said: str, row: Seen) -> set[str] | None:
        return {"v4": {"c1:eth0"}, "v6": {"c2:eth0"}}.get(said)

    _check(made, truth)

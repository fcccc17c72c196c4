"""Names, addresses and CPUs of a run: everything that can be decided before anything is made."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from nsprof.errors import TopologyError
from nsprof.model.scenario import TopologySpec
from nsprof.topology.state import RUN_ID

__all__ = [
    "MAX_CONTAINERS",
    "OFFLOADS",
    "Addresses",
    "Macs",
    "Names",
    "check_far",
    "check_run_id",
    "check_shape",
    "check_spec",
    "choose_cpus",
    "far_address",
    "new_run_id",
    "ssh_host",
]

MAX_CONTAINERS = 1000
#: What --offload takes, as `ethtool -K` names it.
OFFLOADS = ("tx", "rx", "sg", "tso", "gso", "gro")


def new_run_id() -> str:
    """Six random hexadecimal digits."""
    return secrets.token_hex(3)


def check_run_id(run_id: str) -> str:
    """The run id, if it can be part of file and device names. Raises TopologyError."""
    if not re.fullmatch(RUN_ID, run_id):
        raise TopologyError(
            f"run id {run_id!r} cannot be used: it becomes part of file and device names",
            "one to eight of a-z and 0-9",
        )
    return run_id


def check_shape(shape: str, shapes: tuple[str, ...]) -> None:
    """Refuse a shape that does not exist. Raises TopologyError naming the nearest and all."""
    if shape not in shapes:
        import difflib

        near = difflib.get_close_matches(shape, shapes, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise TopologyError(f"no topology {shape!r}", hint + "there are: " + ", ".join(shapes))


def check_spec(spec: TopologySpec, shapes: tuple[str, ...]) -> None:
    """Refuse what cannot be built. Raises TopologyError naming the value and the limits."""
    check_shape(spec.shape, shapes)
    if not 1 <= spec.containers <= MAX_CONTAINERS:
        raise TopologyError(f"{spec.containers} containers: must be 1 to {MAX_CONTAINERS}")
    if spec.shape == "device" and spec.containers != 1:
        raise TopologyError(
            f"{spec.containers} containers with shape 'device': a real device is in one container only",
            "use --containers 1, or another shape",
        )
    if spec.family not in (4, 6):
        raise TopologyError(f"address family {spec.family}: must be 4 or 6")
    least = 1280 if spec.family == 6 else 68
    if spec.shape == "vxlan":
        least += 70 if spec.family == 6 else 50
    if spec.mtu and not least <= spec.mtu <= 65535:
        raise TopologyError(
            f"MTU {spec.mtu}: must be {least} to 65535 with IPv{spec.family} and shape {spec.shape!r}"
        )
    if spec.wire_rate_bps and not 8_000 <= spec.wire_rate_bps <= 10**13:
        raise TopologyError(f"wire rate {spec.wire_rate_bps} bit/s: must be 8 kbit/s to 10 Tbit/s")
    for name in spec.offloads:
        if name not in OFFLOADS:
            raise TopologyError(f"no offload {name!r}", "there are: " + ", ".join(OFFLOADS))
    if spec.host_netns not in ("own", "init"):
        raise TopologyError(f"host namespace {spec.host_netns!r}: must be 'own' or 'init'")
    check_far(spec)
    if spec.shape == "vrf" and spec.host_netns == "init":
        raise TopologyError(
            "shape 'vrf' in the initial namespace: the kernel would keep its l3mdev rule there for ever",
            "leave out --host-netns init",
        )


#: Shapes that need something done at the remote end, and what.
_FAR_NEEDS = {"veth-bridge-route": "a route back to the containers", "vxlan": "the tunnel's other end"}
#: Containers with a remote end that is no namespace: neighbours cannot be made known there.
MAX_CONTAINERS_FAR = 100
_SSH_HOST = re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.\[][A-Za-z0-9_.:\]-]*")


def check_far(spec: TopologySpec) -> None:
    """Refuse what cannot be with an uplink or a remote end that is no namespace. Raises TopologyError."""
    if not spec.uplink and not spec.remote:
        return
    if spec.uplink:
        if spec.remote in ("", "vm"):
            raise TopologyError(
                f"uplink {spec.uplink} without the machine at its other end", "--remote ADDRESS or ssh:USER@HOST"
            )
        if not re.fullmatch(r"[^\s/:]{1,15}", spec.uplink) or spec.uplink in (".", ".."):
            raise TopologyError(f"uplink {spec.uplink!r} cannot be a device's name")
        if re.fullmatch(r"br0|vrf0|vx0|v[0-9]+", spec.uplink):
            raise TopologyError(
                f"uplink {spec.uplink}: nsprof's own devices are called so", f"ip link set {spec.uplink} name uplink0"
            )
        if spec.host_netns != "own":
            raise TopologyError(
                "an uplink is moved into a host namespace of the test's own", "leave out --host-netns init"
            )
        if spec.wire_rate_bps:
            raise TopologyError("a real wire has a rate of its own", "leave out --wire-rate")
        far_address(spec)
    elif spec.remote != "vm":
        raise TopologyError(
            f"remote {spec.remote!r} without a device that leads there", "--uplink DEV, or --remote vm"
        )
    if spec.shape in _FAR_NEEDS and (spec.uplink or spec.shape == "vxlan"):
        raise TopologyError(
            f"shape {spec.shape!r} wants {_FAR_NEEDS[spec.shape]} at the remote end, which is not nsprof's",
            "veth-route, veth-bridge and veth-nat want nothing there",
        )
    if spec.containers > MAX_CONTAINERS_FAR:
        raise TopologyError(f"{spec.containers} containers: at most {MAX_CONTAINERS_FAR} with such a remote end")


def far_address(spec: TopologySpec) -> str:
    """The other machine's address on the uplink: the one given, else the remote end's usual one. It must lie in the
    benchmarking range that all test addresses are from. Raises TopologyError."""
    ours = Addresses(spec.family)
    text = spec.remote
    if text.startswith("ssh:"):
        ssh_host(spec)
        text = text.partition("=")[2] or ours.remote
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise TopologyError(
            f"remote {text!r} is no address",
            f"--remote {ours.remote}, or ssh:USER@HOST to have servers started there",
        ) from None
    network = ipaddress.ip_network(ours.lan)
    taken = {ours.host, *(a(n) for n in range(MAX_CONTAINERS_FAR) for a in (ours.container, ours.pair))}
    if address.version != network.version or address not in network or str(address) in taken:
        raise TopologyError(
            f"remote {text} is outside of {ours.lan}, from which the test's addresses are (or one of them)",
            f"give the other machine one more: ip addr add {ours.remote}/{ours.prefix} dev ITS_DEVICE",
        )
    return str(address)


def ssh_host(spec: TopologySpec) -> str:
    """USER@HOST of a remote "ssh:USER@HOST[=ADDRESS]"; "" where it is none. Raises TopologyError for odd words."""
    if not spec.remote.startswith("ssh:"):
        return ""
    host = spec.remote.removeprefix("ssh:").partition("=")[0]
    if not _SSH_HOST.fullmatch(host):
        raise TopologyError(f"remote {spec.remote!r}: no host for ssh", "--remote ssh:root@192.0.2.7")
    return host


@dataclass(frozen=True, slots=True)
class Names:
    """Device names. In namespaces of nsprof's own they are the same in every run, so that runs can be compared;
    in the initial namespace they carry the run id, so that two runs do not collide."""

    suffix: str = ""
    uplink: str = ""

    @classmethod
    def of(cls, spec: TopologySpec, run_id: str) -> Names:
        """The names of a run."""
        return cls(f"-{run_id}" if spec.host_netns == "init" else "", spec.uplink)

    @property
    def wire(self) -> str:
        """The wire's near end: the uplink where there is one."""
        return self.uplink or f"w0{self.suffix}"

    @property
    def bridge(self) -> str:
        """The host's bridge."""
        return f"br0{self.suffix}"

    @property
    def vrf(self) -> str:
        """The host's VRF device."""
        return f"vrf0{self.suffix}"

    @property
    def vxlan(self) -> str:
        """The host's tunnel end."""
        return f"vx0{self.suffix}"

    def pair(self, number: int) -> str:
        """The host's end of container `number`'s pair."""
        return f"v{number}{self.suffix}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Who has which address. 198.18.0.0/15 is for benchmarking (RFC 2544), as 2001:2::/48 is (RFC 5180)."""

    family: int

    @property
    def whole(self) -> str:
        """The block from which all are taken."""
        return "198.18.0.0/15" if self.family == 4 else "2001:2::/48"

    @property
    def lan(self) -> str:
        """The wire's network."""
        return "198.18.0.0/16" if self.family == 4 else "2001:2:0:18::/64"

    @property
    def pods(self) -> str:
        """The containers' own network, where they have one (routed bridge, NAT, tunnel)."""
        return "198.19.0.0/16" if self.family == 4 else "2001:2:0:19::/64"

    @property
    def prefix(self) -> int:
        """Prefix length of both networks."""
        return 16 if self.family == 4 else 64

    @property
    def full(self) -> int:
        """Prefix length of a single address."""
        return 32 if self.family == 4 else 128

    @property
    def any(self) -> str:
        """Every destination."""
        return "0.0.0.0/0" if self.family == 4 else "::/0"

    def _lan(self, number: int) -> str:
        return f"198.18.{number >> 8}.{number & 255}" if self.family == 4 else f"2001:2:0:18::{number:x}"

    def _pod(self, number: int) -> str:
        return f"198.19.{number >> 8}.{number & 255}" if self.family == 4 else f"2001:2:0:19::{number:x}"

    @property
    def remote(self) -> str:
        """The remote end on the wire."""
        return self._lan(1)

    @property
    def host(self) -> str:
        """The host on the wire."""
        return self._lan(2)

    @property
    def pod_gateway(self) -> str:
        """The first address of the containers' own network: the host's bridge, or the remote end of the tunnel."""
        return self._pod(1)

    def container(self, number: int) -> str:
        """Container `number` on the wire's network."""
        return self._lan(0x101 + number)

    def pod(self, number: int) -> str:
        """Container `number` in the containers' own network."""
        return self._pod(0x101 + number)

    def pair(self, number: int) -> str:
        """The host's end of container `number`'s pair, where it has an address."""
        return self._lan(0x8000 + number)


class Macs:
    """Fixed hardware addresses, locally administered: the same in every run, and known beforehand."""

    remote = "02:6e:73:00:00:01"
    wire = "02:6e:73:00:00:02"
    bridge = "02:6e:73:00:00:03"
    remote_bridge = "02:6e:73:00:00:06"
    guest = "02:6e:73:00:00:07"
    vxlan = "02:6e:73:00:00:04"
    remote_vxlan = "02:6e:73:00:00:05"

    @staticmethod
    def container(number: int) -> str:
        """Container `number`'s device."""
        return f"02:6e:73:01:{number >> 8:02x}:{number & 255:02x}"

    @staticmethod
    def pair(number: int) -> str:
        """The host's end of container `number`'s pair."""
        return f"02:6e:73:02:{number >> 8:02x}:{number & 255:02x}"


def choose_cpus(spec: TopologySpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs of the device under test and of the remote end; both empty without pinning or with one CPU.

    The allowed CPUs are halved, the lower half for the device under test; siblings of one core stay together
    where there are cores enough.
    """
    if not spec.pin or spec.uplink:  # with another machine at the other end all CPUs are those under test
        return (), ()
    allowed = sorted(os.sched_getaffinity(0))
    cores: dict[str, list[int]] = {}
    for cpu in allowed:
        try:
            core = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)
        cores.setdefault(core, []).append(cpu)
    units = list(cores.values()) if len(cores) > 1 else [[cpu] for cpu in allowed]
    if len(units) < 2:
        return (), ()
    half = (len(units) + 1) // 2
    dut = tuple(sorted(cpu for unit in units[:half] for cpu in unit))
    remote = tuple(sorted(cpu for unit in units[half:] for cpu in unit))
    return dut, remote

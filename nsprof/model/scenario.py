"""What is to be run: topology, workload, and both together.

A Scenario is data; `topology` builds it, `workload` drives it, `collect` observes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nsprof.errors import UsageError

__all__ = ["Offloads", "Place", "TopologySpec", "WorkloadSpec", "parse_offloads"]

#: tso, gso, gro, tx (checksum), rx, sg ... -> on/off, as `ethtool -K` names them.
Offloads = Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class TopologySpec:
    """One scenario's shape and its knobs.

    `shape` is "host", "device", "veth-route", "veth-bridge", ...; `containers` how many, `family` 4 or 6,
    `mtu` 0 = the kernel's default, `wire_rate_bps` 0 = unlimited, `host_netns` "own" or "init".

    `uplink` is a device of this machine that takes the place of the wire's near end; then `remote` is the other
    machine: its address on that wire, or "ssh:USER@HOST[=ADDRESS]" where nsprof is to start its servers. Without an
    uplink `remote` is "" (a namespace) or "vm" (a guest behind virtio, a tap device and a bridge). `take_uplink`
    allows an uplink that carries the default route.
    """

    shape: str = "host"
    containers: int = 1
    family: int = 4
    mtu: int = 0
    wire_rate_bps: int = 0
    offloads: Offloads = field(default_factory=dict)
    host_netns: str = "own"
    pin: bool = True
    uplink: str = ""
    remote: str = ""
    take_uplink: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """A traffic generator and its words, e.g. ("netperf", ("-t", "UDP_RR")); `tool` "" is any other command."""

    tool: str
    argv: tuple[str, ...]
    duration_s: float = 0.0
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process of a scenario runs: a namespace, its address there, and the CPUs to pin it to (empty: any).

    `role` is "host", "remote" or "container"; `netns_path` can be opened as long as the topology stands.
    """

    netns_path: str
    name: str
    address: str
    cpus: tuple[int, ...] = ()
    role: str = ""


def parse_offloads(text: str) -> dict[str, bool]:
    """`tso=off,gro=on` as a table. Raises UsageError naming the word that is no offload setting."""
    found: dict[str, bool] = {}
    for word in filter(None, (w.strip() for w in text.split(","))):
        name, sign, value = word.partition("=")
        if not sign or value not in ("on", "off"):
            raise UsageError(f"offload {word!r}: must be NAME=on or NAME=off", "--offload tso=off,gso=off,gro=off")
        found[name] = value == "on"
    return found

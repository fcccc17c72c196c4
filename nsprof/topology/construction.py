"""Building a topology and taking it down again, whatever happens."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nsprof.errors import TopologyError
from nsprof.model.scenario import Place, TopologySpec
from nsprof.netns import entered
from nsprof.topology import ethtool, reach, shapes, sysctl
from nsprof.topology import netlink as nl
from nsprof.topology.announce import announce
from nsprof.topology.dumps import LinkInfo, dump_links
from nsprof.topology.maker import ETH, MANY, Maker
from nsprof.topology.namespaces import Ns, RunDirectory, apart, set_receive_cpus
from nsprof.topology.plan import Addresses, Macs, check_run_id, check_spec, choose_cpus, new_run_id
from nsprof.topology.remove import remove
from nsprof.topology.state import State

if TYPE_CHECKING:
    from nsprof.model.profile import Device, Namespace

__all__ = ["Topology", "build", "raise_up"]


class Topology:
    """A standing topology: where the client and the server run, and what was made.

    client, clients: where the workload's clients run (one a container; with shape "host" the host itself).
    server, server_address: the remote namespace, and what a client dials.
    reference: (place, device): the wire's near end, the same device in all shapes.
    dut_cpus, remote_cpus: the CPUs of either side; empty where nothing is pinned.
    """

    client: Place
    clients: tuple[Place, ...]
    server: Place
    host: Place
    server_address: str
    reference: tuple[Place, str]

    def __init__(self, spec: TopologySpec, run_id: str) -> None:
        self.spec = spec
        self.run_id = run_id
        self.shape = shapes.get(spec.shape)
        self.dut_cpus, self.remote_cpus = choose_cpus(spec)
        self._made: list[Ns] = []
        self._chain: list[tuple[Ns, str]] = []
        self._facts: dict[str, Any] = {}

    def _make(self, state: State, directory: RunDirectory, check: Callable[[], None]) -> None:
        began = time.monotonic()
        directory.make()
        maker = Maker(self.spec, directory, state, check)
        try:
            maker.make_ends()
            self.shape.make(maker)
            self._shape_wire(maker)
        finally:
            for name in ("host", "remote"):
                if (ns := getattr(maker, name, None)) is not None:
                    ns.close()
        self._places(maker)
        self._offloads(maker)
        self._steer()
        for ns, device in [*self._chain[:4], *self._chain[-2:]]:
            reach.wait_until_running(ns.path, device, check)
        if self.spec.uplink:
            self._announce()
        if self.spec.remote != "vm":  # a guest is started later, by whoever wants it
            self.wait_reachable(check)
        self._facts["build_s"] = round(time.monotonic() - began, 6)

    def _announce(self) -> None:
        """The other machine may know the test's addresses by the hardware addresses of an earlier topology."""
        place, device = self.reference
        with entered(place.netns_path), nl.Rtnl() as door:
            own = next(link.address for link in dump_links(door) if link.name == device)
        bridged = self.spec.shape in ("veth-bridge", "macvlan")
        known = [(self.host.address, Macs.bridge if self.spec.shape == "veth-bridge" else own)]
        if self.spec.shape != "veth-nat":
            known += [(c.address, Macs.container(n) if bridged else own) for n, c in enumerate(self.clients)]
        announce(place.netns_path, device, [(address, mac) for address, mac in known if address])

    def wait_reachable(self, check: Callable[[], None] = lambda: None, timeout_s: float = 15.0) -> None:
        """Wait until the first and the last client have an echo answered by the server. Raises TopologyError."""
        for client in dict.fromkeys((self.clients[0], self.clients[-1])):
            try:
                reach.wait_until_reachable(client.netns_path, self.server_address, check, timeout_s)
            except TopologyError as error:
                if not self.spec.uplink:
                    raise
                prefix = Addresses(self.spec.family).prefix
                raise TopologyError(
                    f"{self.server_address} does not answer on uplink {self.spec.uplink} (within {timeout_s:g} s)",
                    f"at the other machine: ip addr add {self.server_address}/{prefix} dev ITS_DEVICE",
                ) from error

    def _places(self, maker: Maker) -> None:
        def place(ns: Ns, address: str, cpus: tuple[int, ...]) -> Place:
            return Place(ns.path, ns.name, address, cpus, ns.role)

        addresses = maker.addresses
        host_address = "" if self.spec.shape == "device" else addresses.host
        self.host = place(maker.host, host_address, self.dut_cpus)
        self.server_address = maker.server_address
        self.server = (
            Place("", "remote", self.server_address, (), "remote")
            if maker.remote is None
            else place(maker.remote, self.server_address, self.remote_cpus)
        )
        pairs = zip(maker.containers, maker.container_addresses, strict=True)
        self.clients = tuple(place(ns, address, self.dut_cpus) for ns, address in pairs) or (self.host,)
        self.client = self.clients[0]
        self.reference = (self.client if maker.reference_in_container else self.host, maker.names.wire)
        self._made = [maker.host, *([maker.remote] if maker.remote is not None else []), *maker.containers]
        self._chain = maker.chain_devices

    def _shape_wire(self, maker: Maker) -> None:
        if not self.spec.wire_rate_bps:
            return
        burst, limit = shaper_sizes(self.spec.wire_rate_bps)
        for ns, device in maker.chain_devices[:2]:
            with entered(ns.path), nl.Rtnl() as door:
                door.send([nl.shape_rate(door.index(device), self.spec.wire_rate_bps, burst, limit, device)])
        self._facts["shaper"] = {"kind": "tbf", "burst_bytes": burst, "limit_bytes": limit}

    def _offloads(self, maker: Maker) -> None:
        wanted = dict(self.spec.offloads)
        if wanted:
            for ns, device in maker.chain_devices:
                with entered(ns.path):
                    # Bridges, tunnels and VRFs have not all of them, children of the wire follow the wire.
                    strict = device == maker.names.wire or (
                        device == ETH and (ns.role == "remote" or self.shape.own_offloads)
                    )
                    ethtool.set_(device, wanted, strict=strict)
        facts = {}
        for ns, device in [*maker.chain_devices[:2], *maker.chain_devices[-2:]]:
            with entered(ns.path):
                facts[f"{device} in {ns.name}"] = ethtool.read_all(device)
        self._facts["offloads"] = facts
        with entered(maker.host.path):
            self._facts["host_sysctls"] = {name: sysctl.read(name) for name in _FACTS}

    def _steer(self) -> None:
        if not self.dut_cpus:
            return
        place, wire = self.reference
        set_receive_cpus([(place.netns_path, wire, self.dut_cpus), (self.server.netns_path, ETH, self.remote_cpus)])

    @property
    def far(self) -> str:
        """Where the server's end is: "namespace", "machine" (behind an uplink), or "vm" (a guest that is not yet
        there: its tap device is `tap` in the server's namespace)."""
        return "machine" if self.spec.uplink else "vm" if self.spec.remote == "vm" else "namespace"

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Host, remote (where it is a namespace), then the containers."""
        from nsprof.model.profile import Namespace

        return tuple(Namespace(ns.inode, ns.cookie, name=ns.name, role=ns.role) for ns in self._made)

    def devices(self) -> tuple[Device, ...]:
        """All devices of all namespaces of the topology, as the kernel lists them now (of a host namespace that
        is the initial one: only those that nsprof made). `namespace` is the position in `namespaces` + 1."""
        from nsprof.model.profile import Device

        ours = {(ns.path, device) for ns, device in self._chain}
        found = []
        for position, ns in enumerate(self._made, 1):
            for link in self._links(ns):
                if self.spec.host_netns == "init" and ns.role == "host" and (ns.path, link.name) not in ours:
                    continue
                found.append(Device(position, link.index, link.name, link.kind, link.mtu))
        return tuple(found)

    @staticmethod
    def _links(ns: Ns) -> list[LinkInfo]:
        with entered(ns.path), nl.Rtnl() as door:
            return dump_links(door)

    def describe(self) -> dict[str, Any]:
        """What was built, as JSON."""
        spec = dataclasses.asdict(self.spec)
        spec["offloads"] = dict(self.spec.offloads)
        place, device = self.reference
        return {
            **spec,
            "containers": self.spec.containers if self.shape.has_containers else 0,
            "run_id": self.run_id,
            "chain": self.shape.chain,
            "difference": self.shape.difference,
            "clients": [client.address for client in self.clients[:8]],
            "server_address": self.server_address,
            "far": self.far,
            "reference": f"{device} in {place.name}",
            "dut_cpus": list(self.dut_cpus),
            "remote_cpus": list(self.remote_cpus),
            "receive_steering": bool(self.dut_cpus),
            "neighbours": "permanent" if len(self.clients) > MANY else "resolved",
            **self._facts,
        }


_FACTS = (
    "ipv4/ip_forward",
    "ipv4/conf/all/rp_filter",
    "ipv4/conf/default/rp_filter",
    "ipv6/conf/all/forwarding",
    "bridge/bridge-nf-call-iptables",
)


def shaper_sizes(rate_bps: int) -> tuple[int, int]:
    """(bucket, queue limit) in bytes. The bucket holds two of the largest GSO skbs (64 KiB) or a millisecond, so
    that none is cut; behind it wait at most 10 ms, and at least eight of them."""
    burst = max(131072, rate_bps // 8 // 1000)
    return burst, burst + max(8 * 65536, rate_bps // 8 // 100)


def _raise(spec: TopologySpec, run_id: str | None, *, keep: bool) -> tuple[Topology, State]:
    check_spec(spec, shapes.SHAPES)
    chosen = check_run_id(run_id) if run_id is not None else new_run_id()
    state = State(chosen, shape=spec.shape, created=time.strftime("%Y-%m-%dT%H:%M:%S%z"), keep=keep)
    topology = Topology(spec, chosen)
    state.host_netns = spec.host_netns
    state.containers = spec.containers if topology.shape.has_containers else 0
    state.own()
    state.save(new=True)
    try:
        apart(lambda check: topology._make(state, RunDirectory(chosen), check))
        state.complete = True
        state.about = topology.describe()
        state.save()
    except BaseException as error:
        try:
            remove(state)
        except TopologyError as second:
            error.add_note(f"and it could not be removed: {second.message}")
        raise
    return topology, state


@contextmanager
def build(spec: TopologySpec, run_id: str | None = None) -> Iterator[Topology]:
    """Build a topology; it is taken down on every way out of the block.

    Raises TopologyError when it cannot be built, with nothing left behind. Signals that shall end the block must be
    turned into exceptions by the caller (Ctrl-C is by itself).
    """
    topology, state = _raise(spec, run_id, keep=False)
    try:
        yield topology
    finally:
        remove(state)


def raise_up(spec: TopologySpec, run_id: str | None = None) -> Topology:
    """Build a topology that stays after this process has ended, until `down` (see `remove`)."""
    return _raise(spec, run_id, keep=True)[0]

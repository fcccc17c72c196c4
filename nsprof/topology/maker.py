"""What a shape is made with: the namespaces of a run, and the steps that shapes have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from nsprof.errors import TopologyError
from nsprof.model.scenario import TopologySpec
from nsprof.netns import entered
from nsprof.topology import netlink as nl
from nsprof.topology import sysctl, uplink
from nsprof.topology.clash import refuse_clash, refuse_learned_default
from nsprof.topology.namespaces import Ns, RunDirectory
from nsprof.topology.plan import Addresses, Macs, Names, far_address
from nsprof.topology.state import State
from nsprof.topology.tap import make_tap

__all__ = ["ETH", "LAST_METRIC", "MANY", "TAP", "Maker"]

#: The device inside a container and in the remote namespace.
ETH = "eth0"
#: With a guest as the remote end: its tap device and the bridge that joins it to the wire.
TAP, TAP_BRIDGE = "tap0", "br0"
#: Above so many containers neighbours are made known for ever instead of being asked for: the kernel keeps at most
#: 1,024 others, of all namespaces together (net.ipv4.neigh.default.gc_thresh3), and drops packets beyond.
MANY = 100
#: Containers that are being configured at once: two file descriptors each.
_CHUNK = 50

Inside = Callable[[int, int], Sequence[nl.Op]]


class Maker:
    """Makes one run. All methods are called by the thread of `namespaces.apart`, between checks for interrupts."""

    def __init__(self, spec: TopologySpec, directory: RunDirectory, state: State, check: Callable[[], None]) -> None:
        self.spec = spec
        self.directory = directory
        self.state = state
        self.check = check
        self.names = Names.of(spec, directory.run_id)
        self.addresses = Addresses(spec.family)
        self.containers: list[Ns] = []
        self.container_addresses: list[str] = []
        self.host: Ns
        self.remote: Ns | None = None
        self.server_address = far_address(spec) if spec.uplink else self.addresses.remote
        self.reference_in_container = False
        self.chain_devices: list[tuple[Ns, str]] = []

    # -- namespaces

    def make_ends(self) -> None:
        """The host namespace (a new one or the present one), the remote namespace, and the wire between them."""
        if self.spec.uplink:
            self._take_uplink()
            return
        if self.spec.host_netns == "init":
            self.host = self.directory.keep("host", "host")
            self._guard_init()
        else:
            self.host = self.directory.create("host", "host")
            self._prepare_own(self.host)
        remote = self.remote = self.directory.create("remote", "remote")
        self._prepare_own(remote)
        wire = self.names.wire
        self.own_device(wire)
        self.host.rtnl.send(
            [
                nl.add_pair(
                    wire,
                    ETH,
                    remote.fd,
                    mtu=self.spec.mtu,
                    macs=(Macs.wire, Macs.remote),
                    indexes=_WIRE_INDEXES if self.spec.host_netns == "own" else (0, 0),
                )
            ]
        )
        self.quieten(wire)
        if self.spec.remote == "vm":
            self._make_tap(remote)
        else:
            index = remote.rtnl.index(ETH)
            remote.rtnl.send(
                [
                    nl.set_link("lo", up=True),
                    nl.add_address(index, self.addresses.remote, self.addresses.prefix, "the remote end"),
                    nl.set_link(ETH, up=True),
                ]
            )
        self.chain_devices += [(self.host, wire), (remote, ETH)]
        self.check()

    def _take_uplink(self) -> None:
        """The user's device into a new host namespace. What it was like is written down before it is moved."""
        device = self.spec.uplink
        home = self.directory.keep("home", "home")
        try:
            uplink.refuse(home.rtnl, device, take=self.spec.take_uplink)
            self.state.uplink = uplink.snapshot(home.rtnl, device)
            self.state.save()
            self.host = self.directory.create("host", "host")
            self._prepare_own(self.host)
            home.rtnl.send([nl.set_link(device, netns_fd=self.host.fd)])
        finally:
            home.close()
        if self.spec.mtu:
            self.host.rtnl.send([nl.set_link(device, mtu=self.spec.mtu)])
        self.chain_devices.append((self.host, device))
        self.check()

    def _make_tap(self, remote: Ns) -> None:
        """The remote namespace as the host of a guest: a bridge between the wire and a tap device."""
        remote.rtnl.send([nl.add_link("bridge", TAP_BRIDGE, mtu=self.spec.mtu, mac=Macs.remote_bridge)])
        make_tap(TAP)
        bridge = remote.rtnl.index(TAP_BRIDGE)
        mtu = self.spec.mtu
        remote.rtnl.send(
            [
                nl.set_link("lo", up=True),
                nl.set_link(TAP_BRIDGE, up=True),
                nl.set_link(ETH, master=bridge, up=True),
                nl.set_link(TAP, master=bridge, up=True, mtu=mtu),
            ]
        )

    def far_end(self) -> Ns:
        """The remote namespace, for shapes that do something there. Raises TopologyError where it is none of ours."""
        if self.remote is None or self.spec.remote:
            raise TopologyError(f"shape {self.spec.shape!r} needs a remote end of nsprof's own", "leave out --remote")
        return self.remote

    def _prepare_own(self, ns: Ns) -> None:
        """Settings of a new namespace (the calling thread is in it) before it has devices."""
        if sysctl.has_ipv6():
            if self.spec.family == 4:
                # Multicast listener reports and router solicitations would be counted as traffic.
                sysctl.write("ipv6/conf/all/disable_ipv6", "1")
                sysctl.write("ipv6/conf/default/disable_ipv6", "1")
            else:
                for name, value in _QUIET_V6:
                    sysctl.write(f"ipv6/conf/default/{name}", value)
        elif self.spec.family == 6:
            raise TopologyError("this kernel has no IPv6: it wants CONFIG_IPV6", "use IPv4")
        ns.rtnl.send([nl.set_link("lo", up=True)])

    def prepare_container(self, ns: Ns) -> None:
        """Settings of a container in which the calling thread is."""
        self._prepare_own(ns)

    def _guard_init(self) -> None:
        """In the initial namespace: refuse clashes, and keep test traffic from leaving by the default route."""
        refuse_clash(self.host.rtnl, self.addresses.whole)
        self.state.unreachable = self.addresses.whole
        self.state.save()
        self.host.rtnl.send([nl.add_route(self.addresses.whole, metric=LAST_METRIC, unreachable=True)])

    def in_host(self) -> AbstractContextManager[None]:
        """Settings and ioctls within the block are the host namespace's."""
        return entered(self.host.path)

    def own_device(self, name: str) -> None:
        """Write down a device of the initial namespace before it is made there."""
        if self.spec.host_netns == "init":
            self.state.devices.append(name)
            self.state.save()

    def quieten(self, *devices: str) -> None:
        """Per-device settings that the defaults of an own namespace give by themselves."""
        if self.spec.host_netns != "init":
            return
        with self.in_host():
            for device in devices:
                if self.spec.family == 4:
                    if sysctl.has_ipv6():
                        sysctl.write(f"ipv6/conf/{device}/disable_ipv6", "1")
                    continue
                for name, value in _QUIET_V6:
                    sysctl.write(f"ipv6/conf/{device}/{name}", value)

    # -- steps that shapes share

    def host_up(self, device: str, address: str = "", prefix: int = 0) -> None:
        """Bring a device of the host up, with an address if one is given."""
        ops = []
        if address:
            index = self.host.rtnl.index(device)
            ops.append(nl.add_address(index, address, prefix or self.addresses.prefix, f"{device} in the host"))
        self.host.rtnl.send([*ops, nl.set_link(device, up=True)])

    def make_bridge(self) -> int:
        """The host's bridge, up, without spanning tree; returns its ifindex."""
        name = self.names.bridge
        self.own_device(name)
        self.host.rtnl.send([nl.add_link("bridge", name, mtu=self.spec.mtu, mac=Macs.bridge)])
        self.quieten(name)
        self.host.rtnl.send([nl.set_link(name, up=True)])
        self.chain_devices.append((self.host, name))
        return self.host.rtnl.index(name)

    def forward(self, *devices: str) -> None:
        """Let the host route between devices: as a whole in an own namespace, these devices only in the initial."""
        with self.in_host():
            if self.spec.family == 6:
                if self.spec.host_netns == "init" and not self.state.saved:
                    refuse_learned_default(self.host.rtnl)
                    self.state.saved = sysctl.devices_with_forwarding()
                    self.state.save()
                if sysctl.read(sysctl.FORWARDING_V6) != "1":
                    sysctl.write(sysctl.FORWARDING_V6, "1")
            elif self.spec.host_netns == "own":
                sysctl.write("ipv4/ip_forward", "1")
            else:
                for device in devices:
                    sysctl.write(f"ipv4/conf/{device}/forwarding", "1")

    def proxy(self, *devices: str) -> None:
        """Answer ARP (or neighbour solicitations, which want their addresses besides) for others on devices."""
        with self.in_host():
            for device in devices:
                if self.spec.family == 4:
                    sysctl.write(f"ipv4/conf/{device}/proxy_arp", "1")
                    sysctl.write(f"ipv4/neigh/{device}/proxy_delay", "0")
                else:
                    sysctl.write(f"ipv6/conf/{device}/proxy_ndp", "1")
                    sysctl.write(f"ipv6/neigh/{device}/proxy_delay", "0")

    def add_containers(
        self,
        birth: Callable[[int, Ns], nl.Op],
        inside: Inside,
        after: Callable[[int], Sequence[nl.Op]] | None = None,
        *,
        host_device: bool = True,
    ) -> None:
        """Make all containers, some at a time.

        `birth(i, ns)` is the request, sent in the host, that makes container i's device `eth0`; `inside(i, index)`
        the requests sent in the container, with eth0's ifindex; `after(i)` those sent in the host at the end.
        `host_device` says that birth leaves a device v<i> in the host.
        """
        for start in range(0, self.spec.containers, _CHUNK):
            self.check()
            chunk: list[tuple[int, Ns]] = []
            try:
                for number in range(start, min(start + _CHUNK, self.spec.containers)):
                    ns = self.directory.create(f"c{number}", "container")
                    chunk.append((number, ns))
                    self._prepare_own(ns)
                pairs = [self.names.pair(number) for number, _ in chunk] if host_device else []
                if pairs and self.spec.host_netns == "init":
                    self.state.devices += pairs
                    self.state.save()
                self.host.rtnl.send(birth(number, ns) for number, ns in chunk)
                self.quieten(*pairs)
                for number, ns in chunk:
                    ns.rtnl.send(inside(number, ns.rtnl.index(ETH)))
                if after is not None:
                    self.host.rtnl.send(op for number, _ in chunk for op in after(number))
            finally:
                for _, ns in chunk:
                    ns.close()
            self.containers += [ns for _, ns in chunk]
            self.chain_devices += [(self.host, name) for name in pairs]
            self.chain_devices += [(ns, ETH) for _, ns in chunk]

    def pair_birth(self, kind: str = "veth", *, master: int = -1, mtu: int = 0) -> Callable[[int, Ns], nl.Op]:
        """The birth of a pair v<i> (host) - eth0 (container), in `master` if one is given."""

        def birth(number: int, ns: Ns) -> nl.Op:
            macs = (Macs.pair(number), Macs.container(number)) if kind == "veth" else ("", "")
            name = self.names.pair(number)
            return nl.add_pair(name, ETH, ns.fd, kind=kind, master=master, mtu=mtu or self.spec.mtu, macs=macs)

        return birth

    @property
    def many(self) -> bool:
        """Whether neighbours are made known instead of being asked for (see MANY)."""
        return self.spec.containers > MANY and not self.spec.remote

    def inside(
        self, address: Callable[[int], str], next_mac: Callable[[int], str] | None, *, gateway: str = ""
    ) -> Inside:
        """Container side: its address, up, and with `gateway` the route to the benchmarking block (never a
        default route: what is not for the test must not leave). `next_mac(i)` is the hardware address to which
        container i sends, None where it needs none."""
        self.container_addresses = [address(n) for n in range(self.spec.containers)]

        def ops(number: int, index: int) -> list[nl.Op]:
            made = [
                nl.add_address(index, address(number), self.addresses.prefix, f"container {number}"),
                nl.set_link(ETH, up=True),
            ]
            if gateway:
                made.append(nl.add_route(self.addresses.whole, via=gateway, index=index))
            if self.many and next_mac is not None:
                made.append(nl.add_neighbour(index, gateway or self.server_address, next_mac(number)))
            return made

        return ops

    def know_containers(
        self, ns: Ns | None, device: str, address: Callable[[int], str], mac: Callable[[int], str]
    ) -> None:
        """With many containers: make them known as neighbours on a device."""
        if self.many and ns is not None:
            index = ns.rtnl.index(device)
            ns.rtnl.send(nl.add_neighbour(index, address(n), mac(n)) for n in range(self.spec.containers))

    def pairs_up(self, number: int) -> list[nl.Op]:
        """The host's end of pair `number` up: the least that `after` does."""
        return [nl.set_link(self.names.pair(number), up=True)]


#: No duplicate address detection, router discovery or repeated listener reports: addresses serve at once, and
#: nothing but the workload's packets is counted.
_QUIET_V6 = (
    ("accept_dad", "0"),
    ("dad_transmits", "0"),
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("router_solicitations", "0"),
    ("mldv2_unsolicited_report_interval", "1"),
)
LAST_METRIC = 1 << 30
#: Two ends of a pair with one number make the kernel wait up to a second before it tells that the link is up
#: (net/core/link_watch.c: such a device looks as if nothing stood below it, so its events are not urgent).
_WIRE_INDEXES = (100, 101)

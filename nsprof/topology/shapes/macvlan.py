"""macvlan: the container's device is a child of the wire, with a MAC address of its own."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import ETH, Maker
from nsprof.topology.namespaces import Ns
from nsprof.topology.plan import Macs
from nsprof.topology.shapes.base import Shape


def child_of_wire(m: Maker, kind: str, data: tuple[tuple[str, str | int], ...], *, own_mac: bool) -> None:
    """Containers whose eth0 is a child (macvlan, ipvlan) of the wire's host end."""
    m.host_up(m.names.wire, m.addresses.host)
    wire = m.host.rtnl.index(m.names.wire)

    def birth(number: int, ns: Ns) -> nl.Op:
        mac = Macs.container(number) if own_mac else ""
        return nl.add_link(kind, ETH, data=data, link=wire, netns_fd=ns.fd, mtu=m.spec.mtu, mac=mac)

    m.add_containers(birth, m.inside(m.addresses.container, lambda _: Macs.remote), host_device=False)
    m.know_containers(m.remote, ETH, m.addresses.container, Macs.container if own_mac else lambda _: Macs.wire)


def _make(m: Maker) -> None:
    child_of_wire(m, "macvlan", (("IFLA_MACVLAN_MODE", "bridge"),), own_mac=True)


SHAPE = Shape(
    name="macvlan",
    chain="client -> eth0 (child of w0) -> w0 ~ eth0 -> server",
    difference="one more device on the way out, a lookup by MAC address on the way in; no pair, bridge or routing",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |                         |      |               server |
|   |           |    |                         | wire |                 |    |
|   +- IP - eth0+----+---- child of ------ w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    own_offloads=False,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_MACVLAN"),
)

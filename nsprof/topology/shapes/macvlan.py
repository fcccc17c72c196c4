"""macvlan: the container's device is a child of the wire, with a MAC address of its own."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import Maker
from nsprof.topology.namespaces import Ns
from nsprof.topology.shapes.base import Shape


def child_of_wire(m: Maker, kind: str, data: tuple[tuple[str, str | int], ...]) -> None:
    """Containers whose eth0 is a child (macvlan, ipvlan) of the wire's host end."""
    m.host_up(m.names.wire, m.addresses.host)
    wire = m.host.rtnl.index(m.names.wire)

    def birth(_: int, ns: Ns) -> nl.Op:
        return nl.add_link(kind, "eth0", data=data, link=wire, netns_fd=ns.fd, mtu=m.spec.mtu)

    m.add_containers(birth, m.inside(m.addresses.container), host_device=False)


def _make(m: Maker) -> None:
    child_of_wire(m, "macvlan", (("IFLA_MACVLAN_MODE", "bridge"),))


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
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_MACVLAN"),
)

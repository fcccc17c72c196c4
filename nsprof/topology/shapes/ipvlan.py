"""ipvlan: the container's device is a child of the wire and shares its MAC address (mode L2)."""

from __future__ import annotations

from nsprof.topology.maker import Maker
from nsprof.topology.shapes.base import Shape
from nsprof.topology.shapes.macvlan import child_of_wire


def _make(m: Maker) -> None:
    child_of_wire(m, "ipvlan", (("IFLA_IPVLAN_MODE", 0),), own_mac=False)


SHAPE = Shape(
    name="ipvlan",
    chain="client -> eth0 (child of w0) -> w0 ~ eth0 -> server",
    difference="one more device on the way out, a lookup by IP address on the way in; no pair, bridge or routing",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |                         |      |               server |
|   |           |    |                         | wire |                 |    |
|   +- IP - eth0+----+-- child of, same MAC w0-+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    own_offloads=False,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_IPVLAN"),
)

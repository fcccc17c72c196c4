"""netkit: as veth-route, with a netkit pair (layer 3, no neighbour resolution) instead of a veth pair."""

from __future__ import annotations

from nsprof.topology.maker import Maker
from nsprof.topology.shapes.base import Shape
from nsprof.topology.shapes.veth_route import route_to_containers


def _make(m: Maker) -> None:
    route_to_containers(m, kind="netkit", l2=False)


SHAPE = Shape(
    name="netkit",
    chain="client -> eth0 ~ v0 (netkit) -> [ip_forward] -> w0 ~ eth0 -> server",
    difference="as veth-route; the pair hands packets over at layer 3, without the backlog queue on the way out",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |net-|  ip_forward             |      |               server |
|   |           |kit |     +--- route ---+     | wire |                 |    |
|   +- IP - eth0+~~~~+- v0 +             + w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_NETKIT"),
)

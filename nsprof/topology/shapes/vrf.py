"""vrf: as veth-route, with the pair and the wire enslaved to a VRF device, so that its table routes."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import Maker
from nsprof.topology.shapes.base import Shape
from nsprof.topology.shapes.veth_route import route_to_containers

_TABLE = 1001


def _make(m: Maker) -> None:
    name = m.names.vrf
    m.host.rtnl.send([nl.add_link("vrf", name, data=(("IFLA_VRF_TABLE", _TABLE),)), nl.set_link(name, up=True)])
    vrf = m.host.rtnl.index(name)
    m.chain_devices.append((m.host, name))
    m.host.rtnl.send([nl.set_link(m.names.wire, master=vrf)])
    route_to_containers(m, table=_TABLE, master=vrf)


SHAPE = Shape(
    name="vrf",
    chain="client -> eth0 ~ v0 -> vrf0 [table 1001, ip_forward] -> w0 ~ eth0 -> server",
    difference="as veth-route, plus the VRF device on the way in and its own routing table",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |  vrf0: table 1001       |      |               server |
|   |           |pair|     +--- route ---+     | wire |                 |    |
|   +- IP - eth0+~~~~+- v0 +             + w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_NET_VRF"),
)

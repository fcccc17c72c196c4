"""veth-nat: bridge, routed uplink, masquerade and connection tracking: what container engines do by default."""

from __future__ import annotations

from nsprof.topology import nft
from nsprof.topology.maker import Maker
from nsprof.topology.shapes.base import Shape
from nsprof.topology.shapes.veth_bridge_route import bridge_and_route


def _make(m: Maker) -> None:
    nft.program()  # before anything is made: the commonest lack
    m.state.nft = f"nsprof_{m.directory.run_id}"
    m.state.save()
    bridge_and_route(m, told=False)
    nft.masquerade(m.host.path, m.state.nft, m.spec.family, m.addresses.pods, m.names.wire)


SHAPE = Shape(
    name="veth-nat",
    chain="client -> eth0 ~ v0 -> br0 -> [conntrack, ip_forward, masquerade] -> w0 ~ eth0 -> server",
    difference="as veth-bridge-route, plus connection tracking and source NAT on every packet",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |   conntrack, masquerade |      |               server |
|   |           |    |        +- route -+      |      |                 |    |
|   |           |pair|        |         |      | wire |                 |    |
|   +- IP - eth0+~~~~+- v0 - br0        +- w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_BRIDGE", "CONFIG_NFT_MASQ", "CONFIG_NF_CONNTRACK"),
)

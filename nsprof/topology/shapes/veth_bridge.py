"""veth-bridge: a pair into the container; a bridge in the host joins it to the wire."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import ETH, Maker
from nsprof.topology.plan import Macs
from nsprof.topology.shapes.base import Shape


def _make(m: Maker) -> None:
    bridge = m.make_bridge()
    m.host.rtnl.send([nl.set_link(m.names.wire, master=bridge, up=True)])
    m.host_up(m.names.bridge, m.addresses.host)
    m.add_containers(m.pair_birth(master=bridge), m.inside(m.addresses.container, lambda _: Macs.remote), m.pairs_up)
    m.know_containers(m.remote, ETH, m.addresses.container, Macs.container)


SHAPE = Shape(
    name="veth-bridge",
    chain="client -> eth0 ~ v0 -> br0 -> w0 ~ eth0 -> server",
    difference="one pair and a pass through the bridge (learning, forwarding table); no routing in the host",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |                         |      |               server |
|   |           |pair|      +--- br0 ---+      | wire |                 |    |
|   +- IP - eth0+~~~~+- v0 -+           +- w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_BRIDGE"),
)

"""veth-bridge-route: a bridge in the host, a routed uplink, no NAT: what Kubernetes does by default."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import Maker
from nsprof.topology.plan import Macs
from nsprof.topology.shapes.base import Shape


def bridge_and_route(m: Maker, *, told: bool) -> None:
    """Containers on a bridge with a network of its own, routed to the wire; `told` gives the remote end the route."""
    a = m.addresses
    bridge = m.make_bridge()
    m.host_up(m.names.wire, a.host)
    m.host_up(m.names.bridge, a.pod_gateway)
    m.forward(m.names.wire, m.names.bridge)
    m.add_containers(
        m.pair_birth(master=bridge), m.inside(a.pod, lambda _: Macs.bridge, gateway=a.pod_gateway), m.pairs_up
    )
    m.know_containers(m.host, m.names.bridge, a.pod, Macs.container)
    if told and m.spec.remote != "vm":  # a guest is told when it is started
        m.far_end().rtnl.send([nl.add_route(a.pods, via=a.host)])


def _make(m: Maker) -> None:
    bridge_and_route(m, told=True)


SHAPE = Shape(
    name="veth-bridge-route",
    chain="client -> eth0 ~ v0 -> br0 -> [ip_forward] -> w0 ~ eth0 -> server",
    difference="one pair, the bridge (packets are delivered up to it), and one more pass through IP; no NAT",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |        +- route -+      |      |               server |
|   |           |pair|        |         |      | wire |                 |    |
|   +- IP - eth0+~~~~+- v0 - br0        +- w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_BRIDGE"),
)

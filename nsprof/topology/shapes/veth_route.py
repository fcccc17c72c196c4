"""veth-route: a pair into the container; the host routes and answers ARP for both sides.

The set-up that Daniel Lezcano described with his namespace benchmarks (lkml, March 2007): containers have
addresses of the wire's own network, the host has ip_forward, a host route to each container, and proxy ARP on the
wire and on the pair. One detail differs: the host's end of a pair has a /32, since a thousand copies of the
network's connected route would be measured with the rest. Proxy ARP's random delay (0.8 s) is off.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsprof.topology import netlink as nl
from nsprof.topology.maker import ETH, Maker
from nsprof.topology.plan import Macs
from nsprof.topology.shapes.base import Shape


def route_to_containers(m: Maker, *, kind: str = "veth", table: int = 254, master: int = -1, l2: bool = True) -> None:
    """Pairs into the containers, routed by the host; `l2` says that the pair resolves neighbours (netkit: no)."""
    a = m.addresses

    def after(number: int) -> Sequence[nl.Op]:
        name = m.names.pair(number)
        index = m.host.rtnl.index(name)
        ops = [
            nl.add_address(index, a.pair(number), a.full, f"{name} in the host"),
            nl.set_link(name, up=True),
            nl.add_route(f"{a.container(number)}/{a.full}", index=index, table=table),
        ]
        if a.family == 6:
            ops.append(nl.add_neighbour_proxy(wire_index, a.container(number)))
            if l2:
                ops.append(nl.add_neighbour_proxy(index, a.remote))
        if m.many and l2:
            ops.append(nl.add_neighbour(index, a.container(number), Macs.container(number)))
        return ops

    wire_index = m.host.rtnl.index(m.names.wire)
    m.host_up(m.names.wire, a.host)
    m.proxy(m.names.wire)
    m.forward(m.names.wire)
    m.add_containers(m.pair_birth(kind, master=master), m.inside(a.container, Macs.pair if l2 else None), after)
    m.know_containers(m.remote, ETH, a.container, lambda _: Macs.wire)
    pairs = [m.names.pair(n) for n in range(m.spec.containers)]
    m.forward(*pairs)
    if l2:
        m.proxy(*pairs)


def _make(m: Maker) -> None:
    route_to_containers(m)


SHAPE = Shape(
    name="veth-route",
    chain="client -> eth0 ~ v0 -> [ip_forward] -> w0 ~ eth0 -> server",
    difference="one pair and one more pass through IP (input, FIB lookup, forward, output); ARP answered by proxy",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |  ip_forward, proxy ARP  |      |               server |
|   |           |pair|     +--- route ---+     | wire |                 |    |
|   +- IP - eth0+~~~~+- v0 +             + w0 -+~~~~~~+-- eth0 -- IP ---+    |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
)

"""vxlan: a pair into the container, a bridge, and a VXLAN tunnel over the wire: what overlay networks do."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import ETH, Maker
from nsprof.topology.plan import Macs
from nsprof.topology.shapes.base import Shape

_ID = 18
_PORT = 4789  # RFC 7348


def _tunnel(m: Maker, name: str, local: str, remote: str, *, link: int, mtu: int, mac: str) -> nl.Op:
    far, near = ("IFLA_VXLAN_GROUP", "IFLA_VXLAN_LOCAL")
    if m.spec.family == 6:
        far, near = "IFLA_VXLAN_GROUP6", "IFLA_VXLAN_LOCAL6"
    data = (
        ("IFLA_VXLAN_ID", _ID),
        (far, remote),
        (near, local),
        ("IFLA_VXLAN_LINK", link),
        ("IFLA_VXLAN_PORT", _PORT),
        ("IFLA_VXLAN_LEARNING", 1),
    )
    return nl.add_link("vxlan", name, data=data, mtu=mtu, mac=mac)


def _make(m: Maker) -> None:
    a, names, remote = m.addresses, m.names, m.far_end()
    # Outer Ethernet, IP, UDP and VXLAN headers (RFC 7348) must fit into the wire's MTU.
    mtu = (m.spec.mtu or 1500) - (50 if m.spec.family == 4 else 70)
    m.host_up(names.wire, a.host)
    bridge = m.make_bridge()
    m.own_device(names.vxlan)
    near, far = m.host.rtnl.index(names.wire), remote.rtnl.index(ETH)
    m.host.rtnl.send([_tunnel(m, names.vxlan, a.host, a.remote, link=near, mtu=mtu, mac=Macs.vxlan)])
    m.quieten(names.vxlan)
    m.host.rtnl.send([nl.set_link(names.vxlan, master=bridge, up=True)])
    remote.rtnl.send([_tunnel(m, "vx0", a.remote, a.host, link=far, mtu=mtu, mac=Macs.remote_vxlan)])
    remote.rtnl.send(
        [
            nl.add_address(remote.rtnl.index("vx0"), a.pod_gateway, a.prefix, "the remote end of the tunnel"),
            nl.set_link("vx0", up=True),
        ]
    )
    m.server_address = a.pod_gateway
    inside = m.inside(a.pod, lambda _: Macs.remote_vxlan)
    m.add_containers(m.pair_birth(master=bridge, mtu=mtu), inside, m.pairs_up)
    m.know_containers(remote, "vx0", a.pod, Macs.container)
    m.chain_devices += [(m.host, names.vxlan), (remote, "vx0")]


SHAPE = Shape(
    name="vxlan",
    chain="client -> eth0 ~ v0 -> br0 -> vx0 -> [UDP, IP] -> w0 ~ eth0 -> [UDP] -> vx0 -> server",
    difference="one pair, the bridge, and an outer UDP and IP header put on and taken off; MTU 50 (IPv6: 70) smaller",
    drawing="""\
 container c0         host                             remote
+---------------+    +-------------------------+      +----------------------+
| client        |    |      +- br0 -+          |      |               server |
|   |           |    |      |       |          |      |                 |    |
|   |           |pair|      |      vx0 - UDP - |      | - UDP - vx0 ----+    |
|   +- IP - eth0+~~~~+- v0 -+             |    | wire |    |                 |
|               |    |                   w0 ---+~~~~~~+-- eth0               |
+---------------+    +-------------------------+      +----------------------+""",
    make=_make,
    needs=("CONFIG_NET_NS", "CONFIG_VETH", "CONFIG_BRIDGE", "CONFIG_VXLAN"),
)

"""device: the wire's host end is moved into the container, as a physical device can be."""

from __future__ import annotations

from nsprof.topology import netlink as nl
from nsprof.topology.maker import Maker
from nsprof.topology.shapes.base import Shape


def _make(m: Maker) -> None:
    wire = m.names.wire
    ns = m.directory.create("c0", "container")
    m.containers.append(ns)
    m.prepare_container(ns)
    m.host.rtnl.send([nl.set_link(wire, netns_fd=ns.fd)])
    address = m.addresses.container(0)
    m.container_addresses = [address]
    ns.rtnl.send(
        [
            nl.add_address(ns.rtnl.index(wire), address, m.addresses.prefix, "container 0"),
            nl.set_link(wire, up=True),
        ]
    )
    ns.close()
    m.reference_in_container = True
    m.chain_devices[0] = (ns, wire)


SHAPE = Shape(
    name="device",
    chain="client -> w0 ~ eth0 -> server",
    difference="the same devices; sockets, routing and addresses are the container's instead of the host's",
    drawing="""\
 host           container c0                    remote
+----------+   +------------------------+      +----------------------+
| (idle)   |   | client                 |      |               server |
|          |   |   |                    | wire |                 |    |
|          |   |   +-- IP -- w0 --------+~~~~~~+-- eth0 -- IP ---+    |
+----------+   +------------------------+      +----------------------+""",
    make=_make,
)

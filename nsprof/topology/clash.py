"""The initial namespace is the user's: find what test addresses would clash with there."""

from __future__ import annotations

import ipaddress

from nsprof.errors import TopologyError
from nsprof.topology.dumps import dump_addresses, dump_links, dump_routes
from nsprof.topology.netlink import Rtnl

__all__ = ["refuse_clash", "refuse_learned_default"]


def refuse_clash(rtnl: Rtnl, block: str) -> None:
    """Raise TopologyError if an address or a route of the socket's namespace lies in `block`."""
    ours = ipaddress.ip_network(block)
    names = {link.index: link.name for link in dump_links(rtnl)}
    for index, text in dump_addresses(rtnl):
        if _overlap(text, ours):
            raise TopologyError(
                f"address {text} on device {names.get(index, index)} lies in {block}, which the test needs",
                "leave out --host-netns init, or end the other run (nsprof topo list)",
            )
    for route in dump_routes(rtnl):
        if _overlap(route.network, ours):
            raise TopologyError(
                f"the route to {route.network} of this namespace overlaps {block}, which the test needs",
                "leave out --host-netns init, or end the other run (nsprof topo list)",
            )


def refuse_learned_default(rtnl: Rtnl) -> None:
    """Raise TopologyError if IPv6 forwarding would lose the user's default route: the kernel drops routes that a
    router advertisement brought as soon as any device forwards, and nobody could put them back."""
    if any(route.learned and route.network == "::/0" for route in dump_routes(rtnl)):
        raise TopologyError(
            "IPv6 forwarding in this namespace would delete its default route, which a router advertised",
            "leave out --host-netns init, or use IPv4",
        )


def _overlap(text: str, ours: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    network = ipaddress.ip_network(text, strict=False)
    if network.version != ours.version or network.prefixlen == 0:
        return False
    return network.overlaps(ours)

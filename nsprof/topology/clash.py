"""The initial namespace is the user's: find what test addresses would clash with there."""

from __future__ import annotations

import ipaddress

from nsprof.errors import TopologyError
from nsprof.topology import netlink as nl

__all__ = ["refuse_clash"]


def refuse_clash(rtnl: nl.Rtnl, block: str) -> None:
    """Raise TopologyError if an address or a route of the socket's namespace lies in `block`."""
    ours = ipaddress.ip_network(block)
    names = {link.index: link.name for link in nl.dump_links(rtnl)}
    for index, text in nl.dump_addresses(rtnl):
        if _overlap(text, ours):
            raise TopologyError(
                f"address {text} on device {names.get(index, index)} lies in {block}, which the test needs",
                "leave out --host-netns init, or end the other run (nsprof topo list)",
            )
    for text in nl.dump_routes(rtnl):
        if _overlap(text, ours):
            raise TopologyError(
                f"the route to {text} of this namespace overlaps {block}, which the test needs",
                "leave out --host-netns init, or end the other run (nsprof topo list)",
            )


def _overlap(text: str, ours: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    network = ipaddress.ip_network(text, strict=False)
    if network.version != ours.version or network.prefixlen == 0:
        return False
    return network.overlaps(ours)

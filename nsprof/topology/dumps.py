"""What is there already: devices, addresses and routes of a namespace, as pyroute2 reads them."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from nsprof.topology.netlink import Rtnl

__all__ = ["LinkInfo", "RouteInfo", "dump_addresses", "dump_links", "dump_routes"]

RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE = 18, 22, 26
_IFF_UP = 0x1


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """A device as the kernel lists it."""

    index: int
    name: str
    kind: str
    mtu: int
    address: str
    up: bool


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """A route's destination ("network/prefix"), and whether a router advertisement brought it (RTPROT_RA)."""

    network: str
    learned: bool


def dump_links(rtnl: Rtnl) -> list[LinkInfo]:
    """All devices of the socket's namespace."""
    found = []
    for raw in rtnl.dump(RTM_GETLINK, bytes(16)):
        message = ifinfmsg(raw)
        message.decode()
        info = message.get_attr("IFLA_LINKINFO")
        found.append(
            LinkInfo(
                index=int(message["index"]),
                name=str(message.get_attr("IFLA_IFNAME")),
                kind=str(info.get_attr("IFLA_INFO_KIND") or "") if info else "",
                mtu=int(message.get_attr("IFLA_MTU") or 0),
                address=str(message.get_attr("IFLA_ADDRESS") or ""),
                up=bool(message["flags"] & _IFF_UP),
            )
        )
    return found


def dump_addresses(rtnl: Rtnl) -> list[tuple[int, str]]:
    """(ifindex, "address/prefix") of all addresses of the socket's namespace."""
    found = []
    for raw in rtnl.dump(RTM_GETADDR, bytes(8)):
        message = ifaddrmsg(raw)
        message.decode()
        address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        found.append((int(message["index"]), f"{address}/{message['prefixlen']}"))
    return found


def dump_routes(rtnl: Rtnl) -> list[RouteInfo]:
    """All unicast routes of the socket's namespace."""
    found = []
    for raw in rtnl.dump(RTM_GETROUTE, bytes(12)):
        message = rtmsg(raw)
        message.decode()
        if message["type"] == 1:
            any_ = ipaddress.IPv4Address(0) if message["family"] == socket.AF_INET else ipaddress.IPv6Address(0)
            target = message.get_attr("RTA_DST") or any_
            found.append(RouteInfo(f"{target}/{message['dst_len']}", learned=message["proto"] == 9))
    return found

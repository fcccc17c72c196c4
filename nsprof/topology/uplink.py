"""A device of the user's as uplink: what it was like is written down, it is moved, and put back as it was.

Moving a device to another namespace takes its addresses, routes, neighbours, settings and queueing discipline from
it. What the kernel lists of these beforehand is kept as the very messages of its dump, so that what is put back is
what was there, attribute by attribute; what could not be put back is refused.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from nsprof.errors import TopologyError
from nsprof.netns import entered
from nsprof.topology import ethtool
from nsprof.topology import netlink as nl
from nsprof.topology.state import load_all

__all__ = ["put_back", "refuse", "snapshot"]

# include/uapi/linux/{rtnetlink,if_addr,neighbour,if_link}.h
_GETLINK, _GETADDR, _GETROUTE, _GETNEIGH, _GETQDISC = 18, 22, 26, 30, 38
_NEWADDR, _NEWROUTE, _NEWNEIGH = 20, 24, 28
_RTA_OIF, _RTA_MULTIPATH, _RTA_CACHEINFO, _RTA_GATEWAY, _RTA_VIA = 4, 9, 12, 5, 18
_CREATE, _REPLACE = 0x400, 0x100
_PERMANENT, _NTF_PROXY = 0x80, 0x08
_SETTINGS = ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh")
_PROC = Path("/proc/sys/net")


def refuse(door: nl.Rtnl, device: str, *, take: bool) -> None:
    """Raise TopologyError for a device that cannot be the uplink, or must not be unless `take` says so.

    The calling thread and `door` are in the device's namespace.
    """
    links = _links(door)
    link = links.get(device)
    if link is None:
        holder = next((s.run_id for s in load_all() if s.uplink.get("name") == device), "")
        if holder:
            raise TopologyError(
                f"uplink {device} is in use by topology {holder}",
                "wait for it, or 'nsprof topo clean' if it was killed",
            )
        others = sorted(name for name in links if name != "lo")
        raise TopologyError(
            f"uplink {device!r}: no such device in this namespace",
            f"there are: {', '.join(others)}" if others else "there is none but lo",
        )
    index = link["index"]
    if link["flags"] & 0x8:  # IFF_LOOPBACK
        raise TopologyError(f"uplink {device}: the loopback device leads nowhere", "name a network card")
    if link["master"]:
        raise TopologyError(
            f"uplink {device} is part of {_name(links, link['master'])}", f"ip link set {device} nomaster"
        )
    above = sorted(n for n, other in links.items() if other["link"] == index and other["kind"] != "veth")
    if above:
        raise TopologyError(f"devices stand on uplink {device}: {', '.join(above)}", f"ip link del {above[0]}")
    own = next((kind for kind, handle in _qdiscs(door, index) if handle), "")
    if own:
        raise TopologyError(
            f"uplink {device} has a queueing discipline of its own ({own}), which could not be put back as it was",
            f"tc qdisc del dev {device} {'clsact' if own == 'clsact' else 'ingress' if own == 'ingress' else 'root'}",
        )
    if take:
        return
    if any(raw[17] == 0 for raw in _routes(door, index)):
        raise TopologyError(
            f"uplink {device} carries this machine's default route, which would be gone while the test runs",
            "name another device, or add --take-uplink",
        )
    session = [*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""][2]
    if session and session in _addresses(door, index):
        raise TopologyError(
            f"this ssh session comes in by uplink {device} ({session}) and would hang while the test runs",
            "name another device, or add --take-uplink (in tmux or screen)",
        )


def snapshot(door: nl.Rtnl, device: str) -> dict[str, Any]:
    """What the device is like, as JSON. The calling thread and `door` are in its namespace."""
    link = _links(door)[device]
    index = link["index"]
    changeable, active = ethtool.masks(device)
    return {
        "name": device,
        "index": index,
        "mtu": link["mtu"],
        "up": bool(link["flags"] & 0x1),
        "mac": link["mac"],
        "kind": link["kind"],
        "features": [f"{changeable:x}", f"{active:x}"],
        "settings": dict(_settings(device)),
        "addresses": [raw.hex() for raw in _address_messages(door, index)],
        "routes": [raw.hex() for raw in _routes(door, index)],
        "neighbours": [raw.hex() for raw in _neighbours(door, index)],
    }


def put_back(was: Mapping[str, Any], home: str, places: list[str]) -> list[str]:
    """Bring the device home from whichever of the namespaces `places` it is in, and make it what it was.

    Returns what could not be put back, a line each.
    """
    device = str(was["name"])
    home_fd = os.open(home, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for place in places:
            with entered(place), nl.Rtnl() as door:
                link = _links(door).get(device)
                if link is not None and link["mac"] == was["mac"]:
                    door.send([nl.set_link(device, netns_fd=home_fd)])
                    break
    finally:
        os.close(home_fd)
    with entered(home), nl.Rtnl() as door:
        link = _links(door).get(device)
        if link is None or link["mac"] != was["mac"]:
            return [f"uplink {device}: the device exists no more, neither at home nor in the run's namespaces"]
        wrong = [] if link["index"] == was["index"] else [f"its number was {was['index']}, is {link['index']}"]
        ethtool.set_masks(device, *(int(word, 16) for word in was["features"]))
        wrong += _put_settings(was["settings"])
        door.send([nl.set_link(device, mtu=int(was["mtu"]), up=bool(was["up"]))])
        for what, kind in (("addresses", _NEWADDR), ("routes", _NEWROUTE), ("neighbours", _NEWNEIGH)):
            for raw in was[what]:
                message = _moved(bytes.fromhex(raw), int(was["index"]), int(link["index"]))
                try:
                    door.send([_again(message, kind, f"putting back {what} of {device}")])
                except TopologyError as error:
                    # Routes of a link that is down exist no more; the others are worth having.
                    wrong.append(error.message)
        # IPv6 settings of a device follow its going up.
        wrong += [] if not was["up"] else _put_settings(was["settings"])
    return [f"uplink {device}: {line}" for line in dict.fromkeys(wrong)]


# --- what is there


def _links(door: nl.Rtnl) -> dict[str, dict[str, Any]]:
    found = {}
    for raw in door.dump(_GETLINK, bytes(16)):
        message = ifinfmsg(raw)
        message.decode()
        info = message.get_attr("IFLA_LINKINFO")
        found[str(message.get_attr("IFLA_IFNAME"))] = {
            "index": int(message["index"]),
            "flags": int(message["flags"]),
            "mtu": int(message.get_attr("IFLA_MTU") or 0),
            "mac": str(message.get_attr("IFLA_ADDRESS") or ""),
            "master": int(message.get_attr("IFLA_MASTER") or 0),
            "link": int(message.get_attr("IFLA_LINK") or 0),
            "kind": str(info.get_attr("IFLA_INFO_KIND") or "") if info else "",
        }
    return found


def _name(links: Mapping[str, Mapping[str, Any]], index: int) -> str:
    return next((name for name, link in links.items() if link["index"] == index), str(index))


def _qdiscs(door: nl.Rtnl, index: int) -> Iterator[tuple[str, int]]:
    """(kind, handle); the kernel's own defaults have no handle."""
    for raw in door.dump(_GETQDISC, bytes(20)):
        message = tcmsg(raw)
        message.decode()
        if message["index"] == index:
            yield str(message.get_attr("TCA_KIND")), int(message["handle"])


def _address_messages(door: nl.Rtnl, index: int) -> list[bytes]:
    return [raw for raw in door.dump(_GETADDR, bytes(8)) if struct.unpack_from("=I", raw, 20)[0] == index]


def _addresses(door: nl.Rtnl, index: int) -> set[str]:
    found = set()
    for raw in _address_messages(door, index):
        for kind, value in _attributes(raw, 24):
            if kind in (1, 2):  # IFA_ADDRESS, IFA_LOCAL
                found.add(str(ipaddress.ip_address(value)))
    return found


def _routes(door: nl.Rtnl, index: int) -> list[bytes]:
    """Routes by the device but those that come with its addresses (local, broadcast, multicast, anycast), those
    without a gateway first: a gateway must be on a network that is known."""
    found: list[tuple[bool, int, bytes]] = []
    for raw in door.dump(_GETROUTE, bytes(12)):
        if raw[23] != 1 or raw[16] not in (2, 10) or raw[20] == 255:  # unicast, inet and inet6, not table local
            continue
        attributes = list(_attributes(raw, 28))
        direct = any(kind == _RTA_OIF and struct.unpack("=I", value)[0] == index for kind, value in attributes)
        several = any(kind == _RTA_MULTIPATH and _leads_by(value, index) for kind, value in attributes)
        if direct or several:
            gateway = any(kind in (_RTA_GATEWAY, _RTA_VIA, _RTA_MULTIPATH) for kind, _ in attributes)
            found.append((gateway, len(found), raw))
    return [raw for _, _, raw in sorted(found)]


def _leads_by(hops: bytes, index: int) -> bool:
    """Whether one of the next hops (struct rtnexthop) leaves by the device."""
    at = 0
    while at + 8 <= len(hops):
        length, _, _, number = struct.unpack_from("=HBBi", hops, at)
        if number == index:
            return True
        at += max(8, (length + 3) & ~3)
    return False


def _neighbours(door: nl.Rtnl, index: int) -> list[bytes]:
    """Neighbours that somebody entered (permanent), and addresses that the device answers for (proxies)."""
    kept = []
    for flags in (0, _NTF_PROXY):
        for raw in door.dump(_GETNEIGH, struct.pack("=BxxxiHBB", 0, 0, 0, flags, 0)):
            number, state = struct.unpack_from("=iH", raw, 20)
            # The kernel enters multicast addresses (type 5) and its own (2) by itself.
            ours = number == index and raw[16] in (2, 10) and raw[27] not in (2, 3, 5)
            if ours and (flags or state & _PERMANENT):
                kept.append(raw)
    return kept


def _attributes(raw: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(raw):
        length, kind = struct.unpack_from("=HH", raw, at)
        if length < 4:
            return
        yield kind & 0x3FFF, raw[at + 4 : at + length]
        at += (length + 3) & ~3


# --- putting back


def _moved(raw: bytes, was: int, now: int) -> bytes:
    """A dumped message for a device whose number has changed."""
    if was == now:
        return raw
    made = bytearray(raw)
    kind = struct.unpack_from("=H", raw, 4)[0]
    if kind in (_NEWADDR, _NEWNEIGH):
        struct.pack_into("=I", made, 20, now)
        return bytes(made)
    return bytes(made).replace(struct.pack("=HHI", 8, _RTA_OIF, was), struct.pack("=HHI", 8, _RTA_OIF, now))


def _again(raw: bytes, kind: int, what: str) -> nl.Op:
    """The request that makes what a dump has listed; what is there already is fine."""
    head = 28 if kind in (_NEWROUTE, _NEWNEIGH) else 24
    body = raw[16:head]
    for number, value in _attributes(raw, head):
        if kind == _NEWROUTE and number == _RTA_CACHEINFO:
            continue  # statistics; the kernel refuses them
        body += struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    if kind == _NEWROUTE:
        flags = struct.unpack_from("=I", body, 8)[0] & 0x4  # RTNH_F_ONLINK; the others are what the kernel found out
        body = body[:8] + struct.pack("=I", flags) + body[12:]
    flags = 0x1 | 0x4 | _CREATE | (_REPLACE if kind != _NEWROUTE else 0)
    data = struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body
    return nl.Op(what, data, tolerate=frozenset({errno.EEXIST}))


def _settings(device: str) -> Iterator[tuple[str, str]]:
    """Every setting of the device under /proc/sys/net that can be read, IPv6's switch first."""
    for folder in _SETTINGS:
        place = _PROC / folder / device
        if not place.is_dir():
            continue
        for path in sorted(place.iterdir(), key=lambda p: (p.name != "disable_ipv6", p.name)):
            try:
                yield str(path.relative_to(_PROC)), path.read_text().strip()
            except OSError:  # stable_secret that was never set
                continue


def _put_settings(settings: Mapping[str, str]) -> list[str]:
    wrong = []
    for name, value in settings.items():
        path = _PROC / name
        try:
            if path.read_text().strip() != value and not name.endswith("/mtu"):
                path.write_text(value)
        except OSError as error:
            wrong.append(f"net.{name.replace('/', '.')} was {value!r}: {error.strerror}")
    return wrong

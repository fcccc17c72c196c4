"""What stands on the datapath of the current namespace: filters, rules, taps, XDP programs, conntrack, bridge ports.

Numbers only, for `nsprof explain`: a set of 2,000 rules is a fact that agrees (or not) with the time spent in it.
Layouts: include/uapi/linux/{fib_rules,rtnetlink,if_link,netfilter/nfnetlink,netfilter/nf_tables}.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsprof.collect.system import rtdump

__all__ = ["facts"]

_GETRULE, _GETLINK, _GETTFILTER = 34, 18, 46
_NFT_GETRULE = (10 << 8) | 7  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETRULE
_NETLINK_NETFILTER = 12
_IFLA_MASTER, _IFLA_XDP, _IFLA_XDP_ATTACHED = 10, 43, 2
_XDP_MODES = {1: "driver", 2: "generic", 3: "hardware", 4: "several"}
_INGRESS, _EGRESS = 0xFFFFFFF2, 0xFFFFFFF3  # parents of clsact's two halves; ingress uses the first
_TCMSG = struct.Struct("=BxxxiIII")
_IFINFO = struct.Struct("=BxHiII")
_TCA_OPTIONS = 2


def facts() -> dict[str, Any]:
    """Counts of the calling thread's namespace; what this kernel cannot tell is absent."""
    found: dict[str, Any] = {
        "packet_sockets": max(0, len(_lines("packet")) - 1),
        "taps": sum(line.startswith("ALL") for line in _lines("ptype")),
        "routes": max(0, len(_lines("route")) - 1) + len(_lines("ipv6_route")),
        "iptables": sorted({*_lines("ip_tables_names"), *_lines("ip6_tables_names")}),
    }
    tracked = _text("/proc/sys/net/netfilter/nf_conntrack_count").strip()
    if tracked.isdecimal():
        found["conntrack_entries"] = int(tracked)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as channel:
        channel.settimeout(5)
        found["policy_rules"] = sum(
            _count(channel, _GETRULE, struct.pack("=B11x", family)) for family in (socket.AF_INET, socket.AF_INET6)
        )
        found |= _links(channel)
    found["nft_rules"] = _nft_rules()
    return {name: value for name, value in found.items() if value is not None}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="backslashreplace")
    except OSError:
        return ""


def _lines(name: str) -> list[str]:
    return _text(f"/proc/thread-self/net/{name}").splitlines()


def _count(channel: socket.socket, kind: int, body: bytes) -> int:
    try:
        return sum(1 for _ in rtdump._ask(channel, kind, body))
    except OSError:  # the kernel has no such thing
        return 0


def _links(channel: socket.socket) -> dict[str, Any]:
    """XDP programs by device, bridge ports by bridge, tc filters by device."""
    xdp: dict[str, str] = {}
    masters: dict[int, int] = {}
    names: dict[int, str] = {}
    for body in rtdump._ask(channel, _GETLINK, _IFINFO.pack(0, 0, 0, 0, 0)):
        _, _, ifindex, _, _ = _IFINFO.unpack_from(body)
        found = dict(rtdump._attributes(body[_IFINFO.size :]))
        names[ifindex] = bytes(found.get(3, b"")).rstrip(b"\0").decode("utf-8", "backslashreplace")
        master = found.get(_IFLA_MASTER)
        if master is not None:
            number = int.from_bytes(master, "little")
            masters[number] = masters.get(number, 0) + 1
        inner = dict(rtdump._attributes(found.get(_IFLA_XDP, memoryview(b""))))
        mode = inner.get(_IFLA_XDP_ATTACHED, b"\0")[0]
        if mode:
            xdp[names[ifindex]] = _XDP_MODES.get(mode, str(mode))
    filters = {name: count for index, name in names.items() if (count := _filters(channel, index))}
    return {
        "xdp": xdp,
        "bridge_ports": {names.get(index, str(index)): count for index, count in masters.items()},
        "tc_filters": filters,
    }


def _filters(channel: socket.socket, ifindex: int) -> int:
    return sum(
        sum(1 for _ in _with_options(channel, _TCMSG.pack(0, ifindex, 0, parent, 0)))
        for parent in (0, _INGRESS, _EGRESS)
    )


def _with_options(channel: socket.socket, body: bytes) -> Iterator[None]:
    """Filters proper: a classifier's own head has no options worth counting as a rule (handle 0)."""
    try:
        for answer in rtdump._ask(channel, _GETTFILTER, body):
            _, _, handle, _, _ = _TCMSG.unpack_from(answer)
            attributes = dict(rtdump._attributes(answer[_TCMSG.size :]))
            if handle & 0xFFF and _TCA_OPTIONS in attributes:
                yield None
    except OSError:  # no qdisc there that takes filters
        return


def _nft_rules() -> int | None:
    """Rules of all nftables chains (those of iptables-nft included); None where the kernel has no nftables."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as channel:
            channel.settimeout(5)
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            return sum(1 for _ in rtdump._ask(channel, _NFT_GETRULE, struct.pack("=BBH", 0, 0, 0)))
    except OSError:
        return None

"""Link and qdisc statistics of the current namespace, straight from rtnetlink.

Two dump requests and their fixed layouts only: a snapshot of a thousand namespaces must cost milliseconds, and a
general netlink library decodes every attribute of every link (docs/workloads.md has the measured difference).
Layouts: include/uapi/linux/{netlink,rtnetlink,if_link,pkt_sched,gen_stats}.h.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LINK_STATS", "Link", "Qdisc", "dump", "statistics"]

_NLMSG = struct.Struct("=IHHII")
_IFINFO = struct.Struct("=BxHiII")
_TCMSG = struct.Struct("=BxxxiIII")
_ATTR = struct.Struct("=HH")
_RTM_GETLINK, _RTM_GETQDISC = 18, 38
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFLA_IFNAME, _IFLA_MTU, _IFLA_QDISC, _IFLA_TXQLEN, _IFLA_LINKINFO = 3, 4, 6, 13, 18
_IFLA_STATS64, _IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES, _IFLA_GSO_MAX_SIZE = 23, 31, 32, 41
_IFLA_INFO_KIND = 1
_TCA_KIND, _TCA_STATS2 = 1, 7
_TCA_STATS_QUEUE = 3
_SO_NETNS_COOKIE = 71
_RCVBUF = 1 << 20

_LINK_STATS = """
rx_packets tx_packets rx_bytes tx_bytes rx_errors tx_errors rx_dropped tx_dropped multicast collisions
rx_length_errors rx_over_errors rx_crc_errors rx_frame_errors rx_fifo_errors rx_missed_errors
tx_aborted_errors tx_carrier_errors tx_fifo_errors tx_heartbeat_errors tx_window_errors rx_compressed
tx_compressed rx_nohandler rx_otherhost_dropped
"""
#: Fields of struct rtnl_link_stats64 in order; older kernels have fewer.
LINK_STATS = tuple(_LINK_STATS.split())


class Link(NamedTuple):
    """A device, its settings, and its 64-bit statistics in the order of LINK_STATS."""

    ifindex: int
    name: str
    stats: tuple[int, ...]
    up: bool = False
    kind: str = ""  # "veth", "bridge", ...; "" for hardware and lo
    mtu: int = 0
    qdisc: str = ""
    tx_queue_len: int = 0
    tx_queues: int = 0
    rx_queues: int = 0
    gso_max_bytes: int = 0


class Qdisc(NamedTuple):
    """A qdisc's queue statistics (32-bit counters but for qlen and backlog, which are levels)."""

    ifindex: int
    kind: str
    parent: int
    qlen: int
    backlog_bytes: int
    drops: int
    requeues: int
    overlimits: int


def dump() -> tuple[int, list[Link], list[Qdisc]]:
    """(namespace cookie or 0, links, qdiscs) of the calling thread's namespace. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RCVBUF)
        channel.settimeout(5)
        try:
            cookie = int.from_bytes(channel.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
        except OSError:  # before Linux 5.14
            cookie = 0
        links = [_link(body) for body in _ask(channel, _RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0))]
        qdiscs = [_qdisc(body) for body in _ask(channel, _RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0))]
    return cookie, links, [q for q in qdiscs if q is not None]


def _ask(channel: socket.socket, kind: int, body: bytes) -> Iterator[memoryview]:
    channel.send(_NLMSG.pack(_NLMSG.size + len(body), kind, _NLM_F_REQUEST_DUMP, 1, 0) + body)
    while True:
        data = memoryview(channel.recv(1 << 17))
        while len(data) >= _NLMSG.size:
            length, answer, _, _, _ = _NLMSG.unpack_from(data)
            if length < _NLMSG.size:
                raise OSError("netlink message of no length")
            if answer == _NLMSG_DONE:
                return
            if answer == _NLMSG_ERROR:
                code = struct.unpack_from("=i", data, _NLMSG.size)[0]
                raise OSError(-code, "netlink dump refused")
            yield data[_NLMSG.size : length]
            data = data[(length + 3) & ~3 :]


def _attributes(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    while len(data) >= _ATTR.size:
        length, kind = _ATTR.unpack_from(data)
        if length < _ATTR.size:
            return
        yield kind & 0x3FFF, data[_ATTR.size : length]
        data = data[(length + 3) & ~3 :]


def _link(body: memoryview) -> Link:
    _, _, ifindex, flags, _ = _IFINFO.unpack_from(body)
    found = dict(_attributes(body[_IFINFO.size :]))
    stats = found.get(_IFLA_STATS64, memoryview(b""))
    kind = dict(_attributes(found.get(_IFLA_LINKINFO, memoryview(b"")))).get(_IFLA_INFO_KIND, b"")

    def number(attribute: int) -> int:
        return int.from_bytes(found.get(attribute, b""), sys.byteorder)

    return Link(
        ifindex,
        _string(found.get(_IFLA_IFNAME, b"")),
        struct.unpack_from(f"={min(len(stats) // 8, len(LINK_STATS))}Q", stats),
        bool(flags & 1),  # IFF_UP
        _string(kind),
        number(_IFLA_MTU),
        _string(found.get(_IFLA_QDISC, b"")),
        number(_IFLA_TXQLEN),
        number(_IFLA_NUM_TX_QUEUES),
        number(_IFLA_NUM_RX_QUEUES),
        number(_IFLA_GSO_MAX_SIZE),
    )


def _string(value: bytes | memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode("utf-8", "backslashreplace")


def _qdisc(body: memoryview) -> Qdisc | None:
    _, ifindex, _, parent, _ = _TCMSG.unpack_from(body)
    name = ""
    for kind, value in _attributes(body[_TCMSG.size :]):
        if kind == _TCA_KIND:
            name = _string(value)
        elif kind == _TCA_STATS2:
            for inner, queue in _attributes(value):
                if inner == _TCA_STATS_QUEUE:
                    qlen, backlog, drops, requeues, overlimits = struct.unpack_from("=5I", queue)
                    return Qdisc(ifindex, name, parent, qlen, backlog, drops, requeues, overlimits)
    return None


_IF_STATS = struct.Struct("=BxxxII")
_RTM_GETSTATS = 94
_IFLA_STATS_LINK_64 = 1


def statistics() -> tuple[int, NDArray[np.uint32], NDArray[np.uint64]]:
    """(namespace cookie or 0, ifindexes, a row of LINK_STATS for each) of the calling thread's namespace.

    Nothing but the counters is asked for (RTM_GETSTATS, Linux 4.7+): a tenth of what a dump of the links carries,
    for those who read many namespaces, or one with a thousand devices, every second. Raises OSError.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RCVBUF)
        channel.settimeout(5)
        try:
            cookie = int.from_bytes(channel.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")
        except OSError:  # before Linux 5.14
            cookie = 0
        indexes: list[NDArray[np.uint32]] = []
        rows: list[NDArray[np.uint64]] = []
        body = _IF_STATS.pack(0, 0, 1 << (_IFLA_STATS_LINK_64 - 1))
        channel.send(_NLMSG.pack(_NLMSG.size + len(body), _RTM_GETSTATS, _NLM_F_REQUEST_DUMP, 1, 0) + body)
        while True:
            data = channel.recv(1 << 17)
            length, answer, _, _, _ = _NLMSG.unpack_from(data)
            if answer == _NLMSG_DONE:
                break
            if answer == _NLMSG_ERROR:
                raise OSError(-struct.unpack_from("=i", data, _NLMSG.size)[0], "netlink dump refused")
            found = _statistics(data, length)
            indexes.append(found[0])
            rows.append(found[1])
            rest = data[len(found[0]) * length :]  # the end may come with the last devices or alone
            if len(rest) >= _NLMSG.size and _NLMSG.unpack_from(rest)[1] == _NLMSG_DONE:
                break
    if not rows:
        return cookie, np.zeros(0, "u4"), np.zeros((0, len(LINK_STATS)), "u8")
    return cookie, np.concatenate(indexes), np.concatenate(rows)


def _statistics(data: bytes, length: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """The messages of one datagram. They are all alike (header, ifindex, one attribute), so they are one array."""
    at = _NLMSG.size + _IF_STATS.size
    size, kind = _ATTR.unpack_from(data, at)
    fields = min((size - _ATTR.size) // 8, len(LINK_STATS))
    if kind & 0x3FFF != _IFLA_STATS_LINK_64 or length % 4 or len(data) < length:
        raise OSError("statistics of links have another layout than the kernel documents")
    layout = np.dtype(
        {
            "names": ["length", "ifindex", "stats"],
            "formats": ["u4", "u4", ("u8", (fields,))],
            "offsets": [0, _NLMSG.size + 4, at + _ATTR.size],
            "itemsize": length,
        }
    )
    table = np.frombuffer(data, layout, len(data) // length)
    table = table[: int(np.argmin(table["length"] == length)) or len(table)]  # a final message of another kind
    stats = np.zeros((len(table), len(LINK_STATS)), "u8")
    stats[:, :fields] = table["stats"]
    return table["ifindex"].copy(), stats

"""Route netlink in batches: pyroute2 knows the messages, one socket a namespace carries them.

Why not pyroute2's own `IPRoute`: it starts an event loop a socket and sends one request a round trip. Here a
request is only encoded by pyroute2; sixty of them go out in one `send`, and the kernel's answers (with its own
words, the extended ACK) are read back and matched by sequence number. Only this module and `dumps` know pyroute2.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import nla
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg, ifinfveth
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from nsprof.errors import TopologyError
from nsprof.topology.capability import refused

__all__ = [
    "Op",
    "Rtnl",
    "add_address",
    "add_clsact",
    "add_egress_program",
    "add_link",
    "add_neighbour",
    "add_neighbour_proxy",
    "add_pair",
    "add_route",
    "del_link",
    "del_unreachable",
    "set_link",
    "shape_rate",
]

# include/uapi/linux/{netlink,rtnetlink,if,if_addr,neighbour,pkt_sched}.h
RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR = 16, 17, 20
RTM_NEWROUTE, RTM_DELROUTE, RTM_NEWNEIGH, RTM_NEWQDISC = 24, 25, 28, 36
RTM_NEWTFILTER = 44
_REQUEST, _ACK, _DUMP, _CREATE_EXCL, _REPLACE = 0x1, 0x4, 0x300, 0x600, 0x500
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_IFF_UP = 0x1
_IFA_F_NODAD = 0x02
_IFF_RUNNING = 0x40
_SIOCGIFFLAGS, _SIOCGIFINDEX = 0x8913, 0x8933
_TC_H_ROOT = 0xFFFFFFFF
_BATCH = 64


class _Netkit(nla):  # type: ignore[misc]
    """IFLA_INFO_DATA of a netkit pair (include/uapi/linux/if_link.h, Linux 6.7); pyroute2 0.9 has no such kind."""

    nla_map = (
        ("IFLA_NETKIT_UNSPEC", "none"),
        ("IFLA_NETKIT_PEER_INFO", "peer"),
        ("IFLA_NETKIT_PRIMARY", "uint8"),
        ("IFLA_NETKIT_POLICY", "uint32"),
        ("IFLA_NETKIT_PEER_POLICY", "uint32"),
        ("IFLA_NETKIT_MODE", "uint32"),
    )

    @staticmethod
    def peer(*_: Any, **__: Any) -> Any:
        """The class that encodes the peer's ifinfomsg and attributes."""
        return ifinfveth


ifinfmsg.ifinfo.data_map.setdefault("netkit", _Netkit)


@dataclass(frozen=True, slots=True)
class Op:
    """One request: what it does in words (for the error), its bytes, and the device kind it needs, if any."""

    what: str
    data: bytes
    kind: str = ""
    tolerate: frozenset[int] = frozenset()


def _encode(message: Any, kind: int, request: int, /, **fields: Any) -> bytes:
    attrs = fields.pop("attrs", [])
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = attrs
    message["header"] = {"type": kind, "flags": _REQUEST | request, "sequence_number": 0, "pid": 0}
    message.encode()
    return bytes(message.data)


def _link_attrs(
    *,
    name: str = "",
    link: int = 0,
    netns_fd: int = -1,
    master: int = -1,
    mtu: int = 0,
    mac: str = "",
) -> list[list[Any]]:
    attrs: list[list[Any]] = []
    if name:
        attrs.append(["IFLA_IFNAME", name])
    if link:
        attrs.append(["IFLA_LINK", link])
    if netns_fd >= 0:
        attrs.append(["IFLA_NET_NS_FD", netns_fd])
    if master >= 0:
        attrs.append(["IFLA_MASTER", master])
    if mtu:
        attrs.append(["IFLA_MTU", mtu])
    if mac:
        attrs.append(["IFLA_ADDRESS", mac])
    return attrs


def add_link(
    kind: str,
    name: str,
    *,
    data: Sequence[tuple[str, Any]] = (),
    link: int = 0,
    netns_fd: int = -1,
    mtu: int = 0,
    mac: str = "",
) -> Op:
    """Make a device of `kind`; `link` is the ifindex it stands on, `netns_fd` the namespace it is born into."""
    info: list[list[Any]] = [["IFLA_INFO_KIND", kind]]
    if data:
        info.append(["IFLA_INFO_DATA", {"attrs": [list(pair) for pair in data]}])
    attrs = _link_attrs(name=name, link=link, netns_fd=netns_fd, mtu=mtu, mac=mac)
    attrs.append(["IFLA_LINKINFO", {"attrs": info}])
    raw = _encode(ifinfmsg(), RTM_NEWLINK, _ACK | _CREATE_EXCL, attrs=attrs)
    return Op(f"making {kind} device {name}", raw, kind=kind)


def add_pair(
    name: str,
    peer: str,
    peer_netns_fd: int,
    *,
    kind: str = "veth",
    mtu: int = 0,
    master: int = -1,
    macs: tuple[str, str] = ("", ""),
    indexes: tuple[int, int] = (0, 0),
) -> Op:
    """Make a veth or netkit pair whose peer is born in another namespace (it never passes through this one).

    `indexes` are the two ifindexes wished for (0: the kernel's choice).
    """
    far = {"index": indexes[1], "attrs": _link_attrs(name=peer, netns_fd=peer_netns_fd, mtu=mtu, mac=macs[1])}
    attribute = "VETH_INFO_PEER" if kind == "veth" else "IFLA_NETKIT_PEER_INFO"
    attrs = _link_attrs(name=name, mtu=mtu, master=master, mac=macs[0])
    attrs.append(
        ["IFLA_LINKINFO", {"attrs": [["IFLA_INFO_KIND", kind], ["IFLA_INFO_DATA", {"attrs": [[attribute, far]]}]]}]
    )
    raw = _encode(ifinfmsg(), RTM_NEWLINK, _ACK | _CREATE_EXCL, index=indexes[0], attrs=attrs)
    return Op(f"making {kind} pair {name}", raw, kind=kind)


@functools.lru_cache(maxsize=64)  # "lo up", "eth0 up": the same a thousand times
def set_link(name: str, *, up: bool | None = None, master: int = -1, netns_fd: int = -1, mtu: int = 0) -> Op:
    """Change a device by its name: up or down, its bridge or VRF, its namespace, its MTU."""
    attrs = _link_attrs(name=name, master=master, netns_fd=netns_fd, mtu=mtu)
    flags = {} if up is None else {"flags": _IFF_UP if up else 0, "change": _IFF_UP}
    return Op(f"setting device {name}", _encode(ifinfmsg(), RTM_NEWLINK, _ACK, attrs=attrs, **flags))


def del_link(name: str) -> Op:
    """Remove a device by its name; one that is already gone is no error."""
    raw = _encode(ifinfmsg(), RTM_DELLINK, _ACK, attrs=[["IFLA_IFNAME", name]])
    return Op(f"removing device {name}", raw, tolerate=frozenset({errno.ENODEV}))


# Most of what pyroute2 costs is encoding, and a thousand containers want thousands of requests that differ in an
# index and an address only. Those are encoded once with the marks below, which are then replaced.
_MARK_INDEX = 0x0F1E2D3C
_MARK_MAC = "66:77:88:99:aa:bb"
_MARKS: dict[int, tuple[str, str]] = {
    socket.AF_INET: ("90.165.90.161", "90.165.90.162"),
    socket.AF_INET6: ("5aa5:5aa5:5aa5:5aa5:5aa5:5aa5:5aa5:1", "5aa5:5aa5:5aa5:5aa5:5aa5:5aa5:5aa5:2"),
}


def _fill(template: bytes, family: int, index: int, *addresses: str, mac: str = "") -> bytes:
    """The template with its marks replaced: the device's index, one or two addresses, the hardware address."""
    made = template.replace(struct.pack("=I", _MARK_INDEX), struct.pack("=I", index))
    for mark, address in zip(_MARKS[family], addresses, strict=False):
        if address:
            made = made.replace(socket.inet_pton(family, mark), socket.inet_pton(family, address))
    if mac:
        made = made.replace(bytes.fromhex(_MARK_MAC.replace(":", "")), bytes.fromhex(mac.replace(":", "")))
    return made


def add_address(index: int, address: str, prefix: int, where: str) -> Op:
    """Give device `index` an address; IPv6 without duplicate address detection, so that it serves at once."""
    family = _family(address)
    return Op(
        f"giving {where} the address {address}/{prefix}", _fill(_address(family, prefix), family, index, address)
    )


@functools.cache
def _address(family: int, prefix: int) -> bytes:
    mark = _MARKS[family][0]
    attrs: list[list[Any]] = [["IFA_LOCAL", mark], ["IFA_ADDRESS", mark]]
    if family == socket.AF_INET6:
        attrs.append(["IFA_FLAGS", _IFA_F_NODAD])
    fields = {"family": family, "prefixlen": prefix, "index": _MARK_INDEX}
    return _encode(ifaddrmsg(), RTM_NEWADDR, _ACK | _CREATE_EXCL, **fields, attrs=attrs)


def add_route(
    network: str, *, via: str = "", index: int = 0, table: int = 254, metric: int = 0, unreachable: bool = False
) -> Op:
    """Add a route to `network` ("198.18.0.0/15"); without `via` it is on link at device `index`."""
    target, _, prefix = network.partition("/")
    family = _family(target)
    template = _route(family, int(prefix), bool(via), bool(index), (table, metric), unreachable)
    return Op(f"adding the route to {network}", _fill(template, family, index, target, via))


@functools.cache
def _route(family: int, prefix: int, via: bool, index: bool, number: tuple[int, int], unreachable: bool, /) -> bytes:
    (table, metric), (target, gateway) = number, _MARKS[family]
    attrs: list[list[Any]] = [["RTA_DST", target], ["RTA_TABLE", table]]
    if via:
        attrs.append(["RTA_GATEWAY", gateway])
    if index:
        attrs.append(["RTA_OIF", _MARK_INDEX])
    if metric:
        attrs.append(["RTA_PRIORITY", metric])
    return _encode(
        rtmsg(),
        RTM_NEWROUTE,
        _ACK | _CREATE_EXCL,
        family=family,
        dst_len=prefix,
        table=table if table < 256 else 252,  # RT_TABLE_COMPAT: the attribute holds the number
        proto=4,  # RTPROT_STATIC
        scope=0 if via or unreachable or family == socket.AF_INET6 else 253,  # universe, link
        type=7 if unreachable else 1,
        attrs=attrs,
    )


def del_unreachable(network: str, metric: int) -> Op:
    """Remove the unreachable route to `network`; one that is already gone is no error."""
    op = add_route(network, metric=metric, unreachable=True)
    raw = bytearray(op.data)
    struct.pack_into("=HH", raw, 4, RTM_DELROUTE, _REQUEST | _ACK)
    return Op(f"removing the route to {network}", bytes(raw), tolerate=frozenset({errno.ESRCH}))


def add_neighbour(index: int, address: str, mac: str) -> Op:
    """Make the hardware address of a neighbour known for ever."""
    family = _family(address)
    return Op(f"making the neighbour {address} known", _fill(_neighbour(family), family, index, address, mac=mac))


@functools.cache
def _neighbour(family: int) -> bytes:
    fields = {"family": family, "ifindex": _MARK_INDEX, "state": 0x80}  # NUD_PERMANENT
    attrs = [["NDA_DST", _MARKS[family][0]], ["NDA_LLADDR", _MARK_MAC]]
    return _encode(ndmsg(), RTM_NEWNEIGH, _ACK | _REPLACE, **fields, attrs=attrs)


def add_neighbour_proxy(index: int, address: str) -> Op:
    """Answer neighbour solicitations for an IPv6 address on device `index` (proxy NDP wants them one by one)."""
    return Op(f"answering for {address}", _fill(_proxy(), socket.AF_INET6, index, address))


@functools.cache
def _proxy() -> bytes:
    fields = {"family": socket.AF_INET6, "ifindex": _MARK_INDEX, "state": 0x80, "flags": 0x08}  # NTF_PROXY
    attrs = [["NDA_DST", _MARKS[socket.AF_INET6][0]]]
    return _encode(ndmsg(), RTM_NEWNEIGH, _ACK | _CREATE_EXCL, **fields, attrs=attrs)


def shape_rate(index: int, rate_bps: int, burst_bytes: int, limit_bytes: int, where: str) -> Op:
    """Limit what device `index` sends with a token bucket (tbf) whose bucket holds a GSO skb whole."""
    rate = rate_bps // 8
    burst_ticks = round(burst_bytes / rate * 1e9) // 64  # psched ticks are 64 ns (PSCHED_SHIFT 6)
    spec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 0xFFFFFFFF))  # linklayer ethernet: no rate table
    parms = spec + bytes(12) + struct.pack("=III", limit_bytes, burst_ticks, 0)
    options = _attribute(1, parms) + _attribute(6, struct.pack("=I", burst_bytes))  # TCA_TBF_PARMS, _BURST
    if rate > 0xFFFFFFFF:
        options += _attribute(4, struct.pack("=Q", rate))  # TCA_TBF_RATE64
    raw = bytearray(
        _encode(
            tcmsg(),
            RTM_NEWQDISC,
            _ACK | _CREATE_EXCL,
            index=index,
            handle=0x10000,
            parent=_TC_H_ROOT,
            attrs=[["TCA_KIND", "tbf"]],
        )
    )
    raw += _attribute(2, options)  # TCA_OPTIONS: pyroute2 knows neither _BURST nor table-less rates
    struct.pack_into("=I", raw, 0, len(raw))
    return Op(f"limiting {where} to {rate_bps} bit/s", bytes(raw), kind="tbf")


def add_clsact(index: int) -> Op:
    """Where programs can be attached to what device `index` sends and receives."""
    fields = {"index": index, "handle": 0xFFFF0000, "parent": 0xFFFFFFF1}  # TC_H_CLSACT
    raw = _encode(tcmsg(), RTM_NEWQDISC, _ACK | _CREATE_EXCL, **fields, attrs=[["TCA_KIND", "clsact"]])
    return Op("making a place for programs (clsact)", raw, kind="clsact")


def add_egress_program(index: int, fd: int, name: str) -> Op:
    """Run a BPF program of type SCHED_CLS, whose return value decides, for each skb that device `index` sends."""
    raw = bytearray(
        _encode(
            tcmsg(),
            RTM_NEWTFILTER,
            _ACK | _CREATE_EXCL,
            index=index,
            parent=0xFFFFFFF3,  # TC_H_CLSACT with TC_H_MIN_EGRESS
            info=1 << 16 | socket.htons(3),  # priority 1, ETH_P_ALL
            attrs=[["TCA_KIND", "bpf"]],
        )
    )
    # TCA_BPF_FD, _NAME, _FLAGS (TCA_BPF_FLAG_ACT_DIRECT)
    options = _attribute(6, struct.pack("=I", fd)) + _attribute(7, name.encode() + b"\0")
    raw += _attribute(2, options + _attribute(8, struct.pack("=I", 1)))
    struct.pack_into("=I", raw, 0, len(raw))
    return Op(f"attaching program {name}", bytes(raw), kind="cls_bpf")


def _attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Rtnl:
    """A route-netlink socket in the namespace in which the calling thread is when it is made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        try:
            self._socket.bind((0, 0))
            self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
            self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        except OSError:
            self._socket.close()
            raise
        self._sequence = 0

    def close(self) -> None:
        """Close the socket; the namespace no longer lives by it."""
        self._socket.close()

    def __enter__(self) -> Rtnl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cookie(self) -> int:
        """The cookie of the socket's namespace, 0 before Linux 5.14."""
        try:
            return int.from_bytes(self._socket.getsockopt(socket.SOL_SOCKET, 71, 8), "little")  # SO_NETNS_COOKIE
        except OSError:
            return 0

    def index(self, name: str) -> int:
        """The ifindex of a device of the socket's namespace."""
        try:
            answer = fcntl.ioctl(self._socket, _SIOCGIFINDEX, struct.pack("16si20x", name.encode(), 0))
        except OSError as error:
            raise TopologyError(f"device {name}: {error.strerror}") from error
        return int(struct.unpack_from("i", answer, 16)[0])

    def running(self, name: str) -> bool:
        """Whether a device's link is up and its transmit queues are in use (IFF_RUNNING)."""
        try:
            answer = fcntl.ioctl(self._socket, _SIOCGIFFLAGS, struct.pack("16sh22x", name.encode(), 0))
        except OSError as error:
            raise TopologyError(f"device {name}: {error.strerror}") from error
        return bool(struct.unpack_from("h", answer, 16)[0] & _IFF_RUNNING)

    def send(self, ops: Iterable[Op]) -> None:
        """Do all requests, in order. Raises TopologyError for the first that the kernel refused."""
        waiting = list(ops)
        for start in range(0, len(waiting), _BATCH):
            self._send_batch(waiting[start : start + _BATCH])

    def _send_batch(self, ops: list[Op]) -> None:
        first = self._sequence + 1
        message = bytearray()
        for op in ops:
            self._sequence += 1
            at = len(message)
            message += op.data + bytes(-len(op.data) % 4)
            struct.pack_into("=I", message, at + 8, self._sequence)
        self._socket.send(message)
        failed: tuple[Op, int, str] | None = None
        left = len(ops)
        while left:
            for kind, sequence, body, flags in _messages(self._socket.recv(1 << 16)):
                if kind != 2 or not first <= sequence <= self._sequence:  # NLMSG_ERROR
                    continue
                left -= 1
                op = ops[sequence - first]
                code = -struct.unpack_from("=i", body)[0]
                if code and code not in op.tolerate and failed is None:
                    failed = (op, code, _kernel_words(body, flags))
        if failed is not None:
            raise _refusal(*failed)

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """The bodies of the answers to a dump request, header included."""
        self._sequence += 1
        header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _DUMP, self._sequence, 0)
        self._socket.send(header + body)
        while True:
            raw = self._socket.recv(1 << 18)
            at = 0
            while at + 16 <= len(raw):
                length, answer, _, _, _ = struct.unpack_from("=IHHII", raw, at)
                if answer == 3:  # NLMSG_DONE
                    return
                if answer == 2:
                    code = -struct.unpack_from("=i", raw, at + 16)[0]
                    raise TopologyError(f"listing devices, addresses or routes: {os.strerror(code)}")
                yield raw[at : at + length]
                at += (length + 3) & ~3


def _messages(raw: bytes) -> Iterator[tuple[int, int, bytes, int]]:
    at = 0
    while at + 16 <= len(raw):
        length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", raw, at)
        yield kind, sequence, raw[at + 16 : at + length], flags
        at += (length + 3) & ~3


def _kernel_words(body: bytes, flags: int) -> str:
    """The message of an extended ACK: NLM_F_ACK_TLVS 0x200, after the capped copy of the request's header."""
    if not flags & 0x200:
        return ""
    at = 4 + (16 if flags & 0x100 else struct.unpack_from("=I", body, 4)[0])
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        if kind == 1:  # NLMSGERR_ATTR_MSG
            return body[at + 4 : at + length].rstrip(b"\0").decode("utf-8", "replace")
        at += (length + 3) & ~3
    return ""


_KERNEL_CONFIG = {
    "veth": "CONFIG_VETH",
    "bridge": "CONFIG_BRIDGE",
    "macvlan": "CONFIG_MACVLAN",
    "ipvlan": "CONFIG_IPVLAN",
    "vrf": "CONFIG_NET_VRF",
    "vxlan": "CONFIG_VXLAN",
    "netkit": "CONFIG_NETKIT (Linux 6.7 or later)",
    "tbf": "CONFIG_NET_SCH_TBF",
    "clsact": "CONFIG_NET_SCH_INGRESS",
    "cls_bpf": "CONFIG_NET_CLS_BPF",
}


def _refusal(op: Op, code: int, words: str) -> TopologyError:
    config = _KERNEL_CONFIG.get(op.kind, "")
    if code in (errno.EOPNOTSUPP, errno.ENOENT) and config:
        module = {"tbf": "sch_tbf", "clsact": "sch_ingress"}.get(op.kind, op.kind)
        return TopologyError(
            f"this kernel ({os.uname().release}) has no {op.kind}: it wants {config}",
            f"try 'modprobe {module}', a kernel package with extra modules, or another kernel",
        )
    reason = os.strerror(code) + (f" ({words})" if words else "")
    hint = refused("CAP_NET_ADMIN") if code in (errno.EPERM, errno.EACCES) else ""
    return TopologyError(f"{op.what}: {reason}", hint)

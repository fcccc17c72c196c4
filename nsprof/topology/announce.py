"""Telling another machine which hardware address a test address has now.

The far end of an uplink outlives a topology and remembers its neighbours: of the same addresses behind another
hardware address it would learn only when the old ones had failed, ten seconds later. A gratuitous ARP (RFC 5227) or
an unsolicited neighbour advertisement (RFC 4861) is believed at once.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from nsprof.errors import TopologyError
from nsprof.netns import entered
from nsprof.topology.capability import refused

__all__ = ["announce"]

_ALL_NODES = socket.inet_pton(socket.AF_INET6, "ff02::1")


def announce(netns: str, device: str, known: Iterable[tuple[str, str]]) -> None:
    """Send it out of a device for each (address, hardware address)."""
    with entered(netns):
        try:
            door = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC)
        except PermissionError as error:
            raise TopologyError(
                f"a packet socket to announce the addresses on {device} was refused: {error.strerror}",
                refused("CAP_NET_RAW"),
            ) from error
    with door:
        door.bind((device, 0))
        for address, mac in known:
            hardware = bytes.fromhex(mac.replace(":", ""))
            door.send(_advertisement(address, hardware) if ":" in address else _arp(address, hardware))


def _arp(address: str, mac: bytes) -> bytes:
    own = socket.inet_pton(socket.AF_INET, address)
    head = b"\xff" * 6 + mac + struct.pack("!H", 0x0806)
    return head + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac + own + bytes(6) + own


def _advertisement(address: str, mac: bytes) -> bytes:
    own = socket.inet_pton(socket.AF_INET6, address)
    override = 0x20000000
    body = struct.pack("!BBHI", 136, 0, 0, override) + own + b"\x02\x01" + mac
    pseudo = own + _ALL_NODES + struct.pack("!II", len(body), 58)
    total = sum(struct.unpack(f"!{(len(pseudo) + len(body)) // 2}H", pseudo + body))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    body = body[:2] + struct.pack("!H", ~total & 0xFFFF) + body[4:]
    head = b"\x33\x33\x00\x00\x00\x01" + mac + struct.pack("!H", 0x86DD)
    return head + struct.pack("!IHBB", 6 << 28, len(body), 58, 255) + own + _ALL_NODES + body

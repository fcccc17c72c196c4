"""Waiting until a topology carries packets: one ICMP echo, answered, instead of a sleep."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable

from nsprof.errors import TopologyError
from nsprof.netns import entered
from nsprof.topology.capability import refused
from nsprof.topology.netlink import Rtnl, set_link

__all__ = ["wait_until_reachable", "wait_until_running"]

_ASK_AGAIN_S = 0.02


def wait_until_reachable(netns: str, address: str, check: Callable[[], None], timeout_s: float = 15.0) -> float:
    """Ask `address` for an echo from inside a namespace until it answers; returns the seconds that took.

    Link state travels through a kernel work queue, so a device that is up may still drop for some
    milliseconds. Raises TopologyError after `timeout_s`.
    """
    six = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if six else (socket.AF_INET, socket.IPPROTO_ICMP)
    began = time.monotonic()
    with entered(netns):
        try:
            door = socket.socket(family, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        except PermissionError as error:
            raise TopologyError(
                f"the topology stands, but a raw socket to ask {address} for an echo was refused: {error.strerror}",
                refused("CAP_NET_RAW"),
            ) from error
    mark = os.urandom(8)
    request = _echo(128 if six else 8, mark)
    with door:
        door.setblocking(False)
        while (left := timeout_s - (time.monotonic() - began)) > 0:
            check()
            try:
                door.sendto(request, (address, 0))
            except OSError as error:
                if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL):
                    raise TopologyError(f"no echo to {address}: {error.strerror}") from error
            if _answered(door, 129 if six else 0, mark, six, min(_ASK_AGAIN_S, left)):
                return time.monotonic() - began
    raise TopologyError(
        f"the topology stands, but {address} did not answer from {netns} within {timeout_s:g} s",
        "a firewall in the host namespace (FORWARD policy, br_netfilter) may drop it",
    )


def wait_until_running(netns: str, device: str, check: Callable[[], None], timeout_s: float = 2.0) -> None:
    """Wait until a device's link is up: neighbour requests that are dropped before are repeated only a second later.

    Returns after `timeout_s` at the latest: whether packets pass is for `wait_until_reachable` to say.
    """
    until = time.monotonic() + timeout_s
    with entered(netns):
        door = Rtnl()
    with door:
        while not door.running(device) and time.monotonic() < until:
            check()
            time.sleep(0.0005)
        # The flag comes just before the queues are switched on, both under the rtnl lock: a request that waits for
        # the lock waits for both.
        door.send([set_link(device, up=True)])


def _echo(kind: int, mark: bytes) -> bytes:
    """An echo request; the kernel fills in ICMPv6's checksum itself (RFC 3542)."""
    body = struct.pack("!BBHHH", kind, 0, 0, os.getpid() & 0xFFFF, 1) + mark
    total = sum(struct.unpack(f"!{len(body) // 2}H", body))
    total = (total >> 16) + (total & 0xFFFF)
    total += total >> 16
    return body[:2] + struct.pack("!H", ~total & 0xFFFF) + body[4:]


def _answered(door: socket.socket, kind: int, mark: bytes, six: bool, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while (left := until - time.monotonic()) > 0:
        if not select.select([door], [], [], left)[0]:
            return False
        try:
            raw = door.recv(2048)
        except OSError:  # an ICMP error that belongs to an earlier request
            continue
        body = raw if six else raw[(raw[0] & 15) * 4 :]
        if body and body[0] == kind and mark in body:
            return True
    return False

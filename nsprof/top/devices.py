"""Packet counters of many namespaces, a few of them a second.

Reading a namespace costs some 50 us of CPU, so not all of a thousand are read each time: those that are wanted
(sampled or shown) are, the others take turns. A rate is the mean since the namespace was read before.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nsprof import netns
from nsprof.collect import names, rtdump
from nsprof.errors import TopologyError

__all__ = ["Devices", "Key", "Rate", "Reading"]

#: (inode, cookie) of a namespace; the cookie is 0 before Linux 5.14.
Key = tuple[int, int]

_RX, _TX = rtdump.LINK_STATS.index("rx_packets"), rtdump.LINK_STATS.index("tx_packets")
_RX_BYTES, _TX_BYTES = rtdump.LINK_STATS.index("rx_bytes"), rtdump.LINK_STATS.index("tx_bytes")
_DROPS = tuple(rtdump.LINK_STATS.index(n) for n in ("rx_dropped", "tx_dropped", "rx_missed_errors"))
_LOOK_S = 10.0  # how often namespaces are listed and named again
_HURRY_S = 1.0  # ... at the earliest, when a sample shows one that is not known
_TURNS = 16  # namespaces that take their turn in one reading


@dataclass(frozen=True, slots=True)
class Rate:
    """skbs, bytes and drops a second of one device, mean over `seconds`."""

    rx_skb: float
    tx_skb: float
    bytes: float
    drops: float
    seconds: float

    @property
    def skb(self) -> float:
        """Both directions."""
        return self.rx_skb + self.tx_skb


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of one namespace at one moment: ifindex to LINK_STATS."""

    at_s: float
    stats: Mapping[int, tuple[int, ...]]


@dataclass(slots=True)
class Devices:
    """Knows the machine's namespaces by path and name, and what their devices carry."""

    names: dict[int, str] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    keys: dict[int, Key] = field(default_factory=dict)
    rates: dict[tuple[int, int, int], Rate] = field(default_factory=dict)
    labels: dict[tuple[int, int, int], str] = field(default_factory=dict)
    now: dict[Key, Reading] = field(default_factory=dict)
    _last: dict[Key, Reading] = field(default_factory=dict)
    _looked_s: float = -1e9
    _strangers: frozenset[int] = frozenset()
    _turn: int = 0

    def look(self, inodes: Iterable[int] = ()) -> None:
        """List the namespaces again if that is due, or if one of `inodes` is new."""
        age = time.monotonic() - self._looked_s
        new = set(inodes) - self.paths.keys() - self._strangers
        if age < (_HURRY_S if new else _LOOK_S):
            return
        own = netns.inode()
        self.paths = {**names.paths_of(), own: "/proc/self/ns/net"}
        self.names = names.names_of(self.paths)
        # Without a file and without a process (held by a socket, or gone): asking again each second finds nothing.
        self._strangers = frozenset(new - self.paths.keys())
        self._looked_s = time.monotonic()
        gone = self.keys.keys() - self.paths.keys()
        for inode in gone:
            self._forget(self.keys.pop(inode))

    def _forget(self, key: Key) -> None:
        self._last.pop(key, None)
        for table in (self.rates, self.labels):
            for row in [row for row in table if row[:2] == key]:
                del table[row]

    def read(self, wanted: Iterable[int], turns: int = _TURNS) -> None:
        """Read the namespaces `wanted` (inodes) and those whose turn it is; `now` holds what was read."""
        self.now = {}
        order = list(self.paths)
        turn = [order[(self._turn + n) % len(order)] for n in range(min(turns, len(order)))] if order else []
        self._turn += len(turn)
        for inode in dict.fromkeys((*wanted, *turn)):
            if inode in self.paths:
                self._one(inode)

    def _one(self, inode: int) -> None:
        try:
            with netns.entered(self.paths[inode]):
                cookie, stats = rtdump.statistics()
                at_s = time.monotonic()
                if any((inode, cookie, index) not in self.labels for index in stats):
                    for index, name in socket.if_nameindex():
                        self.labels[inode, cookie, index] = os.fsencode(name).decode("utf-8", "backslashreplace")
        except (TopologyError, OSError):  # it went away; the next look() will not list it
            return
        key = (inode, cookie)
        before_key = self.keys.get(inode)
        if before_key not in (None, key):  # another namespace under a reused inode
            self._forget(before_key)
        self.keys[inode] = key
        reading = self.now[key] = Reading(at_s, stats)
        before = self._last.get(key)
        self._last[key] = reading
        if before is not None and at_s > before.at_s:
            for index, values in stats.items():
                if index in before.stats:
                    self.rates[inode, cookie, index] = _rate(before.stats[index], values, at_s - before.at_s)


def _rate(before: tuple[int, ...], after: tuple[int, ...], seconds: float) -> Rate:
    def moved(index: int) -> float:
        return max(0, after[index] - before[index]) / seconds

    return Rate(moved(_RX), moved(_TX), moved(_RX_BYTES) + moved(_TX_BYTES), sum(moved(i) for i in _DROPS), seconds)

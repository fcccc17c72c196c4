"""Packet counters of many namespaces, a few of them a second.

Reading a namespace costs some 50 us of CPU, so not all of a thousand are read each time: those that are wanted
(sampled or shown) are, the others take turns. A rate is the mean since the namespace was read before.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nsprof import netns
from nsprof.collect.system import names, rtdump
from nsprof.errors import TopologyError
from nsprof.escape import as_stored

__all__ = ["STILL", "Devices", "Key", "Rate", "Reading"]

#: (inode, cookie) of a namespace; the cookie is 0 before Linux 5.14.
Key = tuple[int, int]

_SHOWN = [
    rtdump.LINK_STATS.index(name)
    for name in ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_dropped", "tx_dropped", "rx_missed_errors")
]
_LABELS_MAX = 20_000
_LOOK_S = 10.0  # how often namespaces are listed and named again
_HURRY_S = 1.0  # ... at the earliest, when a sample shows one that is not known
_VERSIONS = itertools.count(1)
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
    """The counters of one namespace at one moment: ifindexes, and a row of LINK_STATS for each."""

    at_s: float
    indexes: NDArray[np.uint32]
    stats: NDArray[np.uint64]

    def since(self, before: Reading) -> tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]:
        """(ifindexes, counters before, counters now) of the devices that both readings have."""
        if len(self.indexes) == len(before.indexes) and (self.indexes == before.indexes).all():
            return self.indexes, before.stats, self.stats
        both, now, then = np.intersect1d(self.indexes, before.indexes, return_indices=True)
        return both, before.stats[then], self.stats[now]


@dataclass(slots=True)
class Devices:
    """Knows the machine's namespaces by path and name, and what their devices carry."""

    names: dict[int, str] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    keys: dict[int, Key] = field(default_factory=dict)
    active: dict[tuple[int, int, int], Rate] = field(default_factory=dict)
    named: dict[Key, str] = field(default_factory=dict)
    labels: dict[tuple[int, int, int], str] = field(default_factory=dict)
    now: dict[Key, Reading] = field(default_factory=dict)
    _last: dict[Key, Reading] = field(default_factory=dict)
    _still: dict[Key, bool] = field(default_factory=dict)
    _looked_s: float = -1e9
    _strangers: frozenset[int] = frozenset()
    _turn: int = 0
    #: Which rows of `active` are a namespace's: with a thousand of them, looking through all costs more than reading.
    _moving: dict[Key, list[tuple[int, int, int]]] = field(default_factory=dict)
    #: Another number whenever anything but rates has changed: what is at rest can be drawn as before until then.
    version: int = field(default_factory=lambda: next(_VERSIONS))

    def frozen(self) -> Devices:
        """A copy that later readings do not change, for a display that stands still."""
        return replace(
            self,
            names=dict(self.names),
            paths=dict(self.paths),
            keys=dict(self.keys),
            active=dict(self.active),
            named=dict(self.named),
            labels=dict(self.labels),
            _still=dict(self._still),
            _moving={},
        )

    def look(self, inodes: Iterable[int] = ()) -> None:
        """List the namespaces again if that is due, or if one of `inodes` is new."""
        age = time.monotonic() - self._looked_s
        new = set(inodes) - self.paths.keys() - self._strangers
        if age < (_HURRY_S if new else _LOOK_S):
            return
        own = netns.inode()
        before = (self.paths, self.names)
        paths, found = names.look()
        self.paths = {**paths, own: "/proc/self/ns/net"}
        self.names = found
        # Without a file and without a process (held by a socket, or gone): asking again each second finds nothing.
        self._strangers = frozenset(new - self.paths.keys())
        self._looked_s = time.monotonic()
        if (self.paths, self.names) != before:
            self.version = next(_VERSIONS)
        gone = self.keys.keys() - self.paths.keys()
        for inode in gone:
            self._forget(self.keys.pop(inode))

    def _forget(self, key: Key) -> None:
        self._last.pop(key, None)
        self._still.pop(key, None)
        self._at_rest(key)
        self.version = next(_VERSIONS)

    def _at_rest(self, key: Key) -> None:
        for row in self._moving.pop(key, ()):
            self.active.pop(row, None)

    def resting(self) -> list[tuple[int, int, int]]:
        """Devices of the namespaces that were read twice, moving or not; changes only when `version` does."""
        return [row for row in self.labels if row[2] and row[:2] in self._still]

    def rate(self, row: tuple[int, int, int]) -> Rate | None:
        """What a device carries; None where its namespace has not been read twice."""
        found = self.active.get(row)
        if found is None and row[2] and row[:2] in self._still and row in self.labels:
            return STILL
        return found

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
                cookie, indexes, stats = rtdump.statistics()
                reading = Reading(time.monotonic(), indexes, stats)
                key = (inode, cookie)
                before = self._last.get(key)
                if before is None or not np.array_equal(before.indexes, indexes):
                    self._label(key)
        except (TopologyError, OSError):  # it went away; the next look() will not list it
            return
        before_key = self.keys.get(inode)
        if before_key is not None and before_key != key:  # another namespace under a reused inode
            self._forget(before_key)
        if before_key != key:
            self.version = next(_VERSIONS)
        self.keys[inode] = key
        self.now[key] = self._last[key] = reading
        if before is not None and reading.at_s > before.at_s:
            self._rates(key, before, reading)

    def _label(self, key: Key) -> None:
        """Names of the devices of the calling thread's namespace; of those that are gone they are kept for save."""
        if len(self.labels) > _LABELS_MAX:
            self.labels = {row: name for row, name in self.labels.items() if row[:2] in self._last}
            self.named = {each: name for each, name in self.named.items() if each in self._last}
        self.version = next(_VERSIONS)
        self.named[key] = self.names.get(key[0], "")
        for index, name in socket.if_nameindex():
            self.labels[(*key, index)] = as_stored(name)

    def _rates(self, key: Key, before: Reading, reading: Reading) -> None:
        seconds = reading.at_s - before.at_s
        indexes, begin, end = reading.since(before)
        moved = np.where(end >= begin, end - begin, 0)[:, _SHOWN]
        if key not in self._still:
            self._still[key] = True
            self.version = next(_VERSIONS)
        self._at_rest(key)
        numbers = np.flatnonzero(moved.any(axis=1))
        rates = (moved[numbers] / seconds).tolist()
        for index, (rx, tx, rx_bytes, tx_bytes, *drops) in zip(indexes[numbers].tolist(), rates, strict=True):
            row = (*key, index)
            self.active[row] = Rate(rx, tx, rx_bytes + tx_bytes, sum(drops), seconds)
            self._moving.setdefault(key, []).append(row)


#: What a device carries that was read twice and did nothing.
STILL = Rate(0.0, 0.0, 0.0, 0.0, 0.0)

"""The records beside the samples: who lived when, what was mapped where, what got lost."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers.perfdata import header as h

__all__ = ["Map", "Side", "Space", "at_times"]

MMAP, LOST, COMM, EXIT, THROTTLE, UNTHROTTLE, FORK = 1, 2, 3, 4, 5, 6, 7
MMAP2, LOST_SAMPLES, NAMESPACES, KSYMBOL, CGROUP = 10, 13, 16, 17, 19
HEADER_ATTR, EVENT_TYPE, TRACING, HEADER_BUILD_ID, EVENT_UPDATE, HEADER_FEATURE = 64, 65, 66, 67, 78, 80
_COMM_EXEC = 1 << 13
_MMAP_BUILD_ID = 1 << 14
_KERNEL_PID = -1
_MAX_MAPS = 20_000  # of one address space; a JVM has some thousand
_MAX_TRACING = 64 << 20
_MAX_COPIES = 2_000_000  # mappings that children copy from their parents, in all

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Map:
    """One mapping: addresses start..end come from `offset` of `file`."""

    start: int
    end: int
    offset: int
    file: str
    build_id: bytes = b""


class _Mapped(NamedTuple):
    pid: int
    map: Map


class _Named(NamedTuple):
    pid: int
    tid: int
    comm: str
    execs: bool


class _Entered(NamedTuple):
    tid: int
    inode: int


class _Forked(NamedTuple):
    pid: int
    ppid: int
    tid: int
    ptid: int


class Space:
    """The mappings of one address space; a later one replaces what it covers. A child's are its parent's until it
    maps something itself."""

    def __init__(self, parent: Space | None = None) -> None:
        self._parent = parent
        self._start: list[int] = []
        self._maps: list[Map] = []

    def _own(self) -> int:
        """Copy the parent's mappings, if that was not done yet; returns how many were copied."""
        source = self._source()
        if source is self:
            return 0
        self._parent = None
        self._start, self._maps = list(source._start), list(source._maps)
        return len(self._maps)

    def _source(self) -> Space:
        """The space whose mappings these are: this one, or the nearest ancestor that has its own."""
        at = self
        while at._parent is not None:
            at = at._parent
        return at

    def add(self, new: Map) -> int:
        """Lay `new` over the others (left out when there are too many); returns how many were copied for it."""
        copied = self._own()
        if len(self._maps) >= _MAX_MAPS or new.end <= new.start:
            return copied
        low = max(0, bisect_right(self._start, new.start) - 1)
        high = bisect_left(self._start, new.end)
        pieces: list[Map] = []
        for old in self._maps[low:high]:
            if old.start < new.start:
                pieces.append(Map(old.start, min(old.end, new.start), old.offset, old.file, old.build_id))
            if old.end > new.end:
                cut = max(old.start, new.end)
                pieces.append(Map(cut, old.end, old.offset + cut - old.start, old.file, old.build_id))
        pieces = sorted([p for p in pieces if p.end > p.start] + [new], key=lambda m: m.start)
        self._maps[low:high] = pieces
        self._start[low:high] = [p.start for p in pieces]
        return copied

    def find(self, addresses: NDArray[np.uint64]) -> tuple[list[Map], NDArray[np.int64]]:
        """(mappings, index of the mapping that covers each address or -1)."""
        maps = self._source()._maps
        if not maps:
            return [], np.full(len(addresses), -1, "i8")
        start = np.array([m.start for m in maps], "u8")
        end = np.array([m.end for m in maps], "u8")
        at = np.searchsorted(start, addresses, side="right") - 1
        return maps, np.where((at >= 0) & (addresses < end[at.clip(0)]), at, -1)


@dataclass(slots=True)
class Side:
    """Everything the records other than samples say, to be asked after all were read."""

    head: h.Header
    counts: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    lost_samples: int = 0
    bad: int = 0
    kernel_maps: list[Map] = field(default_factory=list)
    ksymbols: list[tuple[int, int, int, str]] = field(default_factory=list)
    cgroups: dict[int, str] = field(default_factory=dict)
    _history: list[tuple[int, int, _Mapped | _Named | _Entered | _Forked]] = field(default_factory=list)
    comms: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    netns: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    spaces: dict[int, list[tuple[int, Space]]] = field(default_factory=dict)

    def add(self, buf: memoryview, at: int) -> None:
        """Take in the record at `at`; one that is malformed is counted and left out."""
        order = self.head.order
        kind, misc, size = struct.unpack_from(order + "IHH", buf, at)
        self.counts[kind] += 1
        body = buf[at + 8 : at + size]
        try:
            if kind in (MMAP, MMAP2):
                self._mmap(kind, misc, body, order)
            elif kind == TRACING:
                (length,) = struct.unpack_from(order + "I", body, 0)
                if length <= _MAX_TRACING:
                    h.parse_feature(self.head, h.TRACING_DATA, buf[at + size : at + size + length])
            else:
                self._small(kind, misc, body, order)
        except (struct.error, IndexError):
            self.bad += 1

    def _small(self, kind: int, misc: int, body: memoryview, order: str) -> None:
        if kind == COMM:
            pid, tid = struct.unpack_from(order + "ii", body)
            self._remember(body, _Named(pid, tid, h.text(bytes(body[8:])), bool(misc & _COMM_EXEC)))
        elif kind == FORK:
            pid, ppid, tid, ptid = struct.unpack_from(order + "4i", body)
            (time,) = struct.unpack_from(order + "Q", body, 16)
            self._history.append((time, len(self._history), _Forked(pid, ppid, tid, ptid)))
        elif kind == LOST:
            self.lost += struct.unpack_from(order + "QQ", body)[1]
        elif kind == LOST_SAMPLES:
            self.lost_samples += struct.unpack_from(order + "Q", body)[0]
        elif kind == NAMESPACES:
            _, tid, count = struct.unpack_from(order + "iiQ", body)
            if count:  # NET_NS_INDEX is the first
                self._remember(body, _Entered(tid, struct.unpack_from(order + "QQ", body, 16)[1]))
        elif kind == KSYMBOL:
            address, length, form, flags = struct.unpack_from(order + "QIHH", body)
            if not flags & 1:  # not an unregistration
                self.ksymbols.append((address, length, form, h.text(bytes(body[16:]))))
        elif kind == CGROUP:
            self.cgroups[struct.unpack_from(order + "Q", body)[0]] = h.text(bytes(body[8:]))
        else:
            self._pipe(kind, misc, body, order)

    def _pipe(self, kind: int, misc: int, body: memoryview, order: str) -> None:
        """What is a header in files and a record in pipes."""
        head = self.head
        if kind == HEADER_ATTR and len(head.attrs) < 250:
            attr = h.parse_attr(bytes(body), order) if len(body) >= 48 else None
            if attr is None:
                raise struct.error("attr")
            n = max(0, len(body) - attr.size) // 8
            attr.ids = list(struct.unpack_from(f"{order}{n}Q", body, attr.size)) if n else []
            head.attrs.append(attr)
        elif kind == EVENT_TYPE:
            head.event_types[struct.unpack_from(order + "Q", body)[0]] = h.text(bytes(body[8:72]))
        elif kind == HEADER_BUILD_ID and len(body) >= 28:
            h.build_id_entry(head, misc, body)
        elif kind == HEADER_FEATURE:
            (bit,) = struct.unpack_from(order + "Q", body)
            h.parse_feature(head, bit, body[8:])
        elif kind == EVENT_UPDATE:
            what, number = struct.unpack_from(order + "QQ", body)
            if what == 2:
                for attr in head.attrs:
                    if number in attr.ids:
                        attr.name = h.text(bytes(body[16:]))

    def _remember(self, body: memoryview, what: _Mapped | _Named | _Entered) -> None:
        self._history.append((self._time(body), len(self._history), what))

    def _time(self, body: memoryview) -> int:
        """The time in the sample_id trailer, 0 where there is none."""
        attrs = self.head.attrs
        if not attrs or not attrs[0].sample_id_all or not attrs[0].sample_type & h.TIME:
            return 0
        kind = attrs[0].sample_type
        after = sum(bool(kind & bit) for bit in (h.ID, h.STREAM_ID, h.CPU, h.IDENTIFIER))
        at = len(body) - 8 * (after + 1)
        return int(struct.unpack_from(self.head.order + "Q", body, at)[0]) if at >= 0 else 0

    def _mmap(self, kind: int, misc: int, body: memoryview, order: str) -> None:
        pid, _, start, length, offset = struct.unpack_from(order + "iiQQQ", body)
        build_id = b""
        if kind == MMAP2:
            if misc & _MMAP_BUILD_ID:
                build_id = bytes(body[36 : 36 + min(body[32], 20)])
            name = h.text(bytes(body[64:]))
        else:
            name = h.text(bytes(body[32:]))
        new = Map(start, min(start + length, 2**64 - 1), offset, name, build_id)
        if pid == _KERNEL_PID or misc & 7 == 1:
            if len(self.kernel_maps) < _MAX_MAPS:
                self.kernel_maps.append(new)
        else:
            self._remember(body, _Mapped(pid, new))

    def settle(self) -> None:
        """Replay forks, execs, names and mappings in the order of time."""
        comm: dict[int, str] = {}
        netns: dict[int, int] = {}
        space: dict[int, Space] = {}
        copied = 0
        for time, _, what in sorted(self._history, key=lambda e: e[:2]):
            if isinstance(what, _Mapped):
                if what.pid not in space:
                    self._live(space, what.pid, time, None)
                if copied < _MAX_COPIES:
                    copied += space[what.pid].add(what.map)
            elif isinstance(what, _Named):
                _note(comm, self.comms, what.tid, time, what.comm)
                if what.execs:
                    self._live(space, what.pid, time, None)
            elif isinstance(what, _Entered):
                _note(netns, self.netns, what.tid, time, what.inode)
            else:
                if what.ptid in comm and what.ptid != what.tid:
                    _note(comm, self.comms, what.tid, time, comm[what.ptid])
                if what.ptid in netns and what.ptid != what.tid:
                    _note(netns, self.netns, what.tid, time, netns[what.ptid])
                if what.pid != what.ppid:
                    parent = space.get(what.ppid)
                    self._live(space, what.pid, time, parent._source() if parent else None)
        self._history = []

    def _live(self, space: dict[int, Space], pid: int, time: int, parent: Space | None) -> None:
        space[pid] = Space(parent)
        self.spaces.setdefault(pid, []).append((time, space[pid]))

    def space_of(self, pid: int, time: int) -> Space | None:
        """The address space of a process at a time."""
        lives = self.spaces.get(pid)
        if not lives:
            return None
        at = bisect_right([t for t, _ in lives], time) - 1
        return lives[max(at, 0)][1]


def _note(now: dict[int, _T], history: dict[int, list[tuple[int, _T]]], tid: int, time: int, value: _T) -> None:
    now[tid] = value
    history.setdefault(tid, []).append((time, value))


def at_times(history: list[tuple[int, _T]], times: NDArray[np.uint64]) -> tuple[list[_T], NDArray[np.int64]]:
    """(distinct values, which of them held at each time); before the first one, the first."""
    table = {value: number for number, value in enumerate(dict.fromkeys(v for _, v in history))}
    starts = np.array([t for t, _ in history], "u8")
    number = np.array([table[v] for _, v in history], "i8")
    at = (np.searchsorted(starts, times, side="right") - 1).clip(0)
    return list(table), number[at]

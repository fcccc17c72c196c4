"""Writes perf.data files of any layout: what the reader must get back, both byte orders, file and pipe mode."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from nsprof.store.importers.perfdata import header as h

KERNEL, USER = 2**64 - 128, 2**64 - 512


@dataclass
class Sample:
    """One sample; `branches` is a number of entries (or `entries`: their from, to and flags), `raw` bytes and `stack`
    a user stack dump."""

    ip: int = 0xFFFFFFFF81000010
    pid: int = 10
    tid: int = 11
    time: int = 1_000
    id: int = 1
    cpu: int = 0
    period: int = 1000
    chain: list[int] = field(default_factory=list)
    branches: int = 0
    raw: bytes = b""
    stack: int = 0
    values: list[tuple[int, int]] = field(default_factory=list)
    mode: int = 1
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    address: int = 0xADD
    weight: int = 7
    data_source: int = 8
    physical: int = 4096


@dataclass
class Event:
    """One event; `flags` are names out of "freq", "sample_id_all"."""

    sample_type: int
    ids: list[int] = field(default_factory=lambda: [1])
    type: int = 1
    config: int = 0
    period: int = 1000
    read_format: int = 0
    freq: bool = False
    size: int = 112
    branch_sample_type: int = 0
    regs: int = 0


class PerfData:
    """A file being put together."""

    def __init__(self, events: list[Event], order: str = "<") -> None:
        self.events = events
        self.order = order
        self.records = b""

    def pack(self, form: str, *values: int) -> bytes:
        return struct.pack(self.order + form, *values)

    def record(self, kind: int, body: bytes, misc: int = 0) -> None:
        body += b"\0" * (-len(body) % 8)
        self.records += self.pack("IHH", kind, misc, 8 + len(body)) + body

    def attr(self, event: Event) -> bytes:
        flags = [(10, event.freq), (18, True)]
        word = sum(1 << (bit if self.order == "<" else 63 - bit) for bit, on in flags if on)
        body = self.pack(
            "IIQQQQQ", event.type, event.size, event.config, event.period, event.sample_type, event.read_format, word
        )
        body += self.pack("IIQQ", 0, 0, 0, 0) + self.pack("QQ", event.branch_sample_type, event.regs)
        body += self.pack("IiQ", 0, 0, event.regs)
        return body.ljust(event.size, b"\0")[: event.size]

    def trailer(self, time: int, pid: int = 10, tid: int = 11) -> bytes:
        """sample_id at the end of records that are no samples."""
        kind = self.events[0].sample_type
        out = self.pack("II", pid, tid) if kind & h.TID else b""
        out += self.pack("Q", time) if kind & h.TIME else b""
        for bit in (h.ID, h.STREAM_ID, h.CPU, h.IDENTIFIER):
            out += self.pack("Q", 1) if kind & bit else b""
        return out

    def comm(self, pid: int, tid: int, name: str, time: int = 0, *, execs: bool = False) -> None:
        text = name.encode() + b"\0"
        text += b"\0" * (-len(text) % 8)
        self.record(3, self.pack("ii", pid, tid) + text + self.trailer(time), 1 << 13 if execs else 0)

    def mmap(self, pid: int, start: int, length: int, offset: int, name: str, time: int = 0, misc: int = 2) -> None:
        text = name.encode() + b"\0"
        text += b"\0" * (-len(text) % 8)
        self.record(1, self.pack("iiQQQ", pid, pid, start, length, offset) + text + self.trailer(time), misc)

    def fork(self, pid: int, ppid: int, tid: int, ptid: int, time: int) -> None:
        self.record(7, self.pack("iiiiQ", pid, ppid, tid, ptid, time) + self.trailer(time))

    def sample(self, s: Sample, event: Event | None = None) -> None:
        """A PERF_RECORD_SAMPLE, fields in the order of the kernel's ABI."""
        e = event or self.events[0]
        kind, q = e.sample_type, lambda *v: self.pack("Q" * len(v), *v)
        out = q(s.id) if kind & h.IDENTIFIER else b""
        out += q(s.ip) if kind & h.IP else b""
        out += self.pack("ii", s.pid, s.tid) if kind & h.TID else b""
        out += q(s.time) if kind & h.TIME else b""
        out += q(s.address) if kind & h.ADDR else b""
        out += q(s.id) if kind & h.ID else b""
        out += q(5) if kind & h.STREAM_ID else b""
        out += self.pack("II", s.cpu, 0) if kind & h.CPU else b""
        out += q(s.period) if kind & h.PERIOD else b""
        out += self._read(s, e) if kind & h.READ else b""
        out += q(len(s.chain), *s.chain) if kind & h.CALLCHAIN else b""
        if kind & h.RAW:
            raw = s.raw + b"\0" * (-(len(s.raw) + 4) % 8)
            out += self.pack("I", len(raw)) + raw
        if kind & h.BRANCH_STACK:
            count = len(s.entries) or s.branches
            out += q(count) + (q(0) if e.branch_sample_type & 1 << 17 else b"")
            out += b"".join(q(*e[:2], self.flags(e[2])) for e in s.entries) or b"b" * (24 * s.branches)
            out += b"c" * 8 * count if e.branch_sample_type & 1 << 19 else b""  # counters of the branches
        out += (q(2) + b"r" * 8 * e.regs.bit_count()) if kind & h.REGS_USER else b""
        if kind & h.STACK_USER:
            out += q(s.stack) + (b"s" * s.stack + q(s.stack) if s.stack else b"")
        out += q(s.weight) if kind & (h.WEIGHT | h.WEIGHT_STRUCT) else b""
        out += q(s.data_source) if kind & h.DATA_SRC else b""
        out += q(9) if kind & h.TRANSACTION else b""
        out += (q(2) + b"i" * 8 * e.regs.bit_count()) if kind & h.REGS_INTR else b""
        out += q(s.physical) if kind & h.PHYS_ADDR else b""
        for bit in (h.CGROUP, h.DATA_PAGE_SIZE, h.CODE_PAGE_SIZE):
            out += q(4096) if kind & bit else b""
        out += (q(16) + b"a" * 16) if kind & h.AUX else b""
        self.record(9, out, s.mode)

    def flags(self, value: int) -> int:
        """Flags of a branch entry (four bits, 16 bits of cycles): compilers of big-endian machines lay bit fields out
        from the highest bit on."""
        if self.order == "<":
            return value
        ends = sum((value >> bit & 1) << 63 - bit for bit in range(4))
        return ends | (value >> 4 & 0xFFFF) << 44

    def _read(self, s: Sample, e: Event) -> bytes:
        form = e.read_format
        times = b"".join(self.pack("Q", 99) for bit in (1, 2) if form & bit)
        tuples = [
            self.pack("Q", v) + (self.pack("Q", i) if form & 4 else b"") + (self.pack("Q", 0) if form & 16 else b"")
            for i, v in s.values
        ]
        if form & 8:
            return self.pack("Q", len(tuples)) + times + b"".join(tuples)
        (number, value) = s.values[0]
        return (
            self.pack("Q", value)
            + times
            + (self.pack("Q", number) if form & 4 else b"")
            + (self.pack("Q", 0) if form & 16 else b"")
        )

    def file(self, build_ids: dict[str, bytes] | None = None) -> bytes:
        """The file in file mode, with a table of build-ids if given."""
        size = self.events[0].size + 16
        ids_at = 104 + size * len(self.events)
        ids = attrs = b""
        for event in self.events:
            attrs += self.attr(event) + self.pack("QQ", ids_at + len(ids), 8 * len(event.ids))
            ids += self.pack(f"{len(event.ids)}Q", *event.ids)
        data_at = ids_at + len(ids)
        magic = b"PERFILE2" if self.order == "<" else b"2ELIFREP"
        flags = [1 << 2 if build_ids else 0, 0, 0, 0]
        head = magic + self.pack("QQ", 104, size) + self.pack("QQ", 104, len(attrs))
        head += self.pack("QQ", data_at, len(self.records)) + self.pack("QQ", 0, 0) + self.pack("4Q", *flags)
        tail = b""
        if build_ids:
            for name, build_id in build_ids.items():
                text = name.encode().ljust(64, b"\0")
                tail += self.pack("IHHi", 67, 1, 36 + len(text), -1) + build_id.ljust(24, b"\0") + text
            at = data_at + len(self.records) + 16
            tail = self.pack("QQ", at, len(tail)) + tail
        return head + attrs + ids + self.records + tail

    def pipe(self) -> bytes:
        """The same records as `perf record -o -` writes them, attrs being records."""
        records, self.records = self.records, b""
        for event in self.events:
            self.record(64, self.attr(event) + self.pack(f"{len(event.ids)}Q", *event.ids))
        magic = b"PERFILE2" if self.order == "<" else b"2ELIFREP"
        return magic + self.pack("Q", 16) + self.records + records

"""The head of a perf.data file: events (attrs), their ids, and the feature sections.

Layout: tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h of the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nsprof.errors import ProfileFormatError

__all__ = ["Attr", "Damage", "Header", "build_id_entry", "parse_attr", "parse_feature", "parse_header"]

MAGICS = {b"PERFILE2": "<", b"2ELIFREP": ">", b"PERFFILE": "<", b"ELIFFREP": ">"}
ATTR_SIZE_VER0 = 64
_MAX_IDS = 1 << 20
_MAX_EVENTS = 250  # Samples.event is one byte

# enum perf_event_sample_format
IP, TID, TIME, ADDR, READ, CALLCHAIN, ID, CPU, PERIOD, STREAM_ID, RAW, BRANCH_STACK = (1 << n for n in range(12))
REGS_USER, STACK_USER, WEIGHT, DATA_SRC, IDENTIFIER, TRANSACTION, REGS_INTR = (1 << n for n in range(12, 19))
PHYS_ADDR, AUX, CGROUP, DATA_PAGE_SIZE, CODE_PAGE_SIZE, WEIGHT_STRUCT = (1 << n for n in range(19, 25))

FEATURE_NAMES = {3: "hostname", 4: "osrelease", 5: "version", 6: "arch", 8: "cpudesc", 9: "cpuid"}
TRACING_DATA, BUILD_ID, NRCPUS, CMDLINE, EVENT_DESC, GROUP_DESC = 1, 2, 7, 11, 12, 17

_HARDWARE = (
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
)
_SOFTWARE = (
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
)
_CACHES = ("L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node")
_CACHE_OPS = ("load", "store", "prefetch")


class Damage(Exception):
    """Where and how a file stops making sense; what was read before it is kept."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.what = what


@dataclass(slots=True)
class Attr:
    """One event of the file: struct perf_event_attr as far as reading samples needs it."""

    type: int
    config: int
    period: int
    sample_type: int
    read_format: int
    freq: bool
    sample_id_all: bool
    branch_sample_type: int = 0
    regs_user: int = 0
    regs_intr: int = 0
    size: int = ATTR_SIZE_VER0
    ids: list[int] = field(default_factory=list)
    name: str = ""


@dataclass(slots=True)
class Header:
    """What the file says about itself. `data_size` 0 with `piped` False: perf record did not end properly."""

    order: str
    piped: bool
    data_offset: int
    data_size: int
    attrs: list[Attr] = field(default_factory=list)
    features: dict[str, Any] = field(default_factory=dict)
    build_ids: dict[str, bytes] = field(default_factory=dict)
    event_types: dict[int, str] = field(default_factory=dict)
    kallsyms: bytes = b""
    notes: list[str] = field(default_factory=list)


def text(raw: bytes) -> str:
    """A C string of the file; what is not UTF-8 stays visible."""
    return bytes(raw).partition(b"\0")[0].decode("utf-8", "backslashreplace")


def parse_attr(raw: bytes, order: str) -> Attr:
    """One struct perf_event_attr of any size since VER0 (64 bytes); fields beyond its size are 0."""
    if len(raw) < 48:
        raise ProfileFormatError(f"perf.data: an event description of {len(raw)} bytes is too short")
    size = struct.unpack_from(order + "I", raw, 4)[0] or ATTR_SIZE_VER0
    full = bytes(raw[: min(len(raw), max(size, 48))]).ljust(144, b"\0")
    kind, _, config, period, sample_type, read_format, flags = struct.unpack_from(order + "IIQQQQQ", full)

    def flag(bit: int) -> bool:  # bit fields are laid out from the other end on big-endian machines
        return bool(flags >> (bit if order == "<" else 63 - bit) & 1)

    branch, regs_user = struct.unpack_from(order + "QQ", full, 72)
    (regs_intr,) = struct.unpack_from(order + "Q", full, 96)
    return Attr(
        kind,
        config,
        period,
        sample_type,
        read_format,
        freq=flag(10),
        sample_id_all=flag(18),
        branch_sample_type=branch,
        regs_user=regs_user,
        regs_intr=regs_intr,
        size=size,
    )


def event_name(attr: Attr, types: dict[int, str]) -> str:
    """The event's name as perf would print it, from type and config."""
    if attr.name:
        return attr.name
    if attr.type == 0 and (attr.config & 0xFFFFFFFF) < len(_HARDWARE):
        return _HARDWARE[attr.config & 0xFFFFFFFF]
    if attr.type == 1 and attr.config < len(_SOFTWARE):
        return _SOFTWARE[attr.config]
    if attr.type == 3:
        cache, op, result = attr.config & 0xFF, attr.config >> 8 & 0xFF, attr.config >> 16 & 0xFF
        if cache < len(_CACHES) and op < len(_CACHE_OPS) and result < 2:
            return f"{_CACHES[cache]}-{_CACHE_OPS[op]}{'-misses' if result else 's'}"
    if attr.type == 4:
        return f"r{attr.config:x}"
    return types.get(attr.config) or f"type{attr.type}:0x{attr.config:x}"


def parse_header(buf: memoryview) -> Header:
    """The file header with its attrs and features.

    Raises ProfileFormatError when nothing can be read with it; damaged features become notes.
    """
    order = MAGICS.get(bytes(buf[:8]))
    if order is None or len(buf) < 16:
        raise ProfileFormatError("not a perf.data file (its magic number is missing)")
    (size,) = struct.unpack_from(order + "Q", buf, 8)
    if size == 16:
        return Header(order, True, 16, len(buf) - 16)
    if len(buf) < 104 or size < 72:
        raise ProfileFormatError(f"perf.data: its header is cut off ({len(buf)} bytes)")
    attr_size, at, attr_bytes, data_offset, data_size, et_at, et_bytes = struct.unpack_from(order + "7Q", buf, 16)
    flags = struct.unpack_from(order + "4Q", buf, 72)
    head = Header(order, False, data_offset, data_size)
    if not 64 <= attr_size <= 4096 or at + attr_bytes > len(buf) or attr_bytes < attr_size:
        raise ProfileFormatError("perf.data: the description of its events is damaged or cut off")
    if data_offset > len(buf):
        raise ProfileFormatError("perf.data: cut off before its first record")
    for pos in range(at, at + attr_bytes - attr_size + 1, attr_size):
        attr = parse_attr(bytes(buf[pos : pos + attr_size - 16]), order)
        ids_at, ids_bytes = struct.unpack_from(order + "QQ", buf, pos + attr_size - 16)
        if ids_at + ids_bytes <= len(buf) and ids_bytes // 8 <= _MAX_IDS:
            attr.ids = list(struct.unpack_from(f"{order}{ids_bytes // 8}Q", buf, ids_at))
        head.attrs.append(attr)
        if len(head.attrs) > _MAX_EVENTS:
            raise ProfileFormatError(f"perf.data: more than {_MAX_EVENTS} events")
    if et_at + et_bytes <= len(buf):
        for pos in range(et_at, et_at + et_bytes - 71, 72):
            head.event_types[struct.unpack_from(order + "Q", buf, pos)[0]] = text(bytes(buf[pos + 8 : pos + 72]))
    if data_size == 0:
        head.data_size = len(buf) - data_offset
        head.notes.append("perf record did not end properly: read up to the end of the file, without features")
    else:
        _features(head, buf, flags)
    return head


def _features(head: Header, buf: memoryview, flags: tuple[int, ...]) -> None:
    bits = [word * 64 + bit for word in range(4) for bit in range(64) if flags[word] >> bit & 1]
    table = head.data_offset + head.data_size
    for number, bit in enumerate(bits):
        at = table + number * 16
        if at + 16 > len(buf):
            head.notes.append(f"the feature sections at {table:#x} are cut off")
            return
        offset, size = struct.unpack_from(head.order + "QQ", buf, at)
        if offset + size > len(buf):
            head.notes.append(f"feature section {bit} at {offset:#x} is cut off")
            continue
        parse_feature(head, bit, buf[offset : offset + size])


def parse_feature(head: Header, bit: int, raw: memoryview) -> None:
    """One feature section (file mode) or HEADER_FEATURE record (pipe mode) into `head`."""
    try:
        if bit in FEATURE_NAMES:
            head.features[FEATURE_NAMES[bit]] = _string(raw, 0, head.order)[0]
        elif bit == NRCPUS:
            head.features["nrcpus"] = struct.unpack_from(head.order + "I", raw, 0)[0]
        elif bit == CMDLINE:
            head.features["cmdline"] = list(_strings(raw, head.order))
        elif bit == BUILD_ID:
            _build_ids(head, raw)
        elif bit == EVENT_DESC:
            _event_desc(head, raw)
        elif bit == GROUP_DESC:
            (count,) = struct.unpack_from(head.order + "I", raw, 0)
            head.features["groups"] = count
        elif bit == TRACING_DATA:
            head.kallsyms = _tracing_kallsyms(bytes(raw), head.order)
    except struct.error:
        head.notes.append(f"feature section {bit} is damaged and was left out")


def _string(raw: memoryview, at: int, order: str) -> tuple[str, int]:
    (length,) = struct.unpack_from(order + "I", raw, at)
    if at + 4 + length > len(raw):
        raise struct.error("string beyond its section")
    return text(bytes(raw[at + 4 : at + 4 + length])), at + 4 + length


def _strings(raw: memoryview, order: str) -> Iterator[str]:
    (count,) = struct.unpack_from(order + "I", raw, 0)
    at = 4
    for _ in range(min(count, 4096)):
        word, at = _string(raw, at, order)
        yield word


def _build_ids(head: Header, raw: memoryview) -> None:
    at = 0
    while at + 36 <= len(raw):
        _, misc, size = struct.unpack_from(head.order + "IHH", raw, at)
        if size < 36 or at + size > len(raw):
            head.notes.append("the table of build-ids is damaged: only its beginning was used")
            return
        build_id_entry(head, misc, raw[at + 8 : at + size])
        at += size


def build_id_entry(head: Header, misc: int, body: memoryview) -> None:
    """struct perf_record_header_build_id: pid, 20 bytes of id (its length beside it when misc says so), name."""
    length = body[24] if misc & 0x8000 else 20
    head.build_ids[text(bytes(body[28:]))] = bytes(body[4 : 4 + min(length, 20)])


def _event_desc(head: Header, raw: memoryview) -> None:
    count, attr_size = struct.unpack_from(head.order + "II", raw, 0)
    at = 8
    for number in range(min(count, _MAX_EVENTS)):
        attr = parse_attr(bytes(raw[at : at + attr_size]).ljust(48, b"\0"), head.order)
        (n_ids,) = struct.unpack_from(head.order + "I", raw, at + attr_size)
        attr.name, at = _string(raw, at + attr_size + 4, head.order)
        if n_ids > _MAX_IDS:
            raise struct.error("too many ids")
        ids = list(struct.unpack_from(f"{head.order}{n_ids}Q", raw, at))
        at += 8 * n_ids
        if number < len(head.attrs):
            known = head.attrs[number]
            known.name = attr.name
            known.ids = known.ids or ids


def _tracing_kallsyms(raw: bytes, order: str) -> bytes:
    """The copy of kallsyms that old perf versions put into the tracing data (trace.dat layout); b"" if none."""
    if raw[:10] != b"\x17\x08\x44tracing":
        return b""
    at = raw.index(b"\0", 10) + 1 if b"\0" in raw[10:] else len(raw)
    at += 1 + 1 + 4  # endianness, size of long, page size
    for section in (b"header_page\0", b"header_event\0"):
        if raw[at : at + len(section)] != section:
            return b""
        (size,) = struct.unpack_from(order + "Q", raw, at + len(section))
        at += len(section) + 8 + size
    (count,) = struct.unpack_from(order + "I", raw, at)
    at = _skip_formats(raw, at + 4, count, order)
    (systems,) = struct.unpack_from(order + "I", raw, at)
    at += 4
    for _ in range(min(systems, 4096)):
        end = raw.find(b"\0", at)
        if end < 0:
            raise struct.error("unterminated name")
        (count,) = struct.unpack_from(order + "I", raw, end + 1)
        at = _skip_formats(raw, end + 5, count, order)
    (size,) = struct.unpack_from(order + "I", raw, at)
    return raw[at + 4 : at + 4 + size]


def _skip_formats(raw: bytes, at: int, count: int, order: str) -> int:
    for _ in range(min(count, 65536)):
        (size,) = struct.unpack_from(order + "Q", raw, at)
        at += 8 + size
    return at

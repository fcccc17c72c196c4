"""Other tools' files become profiles; one module a format, detected by content, never by name."""

from __future__ import annotations

import mmap
import os
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from nsprof.errors import ProfileFormatError, UsageError
from nsprof.escape import shell_word
from nsprof.files import near_names
from nsprof.model.profile import Profile

__all__ = ["FORMATS", "damage_words", "detect", "import_file", "is_recording"]

#: format -> what it is
FORMATS = {
    "perf.data": "recording of `perf record`",
    "perf-script": "text of `perf script`",
    "folded": "folded stacks (stackcollapse-*.pl, bcc profile -f, py-spy raw, inferno)",
    "bpftrace": "maps that bpftrace prints: @[kstack]: count",
    "bcc-profile": "text of bcc's profile and offcputime",
    "pprof": "protobuf profile, gzipped or not",
    "speedscope": "speedscope JSON",
}
#: Text without a sample is not what a tool wrote that saw none: it is damaged, or of another format.
_TEXTS = ("perf-script", "folded", "bpftrace", "bcc-profile")
PERF_MAGIC = (b"PERFILE2", b"2ELIFREP", b"PERFFILE", b"ELIFFREP")
_HEAD = 1 << 16
_MAX_UNPACKED = 4 << 30
#: Stacks as text pack to a twentieth or a fiftieth; what unpacks to more than this is made for harm.
_RATIO = 200
_MIN_BOMB = 64 << 20


def detect(source: Path | str | bytes | memoryview) -> str:
    """The format of a file (a path) or of its first bytes; "" when it is none of FORMATS."""
    if isinstance(source, str | Path):
        with Path(source).open("rb") as stream:
            head = stream.read(_HEAD)
    else:
        head = bytes(source[:_HEAD])
    return _detect(_peek(head))


def _detect(head: bytes) -> str:
    from nsprof.store.importers import bpftrace, folded, perfscript, pprof, speedscope

    if head[:8] in PERF_MAGIC:
        return "perf.data"
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        head = folded.to_utf8(head)
    if speedscope.looks_like(head):
        return "speedscope"
    if pprof.looks_like(head):
        return "pprof"
    if bpftrace.looks_like_map(head):
        return "bpftrace"
    if perfscript.looks_like(head):
        return "perf-script"
    if folded.looks_like(head):
        return "folded"
    if bpftrace.looks_like_bcc(head):
        return "bcc-profile"
    return ""


def import_file(
    path: Path | str,
    *,
    format: str | None = None,
    kallsyms: Path | str | None = None,
    vmlinux: Path | str | None = None,
    packets: float | None = None,
    strict: bool = False,
) -> Profile:
    """A Profile out of a file of any of FORMATS ("-": standard input), gzip and zstd being unpacked, or out of a
    directory that `perf record --threads` wrote.

    `packets` become the denominator "skb" of its run. Damaged input: what stands before the damage is kept and
    `meta["notes"]` says where it broke; `meta["source"]["damaged"]` is then True.

    Raises ProfileFormatError for a file that is none of them, holds no samples, or (`strict`) is damaged.
    """
    name = str(path)
    if format is not None and format not in FORMATS:
        raise UsageError(f"no such format: {format}", f"one of: {', '.join(FORMATS)}")
    symbols = (_path(kallsyms), _path(vmlinux))
    if name != "-" and Path(path).is_dir():
        profile, damaged = _read_directory(Path(path), format, *symbols)
    else:
        profile, damaged = _read(_open(path, forced=format is not None), name, format, *symbols)
    meta = {**profile.meta, "source": {**profile.meta["source"], "damaged": damaged}}
    if strict and damaged:
        raise ProfileFormatError(f"{name}: {damage_words(meta['notes'])}", "without strict the rest is kept")
    runs = profile.runs
    if packets is not None:
        from dataclasses import replace

        if not packets > 0 or packets == float("inf"):
            raise UsageError(f"not a number of packets: {packets}")
        runs = tuple(
            replace(r, denominators={**r.denominators, "skb": float(packets)}, reference="given (--packets)")
            for r in runs
        )
    return profile.with_(meta=meta, runs=runs)


def damage_words(notes: Sequence[str]) -> str:
    """Those of an import's notes that say where and how its input is damaged."""
    words = [n for n in notes if "damaged" in n or "left out" in n or "cut off" in n]
    return "; ".join(words) or "its input is not whole"


def _path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


def _open(path: Path | str, *, forced: bool) -> memoryview:
    """The bytes of a file, mapped where possible."""
    if str(path) == "-":
        return _bounded(sys.stdin.buffer, "standard input", forced)
    where = Path(path)
    try:
        with where.open("rb") as stream:
            if where.is_file() and where.stat().st_size > 0:
                return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
            return _bounded(stream, str(where), forced)
    except OSError as error:
        hint = near_names(where, suffix="") if isinstance(error, FileNotFoundError) else ""
        raise ProfileFormatError(f"cannot read {where}: {error.strerror}", hint) from error


def _bounded(stream: IO[bytes], name: str, forced: bool) -> memoryview:
    """What a pipe or device gives, unless it gives nothing that can be read, or has no end (/dev/zero)."""
    head = stream.read(_HEAD)
    if head and not forced and not _detect(_peek(head)):
        raise _unknown(name, head)
    whole = bytearray(head)
    limit = min(_MAX_UNPACKED, _available_bytes() // 4)
    while piece := stream.read(1 << 20):
        whole += piece
        if len(whole) > limit:
            raise ProfileFormatError(
                f"{name}: does not end within {limit:,} bytes", "put it into a file, which is read without copying it"
            )
    return memoryview(whole)


def _available_bytes() -> int:
    """Memory that can be had without swapping, file caches included."""
    try:
        with Path("/proc/meminfo").open("rb") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _refuse_bomb(name: str, packed: int, unpacked: int, limit: int) -> None:
    """Raises ProfileFormatError when `unpacked` bytes are too many for the memory, or for the `packed` ones."""
    hint = "if it is meant, unpack it into a file (zcat, zstdcat), which is read without copying it"
    if unpacked > limit:
        raise ProfileFormatError(f"{name}: unpacks to more than {limit:,} bytes (a quarter of the memory)", hint)
    if unpacked > max(_MIN_BOMB, packed * _RATIO):
        raise ProfileFormatError(f"{name}: unpacks to more than {unpacked:,} bytes, {_RATIO} times its size", hint)


def _read_directory(
    where: Path, format: str | None, kallsyms: Path | None, vmlinux: Path | None
) -> tuple[Profile, bool]:
    """What `perf record --threads` writes: `data` with the header, and a file of records for each thread."""
    if not is_recording(where) or format not in (None, "perf.data"):
        raise ProfileFormatError(f"{where} is a directory, and none that perf record made", "give the file inside it")
    from nsprof.store.importers.perfdata import import_perf_data

    parts = [p for p in where.iterdir() if p.name.startswith("data.") and p.name[5:].isdigit() and len(p.name) < 12]
    more = [(p.name, _open(p, forced=True)) for p in sorted(parts, key=lambda p: int(p.name[5:])) if p.stat().st_size]
    main = _open(where / "data", forced=True)
    return import_perf_data(main, str(where), more=more, kallsyms=kallsyms, vmlinux=vmlinux)


def is_recording(where: Path) -> bool:
    """Whether a directory is one that `perf record --threads` made."""
    try:
        with (where / "data").open("rb") as stream:
            return stream.read(8) in PERF_MAGIC
    except OSError:
        return False


def _is_profile(head: bytes) -> bool:
    return head[:4] == b"PK\x03\x04" and head[30:38] == b"mimetype"


def _unknown(name: str, head: bytes) -> ProfileFormatError:
    if _is_profile(head):
        shown = "-" if name == "standard input" else shell_word(name)
        return ProfileFormatError(f"{name}: is a profile of nsprof already", f"nsprof report {shown}")
    return ProfileFormatError(
        f"{name}: none of the formats that can be imported", f"formats: {', '.join(FORMATS)} (--format names one)"
    )


def _read(
    buf: memoryview, name: str, format: str | None, kallsyms: Path | None, vmlinux: Path | None
) -> tuple[Profile, bool]:
    if not len(buf):
        raise ProfileFormatError(f"{name}: the file is empty")
    buf, cut = _unpack(buf, name)
    head = bytes(buf[:_HEAD])
    found = format or _detect(head)
    if not found or _is_profile(head):
        raise _unknown(name, head)
    if (kallsyms or vmlinux) and found != "perf.data":
        raise UsageError(
            f"{name} is {found}, whose names are resolved: --kallsyms and --vmlinux serve perf.data only"
        )
    if found == "perf.data":
        from nsprof.store.importers.perfdata import import_perf_data

        profile, damaged = import_perf_data(buf, name, kallsyms=kallsyms, vmlinux=vmlinux)
    else:
        profile, damaged = _text_or_tree(buf, name, found)
    if cut:
        profile = profile.with_(meta={**profile.meta, "notes": [*profile.meta["notes"], cut]})
    return profile, damaged or bool(cut)


def _text_or_tree(buf: memoryview, name: str, found: str) -> tuple[Profile, bool]:
    from nsprof.store.importers import bpftrace, folded, perfscript, pprof, speedscope

    readers = {
        "perf-script": perfscript.import_perf_script,
        "folded": folded.import_folded,
        "bpftrace": bpftrace.import_bpftrace,
        "bcc-profile": bpftrace.import_bcc_profile,
        "pprof": pprof.import_pprof,
        "speedscope": speedscope.import_speedscope,
    }
    profile, damaged = readers[found](buf, name)
    if found in _TEXTS and not profile.samples.count.any():
        seen = _detect(bytes(buf[:_HEAD]))
        other = f"its content looks like {seen} (--format {found} was given)"
        words = "; ".join(str(note) for note in profile.meta["notes"] if "no samples" not in note)
        raise ProfileFormatError(
            f"{name}: no samples in it{words and f': {words}'}", other if seen and seen != found else ""
        )
    return profile, damaged


def _peek(head: bytes) -> bytes:
    """The beginning of what is packed in `head`."""
    if head[:2] == b"\x1f\x8b":
        try:
            return zlib.decompressobj(31).decompress(head, _HEAD)
        except zlib.error:
            return b""
    if head[:4] == b"\x28\xb5\x2f\xfd":
        import io

        import zstandard

        try:
            return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(head)).read(_HEAD)
        except zstandard.ZstdError:
            return b""
    return head


def _unpack(buf: memoryview, name: str) -> tuple[memoryview, str]:
    """What a gzip or zstd file holds; with words when it is cut off or damaged. Bounded in size."""
    limit = min(_MAX_UNPACKED, _available_bytes() // 4)
    out = bytearray()
    cut = ""
    if bytes(buf[:2]) == b"\x1f\x8b":
        at = 0
        while at < len(buf) and not cut and bytes(buf[at : at + 2]) == b"\x1f\x8b":
            unpacker = zlib.decompressobj(31)
            feed = bytes(buf[at : at + (1 << 12)])  # little: there may be very many empty members
            at += len(feed)
            try:
                while feed or (not unpacker.eof and at < len(buf)):
                    out += unpacker.decompress(feed, 1 << 24)
                    feed = unpacker.unconsumed_tail
                    _refuse_bomb(name, at - len(feed), len(out), limit)
                    if unpacker.eof:
                        at -= len(unpacker.unused_data)
                        break
                    if not feed:
                        feed = bytes(buf[at : at + (1 << 20)])
                        at += len(feed)
                if not unpacker.eof:
                    cut = f"damaged: the gzip data is cut off after {len(out)} bytes"
            except zlib.error as error:
                cut = f"damaged: the gzip data breaks after {len(out)} bytes ({error})"
    elif bytes(buf[:4]) == b"\x28\xb5\x2f\xfd":
        import io

        import zstandard

        packed = io.BytesIO(buf)
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed, read_across_frames=True)
        try:
            while piece := reader.read(1 << 23):
                out += piece
                _refuse_bomb(name, packed.tell(), len(out), limit)
        except zstandard.ZstdError as error:
            cut = f"damaged: the zstd data breaks after {len(out)} bytes ({error})"
    else:
        return buf, ""
    if not out:
        raise ProfileFormatError(f"{name}: {cut or 'nothing is packed in it'}")
    return memoryview(out), cut

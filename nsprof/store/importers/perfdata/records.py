"""Cutting perf.data into records: where each one starts, compressed ones unpacked, the place of damage kept."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers.perfdata.header import Damage

__all__ = ["SAMPLE", "Batch", "Scan"]

SAMPLE = 9
TRACING_DATA, AUXTRACE, COMPRESSED, COMPRESSED2 = 66, 71, 81, 83
_BATCH = 32768  # samples decoded together: some 20 MB of temporary arrays
_STRETCH = 4 << 20  # bytes of records walked before a batch is handed on
_CHUNK = 8 << 20
_RATIO = 1000  # zstd: more than this (and 64 MiB) is a bomb; real files reach about 100


@dataclass(slots=True)
class Batch:
    """Records of one buffer: byte offsets of the samples, and of the others, in file order."""

    buf: memoryview
    samples: NDArray[np.int64]
    others: list[int]


class Scan:
    """Iterates over all records between `start` and `end` of `buf`, the compressed ones at the end.

    `damage` is set when the file stops making sense; `skipped_aux_bytes` counts AUX area data stepped over.
    """

    def __init__(self, buf: memoryview, start: int, end: int, order: str) -> None:
        self.buf = buf
        self.start = start
        self.end = min(end, len(buf))
        self.order = order
        self.damage: Damage | None = None
        self.skipped_aux_bytes = 0
        self.compressed_bytes = 0
        self.unpacked_bytes = 0
        self._packed: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Batch]:
        yield from self._walk(self.buf, self.start, self.end, whole=True)
        if self._packed:
            yield from self._unpack()

    def _walk(self, buf: memoryview, pos: int, end: int, *, whole: bool) -> Iterator[Batch]:
        """Batches of the records in buf[pos:end]. A record cut off at the end is damage when this is the `whole`."""
        self._stopped = pos
        samples = array("q")
        others: list[int] = []
        while True:
            begin = pos
            pos = self._run(buf, pos, end, samples, others)
            if pos - begin >= _STRETCH or len(samples) + len(others) >= _BATCH:
                yield Batch(buf, np.frombuffer(samples, "i8"), others)
                samples, others = array("q"), []
                continue
            break
        self._stopped = pos
        if samples or others:
            yield Batch(buf, np.frombuffer(samples, "i8"), others)
        if whole and self.damage is None and pos < end:
            self.damage = Damage(pos, "the last record is cut off")

    def _run(self, buf: memoryview, pos: int, end: int, samples: array[int], others: list[int]) -> int:
        """Walk until a batch is full, the buffer or the sense ends; returns the position reached."""
        if self.order == "<" and not pos & 1:
            begin = pos
            pos = self._run_halfwords(buf, pos, end, samples, others)
            if pos - begin >= _STRETCH:
                return pos
        unpack = struct.Struct(self.order + "IHH").unpack_from
        left = _BATCH - len(samples) - len(others)
        while left > 0 and pos + 8 <= end:
            kind, _, size = unpack(buf, pos)
            if size < 8:
                self.damage = Damage(pos, f"a record of {size} bytes (type {kind})")
                return pos
            if pos + size > end:
                return pos
            left -= 1
            if kind == SAMPLE:
                samples.append(pos)
                pos += size
            else:
                step = self._other(buf, pos, kind, size)
                if pos + step > end:
                    return pos
                others.append(pos)
                pos += step
        return pos

    def _run_halfwords(self, buf: memoryview, pos: int, end: int, samples: array[int], others: list[int]) -> int:
        """The same for the common case, in as few steps a record as Python can: little-endian, even positions."""
        half = buf[: end & ~1].cast("H")
        i, limit = pos >> 1, end >> 1
        stop = min(limit - 4, i + (_STRETCH >> 1))
        found: list[int] = []
        add = found.append
        while i <= stop:
            size = half[i + 3]
            following = i + (size >> 1)
            if size < 8 or size & 1 or following > limit:
                break  # left to the careful loop
            if half[i] == SAMPLE and not half[i + 1]:
                add(i + i)
                i = following
                continue
            step = self._other(buf, i + i, half[i] | half[i + 1] << 16, size)
            if i + i + step > end:
                break
            others.append(i + i)
            i += step >> 1
            if step & 1:
                samples.extend(found)
                return i + i + 1
        samples.extend(found)
        return i + i

    def _other(self, buf: memoryview, pos: int, kind: int, size: int) -> int:
        """Bytes to step over for a record that is no sample: its payload may follow it."""
        if kind == AUXTRACE and size >= 16:
            (extra,) = struct.unpack_from(self.order + "Q", buf, pos + 8)
            if pos + size + extra <= len(buf):
                self.skipped_aux_bytes += extra
            return size + int(extra)
        if kind == TRACING_DATA and size >= 12:
            (extra,) = struct.unpack_from(self.order + "I", buf, pos + 8)
            return size + (int(extra) + 7 & ~7)
        if kind == COMPRESSED and buf is self.buf:
            self._packed.append((pos + 8, size - 8))
        elif kind == COMPRESSED2 and size >= 16 and buf is self.buf:
            (length,) = struct.unpack_from(self.order + "Q", buf, pos + 8)
            self._packed.append((pos + 16, min(int(length), size - 16)))
        return size

    def _unpack(self) -> Iterator[Batch]:
        """The records inside the compressed ones: one zstd stream; a record may lie across two of them."""
        import zstandard

        spans = list(dict.fromkeys(self._packed))
        self.compressed_bytes = sum(size for _, size in spans)
        limit = max(64 << 20, self.compressed_bytes * _RATIO)
        source = _Spans(self.buf, spans)
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            source,  # type: ignore[arg-type]  # it asks for nothing but read()
            read_across_frames=True,
        )
        carry = b""
        outside, self.damage = self.damage, None  # what was packed before damage outside is still whole
        trouble = ""
        while not trouble:
            try:
                chunk = reader.read(_CHUNK)
            except zstandard.ZstdError as error:
                trouble = f"compressed records cannot be unpacked ({error})"
                break
            if not chunk:
                trouble = "the last compressed record is cut off" if carry else ""
                break
            self.unpacked_bytes += len(chunk)
            if self.unpacked_bytes > limit:
                trouble = f"compressed records unpack to more than {limit} bytes"
                break
            block = memoryview(carry + chunk)
            yield from self._walk(block, 0, len(block), whole=False)
            carry = bytes(block[self._stopped :])
            trouble = f"inside compressed records: {self._trouble()}" if self._trouble() else ""
        self.damage = outside or (Damage(source.position, trouble) if trouble else None)

    def _trouble(self) -> str:
        return self.damage.what if self.damage is not None else ""


class _Spans:
    """A file-like over pieces of a buffer, for the decompressor."""

    def __init__(self, buf: memoryview, spans: list[tuple[int, int]]) -> None:
        self._buf = buf
        self._spans = spans
        self._next = 0
        self.position = spans[0][0]

    def read(self, size: int = -1) -> bytes:
        """The rest of the current piece (a piece is at most 64 KiB, whatever `size` asks for)."""
        while self._next < len(self._spans):
            at, length = self._spans[self._next]
            self._next += 1
            self.position = at
            if length:
                return bytes(self._buf[at : at + length])
        return b""

"""Cutting perf.data into records: where each one starts, compressed ones unpacked, the place of damage kept."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers.perfdata.header import Damage
from nsprof.store.importers.text import forget

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
        while True:
            begin = pos
            samples: list[NDArray[np.int64]] = []
            others: list[int] = []
            pos = self._run(buf, pos, end, samples, others)
            self._stopped = pos
            at = np.concatenate(samples)
            for first in range(0, max(len(at), 1), _BATCH):
                yield Batch(buf, at[first : first + _BATCH], others if not first else [])
            forget(buf, begin, pos)
            if pos - begin < _STRETCH:
                break
        if whole and self.damage is None and pos < end:
            self.damage = Damage(pos, "the last record is cut off")

    def _run(self, buf: memoryview, pos: int, end: int, samples: list[NDArray[np.int64]], others: list[int]) -> int:
        """Walk until a batch is full, the buffer or the sense ends; returns the position reached."""
        unpack = struct.Struct(self.order + "IHH").unpack_from
        begin, stop = pos, min(pos + _STRETCH, end)
        ahead: dict[int, _Ahead] = {}  # by the place in 8 bytes; one, but for files with records of odd sizes
        found = array("q")
        try:
            while pos < stop and pos + 8 <= end:
                if pos & 7 not in ahead:
                    ahead[pos & 7] = _Ahead(buf, begin + (pos - begin & 7), stop, self.order)
                if (run := ahead[pos & 7].samples_from(pos)) is not None:
                    samples.append(np.frombuffer(found, "i8"))
                    samples.append(run)
                    found = array("q")
                    last = int(run[-1])
                    pos = last + unpack(buf, last)[2]
                    continue
                kind, _, size = unpack(buf, pos)
                if size < 8:
                    self.damage = Damage(pos, f"a record of {size} bytes (type {kind})")
                    return pos
                if pos + size > end:
                    return pos
                if kind == SAMPLE:
                    found.append(pos)
                    pos += size
                else:
                    step = self._other(buf, pos, kind, size)
                    if pos + step > end:
                        return pos
                    others.append(pos)
                    pos += step
        finally:
            samples.append(np.frombuffer(found, "i8"))
        return pos

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
            chunk, error = _read_some(reader, source)
            if not chunk and error:
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


def _read_some(reader: Any, source: _Spans) -> tuple[bytes, str]:
    """(some MB of what is packed, what went wrong behind it). A piece at a time: all before a damaged one is kept."""
    import zstandard

    made = bytearray()
    try:
        while len(made) < _CHUNK:
            piece = reader.read1(_CHUNK - len(made))
            if not piece and source.done:
                break
            made += piece
    except zstandard.ZstdError as error:
        return bytes(made), str(error)
    return bytes(made), ""


class _Ahead:
    """Runs of samples that follow each other without another record between them, found by numpy.

    A word that reads like the header of a sample may be none; so a run is used only from a position where a record is
    known to begin, and as far as each one's size leads to the next.
    """

    def __init__(self, buf: memoryview, pos: int, end: int, order: str) -> None:
        self.base = pos
        words = np.frombuffer(buf, order + "u8", count=max(0, end - pos) // 8, offset=pos)
        low, size = (0xFFFFFFFF, 48) if order == "<" else (0xFFFFFFFF << 32, 0)
        kind = SAMPLE if order == "<" else SAMPLE << 32
        at = np.flatnonzero((words & np.uint64(low)) == np.uint64(kind))
        length = ((words[at] >> np.uint64(size)) & np.uint64(0xFFFF)).astype("i8")
        good = (length >= 8) & (length & 7 == 0)
        self.at, length = at[good] * 8, length[good]
        follows = self.at + length
        ends = np.ones(len(self.at), bool)
        ends[:-1] = follows[:-1] != self.at[1:]
        if len(self.at):
            ends[-1] = True
        self.inside = follows <= end - pos
        self.last = np.flatnonzero(ends)

    def samples_from(self, pos: int) -> NDArray[np.int64] | None:
        """Positions of the samples of the run that a record at `pos` is in; None if it is in none."""
        first = int(self.at.searchsorted(pos - self.base))
        if first == len(self.at) or self.at[first] != pos - self.base:
            return None
        last = int(self.last[self.last.searchsorted(first)])
        while last >= first and not self.inside[last]:
            last -= 1
        return self.at[first : last + 1] + self.base if last >= first else None


class _Spans:
    """A file-like over pieces of a buffer, for the decompressor."""

    def __init__(self, buf: memoryview, spans: list[tuple[int, int]]) -> None:
        self._buf = buf
        self._spans = spans
        self._next = 0
        self.position = spans[0][0]

    @property
    def done(self) -> bool:
        """Whether all pieces were handed out."""
        return self._next >= len(self._spans)

    def read(self, size: int = -1) -> bytes:
        """The rest of the current piece (a piece is at most 64 KiB, whatever `size` asks for)."""
        while self._next < len(self._spans):
            at, length = self._spans[self._next]
            self._next += 1
            self.position = at
            if length:
                return bytes(self._buf[at : at + length])
        return b""

"""Names for addresses: kallsyms texts and ELF symbol tables, as sorted numpy columns.

A table is used only when it is proved to belong to what was recorded (build-id); see `perfdata.resolve`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError

__all__ = ["ElfSymbols", "Kallsyms", "SymbolTable", "elf_symbols", "gnu_build_id", "running_kernel_build_id"]

_MAX_TEXT = 256 << 20
_GAP = 1 << 20  # no function is longer: what lies farther beyond a symbol is not in it


class SymbolTable:
    """Sorted symbols. `find` gives the index of the symbol that covers each address, -1 where none does."""

    def __init__(self, start: NDArray[np.uint64], size: NDArray[np.uint64]) -> None:
        self.start = start
        self.size = size

    def find(self, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        if not len(self.start):
            return np.full(len(addresses), -1, "i8")
        at = np.searchsorted(self.start, addresses, side="right") - 1
        inside = (at >= 0) & (addresses - self.start[at.clip(0)] < self.size[at.clip(0)])
        return np.where(inside, at, -1)

    def name(self, index: int) -> str:
        """Name of a symbol. This table itself is only ever the empty one (a source without symbols)."""
        raise IndexError(f"no symbol {index} in a table without names")

    def module(self, index: int) -> str:
        """Module of a symbol; "" for the image itself."""
        del index
        return ""


class Kallsyms(SymbolTable):
    """A kallsyms text (`address type name [module]` a line). Names are cut out only when asked for.

    Raises ProfileFormatError when it is none, or when all its addresses are hidden (kptr_restrict).
    """

    def __init__(self, raw: bytes, origin: str = "kallsyms") -> None:
        if len(raw) > _MAX_TEXT:
            raise ProfileFormatError(f"{origin}: {len(raw)} bytes are too many for kallsyms")
        self._raw = raw
        address, kind, name_at, name_end = _columns(raw, origin)
        if not len(address) or not address.any():
            raise ProfileFormatError(
                f"{origin}: all addresses are zero (kptr_restrict hides them)",
                "read /proc/kallsyms as root, or sysctl kernel.kptr_restrict=0",
            )
        code = np.isin(kind, np.frombuffer(b"tTwW", "u1"))
        order = np.flatnonzero(code)[np.argsort(address[code], kind="stable")]
        self._at, self._end, self._kind = name_at[order], name_end[order], kind[order]
        start = address[order]
        following = np.append(start[1:], start[-1:] + np.uint64(4096)) if len(start) else start
        # Aliases share an address: all of them end where the next different address begins.
        last = np.searchsorted(start, start, side="right") - 1
        size = np.minimum(following[last] - start, np.uint64(_GAP))
        super().__init__(start, size)
        self._data = (address, kind, name_at, name_end)

    @classmethod
    def read(cls, path: Path) -> Kallsyms:
        """From a file. Raises ProfileFormatError when it cannot be read or is no kallsyms."""
        try:
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise ProfileFormatError(f"cannot read {path}: {error.strerror}") from error

    def name(self, index: int) -> str:
        first = int(self.start.searchsorted(self.start[index]))
        best = index
        if first != index:
            best = min(range(first, index + 1), key=self._rank)
        return self._line(best)[0]

    def module(self, index: int) -> str:
        return self._line(index)[1]

    def data(self, address: int) -> str:
        """`name+0x10` of the variable at an address, as far as a symbol of data stands before it and none of another
        kind between them; else "". A variable's size is not in kallsyms, so what lies behind the last one is not
        told from it: farther than a page off no name is given."""
        start, kind, name_at, name_end = self._data
        before = np.flatnonzero(start <= np.uint64(address))
        if not len(before):
            return ""
        at = int(before[np.argmax(start[before])])
        distance = address - int(start[at])
        if distance >= 4096 or chr(int(kind[at])) not in "bBdDrR":
            return ""
        name = self._raw[name_at[at] : name_end[at]].split()[0].decode("utf-8", "backslashreplace")
        return f"{name}+{distance:#x}" if distance else name

    def _line(self, index: int) -> tuple[str, str]:
        words = self._raw[self._at[index] : self._end[index]].split()
        name = words[0].decode("utf-8", "backslashreplace") if words else ""
        return name, words[1].decode("utf-8", "backslashreplace").strip("[]") if len(words) > 1 else ""

    def _rank(self, index: int) -> tuple[bool, bool, int, int]:
        # As perf chooses among aliases: not weak, global, fewest leading underscores, then the longest name.
        kind, name = int(self._kind[index]), self._line(index)[0]
        underscores = len(name) - len(name.lstrip("_"))
        return chr(kind) in "wW", chr(kind) == "t", underscores, -len(name)

    def address(self, symbol: str) -> int | None:
        """Address of a symbol of any type, None if it is not there."""
        needle = f" {symbol}\n".encode()
        at = self._raw.find(needle)
        if at < 0:
            return None
        line = self._raw[self._raw.rfind(b"\n", 0, at) + 1 : at].split()
        return int(line[0], 16)


_HEX = np.full(256, 255, "u1")
_HEX[np.frombuffer(b"0123456789abcdef", "u1")] = np.arange(16)
_HEX[np.frombuffer(b"ABCDEF", "u1")] = np.arange(10, 16)


def _columns(
    raw: bytes, origin: str
) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """address, type letter, and begin and end of the rest of every line; lines of another form are left out."""
    data = np.frombuffer(raw, "u1")
    width = raw.find(b" ")
    if not 8 <= width <= 16:
        raise ProfileFormatError(f"{origin}: not a kallsyms text (a line is `address type name`)")
    ends = np.flatnonzero(data == 10)
    if len(data) and data[-1] != 10:
        ends = np.append(ends, len(data))
    begins = np.concatenate([np.zeros(1, "i8"), ends[:-1] + 1]) if len(ends) else ends
    fits = ends - begins > width + 3
    begins, ends = begins[fits], ends[fits]
    digits = _HEX[data[begins[:, None] + np.arange(width)]]
    good = (digits < 16).all(axis=1) & (data[begins + width] == 32) & (data[begins + width + 2] == 32)
    if not good.any():
        raise ProfileFormatError(f"{origin}: not a kallsyms text (a line is `address type name`)")
    address = np.zeros(len(begins), "u8")
    for column in range(width):
        address = address << np.uint64(4) | digits[:, column].astype("u8")
    return address[good], data[begins + width + 1][good], begins[good] + width + 3, ends[good]


class ElfSymbols(SymbolTable):
    """Function symbols of an ELF file, with the load segments to get from file offsets to its addresses."""

    def __init__(
        self,
        start: NDArray[np.uint64],
        size: NDArray[np.uint64],
        name: NDArray[np.uint32],
        *,
        strings: bytes,
        segments: list[tuple[int, int, int]],
        build_id: bytes,
    ) -> None:
        order = np.lexsort((-size.astype("i8"), start))
        start, size, self._name = start[order], size[order], name[order]
        if len(start):
            following = np.append(start[1:], start[-1:] + np.uint64(4096))
            last = np.searchsorted(start, start, side="right") - 1
            size = np.where(size == 0, np.minimum(following[last] - start, np.uint64(_GAP)), size)
        super().__init__(start, size)
        self._strings = strings
        self.segments = segments
        self.build_id = build_id

    def name(self, index: int) -> str:
        first = int(self.start.searchsorted(self.start[index]))
        at = int(self._name[first])
        end = self._strings.find(b"\0", at)
        return self._strings[at:end].decode("utf-8", "backslashreplace") if end > at else ""

    def address(self, symbol: str) -> int | None:
        """Value of a symbol, None if there is none of that name."""
        at = self._strings.find(b"\0" + symbol.encode() + b"\0")
        hits = np.flatnonzero(self._name == at + 1) if at >= 0 else np.zeros(0, "i8")
        return int(self.start[hits[0]]) if len(hits) else None

    def from_offsets(self, offsets: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Addresses of file offsets; 2^64-1 where no segment is loaded from there."""
        out = np.full(len(offsets), 2**64 - 1, "u8")
        for offset, address, size in self.segments:
            inside = (offsets >= np.uint64(offset)) & (offsets - np.uint64(offset) < np.uint64(size))
            out[inside] = offsets[inside] - np.uint64(offset) + np.uint64(address)
        return out


def elf_symbols(path: Path) -> ElfSymbols:
    """Function symbols (.symtab, else .dynsym) of an ELF file.

    Read as columns, without an object a symbol, section or segment. Raises ProfileFormatError when it is no ELF file,
    or is damaged.
    """
    try:
        with path.open("rb") as stream:
            return _read_elf(stream)
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise ProfileFormatError(f"{path}: cannot read its symbols ({error})") from error


_SECTION = "name:4 type:4 flags:a addr:a offset:a size:a link:4 info:4 align:a entsize:a"
_SEGMENT_64 = "type:4 flags:4 offset:8 vaddr:8 paddr:8 filesz:8 memsz:8 align:8"
_SEGMENT_32 = "type:4 offset:4 vaddr:4 paddr:4 filesz:4 memsz:4 flags:4 align:4"
_SYMBOL_64 = "name:4 info:1 other:1 shndx:2 value:8 size:8"
_SYMBOL_32 = "name:4 value:4 size:4 info:1 other:1 shndx:2"
_SYMTAB, _NOTE, _DYNSYM, _LOAD = 2, 7, 11, 1


def _dtype(fields: str, order: str, wide: bool) -> np.dtype[Any]:
    """A record of unsigned fields; width `a` is that of an address."""
    pairs = [f.split(":") for f in fields.split()]
    return np.dtype([(n, f"{order}u{w.replace('a', '8' if wide else '4')}") for n, w in pairs])


def _read_elf(stream: IO[bytes]) -> ElfSymbols:
    head = stream.read(64)
    if head[:4] != b"\x7fELF" or len(head) < 52 or head[4] not in (1, 2) or head[5] not in (1, 2):
        raise ValueError("no ELF file")
    order, wide = "<>"[head[5] - 1], head[4] == 2
    # e_phoff, e_shoff; then, behind e_flags and e_ehsize: e_phentsize, e_phnum, e_shentsize, e_shnum
    phoff, shoff = struct.unpack_from(order + ("QQ" if wide else "II"), head, 32 if wide else 28)
    _, phnum, _, shnum = struct.unpack_from(order + "4H", head, 54 if wide else 42)

    def table(offset: int, count: int, shape: np.dtype[Any]) -> NDArray[Any]:
        return np.frombuffer(content(offset, count * shape.itemsize), shape, count=-1)

    def content(offset: int, size: int) -> bytes:
        if size > _MAX_TEXT:
            raise ValueError(f"a section of {size} bytes")
        stream.seek(offset)
        raw = stream.read(size)
        if len(raw) < size:
            raise ValueError("a section beyond the end of the file")
        return raw

    sections = table(shoff, shnum, _dtype(_SECTION, order, wide))
    segments = table(phoff, phnum, _dtype(_SEGMENT_64 if wide else _SEGMENT_32, order, wide))
    build_id = b""
    for note in sections[sections["type"] == _NOTE]:
        build_id = build_id or gnu_build_id(content(int(note["offset"]), int(note["size"])), order)
    chosen = next((s for kind in (_SYMTAB, _DYNSYM) for s in sections[sections["type"] == kind]), None)
    shape = _dtype(_SYMBOL_64 if wide else _SYMBOL_32, order, wide)
    strings, rows = b"", np.zeros(0, shape)
    if chosen is not None:
        rows = table(int(chosen["offset"]), int(chosen["size"]) // shape.itemsize, shape)
        names = sections[int(chosen["link"])]
        strings = content(int(names["offset"]), int(names["size"]))
    kind = rows["info"] & 15  # STT_NOTYPE 0, STT_FUNC 2, STT_GNU_IFUNC 10
    code = ((kind == 2) | (kind == 10) | (kind == 0)) & (rows["shndx"] != 0) & (rows["name"] != 0)
    rows = rows[code & (rows["value"] != 0)]
    return ElfSymbols(
        rows["value"].astype("u8"),
        rows["size"].astype("u8"),
        rows["name"].astype("u4"),
        strings=strings,
        segments=[(int(s["offset"]), int(s["vaddr"]), int(s["filesz"])) for s in segments if s["type"] == _LOAD],
        build_id=build_id,
    )


def gnu_build_id(notes: bytes, order: str = "<") -> bytes:
    """The build-id in ELF notes (as in /sys/kernel/notes); b"" if there is none."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from(order + "III", notes, at)
        data = at + 12 + (name_size + 3 & ~3)
        if kind == 3 and notes[at + 12 : at + 16] == b"GNU\0":
            return notes[data : data + size]
        at = data + (size + 3 & ~3)
    return b""


def running_kernel_build_id(path: Path = Path("/sys/kernel/notes")) -> bytes:
    """Build-id of the kernel that runs here; b"" where it cannot be read."""
    import sys

    try:
        return gnu_build_id(path.read_bytes(), "<" if sys.byteorder == "little" else ">")
    except OSError:
        return b""

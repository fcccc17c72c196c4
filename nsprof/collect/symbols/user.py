"""Names of user-space addresses: the file that is mapped there, and its ELF symbol where the file has one.

Maps are read while the process lives; after its end what was read before still serves. Files are read through the
process's own root (/proc/PID/root), so that containers' binaries are their own.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["UserSymbols"]

# Elf64_Sym, and STT_FUNC in its low four bits of info
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_FUNCTION = 2
_FILE_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    offset: int
    path: str


@dataclass(slots=True)
class _Elf:
    """Function symbols of one file (by virtual address) and its loadable segments (file offset, size, address)."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    segments: list[tuple[int, int, int]] = field(default_factory=list)

    def name(self, file_offset: int) -> str:
        for offset, size, address in self.segments:
            if offset <= file_offset < offset + size:
                at = file_offset - offset + address
                number = bisect.bisect_right(self.starts, at) - 1
                if number >= 0 and at < self.ends[number]:
                    return self.names[number]
        return ""


class UserSymbols:
    """Call it with (tgid, address) for (name, module); "" where nothing is known. Give it to add_batch()."""

    def __init__(self) -> None:
        self._maps: dict[int, list[_Mapping]] = {}
        self._elves: dict[tuple[int, int, int], _Elf] = {}
        self._files: dict[tuple[int, str], _Elf | None] = {}

    def capture(self, tgid: int) -> None:
        """Read a process's mappings and the symbols of its files now, while it lives. Harmless when it is gone."""
        self._maps.pop(tgid, None)
        for mapping in self._mappings(tgid):
            if mapping.path.startswith("/"):
                self._elf(tgid, mapping.path)

    def __call__(self, tgid: int, address: int) -> tuple[str, str]:
        for mapping in self._mappings(tgid):
            if mapping.start <= address < mapping.end:
                if not mapping.path.startswith("/"):
                    return mapping.path or "[anonymous]", ""
                module = mapping.path.rsplit("/", 1)[-1]
                offset = address - mapping.start + mapping.offset
                elf = self._elf(tgid, mapping.path)
                name = elf.name(offset) if elf is not None else ""
                return name or f"{module}+{offset & ~0xFFF:#x}", module
        return "", ""

    def _mappings(self, tgid: int) -> list[_Mapping]:
        known = self._maps.get(tgid)
        if known is not None:
            return known
        found: list[_Mapping] = []
        try:
            text = Path(f"/proc/{tgid}/maps").read_text(errors="backslashreplace")
        except OSError:  # the process has ended
            text = ""
        for line in text.splitlines():
            parts = line.split(None, 5)
            if len(parts) >= 5 and "x" in parts[1]:
                start, _, end = parts[0].partition("-")
                path = parts[5] if len(parts) > 5 else ""
                found.append(_Mapping(int(start, 16), int(end, 16), int(parts[2], 16), path))
        self._maps[tgid] = found
        return found

    def _elf(self, tgid: int, path: str) -> _Elf | None:
        key = (tgid, path)
        if key not in self._files:
            self._files[key] = self._open(tgid, path)
        return self._files[key]

    def _open(self, tgid: int, path: str) -> _Elf | None:
        try:
            place = Path(f"/proc/{tgid}/root{path}")
            info = place.stat()
            identity = (info.st_dev, info.st_ino, info.st_mtime_ns)
            if identity not in self._elves:
                if info.st_size > _FILE_LIMIT_BYTES or not place.is_file():
                    return None
                self._elves[identity] = _read_elf(place)
            return self._elves[identity]
        except OSError:  # the process or the file is gone: offsets must do
            return None


def _read_elf(path: Path) -> _Elf:
    """Symbols of an ELF file; empty for anything else."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    elf = _Elf()
    rows: dict[int, tuple[int, str]] = {}
    with path.open("rb") as stream:
        try:
            file = ELFFile(stream)
            for segment in file.iter_segments("PT_LOAD"):
                header = segment.header
                elf.segments.append((header.p_offset, header.p_filesz, header.p_vaddr))
            for section_name in (".dynsym", ".symtab"):
                section: Any = file.get_section_by_name(section_name)
                if section is None:
                    continue
                if file.elfclass != 64 or not file.little_endian:
                    continue
                table = np.frombuffer(section.data(), _SYMBOL)
                names = file.get_section(section["sh_link"]).data()
                functions = table[(table["info"] & 0xF == _FUNCTION) & (table["value"] > 0)]
                for at, start, size in functions[["name", "value", "size"]].tolist():
                    name = names[at : names.index(b"\0", at)].decode(errors="backslashreplace")
                    if start not in rows or (len(name), name) < (len(rows[start][1]), rows[start][1]):
                        rows[start] = (size, name)  # of several names the shortest: strtol, not strtoimax
        except (ELFError, ValueError, KeyError, AttributeError):
            return _Elf()
    elf.starts = sorted(rows)
    for number, start in enumerate(elf.starts):
        size, name = rows[start]
        following = elf.starts[number + 1] if number + 1 < len(elf.starts) else start + (size or 1)
        elf.ends.append(start + size if size else following)
        elf.names.append(name)
    return elf

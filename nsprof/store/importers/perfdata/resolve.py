"""Addresses of call chains become frames.

Kernel names are taken only from a table that is proved to belong to the recorded kernel: what the user gives, what
the file itself holds, perf's build-id cache, or this machine's kallsyms when its build-id is the recorded one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import FrameKind
from nsprof.store.importers.assemble import U64, FrameTable
from nsprof.store.importers.perfdata.header import Header
from nsprof.store.importers.perfdata.sideband import Map, Side
from nsprof.store.importers.symbols import ElfSymbols, Kallsyms, SymbolTable, elf_symbols, running_kernel_build_id

__all__ = ["KernelSymbols", "Resolver", "kernel_symbols", "modes_of"]

CONTEXT_MAX = U64(2**64 - 4095)
#: context marker in a chain -> cpumode of what follows it
MODES = {2**64 - 128: 1, 2**64 - 512: 2, 2**64 - 32: 3, 2**64 - 2048: 4, 2**64 - 2176: 4, 2**64 - 2560: 5}
_KSYM_BPF = 1
_MANY_FILES = 512
#: tables of mapped files, most of which two recordings that are compared have in common; a build-id is one file's
_FOUND: dict[tuple[str, bytes], ElfSymbols] = {}
_NO_SYMBOLS = SymbolTable(np.zeros(0, "u8"), np.zeros(0, "u8"))


@dataclass(slots=True)
class KernelSymbols:
    """The kernel's table (None: addresses stay addresses), what must be added to a recorded address to look it up
    there, whether it says nothing about modules, and a line saying where it is from or why there is none."""

    table: SymbolTable | None = None
    shift: int = 0
    image_only: bool = False
    note: str = ""


def modes_of(flat: NDArray[np.uint64], offsets: NDArray[np.int64], mode: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """cpumode of every word of every chain: that of the last marker before it, else the record's own."""
    out = np.zeros(len(flat), "u1")
    marks = flat >= CONTEXT_MAX
    out[offsets[:-1]] = 16 | mode  # 16: set here, so that the running fill below stops at row begins
    for marker, value in MODES.items():
        out[flat == U64(marker)] = 16 | value
    unknown = marks & (out < 16)
    out[unknown] = 16
    at = np.where(out >= 16, np.arange(len(flat)), 0)
    return (out[np.maximum.accumulate(at)] & 15).astype("u1")


def kernel_symbols(head: Header, side: Side, kallsyms: Path | None, vmlinux: Path | None) -> KernelSymbols:
    """Choose the table. Raises ProfileFormatError when a given one does not belong to the recording."""
    recorded = recorded_build_id(head, side)
    reference = _reference(side)
    if vmlinux is not None:
        return _given_vmlinux(vmlinux, recorded, reference)
    if kallsyms is not None:
        return _given_kallsyms(kallsyms, reference)
    if head.kallsyms:
        try:
            return KernelSymbols(Kallsyms(head.kallsyms, "kallsyms in the file"), note="kernel symbols: in the file")
        except ProfileFormatError as error:
            head.notes.append(error.message)
    if not recorded:
        return KernelSymbols(
            note="kernel symbols: none - the file names no kernel build-id, so no table can be proved to belong to "
            "it; kernel frames are addresses (give --kallsyms or --vmlinux)"
        )
    cached = _cached(recorded, reference)
    if cached is not None:
        return cached
    if recorded != running_kernel_build_id():
        return KernelSymbols(
            note=f"kernel symbols: none - recorded on another kernel (build-id {recorded.hex()[:12]}), whose symbols "
            "are not here; kernel frames are addresses (give --kallsyms or --vmlinux)"
        )
    try:
        table = Kallsyms.read(Path("/proc/kallsyms"))
    except ProfileFormatError as error:
        return KernelSymbols(note=f"kernel symbols: none - {error.message}; kernel frames are addresses")
    return _placed(table, reference, "this machine's kallsyms (same build-id)", same_boot=False)


def recorded_build_id(head: Header, side: Side) -> bytes:
    """Build-id of the kernel that was recorded, b"" if the file does not say."""
    for name in ("[kernel.kallsyms]", "[kernel.kallsyms]_text", "[kernel.kallsyms]_stext"):
        if head.build_ids.get(name):
            return head.build_ids[name]
    for each in side.kernel_maps:
        if each.file.startswith("[kernel.kallsyms]") and each.build_id:
            return each.build_id
    for name, build_id in head.build_ids.items():
        if name.endswith("vmlinux"):
            return build_id
    return b""


def _reference(side: Side) -> tuple[str, int] | None:
    """(`_text` or `_stext`, its address when recorded), as perf notes it in the kernel's mapping."""
    for each in side.kernel_maps:
        if each.file.startswith("[kernel.kallsyms]_"):
            return each.file[len("[kernel.kallsyms]") :], each.offset
    return None


def _placed(table: Kallsyms, reference: tuple[str, int] | None, origin: str, *, same_boot: bool) -> KernelSymbols:
    """Table of the same build, perhaps loaded elsewhere (KASLR): then shifted, and not used for modules."""
    there = table.address(reference[0]) if reference else None
    if reference is None or there is None or there == reference[1]:
        return KernelSymbols(table, note=f"kernel symbols: {origin}")
    if same_boot:
        raise ProfileFormatError(
            f"{origin}: {reference[0]} is at {there:#x} there, but was at {reference[1]:#x} when recorded (another "
            "boot)",
            "give the vmlinux of that kernel, or the kallsyms saved while recording",
        )
    return KernelSymbols(
        table,
        shift=there - reference[1],
        image_only=True,
        note=f"kernel symbols: {origin}; another boot, so moved by {there - reference[1]:#x}, modules left out",
    )


def _given_kallsyms(path: Path, reference: tuple[str, int] | None) -> KernelSymbols:
    return _placed(Kallsyms.read(path), reference, str(path), same_boot=True)


def _given_vmlinux(path: Path, recorded: bytes, reference: tuple[str, int] | None) -> KernelSymbols:
    elf = elf_symbols(path)
    if recorded and elf.build_id and elf.build_id != recorded:
        raise ProfileFormatError(
            f"{path} has build-id {elf.build_id.hex()}, but the file was recorded on {recorded.hex()}",
            "give the vmlinux of the recorded kernel",
        )
    shift = 0
    there = elf.address(reference[0]) if reference else None
    if reference and there is not None:
        shift = there - reference[1]
    return KernelSymbols(elf, shift, image_only=True, note=f"kernel symbols: {path}")


def _cached(build_id: bytes, reference: tuple[str, int] | None) -> KernelSymbols | None:
    """kallsyms or vmlinux of that build-id in perf's cache (~/.debug)."""
    root = Path(os.environ.get("PERF_BUILDID_DIR") or Path.home() / ".debug")
    folder = root / ".build-id" / build_id.hex()[:2] / build_id.hex()[2:]
    try:
        if (folder / "kallsyms").is_file():
            return _placed(Kallsyms.read(folder / "kallsyms"), reference, "perf's build-id cache", same_boot=False)
        if (folder / "vmlinux").is_file():
            return _given_vmlinux(folder / "vmlinux", build_id, reference)
    except ProfileFormatError:
        return None
    return None


class Resolver:
    """Turns chains into frames of one FrameTable. `named` is filled with whether each frame has a name."""

    def __init__(self, head: Header, side: Side, kernel: KernelSymbols) -> None:
        self.table = FrameTable()
        self.named: list[bool] = []
        self._head = head
        self._side = side
        self._kernel = kernel
        self._dso: dict[tuple[str, bytes], ElfSymbols | None] = {}
        self._files: dict[tuple[str, bytes], int] = {}
        self.user_files: set[str] = set()
        self.user_missing: set[str] = set()

    def beside(self) -> Resolver:
        """Another one with the same symbols, and frames of its own: for addresses that are in no call chain."""
        other = Resolver(self._head, self._side, self._kernel)
        other._dso = self._dso
        return other

    def data(self, address: int) -> str:
        """`symbol+0x10` of the kernel's data at an address, "" where no symbol of data is known to be."""
        kernel = self._kernel
        if kernel.image_only or not isinstance(kernel.table, Kallsyms):
            return ""
        return kernel.table.data(address + kernel.shift)

    def _frame(self, name: str, module: str, kind: FrameKind, named: bool) -> int:
        index = self.table.add(name, module, kind)
        if index == len(self.named):
            self.named.append(named)
        return index

    def kernel(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Frames of (distinct) kernel addresses."""
        at, table = self._look_up(addresses)
        out = np.empty(len(addresses), "u4")
        distinct, inverse = np.unique(at, return_inverse=True)
        frames = np.zeros(len(distinct), "u4")
        for row, index in enumerate(distinct.tolist()):
            if index >= 0:
                module = table.module(index)
                kind = FrameKind.BPF if module == "bpf" else FrameKind.KERNEL
                frames[row] = self._frame(table.name(index), module, kind, True)
        out[:] = frames[inverse.ravel()]
        self._registered(addresses, at, out)
        maps = sorted(self._side.kernel_maps, key=lambda m: m.start)
        map_start = np.array([m.start for m in maps], "u8")
        mapped = np.searchsorted(map_start, addresses, side="right") - 1
        for row in np.flatnonzero(at == -1).tolist():
            address = int(addresses[row])
            inside = maps[mapped[row]] if mapped[row] >= 0 and address < maps[mapped[row]].end else None
            out[row] = self._frame(f"{address:#018x}", _module_name(inside), FrameKind.KERNEL, False)
        return out

    def _registered(self, addresses: NDArray[np.uint64], at: NDArray[np.int64], out: NDArray[np.uint32]) -> None:
        """Frames of addresses in symbols that the file itself registers (BPF programs): their `at` becomes -2."""
        extra = sorted(self._side.ksymbols)
        if not extra:
            return
        starts = np.array([k[0] for k in extra], "u8")
        lengths = np.array([k[1] for k in extra], "u8")
        which = np.searchsorted(starts, addresses, side="right") - 1
        inside = (which >= 0) & (addresses - starts[which.clip(0)] < lengths[which.clip(0)])
        bpf = np.array([k[2] == _KSYM_BPF for k in extra])
        for row in np.flatnonzero(inside & ((at < 0) | bpf[which.clip(0)])).tolist():
            is_bpf = bool(bpf[which[row]])
            kind = FrameKind.BPF if is_bpf else FrameKind.KERNEL
            out[row] = self._frame(extra[which[row]][3], "bpf" if is_bpf else "", kind, True)
            at[row] = -2

    def _look_up(self, addresses: NDArray[np.uint64]) -> tuple[NDArray[np.int64], SymbolTable]:
        kernel = self._kernel
        table = kernel.table or _NO_SYMBOLS
        at = table.find(addresses + U64(kernel.shift % (1 << 64)))
        if kernel.image_only:
            modules = [m for m in self._side.kernel_maps if not m.file.startswith("[kernel")]
            for each in modules:
                at[(addresses >= U64(each.start)) & (addresses < U64(each.end))] = -1
        return at, table

    def guest(self) -> int:
        """The frame of code in a virtual machine, of which this file knows nothing."""
        return self._frame("[guest]", "", FrameKind.UNKNOWN, False)

    def mapped(
        self, addresses: NDArray[np.uint64], pid: int, time: int
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """(number of the file that each address of a process is mapped from at a time or -1, place in the file)."""
        space = self._side.space_of(pid, time)
        maps, which = space.find(addresses) if space else ([], np.zeros(0, "i8"))
        if not maps:
            return np.full(len(addresses), -1, "i8"), addresses
        number, base = np.full(len(maps) + 1, -1, "i8"), np.zeros(len(maps) + 1, "u8")
        for each in np.flatnonzero(np.bincount(which + 1)[1:]).tolist():
            where = maps[each]
            key = where.file, where.build_id or self._head.build_ids.get(where.file, b"")
            number[each] = self._files.setdefault(key, len(self._files))
            base[each] = (where.offset - where.start) % (1 << 64)
        return number[which], addresses + base[which]  # the last of both is for those in no mapping

    def user(self, file: NDArray[np.int64], offset: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Frames of (distinct) places that `mapped` told."""
        out = np.full(len(file), self._frame("[unknown]", "", FrameKind.USER, False), "u4")
        order = np.argsort(file, kind="stable")
        cuts = np.searchsorted(file[order], np.arange(len(self._files) + 1))
        for key, number in self._files.items():
            rows = order[cuts[number] : cuts[number + 1]]
            if len(rows):
                out[rows] = self._in_file(*key, offset[rows])
        return out

    def _in_file(self, file: str, build_id: bytes, offsets: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Frames of places in a mapped file."""
        module = file if file.startswith(("[", "//")) else file.rsplit("/", 1)[-1]
        unknown = self._frame("[unknown]", module, FrameKind.USER, False)
        table = self._elf(file, build_id)
        if table is None:
            self.user_missing.add(module)
            return np.full(len(offsets), unknown, "u4")
        self.user_files.add(module)
        at = table.find(table.from_offsets(offsets))
        distinct, inverse = np.unique(at, return_inverse=True)
        frames = np.full(len(distinct), unknown, "u4")
        for row, index in enumerate(distinct.tolist()):
            name = table.name(index) if index >= 0 else ""
            frames[row] = self._frame(name, module, FrameKind.USER, True) if name else unknown
        return frames[inverse.ravel()]

    def _elf(self, file: str, build_id: bytes) -> ElfSymbols | None:
        """Symbols of a mapped file when the file (or its debug file) with the recorded build-id is here."""
        key = (file, build_id)
        if key not in self._dso:
            table = _FOUND.get(key)
            if table is None and build_id and file.startswith("/"):
                table = _proved(file, build_id)
            if table is not None and len(_FOUND) < _MANY_FILES:
                _FOUND[key] = table
            self._dso[key] = table
        return self._dso[key]


def _proved(file: str, build_id: bytes) -> ElfSymbols | None:
    name = build_id.hex()
    debug = Path(f"/usr/lib/debug/.build-id/{name[:2]}/{name[2:]}.debug")
    cache = (
        Path(os.environ.get("PERF_BUILDID_DIR") or Path.home() / ".debug") / ".build-id" / name[:2] / name[2:] / "elf"
    )
    for path in (debug, Path(file), cache):
        try:
            if not path.is_file():
                continue
            table = elf_symbols(path)
        except (ProfileFormatError, OSError, ValueError):
            continue
        if table.build_id.rstrip(b"\0") == build_id.rstrip(b"\0") and len(table.start):
            if path == debug and Path(file).is_file():
                table.segments = elf_symbols(Path(file)).segments or table.segments
            return table
    return None


def _module_name(where: Map | None) -> str:
    """`veth` of `[veth]` or `/lib/modules/.../veth.ko.xz`; "" for the image."""
    if where is None or where.file.startswith("[kernel"):
        return ""
    return where.file.rsplit("/", 1)[-1].strip("[]").split(".ko")[0]

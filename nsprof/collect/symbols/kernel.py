"""From addresses to names: the kernel image, modules, BPF programs and trampolines, from /proc/kallsyms.

An address outside every symbol's range stays unknown: ends are the next symbol, the end of the kernel text, the
module's end, the BPF program's own length, never "whatever comes before".
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.bpf.syscalls import program_infos
from nsprof.errors import PreflightError
from nsprof.model.profile import FrameKind

__all__ = ["KernelSymbols", "Symbol", "user_half"]

KALLSYMS = Path("/proc/kallsyms")
MODULES = Path("/proc/modules")

_PAGE = 4096
_TEXT = frozenset("tTwW")
#: Types whose addresses bound a text symbol but are none themselves (data, absolute, ...).
_NOT_CODE_NAMES = re.compile(
    r"^(__pfx_|__cfi_|__kstrtab|__ksymtab|\.L|\$[xdt]|__start_|__stop_|__crc_|_s?text$|_e(init)?text$|_sinittext$"
    r"|\w+_text_(start|end)$)"
)
#: nsprof's own: the sampler's and the probes' programs (they are named so in probes/*.c).
_OWN_PROGRAM = re.compile(r"^bpf_prog_[0-9a-f]{16}_(on_event_\d|hop_\w+|nsprof\w*)$")


@dataclass(frozen=True, slots=True)
class Symbol:
    """What an address belongs to; `kind` UNKNOWN and an empty name where it belongs to nothing known."""

    name: str
    module: str = ""
    kind: FrameKind = FrameKind.KERNEL


UNKNOWN = Symbol("", "", FrameKind.UNKNOWN)


class KernelSymbols:
    """A snapshot of the kernel's symbols. Re-read it after attaching: trampolines appear with the programs."""

    def __init__(
        self,
        kallsyms: Path = KALLSYMS,
        modules: Path = MODULES,
        *,
        program_bytes: Mapping[str, int] | None = None,
        own_programs: Sequence[str] = (),
    ) -> None:
        """Read the tables. `program_bytes` (name to length; default: asked of the kernel) bounds BPF programs;
        `own_programs` are further kallsyms names that are nsprof's own.

        Raises PreflightError when addresses are hidden or there are no symbols: wrong names are worse than none.
        """
        try:
            lines = kallsyms.read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            raise PreflightError(f"kernel symbols cannot be read: {kallsyms}: {error.strerror}") from error
        if program_bytes is None:
            program_bytes = {name: info[2] for name, info in program_infos().items()}
        self._own = frozenset(own_programs)
        self._build(lines, _module_ends(modules), program_bytes)

    def _build(self, lines: Sequence[str], module_ends: Mapping[str, int], program_bytes: Mapping[str, int]) -> None:
        rows: list[tuple[int, int, str, str]] = []  # address, preference, name, module
        bounds: list[int] = []
        text_ends: list[int] = []
        hidden = 0
        for line in lines:
            parts = line.split(None, 3)
            if len(parts) < 3:
                continue
            address = int(parts[0], 16)
            hidden += address == 0
            kind, name = parts[1], parts[2]
            if name in ("_etext", "_einittext"):
                text_ends.append(address)
            if kind not in _TEXT:
                if kind in "aA":
                    continue  # absolute values (per-CPU offsets), not places
                bounds.append(address)
                continue
            if _NOT_CODE_NAMES.match(name):
                bounds.append(address)
                continue
            module = parts[3][1:-1] if len(parts) > 3 else ""
            rows.append((address, _preference(kind, name), name, module))
        if not rows or hidden > len(lines) // 2:
            raise _hidden(bool(rows))
        rows.sort()
        self._store(rows, np.array(sorted(bounds + text_ends), "u8"), module_ends, program_bytes)

    def _store(
        self,
        rows: list[tuple[int, int, str, str]],
        bounds: NDArray[np.uint64],
        module_ends: Mapping[str, int],
        program_bytes: Mapping[str, int],
    ) -> None:
        addresses = np.array([row[0] for row in rows], "u8")
        first = np.ones(len(rows), bool)  # of several names of one address the preferred one, sorted first
        first[1:] = addresses[1:] != addresses[:-1]
        kept = [rows[i] for i in np.flatnonzero(first)]
        starts = addresses[first]
        ends = np.append(starts[1:], np.uint64(0xFFFFFFFFFFFFFFFF))
        if len(bounds):
            where = np.searchsorted(bounds, starts, "right")
            next_bound = np.append(bounds, np.uint64(0xFFFFFFFFFFFFFFFF))[where]
            ends = np.minimum(ends, next_bound)
        for i, (start, _, name, module) in enumerate(kept):
            limit = 0
            if module in ("bpf", "__builtin__ftrace", "__builtin__kprobes"):
                length = program_bytes.get(name, 0)
                limit = start + (length or _PAGE)
            elif module:
                limit = module_ends.get(module, 0)
            if limit and limit < ends[i]:
                ends[i] = limit
            elif not limit and ends[i] - starts[i] > 1 << 20:
                ends[i] = starts[i] + np.uint64(_PAGE)  # the table's last symbol: nothing says where it ends
        self._starts, self._ends = starts, ends
        self._names = [row[2] for row in kept]
        self._modules = [row[3] for row in kept]
        self._cache: dict[int, Symbol] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Symbol:
        """The symbol of a row number as `rows` gives it; -1 is the unknown symbol."""
        if index < 0:
            return UNKNOWN
        symbol = self._cache.get(index)
        if symbol is None:
            symbol = self._cache[index] = self._symbol(self._names[index], self._modules[index])
        return symbol

    def _symbol(self, name: str, module: str) -> Symbol:
        if module == "bpf" or module.startswith("__builtin__"):
            own = name in self._own or bool(_OWN_PROGRAM.match(name))
            return Symbol(name, module, FrameKind.PROFILER if own else FrameKind.BPF)
        return Symbol(name, module, FrameKind.KERNEL)

    def rows(self, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Row number of the symbol that holds each address, -1 where none does. Vectorised."""
        addresses = np.asarray(addresses, "u8")
        row = np.searchsorted(self._starts, addresses, "right").astype("i8") - 1
        inside = (row >= 0) & (addresses < self._ends[np.maximum(row, 0)])
        return np.where(inside, row, -1)

    def resolve(self, address: int) -> Symbol:
        """The symbol of one address."""
        return self[int(self.rows(np.array([address], "u8"))[0])]

    def bounds(self, row: int) -> tuple[int, int]:
        """Where a symbol's code begins and ends (the first address behind it)."""
        return int(self._starts[row]), int(self._ends[row])

    def address(self, name: str) -> int:
        """Start of the function of that name, 0 when there is none."""
        try:
            return int(self._starts[self._names.index(name)])
        except ValueError:
            return 0


def user_half(addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which addresses are user space's (the lower half, on every 64-bit architecture nsprof knows)."""
    lower: NDArray[np.bool_] = np.less(addresses, np.uint64(1 << 63))
    return lower


def _preference(kind: str, name: str) -> int:
    """Of several names of one address the lowest wins: global before local, plain before decorated or aliased."""
    local = kind not in "TW"
    return (4 if name.startswith("__") else 0) + (2 if local else 0) + ("." in name)


def _hidden(some: bool) -> PreflightError:
    reason = "the kernel hides the addresses" if some else "the table is empty"
    hint = "sysctl -w kernel.kptr_restrict=0  (and run as root)"
    with contextlib.suppress(OSError):
        value = Path("/proc/sys/kernel/kptr_restrict").read_text().strip()
        reason += f" (kernel.kptr_restrict={value})"
        if value in ("0", "1") and os.geteuid() == 0:
            hint = "root sees them with CAP_SYSLOG, which this process has not"
    return PreflightError(f"kernel functions cannot be named: {KALLSYMS}: {reason}", hint)


def _module_ends(modules: Path) -> dict[str, int]:
    """Module name to the end of its memory, from /proc/modules (base address and total size)."""
    try:
        lines = modules.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return {}
    ends: dict[str, int] = {}
    for line in lines:
        parts = line.split()
        if len(parts) >= 6 and parts[5].startswith("0x"):
            base = int(parts[5], 16)
            if base:
                ends[parts[0]] = base + int(parts[1])
    return ends

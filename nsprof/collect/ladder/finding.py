"""Which rung a probe on a kernel function stands on: found by trying, named with what is lost.

    found = find("veth_xmit")                       # where the function is, or why it cannot be probed
    with attach(found, {"fentry": code, "kprobe": code}) as probe:
        probe.rung, probe.reasons, probe.info()

Rungs, best first: `tp_btf` and `raw_tp` where the place has a tracepoint (typed arguments, or words to be read by a
helper); `fentry` (or `fexit` on return) jumps straight from the function to the program; `kprobe` (or `kretprobe`)
traps, costs more, and reaches functions in modules and compiler-made clones too. Each is a bpf(2) or
perf_event_open(2) of its own, held by file descriptors only: whatever kills nsprof, nothing stays attached. Names are
always whole names, never patterns.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

from nsprof.collect.bpf import btf
from nsprof.collect.ladder.attach import attach_kprobe, attach_tracepoint, attach_trampoline
from nsprof.errors import ProbeError
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import ProbeInfo

__all__ = ["RUNGS", "Attached", "Found", "SymbolTable", "attach", "find", "kernel_symbols", "refusal"]

LOCKDOWN = Path("/sys/kernel/security/lockdown")
#: What a function compiled into parts or clones says of itself in its suffix.
_PART = (".part.", ".cold")


@dataclass(frozen=True, slots=True)
class Found:
    """A function that can be probed: the symbols to attach to, each (name, module or "", address).

    `btf_id` is its type's id where the kernel's BTF has it (0: no trampoline); `notes` say what a count over these
    symbols does not see. `tracepoint` is one that stands for the place, `tracepoint_id` its type's id; with one there
    may be no symbols at all.
    """

    function: str
    symbols: tuple[tuple[str, str, int], ...]
    btf_id: int = 0
    notes: tuple[str, ...] = ()
    tracepoint: str = ""
    tracepoint_id: int = 0

    @property
    def module(self) -> str:
        """The module it lies in, "" for the kernel image."""
        return self.symbols[0][1] if self.symbols else ""


class SymbolTable:
    """The text symbols of a kernel by the function's own name (compiler suffixes folded)."""

    def __init__(self, lines: Iterable[str]) -> None:
        """From lines of /proc/kallsyms."""
        self.by_function: dict[str, list[tuple[str, str, int]]] = {}
        self.hidden = True
        for line in lines:
            address, kind, name, *module = line.split()
            if kind not in "tTwW" or name.startswith(("__pfx_", "__cfi_")):
                continue  # the padding before a function has a symbol of its own
            owner = module[0].strip("[]") if module else ""
            if owner in ("bpf", "__builtin__kprobes", "__builtin__ftrace"):
                continue
            number = int(address, 16)
            self.hidden = self.hidden and number == 0
            self.by_function.setdefault(fold_suffixes(name), []).append((name, owner, number))

    def aliases(self, address: int) -> list[str]:
        """All names of the function at an address (system calls have several, and BTF knows one of them)."""
        return [name for rows in self.by_function.values() for name, _, at in rows if at == address]

    def near(self, name: str, count: int = 3) -> list[str]:
        """Names that the user may have meant."""
        head = name.strip("_")[:3]
        pool = [each for each in self.by_function if each.strip("_").startswith(head)]
        return difflib.get_close_matches(name, pool, n=count, cutoff=0.7)


@lru_cache(maxsize=1)
def kernel_symbols() -> SymbolTable:
    """This kernel's functions, read once (modules loaded later are not seen: `kernel_symbols.cache_clear()`)."""
    with Path("/proc/kallsyms").open() as lines:
        return SymbolTable(lines)


def find(
    function: str, table: SymbolTable | None = None, types: btf.TypeTable | None = None, *, tracepoint: str = ""
) -> Found:
    """Where a function, or the tracepoint that stands for it, can be probed.

    Raises ProbeError saying why it cannot, with near misses as the hint; a missing function is no more than a note
    where there is a tracepoint (whether that one is there shows when it is tried).
    """
    table = table or kernel_symbols()
    if tracepoint:
        known = (types or btf.kernel_types()).tracepoint(tracepoint)
        try:
            found = find(function, table, types)
        except ProbeError as error:
            found = Found(function, (), 0, (error.message,))
        return replace(found, tracepoint=tracepoint, tracepoint_id=known)
    every = table.by_function.get(function, [])
    whole = [each for each in every if each[0] == function]
    clones = [each for each in every if each[0] != function and not any(part in each[0] for part in _PART)]
    parts = [each for each in every if ".part." in each[0]]
    if not whole and not clones:
        if parts:
            raise ProbeError(
                f"function {function} is inlined into its callers but for {parts[0][0]}: its calls cannot be counted",
                f"probe its callers, or {parts[0][0]} for the part that was not",
            )
        raise _unknown(function, table)
    notes = []
    if not whole:
        names = ", ".join(each[0] for each in clones)
        notes.append(f"only the compiler's variant {names} exists: its arguments may be moved or missing")
    elif clones:
        names = ", ".join(each[0] for each in clones)
        notes.append(f"the compiler's variant {names} is probed too")
    if len(whole) > 1:
        notes.append(f"{len(whole)} functions have this name: all are probed")
    symbols = (*whole, *clones)
    single = len(symbols) == 1 and whole and not whole[0][1]
    btf_id = _type_id(symbols[0], table, types or btf.kernel_types()) if single else 0
    return Found(function, symbols, btf_id, tuple(notes))


def _type_id(symbol: tuple[str, str, int], table: SymbolTable, types: btf.TypeTable) -> int:
    name, _, address = symbol
    return types.function(name) or next(filter(None, map(types.function, table.aliases(address))), 0)


def _unknown(function: str, table: SymbolTable) -> ProbeError:
    near = table.near(function)
    if not table.by_function or table.hidden:
        return ProbeError(
            f"function {function}: the kernel hides its symbols", "sysctl kernel.kptr_restrict=0, as root"
        )
    hint = f"did you mean {', '.join(near)}?" if near else "modprobe its module first, if it lies in one"
    return ProbeError(
        f"function {function} is not in this kernel: inlined everywhere, renamed, in a module that is not loaded, "
        "or never there",
        hint,
    )


@dataclass(slots=True)
class Attached:
    """A probe that stands on `rung`; close it (or leave its `with` block) to detach."""

    found: Found
    rung: str
    reasons: tuple[str, ...] = ()
    attach_ms: float = 0.0
    fds: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach. Calling it twice is harmless."""
        while self.fds:
            os.close(self.fds.pop())

    def info(self, name: str = "", hits: int = 0, cost_ns_per_hit: float = 0.0) -> ProbeInfo:
        """The row for the profile: the rung, and why it is not a better one."""
        reason = "; ".join((*self.reasons, *self.found.notes))
        return ProbeInfo(
            name or self.found.function,
            self.found.function,
            self.rung,
            "attached",
            reason,
            hits,
            cost_ns_per_hit,
            self.attach_ms,
        )


#: rung -> whether it is taken on return; in the order in which they are tried, the cheapest first.
RUNGS = {"tp_btf": False, "raw_tp": False, "fentry": False, "fexit": True, "kprobe": False, "kretprobe": True}


def attach(found: Found, codes: Mapping[str, bytes], *, name: str = "nsprof") -> Attached:
    """Attach on the best rung that the kernel grants; `codes` holds a program's instructions for each rung meant.

    Rungs are tried in the order of RUNGS. Raises ProbeError with each rung's refusal when none holds; then nothing is
    attached.
    """
    unknown = set(codes) - set(RUNGS)
    if unknown or not codes:
        raise ValueError(f"no such rungs: {sorted(unknown)}")
    reasons: list[str] = []
    for rung in (each for each in RUNGS if each in codes):
        begun = time.perf_counter()
        fds: list[int] = []
        try:
            _climb(found, rung, codes[rung], name, fds)
        except BaseException as error:  # a Ctrl-C too must not leave it attached
            for fd in fds:
                os.close(fd)
            if not isinstance(error, ProbeError | OSError):
                raise
            reasons.append(f"{rung}: {refusal(error)}")
            continue
        return Attached(found, rung, tuple(reasons), (time.perf_counter() - begun) * 1e3, fds)
    raise ProbeError(
        f"function {found.function} cannot be probed: {'; '.join(reasons)}",
        "nsprof doctor tells what this kernel allows",
        details="\n".join(reasons),
    )


def _climb(found: Found, rung: str, code: bytes, name: str, fds: list[int]) -> None:
    """Attach on one rung; the descriptors are added to `fds` as they are made. Raises ProbeError or OSError."""
    if rung in ("tp_btf", "raw_tp"):
        if not found.tracepoint:
            raise ProbeError(f"{found.function} has no tracepoint")
        if rung == "tp_btf" and not found.tracepoint_id:
            raise ProbeError(f"the kernel's type information has no tracepoint {found.tracepoint}")
        type_id = found.tracepoint_id if rung == "tp_btf" else 0
        fds.extend(attach_tracepoint(code, found.tracepoint, type_id, name=name))
    elif not found.symbols:
        raise ProbeError(f"function {found.function} is not in this kernel")
    elif rung in ("kprobe", "kretprobe"):
        for symbol, _, address in found.symbols:
            fds.extend(attach_kprobe(code, symbol, address, on_return=RUNGS[rung], name=name))
    elif found.btf_id:
        fds.extend(attach_trampoline(code, found.btf_id, on_return=RUNGS[rung], name=name))
    elif found.module:
        raise ProbeError(f"{found.function} lies in module {found.module}, whose types are apart from the kernel's")
    elif len(found.symbols) > 1 or found.symbols[0][0] != found.function:
        raise ProbeError(f"{found.function} is not one plain function here")
    else:
        raise ProbeError(f"the kernel's type information does not have {found.function}")


def refusal(error: ProbeError | OSError) -> str:
    """One clause on why a rung was refused; a lockdown is named where the refusal can be its work."""
    words = error.message if isinstance(error, ProbeError) else (error.strerror or str(error))
    number = error.errno if isinstance(error, OSError) else None
    denied = number in (1, 13) or "not permitted" in words.lower() or "permission" in words.lower()
    if denied:
        level = _lockdown()
        if level:
            return f"{words} (the kernel is locked down: {level})"
    if number == 2:  # ENOENT from perf_event_open with a kprobe
        return "the kernel has no kprobes (CONFIG_KPROBES), or not this function"
    if number == 22:
        return f"{words}: the function is closed to probes (notrace, nokprobe), or this kernel lacks the rung"
    return words


def _lockdown() -> str:
    """The level in force ("integrity", "confidentiality"), "" when there is none. For words only, never to decide."""
    try:
        text = LOCKDOWN.read_text()
    except OSError:
        return ""
    level = text.partition("[")[2].partition("]")[0]
    return "" if level == "none" else level

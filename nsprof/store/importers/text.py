"""What the importers of text share: windows over the bytes, and which names are kernel code."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from nsprof.kernelnames import HARDIRQ_ENTRY, SOFTIRQ_ENTRY
from nsprof.model.profile import FrameKind

__all__ = ["KERNEL_ENTRY", "cuts", "event_unit", "forget", "kernel_dso", "stretches", "to_utf8", "windows"]

_WINDOW = 1 << 20
_STRETCH = 8 << 20
_MAX_PIECE = 64 << 20
_BEHIND = 3  # so many pieces may still be worked on when the next one is taken (see `ahead`)

# fmt: off
#: Outermost kernel functions: what is leafward of one of them is kernel code, whatever lacks a mark.
KERNEL_ENTRY = (
    SOFTIRQ_ENTRY
    | HARDIRQ_ENTRY
    | frozenset((
        "sysenter_dispatch", "entry_SYSCALL_64_after_hwframe", "entry_SYSCALL_64_fastpath", "entry_SYSCALL_64",
        "system_call_fastpath", "system_call", "do_syscall_64", "do_syscall_x64", "entry_SYSCALL_compat",
        "entry_INT80_compat", "system_call_after_swapgs", "ret_from_fork", "ret_from_fork_asm", "kthread",
        "secondary_startup_64", "secondary_startup_64_no_verify", "start_secondary", "x86_64_start_kernel",
        "x86_64_start_reservations", "start_kernel", "rest_init", "cpu_startup_entry", "xen_start_kernel",
        "asm_exc_page_fault", "page_fault", "async_page_fault", "asm_common_interrupt", "common_interrupt",
        "ret_from_intr", "asm_sysvec_apic_timer_interrupt", "apic_timer_interrupt", "xen_hvm_callback_vector",
        "xen_do_hypervisor_callback", "asm_sysvec_xen_hvm_callback", "__softirqentry_text_start", "call_softirq",
        "el0_sync", "el0_svc", "el0t_64_sync", "el0t_64_sync_handler", "el1_irq", "el1h_64_irq", "el0_irq",
        "el0t_64_irq", "ret_fast_syscall", "cpu_bringup_and_idle", "retint_user", "retint_careful",
        "int_ret_from_sys_call", "nmi", "end_repeat_nmi", "asm_exc_nmi",
    ))
)
# fmt: on

_USER_BRACKETS = ("[vdso", "[vsyscall", "[heap", "[stack", "[unknown", "[JIT", "[anon", "[uprobes", "[tid", "[vvar")


def kernel_dso(dso: str) -> tuple[FrameKind, str]:
    """(kind, module as a profile writes it) of a DSO as perf prints it; UNKNOWN for `[unknown]`, `inlined`, ``."""
    if dso.startswith("[kernel") or dso in ("[k]", "[guest.kernel.kallsyms]"):
        return FrameKind.KERNEL, ""
    if dso.startswith("bpf_prog_") or dso in ("[bpf]", "bpf", "[bpf_trampoline]"):
        return FrameKind.BPF, "bpf"
    if dso.startswith("[unknown") or dso in ("", "inlined"):
        return FrameKind.UNKNOWN, ""
    base = dso.rsplit("/", 1)[-1]
    if dso.startswith("[") and not dso.startswith(_USER_BRACKETS):
        return FrameKind.KERNEL, dso.strip("[]")
    if base.startswith("vmlinu"):
        return FrameKind.KERNEL, ""
    stem, dot, _ = base.partition(".ko")
    if dot and base[len(stem) :] in (".ko", ".ko.xz", ".ko.gz", ".ko.zst", ".ko.debug"):
        return FrameKind.KERNEL, stem
    return FrameKind.USER, dso if dso.startswith(("[", "//")) else base


def event_unit(name: str) -> str:
    """Unit of the weights of an event called `name` (perf's modifiers and PMU prefix do not matter)."""
    bare = name.lower()
    bare = bare.split("/")[1].split(",")[0] if "/" in bare else bare.split(":")[0]
    if bare in ("cpu-clock", "task-clock"):
        return "ns"
    if bare in ("cycles", "cpu-cycles", "ref-cycles", "bus-cycles"):
        return "cycles"
    if bare == "instructions":
        return "instructions"
    return "misses" if "miss" in bare else "count"


def to_utf8(raw: bytes) -> bytes:
    """Text with a byte order mark (UTF-16 or UTF-8) as UTF-8 without one; anything else unchanged."""
    for mark, codec in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if raw.startswith(mark):
            return raw[len(mark) :].decode(codec, "replace").encode()
    return raw


def windows(buf: memoryview, separator: bytes) -> Iterator[bytes]:
    """The text in pieces of some MiB that end at `separator` (left out), line ends made "\\n", marks decoded.

    A stretch of 64 MiB without a separator is cut at the next line end: no input makes this hold more.
    """
    for piece in _pieces(buf, separator, _WINDOW):
        yield bytes(piece)


def stretches(buf: memoryview, separator: bytes, times: float = 1) -> Iterator[memoryview]:
    """The same in larger pieces (`times` as large), which are not copied unless their line ends must be changed."""
    return _pieces(buf, separator, int(_STRETCH * times))


def _pieces(buf: memoryview, separator: bytes, window: int) -> Iterator[memoryview]:
    head = bytes(buf[:4])
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.startswith(b"\xef\xbb\xbf"):
        buf = memoryview(to_utf8(bytes(buf)))
    if b"\r\n" in bytes(buf[: 1 << 16]):
        for piece in cuts(buf, b"\r\n" * len(separator), window):
            yield memoryview(bytes(piece).replace(b"\r\n", b"\n"))
    else:
        yield from cuts(buf, separator, window)


def forget(buf: memoryview, start: int, end: int) -> None:
    """Let go of the memory that a part of a mapped file takes; reading it once more would bring it back."""
    mapped = buf.obj
    if isinstance(mapped, mmap.mmap) and len(mapped) == len(buf):
        start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            mapped.madvise(mmap.MADV_DONTNEED, start, end - start)


def cuts(buf: memoryview, separator: bytes, window: int) -> Iterator[memoryview]:
    """Pieces between separators; the place to cut is looked for from the end of a window."""
    at = 0
    size = window
    while at < len(buf):
        end = min(at + size, len(buf))
        if end == len(buf) and size <= window:
            whole = buf[at:end]
            yield whole[: -len(separator)] if bytes(whole[-len(separator) :]) == separator else whole
            forget(buf, 0, len(buf))
            return
        cut = _last(buf, separator, at, end)
        if cut < 0 and end < len(buf) and size < _MAX_PIECE:
            size *= 2
            continue
        if cut < 0:
            cut = _last(buf, b"\n", at, end)
            cut, skip = (end, 0) if cut < 0 else (cut, 1)
        else:
            skip = len(separator)
        yield buf[at:cut]
        if at >= _BEHIND * window:
            forget(buf, at - _BEHIND * window, cut - _BEHIND * window)
        at = cut + skip
        size = window


def _last(buf: memoryview, separator: bytes, start: int, end: int) -> int:
    """Position of the last separator in buf[start:end], -1 if there is none."""
    step = 1 << 14
    high = end
    while high > start:
        low = max(start, high - step)
        found = bytes(buf[low : min(high + len(separator) - 1, end)]).rfind(separator)
        if found >= 0:
            return low + found
        high = low
        step *= 2
    return -1

"""The system calls below the ladder: tracepoints, trampolines and kprobes, each held by file descriptors alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from nsprof.collect.bpf.syscalls import _libc, _number, attach_raw_tracepoint, load_program, perf_ioctl
from nsprof.errors import ProbeError

__all__ = ["attach_kprobe", "attach_tracepoint", "attach_trampoline", "open_kprobe", "undisturbed"]

# include/uapi/linux/bpf.h: enum bpf_prog_type, enum bpf_attach_type
_KPROBE, _RAW_TRACEPOINT, _TRACING = 2, 17, 26
_TRACE_RAW_TP, _FENTRY, _FEXIT = 23, 24, 25
_PMU = Path("/sys/bus/event_source/devices/kprobe")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and kin wait until the block is done: one between a system call and keeping its descriptor loses it.

    In threads other than the main one there is nothing to wait for: Python raises in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    with contextlib.ExitStack() as stack:
        # Called last, when all handlers are back: each that came is handled by the handler that it was for.
        stack.callback(_raise_again, came)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if callable(handler):
                stack.callback(signal.signal, number, handler)
                signal.signal(number, lambda number, _: came.append(number))
        yield


def _raise_again(numbers: list[int]) -> None:
    for number in numbers:
        signal.raise_signal(number)


def attach_trampoline(code: bytes, btf_id: int, *, on_return: bool, name: str) -> list[int]:
    """fentry or fexit on a function of the kernel image: descriptors (link, program); close both to detach.

    Raises ProbeError when the verifier, OSError when the kernel refuses.
    """
    program = load_program(code, _TRACING, name=name, attach_type=_FEXIT if on_return else _FENTRY, btf_id=btf_id)
    try:
        return [attach_raw_tracepoint(program), program]
    except BaseException:
        os.close(program)
        raise


def attach_tracepoint(code: bytes, tracepoint: str, btf_id: int, *, name: str) -> list[int]:
    """tp_btf where its type's id is given, else a raw tracepoint: descriptors (link, program).

    Raises ProbeError when the verifier, OSError when the kernel refuses.
    """
    if btf_id:
        program = load_program(code, _TRACING, name=name, attach_type=_TRACE_RAW_TP, btf_id=btf_id)
    else:
        program = load_program(code, _RAW_TRACEPOINT, name=name)
    try:
        return [attach_raw_tracepoint(program, "" if btf_id else tracepoint), program]
    except BaseException:
        os.close(program)
        raise


def attach_kprobe(code: bytes, symbol: str, address: int, *, on_return: bool, name: str) -> list[int]:
    """A kprobe or kretprobe: descriptors (event, program); close both to detach.

    By address where it is known, since several functions may have one name, else by name. A local event of
    perf_event_open(2): unlike tracefs's kprobe_events nothing remains of it when the process dies.
    Raises ProbeError when the kernel has no such events or the verifier refuses, OSError otherwise.
    """
    _kprobes()  # says that the kernel has none before the verifier speaks of other things
    program = load_program(code, _KPROBE, name=name)
    try:
        return [open_kprobe(program, symbol, address, on_return=on_return), program]
    except BaseException:
        os.close(program)
        raise


def open_kprobe(program: int, symbol: str, address: int, *, on_return: bool = False) -> int:
    """Attach a loaded kprobe program; returns the event's descriptor. Raises as attach_kprobe()."""
    kind, bit = _kprobes()
    event = _open(kind, 1 << bit if on_return else 0, symbol, address)
    try:
        perf_ioctl(event, "set_bpf", program)
        perf_ioctl(event, "enable")
    except BaseException:
        os.close(event)
        raise
    return event


def _kprobes() -> tuple[int, int]:
    """The PMU's type, and the bit of its config that makes a kretprobe. Raises ProbeError."""
    try:
        kind = int((_PMU / "type").read_text())
        return kind, int((_PMU / "format" / "retprobe").read_text().strip().removeprefix("config:"))
    except (OSError, ValueError) as error:
        raise ProbeError("the kernel has no kprobes (CONFIG_KPROBE_EVENTS)") from error


def _open(kind: int, config: int, symbol: str, address: int) -> int:
    """perf_event_open(2) of the kprobe PMU: one event on CPU 0 stands for all of them (as libbpf does)."""
    text = ctypes.create_string_buffer(symbol.encode())
    function, where = (0, address) if address else (ctypes.addressof(text), 0)
    attributes = bytearray(128)
    # type, size, config, sample_period, sample_type, read_format; then config1 (bytes 56..) and config2
    struct.pack_into("<IIQQQQ", attributes, 0, kind, len(attributes), config, 0, 0, 0)
    struct.pack_into("<QQ", attributes, 56, function, where)
    buffer = ctypes.create_string_buffer(bytes(attributes), len(attributes))
    fd = _libc.syscall(_number(1), buffer, -1, 0, -1, 8)  # PERF_FLAG_FD_CLOEXEC
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)

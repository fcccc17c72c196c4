"""Small BPF programs and perf events that are loaded, run and removed to see whether the kernel lets us.

They are a dozen instructions written out here, so that the answer needs neither BCC nor a compiler. Each trial
returns "" when it worked, else the reason; nothing stays loaded: every descriptor is closed before it returns.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from nsprof.collect.bpf import btf
from nsprof.collect.bpf.syscalls import attach_raw_tracepoint, bpf, load_program, perf_event_open, perf_ioctl
from nsprof.errors import NsprofError, ProbeError

__all__ = [
    "classic_tracepoint",
    "fentry",
    "hardware_event",
    "kprobe",
    "perf_event_program",
    "raw_tracepoint",
    "reason_of",
    "system_wide_clock",
    "tp_btf",
    "tracefs",
]

# enum bpf_prog_type and bpf_attach_type, include/uapi/linux/bpf.h
_KPROBE, _TRACEPOINT, _PERF_EVENT, _RAW_TRACEPOINT, _TRACING = 2, 5, 7, 17, 26
_TRACE_RAW_TP, _TRACE_FENTRY = 23, 24
# enum perf_type_id and configs, include/uapi/linux/perf_event.h
_HARDWARE, _SOFTWARE, _TRACEPOINT_EVENT = 0, 1, 2
_CPU_CLOCK = 0
_MAP_CREATE, _MAP_LOOKUP, _MAP_ARRAY = 0, 1, 2
_SPIN_S = 0.05


def reason_of(trial: Callable[[], None]) -> str:
    """Run a trial: "" when it works, else why not, in words."""
    try:
        trial()
    except OSError as error:
        known = {errno.EPERM: "not permitted", errno.EACCES: "not permitted", errno.ENOENT: "the kernel has none"}
        return known.get(error.errno or 0, error.strerror or str(error))
    except NsprofError as error:
        return re.sub(r"^BPF program nsprof_trial was refused: ", "refused: ", error.message)
    return ""


def _instruction(opcode: int, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", opcode, src << 4 | dst, offset, value)


def _program(counter_map: int, *, read_kernel: bool = False) -> bytes:
    """Adds one to element 0 of the map; with `read_kernel` it also reads kernel memory through the helper."""
    i = _instruction
    head = b""
    if read_kernel:  # bpf_probe_read_kernel(fp - 16, 8, fp)
        head = i(0xBF, 1, 10) + i(0x07, 1, 0, 0, -16) + i(0xB7, 2, 0, 0, 8) + i(0xBF, 3, 10) + i(0x85, value=113)
    return (
        head
        + i(0x62, 10, 0, -4, 0)  # *(u32 *)(fp - 4) = 0
        + i(0xBF, 2, 10)
        + i(0x07, 2, 0, 0, -4)  # r2 = fp - 4
        + i(0x18, 1, 1, 0, counter_map)
        + i(0)  # r1 = map (two slots)
        + i(0x85, value=1)  # bpf_map_lookup_elem
        + i(0x15, 0, 0, 2, 0)  # none: skip two
        + i(0xB7, 1, 0, 0, 1)
        + i(0xDB, 0, 1, 0, 0)  # lock *(u64 *)r0 += 1
        + i(0xB7, 0)
        + i(0x95)  # return 0
    )


class _Counter:
    """A one-element map that trial programs count in."""

    def __init__(self, stack: ExitStack) -> None:
        self.fd, _ = bpf(_MAP_CREATE, struct.pack("<IIIII", _MAP_ARRAY, 4, 8, 1, 0).ljust(64, b"\0"))
        stack.callback(os.close, self.fd)

    def value(self) -> int:
        key, value = ctypes.create_string_buffer(4), ctypes.create_string_buffer(8)
        bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", self.fd, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
        return int.from_bytes(value.raw, "little")

    def must_count(self, what: str, provoke: Callable[[], object]) -> None:
        """Raises when provoking the event does not run the program."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            provoke()
            if self.value():
                return
        raise ProbeError(f"{what} was attached but never ran")


def _load(stack: ExitStack, code: bytes, kind: int, *, attach_type: int = 0, btf_id: int = 0) -> int:
    fd = load_program(code, kind, name="nsprof_trial", attach_type=attach_type, btf_id=btf_id)
    stack.callback(os.close, fd)
    return fd


def _spin() -> None:
    """Keep a CPU busy for a while, so that its clock ticks."""
    end = time.monotonic() + _SPIN_S
    while time.monotonic() < end:
        pass


def _nap() -> None:
    time.sleep(0.001)


def system_wide_clock() -> None:
    """A cpu-clock event over all tasks of a CPU, without BPF: what perf record -a needs."""
    os.close(perf_event_open(_SOFTWARE, _CPU_CLOCK, min(os.sched_getaffinity(0)), frequency_hz=99))


def hardware_event(config: int) -> None:
    """A hardware event (0 cycles, 1 instructions, 3 cache-misses) counts something while we spin."""
    fd = perf_event_open(_HARDWARE, config, min(os.sched_getaffinity(0)), period=1 << 30)
    try:
        perf_ioctl(fd, "enable")
        _spin()
        if not int.from_bytes(os.read(fd, 24)[:8], "little"):
            raise ProbeError("the event can be opened but does not count")
    finally:
        os.close(fd)


def perf_event_program() -> None:
    """A BPF program on a clock event of our CPU runs when the clock ticks."""
    with ExitStack() as stack:
        counter = _Counter(stack)
        program = _load(stack, _program(counter.fd), _PERF_EVENT)
        for cpu in os.sched_getaffinity(0):
            event = perf_event_open(_SOFTWARE, _CPU_CLOCK, cpu, frequency_hz=499)
            stack.callback(os.close, event)
            perf_ioctl(event, "set_bpf", program)
            perf_ioctl(event, "enable")
        counter.must_count("the clock event's program", _spin)


def raw_tracepoint(*, read_kernel: bool) -> None:
    """A raw tracepoint program runs; with `read_kernel`, one that reads kernel memory through a helper."""
    with ExitStack() as stack:
        counter = _Counter(stack)
        program = _load(stack, _program(counter.fd, read_kernel=read_kernel), _RAW_TRACEPOINT)
        stack.callback(os.close, attach_raw_tracepoint(program, "sched_switch"))
        counter.must_count("the raw tracepoint's program", _nap)


def tp_btf() -> None:
    """A BTF-typed raw tracepoint program (direct loads from kernel structures) runs."""
    with ExitStack() as stack:
        counter = _Counter(stack)
        number = btf.kernel_types().tracepoint("sched_switch")
        if not number:
            raise ProbeError("the kernel has no BTF of the tracepoint")
        program = _load(stack, _program(counter.fd), _TRACING, attach_type=_TRACE_RAW_TP, btf_id=number)
        stack.callback(os.close, attach_raw_tracepoint(program))
        counter.must_count("the BTF tracepoint's program", _nap)


def fentry() -> None:
    """A program at the entry of a kernel function runs through a trampoline."""
    with ExitStack() as stack:
        counter = _Counter(stack)
        number = btf.kernel_types().function("do_nanosleep") or btf.kernel_types().function("hrtimer_nanosleep")
        if not number:
            raise ProbeError("the kernel has no BTF of the function")
        program = _load(stack, _program(counter.fd), _TRACING, attach_type=_TRACE_FENTRY, btf_id=number)
        stack.callback(os.close, attach_raw_tracepoint(program))
        counter.must_count("the fentry program", _nap)


def kprobe() -> None:
    """A program on a kernel probe of a function runs."""
    with ExitStack() as stack:
        source = Path("/sys/bus/event_source/devices/kprobe/type")
        if not source.exists():
            raise ProbeError("the kernel is built without kprobes (CONFIG_KPROBE_EVENTS)")
        kind = int(source.read_text())
        counter = _Counter(stack)
        program = _load(stack, _program(counter.fd), _KPROBE)
        function = ctypes.create_string_buffer(b"hrtimer_nanosleep")
        event = _probe_event(kind, ctypes.addressof(function))
        stack.callback(os.close, event)
        perf_ioctl(event, "set_bpf", program)
        perf_ioctl(event, "enable")
        counter.must_count("the kprobe's program", _nap)


def _probe_event(kind: int, function_address: int) -> int:
    """perf_event_open of the kprobe PMU; `config1` of the attributes points to the function's name."""
    attributes = bytearray(128)
    struct.pack_into("<II", attributes, 0, kind, len(attributes))
    struct.pack_into("<Q", attributes, 40, 1)  # disabled
    struct.pack_into("<Q", attributes, 56, function_address)
    buffer = ctypes.create_string_buffer(bytes(attributes), len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 298, "s390x": 331}.get(os.uname().machine, 241)
    fd = libc.syscall(number, buffer, -1, 0, -1, 8)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(fd)


def tracefs() -> Path:
    """Where the tracepoints' descriptions are. Raises ProbeError where they cannot be read."""
    refused = ""
    for place in (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing")):
        try:
            (place / "events/net/netif_receive_skb/format").read_text()
        except OSError as error:
            if error.errno != errno.ENOENT:
                refused = f"{place}: {error.strerror}"
            continue
        return place
    raise ProbeError(refused or "tracefs is not mounted")


def classic_tracepoint() -> None:
    """A program on a classic tracepoint runs (its fields come from tracefs)."""
    with ExitStack() as stack:
        number = int((tracefs() / "events/sched/sched_switch/id").read_text())
        counter = _Counter(stack)
        program = _load(stack, _program(counter.fd), _TRACEPOINT)
        # One event is enough: a program on a tracepoint runs on every CPU.
        event = perf_event_open(_TRACEPOINT_EVENT, number, min(os.sched_getaffinity(0)), period=1)
        stack.callback(os.close, event)
        perf_ioctl(event, "set_bpf", program)
        perf_ioctl(event, "enable")
        counter.must_count("the tracepoint's program", _nap)

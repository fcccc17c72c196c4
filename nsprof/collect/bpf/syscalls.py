"""The few system calls that BCC does not wrap, or wraps too slowly: bpf(2) on maps and programs, perf_event_open(2).

Numbers and layouts are those of include/uapi/linux/{bpf,perf_event}.h, stable ABI on every architecture; only the
system call numbers differ.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import resource
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProbeError

__all__ = [
    "MapReader",
    "attach_raw_tracepoint",
    "bpf",
    "create_map",
    "load_program",
    "map_info",
    "perf_event_open",
    "perf_ioctl",
    "program_id",
    "program_info",
    "program_infos",
]

_NUMBERS = {"x86_64": (321, 298), "aarch64": (280, 241), "riscv64": (280, 241), "s390x": (351, 331)}
_libc = ctypes.CDLL(None, use_errno=True)

# enum bpf_cmd
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT = 0, 1, 2, 3, 4
_PROG_LOAD, _PROG_NEXT_ID, _PROG_FD_BY_ID, _INFO_BY_FD = 5, 11, 13, 15
_RAW_TRACEPOINT_OPEN, _MAP_TAKE_BATCH = 17, 25
_PER_CPU = (5, 6, 10)  # enum bpf_map_type: PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH


def _number(index: int) -> int:
    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise ProbeError(f"nsprof does not know the system call numbers of {machine}")
    return _NUMBERS[machine][index]


def bpf(command: int, attributes: bytes | bytearray) -> tuple[int, bytes]:
    """bpf(2): the result and the attributes as the kernel left them. Raises OSError."""
    buffer = ctypes.create_string_buffer(bytes(attributes), len(attributes))
    result = _libc.syscall(_number(0), command, buffer, len(attributes))
    if result < 0:
        code = ctypes.get_errno()
        error = OSError(code, os.strerror(code))
        error.attributes = buffer.raw  # type: ignore[attr-defined]
        raise error
    return int(result), buffer.raw


def create_map(kind: int, key_size: int, value_size: int, entries: int, *, flags: int = 0, name: str = "") -> int:
    """BPF_MAP_CREATE; returns the file descriptor. Raises OSError.

    Before Linux 5.11 maps count against RLIMIT_MEMLOCK: it is raised when it stands in the way.
    """
    attributes = bytearray(72)
    struct.pack_into("<IIIII", attributes, 0, kind, key_size, value_size, entries, flags)
    attributes[28:43] = re.sub(r"[^A-Za-z0-9_.]", "_", name).encode()[:15].ljust(15, b"\0")
    try:
        return bpf(_MAP_CREATE, attributes)[0]
    except PermissionError:
        limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if limits == (resource.RLIM_INFINITY, resource.RLIM_INFINITY) or os.geteuid() != 0:
            raise
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return bpf(_MAP_CREATE, attributes)[0]


def map_info(fd: int) -> tuple[int, int, int, int, int]:
    """(kind, key size, value size, entries, flags) of a map as the kernel has it (struct bpf_map_info)."""
    info = ctypes.create_string_buffer(88)
    bpf(_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    kind, _, key_size, value_size, entries, flags = struct.unpack_from("<IIIIII", info)
    return kind, key_size, value_size, entries, flags


class MapReader:
    """A hash or array map read into numpy: `key` and `value` are dtypes of the C structs' exact sizes.

    Raises ProbeError when they are not: the kernel copies as many bytes as its own sizes say, so a struct that has
    changed on one side only would be read shifted, and beyond the end of what was made room for.
    """

    def __init__(self, fd: int, key: Any, value: Any, entries: int, name: str = "") -> None:
        self.fd = fd
        self.key = np.dtype(key)
        self.value = np.dtype(value)
        self.entries = entries
        kind, key_size, value_size, *_ = map_info(fd)
        if (key_size, value_size) != (self.key.itemsize, self.value.itemsize):
            raise ProbeError(
                f"BPF map {name or fd}: the program has keys of {key_size} and values of {value_size} bytes, nsprof "
                f"reads {self.key.itemsize} and {self.value.itemsize}: probes/ and nsprof/ are of different versions",
                "reinstall nsprof",
            )
        if kind in _PER_CPU and value_size % 8:
            raise ProbeError(f"BPF map {name or fd}: per-CPU values of {value_size} bytes are not multiples of 8")

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All entries of a hash map, removed from it: keys and values in parallel arrays.

        Each bucket is read and emptied in one go by the kernel (BPF_MAP_LOOKUP_AND_DELETE_BATCH, Linux 5.6),
        so programs may go on adding meanwhile; older kernels are read key by key.
        """
        keys: list[NDArray[Any]] = []
        values: list[NDArray[Any]] = []
        position = ctypes.create_string_buffer(8)
        first = True
        room = min(self.entries, 8192)
        while True:
            key = np.zeros(room, self.key)
            value = np.zeros(room, self.value)
            attributes = struct.pack(
                "<QQQQIIQQ",
                0 if first else ctypes.addressof(position),
                ctypes.addressof(position),
                key.ctypes.data,
                value.ctypes.data,
                room,
                self.fd,
                0,
                0,
            )
            ended = False
            try:
                _, after = bpf(_MAP_TAKE_BATCH, attributes)
            except OSError as error:
                if error.errno == errno.ENOSPC:  # one bucket alone holds more than fits
                    room *= 2
                    continue
                if error.errno == errno.EINVAL and first:
                    return self._take_slowly()
                if error.errno != errno.ENOENT:
                    raise ProbeError(f"a BPF map cannot be read: {error.strerror}") from error
                after, ended = error.attributes, True  # type: ignore[attr-defined]
            count = struct.unpack_from("<I", after, 32)[0]
            keys.append(key[:count])
            values.append(value[:count])
            first = False
            if ended:
                return np.concatenate(keys), np.concatenate(values)

    def _take_slowly(self) -> tuple[NDArray[Any], NDArray[Any]]:
        keys: list[NDArray[Any]] = []
        values: list[NDArray[Any]] = []
        key = np.zeros(1, self.key)
        while True:
            try:  # no key: the first one
                bpf(_MAP_NEXT, struct.pack("<IIQQQ", self.fd, 0, 0, key.ctypes.data, 0))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    break
                raise ProbeError(f"a BPF map cannot be read: {error.strerror}") from error
            value = np.zeros(1, self.value)
            bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", self.fd, 0, key.ctypes.data, value.ctypes.data, 0))
            bpf(_MAP_DELETE, struct.pack("<IIQQQ", self.fd, 0, key.ctypes.data, 0, 0))
            keys.append(key.copy())
            values.append(value)
        if not keys:
            return np.zeros(0, self.key), np.zeros(0, self.value)
        return np.concatenate(keys), np.concatenate(values)

    def get(self, index: int, possible_cpus: int = 0) -> NDArray[Any]:
        """Entry `index` of an array map; of a per-CPU map all `possible_cpus` values (8-byte aligned)."""
        value = np.zeros(max(possible_cpus, 1), self.value)
        key = np.array([index], "u4")
        bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", self.fd, 0, key.ctypes.data, value.ctypes.data, 0))
        return value

    def set(self, index: int, value: NDArray[Any]) -> None:
        """Write entry `index` of an array map (a per-CPU map takes one value a possible CPU)."""
        key = np.array([index], "u4")
        data = np.ascontiguousarray(value, self.value)
        bpf(_MAP_UPDATE, struct.pack("<IIQQQ", self.fd, 0, key.ctypes.data, data.ctypes.data, 0))


def load_program(code: bytes, kind: int, *, name: str = "", attach_type: int = 0, btf_id: int = 0) -> int:
    """BPF_PROG_LOAD of finished instructions; returns the file descriptor.

    `attach_type` and `btf_id` are expected_attach_type and attach_btf_id (tracing programs). Raises ProbeError
    with the verifier's last lines in `details`.
    """
    log = ctypes.create_string_buffer(1 << 18)
    text = ctypes.create_string_buffer(code, len(code))
    license_ = ctypes.create_string_buffer(b"GPL")

    def attempt(level: int) -> int:
        attributes = bytearray(128)
        struct.pack_into(
            "<IIQQIIQII",
            attributes,
            0,
            kind,
            len(code) // 8,
            ctypes.addressof(text),
            ctypes.addressof(license_),
            level,
            len(log) if level else 0,
            ctypes.addressof(log) if level else 0,
            0,
            0,
        )
        attributes[48:63] = name.encode()[:15].ljust(15, b"\0")
        struct.pack_into("<I", attributes, 68, attach_type)
        struct.pack_into("<I", attributes, 108, btf_id)
        return bpf(_PROG_LOAD, attributes)[0]

    try:
        return attempt(0)
    except OSError as first:
        reason = first.strerror
    try:
        return attempt(1)  # once more for the verifier's words
    except OSError as error:
        lines = [line for line in log.value.decode(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith(("processed", "max_states"))]
        cause = told[-1] if told else reason
        raise ProbeError(f"BPF program {name} was refused: {cause}", details="\n".join(lines[-20:])) from error


def attach_raw_tracepoint(program: int, name: str = "") -> int:
    """BPF_RAW_TRACEPOINT_OPEN: attached until the returned descriptor is closed. Raises OSError.

    `name` is the tracepoint's for raw tracepoint programs; tracing programs carry their target (name "").
    """
    text = ctypes.create_string_buffer(name.encode())
    fd, _ = bpf(_RAW_TRACEPOINT_OPEN, struct.pack("<QIIQ", ctypes.addressof(text) if name else 0, program, 0, 0))
    return fd


def program_infos() -> dict[str, tuple[int, int, int]]:
    """Loaded BPF programs by their kallsyms name `bpf_prog_<tag>_<name>`: (run count, run ns, jited bytes).

    Programs with one name and tag are one entry (their counts added). Empty where bpf(2) does not permit it.
    """
    found: dict[str, tuple[int, int, int]] = {}
    last = 0
    while True:
        try:
            _, after = bpf(_PROG_NEXT_ID, struct.pack("<III", last, 0, 0))
        except OSError:
            return found
        last = struct.unpack_from("<I", after, 4)[0]
        try:
            fd, _ = bpf(_PROG_FD_BY_ID, struct.pack("<III", last, 0, 0))
        except OSError:  # gone meanwhile
            continue
        try:
            info = program_info(fd)
        finally:
            os.close(fd)
        name, hits, run_ns, size = info
        old = found.get(name, (0, 0, 0))
        found[name] = (old[0] + hits, old[1] + run_ns, max(old[2], size))


def program_info(fd: int) -> tuple[str, int, int, int]:
    """(kallsyms name, run count, run ns, jited bytes) of a loaded program. Counts need kernel.bpf_stats_enabled."""
    info = ctypes.create_string_buffer(232)
    bpf(_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    tag = info.raw[8:16].hex()
    size = struct.unpack_from("<I", info, 16)[0]
    name = info.raw[64:80].split(b"\0")[0].decode(errors="replace")
    run_ns, hits = struct.unpack_from("<QQ", info, 192)
    return f"bpf_prog_{tag}_{name}" if name else f"bpf_prog_{tag}", hits, run_ns, size


def program_id(fd: int) -> int:
    """The kernel's number of a loaded program."""
    info = ctypes.create_string_buffer(232)
    bpf(_INFO_BY_FD, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    return int(struct.unpack_from("<I", info, 4)[0])


# ---- perf_event_open(2) ----

_IOC_ENABLE, _IOC_DISABLE, _IOC_SET_BPF = 0x2400, 0x2401, 0x40042408


def perf_event_open(
    kind: int, config: int, cpu: int, *, period: int = 0, frequency_hz: int = 0, exclude_user: bool = False
) -> int:
    """A disabled, system-wide perf event on one CPU; returns its descriptor. Raises OSError.

    read(2) on it gives (count, time enabled ns, time running ns).
    """
    flags = 1  # disabled
    if exclude_user:
        flags |= 1 << 4
    if frequency_hz:
        flags |= 1 << 10
    attributes = bytearray(128)
    struct.pack_into(
        "<IIQQQQQ", attributes, 0, kind, len(attributes), config, frequency_hz or period, 1 << 8, 1 | 2, flags
    )  # sample_type PERIOD; read_format TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING
    struct.pack_into("<I", attributes, 48, 1)  # wakeup_events
    buffer = ctypes.create_string_buffer(bytes(attributes), len(attributes))
    fd = _libc.syscall(_number(1), buffer, -1, cpu, -1, 8)  # PERF_FLAG_FD_CLOEXEC
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


def perf_ioctl(fd: int, action: str, argument: int = 0) -> None:
    """enable, disable, or set_bpf (argument: program descriptor). Raises OSError."""
    fcntl.ioctl(fd, {"enable": _IOC_ENABLE, "disable": _IOC_DISABLE, "set_bpf": _IOC_SET_BPF}[action], argument)

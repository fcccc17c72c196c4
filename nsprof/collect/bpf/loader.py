"""Compiling, loading and attaching BPF programs, with every refusal as a ProbeError that names what was refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from nsprof.collect.bpf import bcc_door, btf, headers
from nsprof.collect.bpf import cache as loader_cache
from nsprof.collect.bpf.syscalls import MapReader, create_map, load_program, map_info
from nsprof.errors import PreflightError, ProbeError
from nsprof.files import cache_root

__all__ = [
    "PERF_EVENT",
    "RAW_TRACEPOINT",
    "TRACING",
    "Features",
    "Program",
    "Target",
    "compile_program",
    "compiled",
    "features",
    "probes_dir",
]

# enum bpf_prog_type, include/uapi/linux/bpf.h
RAW_TRACEPOINT = 17
PERF_EVENT = 7
TRACING = 26

#: Struct members that programs read; each becomes `-DOFF_<struct>_<member>=<bytes>` where the kernel has it.
OFFSETS = (
    ("bpf_perf_event_data_kern", "event"),
    ("perf_event", "hw.hrtimer.node.expires"),
    ("perf_event", "hw.hrtimer.base"),
    ("hrtimer_clock_base", "cpu_base"),
    ("tick_sched", "idle_entrytime"),
    ("task_struct", "nsproxy"),
    ("nsproxy", "net_ns"),
    ("net", "ns.inum"),
    ("net", "net_cookie"),
    ("net_device", "nd_net.net"),
    ("net_device", "ifindex"),
    ("net_device", "flags"),
    ("net_device", "rx_handler"),
    ("net_device", "dev_addr"),
    ("net_device", "tcx_ingress"),
    ("net_device", "miniq_ingress"),
    ("net_device", "vlan_info"),
    ("net_device", "adj_list.upper"),
    ("netdev_adjacent", "dev"),
    ("netdev_adjacent", "master"),
    ("netdev_adjacent", "list"),
    ("sk_buff", "dev"),
    ("sk_buff", "head"),
    ("sk_buff", "mac_header"),
    ("sk_buff", "protocol"),
    ("sk_buff", "vlan_proto"),
    ("napi_struct", "dev"),
)

#: Stands in compiled instructions for the first map lent by another program; no descriptor is as high.
_LENT_FD = 0x4E530000

_PACKAGE = Path(__file__).resolve().parents[2]


def _cpu_list(path: str) -> list[int]:
    cpus: list[int] = []
    for part in Path(path).read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def online_cpus() -> list[int]:
    """Numbers of the CPUs that are online."""
    return _cpu_list("/sys/devices/system/cpu/online")


def possible_cpus() -> int:
    """How many values a per-CPU map holds (the highest possible CPU's number + 1)."""
    return _cpu_list("/sys/devices/system/cpu/possible")[-1] + 1


def probes_dir() -> Path:
    """The directory of the BPF sources: in the checkout, or inside the installed package. Raises PreflightError."""
    for place in (_PACKAGE / "_probes", _PACKAGE.parent / "probes"):
        if (place / "include").is_dir():
            return place
    raise PreflightError(f"the BPF sources (probes/) are missing beside {_PACKAGE}", "reinstall nsprof")


@dataclass(frozen=True, slots=True)
class Features:
    """What the verifier lets a perf event program do here, found by loading a few instructions."""

    task_btf: bool  # typed pointer to the current task, read by plain loads (Linux 5.11)
    probe_read: bool  # bpf_probe_read_kernel (not under lockdown=confidentiality)


@lru_cache(maxsize=1)
def features() -> Features:
    """Tried once a process."""
    nsproxy = btf.kernel_types().member("task_struct", "nsproxy")
    load_task = _insn(0x85, imm=158)  # r0 = bpf_get_current_task_btf()
    load_task += _insn(0x79, dst=1, src=0, off=nsproxy or 0)  # r1 = r0->nsproxy
    read = _insn(0xBF, dst=1, src=10) + _insn(0x07, dst=1, imm=-8)  # r1 = r10 - 8
    read += _insn(0xB7, dst=2, imm=8) + _insn(0xB7, dst=3) + _insn(0x85, imm=113)  # bpf_probe_read_kernel(r1, 8, 0)
    end = _insn(0xB7) + _insn(0x95)  # return 0
    return Features(task_btf=nsproxy is not None and _accepted(load_task + end), probe_read=_accepted(read + end))


def _insn(code: int, *, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", code, dst | src << 4, off, imm)


def _accepted(code: bytes) -> bool:
    try:
        os.close(load_program(code, PERF_EVENT, name="nsprof_try"))
    except ProbeError:
        return False
    return True


class Program:
    """One compiled source file with maps of its own: its functions are loaded by name, its maps opened by name.

    `lent` are descriptors of other programs' maps, by the names the source has for them; a map of its own that is
    lent is not made. Close it.
    """

    def __init__(self, name: str, compiled: loader_cache.Compiled, lent: Mapping[str, int] | None = None) -> None:
        """Makes the maps. Raises ProbeError when the kernel refuses one; then none stays."""
        self.name = name
        self.functions = compiled.functions
        self._loaded: list[int] = []
        self._own: dict[str, int] = {}
        self._lent = dict(lent or {})
        for each in (spec for spec in compiled.maps if spec.name not in self._lent):
            sizes = (each.kind, each.key_size, each.value_size, each.entries)
            try:
                self._own[each.name] = create_map(*sizes, flags=each.flags, name=each.name)
            except OSError as error:
                self.close()
                hint = "run as root (sudo nsprof ...)" if isinstance(error, PermissionError) else ""
                cause = "not permitted" if isinstance(error, PermissionError) else error.strerror
                raise ProbeError(f"BPF program {name} was refused: map {each.name}: {cause}", hint) from error

    def load(self, function: str, kind: int) -> int:
        """Load one function; returns its file descriptor (owned by the Program). Raises ProbeError."""
        try:
            fd = load_program(self.code(function), kind, name=function)
        except ProbeError as error:
            raise _refused(f"{self.name}:{function}", error, error.details) from error
        self._loaded.append(fd)
        return fd

    def code(self, function: str) -> bytes:
        """The function's BPF instructions with the maps' descriptors, for load_program(). Raises ProbeError."""
        try:
            code, places = self.functions[function]
        except KeyError:
            raise ProbeError(f"BPF program {self.name} has no function {function!r}") from None
        return loader_cache.relocated(code, places, {**self._lent, **self._own})

    def map(self, name: str, key: Any, value: Any, entries: int) -> MapReader:
        """A reader of the map `name` with numpy dtypes of its key and value. Raises ProbeError if unfit."""
        return MapReader(self._own[name], key, value, entries, f"{self.name}:{name}")

    def close(self) -> None:
        """Unload everything. Calling it twice is harmless."""
        while self._loaded:
            os.close(self._loaded.pop())
        while self._own:
            os.close(self._own.popitem()[1])


def compile_program(
    name: str, defines: Mapping[str, int | str] | None = None, *, lent: Mapping[str, int] | None = None
) -> Program:
    """Compile `probes/<name>.c` with `-DKEY=value` for each of `defines`, or take what an earlier call made of it.

    `lent` are maps of other programs: the name of one of the source's own maps, or of a define that stands for the
    descriptor in the source -> descriptor.
    Raises PreflightError where BCC or the kernel's types are missing, ProbeError when the compiler refuses.
    """
    return Program(name, compiled(name, defines, lent=tuple(lent or {})), lent)


@dataclass(frozen=True, slots=True)
class Target:
    """The kernel to compile for: its type information and its release."""

    types: Path = btf.KERNEL_BTF
    release: str = field(default_factory=lambda: os.uname().release)


def compiled(
    name: str,
    defines: Mapping[str, int | str] | None = None,
    *,
    lent: Sequence[str] = (),
    target: Target | None = None,
) -> loader_cache.Compiled:
    """As compile_program(), without loading anything; also for a kernel that does not run here."""
    target = target or Target()
    types = btf.kernel_types() if target.types == btf.KERNEL_BTF else None
    source = probes_dir() / f"{name}.c"
    try:
        text = source.read_bytes()
        included = _included(text, probes_dir() / "include")
        blob = target.types.read_bytes()
    except OSError as error:
        raise ProbeError(f"BPF source {error.filename}: {error.strerror}") from error
    flags = offset_flags(types or btf.TypeTable(blob, str(target.types)))
    flags += [f"-D{key}={value}" for key, value in sorted((defines or {}).items())]
    standing = {key: _LENT_FD + number for number, key in enumerate(sorted(lent))}
    flags += [f"-D{key}={value}" for key, value in standing.items()]
    kernel: list[str | bytes] = [target.release, os.uname().machine, str(os.sysconf("SC_PAGE_SIZE"))]
    kernel += [hashlib.sha256(blob).digest(), bcc_door.version()]
    parts: list[str | bytes] = [name, text, *flags, "headers"]
    parts += [part for pair in sorted(included.items()) for part in pair]
    key = loader_cache.digest_of([*parts, "kernel", *kernel])
    place = cache_root() / "programs"
    found = loader_cache.read(place, key)
    if found is None:
        found = _compile(name, text, flags, standing, headers.header_tree(target.types, release=target.release))
        loader_cache.write(place, key, found)
    return found


def _included(text: bytes, directory: Path) -> dict[str, bytes]:
    """The project's own headers that a source includes, and those that they include. Raises OSError."""
    found: dict[str, bytes] = {}
    waiting = [text]
    while waiting:
        for match in re.finditer(rb'^#include "([\w.]+)"', waiting.pop(), re.M):
            name = match[1].decode()
            if name not in found:
                found[name] = (directory / name).read_bytes()
                waiting.append(found[name])
    return found


def _compile(
    name: str, text: bytes, flags: list[str], standing: Mapping[str, int], tree: Path
) -> loader_cache.Compiled:
    """Compile by BCC and take the instructions and the maps' shapes out of it."""
    bcc = bcc_door.load()
    paths = ["-Wno-everything", f"-I{probes_dir() / 'include'}", f"-I{tree / 'include'}"]
    caught: list[str] = []
    try:
        with _kernel_source(tree), _captured_stderr(caught):
            bpf = bcc.BPF(text=text, cflags=[*paths, *flags])
    except Exception as error:
        raise _refused(name, error, "".join(caught)) from error
    try:
        maps = [loader_cache.MapSpec(each, *map_info(fd)) for each, fd in bcc_door.tables(bpf).items()]
        names = {fd: each for each, fd in bcc_door.tables(bpf).items()}
        names |= {value: each for each, value in standing.items()}
        codes = {each: bpf.dump_func(each.encode()) for each in bcc_door.functions(bpf)}
        functions = {each: (code, loader_cache.references(code, names)) for each, code in codes.items()}
    except (OSError, KeyError) as error:
        raise ProbeError(f"BPF program {name} cannot be taken out of BCC: {error}") from error
    finally:
        bpf.cleanup()
    return loader_cache.Compiled(tuple(maps), functions)


def offset_flags(types: btf.TypeTable) -> list[str]:
    """The `-DOFF_...` defines of `OFFSETS`; a member that the kernel lacks has none."""
    found = ((struct, path, types.member(struct, path)) for struct, path in OFFSETS)
    flags = [f"-DOFF_{struct}_{path.replace('.', '_')}={at}" for struct, path, at in found if at is not None]
    timers, tick = types.per_cpu("hrtimer_bases"), types.per_cpu("tick_cpu_sched")
    if timers is not None and tick is not None:
        flags.append(f"-DOFF_tick_cpu_sched={tick - timers}")  # from the one to the other, in the same CPU's area
    return flags


def _refused(what: str, error: Exception, words: str) -> ProbeError:
    lines = [line.rstrip() for line in words.splitlines() if line.strip()]
    cause = _cause(lines) or str(error).strip().splitlines()[0]
    if "super-user" in str(error):
        return ProbeError(f"BPF program {what} was refused: not permitted", "run as root (sudo nsprof ...)")
    return ProbeError(
        f"BPF program {what} was refused: {cause}",
        "nsprof doctor tells what this kernel allows; --debug shows the verifier's words",
        details="\n".join(lines[-20:]),
    )


_NOISE = re.compile(r"^(processed \d+ insns|max_states|from \d+ to|\d+: |;|R\d+(_\w+)?=|HINT|bpf: Failed|libbpf: )")


def _cause(lines: list[str]) -> str:
    """The compiler's first error, or the verifier's last complaint."""
    for line in lines:
        if ": error: " in line or ": fatal error: " in line:
            return line.split("error: ", 1)[1]
    for line in reversed(lines):
        if not _NOISE.match(line.strip()):
            return line.strip()
    return ""


@contextlib.contextmanager
def _kernel_source(tree: Path) -> Iterator[None]:
    before = os.environ.get("BCC_KERNEL_SOURCE")
    os.environ["BCC_KERNEL_SOURCE"] = str(tree)
    try:
        yield
    finally:
        if before is None:
            del os.environ["BCC_KERNEL_SOURCE"]
        else:
            os.environ["BCC_KERNEL_SOURCE"] = before


@contextlib.contextmanager
def _captured_stderr(into: list[str]) -> Iterator[None]:
    """What libbcc, clang and the verifier print on file descriptor 2 within the block goes to `into`."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink:
        saved = os.dup(2)
        try:
            os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            into.append(sink.read().decode(errors="replace"))

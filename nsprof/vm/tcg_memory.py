"""Which kernel object a data line belongs to, read from a copy of the guest's memory through drgn.

    names = name_lines(snapshot, vmlinux, kallsyms, sample.lines())

Known for certain, in this order: a symbol of the kernel's image, a per-CPU variable, a stack, a slab object (with
its cache, and the `struct` member where the object's C type is known: from the cache's name, or because a pointer
of known type in a known object leads there). What is left is named by its region, never guessed.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsprof.errors import VmError
from nsprof.vm.tcg_objects import known_objects
from nsprof.vm.tcg_output import Line

__all__ = ["NamedLine", "name_by_symbols", "name_lines", "region_of"]

#: slab cache -> C type of its objects (mm/slub.c keeps no type; these are the kmem_cache_create calls' own)
_CACHE_TYPES = {
    "UDP": "struct udp_sock",
    "UDPv6": "struct udp6_sock",
    "TCP": "struct tcp_sock",
    "TCPv6": "struct tcp6_sock",
    "RAW": "struct raw_sock",
    "PING": "struct inet_sock",
    "net_namespace": "struct net",
    "task_struct": "struct task_struct",
    "skbuff_head_cache": "struct sk_buff",
    "skbuff_fclone_cache": "struct sk_buff_fclones",
    "sock_inode_cache": "struct socket_alloc",
    "filp": "struct file",
    "files_cache": "struct files_struct",
    "mm_struct": "struct mm_struct",
    "vm_area_struct": "struct vm_area_struct",
    "ip_dst_cache": "struct rtable",
    "ip6_dst_cache": "struct rt6_info",
    "ip_fib_alias": "struct fib_alias",
    "ip_fib_trie": "struct tnode",
    "bridge_fdb_cache": "struct net_bridge_fdb_entry",
    "cred_jar": "struct cred",
    "signal_cache": "struct signal_struct",
    "sighand_cache": "struct sighand_struct",
    "dentry": "struct dentry",
    "kmem_cache": "struct kmem_cache",
    "kmem_cache_node": "struct kmem_cache_node",
    "pid": "struct pid",
    "request_sock_TCP": "struct tcp_request_sock",
    "tw_sock_TCP": "struct tcp_timewait_sock",
}
_STACK_SIZE = 16384  # THREAD_SIZE and IRQ_STACK_SIZE of x86-64 without KASAN
_DIRECT_MAP, _DIRECT_MAP_END = 0xFFFF888000000000, 0xFFFFC88000000000
_VMALLOC, _VMALLOC_END = 0xFFFFC90000000000, 0xFFFFE90000000000
_VMEMMAP, _VMEMMAP_END = 0xFFFFEA0000000000, 0xFFFFEB0000000000
_ENTRY_AREA, _ENTRY_AREA_END = 0xFFFFFE0000000000, 0xFFFFFF0000000000
_IMAGE, _MODULES = 0xFFFFFFFF80000000, 0xFFFFFFFFC0000000


@dataclass(frozen=True)
class NamedLine:
    """`name` says which, `member` where in it. `kind` is symbol, percpu, stack, slab, typed (a slab object to which a
    pointer of known type leads), table (a hash table with pages of its own), page, user or a region."""

    line: Line
    kind: str
    name: str
    member: str = ""

    @property
    def named(self) -> bool:
        """By symbol, per-CPU variable, stack or slab cache (user memory is its program's, not the kernel's)."""
        return self.kind in ("symbol", "percpu", "stack", "slab", "typed", "table")


def region_of(address: int) -> str:
    """What can be said of a kernel address without the guest's memory (x86-64, nokaslr, four-level tables)."""
    if address < 1 << 47:
        return "user"
    for start, end, name in (
        (_DIRECT_MAP, _DIRECT_MAP_END, "direct map"),
        (_VMALLOC, _VMALLOC_END, "vmalloc"),
        (_VMEMMAP, _VMEMMAP_END, "struct page"),
        (_ENTRY_AREA, _ENTRY_AREA_END, "cpu entry area"),
        (_IMAGE, _MODULES, "kernel image"),
        (_MODULES, 1 << 64, "module"),
    ):
        if start <= address < end:
            return name
    return "unknown"


def name_by_symbols(kallsyms: Path, lines: Iterable[Line]) -> list[NamedLine]:
    """Without the guest's memory: symbols of the kernel's image and modules, regions for the rest."""
    fixed, _, _ = _tables(kallsyms)
    found = []
    for line in lines:
        region = region_of(line.address)
        known = region in ("kernel image", "module") and not line.text
        if not line.text:
            name = fixed.at(line.first_access) if known else ""
            found.append(NamedLine(line, "symbol" if known else region, name))
    return found


@dataclass(frozen=True)
class _Table:
    addresses: Sequence[int]
    names: Sequence[str]

    def at(self, address: int) -> str:
        where = bisect.bisect_right(self.addresses, address) - 1
        return self.names[where] if where >= 0 else ""


def _tables(kallsyms: Path) -> tuple[_Table, _Table, int]:
    """Symbols of the image and modules; per-CPU offsets; the end of the per-CPU section."""
    fixed: list[tuple[int, str]] = []
    percpu: list[tuple[int, str]] = []
    with kallsyms.open() as lines:
        for line in lines:
            words = line.split()
            address = int(words[0], 16)
            if address >> 63:
                fixed.append((address, words[2]))
            elif words[1] in "AaDdBbVv":
                percpu.append((address, words[2]))
    fixed.sort()
    percpu.sort()
    end = next((address for address, name in percpu if name == "__per_cpu_end"), 0)
    return (
        _Table([a for a, _ in fixed], [n for _, n in fixed]),
        _Table([a for a, _ in percpu], [n for _, n in percpu]),
        end,
    )


def name_lines(snapshot: Path, vmlinux: Path, kallsyms: Path, lines: Iterable[Line]) -> list[NamedLine]:
    """Name every data line. Raises VmError when drgn is missing or cannot read the memory."""
    try:
        import drgn
    except ImportError as error:
        raise VmError("drgn is not installed: it names the data lines", "pip install 'nsprof[drgn]'") from error
    with snapshot.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        try:
            program = _program(memory, vmlinux, kallsyms)
            namer = _Namer(program, kallsyms)
            return [namer.name(line) for line in lines if not line.text]
        except (drgn.FaultError, LookupError, ValueError, OSError) as error:
            raise VmError(f"drgn cannot read the guest's memory with {vmlinux.name}: {error}") from error


def _program(memory: mmap.mmap, vmlinux: Path, kallsyms: Path) -> Any:
    from drgn import Architecture, Platform, PlatformFlags, Program

    flags = PlatformFlags.IS_64_BIT | PlatformFlags.IS_LITTLE_ENDIAN
    program = Program(Platform(Architecture.X86_64, flags))

    def read(address: int, count: int, offset: int, physical: bool) -> bytes:
        return memory[address : address + count]

    program.add_memory_segment(0, len(memory), read, True)
    program.set_linux_kernel_custom(_vmcoreinfo(memory), False)
    loaded = _loaded_modules(kallsyms)
    modules = [m for m in vmlinux.parent.parent.rglob("*.ko") if m.stem.replace("-", "_") in loaded]
    program.load_debug_info([vmlinux, *sorted(modules)])
    return program


def _loaded_modules(kallsyms: Path) -> set[str]:
    with kallsyms.open() as lines:
        return {line.rsplit("[", 1)[1].rstrip("]\n") for line in lines if line.endswith("]\n")}


def _vmcoreinfo(memory: mmap.mmap) -> bytes:
    at = memory.find(b"OSRELEASE=")
    while at >= 0:
        end = memory.find(b"\0", at)
        text = memory[at : min(end, at + 4096)]
        if b"SYMBOL(swapper_pg_dir)=" in text:
            return bytes(text)
        at = memory.find(b"OSRELEASE=", at + 1)
    raise VmError("the guest's memory holds no vmcoreinfo", "the kernel wants CONFIG_CRASH_CORE (CONFIG_VMCORE_INFO)")


class _Namer:
    def __init__(self, program: Any, kallsyms: Path) -> None:
        import drgn
        from drgn.helpers.linux import pid

        self.program = program
        self.fault = drgn.FaultError
        self.fixed, self.percpu, self.percpu_end = _tables(kallsyms)
        self.percpu_base = program["__per_cpu_offset"][0].value_()
        self.percpu_unit = program["pcpu_unit_size"].value_()
        self.first_chunk = program["pcpu_base_addr"].value_()
        self.stacks = [
            (task.stack.value_(), task.comm.string_().decode(errors="replace")) for task in pid.for_each_task(program)
        ]
        self.irq_stack = self._irq_stack()
        self.types: dict[str, Any] = {}
        self.typed = known_objects(program, self._type)
        self.typed_starts = [each.start for each in self.typed]

    def _irq_stack(self) -> int:
        """The top of CPU 0's interrupt stack; 0 when the kernel calls it otherwise."""
        from drgn.helpers.linux.percpu import per_cpu

        for name, member in (("hardirq_stack_ptr", ""), ("pcpu_hot", "hardirq_stack_ptr")):
            try:
                found = per_cpu(self.program[name], 0)
                return int((found.member_(member) if member else found).value_())
            except LookupError:
                continue
        return 0

    def _type(self, name: str) -> Any:
        if name not in self.types:
            try:
                self.types[name] = self.program.type(name)
            except LookupError:
                self.types[name] = None
        return self.types[name]

    def name(self, line: Line) -> NamedLine:
        """One line, by the address of its first access."""
        inside = line.address <= line.first_access < line.address + 64
        address = line.first_access if inside else line.address
        try:
            kind, name, member = self._name(address)
        except self.fault:
            kind, name, member = region_of(address), "", ""
        return NamedLine(line, kind, name, member)

    def _name(self, address: int) -> tuple[str, str, str]:
        region = region_of(address)
        if self.first_chunk <= address < self.first_chunk + self.percpu_unit:
            offset = address - self.percpu_base
            if 0 <= offset < self.percpu_end:
                return "percpu", self.percpu.at(offset), ""
            return self._typed(address) or ("percpu", "dynamic per-CPU allocation", "")
        typed = self._typed(address)
        if typed is not None:
            return typed
        if region in ("kernel image", "module"):
            return "symbol", self.fixed.at(address), ""
        if region == "vmalloc":
            return self._vmalloc(address)
        if region == "direct map":
            return self._direct(address)
        return region, "", ""

    def _vmalloc(self, address: int) -> tuple[str, str, str]:
        for start, comm in self.stacks:
            if start <= address < start + _STACK_SIZE:
                return "stack", f"stack of {comm}", ""
        if self.irq_stack and self.irq_stack - _STACK_SIZE <= address < self.irq_stack + 64:
            return "stack", "interrupt stack", ""
        return "vmalloc", "", ""

    def _direct(self, address: int) -> tuple[str, str, str]:
        from drgn.helpers.linux.slab import slab_object_info

        found = slab_object_info(self.program, address)
        if found is None:
            return "page", "", ""
        cache = found.slab_cache.name.string_().decode(errors="replace")
        known = self._cache_type(cache, found.slab_cache)
        member = _member(known, address - found.address) if known is not None else ""
        return "slab", cache, f"{known.type_name()}.{member}" if member else ""

    def _cache_type(self, name: str, cache: Any) -> Any:
        """The type of a slab cache's objects; None when its name does not tell."""
        if name in _CACHE_TYPES:
            return self._type(_CACHE_TYPES[name])
        # KMEM_CACHE(x) calls a cache like its objects' struct, and makes them as large.
        known = self._type(f"struct {name}") if name.isidentifier() else None
        return known if known is not None and cache.object_size.value_() == _size(known) else None

    def _typed(self, address: int) -> tuple[str, str, str] | None:
        where = bisect.bisect_right(self.typed_starts, address) - 1
        if where < 0:
            return None
        each = self.typed[where]
        offset = address - each.start
        if offset >= each.size * each.count:
            return None
        if each.type is None:
            return each.kind, each.label, each.member
        member = _member(each.type, offset % each.size)
        return each.kind, each.label, f"{each.type.type_name()}.{member}" if member else ""


def _size(type_: Any) -> int:
    """Bytes of a type; 0 for flexible arrays and incomplete types."""
    from drgn import sizeof

    try:
        return int(sizeof(type_))
    except TypeError:
        return 0


def _member(type_: Any, offset: int) -> str:
    """The innermost named member at an offset, "a.b"; "" in padding or beyond the type."""
    from drgn import TypeKind

    path: list[str] = []
    while True:
        while type_.kind == TypeKind.TYPEDEF:
            type_ = type_.type
        if type_.kind == TypeKind.ARRAY and type_.length and _size(type_.type):
            offset %= _size(type_.type)
            type_ = type_.type
            continue
        if type_.kind not in (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS) or not type_.is_complete():
            return ".".join(path)
        for member in type_.members:
            bits = member.bit_field_size or 8 * _size(member.type)
            start = member.bit_offset // 8
            if bits and start <= offset <= (member.bit_offset + bits - 1) // 8:
                if member.name:
                    path.append(member.name)
                offset -= start
                type_ = member.type
                break
        else:
            return ".".join(path)

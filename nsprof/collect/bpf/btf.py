"""A small reader of the kernel's type information (BTF): type ids, member offsets, which members exist.

The offsets that programs use come from here (as `-DOFF_struct_member=N`) and not from a C dump of the types:
a dump cannot always reproduce the kernel's padding (seen: `struct net`'s cookie 160 bytes off), and a probe that
reads the wrong place does not fail, it lies. Format: Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path

from nsprof.errors import PreflightError

__all__ = ["KERNEL_BTF", "TypeTable", "kernel_types", "module_types"]

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")

# BTF_KIND_*
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = 1, 2, 3, 4, 5, 6, 7, 8
_VOLATILE, _CONST, _RESTRICT, _FUNC, _FUNC_PROTO, _VAR, _DATASEC = 9, 10, 11, 12, 13, 14, 15
_FLOAT, _DECL_TAG, _TYPE_TAG, _ENUM64 = 16, 17, 18, 19

_MODIFIERS = frozenset({_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG})


class TypeTable:
    """The types of one BTF blob. Ids are the kernel's, counted from 1.

    A module's blob continues its kernel's ids and strings: `base` is then the kernel's table.
    """

    def __init__(self, blob: bytes, origin: str = "BTF", base: TypeTable | None = None) -> None:
        self.origin = origin
        try:
            magic, version, _, header, type_off, type_len, str_off, str_len = struct.unpack_from("<HBBIIIII", blob)
            if magic != 0xEB9F or version != 1:
                raise ValueError("not BTF")
            types = blob[header + type_off : header + type_off + type_len]
            strings = blob[header + str_off : header + str_off + str_len]
            if len(types) != type_len or len(strings) != str_len:
                raise ValueError("truncated")
            self._strings: bytes = base._strings + strings if base else strings
            self._words: list[int] = [*(base._words if base else ()), *memoryview(types).cast("I").tolist()]
            self._at: list[int] = [*(base._at if base else (0,)), *self._index(len(base._words) if base else 0)]
        except (struct.error, ValueError, IndexError, TypeError) as error:
            raise PreflightError(f"{origin} cannot be read as kernel type information: {error}") from error
        self._names: dict[tuple[int, int], int] = dict(base._names) if base else {}
        for number in range(len(base._at) if base else 1, len(self._at)):
            at = self._at[number]
            if self._words[at]:
                self._names.setdefault(((self._words[at + 1] >> 24) & 0x1F, self._words[at]), number)

    def _index(self, at: int) -> list[int]:
        """Word position of each type from position `at` on (id 0, void, points at type 1 and is never followed)."""
        words = self._words
        end = len(words)
        found = []
        extra = {_INT: 1, _ARRAY: 3, _VAR: 1, _DECL_TAG: 1}
        per = {_STRUCT: 3, _UNION: 3, _ENUM: 2, _FUNC_PROTO: 2, _DATASEC: 3, _ENUM64: 3}
        while at < end:
            found.append(at)
            info = words[at + 1]
            kind = (info >> 24) & 0x1F
            if kind > _ENUM64:
                raise ValueError(f"unknown kind {kind}")
            if kind in per:
                at += 3 + per[kind] * (info & 0xFFFF)
            else:
                at += 3 + extra.get(kind, 0)
        return found

    def __len__(self) -> int:
        return len(self._at)

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _find(self, kind: int, name: str) -> int:
        """Id of a named type, 0 when there is none."""
        needle = b"\0" + name.encode() + b"\0"
        at = self._strings.find(needle)
        while at >= 0:  # equal strings are stored once as a rule, but nothing promises it
            number = self._names.get((kind, at + 1), 0)
            if number:
                return number
            at = self._strings.find(needle, at + 1)
        return 0

    def tracepoint(self, name: str) -> int:
        """Id of the typedef `btf_trace_<name>` (attach target of tp_btf programs), 0 when there is none."""
        return self._find(_TYPEDEF, f"btf_trace_{name}")

    def function(self, name: str) -> int:
        """Id of a kernel function (attach target of fentry programs), 0 when there is none."""
        return self._find(_FUNC, name)

    def enumerator(self, name: str) -> bool:
        """Whether a name occurs at all among the strings (e.g. a helper's BPF_FUNC_ constant)."""
        return b"\0" + name.encode() + b"\0" in self._strings

    def parameters(self, name: str) -> tuple[str, ...]:
        """Parameter names of a tracepoint's typedef or a function; () when it is unknown."""
        number = self.tracepoint(name) or self.function(name)
        while number:
            at = self._at[number]
            info = self._words[at + 1]
            if (info >> 24) & 0x1F == _FUNC_PROTO:
                count = info & 0xFFFF
                return tuple(self._name(self._words[at + 3 + 2 * i]) for i in range(count))
            number = self._words[at + 2]
        return ()

    def member(self, struct_name: str, path: str) -> int | None:
        """Byte offset of a member such as "nd_net.net" or "ns.inum"; None when the kernel has no such member.

        Anonymous structs and unions on the way are looked through; bit fields have no byte offset: None.
        """
        number = self._find(_STRUCT, struct_name)
        total = 0
        for part in path.split("."):
            step = self._member(self._resolve(number), part)
            if step is None:
                return None
            offset, number = step
            total += offset
        return total

    def bit_member(self, struct_name: str, name: str) -> int | None:
        """Offset of a bit field in bits from the struct's beginning; None when the kernel has no such member.

        Members of anonymous structs and unions are found too.
        """
        return self._bit_member(self._find(_STRUCT, struct_name), name)

    def _bit_member(self, number: int, name: str) -> int | None:
        at = self._at[number] if number else 0
        info = self._words[at + 1]
        if not number or (info >> 24) & 0x1F not in (_STRUCT, _UNION):
            return None
        for i in range(info & 0xFFFF):
            name_at, kind, where = self._words[at + 3 + 3 * i : at + 6 + 3 * i]
            bits = where & 0xFFFFFF if info >> 31 else where
            if name_at == 0:
                inner = self._bit_member(self._resolve(kind), name)
                if inner is not None:
                    return bits + inner
            elif self._name(name_at) == name:
                return bits
        return None

    def enumerators(self, name: str) -> dict[int, str]:
        """Values and names of an enum; empty when the kernel has no such enum."""
        number = self._find(_ENUM, name)
        if not number:
            return {}
        at = self._at[number]
        pairs = range(at + 3, at + 3 + 2 * (self._words[at + 1] & 0xFFFF), 2)
        return {self._words[i + 1]: self._name(self._words[i]) for i in pairs}

    def per_cpu(self, name: str) -> int | None:
        """Byte offset of a per-CPU variable in a CPU's area; None when the types do not tell (pahole before 1.16)."""
        variable, section = self._find(_VAR, name), self._find(_DATASEC, ".data..percpu")
        if not variable or not section:
            return None
        at = self._at[section]
        for place in range(at + 3, at + 3 + 3 * (self._words[at + 1] & 0xFFFF), 3):
            if self._words[place] == variable:
                return self._words[place + 1]
        return None

    def _resolve(self, number: int) -> int:
        while number:
            at = self._at[number]
            if (self._words[at + 1] >> 24) & 0x1F not in _MODIFIERS:
                return number
            number = self._words[at + 2]
        return 0

    def _member(self, number: int, name: str) -> tuple[int, int] | None:
        if not number:
            return None
        at = self._at[number]
        info = self._words[at + 1]
        if (info >> 24) & 0x1F not in (_STRUCT, _UNION):
            return None
        bit_fields = bool(info >> 31)
        for i in range(info & 0xFFFF):
            name_at, kind, where = self._words[at + 3 + 3 * i : at + 6 + 3 * i]
            bits = where & 0xFFFFFF if bit_fields else where
            if name_at == 0:
                inner = self._member(self._resolve(kind), name)
                if inner is not None:
                    return bits // 8 + inner[0], inner[1]
            elif self._name(name_at) == name:
                if bits % 8 or (bit_fields and where >> 24):
                    return None
                return bits // 8, kind
        return None


@lru_cache(maxsize=1)
def kernel_types() -> TypeTable:
    """The running kernel's types. Raises PreflightError where it has none."""
    try:
        return TypeTable(KERNEL_BTF.read_bytes(), str(KERNEL_BTF))
    except OSError as error:
        raise PreflightError(
            f"no kernel type information: {KERNEL_BTF}: {error.strerror}",
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all current distribution kernels have it)",
        ) from error


def module_types(module: str) -> TypeTable:
    """The running kernel's types and those of a loaded module. Raises PreflightError where it has none of its own."""
    place = KERNEL_BTF.with_name(module)
    try:
        return TypeTable(place.read_bytes(), str(place), kernel_types())
    except OSError as error:
        raise PreflightError(f"no type information of module {module}: {place}: {error.strerror}") from error

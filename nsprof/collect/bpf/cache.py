"""Compiled BPF programs, kept so that clang runs once a kernel and not once a recording.

What is kept are finished instructions and the maps they ask for. References to maps are stored by name and place and
get the descriptors of freshly made maps at each load, so nothing of an earlier process is carried over. An entry is
found by a digest of everything that went into it (sources, defines, the kernel's build and types, BCC's version), and
verified by another before it is used; what is not whole is compiled anew. Root loads what lies here, so the directory
and each file must be this user's alone. The kernel's verifier sees the instructions all the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import struct
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsprof.collect.bpf.headers import private_directory
from nsprof.errors import NsprofError

__all__ = ["Compiled", "MapSpec", "digest_of", "read", "references", "relocated", "write"]

#: Raise it whenever the text below changes the meaning of an entry.
_FORMAT = 1
#: Entries beyond these are removed, the longest unused first.
_KEPT = 256

_LOAD_64 = 0x18  # BPF_LD | BPF_DW | BPF_IMM, include/uapi/linux/bpf_common.h
_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE = 1, 2  # src_reg, include/uapi/linux/bpf.h


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map as BPF_MAP_CREATE wants it; sizes in bytes."""

    name: str
    kind: int
    key_size: int
    value_size: int
    entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """One source file: its own maps, and per function the instructions and where (instruction number) they load
    the address of which map. Maps that are not among `maps` are lent by another program at load."""

    maps: tuple[MapSpec, ...]
    functions: Mapping[str, tuple[bytes, tuple[tuple[int, str], ...]]]


def references(code: bytes, names: Mapping[int, str]) -> tuple[tuple[int, str], ...]:
    """Where the instructions load a map's address, by the descriptors that stand there.

    Raises KeyError (the descriptor) when one is nobody's.
    """
    found = []
    at = 0
    while at < len(code):
        opcode, registers, _, value = struct.unpack_from("<BBhi", code, at)
        if opcode == _LOAD_64:
            if registers >> 4 in (_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE):
                found.append((at // 8, names[value]))
            at += 8  # the second half of a 64-bit constant is no instruction
        at += 8
    return tuple(found)


def relocated(code: bytes, places: Iterable[tuple[int, str]], fds: Mapping[str, int]) -> bytes:
    """The instructions with the descriptors of `fds` in their places."""
    made = bytearray(code)
    for number, name in places:
        struct.pack_into("<i", made, 8 * number + 4, fds[name])
    return bytes(made)


def digest_of(parts: Iterable[str | bytes]) -> str:
    """One digest over many parts, none of which can pass for the end of another."""
    digest = hashlib.sha256(b"%d\n" % _FORMAT)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:40]


def read(directory: Path, key: str) -> Compiled | None:
    """The entry, or None when there is none, it is another user's to write, or it is not whole."""
    path = directory / key
    try:
        private_directory(directory)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
                return None
            told, _, body = file.read().partition(b"\n")
        if hashlib.sha256(key.encode() + body).hexdigest().encode() != told:
            return None
        compiled = _from_json(json.loads(body))
        os.utime(path)  # in use: see _KEPT
    except (OSError, NsprofError, ValueError, KeyError, TypeError):
        return None
    return compiled


def write(directory: Path, key: str, compiled: Compiled) -> bool:
    """Keep an entry, readable by this user only. False where there is no place for it (the next one compiles)."""
    body = json.dumps(_to_json(compiled), sort_keys=True).encode()
    try:
        private_directory(directory)
        fd, temporary = tempfile.mkstemp(prefix=".", dir=directory)  # 0600
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(hashlib.sha256(key.encode() + body).hexdigest().encode() + b"\n" + body)
            Path(temporary).replace(directory / key)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _prune(directory)
    except (OSError, NsprofError):
        return False
    return True


def _prune(directory: Path) -> None:
    entries = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[_KEPT:]:
        path.unlink(missing_ok=True)


def _to_json(compiled: Compiled) -> dict[str, Any]:
    return {
        "maps": [[m.name, m.kind, m.key_size, m.value_size, m.entries, m.flags] for m in compiled.maps],
        "functions": {
            name: {"code": base64.b64encode(code).decode(), "maps": [list(place) for place in places]}
            for name, (code, places) in compiled.functions.items()
        },
    }


def _from_json(data: Mapping[str, Any]) -> Compiled:
    maps = tuple(MapSpec(str(name), *map(int, numbers)) for name, *numbers in data["maps"])
    functions = {
        str(name): (base64.b64decode(each["code"]), tuple((int(at), str(which)) for at, which in each["maps"]))
        for name, each in data["functions"].items()
    }
    return Compiled(maps, functions)

"""The first file system of a guest: busybox, the modules that it needs, a script; built without cpio or root.

modules = module_chain(kernel, ["virtio_pci", "9p"])
path = build(kernel, init=b"#!/bin/sh ...", modules=modules)
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsprof.errors import VmError
from nsprof.vm.cache import locked, put
from nsprof.vm.kernels import Kernel, module_index

__all__ = ["Entry", "build", "builtin_modules", "busybox", "cpio", "module_chain"]


@dataclass(frozen=True)
class Entry:
    """A file (mode 0o100755), directory (0o040755), symbolic link (0o120777; data is its target) or device."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def cpio(entries: Iterable[Entry]) -> bytes:
    """An archive in the kernel's own format ("newc", Documentation/driver-api/early-userspace/buffer-format.rst)."""
    parts = []
    for number, each in enumerate([*entries, Entry("TRAILER!!!", 0)], start=1):
        name = each.name.encode() + b"\0"
        major, minor = each.device
        # inode, mode, uid, gid, links, mtime, size, device of the file system, device number, name size, checksum
        fields = (number, each.mode, 0, 0, 1, 0, len(each.data), 0, 0, major, minor, len(name), 0)
        head = b"070701" + b"".join(b"%08x" % value for value in fields) + name
        parts += [head, b"\0" * (-len(head) % 4), each.data, b"\0" * (-len(each.data) % 4)]
    return b"".join(parts)


def busybox() -> Path:
    """The static busybox of this machine. Raises VmError when there is none, or one that needs libraries."""
    found = shutil.which("busybox", path=f"{os.environ.get('PATH', '')}:/bin:/usr/bin:/usr/sbin")
    if found is None:
        raise VmError("no busybox on this machine: the guest's first steps need it", "apt install busybox-static")
    head = Path(found).read_bytes()
    if b"/ld-linux" in head[:4096] or b"/ld-musl" in head[:4096]:
        raise VmError(f"{found} is not static, so it cannot run in an initramfs", "apt install busybox-static")
    return Path(found)


def builtin_modules(kernel: Kernel) -> frozenset[str]:
    """Names of what could be a module but is built in; empty when the tree does not say."""
    listing = kernel.modules / "modules.builtin" if kernel.modules else None
    if listing is None or not listing.exists():
        return frozenset()
    return frozenset(_name(line) for line in listing.read_text().split())


def module_chain(kernel: Kernel, names: Sequence[str], *, optional: Sequence[str] = ()) -> list[Path]:
    """The module files to insert, in order, so that `names` and all that they depend on are loaded.

    What is built in needs no file. Raises VmError naming the module that the kernel has in neither form; those
    in `optional` may be missing. A kernel without a modules directory has an empty chain: all is built in.
    """
    index = module_index(kernel)
    if kernel.modules is None or index is None:
        return []
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (index / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[_name(path)] = (path, rest.split())
    builtin = builtin_modules(kernel)
    chain: dict[str, None] = {}
    for name in (*names, *optional):
        known = needs.get(_name(name))
        if known is None:
            if _name(name) not in builtin and name not in optional:
                raise VmError(
                    f"kernel {kernel.spec} ({kernel.release}) has no module {name}, built in or loadable",
                    "take a generic kernel (debian:6.1, debian:6.12): cloud kernels leave out what guests here need",
                )
            continue
        for path in (*reversed(known[1]), known[0]):  # modules.dep lists the deepest dependency last
            chain.setdefault(path)
    return [kernel.modules / path for path in chain]


def build(
    kernel: Kernel,
    *,
    init: bytes,
    modules: Sequence[Path] = (),
    applets: Sequence[str] = (),
    directories: Sequence[str] = (),
    files: Mapping[str, bytes | Path] | None = None,
) -> Path:
    """The archive with /init, /modules/NN-name.ko in order, busybox with links for `applets`, and `files`.

    Uncompressed (a guest without hardware help spends longer on unpacking than the host on reading), kept in the
    cache under the hash of its contents. The modules are stored uncompressed, since insmod of busybox needs it.
    """
    entries = [Entry("init", stat.S_IFREG | 0o755, init), *(_folders(directories, files or {}))]
    entries += [Entry("bin/busybox", stat.S_IFREG | 0o755, busybox().read_bytes())]
    entries += [Entry(f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox") for applet in applets]
    entries += [Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))]
    for number, path in enumerate(modules):
        name = f"modules/{number:02d}-{path.name.split('.ko')[0]}.ko"
        entries.append(Entry(name, stat.S_IFREG | 0o644, _uncompressed(path)))
    for name, content in (files or {}).items():
        data = content.read_bytes() if isinstance(content, Path) else content
        mode = stat.S_IMODE(content.stat().st_mode) if isinstance(content, Path) else 0o755
        entries.append(Entry(name.lstrip("/"), stat.S_IFREG | mode, data))
    archive = cpio(entries)
    digest = hashlib.sha256(archive).hexdigest()[:16]
    with locked("initramfs") as base:
        target = base / "initramfs" / f"{kernel.release}-{digest}.cpio"
        if not target.exists():
            put(target, archive)
    return target


def _folders(directories: Sequence[str], files: Mapping[str, object]) -> list[Entry]:
    every = {"bin", "dev", "modules", *(each.strip("/") for each in directories)}
    for name in files:
        every.add(str(Path(name.lstrip("/")).parent))
    parents = {str(parent) for each in every for parent in Path(each).parents}
    return [Entry(each, stat.S_IFDIR | 0o755) for each in sorted(every | parents) if each != "."]


def _name(path: str) -> str:
    return re.sub(r"\.ko(\.\w+)?\Z", "", path.rsplit("/", 1)[-1]).replace("-", "_")


def _uncompressed(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if path.suffix == ".xz":
            return lzma.decompress(data)
        if path.suffix == ".gz":
            return gzip.decompress(data)
        if path.suffix == ".zst":
            return subprocess.run(["zstd", "-dcq", str(path)], capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise VmError(f"module {path}: cannot be read: {error}", "zstd is needed for .ko.zst") from error
    except (OSError, lzma.LZMAError, EOFError, subprocess.CalledProcessError) as error:
        raise VmError(f"module {path}: cannot be read: {error}") from error
    return data

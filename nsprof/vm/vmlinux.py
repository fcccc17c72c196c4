"""The uncompressed kernel inside a bzImage, which QEMU can start directly.

A bzImage unpacks itself in the guest, which costs TCG 3 to 7 s (xz, 65 MB). The same kernel unpacked here, once, and
entered at its PVH entry point needs none of that. (PVH: Documentation/arch/x86/boot and xen/interface/elfnote.h.)
"""

from __future__ import annotations

import hashlib
import lzma
import struct
import subprocess
import zlib
from pathlib import Path

from nsprof.vm.cache import locked, put

__all__ = ["direct_image", "has_pvh_entry", "payload"]

_XEN_ELFNOTE_PHYS32_ENTRY = 18
_PT_NOTE = 4


def direct_image(image: Path) -> Path:
    """What to give QEMU for a bzImage: the unpacked ELF kernel if it can be had and started, else the bzImage.

    Kept in the cache under the image's hash.
    """
    data = image.read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    with locked("vmlinux") as base:
        target = base / "vmlinux" / f"{digest}.elf"
        if target.exists():
            return target if target.stat().st_size else image  # empty: found once not to work
        kernel = payload(data)
        usable = kernel is not None and has_pvh_entry(kernel)
        put(target, kernel if usable and kernel is not None else b"")
    return target if usable else image


def payload(image: bytes) -> bytes | None:
    """The kernel that a bzImage carries, unpacked (boot protocol 2.08: payload_offset, payload_length).

    None when it has none, or the compression (lzo, bzip2, lzma; zstd or lz4 without their tool) is not known here.
    """
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        return None
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    packed = image[start : start + length]
    try:
        if packed.startswith(b"\xfd7zXZ\0"):
            return lzma.LZMADecompressor().decompress(packed)
        if packed.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(packed)
        # The last 4 bytes are the unpacked size, which the tools would take for another frame.
        if packed.startswith(b"\x28\xb5\x2f\xfd"):
            return subprocess.run(["zstd", "-dcq"], input=packed[:-4], capture_output=True, check=True).stdout
        if packed.startswith(b"\x02\x21\x4c\x18"):
            return subprocess.run(["lz4", "-dcq"], input=packed[:-4], capture_output=True, check=True).stdout
    except (OSError, lzma.LZMAError, zlib.error, subprocess.CalledProcessError):
        return None
    return None


def has_pvh_entry(kernel: bytes) -> bool:
    """Whether a 64-bit ELF kernel has the note by which a hypervisor can enter it (CONFIG_PVH)."""
    if kernel[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", kernel, 0x20)
    size, count = struct.unpack_from("<HH", kernel, 0x36)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", kernel, table + number * size)
        if kind == _PT_NOTE and _PHYS32 in set(_notes(kernel[offset : offset + length])):
            return True
    return False


_PHYS32 = (b"Xen\0", _XEN_ELFNOTE_PHYS32_ENTRY)


def _notes(segment: bytes) -> list[tuple[bytes, int]]:
    found = []
    at = 0
    while at + 12 <= len(segment):
        name_size, data_size, kind = struct.unpack_from("<III", segment, at)
        found.append((segment[at + 12 : at + 12 + name_size], kind))
        at += 12 + (name_size + 3) // 4 * 4 + (data_size + 3) // 4 * 4
    return found

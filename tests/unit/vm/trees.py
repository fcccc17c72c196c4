"""Small trees that look like kernels: a bzImage header that tells its release, modules with a modules.dep."""

from __future__ import annotations

import struct
from pathlib import Path


def bzimage(release: str, payload: bytes = b"") -> bytes:
    """The parts of the x86 boot header that are read: sectors, HdrS, kernel_version, payload."""
    head = bytearray(0x1000)
    head[0x1F1] = 7  # set-up sectors, so the protected-mode part starts at 8 * 512
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x20E, 0x400)
    text = release.encode() + b" (builder@host) #1\0"
    head[0x600 : 0x600 + len(text)] = text
    struct.pack_into("<II", head, 0x248, 0, len(payload))
    return bytes(head) + payload


def kernel_tree(top: Path, release: str = "6.1.99-test", *, depmod: bool = True) -> Path:
    """A tree as `dpkg -x` leaves it, with the modules that a guest needs."""
    modules = top / "lib/modules" / release
    files = {
        "kernel/fs/netfs/netfs.ko": b"netfs",
        "kernel/net/9p/9pnet.ko": b"9pnet",
        "kernel/net/9p/9pnet_virtio.ko": b"9pnet_virtio",
        "kernel/fs/9p/9p.ko": b"9p",
        "kernel/fs/overlayfs/overlay.ko": b"overlay",
    }
    for name, data in files.items():
        path = modules / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (modules / "modules.builtin").write_text("kernel/drivers/virtio/virtio_pci.ko\n")
    if depmod:
        (modules / "modules.dep").write_text(
            "kernel/fs/netfs/netfs.ko:\nkernel/net/9p/9pnet.ko:\nkernel/fs/overlayfs/overlay.ko:\n"
            "kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko\n"
            "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko\n"
        )
    (top / "boot").mkdir(parents=True, exist_ok=True)
    (top / "boot" / f"vmlinuz-{release}").write_bytes(bzimage(release))
    (top / "boot" / f"config-{release}").write_text("CONFIG_PVH=y\nCONFIG_NETKIT=m\n# CONFIG_FOO is not set\n")
    return top

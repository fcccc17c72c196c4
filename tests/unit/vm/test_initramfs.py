"""The guest's first file system: its archive is the kernel's format, its modules in an order that loads."""

from __future__ import annotations

import lzma
import stat
from pathlib import Path

import pytest

from nsprof.errors import VmError
from nsprof.vm.initramfs import Entry, build, cpio, module_chain
from nsprof.vm.kernels import resolve
from tests.support import need
from tests.unit.vm.trees import kernel_tree


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))


def read_cpio(data: bytes) -> dict[str, tuple[int, bytes]]:
    """name -> (mode, content), written from the format's description and not from the writer."""
    found, at = {}, 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        start = (at + 110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, data[start : start + size])
        at = (start + size + 3) // 4 * 4


def test_archive_holds_what_went_in() -> None:
    entries = [
        Entry("bin", stat.S_IFDIR | 0o755),
        Entry("bin/sh", stat.S_IFLNK | 0o777, b"busybox"),
        Entry("odd", stat.S_IFREG | 0o644, b"12345"),
    ]
    assert read_cpio(cpio(entries)) == {each.name: (each.mode, each.data) for each in entries}


def test_modules_come_after_what_they_need(tmp_path: Path) -> None:
    kernel = resolve(str(kernel_tree(tmp_path / "k")))
    names = [path.name for path in module_chain(kernel, ["virtio_pci", "9p", "9pnet_virtio", "overlay"])]
    assert sorted(names) == ["9p.ko", "9pnet.ko", "9pnet_virtio.ko", "netfs.ko", "overlay.ko"]
    assert names.index("9pnet.ko") < names.index("9p.ko")
    assert names.index("netfs.ko") < names.index("9p.ko")


def test_a_kernel_without_9p_is_refused_before_it_boots(tmp_path: Path) -> None:
    tree = kernel_tree(tmp_path / "k")
    index = tree / "lib/modules/6.1.99-test/modules.dep"
    index.write_text("".join(line for line in index.read_text().splitlines(True) if "9p/9p.ko" not in line))
    with pytest.raises(VmError, match="has no module 9p") as caught:
        module_chain(resolve(str(tree)), ["virtio_pci", "9p"])
    assert "debian:6.1" in caught.value.hint


def test_initramfs_unpacks_modules_and_is_built_once(tmp_path: Path) -> None:
    need("vm")
    tree = kernel_tree(tmp_path / "k")
    packed = tree / "lib/modules/6.1.99-test/kernel/fs/overlayfs/overlay.ko"
    packed.with_suffix(".ko.xz").write_bytes(lzma.compress(b"overlay itself"))
    packed.unlink()
    index = tree / "lib/modules/6.1.99-test/modules.dep"
    index.write_text(index.read_text().replace("overlay.ko", "overlay.ko.xz"))
    kernel = resolve(str(tree))
    words = {"init": b"#!/bin/sh\n", "applets": ["sh", "mount"], "directories": ["host"]}
    path = build(kernel, modules=module_chain(kernel, ["9p", "overlay"]), **words)  # type: ignore[arg-type]
    found = read_cpio(path.read_bytes())
    assert found["modules/03-overlay.ko"][1] == b"overlay itself"
    assert found["bin/mount"] == (stat.S_IFLNK | 0o777, b"busybox")
    assert found["init"] == (stat.S_IFREG | 0o755, b"#!/bin/sh\n")
    assert stat.S_ISCHR(found["dev/console"][0])
    again = build(kernel, modules=module_chain(kernel, ["9p", "overlay"]), **words)  # type: ignore[arg-type]
    assert again == path
    assert path.stat().st_mode & 0o077 == 0


def test_damaged_module_is_named(tmp_path: Path) -> None:
    need("vm")
    tree = kernel_tree(tmp_path / "k")
    bad = tree / "lib/modules/6.1.99-test/bad.ko.xz"
    bad.write_bytes(b"\xfd7zXZ\0broken")
    with pytest.raises(VmError, match=r"bad\.ko\.xz: cannot be read"):
        build(resolve(str(tree)), init=b"", modules=[bad])

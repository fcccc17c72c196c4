"""The kernel inside a bzImage: found, unpacked, and started directly only where it can be."""

from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import pytest

from nsprof.vm.cache import put
from nsprof.vm.vmlinux import direct_image, has_pvh_entry, payload
from tests.unit.vm.trees import bzimage


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))


def elf(note_type: int) -> bytes:
    """A 64-bit ELF with one PT_NOTE segment holding one note of Xen's."""
    note = struct.pack("<III", 4, 8, note_type) + b"Xen\0" + bytes(8)
    program = struct.pack("<IIQQQQQQ", 4, 4, 64 + 56, 0, 0, len(note), len(note), 4)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 0x20, 64)
    struct.pack_into("<HH", head, 0x36, 56, 1)
    return bytes(head) + program + note


def test_payload_is_unpacked_whatever_follows_it() -> None:
    kernel = elf(18)
    size = struct.pack("<I", len(kernel))
    for packed in (lzma.compress(kernel), gzip.compress(kernel)):
        assert payload(bzimage("6.1.0", packed + size)) == kernel


def test_unknown_or_broken_payload_is_none() -> None:
    for packed in (b"", b"BZh9 whatever", lzma.compress(elf(18))[:20] + b"broken", b"\x1f\x8bbroken"):
        assert payload(bzimage("6.1.0", packed)) is None
    assert payload(b"no image") is None


def test_pvh_entry_is_xens_note_18() -> None:
    assert has_pvh_entry(elf(18))
    assert not has_pvh_entry(elf(17))
    assert not has_pvh_entry(b"\x7fELF\x01" + bytes(100))


def test_the_image_itself_is_used_where_the_kernel_has_no_pvh_entry(tmp_path: Path) -> None:
    image = tmp_path / "bzImage"
    image.write_bytes(bzimage("6.1.0", gzip.compress(elf(18))))
    direct = direct_image(image)
    assert direct != image
    assert direct.read_bytes() == elf(18)
    image.write_bytes(bzimage("6.1.0", gzip.compress(elf(17))))
    assert direct_image(image) == image
    assert direct_image(image) == image  # also from the cache


def test_a_file_of_the_cache_is_whole_or_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "new" / "image"
    put(target, b"first")
    put(target, b"second")
    assert target.read_bytes() == b"second" and target.stat().st_mode & 0o777 == 0o600
    (tmp_path / "new" / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        put(tmp_path / "new" / "taken", b"third")
    assert sorted(path.name for path in target.parent.iterdir()) == ["image", "taken"]

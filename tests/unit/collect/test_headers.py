"""The header cache: what root compiles from must be root's alone. And offsets come from BTF itself."""

from __future__ import annotations

import os
import struct
import sys
import types
from pathlib import Path

import pytest

from nsprof.collect.bpf import bcc_door, headers, loader
from nsprof.collect.bpf.btf import TypeTable
from nsprof.errors import PreflightError
from nsprof.files import cache_root

DUMP = "#!/bin/sh\necho 'struct task_struct { int pid; };'\n"


@pytest.fixture
def btf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BTF file, and a bpftool that dumps it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "bpftool").write_text(DUMP)
    (tools / "bpftool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    blob = tmp_path / "vmlinux"
    blob.write_bytes(b"types of kernel 1")
    return blob


def test_a_tree_is_made_once_and_is_private(tmp_path: Path, btf: Path) -> None:
    cache = tmp_path / "cache"
    tree = headers.header_tree(btf, cache)
    assert (tree / "include/linux/kconfig.h").is_file() and (tree / "include/vmlinux.h").is_file()
    assert cache.stat().st_mode & 0o777 == 0o700 and tree.stat().st_mode & 0o777 == 0o700
    before = (tree / "include/vmlinux.h").stat().st_mtime_ns
    assert headers.header_tree(btf, cache) == tree
    assert (tree / "include/vmlinux.h").stat().st_mtime_ns == before
    assert [p.name for p in cache.iterdir()] == [tree.name]


def test_another_kernel_has_another_tree(tmp_path: Path, btf: Path) -> None:
    first = headers.header_tree(btf, tmp_path / "cache")
    btf.write_bytes(b"types of kernel 2")
    assert headers.header_tree(btf, tmp_path / "cache") != first


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_cache_that_others_can_write_is_refused(tmp_path: Path, btf: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(PreflightError, match="others could change"):
        headers.header_tree(btf, cache)


def test_a_planted_tree_is_refused(tmp_path: Path, btf: Path) -> None:
    cache = tmp_path / "cache"
    tree = headers.header_tree(btf, cache)
    tree.chmod(0o777)
    with pytest.raises(PreflightError, match="others could change"):
        headers.header_tree(btf, cache)


def test_a_symbolic_link_in_place_of_the_tree_is_refused(tmp_path: Path, btf: Path) -> None:
    cache = tmp_path / "cache"
    tree = headers.header_tree(btf, cache)
    tree.rename(tmp_path / "elsewhere")
    tree.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PreflightError, match="not a directory"):
        headers.header_tree(btf, cache)


def test_a_failing_dump_leaves_nothing_behind(tmp_path: Path, btf: Path) -> None:
    (tmp_path / "bin/bpftool").write_text("#!/bin/sh\necho boom >&2\nexit 3\n")
    with pytest.raises(PreflightError, match="boom"):
        headers.header_tree(btf, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_btf_and_no_bpftool_are_named(tmp_path: Path, btf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PreflightError, match="no kernel type information"):
        headers.header_tree(tmp_path / "none", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(PreflightError) as caught:
        headers.header_tree(btf, tmp_path / "cache")
    assert "apt install bpftool" in caught.value.hint


def test_helper_numbers_that_a_kernel_lacks_are_defined(tmp_path: Path, btf: Path) -> None:
    text = (headers.header_tree(btf, tmp_path / "cache") / "include/linux/kconfig.h").read_text()
    assert "#define BPF_FUNC_cgrp_storage_get 210" in text


@pytest.mark.parametrize(
    ("release", "code"),
    [("6.1.0-18-amd64", 0x060100), ("6.18.44-fc", 0x06122C), ("5.10.300", 0x050AFF), ("7.0", 0x070000)],
)
def test_version_codes(release: str, code: int) -> None:
    assert headers._version_code(release) == code


# ---- BTF ----


def blob() -> bytes:
    """struct outer { int a; union { struct inner in; }; unsigned bits:3; } and typedef btf_trace_x."""
    names = b"\0int\0outer\0a\0inner\0b\0in\0bits\0btf_trace_x\0"

    def at(name: str) -> int:
        return names.index(b"\0" + name.encode() + b"\0") + 1

    def kind(number: int, members: int, flag: int = 0) -> int:
        return flag << 31 | number << 24 | members

    words = [
        *(at("int"), kind(1, 0), 4, 32),  # 1
        *(at("inner"), kind(4, 2), 16, at("a"), 1, 0, at("b"), 1, 64),  # 2
        *(0, kind(5, 1), 16, at("in"), 2, 0),  # 3: anonymous union
        *(at("outer"), kind(4, 3, 1), 32, at("a"), 1, 0, 0, 3, 64, at("bits"), 1, 3 << 24 | 192),  # 4
        *(at("btf_trace_x"), kind(8, 0), 6),  # 5
        *(0, kind(2, 0), 7),  # 6: pointer
        *(0, kind(13, 2), 0, 0, 0, 0, 4),  # 7: function of two parameters
    ]
    types_ = struct.pack(f"<{len(words)}I", *words)
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types_), len(types_), len(names)) + types_ + names


def test_offsets_look_through_anonymous_members_and_refuse_bit_fields() -> None:
    table = TypeTable(blob())
    assert table.member("outer", "a") == 0
    assert table.member("outer", "in.b") == 16
    assert table.member("outer", "bits") is None
    assert table.member("outer", "none") is None
    assert table.member("none", "a") is None
    assert table.tracepoint("x") == 5 and table.tracepoint("y") == 0
    assert len(table.parameters("x")) == 2


@pytest.mark.parametrize("cut", [0, 5, 23, 60, 150])
def test_truncated_btf_is_an_error_and_not_a_wrong_offset(cut: int) -> None:
    with pytest.raises(PreflightError):
        TypeTable(blob()[:cut])


def test_offsets_become_defines() -> None:
    flags = loader.offset_flags(TypeTable(blob()))
    assert flags == []  # none of the kernel's structs is in this table: absent members have no define


# ---- the door to BCC ----


@pytest.fixture
def no_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n == "bcc" or n.startswith("bcc.")]:
        monkeypatch.delitem(sys.modules, name)


def test_bcc_is_found_beside_the_distribution_s_python(tmp_path: Path, no_bcc: None) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc/__init__.py").write_text("from .inner import BPF\n")
    (tmp_path / "bcc/inner.py").write_text("class BPF: pass\n")
    before = list(sys.path)
    module = bcc_door.load((str(tmp_path),))
    assert module.BPF.__module__ == "bcc.inner" and sys.path == before
    for name in ("bcc", "bcc.inner"):
        del sys.modules[name]


def test_a_missing_bcc_names_the_package(no_bcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(PreflightError) as caught:
        bcc_door.load(())
    assert "python3-bpfcc" in caught.value.hint


def test_pypi_s_unrelated_bcc_is_told(tmp_path: Path, no_bcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc/__init__.py").write_text("VERSION = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PreflightError, match="unrelated"):
        bcc_door.load(())
    assert "bcc" not in sys.modules


def test_a_broken_bcc_is_told(tmp_path: Path, no_bcc: None) -> None:
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc/__init__.py").write_text("raise OSError('libbcc.so.0: cannot open shared object file')\n")
    with pytest.raises(PreflightError, match=r"libbcc\.so\.0"):
        bcc_door.load((str(tmp_path),))
    assert "bcc" not in sys.modules


def test_the_door_does_not_hide_a_module_of_that_name(no_bcc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    present = types.ModuleType("bcc")
    present.BPF = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bcc", present)
    assert bcc_door.load(()) is present


def test_root_s_cache_is_not_below_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NSPROF_CACHE", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_root() == Path("/var/cache/nsprof")

"""Kept BPF programs: maps are found and replaced exactly, and nothing is used that is not whole and ours alone."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from nsprof.collect.bpf import cache as loader_cache
from nsprof.collect.bpf.cache import Compiled, MapSpec, digest_of, read, references, relocated, write


def insn(code: int, registers: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, registers, 0, value)


def load_map(fd: int) -> bytes:
    return insn(0x18, 1 | 1 << 4, fd) + insn(0)


#: A constant whose second half looks like a load of map 7, two maps, and a call.
CONSTANT = insn(0x18, 2, 7) + struct.pack("<BBhi", 0, 0, 0, 7)
CODE = load_map(7) + CONSTANT + insn(0x85, 0, 1) + load_map(9) + load_map(7) + insn(0x95)
COMPILED = Compiled(
    (MapSpec("samples", 1, 8, 16, 100, 0), MapSpec("tallies", 6, 4, 8, 8, 0)),
    {"on_event": (CODE, ((0, "samples"), (5, "tallies"), (7, "samples"))), "empty": (insn(0x95), ())},
)


def test_references_are_the_map_loads_and_nothing_else() -> None:
    assert references(CODE, {7: "samples", 9: "tallies"}) == ((0, "samples"), (5, "tallies"), (7, "samples"))


def test_a_map_that_is_nobody_s_is_an_error() -> None:
    with pytest.raises(KeyError, match="9"):
        references(CODE, {7: "samples"})


def test_relocation_changes_the_map_loads_only() -> None:
    made = relocated(CODE, ((0, "samples"), (5, "tallies"), (7, "samples")), {"samples": 70, "tallies": 90})
    assert made == load_map(70) + CONSTANT + insn(0x85, 0, 1) + load_map(90) + load_map(70) + insn(0x95)


def test_digests_differ_where_the_parts_join_alike() -> None:
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])
    assert digest_of(["ab", "c"]) == digest_of([b"ab", b"c"])


def test_an_entry_comes_back_as_it_was_and_is_private(tmp_path: Path) -> None:
    place = tmp_path / "programs"
    assert read(place, "key") is None
    assert write(place, "key", COMPILED)
    assert read(place, "key") == COMPILED
    assert read(place, "other") is None
    assert (place / "key").stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in place.iterdir()] == ["key"]


@pytest.mark.parametrize("at", [0, 70, 200, -1])
def test_an_entry_with_one_changed_byte_is_not_used(tmp_path: Path, at: int) -> None:
    write(tmp_path / "p", "key", COMPILED)
    data = bytearray((tmp_path / "p/key").read_bytes())
    data[at] ^= 1
    (tmp_path / "p/key").write_bytes(data)
    assert read(tmp_path / "p", "key") is None


def test_an_entry_under_another_key_is_not_used(tmp_path: Path) -> None:
    write(tmp_path / "p", "key", COMPILED)
    (tmp_path / "p/key").rename(tmp_path / "p/yek")
    assert read(tmp_path / "p", "yek") is None


def test_what_others_can_write_is_not_used(tmp_path: Path) -> None:
    place = tmp_path / "p"
    write(place, "key", COMPILED)
    (place / "key").chmod(0o660)
    assert read(place, "key") is None
    (place / "key").chmod(0o600)
    (place / "link").symlink_to(place / "key")
    assert read(place, "link") is None
    place.chmod(0o770)
    assert read(place, "key") is None
    assert not write(place, "new", COMPILED)
    assert not (place / "new").exists()


def test_the_longest_unused_entries_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_cache, "_KEPT", 8)
    place = tmp_path / "p"
    for number in range(14):
        write(place, f"k{number}", COMPILED)
        os.utime(place / f"k{number}", (number, number))
        if number == 5:
            assert read(place, "k0") == COMPILED  # in use again
    names = {path.name for path in place.iterdir()}
    assert len(names) == 8
    assert "k0" in names
    assert "k1" not in names

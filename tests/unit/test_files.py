"""A reader sees the old file or the whole new one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nsprof.errors import NsprofError
from nsprof.files import private_cache, replacing


def test_the_new_file_is_private_and_whole(tmp_path: Path) -> None:
    target = tmp_path / "a b'.nsprof"
    with replacing(target) as out:
        out.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("blow", [KeyboardInterrupt, OSError(28, "No space left on device"), ValueError])
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path: Path, blow: BaseException) -> None:
    target = tmp_path / "p"
    target.write_bytes(b"old")
    with pytest.raises((KeyboardInterrupt, NsprofError, ValueError)), replacing(target, keep_old=True) as out:
        out.write(b"half")
        raise blow
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_one_clear_line() -> None:
    with pytest.raises(NsprofError, match=r"/dev/full|No space"), replacing("/dev/full") as out:
        out.write(b"x" * 100_000)
        out.flush()


def test_the_earlier_file_can_be_kept_beside(tmp_path: Path) -> None:
    target = tmp_path / "p"
    for text in (b"1", b"2", b"3"):
        with replacing(target, keep_old=True) as out:
            out.write(text)
    assert target.read_bytes() == b"3"
    assert (tmp_path / "p.old").read_bytes() == b"2"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p", "p.old"]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing(tmp_path / "link") as out:
        out.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_directory_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NsprofError, match="is a directory"), replacing(tmp_path):
        pass


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NsprofError, match=r"no/such.*No such file"), replacing(tmp_path / "no/such") as _:
        pass


def test_a_cache_that_others_may_write_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o777)
    root.chmod(0o777)
    monkeypatch.setenv("NSPROF_CACHE", str(root))
    place = private_cache("headers", "x")
    assert place.is_dir()
    assert not root.stat().st_mode & 0o022


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a directory of another user")
def test_another_users_cache_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    os.chown(root, 65534, 65534)
    monkeypatch.setenv("NSPROF_CACHE", str(root))
    with pytest.raises(NsprofError, match="cannot be trusted"):
        private_cache("x")

"""What a killed nsprof left in the temporary directory is told from what is in use, and from what is not ours."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsprof.files import Scratch, scratch_left_behind

_OWNER = """
import sys
from nsprof.files import Scratch
with Scratch("memory") as place:
    (place / "below").mkdir()
    (place / "below" / "file").write_text("x")
    (place / "link").symlink_to(sys.argv[1])
    print(place, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory, and a cache, that nobody else uses."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place


@pytest.fixture
def owner(tmp_path: Path, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has made a directory, and the directory."""
    (tmp_path / "precious").write_text("kept")
    argv = [sys.executable, "-c", _OWNER, str(tmp_path / "precious")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_the_directory_of_a_living_owner_is_left_and_that_of_a_killed_one_goes(
    tmp_path: Path, temporary: Path, owner: tuple[subprocess.Popen[str], Path]
) -> None:
    process, place = owner
    assert place.parent == temporary
    assert scratch_left_behind() == scratch_left_behind(remove=True) == []
    assert (place / "below" / "file").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert scratch_left_behind() == [place]
    assert place.exists()  # only named
    assert scratch_left_behind(remove=True) == [place]
    assert list(temporary.iterdir()) == []
    assert (tmp_path / "precious").read_text() == "kept"  # a link in it was not followed
    assert scratch_left_behind(remove=True) == []


def test_the_directory_is_private_and_goes_with_the_block(temporary: Path) -> None:
    with Scratch("bench") as place:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        (place / "file").touch()
    assert list(temporary.iterdir()) == []


def test_one_that_lies_in_the_cache_is_found_too(tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "cache").mkdir()
    scratch = Scratch("headers", where=tmp_path / "cache")
    os.close(scratch.descriptor)  # what the end of a process does
    assert scratch_left_behind(remove=True) == [scratch.path]
    scratch.descriptor = -1


def _dead(temporary: Path) -> Path:
    """The name of a directory whose owner has ended."""
    scratch = Scratch("vm")
    os.close(scratch.descriptor)
    scratch.descriptor = -1
    assert scratch_left_behind() == [scratch.path]
    return scratch.path


def test_a_link_of_that_name_is_left(tmp_path: Path, temporary: Path) -> None:
    name = _dead(temporary)
    name.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "file").touch()
    name.symlink_to(tmp_path / "elsewhere")
    assert scratch_left_behind(remove=True) == []
    assert name.is_symlink()
    assert (tmp_path / "elsewhere" / "file").exists()


def test_what_others_could_write_is_left(temporary: Path) -> None:
    name = _dead(temporary)
    name.chmod(0o777)
    assert scratch_left_behind(remove=True) == []
    assert name.is_dir()


def test_another_users_is_left(temporary: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory to another user needs root")
    name = _dead(temporary)
    os.chown(name, 12345, 12345)
    assert scratch_left_behind(remove=True) == []
    assert name.is_dir()


def test_that_of_another_boot_is_left_since_a_guest_does_not_see_the_hosts_locks(temporary: Path) -> None:
    name = _dead(temporary)
    boot = name.name.split("-")[2]
    other = name.with_name(name.name.replace(boot, "0" * 8 if boot != "0" * 8 else "1" * 8))
    name.rename(other)
    assert scratch_left_behind(remove=True) == []
    assert other.is_dir()


def test_a_file_and_a_directory_that_only_look_alike_are_left(temporary: Path) -> None:
    name = _dead(temporary)
    name.rmdir()
    name.write_text("a file")
    (temporary / "nsprof-mine").mkdir()
    assert scratch_left_behind(remove=True) == []
    assert len(list(temporary.iterdir())) == 2


def test_one_taken_away_before_it_was_locked_is_made_anew(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tempfile.mkdtemp
    names = []

    def taken_once(**words: object) -> str:
        names.append(made(**words))  # type: ignore[call-overload]
        if len(names) == 1:
            assert scratch_left_behind(remove=True) == [Path(names[0])]
        return str(names[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", taken_once)
    with Scratch("memory") as place:
        assert [str(place)] == names[1:]

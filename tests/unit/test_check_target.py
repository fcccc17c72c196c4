"""What a measurement is written to is looked at before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsprof.errors import NsprofError, UsageError
from nsprof.files import check_target
from nsprof.store import load, save
from tests.support import REPO


def refused(path: str | Path) -> str:
    with pytest.raises(NsprofError) as caught:
        check_target(path)
    return caught.value.message


def test_somebody_s_data_are_not_replaced_not_even_through_a_link(tmp_path: Path) -> None:
    data, link = tmp_path / "data", tmp_path / "l.nsprof"
    data.write_text("precious")
    link.symlink_to(data)
    for path in (data, link):
        assert refused(path) == f"{path}: is a file that is no profile, and not replaced"
    assert data.read_text() == "precious"


def test_what_may_be_written_passes(tmp_path: Path) -> None:
    check_target(tmp_path / "new.nsprof")
    (tmp_path / "empty").touch()
    check_target(tmp_path / "empty")
    (tmp_path / "old.nsprof").write_bytes(b"PK\3\4 and so on")
    check_target(tmp_path / "old.nsprof")
    check_target("/dev/null")


def test_what_cannot_be_written_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "a loop of symbolic links" in refused(tmp_path / "loop")
    assert "is a directory" in refused(tmp_path)
    assert "no directory" in refused(tmp_path / "no" / "p.nsprof")
    with pytest.raises(UsageError):
        check_target("")


def run(*words: str, stderr: int) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "nsprof", *words]
    return subprocess.run(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False)


def test_notes_that_cannot_be_written_change_neither_result_nor_status(tmp_path: Path) -> None:
    folded = tmp_path / "a.folded"
    folded.write_text("main;f 3\nmain;g 4\n")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run("import", str(folded), "-o", str(tmp_path / "a.nsprof"), stderr=full)
        assert run("report", str(tmp_path / "none.nsprof"), stderr=full).returncode == 1
    finally:
        os.close(full)
    assert done.returncode == 0
    assert int(load(tmp_path / "a.nsprof").samples.count.sum()) == 7


def test_a_device_takes_a_profile(tmp_path: Path) -> None:
    folded = tmp_path / "a.folded"
    folded.write_text("main;f 3\n")
    assert run("import", str(folded), "-o", "/dev/null", stderr=subprocess.DEVNULL).returncode == 0
    saved = tmp_path / "a.nsprof"
    assert run("import", str(folded), "-o", str(saved), stderr=subprocess.DEVNULL).returncode == 0
    save(load(saved), "/dev/null")

"""A job's files, and what is brought back from a guest that may have written anything."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from nsprof.errors import UsageError, VmError
from nsprof.vm import job, machine
from nsprof.vm.job import _collect, run_job
from nsprof.vm.kernels import resolve
from tests.unit.vm.trees import kernel_tree


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))


def test_only_plain_files_come_back(tmp_path: Path) -> None:
    source, target = tmp_path / "out", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_text("words")
    (source / "link").symlink_to("/etc/shadow")
    (source / "dirlink").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    (source / "setuid").write_text("x")
    (source / "setuid").chmod(0o4755)
    files, skipped = _collect(source, target)
    assert files == (Path("setuid"), Path("sub/file"))
    assert skipped == ("dirlink", "link", "pipe")
    assert (target / "sub/file").read_text() == "words"
    assert stat.S_IMODE((target / "setuid").stat().st_mode) == 0o600
    assert not (target / "link").exists()


def test_a_link_in_the_output_directory_is_replaced_not_followed(tmp_path: Path) -> None:
    source, target, precious = tmp_path / "out", tmp_path / "back", tmp_path / "precious"
    precious.write_text("mine")
    source.mkdir()
    target.mkdir()
    (source / "file").write_text("guest")
    (target / "file").symlink_to(precious)
    _collect(source, target)
    assert precious.read_text() == "mine"
    assert (target / "file").read_text() == "guest"


def test_without_an_output_directory_what_was_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_text("x")
    assert _collect(tmp_path / "out", None) == ((), ("a",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"argv": []}, "no command"),
        ({"argv": ["a\0b"]}, "NUL"),
        ({"smp": 0}, "--smp 0"),
        ({"memory_mb": 10}, "--memory 10"),
        ({"timeout_s": 0}, "--timeout 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    tmp_path: Path, words: dict[str, object], message: str
) -> None:
    kernel = resolve(str(kernel_tree(tmp_path / "k")))
    with pytest.raises(UsageError, match=message):
        run_job(kernel, **{"argv": ["true"], **words})  # type: ignore[arg-type]


def test_kvm_is_tried_once_a_boot_and_the_verdict_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = resolve(str(kernel_tree(tmp_path / "k")))
    trials = []
    monkeypatch.setattr(machine.os, "access", lambda *_: True)
    monkeypatch.setattr(machine, "_kvm_works", lambda *_: trials.append(1) is None and False)
    for _ in range(3):
        assert machine.accelerator("auto", kernel, tmp_path) == "tcg"
    assert len(trials) == 1
    memory = tmp_path / "cache/kvm-verdict.json"
    verdict = json.loads(memory.read_text())
    for damaged in ("", "[]", json.dumps({**verdict, "boot_id": "another boot"})):
        memory.write_text(damaged)
        machine.accelerator("auto", kernel, tmp_path)
    assert len(trials) == 4
    assert machine.accelerator("kvm", kernel, tmp_path) == "kvm"
    assert machine.accelerator("tcg", kernel, tmp_path) == "tcg"


def test_console_text_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "console"
    path.write_bytes(b"\x1bc\x1b[2J\x1b[1;1HSeaBIOS\r\n\x07Kernel\x00 panic \xff\n")
    text = machine._printable(path)
    assert "\x1b" not in text and "\x07" not in text and "\x00" not in text
    assert "Kernel panic" in text


@pytest.mark.parametrize("broken", ["qemu", "job"])
def test_a_guest_that_cannot_be_started_leaves_no_directory(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(job, "_initramfs", lambda kernel: tmp_path / "initramfs")
    kernel = resolve(str(kernel_tree(tmp_path)))
    if broken == "qemu":
        monkeypatch.setenv("PATH", "/nope")
        with pytest.raises(VmError, match="qemu-system-x86_64 is not installed"):
            run_job(kernel, ["true"], accel="tcg")
    else:
        with pytest.raises(UsageError, match="a path with a line break"):
            run_job(kernel, ["true"], accel="tcg", cwd=Path("/a\nb"))
    assert list(scratch.iterdir()) == []

"""Nothing of a run stays behind: QEMU's stand-in ends and the directory goes, however nsprof ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nsprof.vm import keeper

KEEPER = str(Path(keeper.__file__))


def _until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _start(directory: Path, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", KEEPER, str(directory), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _sleeper(directory: Path) -> tuple[str, ...]:
    """A stand-in for QEMU that writes its PID down and stays."""
    code = f"import os,time; open({str(directory / 'pid')!r},'w').write(str(os.getpid())+'\\n'); time.sleep(60)"
    return (sys.executable, "-I", "-S", "-c", code)


def _pid(directory: Path) -> int:
    assert _until(lambda: (directory / "pid").exists() and (directory / "pid").read_text().endswith("\n"))
    return int((directory / "pid").read_text())


@pytest.fixture
def directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="keeper-"))


def test_end_of_input_ends_it_and_removes_the_directory(directory: Path) -> None:
    with _start(directory, *_sleeper(directory)) as process:
        qemu = _pid(directory)
        (directory / "locked").mkdir(mode=0)
        assert process.stdin
        process.stdin.close()
        assert process.wait(5) == 0
    assert not _alive(qemu)
    assert not directory.exists()


def test_status_is_told_and_the_directory_stays_until_it_is_released(directory: Path) -> None:
    with _start(directory, "/bin/sh", "-c", "echo words >&2; exit 7") as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"ended 7\n"
        assert (directory / "qemu.log").read_text() == "words\n"
        process.stdin.close()
        assert process.wait(5) == 0
    assert not directory.exists()


def test_program_that_cannot_start_is_told(directory: Path) -> None:
    with _start(directory, "/no/such/program") as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline().startswith(b"failed No such file")
        process.stdin.close()
        process.wait(5)
    assert not directory.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_death_of_nsprof_ends_qemu_and_removes_the_directory(directory: Path, number: signal.Signals) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(60)\n"
    )
    argv = [sys.executable, "-I", "-S", KEEPER, str(directory), *_sleeper(directory)]
    with subprocess.Popen([sys.executable, "-c", code, *argv], stderr=subprocess.DEVNULL) as nsprof:
        qemu = _pid(directory)
        nsprof.send_signal(number)
    assert _until(lambda: not _alive(qemu))
    assert _until(lambda: not directory.exists())


def test_death_of_the_keeper_ends_qemu(directory: Path) -> None:
    with _start(directory, *_sleeper(directory)) as process:
        qemu = _pid(directory)
        os.kill(process.pid, signal.SIGKILL)
        assert _until(lambda: not _alive(qemu))
    assert directory.exists()  # the machine's own clean-up does the rest
    keeper._remove(str(directory))
    assert not directory.exists()

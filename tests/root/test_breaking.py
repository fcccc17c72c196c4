"""Recordings that are killed, run out of disk or have closed streams: nothing is lost, nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsprof import store
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf]
NSPROF = [sys.executable, "-m", "nsprof"]
#: The machine may be busy; nothing here waits when it is not.
PATIENCE_S = 120.0


def _programs_of(pid: int) -> set[int]:
    """BPF programs that a process holds, by the kernel's own account of its descriptors."""
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        words = entry.read_text().split()
        if "prog_id:" in words:
            found.add(int(words[words.index("prog_id:") + 1]))
    return found


def _programs() -> set[int]:
    done = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, check=True, timeout=60)
    return {program["id"] for program in json.loads(done.stdout)}


def _wait(condition: object, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert process.poll() is None
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_recording_that_is_killed_leaves_the_earlier_file_and_no_programs(
    tmp_path: Path, number: signal.Signals
) -> None:
    need("root", "bpf")
    earlier = tmp_path / "profile.nsprof"
    earlier.write_bytes(b"PK what took hours")
    started = tmp_path / "started"
    script = f"echo $$ >{started}.part; mv {started}.part {started}; exec sleep 300"
    process = subprocess.Popen(
        [*NSPROF, "record", "--", "sh", "-c", script],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        _wait(started.exists, process)
        programs = _programs_of(process.pid)
        assert programs
        process.send_signal(number)
        process.wait(timeout=PATIENCE_S)  # not for its output, which the command holds open
    finally:
        process.kill()
        process.wait()
    child = int(started.read_text())
    if number == signal.SIGKILL:
        assert process.returncode == -number
        os.kill(child, signal.SIGKILL)  # as with env(1) or perf, nobody was left to pass it on
        assert earlier.read_bytes() == b"PK what took hours"
    else:  # the command was ended by it; what was recorded so far is kept, and the earlier file beside it
        assert process.returncode == 128 + number
        assert (tmp_path / "profile.nsprof.old").read_bytes() == b"PK what took hours"
        assert store.load(earlier).runs[0].status == 128 + number
        assert not Path(f"/proc/{child}").exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"profile.nsprof", "profile.nsprof.old", "started"}
    deadline = time.monotonic() + 10
    while programs & _programs() and time.monotonic() < deadline:  # the kernel frees them after a grace period
        time.sleep(0.1)
    assert not programs & _programs()


def test_a_full_disk_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    need("root", "bpf", "unshare")
    script = (
        'mount -t tmpfs -o size=8k none "$1" && echo PK earlier >"$1/p.nsprof" && d=$1 && shift || exit 99\n'
        '"$@"; echo "status $?"; cat "$d/p.nsprof"; ls -A "$d"'
    )
    words = [*NSPROF, "record", "-q", "-o", str(tmp_path / "p.nsprof"), "--", "true"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), *words],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stdout == "status 125\nPK earlier\np.nsprof\n", done.stderr
    assert done.stderr.startswith(f"nsprof: {tmp_path}/p.nsprof: cannot be written: No space left on device")


def test_a_closed_output_stays_closed_for_the_command_and_gets_nothing_of_ours(tmp_path: Path) -> None:
    need("root", "bpf")
    script = "test -e /proc/self/fd/1 && exit 3; test -e /proc/self/fd/0 && exit 4; exit 7"
    words = [*NSPROF, "record", "-q", "-o", "p.nsprof", "--", "sh", "-c", script]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, b"")
    assert store.load(tmp_path / "p.nsprof").runs[0].status == 7

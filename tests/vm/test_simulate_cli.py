"""`nsprof simulate` from outside: its options, its faults in one line, and that no QEMU is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import need

pytestmark = pytest.mark.vm
SPEC = "debian:6.1"


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    need("vm", "gcc")


def _argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "nsprof", "simulate", "--kernel", SPEC, *words]


def _run(*words: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_argv(*words), capture_output=True, text=True, timeout=timeout, check=False)


def _qemus() -> set[int]:
    found = set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words and b"qemu-system" in words[0] and any(b"nsprof-tcg.so" in word for word in words):
                found.add(int(each.name))
    return found


def test_command_of_the_users_own_is_counted_per_skb(tmp_path: Path) -> None:
    profile = tmp_path / "ping.nsprof"
    words = ["--scenario", "veth-bridge", "--samples", "3", "--rounds", "1", "-o", str(profile), "--json"]
    done = _run(*words, "--", "busybox", "ping", "-c", "3", "-A", "198.18.0.1")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["scenarios"]
    assert 6 <= row["denominators"]["skb"] <= 8  # three requests, three answers, now and then an ARP exchange
    assert row["functions"]["br_handle_frame"] > 0
    assert "icmp_echo" in row["functions"] or "icmp_rcv" in row["functions"]
    assert profile.exists()


def test_panic_hang_and_failing_command_are_one_line_each() -> None:
    hung = _run("--scenario", "host", "--timeout", "1", "--rounds", "1")
    assert hung.returncode == 125
    assert "the guest hung before its network stood" in hung.stderr
    assert hung.stderr.count("\n") <= 3
    failed = _run("--scenario", "host", "--rounds", "1", "--samples", "1", "--", "busybox", "false")
    assert failed.returncode == 125
    assert "the command ended with 1" in failed.stderr
    assert "Traceback" not in hung.stderr + failed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_qemu_is_left_running(number: signal.Signals, tmp_path: Path) -> None:
    before = _qemus()
    running = subprocess.Popen(
        _argv("--scenario", "host,veth-bridge"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # what a killed one leaves is nobody else's to find
    )
    try:
        deadline = time.monotonic() + 90
        while not (_qemus() - before) and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.1)
        assert _qemus() - before, "QEMU was not started"
        os.kill(running.pid, number)
        _, words = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    if number == signal.SIGINT:
        assert running.returncode == 128 + signal.SIGINT
        assert "interrupted" in words
        assert "Traceback" not in words
    deadline = time.monotonic() + 20
    while _qemus() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _qemus() - before

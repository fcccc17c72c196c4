"""The ledger interrupted at any moment: nothing stays attached, neither in this process nor in the kernel."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.ledger.counting import Ledger

pytestmark = [pytest.mark.root, pytest.mark.bpf]
_PROGRAM_NEXT, _LINK_NEXT = 11, 31  # enum bpf_cmd: BPF_PROG_GET_NEXT_ID, BPF_LINK_GET_NEXT_ID


def listed(command: int) -> set[int]:
    """Numbers of all programs, or links, that the kernel has (what `bpftool prog` and `bpftool link` list)."""
    found: set[int] = set()
    last = 0
    while True:
        try:
            _, after = loader_syscall.bpf(command, struct.pack("<III", last, 0, 0))
        except OSError as error:
            assert error.errno == errno.ENOENT
            return found
        last = struct.unpack_from("<I", after, 4)[0]
        found.add(last)


def standing() -> tuple[set[int], set[int]]:
    return listed(_PROGRAM_NEXT), listed(_LINK_NEXT)


def left_over(before: tuple[set[int], set[int]], seconds: float = 20) -> tuple[set[int], set[int]]:
    """What came since and does not go within `seconds` (the kernel frees later, and others may have probes too)."""
    new = [now - then for now, then in zip(standing(), before, strict=True)]
    deadline = time.monotonic() + seconds
    while any(new) and time.monotonic() < deadline:
        time.sleep(0.1)
        new = [rest & now for rest, now in zip(new, standing(), strict=True)]
    return new[0], new[1]


def held() -> list[str]:
    """Descriptors of this process that hold programs, links, maps or events."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if "bpf" in target or "perf_event" in target:
            names.append(target)
    return sorted(names)


def test_interrupts_at_random_moments_of_attaching_leave_nothing_behind() -> None:
    before, mine = standing(), held()
    chance = random.Random(23)
    caught = attaching = 0
    with Ledger(budget_share=0, calibrate=False) as once:
        begun = time.perf_counter()
        once.start()
        took_s = time.perf_counter() - begun
        once.stop()
    for _ in range(25):
        ledger = Ledger(budget_share=0, calibrate=False)
        ledger.__enter__()
        timer = threading.Timer(chance.uniform(0, 1.2 * took_s), os.kill, (os.getpid(), signal.SIGINT))
        began = False
        try:
            timer.start()
            ledger.start()
            began = True
            ledger.stop()
            timer.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            caught += 1
            attaching += not began
        finally:
            timer.join()
            ledger.close()
        assert held() == mine
    print(f"{caught} interrupts seen, {attaching} of them while attaching ({took_s * 1e3:.0f} ms)")
    assert caught >= 20
    assert attaching >= 5
    assert left_over(before) == (set(), set())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_nsprof_between_attach_and_detach_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    before = standing()
    words = ["record", "-q", "--count", "--watch", "/proc/self/ns/net", "--duration", "1"]
    child = subprocess.Popen(
        [sys.executable, "-c", _COUNT_AT_ONCE, *words], cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stderr is not None
        assert child.stderr.readline() == b"attaching\n"
        time.sleep(random.Random(number).uniform(0, 0.1))
        os.killpg(child.pid, number)
        child.wait(20)
    finally:
        child.kill()
        child.wait()
        assert child.stderr is not None
        child.stderr.close()
    assert left_over(before) == (set(), set())


# The verb as it is, but for saying when the first probe is about to be attached.
_COUNT_AT_ONCE = """
import sys
from nsprof.collect.ledger.counting import Ledger
from nsprof.cli.main import run
attach = Ledger._attach
def told(self):
    print("attaching", file=sys.stderr, flush=True)
    attach(self)
Ledger._attach = told
Ledger.calibrate = lambda self, seconds=0: None
run(sys.argv[1:])
"""

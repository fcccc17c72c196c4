"""Ctrl-C at any moment of the program's start ends it with status 130 and without a traceback."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: Runs the program once for each module that it imports, and interrupts it at that module; no clock is involved.
_AT_EVERY_IMPORT = """
import json, os, sys, time

class Interrupt:
    at = number = -1

    def find_spec(self, name, path=None, target=None):
        self.number += self.number >= 0 or name == "nsprof.__main__"
        if self.number == self.at > 0:  # 0 is the program's own module, which does not run yet
            os.kill(os.getpid(), 2)

def run(at):
    Interrupt.at = at
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        sys.meta_path.insert(0, Interrupt())
        sys.argv[:] = ["nsprof", *words]
        from nsprof.__main__ import main
        main()
    os.close(writing)
    said = b""
    while piece := os.read(reading, 65536):
        said += piece
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode()

words = sys.argv[1:]
found, at = [], 1
while not found or found[-1][1] != 0:  # ... until there was no such import, and the program came to its end
    found.append((at, *run(at)))
    at += 1 if at < 40 else 4
print(json.dumps(found))
"""


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"]])
def test_an_interrupt_at_any_import_is_status_130_without_a_traceback(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT_EVERY_IMPORT, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *interrupted, whole = json.loads(done.stdout)
    assert whole[1] == 0 and "Usage: nsprof" in whole[2], whole
    assert len(interrupted) > 30
    assert {status for _, status, _ in interrupted} == {130}
    assert {said.strip() for _, _, said in interrupted} <= {"", "nsprof: interrupted"}


_PROGRAMS = ([sys.executable, "-m", "nsprof"], [str(Path(sys.executable).with_name("nsprof"))])


@pytest.mark.parametrize("program", _PROGRAMS, ids=["module", "script"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_first_moments_is_no_traceback(program: list[str], number: signal.Signals) -> None:
    if not Path(program[0]).exists():
        pytest.skip(f"{program[0]} is not installed")
    for delay_ms in range(20, 151, 10):
        child = subprocess.Popen([*program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay_ms / 1000)
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        _, said = child.communicate(timeout=60)
        if _is_pythons_own(said):  # a busy machine had not come to our code yet
            continue
        assert "Traceback" not in said and "Exception ignored" not in said, f"after {delay_ms} ms: {said}"
        # Before Python has a handler, and after it has taken it down, the signal itself ends the process: in a shell
        # that is the same status.
        assert child.returncode in (0, 128 + number, -number), f"after {delay_ms} ms: {said}"


def _is_pythons_own(said: str) -> bool:
    """Whether a traceback comes from before the first line of ours: Python's start, or an installer's script."""
    return "Traceback" in said and "nsprof/cli" not in said and "__main__.py" not in said

"""The line by which `nsprof vm run` tells a terminal how long it takes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

SCRIPT = """
import sys, time
from nsprof.cli.vm import Elapsed
with Elapsed("debian:9", quiet={quiet}, silence="nothing said yet", every_s=0.05) as elapsed:
    time.sleep(0.4)
    elapsed.pass_on("stdout", b"half a line")
    time.sleep(0.3)
    elapsed.pass_on("stdout", b" and the rest\\n")
    time.sleep(0.3)
print("end")
"""


def on_a_terminal(quiet: bool) -> tuple[str, str]:
    """(stdout, what the terminal at stderr got) of the script."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(quiet=quiet)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=60,
            check=True,
        )
        os.set_blocking(ours, False)
        try:
            said = os.read(ours, 1 << 16).decode()
        except BlockingIOError:
            said = ""
    finally:
        os.close(theirs)
        os.close(ours)
    return done.stdout, said


def test_a_terminal_sees_how_long_it_takes_and_the_line_goes_away() -> None:
    out, said = on_a_terminal(quiet=False)
    assert out == "half a line and the rest\nend\n"
    before, _, after = said.partition("\r" + " " * len("nsprof: debian:9: 0 s, nothing said yet") + "\r")
    assert before.startswith("\rnsprof: debian:9: 0 s, nothing said yet")
    # Not between the halves of a line (all of this is before the rest came), and taken away at the end.
    assert after.startswith("\rnsprof: debian:9: ") and "nothing said" not in after
    assert after.endswith(" \r")


def test_quiet_says_nothing() -> None:
    assert on_a_terminal(quiet=True) == ("half a line and the rest\nend\n", "")


def test_a_file_gets_no_such_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(quiet=False)], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("half a line and the rest\nend\n", "")

"""Words of the user's that are no plain text: told on one line, never interpreted by the terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("word", [b"/nowhere/\xff\n\x1b[31mx", b"../no such", b"a'b\"c", b"<script>", b"$(id)"])
def test_missing_command_is_one_printable_line(word: bytes) -> None:
    program = (
        "from nsprof.cli import main\nfrom nsprof import workload\nimport sys\n"
        "try:\n workload.run_plain(sys.argv[1:])\n"
        "except main.NsprofError as e:\n main._say(e); sys.exit(e.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", program, word], capture_output=True, timeout=60)
    assert done.returncode == 127
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("nsprof: ")
    assert lines[0].endswith(": command not found")
    assert lines[0].isprintable()

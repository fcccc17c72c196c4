"""`nsprof import` and `nsprof export` from the command line: statuses, streams, and files left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

DATA = REPO / "tests" / "data" / "importers"


def nsprof(*words: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "nsprof", *map(str, words)], input=stdin, capture_output=True, timeout=120
    )


def test_import_writes_a_profile_and_says_what_to_run_next(tmp_path: Path) -> None:
    out = tmp_path / "o.nsprof"
    done = nsprof("import", DATA / "udp_rr.data", DATA / "udp_rr.script.txt", "-o", out, "--packets", "23")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert b"58 samples" in done.stderr
    assert f"next: nsprof report {out}".encode() in done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    info = json.loads(nsprof("info", out, "--json").stdout)
    assert [r["samples"] for r in info["runs"]] == [29, 29]
    assert [r["denominators"] for r in info["runs"]] == [{"skb": 23.0}] * 2


def test_import_and_export_work_in_a_pipe(tmp_path: Path) -> None:
    out = tmp_path / "o.nsprof"
    assert nsprof("import", "-", "-o", out, stdin=b"a;b 3\na;c 4\n").returncode == 0
    done = nsprof("export", out, "--format", "folded")
    assert (done.returncode, done.stdout) == (0, b"a;b 3\na;c 4\n")


def test_reading_commands_take_other_tools_files_directly() -> None:
    done = nsprof("export", DATA / "udp_rr.data", "--format", "raw")
    assert done.returncode == 0, done.stderr
    assert sum(int(line.rpartition(b" ")[2]) for line in done.stdout.splitlines()) == 29


@pytest.mark.parametrize("strict", [False, True])
def test_damaged_input_is_kept_or_fails_when_strict(strict: bool, tmp_path: Path) -> None:
    broken, out = tmp_path / "broken", tmp_path / "o.nsprof"
    broken.write_bytes((DATA / "udp_rr.data").read_bytes()[:5000])
    done = nsprof("import", broken, "-o", out, *(["--strict"] if strict else []))
    assert done.returncode == (1 if strict else 0)
    assert b"cut off" in done.stderr
    assert out.exists() != strict


def test_wrong_words_are_usage_and_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "o"
    for words in (
        ["--format", "xml"],
        ["--format", "pprof", "--root", "comm"],
        ["--format", "folded", "-e", "nothing"],
    ):
        done = nsprof("export", DATA / "udp_rr.data", "-o", out, *words)
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_out_of_files_cannot_drive_the_terminal(tmp_path: Path) -> None:
    file, out = tmp_path / "a\x1b[31mb", tmp_path / "o.nsprof"
    file.write_bytes(b"a;b 3\nbroken line\n")
    done = nsprof("import", file, file, "-o", out)
    assert done.returncode == 0
    assert b"\x1b" not in done.stderr


def test_flamegraph_is_drawn_as_the_flamegraph_command_draws_it(tmp_path: Path) -> None:
    out = tmp_path / "f.svg"
    done = nsprof("export", DATA / "udp_rr.data", "--format", "flamegraph", "-o", out)
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith(("<?xml", "<svg"))

"""What nsprof tells to run next can be run: by the way in which it was called, where that is not on PATH."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the program in a folder whose name must be quoted, and something to import."""
    (tmp_path / "my bin").mkdir()
    script = f"#!{sys.executable}\nfrom nsprof.__main__ import main\nmain()\n"
    (tmp_path / "my bin" / "nsprof").write_text(script)
    (tmp_path / "my bin" / "nsprof").chmod(0o755)
    (tmp_path / "some.folded").write_text("a;b 3\n")
    return tmp_path


def _import(place: Path, called: str, path: str) -> str:
    done = subprocess.run(
        [called, "import", "some.folded", "-o", "some.nsprof"],
        cwd=place,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return next(line for line in done.stderr.splitlines() if line.startswith("next: ")).removeprefix("next: ")


def test_the_next_command_names_the_program_as_it_was_called(place: Path) -> None:
    command = _import(place, "my bin/nsprof", "/usr/bin:/bin")
    assert command == "'my bin/nsprof' report some.nsprof"
    again = subprocess.run(shlex.split(command), cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0, again.stderr


def test_it_is_called_by_its_name_where_that_is_on_path(place: Path) -> None:
    command = _import(place, str(place / "my bin" / "nsprof"), f"{place / 'my bin'}:/usr/bin:/bin")
    assert command == "nsprof report some.nsprof"


def test_a_hint_can_be_run_as_well(place: Path) -> None:
    done = subprocess.run(
        ["my bin/nsprof", "report"],
        cwd=place,
        env={**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "  hint: 'my bin/nsprof' record -- COMMAND makes one" in done.stderr.splitlines()

"""The man page says what the options say, and formats without a complaint."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from nsprof.cli.main import VERBS
from tests.support import REPO

PAGE = REPO / "docs" / "nsprof.1"


def test_the_man_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/make_man.py", "--check"], cwd=REPO, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_verb_stands_in_it() -> None:
    text = PAGE.read_text()
    assert all(f'.SS "nsprof {verb}' in text for verb in VERBS)


def test_it_formats_without_warnings() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=100n", str(PAGE)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "nsprof record" in done.stdout
    assert "--duration" in done.stdout

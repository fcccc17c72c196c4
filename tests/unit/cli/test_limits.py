"""A process that may have little memory or few files says so, and what to do, instead of odd words of a library."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from nsprof.cli.main import run
from tests.profiles import bench_profile


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("libarrow.so: failed to map segment from shared object"), "nsprof: out of memory"),
        (MemoryError(), "nsprof: out of memory"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "p.nsprof"), "files open: ulimit -n 1024"),
        (ImportError("no module named x"), "nsprof: internal error"),
    ],
)
def test_what_lacks_is_named(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: object) -> None:
        raise error

    monkeypatch.setattr(store, "open_any", fail)
    with pytest.raises(SystemExit) as end:
        run(["info", "p.nsprof"])
    assert end.value.code == 1
    assert said in capsys.readouterr().err


def test_too_little_address_space_is_said_in_one_line(tmp_path: Path) -> None:
    store.save(bench_profile(1), tmp_path / "p.nsprof")
    script = f"ulimit -v 100000; exec {sys.executable} -m nsprof report p.nsprof"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if "nsprof" not in done.stderr:
        pytest.skip(f"Python itself does not start with so little: {done.stderr[-200:]}")
    assert done.returncode not in (0, 2)
    assert done.stderr.startswith("nsprof: little memory: 102 MB of addresses (ulimit -v)\n")
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr

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


@pytest.mark.parametrize("kilobytes", [100_000, 250_000, 450_000, 620_000])
@pytest.mark.parametrize("verb", ["info", "report", "gate"])
def test_too_little_address_space_is_said_before_a_library_aborts(tmp_path: Path, verb: str, kilobytes: int) -> None:
    store.save(bench_profile(1), tmp_path / "p.nsprof")
    done = limited(kilobytes, [verb, "p.nsprof", *(["p.nsprof"] if verb == "gate" else [])], tmp_path)
    assert done.returncode == (2 if verb == "gate" else 1)
    assert done.stderr == (
        f"nsprof: little memory: {verb} needs 800 MB of addresses, and this process may use "
        f"{kilobytes * 1024 / 1e6:,.0f} MB\n  hint: ulimit -v unlimited\n"
    )


def test_help_needs_little_memory_and_enough_is_enough(tmp_path: Path) -> None:
    store.save(bench_profile(1), tmp_path / "p.nsprof")
    done = limited(100_000, ["report", "--help"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = limited(1_000_000, ["report", "p.nsprof", "--html", "p.html"], tmp_path)
    assert (done.returncode, done.stderr.count("memory")) == (0, 0), done.stderr
    assert (tmp_path / "p.html").stat().st_size > 10_000


def limited(kilobytes: int, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run nsprof with so many KB of addresses (`ulimit -v`)."""
    script = f'ulimit -v {kilobytes}; exec "$@"'
    argv = ["bash", "-c", script, "sh", sys.executable, "-m", "nsprof", *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60)

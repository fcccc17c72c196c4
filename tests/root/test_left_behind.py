"""What a killed nsprof left behind is said before the next measurement, and goes with `topo clean`."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsprof import netns
from nsprof.topology import down, listing
from nsprof.topology.inside import end_inside
from nsprof.topology.remove import remove
from nsprof.topology.state import load
from tests.support import need

pytestmark = pytest.mark.root
DEAD = f"lb{secrets.token_hex(2)}"
STANDS = f"ls{secrets.token_hex(2)}"
_HOLD = """
import sys, time
from nsprof.model.scenario import TopologySpec
from nsprof.topology import build
with build(TopologySpec("host"), sys.argv[1]):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A temporary directory of the test's own."""
    made = tmp_path / "tmp"
    made.mkdir()
    return made


def nsprof(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsprof", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(place)},
        cwd=place.parent,
        check=False,
    )


@pytest.fixture
def killed() -> Iterator[tuple[int, int]]:
    """The PID of a killed nsprof whose topology stands, and that of a process in it."""
    with subprocess.Popen([sys.executable, "-c", _HOLD, DEAD], stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        victim.kill()
        victim.wait()
    with netns.spawn(["sleep", "60"], netns=netns.resolve(f"nsprof-{DEAD}-remote")) as server:
        try:
            yield victim.pid, server.pid
        finally:
            server.kill()
            state = load(DEAD)
            if state is not None:
                end_inside(state.made)
                remove(state)


def _said(done: subprocess.CompletedProcess[str], pid: int) -> list[str]:
    """(Other nsprofs may have been killed on this machine as well.)"""
    return [line for line in done.stderr.splitlines() if "left behind by" in line and str(pid) in line]


def test_namespaces_and_processes_of_a_killed_nsprof_are_named_before_a_measurement(
    place: Path, killed: tuple[int, int]
) -> None:
    need("bpf")
    pid, server = killed
    words = ("record", "-o", str(place / "x.nsprof"))
    said = _said(nsprof(place, *words, "--", "true"), pid)
    assert len(said) == 1
    assert " namespaces, process" in said[0]
    assert f"{server} sleep" in said[0]
    assert "nsprof topo clean" in said[0]
    assert _said(nsprof(place, *words, "-q", "--", "true"), pid) == []
    up = nsprof(place, "topo", "up", "host", "--run-id", STANDS)
    try:
        assert up.returncode == 0, up.stderr
        assert len(_said(up, pid)) == 1
        assert _said(up, os.getpid()) == []  # what stands or is in use is not spoken of
    finally:
        if any(row["run_id"] == STANDS for row in listing()):
            down(STANDS)


def test_the_temporary_directory_of_a_killed_simulation_is_named_by_list_and_removed_by_clean(place: Path) -> None:
    need("vm")
    (place / "nsprof-memory-link").symlink_to(place.parent)
    argv = [sys.executable, "-m", "nsprof", "simulate", "--scenario", "host"]
    with subprocess.Popen(
        argv, env={**os.environ, "TMPDIR": str(place)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as victim:
        until = time.monotonic() + 60
        while not (made := sorted(place.glob("nsprof-memory-*-*"))) and victim.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert json.loads(nsprof(place, "topo", "list", "--json").stdout)["directories"] == []  # its owner lives
        victim.kill()
        victim.wait()
    listed = nsprof(place, "topo", "list")
    assert str(made[0]) in listed.stderr
    assert made[0].is_dir()
    cleaned = nsprof(place, "topo", "clean")
    (said,) = [line for line in cleaned.stderr.splitlines() if line.startswith("removed ")]
    assert str(made[0]) in said  # perhaps beside the directory of a machine that had no keeper yet
    assert not made[0].exists()
    until = time.monotonic() + 30  # QEMU's keeper removes its own
    while len(list(place.iterdir())) > 1:
        assert time.monotonic() < until, list(place.iterdir())
        time.sleep(0.05)
    assert (place / "nsprof-memory-link").is_symlink()


def test_the_next_measurement_removes_it_too_and_says_so_in_a_line(place: Path) -> None:
    need("bpf")
    script = "from nsprof.files import Scratch; import os; Scratch('bench'); os._exit(9)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(place)}, check=False)
    (made,) = place.iterdir()
    done = nsprof(place, "record", "-o", str(place / "x.nsprof"), "--", "true")
    assert [line for line in done.stderr.splitlines() if str(made) in line] == [
        f"nsprof: removed temporary directory of a killed nsprof: {made}"
    ]
    assert not made.exists()

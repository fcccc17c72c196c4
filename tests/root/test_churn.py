"""`nsprof churn`: what it makes is counted, and gone afterwards."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsprof import store
from nsprof.churn import ChurnOptions, own_samples, run_churn
from nsprof.model.profile import Profile, Run
from tests.support import REPO, need

pytestmark = [pytest.mark.root, pytest.mark.bpf]


@pytest.fixture(autouse=True)
def _needs() -> None:
    need("bpf", "unshare")


def _values(run: Run) -> dict[str, float]:
    return {v.name: v.value for v in run.values}


def _runs(profile: Profile) -> dict[str, dict[str, float]]:
    return {run.scenario: _values(run) for run in profile.runs}


def _machine() -> tuple[list[str], str]:
    names = sorted(p.name for p in Path("/run/netns").iterdir()) if Path("/run/netns").is_dir() else []
    mounts = [m for m in Path("/proc/self/mountinfo").read_text().splitlines() if "churn" in m]
    return [n for n in names if n.startswith("churn")], "\n".join(mounts)


@pytest.mark.parametrize(
    ("propagation", "here", "elsewhere"),
    [("shared", 5, 15), ("slave", 5, 15), ("private", 5, 0), ("stacked", 10, 30)],
)
def test_mounts_are_copied_as_the_propagation_says_and_taken_back(
    propagation: str, here: int, elsewhere: int
) -> None:
    made = _runs(run_churn(ChurnOptions(5, 3, ("ip",), propagation=propagation, waits=False)))
    create, delete = made["ip create"], made["ip delete"]
    assert create["operations"] == delete["operations"] == 5
    assert (create["mounts_here"], create["mounts_elsewhere"]) == (here, elsewhere)
    assert (delete["mounts_here"], delete["mounts_elsewhere"], delete["still_pinned"]) == (0, 0, 0)
    assert _machine() == ([], "")


def test_times_latencies_and_kernel_functions_of_both_tools() -> None:
    profile = run_churn(ChurnOptions(12, 2, ("ip", "pyroute2"), frequency_hz=4999))
    made = _runs(profile)
    assert set(made) == {"ip create", "ip delete", "pyroute2 create", "pyroute2 delete"}
    for values in made.values():
        assert 0 < values["latency_p50"] <= values["latency_p99"] <= values["latency_max"]
        assert values["real"] * 1e6 >= values["latency_p50"] * 6
        assert values["user"] + values["sys"] > 0
    own = own_samples(profile)
    assert 0 < len(own.samples) < len(profile.samples)
    seen = {profile.frames.name[f] for i in set(own.samples.stack.tolist()) for f in profile.stacks[i]}
    assert "copy_net_ns" in seen
    waits = [i for i, e in enumerate(profile.events) if e.name == "off-cpu"]
    assert waits, "nothing waited: rcu_barrier and grace periods of cleanup_net should be seen"
    assert "cleanup_net" in seen


def test_an_ip_binary_that_fails_is_said(tmp_path: Path) -> None:
    fake = tmp_path / "ip"
    fake.write_text("#!/bin/sh\necho 'no such thing here' >&2\nexit 3\n")
    fake.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "nsprof", "churn", "-N", "3", "-M", "1", "--tool", str(fake), "--top", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "3 of 3 failed: no such thing here" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_2016_experiment_runs_from_its_file(tmp_path: Path) -> None:
    text = (REPO / "examples/ip-netns-2016.toml").read_text()
    reduced = text.replace("namespaces = 100\nmount-namespaces = 20", "namespaces = 5\nmount-namespaces = 3")
    assert reduced != text
    (tmp_path / "x.toml").write_text(reduced)
    done = subprocess.run(
        [sys.executable, "-m", "nsprof", "bench", "x.toml", "-o", "c.nsprof"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "real s" in done.stdout
    runs = store.load(tmp_path / "c.nsprof").runs
    assert {_values(r)["operations"] for r in runs} == {5.0}
    assert len(runs) == 4
    assert _machine() == ([], "")


def _holders() -> set[int]:
    """The mount namespaces' holders of all churns on this machine."""
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                if (place / "cmdline").read_bytes() == b"sleep\x0086400\x00":
                    found.add(int(place.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_killed_churn_leaves_no_mount_namespace_behind(number: signal.Signals, tmp_path: Path) -> None:
    before = _holders()
    argv = [sys.executable, "-m", "nsprof", "churn", "-N", "3000", "-M", "4", "-o", str(tmp_path / "c.nsprof")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while len(_holders() - before) < 4 and time.monotonic() < until and process.poll() is None:
                time.sleep(0.02)
            assert len(_holders() - before) == 4
        finally:
            process.send_signal(number)
            process.wait(60)
    until = time.monotonic() + 5
    while _holders() - before and time.monotonic() < until:
        time.sleep(0.02)
    assert _holders() - before == set()

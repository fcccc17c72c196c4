"""Experiments that need another kernel's modules, and the gate on simulated profiles, from the host's side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from tests.support import REPO, need

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(autouse=True)
def _needs() -> None:
    need("vm", "root", "netperf")


def _nsprof(*words: str, cwd: Path, timeout: float = 2300) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "nsprof", *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def test_pktgen_sends_both_ways_through_pair_bridge_pair(tmp_path: Path) -> None:
    file = REPO / "examples/pair-bridge-pktgen.toml"
    words = ("--kernel", "debian:6.1", "-n", "1", "--boots", "1", "-o", "p.nsprof")
    done = _nsprof("bench", str(file), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = store.load(tmp_path / "p.nsprof").runs[0]
    values = {v.name: v.value for v in run.values}
    assert run.kernel.startswith("6.1.")
    assert values["rate_forth"] > 0
    assert values["rate_back"] > 0
    assert values["throughput"] == pytest.approx(
        (values["rate_forth"] + values["rate_back"]) * 1514 * 8 / 1e6, rel=1e-6
    )
    assert run.denominators["skb"] == values["packets"]
    assert "loss_forth" in done.stdout


@pytest.mark.long
def test_vrf_on_two_kernels_gives_kernels_as_columns(tmp_path: Path) -> None:
    text = (REPO / "examples/vrf-2015.toml").read_text()
    # One of the four workloads: the way is the same for all, and a guest takes its time.
    head, *works = text.split("[[workload]]")
    assert len(works) == 4
    (tmp_path / "vrf.toml").write_text(f"{head}[[workload]]{works[3]}")
    words = ("--kernel", "debian:6.1", "--kernel", "debian:6.12", "-n", "1", "--boots", "1", "--seconds", "1")
    done = _nsprof("bench", "vrf.toml", *words, "--top", "0", "-o", "v.nsprof", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = store.load(tmp_path / "v.nsprof")
    assert {r.scenario for r in profile.runs} == {"TCP_RR RX/veth-route", "TCP_RR RX/vrf"}
    assert len({r.kernel for r in profile.runs}) == 2
    assert len(profile.meta["hosts"]) == 2
    assert done.stdout.count("CPU usage (%) / overhead") == 2  # a column a kernel


def test_simulated_profiles_gate_to_the_instruction(tmp_path: Path) -> None:
    common = ("simulate", "--kernel", "debian:6.1", "--scenario", "host", "--samples", "8", "--rounds", "1")
    for name, more in (("a", ()), ("b", ()), ("c", ("--rules", "8"))):
        done = _nsprof(*common, *more, "-o", f"{name}.nsprof", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    same = _nsprof("gate", "a.nsprof", "b.nsprof", "--fail-above", "0%", cwd=tmp_path)
    assert same.returncode == 0, same.stdout
    more = _nsprof("gate", "a.nsprof", "c.nsprof", "--fail-above", "0%", cwd=tmp_path)
    assert more.returncode == 1, more.stdout
    assert "exact" in more.stdout


def test_the_remote_end_can_be_a_guest_behind_virtio_tap_and_bridge(tmp_path: Path) -> None:
    need("bpf")
    words = ("bench", "-s", "host,veth-bridge", "-n", "1", "--top", "0", "--remote", "vm", "-o", "r.nsprof")
    done = _nsprof(*words, "--", "netperf", "-t", "TCP_STREAM", "-l", "2", cwd=tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr
    profile = store.load(tmp_path / "r.nsprof")
    assert any("emulated by QEMU" in note for note in profile.meta["notes"])
    for run in profile.runs:
        assert run.denominators["kb"] > 1000
    described = profile.meta["topology"]["veth-bridge"]
    assert described["far"] == "vm"
    # The bytes went through the tap device, and most of them as segments that were not cut up before (GSO).
    remote = next(i + 1 for i, n in enumerate(profile.namespaces) if n.role == "remote")
    moved = {
        c.name: c.delta
        for c in profile.counters
        if c.run == 0 and c.namespace == remote and c.scope == "device" and c.device == "tap0"
    }
    payload = profile.runs[0].denominators["kb"] * 1024
    assert moved["tx_bytes"] > 0.95 * payload
    assert moved["tx_bytes"] / moved["tx_packets"] > 3000

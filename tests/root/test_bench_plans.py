"""Benches on this kernel: failures in the middle, going on, both directions, other lengths."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from nsprof.analyse.selection import view
from nsprof.bench import BenchOptions, plan_of, resume
from nsprof.bench.run import run_plan
from nsprof.errors import EvidenceError, NsprofError
from tests.support import REPO, need

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.netperf]


@pytest.fixture(autouse=True)
def _needs() -> None:
    need("bpf", "netperf")


def _nsprof(*words: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "nsprof", *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def test_a_run_that_fails_in_the_middle_is_kept_said_and_repeated_by_resume(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")
    # Every call adds a letter; the third one fails.
    script = tmp_path / "traffic.py"
    script.write_text(
        "import pathlib, sys, time\n"
        f"p = pathlib.Path({str(count)!r})\n"
        "p.write_text(p.read_text() + 'x')\n"
        "time.sleep(0.2)\n"
        "sys.exit('the third breaks' if p.read_text() == 'xxx' else 0)\n"
    )
    words = ("bench", "-n", "2", "--seed", "1", "--top", "0", "-o", "b.nsprof")
    done = _nsprof(*words, "--", sys.executable, str(script), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "the third breaks" in done.stderr
    runs = store.load(tmp_path / "b.nsprof").runs
    assert [bool(r.failed) for r in runs] == [False, False, True, False]

    again = _nsprof(*words, "--resume", "--", sys.executable, str(script), cwd=tmp_path)
    profile = store.load(tmp_path / "b.nsprof")
    assert len(profile.runs) == 5
    assert len(profile.runs_of("host")) == len(profile.runs_of("veth-bridge")) == 2
    assert "resumed with 3 of 4" in " ".join(profile.meta["notes"]), again.stderr
    assert count.read_text() == "xxxxx"


def test_other_words_are_not_resumed(tmp_path: Path) -> None:
    words = ("bench", "-n", "1", "--scenario", "host", "--top", "0", "-o", "b.nsprof")
    assert _nsprof(*words, "--", "sleep", "0.2", cwd=tmp_path).returncode == 0
    done = _nsprof(*words, "--resume", "--", "sleep", "0.3", cwd=tmp_path)
    assert done.returncode == 125
    assert "was '0.2', is '0.3'" in done.stderr


def test_in_reverse_the_container_receives() -> None:
    plan = plan_of(
        BenchOptions(
            command=("netperf", "-t", "TCP_STREAM", "-l", "1"), scenarios=("veth-route",), runs=1, reverse=True
        )
    )
    profile = run_plan(plan).profile
    c0 = next(i + 1 for i, n in enumerate(profile.namespaces) if n.role == "container")
    moved = {
        c.name: c.delta
        for c in profile.counters
        if c.scope == "device" and c.namespace == c0 and c.device == "eth0" and c.name in ("rx_bytes", "tx_bytes")
    }
    assert moved["rx_bytes"] > 20 * moved["tx_bytes"]


def test_an_experiment_whose_module_is_lacking_names_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('needs = ["nsprof_no_such_module"]\n[[workload]]\ncommand = ["true"]\n')
    done = _nsprof("bench", str(file), cwd=tmp_path)
    assert done.returncode == 125
    assert "no module nsprof_no_such_module" in done.stderr
    assert "--kernel debian:6.1" in done.stderr
    assert not (tmp_path / "bench.nsprof").exists()


def test_the_first_runs_all_failing_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    done = _nsprof("bench", "-n", "1", "--", "false", cwd=tmp_path)
    assert done.returncode == 125
    assert "exit status 1" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_unit_costs_do_not_depend_on_the_sampling_frequency() -> None:
    """99, 499 and 997 Hz, interleaved: pooled over runs they agree within what so many samples allow."""
    plans = {
        hz: plan_of(
            BenchOptions(command=("netperf", "-t", "UDP_RR", "-l", "2"), scenarios=("host",), runs=1, frequency_hz=hz)
        )
        for hz in (99, 499, 997)
    }
    weight, ticks, units = (dict.fromkeys(plans, 0.0) for _ in range(3))
    for _ in range(3):
        for hz, plan in plans.items():
            profile = run_plan(plan).profile
            units[hz] += profile.runs[0].denominators["transaction"]
            try:
                chosen = view(profile)
            except EvidenceError:  # so busy a machine that no tick met our tasks: that is a cost of 0 seen
                continue
            weight[hz] += float(chosen.weight.sum())
            ticks[hz] += float(chosen.count.sum())
    if min(ticks.values()) < 50:
        pytest.skip(f"this machine is too busy: only {min(ticks.values()):.0f} samples met the scenario's tasks")
    cost = {hz: weight[hz] / units[hz] for hz in plans}
    for hz in (99, 997):
        # Four standard errors of the two counts, and 10 % for what else the machine did meanwhile.
        allowed = 4 * (1 / ticks[hz] + 1 / ticks[499]) ** 0.5 + 0.1
        assert cost[hz] == pytest.approx(cost[499], rel=allowed), (cost, ticks)


def test_segments_are_the_same_with_gso_on_and_off_and_skbs_are_not() -> None:
    """The same number of bytes each time: iperf3 -n sends exactly so many."""
    need("iperf3")
    found = {}
    for offload in ("tso=on,gso=on,gro=on", "tso=off,gso=off,gro=off"):
        plan = plan_of(
            BenchOptions(
                command=("iperf3", "-n", "64M"), scenarios=("veth-bridge",), runs=1, offload=offload, timeout_s=60
            )
        )
        profile = run_plan(plan).profile
        c0 = next(i + 1 for i, n in enumerate(profile.namespaces) if n.role == "container")
        by_name = {c.name: c.delta for c in profile.counters if c.namespace == c0 and c.scope in ("netns", "device")}
        sent = by_name["Tcp.OutSegs"] - by_name.get("Tcp.RetransSegs", 0.0)
        found[offload] = (sent, by_name["tx_packets"])
    (on_segments, on_skbs), (off_segments, off_skbs) = found.values()
    # Pushed and window-limited ends of writes are smaller than the full size, more of them with TSO (4 % were seen).
    assert off_segments == pytest.approx(on_segments, rel=0.06), found
    assert off_skbs > 5 * on_skbs, found


def test_the_total_of_the_sender_excludes_the_receiver_that_runs_inside_it() -> None:
    """UDP_RR over loopback on one CPU: __udp4_lib_rcv runs in softirq below udp_sendmsg, and is not its cost."""
    from nsprof import analyse

    plan = plan_of(
        BenchOptions(
            command=("netperf", "-t", "UDP_RR", "-l", "2"), scenarios=("host",), runs=1, frequency_hz=997, pin=False
        )
    )
    profile = run_plan(plan).profile
    split = analyse.report(profile, where=analyse.Filter(side="all"))
    joined = analyse.report(profile, where=analyse.Filter(side="all"), join_contexts=True)
    rows = [{f.name: f for f in r.functions} for r in (split, joined)]
    inside = rows[1]["udp_sendmsg"].total_cost - rows[0]["udp_sendmsg"].total_cost
    received = rows[0].get("udp_rcv") or rows[0].get("__udp4_lib_rcv")
    assert received is not None
    # Joined, the sender has what its softirqs did; split, it has not: and the receiver is a part of that.
    assert inside > 0
    assert rows[0]["udp_sendmsg"].total_cost + inside == pytest.approx(rows[1]["udp_sendmsg"].total_cost)
    receivers = {"udp_rcv", "__udp4_lib_rcv", "udp_queue_rcv_one_skb", "udp_unicast_rcv_skb"}
    stacks = [{profile.frames.name[f] for f in profile.stacks[i]} for i in range(len(profile.stacks))]
    below = [names for names in stacks if "udp_sendmsg" in names and names & receivers]
    assert below, "no stack in which the receiver runs below the sender: nothing was tested"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("netns-2007", ("--runs", "1", "--seconds", "2")),
        ("containers-scaling", ("--runs", "1", "--seconds", "1")),
        ("pps-one-core", ("--runs", "1", "--seconds", "1")),
    ],
)
def test_every_experiment_file_runs(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    file = REPO / "examples" / f"{name}.toml"
    done = _nsprof("bench", str(file), *words, "--top", "2", "-o", "x.nsprof", cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "CPU usage (%)" in done.stdout
    profile = store.load(tmp_path / "x.nsprof")
    cases = profile.meta["bench"]["plan"]["cases"]
    assert all(len(profile.runs_of(case["name"])) == 1 for case in cases)
    if name == "containers-scaling":
        assert done.stdout.count("for each further container") == 2
    if name == "pps-one-core":
        assert "ns/" in done.stdout
        assert "datagrams_received" in done.stdout


def test_a_broken_first_topology_is_an_error_not_a_profile() -> None:
    plan = plan_of(BenchOptions(command=("true",), scenarios=("host",), runs=1))
    assert resume.open_earlier("/nonexistent/bench.nsprof", plan) is None
    with pytest.raises(NsprofError):
        plan_of(BenchOptions(command=("true",), scenarios=("nothing",)))

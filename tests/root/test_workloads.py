"""Real generators between two namespaces: results agree with the kernel's counters, servers come and go."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsprof import workload
from nsprof.collect.system import counters
from nsprof.errors import WorkloadError
from tests.support import need

pytestmark = pytest.mark.root


@dataclass(frozen=True)
class End:
    netns_path: str
    cpus: tuple[int, ...]
    address: str


@contextmanager
def pair(tag: str, family: int = 4) -> Iterator[tuple[End, End]]:
    """Two namespaces joined by a veth pair; addresses of the benchmarking range."""
    names = [f"nswl-{os.getpid()}-{tag}{side}" for side in "ab"]
    addresses = ["198.18.0.1", "198.18.0.2"] if family == 4 else ["2001:2::1", "2001:2::2"]
    length = 24 if family == 4 else 64
    lines = [f"netns add {name}" for name in names]
    lines.append(f"link add w0 netns {names[0]} type veth peer name w0 netns {names[1]}")
    batch(lines)
    try:
        for name, address in zip(names, addresses, strict=True):
            extra = " nodad" if family == 6 else ""
            batch([f"addr add {address}/{length} dev w0{extra}", "link set lo up", "link set w0 up"], name)
        cpus = sorted(os.sched_getaffinity(0))
        yield (
            End(f"/run/netns/{names[0]}", (cpus[0],), addresses[0]),
            End(f"/run/netns/{names[1]}", (cpus[-1],), addresses[1]),
        )
    finally:
        batch([f"netns del {name}" for name in names])


def batch(lines: list[str], name: str = "") -> None:
    inside = ["-n", name] if name else []
    subprocess.run(["ip", *inside, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[End, End]]:
    need("root")
    with pair("m") as made:
        yield made


def processes_in(path: str) -> list[int]:
    inode = Path(path).stat().st_ino
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/net").stat().st_ino == inode:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def run(argv: list[str], ends: tuple[End, End]) -> tuple[workload.Outcome, dict[str, float], dict[str, float]]:
    """The outcome, its denominators, and the counters' view of the receiver and sender."""
    near, far = ends
    driver = workload.driver(argv, timeout_s=30)
    paths = {near.netns_path: 1, far.netns_path: 2}
    with driver.servers(far):
        before = counters.take(paths)
        outcome = driver.run(near, far.address)
        rows = counters.delta(before, counters.take(paths, closing=True), 0, paths)
    seen = {f"{c.namespace}.{c.name}": c.delta for c in rows if c.scope in ("netns", "device") and c.device != "lo"}
    assert outcome.failed == ""
    assert outcome.status == 0
    assert processes_in(far.netns_path) == []
    return outcome, workload.denominators(driver.tool, outcome.argv, outcome.values), seen


def test_udp_transactions_are_the_datagrams_that_the_kernel_counted(ends: tuple[End, End]) -> None:
    need("netperf")
    _, divided, seen = run(["netperf", "-t", "UDP_RR", "-l", "1"], ends)
    assert list(divided) == ["transaction"]
    # One datagram each way a transaction; the last one may still be on its way when time is up.
    assert seen["2.Udp.InDatagrams"] - divided["transaction"] in (0, 1)


@pytest.mark.parametrize("test", ["TCP_RR", "TCP_CRR"])
def test_tcp_transactions(ends: tuple[End, End], test: str) -> None:
    need("netperf")
    outcome, divided, seen = run(["netperf", "-t", test, "-l", "1"], ends)
    assert divided["transaction"] > 100
    assert seen["2.Tcp.PassiveOpens"] >= (divided["transaction"] if test == "TCP_CRR" else 1)
    assert outcome.value("latency_p50") <= outcome.value("latency_p99")
    assert outcome.value("service_demand_local") > 0


@pytest.mark.parametrize(("test", "receiver"), [("TCP_STREAM", 2), ("TCP_MAERTS", 1)])
def test_stream_payload_is_what_the_kernel_delivered(ends: tuple[End, End], test: str, receiver: int) -> None:
    need("netperf")
    outcome, divided, seen = run(["netperf", "-t", test, "-l", "1"], ends)
    octets = seen[f"{receiver}.IpExt.InOctets"]
    assert 0.9 * octets / 1024 < divided["kb"] < octets / 1024  # octets count headers and what was sent twice
    rate = divided["kb"] * 1024 * 8 / 1e6 / outcome.value("elapsed")
    assert outcome.value("throughput") == pytest.approx(rate, rel=0.01)


def test_udp_stream_delivered_is_what_the_kernel_delivered(ends: tuple[End, End]) -> None:
    need("netperf")
    outcome, divided, seen = run(["netperf", "-t", "UDP_STREAM", "-l", "1", "--", "-m", "1000"], ends)
    assert seen["2.Udp.InDatagrams"] == pytest.approx(divided["datagram"], abs=300, rel=0.01)
    assert outcome.value("datagrams_sent") >= divided["datagram"]


def test_iperf3_both_protocols(ends: tuple[End, End]) -> None:
    need("iperf3")
    _, divided, seen = run(["iperf3", "-t", "1"], ends)
    # What is still in the receiver's buffer when time is up is not in iperf3's sum (netperf reads to the end).
    left_over = int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])
    octets = seen["2.IpExt.InOctets"]
    assert 0.9 * octets - left_over < divided["kb"] * 1024 < octets
    _, divided, seen = run(["iperf3", "-u", "-b", "20M", "-t", "1"], ends)
    assert abs(seen["2.Udp.InDatagrams"] - divided["datagram"]) <= 2  # its handshake is datagrams too


def test_tbench(ends: tuple[End, End]) -> None:
    need("tbench")
    outcome, divided, _ = run(["tbench", "-t", "2", "1"], ends)
    assert outcome.value("throughput") > 0
    assert divided == {}


def test_ipv6() -> None:
    need("netperf", "iperf3")
    with pair("six", family=6) as ends:
        for argv in (["netperf", "-t", "UDP_RR", "-l", "1"], ["iperf3", "-t", "1"]):
            _, divided, _ = run(argv, ends)
            assert divided


def test_several_iperf3_clients_have_a_server_each(ends: tuple[End, End]) -> None:
    need("iperf3")
    near, far = ends
    driver = workload.driver(["iperf3", "-t", "1"], timeout_s=30)
    with driver.servers(far, clients=3) as server:
        assert len(set(server.ports)) == 3
        outcomes = driver.run_many((near,) * 3, (far.address,) * 3)
    assert [o.failed for o in outcomes] == ["", "", ""]
    assert processes_in(far.netns_path) == []


def test_servers_run_where_and_on_what_they_should(ends: tuple[End, End]) -> None:
    need("netperf")
    _, far = ends
    with workload.driver(["netperf"]).servers(far) as server:
        pid = server.pids[0]
        assert pid in processes_in(far.netns_path)
        assert os.sched_getaffinity(pid) == set(far.cpus)
    assert processes_in(far.netns_path) == []
    assert not list(Path("/tmp").glob(f"netserver.debug_{pid}*"))


def test_port_in_use_is_avoided_or_refused_when_asked_for(ends: tuple[End, End]) -> None:
    need("netperf")
    _, far = ends
    with workload.driver(["netperf"]).servers(far) as first, workload.driver(["netperf"]).servers(far) as second:
        assert first.ports[0] == 12865
        assert second.ports[0] != 12865
        with (
            pytest.raises(WorkloadError, match="port 12865 cannot be used"),
            workload.driver(["netperf", "-p", "12865"]).servers(far),
        ):
            pass


def test_client_without_server_fails_in_its_own_words(ends: tuple[End, End]) -> None:
    need("netperf")
    near, far = ends
    outcome = workload.driver(["netperf", "-t", "UDP_RR"], timeout_s=20).run(near, far.address)
    assert outcome.status != 0
    assert "are you sure there is a netserver listening on 198.18.0.2" in outcome.failed


def test_hanging_client_is_ended(ends: tuple[End, End]) -> None:
    need("netperf")
    near, far = ends
    driver = workload.driver(["netperf", "-t", "UDP_RR", "-l", "60"], timeout_s=1)
    with driver.servers(far):
        outcome = driver.run(near, far.address)
    assert outcome.timed_out
    assert "still running after 1 s" in outcome.failed
    assert processes_in(near.netns_path) == []
    assert processes_in(far.netns_path) == []


def test_known_number_of_datagrams(ends: tuple[End, End]) -> None:
    near, far = ends
    paths = {near.netns_path: 1, far.netns_path: 2}
    before = counters.take(paths)
    outcome = workload.driver(["ping", "-c", "23", "-i", "0.002", far.address], timeout_s=20).run(near, "")
    rows = counters.delta(before, counters.take(paths, closing=True), 0, paths)
    assert outcome.failed == ""
    moved = {(c.namespace, c.name): c.delta for c in rows if c.scope == "netns"}
    assert moved[2, "Icmp.InEchos"] == 23
    assert moved[1, "Icmp.InEchoReps"] == 23


def test_plain_command_in_a_namespace_on_a_cpu(ends: tuple[End, End], capfd: pytest.CaptureFixture[str]) -> None:
    near, _ = ends
    script = "import os,json;print(json.dumps([os.stat('/proc/self/ns/net').st_ino,sorted(os.sched_getaffinity(0))]))"
    outcome = workload.run_plain(["python3", "-c", script], netns=near.netns_path, cpus=near.cpus)
    assert outcome.status == 0
    assert json.loads(capfd.readouterr().out) == [Path(near.netns_path).stat().st_ino, list(near.cpus)]

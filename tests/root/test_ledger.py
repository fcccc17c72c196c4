"""The ledger on tracepoints: known numbers of known packets, each beside an untouched twin that shows zero."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsprof import netns, record, store
from nsprof.analyse.ledger import ledger
from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.checks import trials
from nsprof.collect.ledger.counting import Ledger
from nsprof.errors import ProbeError
from nsprof.observe import Observer, Traffic
from tests.ledger_bed import COUNT, Bed, counted, datagrams, ethtool, observer, routed

pytestmark = [pytest.mark.root, pytest.mark.bpf]
NSPROF = [sys.executable, "-m", "nsprof"]


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    with routed() as standing:
        yield standing


@pytest.fixture(scope="module")
def watching() -> Iterator[Observer]:
    with observer() as loaded:
        yield loaded


def fragments(size: int, mtu: int) -> int:
    """Of a UDP datagram over IPv4: its header and payload in pieces that are multiples of 8."""
    piece = (mtu - 20) // 8 * 8
    return -(-(size + 8) // piece)


@pytest.mark.parametrize("size", [4000, 9000])
def test_fragments_are_those_of_arithmetic_at_the_right_device(watching: Observer, made: Bed, size: int) -> None:
    made.ip("c", "link", "set", "eth0", "mtu", "1400")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, size))
    finally:
        made.ip("c", "link", "set", "eth0", "mtu", "1500")
    expected = COUNT * fragments(size, 1400)
    assert seen.calls("fragments tx", "c", "eth0") == expected
    assert seen.calls("fragments rx", "h", "pc") == expected
    assert seen.calls("fragments rx", "r", "eth0") == expected
    assert seen.size("fragments tx", "c", "eth0") == COUNT * (size + 8) + 20 * expected
    report = ledger(seen.profile)
    assert report.fragmentation.startswith(
        f"Fragmentation starts at eth0 in {made.full('c')} (MTU 1400): 23 datagrams leave as {expected} fragments"
    )
    verdicts = {(row.what, row.namespace): row.verdict for row in report.reconciled}
    assert verdicts["fragments made", made.full("c")] == "yes"
    assert verdicts["fragments to reassemble", made.full("r")] == "yes"
    assert ("fragments made", made.full("h")) not in verdicts  # a router that passes fragments on makes none


def test_fragmentation_that_starts_on_the_way_is_named_there(watching: Observer, made: Bed) -> None:
    made.ip("h", "link", "set", "pr", "mtu", "1400")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, 1450))
    finally:
        made.ip("h", "link", "set", "pr", "mtu", "1500")
    assert seen.calls("fragments tx", "c") == 0
    assert seen.calls("fragments tx", "h", "pr") == 2 * COUNT
    assert f"starts at pr in {made.full('h')} (MTU 1400)" in ledger(seen.profile).fragmentation


def test_too_big_and_forbidden_is_counted_where_it_is_refused(watching: Observer, made: Bed) -> None:
    made.ip("h", "link", "set", "pr", "mtu", "1400")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, 1450, forbid=True))
    finally:
        made.ip("h", "link", "set", "pr", "mtu", "1500")
    events = {row.what: row.calls for row in ledger(seen.profile).events}
    assert events["too big and not to be fragmented (kernel)"] == COUNT
    assert seen.calls("drop", "h", detail="PKT_TOO_BIG") == COUNT
    assert seen.calls("skb tx", "h", "pr") == seen.calls("fragments tx", "h") == 0


def test_packets_that_fit_are_no_fragments(watching: Observer, made: Bed) -> None:
    seen = counted(watching, made, datagrams(made, COUNT, 1000))
    assert seen.calls("skb tx", "c", "eth0") == seen.calls("skb rx", "r", "eth0") == COUNT
    assert seen.size("skb tx", "c", "eth0") == COUNT * 1028
    assert [row.what for row in seen.profile.ledger if row.what.startswith(("fragments", "over MTU"))] == []
    assert ledger(seen.profile).fragmentation.startswith("No fragmentation: none of ")


@pytest.mark.parametrize("size", [1000, 700])
def test_checksums_made_while_copying_are_exactly_the_payload(watching: Observer, made: Bed, size: int) -> None:
    ethtool(made, "c", "eth0", "tx", "off")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, size))
    finally:
        ethtool(made, "c", "eth0", "tx", "on")
    assert seen.calls("checksum", "c", "eth0") == COUNT
    assert seen.size("checksum", "c", "eth0") == COUNT * size
    assert seen.calls("checksum", "h") == 0


@pytest.mark.parametrize("size", [1000, 700])
def test_checksum_left_to_a_device_that_cannot_is_made_before_it(watching: Observer, made: Bed, size: int) -> None:
    ethtool(made, "h", "pr", "tx", "off")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, size))
    finally:
        ethtool(made, "h", "pr", "tx", "on")
    assert seen.calls("checksum", "c") == 0
    assert seen.calls("checksum left to device", "c", "eth0") == COUNT
    assert (seen.calls("checksum", "h", "pr"), seen.size("checksum", "h", "pr")) == (COUNT, COUNT * size)


def test_with_offload_on_no_checksum_is_made_anywhere(watching: Observer, made: Bed) -> None:
    seen = counted(watching, made, datagrams(made, COUNT, 1000))
    assert [seen.calls("checksum", name) for name in ("c", "h", "r")] == [0, 0, 0]
    assert seen.calls("checksum left to device", "h", "pr") == COUNT


@pytest.mark.parametrize("segments", [16, 8])
def test_segmentation_in_software_multiplies_packets(watching: Observer, made: Bed, segments: int) -> None:
    work = datagrams(made, COUNT, 1000 * segments, segment=1000)
    ethtool(made, "h", "pr", "tx-udp-segmentation", "off")
    try:
        seen = counted(watching, made, work)
    finally:
        ethtool(made, "h", "pr", "tx-udp-segmentation", "on")
    assert (seen.calls("skb tx", "c", "eth0"), seen.calls("segments tx", "c", "eth0")) == (COUNT, COUNT * segments)
    assert (seen.calls("skb queued", "h", "pr"), seen.calls("skb tx", "h", "pr")) == (COUNT, COUNT * segments)
    assert seen.calls("gso software", "h", "pr", f"into {COUNT * segments} skbs") == COUNT
    assert seen.calls("gso software", "c") == 0
    twin = counted(watching, made, work)
    assert twin.calls("gso software") == 0
    assert (twin.calls("skb tx", "h", "pr"), twin.calls("segments tx", "h", "pr")) == (COUNT, COUNT * segments)


def test_dropped_datagrams_have_reason_device_and_caller(watching: Observer, made: Bed) -> None:
    def nobody_listens() -> Traffic:
        work = "import socket; s = socket.socket(2, 2); [s.sendto(b'x' * 100, ('198.18.82.1', 9)) for _ in range(23)]"
        child = netns.spawn([sys.executable, "-S", "-c", work], netns=made.path("c"))
        assert child.wait(20) == 0
        return Traffic()

    seen = counted(watching, made, nobody_listens)
    rows = seen.lines("drop", "r", "eth0", "NO_SOCKET")
    assert sum(row[0] for row in rows) == COUNT
    assert "__udp4_lib_rcv" in rows[0][2]
    assert not any(word in rows[0][2] for word in ("bpf_", "trace"))


def test_namespace_that_vanishes_while_attached_keeps_its_counts(watching: Observer) -> None:
    with routed("b") as passing:
        work = datagrams(passing, COUNT, 100)

        def then_gone() -> Traffic:
            work()
            subprocess.run(["ip", "netns", "del", passing.full("c")], check=True, timeout=20)
            return Traffic()

        seen = counted(watching, passing, then_gone)
    assert seen.calls("skb rx", "r", "eth0") == COUNT
    # A device that goes down with its namespace may say good-bye to its multicast groups.
    assert COUNT <= seen.calls("skb tx", "c", "eth0") <= COUNT + 2
    assert any("counters of" in warning for warning in seen.profile.runs[0].warnings)


def test_two_at_once_count_the_same(watching: Observer, made: Bed) -> None:
    inner: list[int] = []
    with observer() as second:

        def both() -> Traffic:
            inner.append(counted(second, made, datagrams(made, COUNT, 100)).calls("skb tx", "c", "eth0"))
            return Traffic()

        outer = counted(watching, made, both)
    assert inner == [COUNT]
    assert outer.calls("skb tx", "c", "eth0") == COUNT


def test_attaching_the_default_set_takes_less_than_a_second() -> None:
    with Ledger(budget_share=0) as loaded:
        loaded.start()
        attach_s = loaded.attach_s
        loaded.stop()
    print(f"{attach_s * 1e3:.0f} ms")
    assert attach_s < 1


def test_over_its_budget_the_most_expensive_probe_is_shed_and_the_data_say_so(made: Bed) -> None:
    said: list[str] = []
    with Ledger(budget_share=1e-7, say=said.append) as tight:
        tight.start()
        deadline = time.monotonic() + 10
        while not tight.shed and time.monotonic() < deadline:
            datagrams(made, COUNT, 100)()
        tight.stop()
        rows = {row.name: row for row in tight.probe_infos() if row.state == "shed"}
    assert tight.shed
    row = rows[tight.shed[0]]
    assert row.hits > 0
    assert "over its budget of 1e-05 %" in row.reason
    assert "after the window began" in row.reason
    assert said[0].startswith(f"probe {tight.shed[0]} shed ")


def _attached() -> bool:
    """Whether anybody's ledger is attached: this one of its programs is loaded only then."""
    return any(name.endswith("_nsprof_backlog") for name in loader_syscall.program_infos())


def _record(tmp_path: Path, *words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NSPROF, "record", "-q", *words], cwd=tmp_path, capture_output=True, text=True, timeout=seconds
    )


def test_count_makes_a_pass_of_its_own_and_ledger_reads_it(tmp_path: Path, made: Bed) -> None:
    work = "import socket; s = socket.socket(2, 2); [s.sendto(b'x' * 100, ('198.18.82.1', 9)) for _ in range(23)]"
    python = [sys.executable, "-S", "-c", work]
    done = _record(tmp_path, "--count", "--in", made.full("c"), "--probe", "udp_rvc", "--per", "eth0", "--", *python)
    assert done.returncode == 0, done.stderr
    assert "udp_rvc is not in this kernel" in done.stderr or not done.stderr
    read = subprocess.run([*NSPROF, "ledger", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert read.returncode == 0, read.stderr
    told = json.loads(read.stdout)
    assert any("did you mean udp_rcv" in note for note in told["notes"])
    hops = {(row["namespace"], row["device"]): row for row in told["hops"]}
    assert hops[made.full("c"), "eth0"]["sent"] == COUNT
    report = subprocess.run([*NSPROF, "report", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(report.stdout)["scenarios"][0]["runs"] == 1  # costs do not come from the counting pass


def test_nothing_stays_attached_after_sigkill(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*NSPROF, "record", "-q", "--count", "--", "sleep", "3"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 40
        while not _attached() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _attached()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    deadline = time.monotonic() + 5
    while _attached() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _attached()


def test_a_profile_without_a_counting_pass_says_how_to_make_one(tmp_path: Path) -> None:
    assert _record(tmp_path, "--", "true").returncode == 0
    read = subprocess.run([*NSPROF, "ledger"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert read.returncode == 3
    assert "no counting pass" in read.stderr
    assert "record --count" in read.stderr


def test_raw_tracepoints_count_the_same_where_typed_ones_are_refused(
    made: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ProbeError("no typed tracepoints, for this test")

    monkeypatch.setattr(trials, "tp_btf", refuse)
    made.ip("c", "link", "set", "eth0", "mtu", "1400")
    try:
        with observer() as lower:
            seen = counted(lower, made, datagrams(made, COUNT, 4000))
    finally:
        made.ip("c", "link", "set", "eth0", "mtu", "1500")
    assert seen.rung("queue") == seen.rung("xmit") == "raw_tp"
    assert seen.calls("fragments tx", "c", "eth0") == seen.calls("fragments rx", "r", "eth0") == COUNT * 3
    assert seen.size("checksum", "c", "eth0") == COUNT * 4000


def test_samples_are_kept_where_nothing_can_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ProbeError("no probes, for this test")

    monkeypatch.setattr(Ledger, "__enter__", refuse)
    output = str(tmp_path / "kept.nsprof")
    assert record.record(record.RecordOptions(command=("true",), output=output, count=True)) == 0
    assert "nothing was counted: no probes, for this test" in capsys.readouterr().err
    profile = store.load(output)
    assert len(profile.runs) == 1
    assert profile.meta["notes"] == ["nothing was counted: no probes, for this test"]

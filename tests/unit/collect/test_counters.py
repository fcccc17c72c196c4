"""How counters move: wrap-around, resets, levels, things that come and go; and what is divided by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nsprof.collect.system import counters
from nsprof.collect.system.counters import CounterSnapshot, NamespaceCounters
from nsprof.collect.system.cputime import CpuTimes, busy_seconds, wall_seconds
from nsprof.model.profile import Counter

CPU = CpuTimes("test", 1, {})


def space(**changes: object) -> NamespaceCounters:
    base = NamespaceCounters(7, 70, {"Ip.InReceives": 10, "Udp.InDatagrams": 3}, {2: ("eth0", {"rx_packets": 5})})
    return replace(base, **changes)  # type: ignore[arg-type]


def snap(**namespaces: NamespaceCounters) -> CounterSnapshot:
    return CounterSnapshot(0.0, CPU, namespaces)


def moved(before: CounterSnapshot, after: CounterSnapshot) -> dict[tuple[str, str], float]:
    return {(c.device, c.name): c.delta for c in counters.delta(before, after, 0, {"a": 1})}


def test_what_moved_is_there_and_what_tells_by_standing_still() -> None:
    after = space(mibs={"Ip.InReceives": 33, "Udp.InDatagrams": 3, "Udp.NoPorts": 0})
    rows = counters.delta(snap(a=space()), snap(a=after), 4, {"a": 9})
    assert rows == (
        Counter(4, "netns", 9, "", -1, "Ip.InReceives", 10.0, 23.0),
        Counter(4, "netns", 9, "", -1, "Udp.InDatagrams", 3.0, 0.0),
    )


def test_nothing_moved_gives_no_rows() -> None:
    assert counters.delta(snap(a=space()), snap(a=space()), 0, {"a": 1}) == ()


@pytest.mark.parametrize(
    ("start", "end", "delta"),
    [
        (2**32 - 10, 13, 23),  # a 32-bit counter that wrapped
        (2**64 - 10, 13, 23),  # a 64-bit one
        (2**33, 5, None),  # reset: nothing is known
        (1000, 5, None),
        (5, 2**40, 2**40 - 5),
    ],
)
def test_wraparound_and_reset(start: int, end: int, delta: int | None) -> None:
    before = space(devices={2: ("eth0", {"rx_packets": start})})
    after = space(devices={2: ("eth0", {"rx_packets": end})})
    assert moved(snap(a=before), snap(a=after)).get(("eth0", "rx_packets")) == delta


def test_softnet_columns_have_32_bits_whatever_their_value() -> None:
    before = replace(snap(), softnet={(1, "processed"): 20})
    after = replace(snap(), softnet={(1, "processed"): 10})
    assert moved(before, after)["", "processed"] == 2**32 - 10


def test_levels_may_fall() -> None:
    before, after = space(mibs={"Tcp.CurrEstab": 9}), space(mibs={"Tcp.CurrEstab": 4})
    assert moved(snap(a=before), snap(a=after))["", "Tcp.CurrEstab"] == -5


def test_devices_and_namespaces_that_come_or_go_have_no_rows() -> None:
    before = snap(a=space(), gone=space(inode=8, cookie=80), reused=space(inode=9, cookie=90))
    after = replace(
        snap(a=space(devices={3: ("eth0", {"rx_packets": 9})}), reused=space(inode=9, cookie=91, mibs={"Ip.X": 1})),
        missing={"gone": "cannot be opened"},
    )
    assert counters.delta(before, after, 0, {"a": 1}) == ()
    lost = counters.lost_namespaces(before, after)
    assert "vanished during the run" in lost["gone"]
    assert "another namespace" in lost["reused"]
    assert "a" not in lost


def test_device_with_a_new_ifindex_is_another_device() -> None:
    after = space(devices={2: ("eth0", {"rx_packets": 6}), 3: ("eth0", {"rx_packets": 1000})})
    assert moved(snap(a=space()), snap(a=after))["eth0", "rx_packets"] == 1


def test_busy_is_wall_less_idle_and_bounded() -> None:
    begin = CpuTimes("x", 1, {0: (0, 0), 1: (1_000, 500), 2: (0, 0)})
    end = CpuTimes("x", 1, {0: (10**9, 4 * 10**8), 1: (10**9 + 1_000, 2 * 10**9), 3: (1, 1)})
    assert busy_seconds(begin, end) == {0: 0.6, 1: 0.0}
    assert wall_seconds(begin, end) == 1.0
    assert busy_seconds(begin, replace(end, source="y")) == {}


def rows(*entries: tuple[str, int, str, str, float]) -> list[Counter]:
    return [Counter(0, scope, ns, device, -1, name, 0.0, delta) for scope, ns, device, name, delta in entries]


def test_skbs_are_both_directions_of_the_one_reference_device() -> None:
    table = rows(
        ("device", 1, "w0", "rx_packets", 3),
        ("device", 1, "w0", "tx_packets", 20),
        ("device", 2, "w0", "tx_packets", 500),
        ("device", 1, "eth0", "tx_packets", 900),
    )
    assert counters.reference_denominators(table, namespace=1, device="w0") == {"skb": 23}
    assert counters.reference_denominators(table, namespace=3, device="w0") == {}


def test_segments_are_the_tcp_senders_whichever_end_sends() -> None:
    table = rows(
        ("netns", 1, "", "IpExt.OutOctets", 9e6),
        ("netns", 1, "", "Tcp.OutSegs", 6000),
        ("netns", 2, "", "IpExt.InOctets", 9e6),
        ("netns", 2, "", "IpExt.InNoECTPkts", 6000),
        ("netns", 2, "", "Tcp.OutSegs", 300),
    )
    for ends in ((1, 2), (2, 1), (1,)):
        assert counters.reference_denominators(table, namespace=1, device="", ends=ends) == {"segment": 6000}


def test_segments_without_tcp_are_what_arrived() -> None:
    table = rows(
        ("netns", 1, "", "IpExt.OutOctets", 9e6),
        ("netns", 1, "", "Udp.OutDatagrams", 100),
        ("netns", 2, "", "IpExt.InOctets", 8e6),
        ("netns", 2, "", "IpExt.InNoECTPkts", 4000),
        ("netns", 2, "", "Ip6.InNoECTPkts", 95),
    )
    assert counters.reference_denominators(table, namespace=1, device="", ends=(1, 2)) == {"segment": 4095}


def test_what_came_back_to_the_only_end_known_is_not_what_it_sent() -> None:
    table = rows(
        ("netns", 1, "", "IpExt.OutOctets", 9e6),
        ("netns", 1, "", "IpExt.InOctets", 2e3),
        ("netns", 1, "", "IpExt.InNoECTPkts", 7),
        ("netns", 1, "", "Udp.OutDatagrams", 7000),
    )
    assert counters.reference_denominators(table, namespace=1, device="", ends=(1,)) == {}


def test_mibs_are_taken_apart_when_looked_at(tmp_path: Path) -> None:
    (tmp_path / "snmp").write_text("Ip: Forwarding InReceives\nIp: 2 23\nTcp: MaxConn\nTcp: -1\n")
    (tmp_path / "netstat").write_text("IpExt: InNoECTPkts\nIpExt: 97\n")
    (tmp_path / "snmp6").write_text("Ip6InReceives                   \t7\nIcmp6OutType135 \t5\nbroken line here\n")
    (tmp_path / "sockstat").write_text("sockets: used 3\nTCP: inuse 1 orphan 0 tw 2 alloc 9 mem 152\n")
    mibs = counters._Mibs(str(tmp_path))
    assert dict(mibs) == {
        "Ip.Forwarding": 2,
        "Ip.InReceives": 23,
        "Tcp.MaxConn": -1,
        "IpExt.InNoECTPkts": 97,
        "Ip6.InReceives": 7,
        "Icmp6.OutType135": 5,
        "sockstat.sockets.used": 3,
        "sockstat.TCP.inuse": 1,
        "sockstat.TCP.tw": 2,
    }
    assert mibs == counters._Mibs(str(tmp_path))
    (tmp_path / "sockstat").write_text("sockets: used 3\nTCP: inuse 1 orphan 5 tw 2 alloc 99 mem 1\n")
    assert mibs == counters._Mibs(str(tmp_path))  # only the machine's figures moved
    (tmp_path / "netstat").write_text("IpExt: InNoECTPkts\nIpExt: 98\n")
    assert mibs != counters._Mibs(str(tmp_path))

"""Whose part a cost is: each ns is one cause's, lines of evidence say so, and what only repeats is no cause."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nsprof.analyse.causes import explain
from nsprof.model.results import Finding
from nsprof.render.explain import explain_parts
from tests.profiles import HOST_COSTS
from tests.unit.analyse.causes.pairs import RX, TX, explained, functions_line, own_parts, pair, throughput

_TRACKED = ({"datapath": {}}, {"datapath": {"nft_rules": 40, "conntrack_entries": 4}})


def test_the_functions_of_a_line_add_up_to_the_finding() -> None:
    _, found = explained(
        {
            f"nf_conntrack_in < nf_hook_slow < {TX}": 400.0,
            f"siphash_4u64 < hash_conntrack_raw < nf_conntrack_in < nf_hook_slow < {TX}": 300.0,
        },
        facts=_TRACKED,
    )
    cause = found["conntrack"]
    assert own_parts(functions_line(cause)) == pytest.approx(cause.delta, rel=0.02)
    assert "of this counts" not in functions_line(cause)
    assert sum(v for _, v in cause.functions) == pytest.approx(cause.delta, rel=0.02)


def test_what_another_cause_has_of_a_function_is_said_and_counted_once() -> None:
    """br_nf_pre_routing calls the connection tracking: inclusively it costs 900, of which it keeps 300."""
    bridge = {"devices": {"br0": {"kind": "bridge"}}}
    facts = tuple(
        {**bridge, "datapath": {"conntrack_entries": n}, "sysctl": {"net.bridge.bridge-nf-call-iptables": v}}
        for n, v in ((0, "0"), (4, "1"))
    )
    e, found = explained(
        {
            f"br_nf_pre_routing < nf_hook_slow < {RX}": 300.0,
            f"nf_conntrack_in < nf_hook_slow < br_nf_pre_routing < nf_hook_slow < {RX}": 600.0,
        },
        facts=facts,
    )
    outer, inner = found["bridge-netfilter"], found["conntrack"]
    assert outer.delta == pytest.approx(300, rel=0.1)
    assert inner.delta == pytest.approx(600, rel=0.1)
    text = functions_line(outer)
    (elsewhere,) = re.findall(r"of this counts \+([\d,.]+) as 'connection tracking of every packet'", text)
    assert float(elsewhere) == pytest.approx(inner.delta, rel=0.02)
    assert own_parts(text) == pytest.approx(outer.delta, rel=0.02)
    assert [name for name, _ in outer.functions] == ["br_nf_pre_routing"]
    assert sum(f.delta for f in e.findings) + e.not_explained == pytest.approx(e.total.delta)


def test_what_takes_the_packet_over_is_not_its_caller_s() -> None:
    """br_netfilter calls the bridge's next step itself; without it br_handle_frame would."""
    bridge = {"devices": {"br0": {"kind": "bridge"}}}
    facts = tuple({**bridge, "sysctl": {"net.bridge.bridge-nf-call-iptables": v}} for v in ("0", "1"))
    direct, hooked = "br_handle_frame_finish < br_handle_frame", "br_nf_pre_routing < br_handle_frame"
    through = f"br_handle_frame_finish < br_nf_hook_thresh < {hooked} < {RX}"
    e, found = explained(
        {f"{direct} < {RX}": 0.0, through: 500.0, f"fdb_find_rcu < {through}": 200.0, f"{hooked} < {RX}": 300.0},
        base={f"{direct} < {RX}": 500.0, f"fdb_find_rcu < {direct} < {RX}": 200.0},
        facts=facts,
    )
    assert found["bridge-netfilter"].delta == pytest.approx(300, rel=0.1)
    assert abs(e.not_explained) < 250  # the bridge's own work is where it was


_IPI = f"send_call_function_single_ipi < net_rps_send_ipi < {RX}"


def _flooded(ipis: float, cost: float) -> dict[str, Finding]:
    """Half of what is sent is dropped at the socket: a datagram that is read pays for two on the path."""
    costs = {**HOST_COSTS, _IPI: 200.0}
    extra = {path: 2 * each for path, each in costs.items()} | {_IPI: cost}
    profile = pair(
        extra,
        base={_IPI: 200.0},
        counters={
            ("netns", "Udp.RcvbufErrors"): (0.0, 2.0),
            ("netns", "Udp.OutDatagrams"): (2.0, 4.0),
            ("irq", "CAL interrupts"): (1.0, ipis),
        },
        fields=tuple({**f, "denominators": {"datagram": 200_000.0}} for f in throughput(900.0, 450.0)),
    )
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault", per="datagram")
    return {f.cause: f for f in e.findings}


def test_what_a_repeated_path_moves_in_proportion_is_no_cause_of_its_own() -> None:
    found = _flooded(ipis=2.0, cost=400.0)
    assert "cross-cpu" not in found
    assert found["socket-buffer"].delta == pytest.approx(sum(HOST_COSTS.values()) + 200, rel=0.1)


def test_what_moves_more_than_the_path_is_repeated_is_still_a_cause() -> None:
    assert "cross-cpu" in _flooded(ipis=20.0, cost=4_000.0)


@pytest.mark.parametrize(("comm", "wanted"), [("ksoftirqd/0", True), ("netserver", False)])
def test_work_of_ksoftirqd_is_softirq_work_of_its_cpu(comm: str, wanted: bool) -> None:
    slow = throughput(900.0, 300.0)
    busy: tuple[dict[str, Any], dict[str, Any]] = ({"cpu_busy_s": {0: 4.0, 1: 1.0}}, {"cpu_busy_s": {0: 9.0, 1: 1.0}})
    fields = tuple({**a, **b} for a, b in zip(slow, busy, strict=True))
    made = pair({"udp_queue_rcv_skb < net_rx_action < smpboot_thread_fn < kthread": 42_000.0}, fields=fields)
    profile = replace(made, tasks=tuple(replace(task, comm=comm) for task in made.tasks))
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert ("softirq-bottleneck" in {f.cause for f in e.findings}) is wanted


@pytest.mark.parametrize(("shares", "rates", "wanted"), [
    ((0.04, 0.08), (900, 600), True),  # twice the loss, and throughput fell
    ((0.04, 0.05), (900, 600), False),  # a quarter more of it: Mathis has 11 %
    ((0.04, 0.08), (900, 890), False),  # twice the loss alone varies by itself
    ((0.04, 0.20), (900, 890), True),
])  # fmt: skip
def test_loss_is_a_cause_where_the_counters_prove_it(
    shares: tuple[float, float], rates: tuple[float, float], wanted: bool
) -> None:
    counters = {("netns", "Tcp.OutSegs"): (9.0, 9.0), ("netns", "Tcp.RetransSegs"): shares}
    e, found = explained({}, counters=counters, fields=throughput(*rates))
    assert ("retransmits" in found) is wanted
    assert not wanted or found["retransmits"].certainty == ("found" if rates[1] < 800 else "possible")
    assert not (wanted and rates[1] < 800) or e.answer == "not cpu"


@pytest.mark.parametrize(
    ("new", "rate", "wanted"), [(7_900, 200, True), (7_900, 890, False), (6_291_456, 200, False)]
)
def test_a_lower_limit_of_autotuning_is_a_cause_where_less_gets_through(new: int, rate: int, wanted: bool) -> None:
    name = "net.ipv4.tcp_rmem"
    facts = ({"sysctl": {name: "4096\t131072\t6291456"}}, {"sysctl": {name: f"4096 6300 {new}"}})
    counters = {("netns", "Tcp.OutSegs"): (9.0, 9.0), ("netns", "Udp.OutDatagrams"): (0.0, 0.0)}
    _, found = explained({}, counters=counters, facts=facts, fields=throughput(900.0, rate))
    assert ("window-limited" in found) is wanted
    if wanted:
        assert found["window-limited"].certainty == "found"
        assert "net.ipv4.tcp_rmem ends at 7,900 bytes" in "; ".join(x.text for x in found["window-limited"].evidence)


def test_a_shaper_on_both_sides_explains_nothing_unless_less_gets_through() -> None:
    facts = tuple({"devices": {"w0": {"kind": "veth", "qdisc": "tbf", "qdiscs": ["tbf"]}}} for _ in (0, 1))
    counters = {("device", "qdisc.overlimits"): (0.5, 0.9)}
    assert "shaped" not in explained({}, counters=counters, facts=facts)[1]
    assert "shaped" in explained({}, counters=counters, facts=facts, fields=throughput(900.0, 400.0))[1]


def test_a_setting_of_the_machine_counts_for_the_scenario_that_ran_under_it() -> None:
    counters = {("softnet", "processed"): (9.0, 9.0), ("softnet", "time_squeeze"): (0.0, 1.0)}
    profile = pair({}, counters=counters)
    for name, budget in (("clean", "300"), ("fault", "1")):
        profile.meta["topology"][name]["host"] = {"sysctl": {"net.core.netdev_budget": budget}}
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert [(f.cause, f.certainty) for f in e.findings] == [("time-squeeze", "found")]
    assert "net.core.netdev_budget is 1 (base: 300)" in [x.text for x in e.findings[0].evidence]


@pytest.mark.parametrize(("packets", "whole"), [(5.0, True), (0.0, False)])
def test_small_writes_pay_for_the_packets_that_they_become(packets: float, whole: bool) -> None:
    """Each write a packet: the IP path is the writes', too. Gathered into as many packets as before, it is not."""
    units = {"denominators": {"kb": 200_000.0}}
    words = ("netperf", "-t", "TCP_STREAM", "--", "-m")
    fields = tuple({**units, "command": (*words, size)} for size in ("16384", "64"))
    path = f"ip_rcv_core < {RX}"
    call = "tcp_push < tcp_sendmsg_locked < tcp_sendmsg < do_syscall_64"
    profile = pair(
        {path: 800.0, call: 2_000.0},
        base={path: 100.0, call: 100.0},
        counters={("device", "tx_packets"): (0.0, packets)},
        fields=fields,
    )
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    found = {f.cause: f for f in e.findings}["small-writes"]
    assert found.delta == pytest.approx(2_600 if whole else 1_900, rel=0.1)


def test_what_is_sent_again_for_a_wrong_checksum_is_the_checksum_s() -> None:
    counters = {
        ("netns", "Tcp.OutSegs"): (9.0, 9.0), ("netns", "Tcp.RetransSegs"): (0.0, 0.2),
        ("netns", "Ip.InReceives"): (9.0, 9.0), ("netns", "Tcp.InCsumErrors"): (0.0, 0.2),
    }  # fmt: skip
    for rates, certainty in (((900.0, 900.0), "possible"), ((900.0, 200.0), "found")):
        e, _ = explained({}, counters=counters, fields=throughput(*rates))
        assert [(f.cause, f.certainty) for f in e.findings] == [("wrong-checksums", certainty)]


def test_waiting_for_what_was_lost_is_the_loss() -> None:
    slow = throughput(900.0, 200.0)
    busy: tuple[dict[str, Any], dict[str, Any]] = ({"cpu_busy_s": {0: 9.6, 1: 2.0}}, {"cpu_busy_s": {0: 2.0, 1: 2.0}})
    fields = tuple({**a, **b} for a, b in zip(slow, busy, strict=True))
    assert "waiting" in explained({}, fields=fields)[1]
    counters = {("netns", "Tcp.OutSegs"): (9.0, 9.0), ("netns", "Tcp.RetransSegs"): (0.0, 0.2)}
    assert list(explained({}, fields=fields, counters=counters)[1]) == ["retransmits"]


def test_waiting_is_what_a_dearer_unit_does_not_explain() -> None:
    slow = throughput(900.0, 450.0)
    idle: tuple[dict[str, Any], dict[str, Any]] = ({"cpu_busy_s": {0: 8.0, 1: 2.0}}, {"cpu_busy_s": {0: 4.4, 1: 2.0}})
    fields = tuple({**a, **b} for a, b in zip(slow, idle, strict=True))
    dearer = {f"copy_user_generic < udp_sendmsg < {TX}": 170.0}  # a tenth
    assert "waiting" in explained(dearer, fields=fields)[1]
    twice = {f"copy_user_generic < udp_sendmsg < {TX}": 1_700.0}  # all of it
    assert "waiting" not in explained(twice, fields=fields)[1]


def test_a_counter_that_stands_still_in_single_runs_is_not_mentioned() -> None:
    profile = pair({}, runs=1, counters={("system", "forks"): (0.0, 0.0)})
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert not [n for n in e.notes if "processes started" in n]


def test_the_page_says_what_became_of_the_traffic() -> None:
    from nsprof.cli.html_report import page_content

    profile = pair({}, fields=throughput(900.0, 300.0))
    content = page_content(profile, None, {"baseline": "clean", "scenario": "fault"})
    (note,) = [line for line in content.cards[-1].lines if line.startswith("note: throughput")]
    assert "fell by 67%" in note
    steady = page_content(pair({}), None, {"baseline": "clean", "scenario": "fault"})
    assert not [line for line in steady.cards[-1].lines if line.startswith("note: throughput")]


@pytest.mark.parametrize(("under_test", "wanted"), [((0, 1), True), ((0,), False)])
def test_a_cpu_that_others_fill_could_still_receive(under_test: tuple[int, ...], wanted: bool) -> None:
    """CPU 1 has no sample of the scenario's: under test it has none of its work, at the remote end nobody knows."""
    slow = throughput(900.0, 300.0)
    busy = [{"cpu_busy_s": {0: 4.0, 1: 9.0}}, {"cpu_busy_s": {0: 9.0, 1: 9.0}}]
    fields = tuple({**a, **b, "dut_cpus": under_test} for a, b in zip(slow, busy, strict=True))
    profile = pair({f"udp_queue_rcv_skb < {RX}": 42_000.0}, fields=fields)  # type: ignore[arg-type]
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert ("softirq-bottleneck" in {f.cause for f in e.findings}) is wanted


def test_a_setting_that_is_no_number_is_no_evidence() -> None:
    profile = replace(pair({}), meta={"host": {"sysctl": {"net.core.netdev_budget": "many"}}})
    assert explain(profile, profile, base_scenario="clean", new_scenario="fault").findings == ()


def test_a_path_repeated_for_a_known_reason_is_named_where_noise_hides_its_cost() -> None:
    """GRO off, and three packets for one: what that costs drowns in runs that differ by a third."""
    devices = [{"devices": {"w0": {"kind": "veth", "mtu": 1500, "offloads": {"rx-gro": on}}}} for on in (True, False)]
    counters = {("netns", "Ip.InReceives"): (1.0, 3.0), ("device", "rx_packets"): (3.0, 3.0)}
    fields = ({"denominators": {"kb": 200_000.0}},) * 2
    profile = pair(
        {path: 0.9 * cost for path, cost in HOST_COSTS.items()},
        counters=counters, facts=(devices[0], devices[1]), spread=0.3, fields=fields,
    )  # fmt: skip
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault", per="kb")
    (found,) = [f for f in e.findings if f.cause == "gro-lost"]
    assert (found.certainty, found.delta, found.interval) == ("found", 0.0, None)
    text = "\n".join(line for part in explain_parts(e) for line in getattr(part, "lines", ()))
    assert "that it happens is shown, what it costs is not" in text
    assert "0.00" not in text.partition("receive offload")[2].partition("try:")[0]


@pytest.mark.parametrize(("next_at_base", "wanted"), [(30_000.0, True), (2_000.0, False)])
def test_a_base_whose_cpus_share_the_work_is_no_bottleneck(next_at_base: float, wanted: bool) -> None:
    """CPU 0 is full of softirqs at base as well: a bottleneck now if another CPU had half as much then."""
    first, second = f"udp_queue_rcv_skb < {RX}", f"udp_rcv < {RX}"
    busy = ({"cpu_busy_s": {0: 9.0, 1: 6.0}}, {"cpu_busy_s": {0: 9.0, 1: 1.0}})
    fields = tuple({**a, **b, "dut_cpus": (0, 1)} for a, b in zip(throughput(900.0, 300.0), busy, strict=True))
    made = pair({first: 44_000.0, second: 500.0}, base={first: 42_000.0, second: next_at_base}, fields=fields)
    leaves = [made.frames.name[made.stacks[n][0]] for n in range(len(made.stacks))]
    moved = np.array([leaf == "udp_rcv" for leaf in leaves])[made.samples.stack]
    cpus = np.where(moved, 1, made.samples.cpu).astype(made.samples.cpu.dtype)
    profile = made.with_(samples=replace(made.samples, cpu=cpus))
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert ("softirq-bottleneck" in {f.cause for f in e.findings}) is wanted

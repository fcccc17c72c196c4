"""What every cause must say of itself, and one known answer for each."""

from __future__ import annotations

from typing import Any

import pytest

from nsprof.analyse.causes import explain, rules
from nsprof.analyse.causes.rule import Rule
from nsprof.model.profile import Value
from nsprof.model.results import Explanation
from tests.unit.analyse.causes.pairs import RX, TX, pair

_NAMES = [rule.name for rule in rules()]


@pytest.mark.parametrize("rule", rules(), ids=_NAMES)
def test_a_rule_is_complete(rule: Rule) -> None:
    assert rule.title and rule.what.endswith(".")
    assert rule.source and rule.threshold
    assert rule.tries and all(t.text for t in rule.tries)
    assert not any(w in t.command + t.verify for t in rule.tries for w in ("NETNS", "ip netns exec"))
    assert rule.owns or rule.not_cpu or rule.spread
    assert not rule.not_cpu or rule.checks, "a cause without CPU needs something else to be seen by"
    assert not rule.needs_check or rule.checks
    for check in rule.checks:
        assert check.about
        assert check.kind in ("functions", "counters", "ledger", "host", "workload")
    for name in (*rule.absorbs, *rule.subsumes):
        assert name in _NAMES


def _facts(key: str, value: Any, without: Any = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"datapath": {key: without}}, {"datapath": {key: value}}


def _devices(base: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"devices": base}, {"devices": new}


_VETH = {"w0": {"kind": "veth", "mtu": 1500, "qdisc": "noqueue", "offloads": {"rx-gro": False}}}


_BRIDGED = {**_VETH, "br0": {"kind": "bridge"}}
_NF = "bridge-nf-call-iptables"


def _with(**changes: Any) -> dict[str, Any]:
    return {"w0": {**_VETH["w0"], **changes}}


#: cause -> (call path that costs 600 ns more, what else is different); "found" needs two kinds of evidence.
FOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "netfilter-rules": (f"ipt_do_table < nf_hook_slow < {TX}", {"facts": _facts("nft_rules", 900)}),
    "conntrack": (f"nf_conntrack_in < nf_hook_slow < {TX}", {"facts": _facts("conntrack_entries", 4)}),
    "nat": (
        f"nf_nat_inet_fn < nf_hook_slow < {TX}",
        {"facts": ({"datapath": {}}, {"datapath": {"nft_rules": 1, "conntrack_entries": 9}})},
    ),
    "bridge-netfilter": (
        f"br_nf_pre_routing < nf_hook_slow < {RX}",
        {"facts": tuple({"devices": _BRIDGED, "sysctl": {f"net.bridge.{_NF}": v}} for v in ("0", "1"))},
    ),
    "ebtables": (f"nft_do_chain_bridge < nf_hook_slow < {RX}", {"facts": _facts("nft_rules", 300)}),
    "packet-socket": (f"packet_rcv < dev_queue_xmit_nit < {TX}", {"facts": _facts("packet_sockets", 1)}),
    "tc-filters": (f"u32_classify < tcf_classify < {TX}", {"facts": _facts("tc_filters", {"w0": 40}, {})}),
    "policy-rules": (f"fib4_rule_match < fib_rules_lookup < {TX}", {"facts": _facts("policy_rules", 800, 5)}),
    "route-table": (f"fib_table_lookup < ip_route_input_slow < {RX}", {"facts": _facts("routes", 70_000, 3)}),
    "xdp-generic": (
        f"memcpy < pskb_expand_head < do_xdp_generic < {RX}",
        {"facts": _facts("xdp", {"w0": "generic"}, {})},
    ),
    "xdp-veth": (f"memcpy < veth_convert_skb_to_xdp_buff < {RX}", {"facts": _facts("xdp", {"w0": "driver"}, {})}),
    "software-checksum": (
        f"do_csum < csum_partial < skb_checksum_help < {TX}",
        {
            "facts": _devices(
                _with(offloads={"tx-checksum-ip-generic": True}), _with(offloads={"tx-checksum-ip-generic": False})
            )
        },
    ),
    "head-reallocation": (f"memcpy < pskb_expand_head < {TX}", {"ledger": {"head realloc": 1.0}}),
    "ip-fragmentation": (
        f"memcpy < ip_do_fragment < {TX}",
        {"counters": {("netns", "Ip.FragCreates"): (0, 3), ("netns", "Ip.FragOKs"): (0, 1)}},
    ),
    "extra-hop-bridge": (
        f"br_handle_frame < {RX}",
        {"facts": _devices(_VETH, {**_VETH, "br0": {"kind": "bridge"}})},
    ),
    "extra-hop-routing": (f"ip_forward < {RX}", {"counters": {("netns", "Ip.ForwDatagrams"): (0.0, 2.0)}}),
    "extra-hop-device": (
        f"macvlan_handle_frame < {RX}",
        {"facts": _devices(_VETH, {**_VETH, "m0": {"kind": "macvlan"}})},
    ),
    "tunnel": (
        f"vxlan_xmit_one < vxlan_xmit < {TX}",
        {"facts": _devices(_VETH, {**_VETH, "vx0": {"kind": "vxlan"}})},
    ),
    "qdisc": (f"pfifo_fast_dequeue < __qdisc_run < {TX}", {"facts": _devices(_VETH, _with(qdisc="pfifo_fast"))}),
    "qdisc-lock": (
        f"native_queued_spin_lock_slowpath < _raw_spin_lock < __dev_queue_xmit < {TX}",
        {"facts": _devices(_VETH, _with(qdisc="pfifo_fast"))},
    ),
    "gro-useless": (
        f"tcp4_gro_receive < dev_gro_receive < {RX}",
        {"facts": _devices(_VETH, _with(offloads={"rx-gro": True}))},
    ),
    "cross-cpu": (
        f"send_call_function_single_ipi < net_rps_send_ipi < {RX}",
        {"counters": {("irq", "CAL interrupts"): (0.0, 1.0)}},
    ),
    "lock-conntrack": (
        f"native_queued_spin_lock_slowpath < __nf_conntrack_confirm < nf_confirm < {TX}",
        {"facts": _facts("conntrack_entries", 4)},
    ),
    "lock-socket": (
        f"native_queued_spin_lock_slowpath < lock_sock_nested < {TX}",
        {"counters": {("netns", "TcpExt.TCPBacklogCoalesce"): (0.0, 0.5)}},
    ),
    "flooding": (
        f"skb_clone < deliver_clone < br_flood < {RX}",
        {
            "facts": tuple({"devices": _BRIDGED, "datapath": {"bridge_ports": {"br0": n}}} for n in (2, 30)),
            "counters": {("device", "tx_packets"): (0.0, 28.0)},
        },
    ),
    "namespace-churn": ("setup_net < copy_net_ns < do_syscall_64", {"counters": {("system", "forks"): (0.0, 1.0)}}),
}

#: Causes that functions alone make possible.
POSSIBLE = {
    "bpf-programs": f"bpf_prog_6deef7357e7b4530 < __cgroup_bpf_run_filter_skb < {TX}",
    "slab-pressure": f"___slab_alloc < kmem_cache_alloc_node < __alloc_skb < {TX}",
    "memcg": f"try_charge_memcg < __memcg_slab_post_alloc_hook < __alloc_skb < {TX}",
    "user-copies": f"rep_movs_alternative < _copy_from_iter < ip_generic_getfrag < {TX}",
    "timestamping": f"put_cmsg_scm_timestamping < __sock_recv_timestamp < udp_recvmsg < {TX}",
    "lock-neighbour": f"queued_write_lock_slowpath < neigh_probe < {TX}",
    "lock-route": f"native_queued_spin_lock_slowpath < fib_select_path < {TX}",
    "lock-rtnl": "osq_lock < __mutex_lock.constprop.0 < rtnl_lock < rtnetlink_rcv_msg < do_syscall_64",
    "mitigations": f"__x86_indirect_thunk_rax < {TX}",
    "iommu-dma": f"iommu_dma_map_page < dma_map_page_attrs < {TX}",
    "observer": f"perf_trace_net_dev_xmit < {TX}",
}


def _told(path: str, **more: Any) -> Explanation:
    profile = pair({path: 600.0}, **more)
    return explain(profile, profile, base_scenario="clean", new_scenario="fault")


@pytest.mark.parametrize("cause", FOUND)
def test_a_cause_is_found_by_two_kinds_of_evidence(cause: str) -> None:
    path, more = FOUND[cause]
    e = _told(path, **more)
    assert e.findings and (e.findings[0].cause, e.findings[0].certainty) == (cause, "found"), e.findings
    assert e.findings[0].delta == pytest.approx(600, rel=0.1)


@pytest.mark.parametrize("cause", POSSIBLE)
def test_a_cause_is_possible_by_its_functions(cause: str) -> None:
    e = _told(POSSIBLE[cause])
    assert [(f.cause, f.certainty) for f in e.findings] == [(cause, "possible")]


def _throughput(base: float, new: float) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple({"values": (Value("throughput", v, "Mbit/s", "netperf"),)} for v in (base, new))  # type: ignore[return-value]


#: Causes that cost no CPU: (counters a transaction, settings).
NOT_CPU: dict[str, tuple[dict[tuple[str, str], tuple[float, float]], dict[str, Any]]] = {
    "retransmits": ({("netns", "Tcp.OutSegs"): (9, 9), ("netns", "Tcp.RetransSegs"): (0, 0.2)}, {}),
    "shaped": (
        {("device", "qdisc.overlimits"): (0, 0.5)},
        {"facts": _devices(_VETH, _with(qdisc="tbf", qdiscs=["tbf"]))},
    ),
    "backlog-overflow": ({("softnet", "processed"): (9, 9), ("softnet", "dropped"): (0, 0.2)}, {}),
    "time-squeeze": ({("softnet", "processed"): (9, 9), ("softnet", "time_squeeze"): (0, 0.2)}, {}),
    "wrong-checksums": ({("netns", "Ip.InReceives"): (9, 9), ("netns", "Tcp.InCsumErrors"): (0, 0.2)}, {}),
    "device-drops": ({("device", "tx_packets"): (9, 9), ("device", "qdisc.drops"): (0, 0.2)}, {}),
    "socket-buffer": ({("netns", "Udp.RcvbufErrors"): (0, 1.0), ("netns", "Udp.OutDatagrams"): (2, 3)}, {}),
    "pmtu-black-hole": ({("netns", "TcpExt.TCPTimeouts"): (0, 0.01), ("netns", "Ip.FragFails"): (0, 0.01)}, {}),
}


@pytest.mark.parametrize("cause", NOT_CPU)
def test_a_cause_without_cpu_is_not_a_cpu_problem(cause: str) -> None:
    counters, more = NOT_CPU[cause]
    profile = pair({}, counters=counters, fields=_throughput(900.0, 200.0), **more)
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    names = {f.cause: f for f in e.findings}
    assert cause in names, list(names)
    assert names[cause].not_cpu
    assert names[cause].delta == 0
    assert e.answer in ("not cpu", "partly explained")


@pytest.mark.parametrize("cause", NOT_CPU)
def test_the_same_counters_on_both_sides_are_no_cause(cause: str) -> None:
    counters, _ = NOT_CPU[cause]
    profile = pair({}, counters={k: (v[1], v[1]) for k, v in counters.items()}, fields=_throughput(900.0, 200.0))
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert cause not in {f.cause for f in e.findings}


def test_idle_cpus_and_less_done_at_the_same_cost_is_waiting() -> None:
    slow = _throughput(900.0, 300.0)
    busy: tuple[dict[str, Any], dict[str, Any]] = ({"cpu_busy_s": {0: 9.6, 1: 2.0}}, {"cpu_busy_s": {0: 4.0, 1: 2.0}})
    profile = pair({}, fields=tuple({**a, **b} for a, b in zip(slow, busy, strict=True)))  # type: ignore[arg-type]
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert [(f.cause, f.certainty) for f in e.findings] == [("waiting", "found")]
    full = pair({}, fields=slow, cpu_busy_s={0: 9.6, 1: 2.0})
    assert explain(full, full, base_scenario="clean", new_scenario="fault").findings == ()


def test_one_cpu_full_of_softirqs_beside_an_idle_one_is_a_bottleneck() -> None:
    slow = _throughput(900.0, 300.0)
    busy: tuple[dict[str, Any], dict[str, Any]] = ({"cpu_busy_s": {0: 4.0, 1: 1.0}}, {"cpu_busy_s": {0: 9.0, 1: 1.0}})
    fields = tuple({**a, **b} for a, b in zip(slow, busy, strict=True))
    profile = pair({f"udp_queue_rcv_skb < {RX}": 42_000.0}, fields=fields)  # type: ignore[arg-type]
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    (found,) = [f for f in e.findings if f.cause == "softirq-bottleneck"]
    assert (found.certainty, found.place) == ("found", "CPU 0")

"""What a cause is given besides its own functions, and what is set off: replaced code, programs, late samples."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nsprof.analyse import Filter
from nsprof.analyse.causes import explain
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Counter, FrameKind, Namespace, Samples
from nsprof.model.results import Explanation, Finding
from nsprof.render.explain import explain_parts
from tests.profiles import CLOCK, HOST_COSTS, PERIOD_NS, stack_of
from tests.unit.analyse.causes.pairs import RX, TX, explained, functions_line, own_parts, pair, throughput

_CSUM_OFF = tuple(
    {"devices": {"w0": {"kind": "veth", "mtu": 1500, "offloads": {"tx-checksum-ip-generic": on}}}}
    for on in (True, False)
)
_COPIES = "ip_generic_getfrag < __ip_append_data < ip_make_skb < udp_sendmsg < do_syscall_64"
_PLAIN, _ADDING = f"_copy_from_iter < {_COPIES}", f"csum_partial_copy_generic < csum_and_copy_from_user < {_COPIES}"
_CHECKED = f"__check_object_size < {_COPIES}"


@pytest.mark.parametrize(("adding", "net"), [(900.0, 500.0), (450.0, 50.0), (300.0, -100.0)])
def test_a_copy_that_adds_up_the_checksum_sets_off_the_plain_copy(adding: float, net: float) -> None:
    """300 and 100 ns of copying and checking go, what comes costs so much: the difference is the checksum's."""
    e, found = explained(
        {_PLAIN: 0.0, _CHECKED: 0.0, _ADDING: adding}, base={_PLAIN: 300.0, _CHECKED: 100.0}, facts=_CSUM_OFF
    )
    cause = found["software-checksum"]
    assert cause.certainty == "found"
    assert cause.delta == pytest.approx(net, abs=30)
    assert sum(f.delta for f in e.findings) + e.not_explained == pytest.approx(e.total.delta)
    assert abs(e.not_explained) < 60
    text = functions_line(cause)
    assert own_parts(text) == pytest.approx(adding, rel=0.1)
    assert re.search(
        r"-(39|40|41)\d that they replace, set off: _copy_from_iter -\d+, __check_object_size -\d+", text
    )
    said = "\n".join(line for part in explain_parts(e) for line in getattr(part, "lines", ()))
    assert ("expected gain" in said) is (net > 0)


def test_copies_that_cost_as_much_as_before_are_not_set_off() -> None:
    checksum = f"do_csum < csum_partial < skb_checksum_help < {TX}"
    _, found = explained({_PLAIN: 330.0, checksum: 600.0}, base={_PLAIN: 300.0}, facts=_CSUM_OFF)
    assert found["software-checksum"].delta == pytest.approx(600, rel=0.1)
    assert "set off" not in functions_line(found["software-checksum"])


def test_a_share_above_the_whole_names_what_became_cheaper() -> None:
    """A path of 500 ns goes that no cause owns, and rules of 1,500 come: one and a half times the extra cost."""
    gone = f"some_function_without_a_cause < {RX}"
    e, found = explained(
        {gone: 0.0, f"nft_do_chain < nf_hook_slow < {TX}": 1_500.0},
        base={gone: 500.0}, facts=({"datapath": {"nft_rules": 0}}, {"datapath": {"nft_rules": 500}}),
    )  # fmt: skip
    assert found["netfilter-rules"].share == pytest.approx(1.5, abs=0.15)
    (reason,) = [r for r in e.reasons if "above 100%" in r]
    assert "some_function_without_a_cause (-5" in reason or "some_function_without_a_cause (-4" in reason
    said = "\n".join(line for part in explain_parts(e) for line in getattr(part, "lines", ()))
    assert "of the extra cost (something else became cheaper, see below)" in said
    assert "expected gain: at most" in said


def test_what_became_cheaper_is_named_where_the_whole_is_not_dearer() -> None:
    """Copying into a new head costs 800 and makes a later copy of 900 nearly free."""
    later = f"some_function_without_a_cause < {RX}"
    e, found = explained(
        {later: 50.0, f"memcpy < pskb_expand_head < do_xdp_generic < {RX}": 800.0},
        base={later: 900.0}, facts=({"datapath": {"xdp": {}}}, {"datapath": {"xdp": {"w0": "generic"}}}),
    )  # fmt: skip
    assert found["xdp-generic"].delta == pytest.approx(800, rel=0.1)
    (reason,) = [r for r in e.reasons if "became cheaper" in r]
    assert reason.startswith("what no cause owns became cheaper by 8")
    assert "mostly some_function_without_a_cause (-8" in reason


def test_the_pairs_that_a_flood_leaves_through_are_the_flood_s() -> None:
    facts = {
        "devices": {"br0": {"kind": "bridge"}, "p1": {"kind": "veth"}, "p2": {"kind": "veth"}, "p3": {"kind": "veth"}}
    }
    clone, pair_of = (
        f"skb_clone < maybe_deliver < br_flood < {RX}",
        f"veth_xmit < dev_hard_start_xmit < br_flood < {RX}",
    )
    profile = pair({clone: 700.0, pair_of: 900.0}, facts=(facts, facts))
    moved = []
    for run, r in enumerate(profile.runs):
        for port, there in (("p1", 1), ("p2", int(r.scenario == "fault")), ("p3", int(r.scenario == "fault"))):
            moved.append(Counter(run, "device", 1, port, -1, "tx_packets", 0.0, 200_000.0 * there))
        moved.append(Counter(run, "device", 1, "p1", -1, "rx_packets", 0.0, 200_000.0))
    profile = profile.with_(counters=(*profile.counters, *moved))
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert [f.cause for f in e.findings] == ["flooding"]
    assert e.findings[0].delta == pytest.approx(1_600, rel=0.1)


def test_more_packets_for_each_datagram_that_is_read_are_no_segmentation() -> None:
    """A sender without TSO that outruns its reader: datagrams are not cut, they are dropped."""
    devices = [{"devices": {"w0": {"kind": "veth", "offloads": {"tx-tcp-segmentation": on}}}} for on in (True, False)]
    counters = {("device", "tx_packets"): (1.0, 2.0), ("netns", "Tcp.OutSegs"): (0.0, 0.001)}
    fields = ({"denominators": {"datagram": 200_000.0}},) * 2
    doubled = {path: 2 * cost for path, cost in HOST_COSTS.items()}
    profile = pair(doubled, counters=counters, facts=(devices[0], devices[1]), fields=fields)
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault", per="datagram")
    assert "software-segmentation" not in {f.cause for f in e.findings}


_DELIVERED = "handle_softirqs < __irq_exit_rcu < sysvec_call_function_single < asm_sysvec_call_function_single"


def _handed_over(delivery: float, ipis: float, mask: str, **more: Any) -> tuple[Explanation, dict[str, Finding]]:
    facts = tuple({"devices": {"w0": {"kind": "veth", "rps": m}}} for m in ({"rx-0": "0"}, {"rx-0": mask}))
    return explained(
        {_DELIVERED: delivery}, base={_DELIVERED: 400.0}, skid=("handle_softirqs",), facts=facts,
        counters={("irq", "CAL interrupts"): (2.0, ipis)}, **more,
    )  # fmt: skip


def test_time_until_an_interrupt_of_another_cpu_is_taken_is_the_handing_over_s() -> None:
    """Samples that landed late at the softirq which such an interrupt starts were spent in its delivery."""
    _, found = _handed_over(1_600.0, 4.0, "2")
    assert found["cross-cpu"].certainty == "found"
    assert found["cross-cpu"].delta == pytest.approx(1_200, rel=0.1)


def test_late_softirqs_of_a_timer_are_not() -> None:
    timer = _DELIVERED.replace("call_function_single", "apic_timer_interrupt")
    profile = pair({timer: 1_600.0}, base={timer: 400.0}, skid=("handle_softirqs",),
                   counters={("irq", "CAL interrupts"): (2.0, 4.0)})  # fmt: skip
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert "cross-cpu" not in {f.cause for f in e.findings}


def test_a_setting_of_its_own_and_a_counter_of_the_machine_establish_a_cost_that_noise_hides() -> None:
    _, found = _handed_over(520.0, 4.0, "2", spread=0.4)
    assert found["cross-cpu"].certainty == "found"
    assert {x.kind for x in found["cross-cpu"].evidence} == {"counters", "host"}
    assert _handed_over(520.0, 2.05, "2", spread=0.4)[1] == {}  # no more interrupts
    assert _handed_over(520.0, 4.0, "0", spread=0.4)[1] == {}  # no setting


def test_waiting_for_the_other_cpu_is_the_handing_over_s_and_said() -> None:
    busy: tuple[dict[str, Any], dict[str, Any]] = ({"cpu_busy_s": {0: 8.0, 1: 2.0}}, {"cpu_busy_s": {0: 3.0, 1: 2.0}})
    fields = tuple({**a, **b} for a, b in zip(throughput(900.0, 500.0), busy, strict=True))
    e, found = _handed_over(700.0, 4.0, "2", fields=fields)
    assert list(found) == ["cross-cpu"]
    assert "throughput -44%, its consequence" in [x.text for x in found["cross-cpu"].evidence]
    said = "\n".join(line for part in explain_parts(e) for line in getattr(part, "lines", ()))
    assert "CPU-bound: in part: CPUs idle and less gets through" in said


def test_what_the_programs_cost_that_create_namespaces_is_the_churn_s() -> None:
    """`ip` costs 9,000 in its own code and 2,000 in exec: both besides the kernel's set-up; a stranger's not."""
    made = pair(
        {"ops_init < setup_net < copy_net_ns < do_syscall_64": 800.0}, counters={("system", "forks"): (0.0, 1.0)}
    )
    builder = ProfileBuilder()
    builder.append(made, rename={})
    user = builder.stack([builder.frame("[user]", "", FrameKind.USER)])
    elsewhere = builder.namespace(Namespace(4026539999, 99, name="", role=""))
    for run, r in enumerate(made.runs):
        if r.scenario != "fault":
            continue
        for comm, path, context, ns in (
            ("ip", "ops_init < setup_net < copy_net_ns < do_syscall_64", Context.TASK, 800.0),
            ("ip", "", Context.USER, 9_000.0),
            ("ip", "load_elf_binary < bprm_execve < do_syscall_64", Context.TASK, 2_000.0),
            ("stranger", "", Context.USER, 5_000.0),
        ):
            weight = ns * 200_000.0
            builder.samples(
                Samples.build(
                    1, run=run, event=builder.event(CLOCK), context=context, weight=weight,
                    stack=stack_of(builder, path) if path else user,
                    count=round(weight / PERIOD_NS), task=builder.task(77, 77, comm), task_ns=elsewhere,
                )
            )  # fmt: skip
    builder.meta["topology"] = made.meta["topology"]
    profile = builder.build()
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault", where=Filter(everyone=True))
    found = {f.cause: f for f in e.findings}["namespace-churn"]
    assert found.delta == pytest.approx(800 + 800 + 9_000 + 2_000, rel=0.05)
    assert re.search(r"of the programs that do it: ip \+1[01],\d+$", functions_line(found))
    assert e.not_explained == pytest.approx(5_000, rel=0.1)


def test_a_flood_that_is_read_more_says_that_less_is_paid_for_in_vain() -> None:
    """Two datagrams are sent for each that is read at base, one now: all paths cost half, and rules are dear."""
    rules = ({"datapath": {"nft_rules": 0}}, {"datapath": {"nft_rules": 500}})
    halved = {path: cost / 2 for path, cost in HOST_COSTS.items()}
    profile = pair(
        {**halved, f"nft_do_chain < nf_hook_slow < {TX}": 2_000.0}, facts=rules,
        counters={("netns", "Udp.OutDatagrams"): (4.0, 2.0)},
        fields=({"denominators": {"datagram": 200_000.0}},) * 2,
    )  # fmt: skip
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault", per="datagram")
    (reason,) = [r for r in e.reasons if "above 100%" in r]
    assert "of the datagrams sent are read (base: 50%), so that fewer are paid for in vain" in reason

"""The engine: evidence, attribution without counting twice, classes of answers, and what bad input forbids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from nsprof.analyse.causes import explain, rules
from nsprof.errors import ComparisonError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Event, Profile
from nsprof.model.results import Explanation
from tests.profiles import HOST_COSTS, one_run
from tests.unit.analyse.causes.pairs import RX, TX, pair

NFT = {f"nft_do_chain < nf_hook_slow < {TX}": 900.0}
RULES = ({"datapath": {"nft_rules": 0}}, {"datapath": {"nft_rules": 500}})


def told(profile: Profile, **options: Any) -> Explanation:
    return explain(profile, profile, base_scenario="clean", new_scenario="fault", **options)


def test_two_kinds_of_evidence_find_the_cause_and_its_share() -> None:
    e = told(pair(NFT, facts=RULES))
    (finding,) = e.findings
    assert (finding.cause, finding.certainty) == ("netfilter-rules", "found")
    assert {x.kind for x in finding.evidence} == {"functions", "host"}
    assert finding.delta == pytest.approx(900, rel=0.05)
    assert finding.share == pytest.approx(1.0, abs=0.15)
    assert finding.share_interval is not None
    assert finding.share_interval.low <= 1.0 <= finding.share_interval.high
    assert e.answer == "explained"


def test_one_kind_of_evidence_is_possible_only() -> None:
    (finding,) = told(pair(NFT)).findings
    assert (finding.cause, finding.certainty) == ("netfilter-rules", "possible")


def test_a_setting_that_both_sides_have_is_no_evidence() -> None:
    (finding,) = told(pair(NFT, facts=(RULES[1], RULES[1]))).findings
    assert finding.certainty == "possible"


def test_a_setting_without_cost_is_no_finding() -> None:
    assert told(pair({}, facts=RULES)).findings == ()


def test_findings_and_remainder_make_the_total() -> None:
    extra = {
        **NFT,
        f"dev_queue_xmit_nit < dev_hard_start_xmit < {TX}": 400.0,
        f"some_function_without_a_cause < {RX}": 300.0,
    }
    e = told(pair(extra, facts=RULES))
    assert {f.cause for f in e.findings} == {"netfilter-rules", "packet-socket"}
    assert sum(f.delta for f in e.findings) + e.not_explained == pytest.approx(e.total.delta)
    assert e.not_explained == pytest.approx(300, abs=120)
    assert "some_function_without_a_cause" in dict(e.unexplained_functions)


def test_a_copy_below_a_reallocation_is_the_reallocations() -> None:
    """memcpy, slab and page frames under pskb_expand_head are its cost, though its own self time is nil."""
    below = {
        f"memcpy_orig < pskb_expand_head < skb_cow_head < ip_forward < {RX}": 500.0,
        f"___slab_alloc < __kmalloc < pskb_expand_head < skb_cow_head < ip_forward < {RX}": 300.0,
        f"get_page_from_freelist < __alloc_pages < pskb_expand_head < skb_cow_head < ip_forward < {RX}": 200.0,
    }
    e = told(pair(below))
    assert [f.cause for f in e.findings] == ["head-reallocation"]
    assert e.findings[0].delta == pytest.approx(1000, rel=0.05)


def test_the_same_leaf_elsewhere_is_not() -> None:
    e = told(pair({f"memcpy_orig < skb_copy_datagram_from_iter < {TX}": 500.0}))
    assert "head-reallocation" not in [f.cause for f in e.findings]


def test_a_late_sample_owns_nothing_by_its_leaf() -> None:
    """Where a late sample landed is no cause; what lies above it may be one."""
    profile = pair({f"br_pass_frame_up < {RX}": 800.0}, skid=("br_pass_frame_up",))
    assert "extra-hop-bridge" not in [f.cause for f in told(profile).findings]


def test_interrupted_work_does_not_own_the_softirq_above_it() -> None:
    """A softirq that ran inside nft_do_chain's caller is not netfilter's."""
    stack = f"__udp4_lib_lookup < {RX} < nft_do_chain < nf_hook_slow"
    assert "netfilter-rules" not in [f.cause for f in told(pair({stack: 900.0})).findings]


def test_one_run_a_side_has_no_interval_and_says_so() -> None:
    e = told(pair(NFT, facts=RULES, runs=1))
    assert [f.cause for f in e.findings] == ["netfilter-rules"]
    assert e.findings[0].interval is None
    assert e.findings[0].share_interval is None
    assert any("runs" in line for line in e.next)


@pytest.mark.parametrize("seed", range(12))
def test_pairs_without_a_difference_have_no_finding(seed: int) -> None:
    e = told(pair({}, seed=seed, spread=0.1))
    assert e.findings == ()
    assert e.answer in ("no difference", "not enough data", "not explained")


def test_few_samples_are_not_enough_data() -> None:
    builder = ProfileBuilder()
    for name in ("clean", "fault"):
        one_run(builder, name, {**HOST_COSTS, **(NFT if name == "fault" else {})}, transactions=20.0)
    e = told(builder.build())
    assert e.answer == "not enough data"
    assert e.findings == ()
    assert any("samples" in line for line in e.forbids)


def test_noise_above_the_difference_is_not_enough_data() -> None:
    e = told(pair({f"some_function < {TX}": 20.0}, spread=0.9, runs=3))
    assert (e.answer, e.findings) == ("not enough data", ())


def test_without_units_no_conclusion_from_counters() -> None:
    profile = pair(
        {f"ip_do_fragment < {TX}": 900.0},
        counters={("netns", "Ip.FragCreates"): (0.0, 3.0)},
        denominators={},
    )
    e = told(profile)
    assert any("counters" in line for line in e.forbids)
    assert all(x.kind != "counters" for f in e.findings for x in f.evidence)


def _renamed(costs: Mapping[str, float], form: str) -> dict[str, float]:
    return {
        " < ".join(form.format(abs(hash((p, i))) % 10**6) for i, p in enumerate(k.split("<"))): v
        for k, v in costs.items()
    }


@pytest.mark.parametrize(("form", "word"), [("0xffffffff81{:06d}", "symbol"), ("foreign_{:06d}", "foreign")])
def test_without_kernel_symbols_nothing_is_concluded_from_functions(form: str, word: str) -> None:
    builder = ProfileBuilder()
    for _ in range(3):
        for name in ("clean", "fault"):
            one_run(builder, name, _renamed({**HOST_COSTS, **(NFT if name == "fault" else {})}, form))
    e = told(builder.build())
    assert e.findings == ()
    assert e.answer == "not enough data"
    assert any(word in line for line in e.forbids)


def test_with_nearly_all_samples_late_nothing_is_concluded_from_functions() -> None:
    leaves = tuple(k.split("<")[0].strip() for k in (*HOST_COSTS, *NFT))
    e = told(pair(NFT, facts=RULES, skid=leaves))
    assert e.findings == ()
    assert any("skid" in line for line in e.forbids)


def test_with_most_samples_late_functions_alone_are_not_enough() -> None:
    leaves = tuple(k.split("<")[0].strip() for k, v in HOST_COSTS.items() if v < 300)
    assert told(pair(NFT, skid=leaves)).findings == ()
    assert [f.certainty for f in told(pair(NFT, facts=RULES, skid=leaves)).findings] == ["found"]


def test_profiles_of_different_events_are_refused() -> None:
    profiles = []
    for event in (Event("cpu-clock", "ns"), Event("cycles", "cycles")):
        builder = ProfileBuilder()
        one_run(builder, "x", HOST_COSTS, event=event)
        profiles.append(builder.build())
    with pytest.raises(ComparisonError):
        explain(profiles[0], profiles[1])


def test_exact_counts_need_one_run_and_are_a_kind_of_their_own() -> None:
    event = Event("instructions", "instructions", "modelled")
    e = told(pair(NFT, facts=RULES, runs=1, seed=None, event=event))
    assert e.findings[0].evidence[0].kind == "simulation"
    assert e.findings[0].certainty == "found"
    assert e.findings[0].share == pytest.approx(1.0)


def test_loss_is_not_a_cpu_problem() -> None:
    values = [{"values": (_throughput(v),)} for v in (941.0, 300.0)]
    profile = pair(
        {},
        counters={("netns", "Tcp.OutSegs"): (10.0, 10.0), ("netns", "Tcp.RetransSegs"): (0.0, 0.4)},
        fields=(values[0], values[1]),
    )
    e = told(profile)
    assert (e.answer, e.findings[0].cause) == ("not cpu", "retransmits")
    assert {x.kind for x in e.findings[0].evidence} == {"counters", "workload"}
    assert e.findings[0].delta == 0


def _throughput(value: float) -> Any:
    from nsprof.model.profile import Value

    return Value("throughput", value, "Mbit/s", "netperf")


def test_new_against_base_and_base_against_new_are_opposites() -> None:
    profile = pair(NFT, facts=RULES)
    back = explain(profile, profile, base_scenario="fault", new_scenario="clean")
    assert back.findings == ()
    assert back.total.delta == pytest.approx(-told(profile).total.delta)


def test_every_rule_can_be_asked_about_a_bare_profile() -> None:
    """Samples only: no counters, no settings, no ledger, no workload's results."""
    builder = ProfileBuilder()
    for name in ("clean", "fault"):
        run = one_run(builder, name, HOST_COSTS)
        builder.runs[run] = builder.runs[run].__class__(scenario=name, denominators={"transaction": 20_000.0})
    builder.counters.clear()
    e = told(builder.build())
    assert e.findings == ()
    assert len(rules()) >= 25


def test_shares_of_a_noisy_total_are_not_given() -> None:
    random = np.random.default_rng(3)
    builder = ProfileBuilder()
    for _ in range(4):
        for name in ("clean", "fault"):
            load = {f"udp_sendmsg < do_syscall_64 < x{i}": float(random.uniform(0, 3000)) for i in range(1)}
            one_run(builder, name, {**HOST_COSTS, **load, **(NFT if name == "fault" else {})})
    e = told(builder.build())
    if e.total.interval is not None and e.total.interval.low <= 0:
        assert np.isnan(e.not_explained_share)

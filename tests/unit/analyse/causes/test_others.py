"""Whose evidence it is: other load on the machine, the namespace that owns a setting, and how much is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nsprof.analyse import Filter
from nsprof.analyse.causes import explain
from nsprof.analyse.causes.case import case_of
from nsprof.analyse.comparing import two_sides
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Counter, Namespace, Profile, Samples
from nsprof.model.results import Explanation
from tests.profiles import CLOCK, HOST_COSTS, PERIOD_NS, one_run, stack_of
from tests.unit.analyse.causes.pairs import RX, TX, pair

#: A softirq in a system call's own local_bh_enable, as the receiver of a virtual device runs.
INLINE = f"nft_do_chain < nf_hook_slow < {RX}"
CALLED = INLINE.replace("do_softirq < __local_bh_enable_ip", "do_softirq.part.0 < __local_bh_enable_ip")
RULES = ({"datapath": {"nft_rules": 0}}, {"datapath": {"nft_rules": 500}})


def told(profile: Profile, **options: Any) -> Explanation:
    return explain(profile, profile, base_scenario="clean", new_scenario="fault", **options)


def with_samples(
    samples: Mapping[int, int], path: str, *, foreign: bool, facts: Any = RULES, runs: int = 4
) -> Profile:
    """Pairs of runs without a difference, and in the runs of "fault" so many samples of a call path more."""
    builder = ProfileBuilder()
    noise = np.random.default_rng(5)
    for turn in range(runs):
        for name in ("clean", "fault"):
            run = one_run(builder, name, HOST_COSTS, noise=noise, spread=0.02, transactions=200_000.0)
            number = samples.get(turn, 0) if name == "fault" else 0
            if not number:
                continue
            other = builder.namespace(Namespace(4026539999, 99, name="", role=""))
            builder.samples(
                Samples.build(
                    1,
                    run=run,
                    event=builder.event(CLOCK),
                    stack=stack_of(builder, path),
                    context=Context.SOFTIRQ,
                    weight=number * PERIOD_NS,
                    count=number,
                    task=builder.task(77, 77, "stranger" if foreign else "netperf"),
                    task_ns=other if foreign else 1,
                )
            )
    builder.meta["topology"] = {n: {"namespaces": {"host": facts[i]}} for i, n in enumerate(("clean", "fault"))}
    return builder.build()


def test_a_softirq_in_a_strangers_system_call_is_no_cause_of_the_scenario() -> None:
    e = told(with_samples(dict.fromkeys(range(4), 40), CALLED, foreign=True))
    assert e.findings == ()
    assert any(n.startswith("other load:") and "system calls" in n for n in e.notes)


def test_the_same_softirq_in_an_own_task_is_one() -> None:
    e = told(with_samples(dict.fromkeys(range(4), 40), CALLED, foreign=False))
    assert [(f.cause, f.certainty) for f in e.findings] == [("netfilter-rules", "found")]


def test_who_asks_for_everyone_gets_everyone() -> None:
    profile = with_samples(dict.fromkeys(range(4), 40), CALLED, foreign=True)
    assert [f.cause for f in told(profile, where=Filter(everyone=True)).findings] == ["netfilter-rules"]


@pytest.mark.parametrize(("samples", "found"), [(4, False), (8, True)])
def test_presence_counts_from_six_samples_on_and_its_interval_is_above_nothing(samples: int, found: bool) -> None:
    spread = {turn: samples // 4 + (turn < samples % 4) for turn in range(4)}
    e = told(with_samples(spread, CALLED, foreign=False))
    assert bool(e.findings) is found
    for finding in e.findings:
        assert finding.interval is not None
        assert finding.interval.low > 0


def test_a_burst_in_one_run_shows_nothing() -> None:
    """Twenty samples, all in one of four runs: what belongs to a scenario runs in each."""
    assert told(with_samples({2: 20}, CALLED, foreign=False)).findings == ()
    assert told(with_samples(dict.fromkeys(range(4), 5), CALLED, foreign=False)).findings != ()


def test_presence_alone_needs_runs_that_chance_would_not_divide() -> None:
    """Without any other evidence 3 against 3 runs are divided like this once in 20 times."""
    nothing: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    numbers = {0: 26, 1: 34, 2: 30, 3: 31}
    few, enough = (told(with_samples(numbers, CALLED, foreign=False, facts=nothing, runs=n)) for n in (2, 4))
    assert few.findings == ()
    assert [(f.cause, f.certainty) for f in enough.findings] == [("netfilter-rules", "possible")]


def test_counters_of_a_strangers_namespace_are_not_counted() -> None:
    profile = pair({}, counters={("netns", "Tcp.OutSegs"): (10.0, 10.0)})
    stranger = len(profile.namespaces) + 1
    lost = [Counter(i, "netns", stranger, "", -1, "Tcp.RetransSegs", 0.0, 50_000.0) for i in profile.runs_of("fault")]
    changed = profile.with_(
        namespaces=(*profile.namespaces, Namespace(4026539999, 99)), counters=(*profile.counters, *lost)
    )
    assert told(changed).findings == ()
    own = [c._replace(namespace=1) for c in lost]
    assert [f.cause for f in told(profile.with_(counters=(*profile.counters, *own))).findings] == ["retransmits"]


def test_what_moves_on_the_whole_machine_only_is_a_note() -> None:
    profile = pair({}, counters={("softnet", "processed"): (9, 9), ("softnet", "dropped"): (0, 0.2)})
    e = told(profile)
    assert e.findings == ()
    assert any("other load?" in n and "backlog" in n for n in e.notes)


def test_somebody_elses_churn_is_not_the_scenarios() -> None:
    """Tasks of other namespaces are left out; what remains of them without one (exits, RCU) is no cause either."""
    path = "umount_tree < cleanup_mnt < task_work_run < do_exit < do_syscall_64"
    profile = pair({path: 400.0}, counters={("system", "forks"): (0.0, 1.0)})
    rows = np.flatnonzero(["umount_tree" in profile.frames.name[profile.stacks[s][0]] for s in profile.samples.stack])
    space = profile.samples.task_ns.copy()
    space[rows] = 0
    e = told(profile.with_(samples=replace(profile.samples, task_ns=space)))
    assert "namespace-churn" not in [f.cause for f in e.findings]
    assert "namespace-churn" in [f.cause for f in told(profile).findings]


def _spaces(base: Mapping[str, Any], new: Mapping[str, Any], extra: float, path: str, **more: Any) -> Explanation:
    profile = pair({path: extra}, **more)
    topology = {"clean": {"namespaces": base}, "fault": {"namespaces": new}}
    return told(profile.with_(meta={**profile.meta, "topology": topology}))


def _space(bridge: bool = False, nf: str = "1", **datapath: Any) -> dict[str, Any]:
    devices = {"w0": {"kind": "veth", "mtu": 1500, "offloads": {"rx-gro": False}}}
    if bridge:
        devices["br0"] = {"kind": "bridge", "mtu": 1500, "offloads": {"rx-gro": True}}
    kept = {"policy_rules": 5, "routes": 3, "nft_rules": 0, **datapath}
    return {"devices": devices, "sysctl": {"net.bridge.bridge-nf-call-iptables": nf}, "datapath": kept}


def test_bridge_netfilter_is_named_where_the_bridge_is() -> None:
    """The setting is 1 by default in every namespace, the pod's included; it counts where a bridge is."""
    base = {"host": _space(), "remote": _space()}
    new = {"c0": _space(), "host": _space(bridge=True), "remote": _space()}
    e = _spaces(base, new, 600.0, f"br_nf_pre_routing < nf_hook_slow < {RX}")
    (finding,) = [f for f in e.findings if f.cause == "bridge-netfilter"]
    (setting,) = [x.text for x in finding.evidence if x.kind == "host"]
    assert finding.place == "host"
    assert "on in host, where bridge br0 is (base: no bridge there)" in setting


def test_a_bridge_whose_setting_was_off_says_so() -> None:
    base = {"host": _space(bridge=True, nf="0")}
    e = _spaces(base, {"host": _space(bridge=True)}, 600.0, f"br_nf_pre_routing < nf_hook_slow < {RX}")
    assert "(base: off)" in "".join(x.text for x in e.findings[0].evidence)


@pytest.mark.parametrize(
    "path",
    [
        f"fib4_rule_match < fib_rules_lookup < {TX}",
        f"tcp4_gro_receive < dev_gro_receive < {RX}",
        f"ip_forward < {RX}",
    ],
)
def test_what_one_more_namespace_has_by_default_is_no_evidence(path: str) -> None:
    """Five built-in rules, GRO on a bridge, forwarding switched on where there is one device: no differences."""
    base = {"host": _space()}
    pod = _space()
    pod["sysctl"] = {**pod["sysctl"], "net.ipv4.ip_forward": "1"}
    e = _spaces(base, {"c0": pod, "host": _space(bridge=True)}, 600.0, path)
    assert all(x.kind != "host" for f in e.findings for x in f.evidence)


def test_a_bridge_that_floods_sends_more_than_it_receives() -> None:
    """One more bridge with twice as many devices is no flooding: every packet leaves it once."""
    devices = _space(bridge=True)["devices"]
    facts = ({"devices": {"w0": devices["w0"]}}, {"devices": devices, "datapath": {"bridge_ports": {"br0": 30}}})
    path = f"skb_clone < deliver_clone < br_flood < {RX}"
    assert "flooding" not in [f.cause for f in told(pair({path: 600.0}, facts=facts)).findings]
    more = {("device", "tx_packets"): (0.0, 28.0)}
    assert "flooding" in [f.cause for f in told(pair({path: 600.0}, facts=facts, counters=more)).findings]


def test_counters_a_second_are_divided_by_the_seconds_that_a_run_took() -> None:
    profile = pair({}, counters={("netns", "X"): (1.0, 1.0)}, duration_s=4.0)
    runs = tuple(replace(r, denominators={}) for r in profile.runs)
    sides = two_sides(
        profile.with_(runs=runs), profile.with_(runs=runs), base_scenario="clean", new_scenario="fault", per="second"
    )
    case = case_of(sides)
    assert case.base.units.tolist() == [4.0] * 4
    assert case.moved("X").base.tolist() == [pytest.approx(200_000 / 4.0)] * 4


def test_without_units_or_seconds_nothing_was_counted() -> None:
    profile = pair({}, counters={("netns", "X"): (1.0, 1.0)}, denominators={})
    profile = profile.with_(runs=tuple(replace(r, duration_s=0.0) for r in profile.runs))
    sides = two_sides(profile, profile, base_scenario="clean", new_scenario="fault")
    assert case_of(sides).base.rows("X") == []

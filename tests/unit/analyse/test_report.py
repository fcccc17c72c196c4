"""`report`: known answers from profiles whose costs are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from nsprof.analyse import Filter, report
from nsprof.analyse.selection import view
from nsprof.analyse.trust import chance_of_sums, lost_share, runs_trouble
from nsprof.errors import EvidenceError, UsageError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Event, FrameKind, Lateness, Losses, Profile, Run, Samples
from nsprof.model.results import CostReport, FunctionRow
from tests.profiles import CLOCK, HOST_COSTS, bench_profile, bridge_costs, one_run, stack_of


def function(result: CostReport, name: str) -> FunctionRow:
    return next(f for f in result.functions if f.name == name)


def profile_of(*rows: tuple[str, float], **columns: object) -> Profile:
    """One run of 1,000 transactions in 10 s; rows are (stack, ns a transaction)."""
    builder = ProfileBuilder()
    builder.event(CLOCK)
    stacks = [stack_of(builder, text) for text, _ in rows]
    builder.samples(
        Samples.build(len(rows), stack=stacks, weight=[c * 1000 for _, c in rows], count=1, context=2, **columns)
    )
    builder.runs.append(Run("s", duration_s=10, cpus=1, denominators={"transaction": 1000, "second": 10}))
    return builder.build()


def test_self_and_total_costs_are_the_ones_put_in() -> None:
    result = report(bench_profile(seed=None), scenario="host")
    assert result.measure.label == "ns/transaction"
    assert result.total == pytest.approx(sum(HOST_COSTS.values()))
    for text, cost in HOST_COSTS.items():
        leaf = text.split(" < ")[0].replace(".isra.0", "")
        assert function(result, leaf).self_cost == pytest.approx(cost)
    assert sum(f.self_cost for f in result.functions) == pytest.approx(result.total)
    assert sum(c.cost for c in result.categories) == pytest.approx(result.total)


def test_the_sender_does_not_own_the_receiver_that_runs_inside_it() -> None:
    """One-CPU UDP request/response: udp_sendmsg's total excludes udp_rcv, which runs in its local_bh_enable."""
    profile = bench_profile(seed=None)
    sending = sum(v for k, v in HOST_COSTS.items() if "udp_sendmsg" in k and "handle_softirqs" not in k)
    receiving = sum(v for k, v in HOST_COSTS.items() if "handle_softirqs" in k)
    apart = report(profile, scenario="host")
    assert function(apart, "udp_sendmsg").total_cost == pytest.approx(sending)
    assert function(apart, "handle_softirqs").total_cost == pytest.approx(receiving)
    assert not any(f.name in ("do_softirq", "__local_bh_enable_ip") for f in apart.functions)
    joined = report(profile, scenario="host", join_contexts=True)
    assert function(joined, "udp_sendmsg").total_cost == pytest.approx(sending + receiving)


def test_the_leafmost_interrupt_entry_decides() -> None:
    result = report(
        profile_of(("tick_sched_timer < sysvec_apic_timer_interrupt < ip_rcv < handle_softirqs < udp_sendmsg", 5.0))
    )
    assert function(result, "sysvec_apic_timer_interrupt").total_cost == 5.0
    assert not any(f.name in ("ip_rcv", "handle_softirqs", "udp_sendmsg") for f in result.functions)


def test_recursion_counts_once_a_stack() -> None:
    result = report(profile_of(("f < g < f < g < f", 7.0), ("g < f", 1.0)))
    assert function(result, "f").total_cost == 8.0
    assert function(result, "f").self_cost == 7.0
    assert function(result, "g").total_cost == 8.0
    assert function(result, "f").total_share == pytest.approx(1.0)


def test_compiler_suffixes_are_one_function() -> None:
    result = report(profile_of(("f.isra.0 < g", 1.0), ("f.constprop.1.cold < g", 2.0), ("f < g", 4.0)))
    assert [(f.name, f.self_cost) for f in result.functions if f.self_cost] == [("f", 7.0)]


def test_idle_time_is_not_in_shares() -> None:
    without = report(bench_profile(seed=None), scenario="host")
    with_idle = report(bench_profile(seed=None, idle_s=5.0), scenario="host")
    assert with_idle.total == pytest.approx(without.total)
    assert not any("idle" in f.name for f in with_idle.functions)
    assert sum(f.self_share for f in with_idle.functions) == pytest.approx(1.0)


def test_units_follow_the_denominator() -> None:
    profile = bench_profile(seed=None)
    whole = sum(HOST_COSTS.values())
    assert report(profile, scenario="host", per="skb").total == pytest.approx(whole / 2)
    assert report(profile, scenario="host", per="packet").measure.per == "skb"
    assert report(profile, scenario="host", per="packet").measure.reference == "w0 in host (rx+tx)"
    assert report(profile, scenario="host", per="second").total == pytest.approx(whole * 2000)
    assert report(profile, scenario="host", per="share").total == pytest.approx(100.0)
    assert report(profile, scenario="host", per="total").total == pytest.approx(whole * 20_000)
    with pytest.raises(EvidenceError, match=r"datagram.*not counted"):
        report(profile, scenario="host", per="datagram")
    with pytest.raises(UsageError, match="furlong"):
        report(profile, scenario="host", per="furlong")


def test_frequency_and_length_do_not_change_unit_costs() -> None:
    """499 and 997 Hz, 5 and 20 s: weights are in ns, so unit costs agree."""
    builder = ProfileBuilder()
    fast = Event("cpu-clock", "ns", "sampled", period=1_003_009, frequency_hz=997)
    one_run(builder, "host", HOST_COSTS, transactions=5_000, duration_s=5)
    one_run(builder, "host", HOST_COSTS, transactions=80_000, duration_s=20, event=fast)
    result = report(builder.build(), scenario="host", by="run")
    assert len(result.groups) == 2
    assert result.groups[0].cost == pytest.approx(result.groups[1].cost)
    assert result.total == pytest.approx(sum(HOST_COSTS.values()))


def test_cost_figures_come_from_runs_without_hop_probes() -> None:
    dear = {k: v * 1.5 for k, v in HOST_COSTS.items()}
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS)
    one_run(builder, "host", dear, hop=True)
    profile = builder.build()
    assert report(profile).total == pytest.approx(sum(HOST_COSTS.values()))
    split = report(profile, by="netns")
    assert split.total == pytest.approx(1.5 * sum(HOST_COSTS.values()))
    assert any("hop probes" in note for note in split.notes)


def test_failed_and_warm_up_runs_are_left_out() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS)
    one_run(builder, "host", bridge_costs(), warmup=True)
    one_run(builder, "host", bridge_costs(), failed="netperf died")
    assert report(builder.build()).runs == 1
    only_failed = builder.build().with_(runs=tuple(r for r in builder.runs if r.failed) * 3)
    with pytest.raises(EvidenceError, match="netperf died"):
        report(only_failed)


def test_late_samples_are_shown_and_marked() -> None:
    result = report(bench_profile(seed=None), scenario="host")
    row = function(result, "_raw_spin_unlock_irqrestore")
    assert row.skid_share == 1.0
    assert row.category == "syscall and socket"  # the section that ended there is sock_def_readable's
    assert result.skid_share == pytest.approx(180 / sum(HOST_COSTS.values()))
    assert function(result, "fib_table_lookup").skid_share == 0.0


def test_adding_up_is_checked_against_the_measured_cpu_time() -> None:
    profile = bench_profile(runs=1, seed=None, transactions=2_000_000)
    good = report(profile, scenario="host")
    assert good.sampled_cpu_s == pytest.approx(good.measured_cpu_s)
    assert good.alarms == ()
    for factor, alarmed in ((1.01, False), (1.03, True), (0.9, True)):
        busy = [run.cpu_busy_s[0] * factor for run in profile.runs]
        runs = tuple(  # busy all the time, so that nothing is left to chance
            replace(r, cpu_busy_s={0: s, 1: 1.0}, duration_s=s) for r, s in zip(profile.runs, busy, strict=True)
        )
        alarms = report(profile.with_(runs=runs), scenario="host").alarms
        assert any("add up" in a for a in alarms) == alarmed
    filtered = report(profile, scenario="host", where=Filter(contexts=("softirq",)))
    assert math.isnan(filtered.measured_cpu_s)


def test_sums_of_a_few_ticks_are_not_doubted() -> None:
    profile = bench_profile(runs=1, seed=None, transactions=2_000)
    run = profile.runs[0]
    short = profile.with_(runs=(replace(run, cpu_busy_s={0: run.cpu_busy_s[0] * 1.5, 1: 1.0}), *profile.runs[1:]))
    assert report(short, scenario="host").alarms == ()


def test_a_warning_that_runs_have_in_common_is_said_once() -> None:
    profile = bench_profile(runs=4)
    texts = [("a: b 1",), ("a: b 2", "odd: c"), ("same",), ("same",)]
    runs, given = [], iter(texts)
    for run in profile.runs:
        runs.append(replace(run, warnings=next(given)) if run.scenario == "host" else run)
    numbers = [i + 1 for i, run in enumerate(profile.runs) if run.scenario == "host"]
    notes = report(profile.with_(runs=tuple(runs)), scenario="host").notes
    said = [note for note in notes if note.startswith("run")]
    assert f"run {numbers[0]}: a: b 1 (the like in run {numbers[1]})" in said
    assert f"run {numbers[1]}: odd: c" in said
    assert f"runs {numbers[2]} and {numbers[3]}: same" in said
    assert len([n for n in said if "same" in n or "a: b" in n]) == 2


@pytest.mark.parametrize("by", ["netns", "device", "hop"])
def test_a_split_that_only_hop_probes_can_make_says_how_to_get_them(by: str) -> None:
    profile = bench_profile(runs=2)
    blind = profile.with_(
        samples=replace(profile.samples, hop_dev=np.zeros_like(profile.samples.hop_dev)),
        meta={"record": {"command": ["netperf", "-H", "10.0.0.7"], "in": "pod a", "watch": []}},
    )
    (alarm,) = report(blind, scenario="host", by=by).alarms
    assert alarm.startswith("recorded without hop probes")
    assert alarm.endswith("sudo nsprof record --hop --in 'pod a' -- netperf -H 10.0.0.7")
    assert report(blind, scenario="host").alarms == ()
    seeing = tuple(replace(run, probes_on=("sampler", "hop")) for run in blind.runs)
    assert report(blind.with_(runs=seeing), scenario="host", by=by).alarms == ()


def test_devices_of_a_recording_without_hop_probes_are_no_misspelling() -> None:
    with pytest.raises(EvidenceError, match="recorded without hop probes") as found:
        report(bench_profile(runs=1).with_(devices=()), scenario="host", where=Filter(devices=("eth0",)))
    assert "record --hop" in found.value.hint


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"losses": Losses(expected=1000, seen=980, map_full=20)},
            "lost 2.0% of its samples on all CPUs together .map full 20",
        ),
        ({"cpu_steal_s": 0.5}, "steal"),
        ({"losses": Losses(expected=100, seen=100, stack_collisions=5)}, "no call stack"),
    ],
)
def test_what_spoils_a_run_is_an_alarm(fields: dict[str, object], words: str) -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS, **fields)
    assert any(__import__("re").search(words, a) for a in report(builder.build()).alarms)


def test_unknown_losses_stay_unknown() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS, losses=Losses(expected=-1, seen=5))
    result = report(builder.build())
    assert math.isnan(result.lost_share)
    assert any("could not be known" in n for n in result.notes)


def test_the_device_under_test_is_the_headline_and_the_remote_end_apart() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS)
    extra = Samples.build(1, cpu=1, stack=0, context=2, count=1, weight=20_000 * 100.0)
    builder.samples(extra)
    profile = builder.build()
    host = sum(HOST_COSTS.values())
    assert report(profile).total == pytest.approx(host)
    assert report(profile, where=Filter(side="remote")).total == pytest.approx(100.0)
    assert report(profile, where=Filter(side="all")).total == pytest.approx(host + 100.0)


def test_splits_add_up_and_unknown_is_a_group() -> None:
    profile = bench_profile(runs=1, hop_runs=1, seed=None)
    for by in ("netns", "device", "hop", "context", "category", "task", "cpu"):
        result = report(profile, scenario="veth-bridge", by=by)
        assert sum(g.cost for g in result.groups) == pytest.approx(result.total), by
        assert sum(g.share for g in result.groups) == pytest.approx(1.0), by
    spaces = {g.label: g.cost for g in report(profile, scenario="veth-bridge", by="netns").groups}
    inside = sum(v for k, v in bridge_costs().items() if k.startswith(("br_", "fdb_", "veth_")))
    assert spaces["c0"] == pytest.approx(inside)
    without = bench_profile(runs=1, seed=None)
    result = report(without, scenario="veth-bridge", by="netns")
    softirq = sum(v for k, v in bridge_costs().items() if "handle_softirqs" in k)
    assert {g.label: g.cost for g in result.groups}["unknown"] == pytest.approx(softirq)
    assert result.unknown_share == pytest.approx(softirq / result.total)
    with pytest.raises(UsageError, match="cannot split by"):
        report(without, scenario="host", by="colour")


def test_two_pods_with_an_eth0_each_are_two_devices() -> None:
    from nsprof.model.profile import Device, Direction, Namespace

    builder = ProfileBuilder()
    builder.event(CLOCK)
    pods = [builder.namespace(Namespace(i, i, name=f"pod{i}")) for i in (1, 2)]
    devices = [builder.device(Device(p, 2, "eth0")) for p in pods]
    stack = stack_of(builder, "veth_xmit < handle_softirqs")
    builder.samples(
        Samples.build(
            2, stack=stack, context=3, hop_ns=pods, hop_dev=devices, hop_dir=Direction.RX, count=1, weight=[1.0, 3.0]
        )
    )
    builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}, probes_on=("hop",)))
    profile = builder.build()
    assert [(g.label, g.cost) for g in report(profile, by="device").groups] == [
        ("pod2:eth0", 3.0),
        ("pod1:eth0", 1.0),
    ]
    assert report(profile, where=Filter(devices=("pod1:eth0",))).total == 1.0
    assert report(profile, where=Filter(devices=("eth0",))).total == 4.0


def test_a_reused_inode_is_two_rows() -> None:
    from nsprof.model.profile import Namespace

    builder = ProfileBuilder()
    builder.event(CLOCK)
    pods = [builder.namespace(Namespace(4026532001, cookie, name="")) for cookie in (5, 9)]
    stack = stack_of(builder, "f")
    builder.samples(Samples.build(2, stack=stack, context=2, task_ns=pods, count=1, weight=[1.0, 3.0]))
    builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}))
    groups = report(builder.build(), by="netns").groups
    assert len(groups) == 2
    assert len({g.key for g in groups}) == 2


def test_filters_keep_what_they_name() -> None:
    profile = bench_profile(seed=None, hop_runs=1)
    everything = report(profile, scenario="veth-bridge").total
    softirq = report(profile, scenario="veth-bridge", where=Filter(contexts=("softirq",))).total
    task = report(profile, scenario="veth-bridge", where=Filter(contexts=("task",))).total
    assert softirq + task == pytest.approx(everything)
    assert report(profile, scenario="veth-bridge", where=Filter(tasks=("netperf",))).total == pytest.approx(
        everything
    )
    assert report(profile, scenario="veth-bridge", where=Filter(tasks=("100",))).total == pytest.approx(everything)
    c0 = report(profile, scenario="veth-bridge", where=Filter(namespaces=("c0",))).total
    host = report(profile, scenario="veth-bridge", where=Filter(namespaces=("net:[4026531840]",))).total
    assert c0 + host == pytest.approx(everything)
    for bad, words in [
        (Filter(namespaces=("c1",)), "there are: host, c0"),
        (Filter(devices=("eth1",)), "no device"),
        (Filter(contexts=("sofirq",)), "no context"),
        (Filter(tasks=("nobody",)), "no task"),
    ]:
        with pytest.raises(UsageError) as caught:
            report(profile, scenario="veth-bridge", where=bad)
        assert words in str(caught.value)
    with pytest.raises(EvidenceError, match="no cpu-clock samples left"):
        report(profile, scenario="host", where=Filter(contexts=("hardirq",)))


def test_part_of_a_run_has_a_cost_a_second_only() -> None:
    builder = ProfileBuilder()
    builder.event(CLOCK)
    stack = stack_of(builder, "f")
    builder.samples(
        Samples.build(10, stack=stack, context=2, slice=np.arange(10), count=1, weight=np.arange(10) * 100.0)
    )
    builder.runs.append(Run("s", duration_s=10, cpus=1, denominators={"transaction": 10, "second": 10}))
    profile = builder.build()
    part = report(profile, where=Filter(slices=(2, 4)))
    assert part.measure.per == "second"
    assert part.total == pytest.approx((200 + 300 + 400) / 3)
    with pytest.raises(UsageError, match=r"part of a run"):
        report(profile, where=Filter(slices=(2, 4)), per="transaction")
    with pytest.raises((UsageError, EvidenceError)):
        report(profile, where=Filter(slices=(20, 30)))


def test_different_events_are_never_added() -> None:
    builder = ProfileBuilder()
    one_run(builder, "s", HOST_COSTS)
    one_run(builder, "s", {"f < g": 3.0}, event=Event("cache-misses", "misses"))
    profile = builder.build()
    clock, misses = report(profile), report(profile, event="cache-misses")
    assert clock.measure.unit == "ns"
    assert clock.total == pytest.approx(sum(HOST_COSTS.values()) / 2)  # of two runs one had no such samples
    assert misses.measure.label == "misses/transaction"
    assert any("never added" in n for n in clock.notes)
    assert math.isnan(misses.measured_cpu_s)
    with pytest.raises(UsageError, match="did you mean"):
        report(profile, event="cache-miss")


def test_stacks_that_are_not_there_stay_unknown() -> None:
    builder = ProfileBuilder()
    builder.event(CLOCK)
    empty = builder.stack([])
    builder.samples(
        Samples.build(
            3, stack=empty, context=[Context.USER, Context.UNKNOWN, Context.TASK], count=1, weight=[4, 1, 1]
        )
    )
    builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}))
    result = report(builder.build())
    assert {f.name: f.self_cost for f in result.functions} == {"[user]": 4.0}
    assert result.unknown_share == pytest.approx(2 / 6)
    assert {c.name: c.cost for c in result.categories} == {"user": 4.0, "unknown": 2.0}
    assert result.covered_share == 0.0


def test_the_profilers_own_frames_are_a_class_of_their_own() -> None:
    builder = ProfileBuilder()
    builder.event(CLOCK)
    frames = [
        builder.frame("htab_map_update_elem"),
        builder.frame("bpf_prog_hop_rx", "", FrameKind.PROFILER),
        builder.frame("__netif_receive_skb_core"),
        builder.frame("handle_softirqs"),
    ]
    stack = builder.stack(frames)
    builder.samples(Samples.build(1, stack=stack, context=3, count=1, weight=5.0, lateness=Lateness.ON_TIME))
    builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}))
    assert [(c.name, c.cost) for c in report(builder.build()).categories] == [("profiler", 5.0)]


def test_several_scenarios_must_be_named() -> None:
    with pytest.raises(UsageError, match=r"2 scenarios \(host, veth-bridge\)"):
        report(bench_profile())
    with pytest.raises(UsageError) as caught:
        report(bench_profile(), scenario="veth-bridg")
    assert "veth-bridge" in caught.value.hint


def test_the_same_scenario_on_two_kernels_is_two_scenarios() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS, kernel="6.1")
    one_run(builder, "host", bridge_costs(), kernel="6.12")
    profile = builder.build()
    assert report(profile, scenario="6.1:host").total == pytest.approx(sum(HOST_COSTS.values()))
    assert report(profile, scenario="6.12:host").total == pytest.approx(sum(bridge_costs().values()))
    with pytest.raises(UsageError, match="several kernels"):
        report(profile, scenario="host")


def test_an_interval_needs_two_runs() -> None:
    assert function(report(bench_profile(runs=1), scenario="host"), "fib_table_lookup").self_interval is None
    three = function(report(bench_profile(runs=3), scenario="host"), "fib_table_lookup").self_interval
    assert three is not None
    assert three.low < 300 < three.high + 10


def test_namespaces_made_anew_for_every_run_are_one_place() -> None:
    from nsprof.model.profile import Namespace

    builder = ProfileBuilder()
    builder.event(CLOCK)
    pods = [builder.namespace(Namespace(i, i, name="c0", role="container")) for i in (11, 12)]
    stack = stack_of(builder, "f")
    for run, pod in enumerate(pods):
        builder.samples(Samples.build(1, run=run, stack=stack, context=2, task_ns=pod, count=1, weight=2.0))
        builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}))
    for by in ("netns", "hop"):
        assert [(g.label.split()[0], g.cost) for g in report(builder.build(), by=by).groups] == [("c0", 2.0)]


def test_the_same_trouble_of_many_runs_is_one_line_with_its_range() -> None:
    made = bench_profile(runs=3, seed=None)
    shares = iter((0.02, 0.30, 0.10, 0.04, 0.05, 0.02))
    runs = tuple(
        replace(run, losses=Losses(expected=1000, seen=round(1000 * (1 - next(shares))), lost_records=1))
        for run in made.runs
    )
    host = report(made.with_(runs=runs), scenario="host")
    numbers = [n for n, run in enumerate(runs) if run.scenario == "host"]
    worst = max(numbers, key=lambda n: runs[n].losses.lost_share)
    low, high = (f"{f(runs[n].losses.lost_share for n in numbers):.1%}" for f in (min, max))
    (line,) = [a for a in host.alarms if "lost" in a]
    most = f"the most: run {worst + 1} (lost records 1)"
    assert line == f"all 3 runs lost {low} to {high} of their samples on all CPUs together; {most}"


def test_losses_are_those_of_the_cpus_counted_and_the_others_are_a_note() -> None:
    profile = bench_profile(runs=2, seed=None, cpu_busy_s={0: 1.0, 1: 1.0}, dut_cpus=(0,), remote_cpus=(1,))
    lost = Losses(expected=1000, seen=800, lost_records=200)
    shares = iter([0.10, 0.10, 0.40, 0.10])
    runs = tuple(replace(r, losses=lost, lost_by_cpu={0: 0.004, 1: next(shares)}) for r in profile.runs)
    found = report(profile.with_(runs=runs), scenario="host")
    assert found.lost_share == pytest.approx(0.004) and not any("lost" in alarm for alarm in found.alarms)
    both = "runs 1 and 3 lost 10.0% to 40.0% of the samples of CPUs that are not counted here (CPU 1, the most run 3)"
    assert both in found.notes
    hosts = [number for number, run in enumerate(runs) if run.scenario == "host"]
    assert [lost_share(runs[number], "remote") for number in hosts] == [0.1, 0.4]
    assert any("lost 10.0% to 40.0%" in alarm for alarm in runs_trouble(profile.with_(runs=runs), hosts, "remote"))
    unknown = report(profile.with_(runs=tuple(replace(r, lost_by_cpu={}) for r in runs)), scenario="host")
    assert unknown.lost_share == pytest.approx(0.2)
    assert any("lost 20.0% of their samples on all CPUs together" in alarm for alarm in unknown.alarms)


def test_sums_that_chance_explains_are_no_alarm() -> None:
    # 100 ticks of 1 ms in busy time on a CPU that is busy half of the time: 3 sqrt(0.5 / 100) = 21 % by chance.
    period = 1_000_000
    builder = ProfileBuilder()
    builder.event(Event("cpu-clock", "ns", period=period))
    stack = stack_of(builder, "f < g")
    builder.samples(Samples.build(1, stack=stack, context=2, count=100, weight=100 * period))
    builder.runs.append(Run("s", duration_s=0.24, cpus=1, cpu_busy_s={0: 0.12}, denominators={"second": 0.24}))
    profile = builder.build()
    assert chance_of_sums(view(profile)) == pytest.approx(3 * (0.5 / 100) ** 0.5)
    assert not [a for a in report(profile).alarms if "add up" in a], "-17 %, and chance does that"
    busy = profile.with_(runs=(replace(profile.runs[0], duration_s=0.12),))
    assert chance_of_sums(view(busy)) == 0
    assert [a for a in report(busy).alarms if "add up" in a], "a CPU that never slept leaves nothing to chance"

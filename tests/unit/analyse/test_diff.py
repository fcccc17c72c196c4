"""`diff`: additive, antisymmetric, honest about its evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsprof.analyse import Filter, diff
from nsprof.errors import ComparisonError, EvidenceError, UsageError
from nsprof.model.builder import ProfileBuilder, merge
from nsprof.model.profile import Event, Profile, Run, Samples
from nsprof.model.results import DeltaRow, DiffReport
from tests.profiles import CLOCK, HOST_COSTS, bench_profile, big_profile, one_run, stack_of


def row(result: DiffReport, name: str) -> DeltaRow:
    return next(f for f in result.functions if f.name == name)


def scenarios(**changes: object) -> DiffReport:
    profile = bench_profile(**changes)  # type: ignore[arg-type]
    return diff(profile, profile, base_scenario="host", new_scenario="veth-bridge")


def test_deltas_are_the_costs_put_in() -> None:
    result = scenarios(seed=None)
    assert row(result, "veth_xmit").delta == pytest.approx(160.0)
    assert row(result, "veth_xmit").status == "new"
    assert result.total.delta == pytest.approx(580.0)
    assert row(result, "finish_task_switch").delta == pytest.approx(0.0)  # .isra.0 against .constprop.1
    assert row(result, "finish_task_switch").status == ""
    assert [abs(f.delta) for f in result.functions] == sorted((abs(f.delta) for f in result.functions), reverse=True)
    assert {c.name: round(c.delta) for c in result.categories if round(c.delta)} == {"bridge": 420, "veth": 160}


def test_functions_on_one_side_only_are_new_or_gone() -> None:
    profile = bench_profile(seed=None)
    back = diff(profile, profile, base_scenario="veth-bridge", new_scenario="host")
    assert {f.name for f in back.functions if f.status == "gone"} >= {"veth_xmit", "br_handle_frame", "fdb_find_rcu"}
    assert not any(f.status == "new" for f in back.functions)


def _random(draw: st.DrawFn, builder: ProfileBuilder, scenario: str, runs: int) -> None:
    number = len(builder.runs)
    names = ["f", "f.isra.0", "g", "handle_softirqs", "h", "br_handle_frame", ""]
    for turn in range(runs):
        rows = draw(
            st.lists(
                st.tuples(st.lists(st.sampled_from(names), max_size=4), st.integers(0, 7), st.floats(0, 1e6)),
                min_size=1,
                max_size=8,
            )
        )
        stacks = [builder.stack([builder.frame(n) for n in frames]) for frames, _, _ in rows]
        weights = [r[2] + 1.0 for r in rows]
        builder.samples(
            Samples.build(
                len(rows),
                run=number + turn,
                stack=stacks,
                context=[2 if c == 6 else c for _, c, _ in rows],
                count=1,
                weight=weights,
            )
        )
        builder.runs.append(
            Run(scenario, duration_s=1, cpus=1, denominators={"transaction": draw(st.integers(1, 1000)), "second": 1})
        )


@st.composite
def pairs(draw: st.DrawFn) -> Profile:
    builder = ProfileBuilder()
    builder.event(CLOCK)
    _random(draw, builder, "a", draw(st.integers(1, 3)))
    _random(draw, builder, "b", draw(st.integers(1, 3)))
    return builder.build()


@settings(max_examples=25, deadline=None)
@given(pairs())
def test_diff_is_antisymmetric_additive_and_zero_against_itself(profile: Profile) -> None:
    forth = diff(profile, profile, base_scenario="a", new_scenario="b")
    back = diff(profile, profile, base_scenario="b", new_scenario="a")
    scale = 1e-9 * max(forth.total.base, forth.total.new, 1.0)
    assert forth.total.delta == -back.total.delta
    mirrored = {f.name: f for f in back.functions}
    for f in forth.functions:
        assert f.delta == -mirrored[f.name].delta
        if f.interval:
            other = mirrored[f.name].interval
            assert other is not None
            assert f.interval.low == pytest.approx(-other.high, abs=scale)
            assert f.interval.low <= f.delta + scale
            assert f.delta - scale <= f.interval.high
    parts = sum(f.delta for f in forth.functions) + forth.not_attributed
    assert parts == pytest.approx(forth.total.delta, abs=scale)
    assert sum(c.delta for c in forth.categories) == pytest.approx(forth.total.delta, abs=scale)
    for by in ("context", "netns"):
        split = diff(profile, profile, base_scenario="a", new_scenario="b", by=by)
        assert sum(g.delta for g in split.groups) == pytest.approx(forth.total.delta, abs=scale)
    same = diff(profile, profile, base_scenario="a", new_scenario="a")
    assert same.total.delta == 0
    assert all(f.delta == 0 and f.status == "" for f in same.functions)


@settings(max_examples=15, deadline=None)
@given(pairs(), st.sampled_from([".isra.0", ".constprop.1", ".part.2", ".cold", ".llvm.123", ".isra.0.cold"]))
def test_suffixes_never_change_a_diff(profile: Profile, suffix: str) -> None:
    frames = replace(profile.frames, name=tuple(n + suffix if n else n for n in profile.frames.name))
    plain = diff(profile, profile, base_scenario="a", new_scenario="b")
    mixed = diff(profile, profile.with_(frames=frames), base_scenario="a", new_scenario="b")
    assert {f.name: f.delta for f in mixed.functions} == {f.name: f.delta for f in plain.functions}


def test_a_function_in_the_image_or_in_a_module_is_one() -> None:
    def kernel(module: str) -> Profile:
        builder = ProfileBuilder()
        one_run(builder, "s", {})
        builder.samples(
            Samples.build(
                1, stack=stack_of(builder, "br_handle_frame", module or " "), context=2, count=1, weight=2e4
            )
        )
        frames = replace(builder.build().frames, module=(module,))
        return builder.build().with_(frames=frames)

    result = diff(kernel(""), kernel("bridge"))
    assert [(f.name, f.module, f.delta, f.status) for f in result.functions] == [
        ("br_handle_frame", "bridge", 0.0, "")
    ]


def test_one_run_a_side_gives_neither_interval_nor_verdict() -> None:
    result = scenarios(runs=1)
    assert all(f.interval is None and f.verdict == "" and math.isnan(f.p) for f in (*result.functions, result.total))
    assert any("neither intervals nor verdicts" in n for n in result.notes)


def test_few_runs_give_intervals_only() -> None:
    result = scenarios(runs=7)
    assert result.total.interval is not None
    assert result.total.interval.low < 580 < result.total.interval.high
    assert all(f.verdict == "" and math.isnan(f.q) for f in (*result.functions, result.total, *result.categories))


@pytest.mark.parametrize("test", ["welch", "permutation"])
def test_enough_runs_give_verdicts(test: str) -> None:
    profile = bench_profile(runs=8)
    result = diff(profile, profile, base_scenario="host", new_scenario="veth-bridge", test=test)  # type: ignore[arg-type]
    assert result.total.verdict == "+"
    assert row(result, "veth_xmit").verdict == "+"
    assert row(result, "fib_table_lookup").verdict == "~"
    assert row(result, "fib_table_lookup").q >= row(result, "fib_table_lookup").p
    back = diff(profile, profile, base_scenario="veth-bridge", new_scenario="host", test=test)  # type: ignore[arg-type]
    assert back.total.verdict == "-"
    assert row(back, "veth_xmit").q == row(result, "veth_xmit").q
    assert any(n.startswith("total x ") and n.endswith("(95 %)") for n in result.notes)


def test_small_effects_get_no_verdict_when_not_wanted() -> None:
    profile = bench_profile(runs=8)
    common = {"base_scenario": "host", "new_scenario": "veth-bridge"}
    assert row(diff(profile, profile, **common, min_effect=200.0), "veth_xmit").verdict == "~"  # type: ignore[arg-type]
    assert row(diff(profile, profile, **common, min_effect="5%"), "veth_xmit").verdict == "+"  # type: ignore[arg-type]
    assert row(diff(profile, profile, **common, min_effect="20%"), "veth_xmit").verdict == "~"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not an effect"):
        diff(profile, profile, **common, min_effect="lots")  # type: ignore[arg-type]


def test_exact_counts_differ_exactly() -> None:
    """Simulated runs agree to the last instruction: the difference is certain and no test divides by zero."""
    counted = Event("instructions", "instructions", "modelled")
    builder = ProfileBuilder()
    for _ in range(8):
        one_run(builder, "a", {"f < g": 100.0, "h < g": 50.0}, event=counted)
        one_run(builder, "b", {"f < g": 101.0, "h < g": 50.0}, event=counted)
    result = diff(builder.build(), builder.build(), base_scenario="a", new_scenario="b")
    assert (row(result, "f").delta, row(result, "f").verdict) == (1.0, "+")
    assert (row(result, "h").delta, row(result, "h").verdict) == (0.0, "~")
    assert row(result, "f").interval is not None
    assert row(result, "f").interval.low == 1.0  # type: ignore[union-attr]


def _one(event: Event = CLOCK, **fields: object) -> Profile:
    builder = ProfileBuilder()
    one_run(builder, "s", HOST_COSTS, event=event, **fields)
    return builder.build()


def test_what_cannot_be_compared_is_refused() -> None:
    base = _one()
    with pytest.raises(ComparisonError, match="different events"):
        diff(base, _one(Event("cycles", "cycles")))
    with pytest.raises(ComparisonError, match=r"sampled in ns.*modelled in ns"):
        diff(base, _one(Event("cpu-clock", "ns", "modelled")))
    with pytest.raises(ComparisonError, match="no common unit"):
        diff(base, _one(denominators={"kb": 5.0}))
    with pytest.raises(ComparisonError, match="not on both sides"):
        diff(base, base, event="cycles")
    with pytest.raises(EvidenceError, match="new profile has no samples"):
        diff(base, Profile(runs=(Run("s"),), events=(CLOCK,)))
    arm = base.with_(meta={"host": {"kernel": {"architecture": "aarch64"}}})
    intel = base.with_(meta={"host": {"kernel": {"architecture": "x86_64"}}})
    with pytest.raises(ComparisonError, match="x86_64 against aarch64"):
        diff(intel, arm)
    assert any("aarch64" in w for w in diff(intel, arm, force=True).warnings)


def test_profiles_without_any_denominator_compare_shares_and_say_so() -> None:
    result = diff(_one(denominators={}), _one(denominators={}))
    assert result.measure.unit == "%"
    assert result.total.delta == pytest.approx(0.0)
    assert any("mislead" in w for w in result.warnings)


def test_differing_metadata_are_named() -> None:
    base = _one(kernel="6.1").with_(
        meta={"host": {"cpu": {"model": "A"}, "devices": {"w0": {"tso": True}}, "load": 1}}
    )
    new = _one(kernel="6.12").with_(
        meta={"host": {"cpu": {"model": "B"}, "devices": {"w0": {"tso": False}, "eth0": {}}, "load": 2}}
    )
    text = "\n".join(diff(base, new).warnings)
    assert "6.1 against 6.12" in text
    assert "cpu.model (A / B)" in text
    assert "devices.w0.tso (True / False)" in text
    assert "load" not in text
    assert diff(base, base).warnings == ()
    assert diff(base, new).base_title == "s (6.1)"


def test_two_files_and_one_merged_file_say_the_same() -> None:
    profile = bench_profile()
    parts = [
        profile.with_(runs=tuple(r if r.scenario == s else replace(r, failed="x") for r in profile.runs))
        for s in ("host", "veth-bridge")
    ]
    apart = diff(parts[0], parts[1], base_scenario="host", new_scenario="veth-bridge")
    merged = merge(parts)
    together = diff(merged, merged, base_scenario="host", new_scenario="veth-bridge")
    assert [(f.name, f.delta) for f in apart.functions] == [(f.name, f.delta) for f in together.functions]


def test_filters_apply_to_both_sides() -> None:
    profile = bench_profile(seed=None)
    result = diff(
        profile, profile, base_scenario="host", new_scenario="veth-bridge", where=Filter(contexts=("softirq",))
    )
    assert result.total.delta == pytest.approx(420.0)


def test_no_false_finding_in_most_comparisons_of_equal_runs() -> None:
    """A/A on synthetic noise: at most 5 % of pairs may flag any function at all, which 24 pairs check only roughly:
    more than 6 false pairs at a true rate of 5 % have a probability of 2e-4 (binomial)."""
    random = np.random.default_rng(7)
    false_pairs = 0
    for _ in range(24):
        builder = ProfileBuilder()
        for scenario in ("a", "b"):
            for _ in range(8):
                one_run(builder, scenario, HOST_COSTS, noise=random, spread=0.05)
        profile = builder.build()
        result = diff(profile, profile, base_scenario="a", new_scenario="b")
        false_pairs += any(f.verdict in ("+", "-") for f in result.functions)
    assert false_pairs <= 6


@pytest.mark.slow
def test_a_million_samples_compare_in_seconds() -> None:
    import time

    base, new = big_profile(1_000_000, stacks=100_000), big_profile(1_000_000, stacks=100_000, seed=1)
    start = time.process_time()
    result = diff(base, new)
    assert time.process_time() - start < 5
    assert result.total.delta == pytest.approx(0.0, abs=1e-6)


def test_what_was_warned_of_while_recording_is_said_once_a_side() -> None:
    profile = bench_profile(runs=2, seed=None)
    lost = "samples lost by CPU: 1 (remote end): 40.0%"
    runs = tuple(replace(r, warnings=(lost, "netperf: confidence not reached")) for r in profile.runs)
    result = diff(
        profile.with_(runs=runs), profile.with_(runs=runs), base_scenario="host", new_scenario="veth-bridge"
    )
    for title, numbers in (("host", "runs 1 and 3"), ("veth-bridge", "runs 2 and 4")):
        assert f"{title}: {numbers}: {lost}" in result.warnings
    assert len(result.warnings) == 4
    assert diff(profile, profile, base_scenario="host", new_scenario="veth-bridge").warnings == ()


def test_notes_of_the_recording_and_of_idle_ticks_reach_the_diff() -> None:
    profile = bench_profile(runs=2, seed=None, transactions=2_000_000)
    noted = profile.with_(meta={**profile.meta, "notes": ["virtual machines, 2 boots a kernel"]})
    result = diff(noted, noted, base_scenario="host", new_scenario="veth-bridge")
    assert result.notes.count("virtual machines, 2 boots a kernel") == 1
    runs = tuple(replace(r, cpu_busy_s={c: s * 0.9 for c, s in r.cpu_busy_s.items()}) for r in profile.runs)
    off = diff(profile.with_(runs=runs), profile, base_scenario="host", new_scenario="host")
    assert [w for w in off.warnings if "add up to" in w]


@pytest.mark.parametrize("word", ["nan", "-5", "inf%", "nan%", "much"])
def test_what_is_no_effect_is_refused(word: str) -> None:
    profile = bench_profile(runs=2, seed=None)
    with pytest.raises(UsageError, match="not an effect"):
        diff(profile, profile, base_scenario="host", new_scenario="veth-bridge", min_effect=word)

"""The calibration itself: it keeps quiet about good statistics, and would notice bad ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsprof.analyse import calibration, statistics
from nsprof.calibrate import calibrate, plan_aa
from tests.profiles import HOST_COSTS, bench_profile


def _noise() -> calibration.Noise:
    made = bench_profile(runs=8, scenarios={"A1": HOST_COSTS, "B1": HOST_COSTS})
    return calibration.noise_of(made, ["A1", "B1"])


def test_a_plan_of_pairs_is_one_scenario_under_two_names() -> None:
    plan = plan_aa(["netperf"], scenario="host", pairs=2, runs=8)
    assert [c.label for c in plan.cases] == ["A1", "B1", "A2", "B2"]
    assert len({id(c.spec) for c in plan.cases}) == 1


def test_noise_is_every_run_of_both_sides() -> None:
    noise = _noise()
    assert noise.runs == 16
    assert noise.costs.sum(axis=0).mean() == pytest.approx(sum(HOST_COSTS.values()), rel=0.05)


def test_quiet_noise_has_the_same_functions_and_the_spread_asked_for() -> None:
    noise = _noise()
    # So many units that sampling adds nothing to the spread.
    noise = replace(noise, units=noise.units * 1e4, samples=noise.samples * 1e4)
    still = calibration.quiet(noise, spread=0.05, runs=2000)
    totals = still.costs.sum(axis=0)
    assert totals.std() / totals.mean() == pytest.approx(0.05, rel=0.1)
    assert totals.mean() == pytest.approx(noise.samples.sum() * noise.period / noise.units.sum(), rel=0.02)


def test_pairs_without_a_difference_are_seldom_flagged() -> None:
    still = calibration.quiet(_noise(), spread=0.02, runs=500)
    silent, total = calibration.aa_pairs(still, pairs=300, runs=8, what="test")
    assert silent.kept
    assert total.kept


def test_an_injected_cost_is_found_within_its_interval() -> None:
    still = calibration.quiet(_noise(), spread=0.02, runs=500)
    cost = 10 * still.period / float(still.units.mean())
    own, whole, seen = calibration.injected_pairs(still, true_cost=cost, pairs=200, runs=8, what="test")
    assert own.kept
    assert whole.kept
    assert seen.share > 0.5


def test_statistics_that_flag_too_much_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "ALPHA", 0.6)
    still = calibration.quiet(_noise(), spread=0.02, runs=500)
    silent, total = calibration.aa_pairs(still, pairs=100, runs=8, what="test")
    assert not silent.kept
    assert not total.kept


def test_intervals_of_rates_are_exact() -> None:
    rate = calibration.rate("x", 0, 100, at_most=0.05)
    assert rate.low == 0
    assert rate.high == pytest.approx(1 - 0.025 ** (1 / 100))


def test_the_whole_calibration_of_recorded_pairs() -> None:
    scenarios = {f"{side}{n}": HOST_COSTS for n in (1, 2) for side in "AB"}
    made = bench_profile(runs=8, scenarios=scenarios, seed=5)
    result = calibrate(made, pairs=2, synthetic=40, runs=8)
    assert any(line.startswith("32 runs of 10.0 s recorded") for line in result.lines)
    assert sum("native A/A pairs" in line for line in result.lines) == 2
    assert np.all([("[" in line) for line in result.lines if "pairs that" in line])

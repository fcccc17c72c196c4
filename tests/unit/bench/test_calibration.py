"""The calibration itself: it keeps quiet about good statistics, and would notice bad ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nsprof.analyse import calibration, statistics
from nsprof.calibrate import calibrate, plan_pairs
from nsprof.errors import EvidenceError
from nsprof.model.profile import Profile
from tests.profiles import HOST_COSTS, bench_profile


def _noise() -> calibration.Noise:
    made = bench_profile(runs=8, scenarios={"A1": HOST_COSTS, "B1": HOST_COSTS})
    return calibration.noise_of(made, ["A1", "B1"])


def test_a_plan_of_pairs_has_every_side_in_every_repeat_and_only_the_hop_is_another_way() -> None:
    plan = plan_pairs(["netperf"], pairs=2, runs=8)
    assert [c.label for c in plan.cases] == [
        f"{side}{n}" for n in (1, 2) for side in ("A", "B", "burn", "rules", "hop")
    ]
    assert {c.label for c in plan.cases if c.spec.shape != "veth-route"} == {"hop1", "hop2"}


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


def _recorded(**more: dict[str, float]) -> Profile:
    scenarios = {f"{side}{n}": HOST_COSTS for n in (1, 2, 3) for side in "AB"}
    return bench_profile(runs=8, scenarios={**scenarios, **more}, seed=5)


def test_the_whole_calibration_of_recorded_pairs() -> None:
    heard: list[str] = []
    result = calibrate(_recorded(), synthetic=40, runs=8, say=heard.append)
    assert tuple(heard) == result.lines
    assert any(line.startswith("48 runs of 10.00 s recorded") for line in result.lines)
    assert sum("native A/A pairs" in line and "/3 = " in line for line in result.lines) == 2
    assert np.all([("[" in line) for line in result.lines if "pairs that" in line])


@pytest.mark.parametrize(("told", "hits"), [(1.0, 3), (1.4, 0)])
def test_a_known_cost_is_judged_by_the_truth_that_was_told(told: float, hits: int) -> None:
    more = {f"burn{n}": {**HOST_COSTS, "bpf_prog_0123456789abcdef_known_burn": 400.0} for n in (1, 2, 3)}
    made = _recorded(**more)
    truth = {f"burn{n}": [400.0 * told] * 8 for n in (1, 2, 3)}
    made = made.with_(meta={**made.meta, "calibration": {"burned_ns": truth, "rules": 0}})
    lines = calibrate(made, synthetic=5, runs=8, say=lambda _: None).lines
    own = next(line for line in lines if line.startswith("the function's interval holds the truth (a tc program"))
    assert f"{hits}/3" in own
    assert any(line.startswith(f"a tc program's known time: truth {400 * told:,.0f}, found") for line in lines)


def test_sides_without_all_their_runs_are_not_judged() -> None:
    with pytest.raises(EvidenceError, match="no side has 9 usable runs"):
        calibrate(_recorded(), synthetic=5, runs=9, say=lambda _: None)

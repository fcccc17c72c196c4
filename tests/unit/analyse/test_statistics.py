"""Tests and intervals: scipy's numbers where it has them, the right coverage where it matters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nsprof.analyse import statistics


def test_intervals_and_p_are_welchs() -> None:
    random = np.random.default_rng(1)
    base, new = random.normal(10, 1, (5, 9)), random.normal(11, 3, (5, 12))
    found = statistics.compare(base, new)
    for i in range(5):
        result = stats.ttest_ind(new[i], base[i], equal_var=False)
        interval = result.confidence_interval(0.95)
        assert found.p[i] == pytest.approx(result.pvalue)
        assert (found.low[i], found.high[i]) == pytest.approx((interval.low, interval.high))
    assert found.q == pytest.approx(stats.false_discovery_control(found.p))


def test_rows_that_are_not_tested_cost_the_others_nothing() -> None:
    random = np.random.default_rng(1)
    base, new = random.normal(10, 1, (50, 8)), random.normal(10, 1, (50, 8))
    new[0] += 3
    few = np.zeros(50, bool)
    few[:2] = True
    alone, all_rows = statistics.compare(base, new, testable=few), statistics.compare(base, new)
    assert np.isnan(alone.q[2:]).all()
    assert alone.p[0] == all_rows.p[0]
    assert alone.q[0] < all_rows.q[0]
    assert np.isnan(statistics.compare(base, new, testable=np.zeros(50, bool)).q).all()


@pytest.mark.parametrize(("runs", "intervals", "tested"), [(1, 0, 0), (2, 3, 0), (7, 3, 0), (8, 3, 3)])
def test_what_is_said_depends_on_the_number_of_runs(runs: int, intervals: int, tested: int) -> None:
    random = np.random.default_rng(runs)
    found = statistics.compare(random.normal(1, 1, (3, runs)), random.normal(1, 1, (3, 12)))
    assert np.isfinite(found.low).sum() == intervals
    assert np.isfinite(found.p).sum() == tested


def test_means_have_t_intervals() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0])
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = statistics.mean_interval(values)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert statistics.mean_interval(values[:1]) is None
    exact = statistics.mean_interval(np.array([2.0, 2.0]))
    assert exact is not None
    assert (exact.low, exact.high) == (2.0, 2.0)


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says() -> None:
    """95 % of 1,000 intervals of 3 against 5 runs hold the true difference, within the binomial's 99.9 % bounds."""
    random = np.random.default_rng(5)
    found = statistics.compare(random.normal(10, 1, (1000, 3)), random.normal(12, 2, (1000, 5)))
    hits = int(((found.low <= 2) & (found.high >= 2)).sum())
    low, high = stats.binom.interval(0.999, 1000, 0.95)
    assert low <= hits <= high + 20  # Welch's is a little conservative with so few runs


def test_false_findings_are_as_rare_as_q_says() -> None:
    """Of 200 comparisons of equal things (150 functions of few and many samples, 8 runs a side) at most 5 % flag
    anything; 20 or more would have p < 1e-3 at that rate."""
    random = np.random.default_rng(11)
    rate = np.exp(random.uniform(np.log(0.5), np.log(200), 150))[:, None]
    flagged = 0
    for _ in range(200):
        base, new = (
            random.poisson(rate * np.exp(random.normal(0, 0.05, (1, 8))), (150, 8)).astype(float) for _ in "ab"
        )
        found = statistics.compare(base, new, testable=(base + new).sum(axis=1) >= 16)
        flagged += bool((found.q < 0.05).any())
    assert flagged < 20


def test_a_ratio_has_an_interval_that_holds_what_is_true() -> None:
    random = np.random.default_rng(3)
    base, new = random.normal(100, 2, 10), random.normal(134, 2, 10)
    found = statistics.ratio_interval(base, new)
    assert found is not None
    assert found.low < 1.34 < found.high
    assert found.high - found.low < 0.1
    assert statistics.ratio_interval(base[:1], new) is None
    assert statistics.ratio_interval(np.zeros(8), new) is None
    exact = statistics.ratio_interval(np.full(8, 2.0), np.full(8, 3.0))
    assert exact is not None
    assert (exact.low, exact.high) == (1.5, 1.5)


def test_nothing_against_something_is_nothing() -> None:
    found = statistics.ratio_interval(np.array([1.0, 1.1, 0.9, 1.0]), np.zeros(4))
    assert found is not None
    assert (found.low, found.high) == (0.0, 0.0)


def test_a_base_that_may_be_nothing_bounds_no_ratio() -> None:
    assert statistics.ratio_interval(np.array([0.1, 9.0]), np.array([5.0, 5.1])) is None


@pytest.mark.parametrize("runs", [2, 3, 8, 30])
def test_ratio_and_difference_agree_on_whether_there_is_one(runs: int) -> None:
    random = np.random.default_rng(runs)
    different = 0
    for _ in range(200):
        base = random.lognormal(4.6, 0.1, runs)
        new = random.lognormal(4.6 + random.choice([0.0, 0.1, 0.3]), 0.1, runs)
        ratio = statistics.ratio_interval(base, new)
        gap = statistics.compare(base[None], new[None])
        shown = gap.low[0] > 0 or gap.high[0] < 0
        different += shown
        if ratio is not None:
            assert shown == (ratio.low > 1 or ratio.high < 1)
    assert 0 < different < 200


@pytest.mark.parametrize(
    ("delta", "q", "effect", "shown"),
    [
        (1.0, 0.01, 0.0, "+"),
        (-1.0, 0.01, 0.0, "-"),
        (1.0, 0.01, 2.0, "~"),
        (1.0, 0.05, 0.0, "~"),
        (0.0, 0.0, 0.0, "~"),
        (9.0, float("nan"), 0.0, ""),
    ],
)
def test_verdicts(delta: float, q: float, effect: float, shown: str) -> None:
    assert statistics.verdict(delta, q, effect) == shown

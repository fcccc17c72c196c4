"""The order of a bench is fair and can be repeated."""

from __future__ import annotations

from collections import Counter

import pytest

from nsprof.bench import fair_order


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 8])
def test_every_scenario_runs_as_often_as_asked(runs: int) -> None:
    order = fair_order(["a", "b", "c"], runs, seed=7)
    assert Counter(order) == {"a": runs, "b": runs, "c": runs}


def test_a_linear_drift_adds_the_same_to_every_scenario() -> None:
    order = fair_order(["a", "b", "c", "d"], 6, seed=3)
    mean_place = {name: sum(i for i, n in enumerate(order) if n == name) / 6 for name in "abcd"}
    assert len(set(mean_place.values())) == 1, mean_place


def test_the_order_is_drawn_from_the_seed() -> None:
    orders = {tuple(fair_order(["a", "b", "c"], 4, seed)) for seed in range(20)}
    assert len(orders) > 5
    assert fair_order(["a", "b", "c"], 4, 5) == fair_order(["a", "b", "c"], 4, 5)

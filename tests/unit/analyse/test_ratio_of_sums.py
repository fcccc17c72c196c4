"""The estimator of unit costs: everything sampled by everything done, with the spread of that ratio."""

from __future__ import annotations

import numpy as np
import pytest

from nsprof import analyse
from nsprof.analyse.noise import notes
from nsprof.analyse.selection import view
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Event, Profile, Run, Samples


def profile(
    *runs: tuple[float, dict[str, float]], scenario: str = "s", into: ProfileBuilder | None = None
) -> Profile:
    """Runs of (transactions, ns by function)."""
    builder = into or ProfileBuilder()
    builder.event(Event("cpu-clock", "ns", "sampled", 499, 2_004_008))
    builder.task(1, 1, "load")
    for units, costs in runs:
        builder.runs.append(Run(scenario=scenario, duration_s=10.0, cpus=1, denominators={"transaction": units}))
        number = len(builder.runs) - 1
        stacks = [builder.stack([builder.frame(name)]) for name in costs]
        builder.samples(
            Samples.build(
                len(costs),
                run=number,
                stack=np.array(stacks),
                context=int(Context.TASK),
                count=np.maximum(1, np.array(list(costs.values())) // 10).astype("u8"),
                weight=np.array(list(costs.values())),
            )
        )
    return builder.build()


UNEQUAL = ((1.0, {"f": 8.0, "g": 2.0}), (9.0, {"f": 9.0, "g": 9.0}))


def test_a_unit_cost_is_all_that_was_sampled_by_all_units() -> None:
    chosen = view(profile(*UNEQUAL))
    assert chosen.totals().mean() == pytest.approx(28 / 10)  # not (10 / 1 + 18 / 9) / 2
    report = analyse.report(profile(*UNEQUAL))
    assert report.total == pytest.approx(2.8)
    assert {f.name: f.self_cost for f in report.functions} == pytest.approx({"f": 1.7, "g": 1.1})


def test_a_run_s_own_cost_is_told_where_runs_are_told() -> None:
    chosen = view(profile(*UNEQUAL))
    assert chosen.run_costs() == pytest.approx([10.0, 2.0])
    rows = analyse.report(profile(*UNEQUAL), by="run").groups
    assert [g.cost for g in rows] == pytest.approx([10.0, 2.0])
    assert "2.00 to 10.0" in notes(chosen)[0]


def test_functions_add_up_to_the_total_run_by_run() -> None:
    chosen = view(profile(*UNEQUAL))
    by_function = chosen.by_run(np.arange(len(chosen.row)) % 2, 2)
    assert by_function.sum(axis=0) == pytest.approx(chosen.totals())


def test_its_variance_is_that_of_the_linearised_ratio() -> None:
    random = np.random.default_rng(1)
    runs = [(float(u), {"f": float(u * 5 * random.lognormal(0, 0.1))}) for u in random.uniform(50, 500, 40)]
    chosen = view(profile(*runs))
    units = np.array([u for u, _ in runs])
    weights = np.array([c["f"] for _, c in runs])
    ratio = weights.sum() / units.sum()
    expected = ((weights - ratio * units) ** 2).sum() / (len(runs) - 1) / units.mean() ** 2
    assert chosen.totals().var(ddof=1) == pytest.approx(expected)


def test_a_run_that_hardly_got_to_work_does_not_blow_up_the_figure() -> None:
    random = np.random.default_rng(2)
    even = [(1000.0, {"f": float(random.normal(5000, 50))}) for _ in range(7)]
    stalled = (1.0, {"f": 400.0})  # 400 a unit where the others have 5
    report = analyse.report(profile(*even, stalled))
    assert report.total == pytest.approx(5, rel=0.03)


def test_of_equal_work_every_run_counts_as_it_is_to_the_last_bit() -> None:
    runs = [(10.0, {"f": w}) for w in (31.0, 33.0, 29.0)]
    chosen = view(profile(*runs))
    assert chosen.totals() == pytest.approx([3.1, 3.3, 2.9])
    assert chosen.totals().tolist() == chosen.run_costs().tolist()


def test_differences_are_those_of_the_ratios() -> None:
    builder = ProfileBuilder()
    profile(*UNEQUAL, into=builder)
    both = profile((2.0, {"f": 2.0}), (8.0, {"f": 12.0}), scenario="t", into=builder)
    delta = analyse.diff(both, both, base_scenario="s", new_scenario="t")
    assert delta.total.delta == pytest.approx(1.4 - 2.8)
    assert sum(row.delta for row in delta.functions) == pytest.approx(delta.total.delta)
    back = analyse.diff(both, both, base_scenario="t", new_scenario="s")
    assert back.total.delta == pytest.approx(-delta.total.delta)

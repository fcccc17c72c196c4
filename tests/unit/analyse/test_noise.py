"""Spread, drift and outliers of runs are told."""

from __future__ import annotations

import numpy as np

from nsprof.analyse import diff, report
from nsprof.analyse.noise import outliers
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Profile
from tests.profiles import bench_profile, one_run


def runs_of(*costs: float) -> Profile:
    builder = ProfileBuilder()
    for cost in costs:
        one_run(builder, "s", {"f < g": cost})
    return builder.build()


def noted(profile: Profile) -> str:
    return "\n".join(report(profile).notes)


def test_spread_is_told_from_two_runs_on() -> None:
    assert "run to run" not in noted(runs_of(100.0))
    assert "run to run: 2.8% standard deviation, 98.0 to 102 ns/transaction" in noted(runs_of(98.0, 102.0))
    both = diff(bench_profile(), bench_profile(), base_scenario="host", new_scenario="veth-bridge")
    assert sum("run to run" in n for n in both.notes) == 2


def test_outliers_are_shown_and_counted() -> None:
    profile = runs_of(100, 101, 99, 100, 102, 98, 150)
    assert "stands out, and is counted: run 7 (150)" in noted(profile)
    assert report(profile).total == np.mean([100, 101, 99, 100, 102, 98, 150])
    assert "stands out" not in noted(runs_of(100, 101, 99, 100, 102, 98))
    assert len(outliers(np.array([1.0, 1.0, 9.0]))) == 0


def test_drift_is_told() -> None:
    assert "drift: the runs' costs are rising" in noted(runs_of(*range(100, 110)))
    assert "falling" in noted(runs_of(*range(110, 100, -1)))
    assert "drift" not in noted(runs_of(103, 100, 104, 101, 102, 105, 99, 103))


def test_bare_addresses_are_unknown_and_lateness_may_be_too() -> None:
    from nsprof.model.profile import Lateness, Run, Samples
    from tests.profiles import CLOCK, stack_of

    builder = ProfileBuilder()
    builder.event(CLOCK)
    stacks = [stack_of(builder, s) for s in ("0xffffffff81018f75 < 0xffffffff81000000", "0xffff < ip_rcv")]
    late = Lateness.UNKNOWN
    builder.samples(Samples.build(2, stack=stacks, context=2, count=1, weight=[3.0, 1.0], lateness=late))
    builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}))
    found = report(builder.build())
    assert {c.name: c.cost for c in found.categories} == {"unknown": 3.0, "IP": 1.0}
    assert found.unknown_share == 0.75
    assert np.isnan(found.skid_share)

"""The table of source document 000, its own formula, and honest observations."""

from __future__ import annotations

import csv
import math
from collections import defaultdict

import pytest

from nsprof.analyse import scenario_table
from nsprof.analyse.scenarios import change_pct
from nsprof.errors import EvidenceError, UsageError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Counter, Profile, Run, Value
from tests.profiles import HOST_COSTS, bench_profile, bridge_costs, one_run
from tests.support import REPO, need


def measured(scenario: str, cpu_pct: float, throughput: float, kernel: str = "") -> Run:
    """A run of 100 s on a machine of one CPU under test."""
    return Run(
        scenario,
        kernel=kernel,
        duration_s=100.0,
        cpus=1,
        cpu_busy_s={0: cpu_pct},
        values=(Value("throughput", throughput, "Mbit/s", "netperf"),),
    )


@pytest.mark.parametrize("machine", ["xeon", "athlon"])
def test_the_documents_figures_come_out_of_its_own_formula(machine: str) -> None:
    need("cases")
    path = REPO.parent / "shared" / "reference" / "netns-2007-netperf.csv"
    with path.open(newline="") as stream:
        rows = [r for r in csv.DictReader(stream) if r["machine"] == machine]
    profile = Profile(
        runs=tuple(
            measured(r["scenario"], float(r["cpu_pct"]), float(r["throughput_mbit"]), r["patchset"]) for r in rows
        )
    )
    table = scenario_table(profile, baseline="vanilla-2.6.20:host")
    found = {r.scenario: r for r in table.rows}
    printed_wrong = {("xeon", "lxc7:veth-bridge"): 219.5}  # the document prints +299 %
    throughput_wrong = defaultdict(lambda: 0.25)
    assert table.rows[0].is_baseline
    assert math.isnan(table.rows[0].cpu_change_pct)
    for r in rows:
        name = f"{r['patchset']}:{r['scenario']}"
        if not r["cpu_overhead_pct"]:
            continue
        expected = printed_wrong.get((machine, name), float(r["cpu_overhead_pct"]))
        assert found[name].cpu_pct == pytest.approx(float(r["cpu_pct"]))
        assert found[name].cpu_change_pct == pytest.approx(expected, abs=0.6), name
        # The document rounds, and its athlon column has the sign of 838.85 and 835.11 against 844.82 wrong.
        change = (float(r["throughput_mbit"]) - float(rows[0]["throughput_mbit"])) / float(rows[0]["throughput_mbit"])
        assert found[name].throughput_change_pct == pytest.approx(100 * change, abs=throughput_wrong[name])


def test_unit_costs_stand_beside_cpu_and_throughput() -> None:
    table = scenario_table(bench_profile(seed=None))
    host, bridge = table.rows
    assert table.baseline == "host"
    assert host.unit_cost == pytest.approx(sum(HOST_COSTS.values()))
    assert bridge.unit_cost_change_pct == pytest.approx(100 * 580 / sum(HOST_COSTS.values()))
    assert bridge.cpu_change_pct == pytest.approx(bridge.unit_cost_change_pct)
    assert (host.throughput, host.throughput_unit) == (2000.0, "transactions/s")
    assert bridge.cpu_remote_pct == pytest.approx(10.0)
    assert "CPU +34%" in bridge.observation


def test_only_the_cpus_under_test_count() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS, duration_s=10.0)
    table = scenario_table(builder.build())
    assert table.rows[0].cpu_pct == pytest.approx(sum(HOST_COSTS.values()) * 20_000 / 1e9 / 10 * 100)


def test_unequal_work_makes_the_unit_cost_the_headline() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS, transactions=20_000)
    one_run(builder, "slow", HOST_COSTS, transactions=10_000)
    table = scenario_table(builder.build())
    slow = table.rows[1]
    assert slow.cpu_change_pct == pytest.approx(-50)
    assert slow.unit_cost_change_pct == pytest.approx(0, abs=1e-9)
    assert slow.observation.startswith("unit cost +0.0%")
    assert "unequal work (-50.0% throughput)" in slow.observation
    assert any("read the unit cost" in n for n in table.notes)


def test_a_difference_within_the_noise_is_none_shown() -> None:
    table = scenario_table(bench_profile(runs=4, scenarios={"host": HOST_COSTS, "again": HOST_COSTS}, seed=2))
    assert table.rows[1].observation == "CPU: no difference shown"


def test_drops_and_retransmits_are_told() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS)
    run = one_run(builder, "lossy", bridge_costs())
    builder.counters += [
        Counter(run, "device", 1, "eth0", -1, "tx_dropped", 0, 23.0),
        Counter(run, "netns", 1, "", -1, "Tcp.RetransSegs", 0, 7.0),
    ]
    lossy = scenario_table(builder.build()).rows[1]
    assert (lossy.drops, lossy.retransmits) == (23.0, 7.0)
    assert "23 drops; 7 retransmits" in lossy.observation


def test_runs_with_hop_probes_and_failed_runs_are_left_out() -> None:
    builder = ProfileBuilder()
    one_run(builder, "host", HOST_COSTS)
    one_run(builder, "host", bridge_costs(), hop=True)
    one_run(builder, "host", bridge_costs(), failed="netperf: no route")
    table = scenario_table(builder.build())
    assert table.rows[0].runs == 1
    assert table.rows[0].unit_cost == pytest.approx(sum(HOST_COSTS.values()))
    assert any("1 run failed (netperf: no route)" in n for n in table.notes)


def test_several_profiles_make_one_table() -> None:
    one = bench_profile(scenarios={"host": HOST_COSTS}, seed=None)
    two = bench_profile(scenarios={"veth-bridge": bridge_costs()}, seed=None)
    assert [r.scenario for r in scenario_table([one, two]).rows] == ["host", "veth-bridge"]


def test_a_baseline_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="hots"):
        scenario_table(bench_profile(), baseline="hots")
    with pytest.raises(EvidenceError):
        scenario_table(Profile())


def test_the_documents_tbench_changes_come_out_of_the_same_formula() -> None:
    need("cases")
    path = REPO.parent / "shared" / "reference" / "netns-2007-tbench.csv"
    if not path.exists():
        pytest.skip("no reference figures beside the real inputs")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    judged = 0
    for machine in ("xeon", "athlon"):
        mine = [r for r in rows if r["machine"] == machine]
        base = next(float(r["throughput_mbyte"]) for r in mine if r["patchset"].startswith("vanilla"))
        for r in mine:
            if (machine, r["scenario"], r["change_pct"]) == ("xeon", "no-container", "0"):
                continue  # 67.00 against 66.35 is +1 %, as the line above it says of the same figure
            if r["change_pct"]:
                # The document rounds, and divides the athlon's by 65.45 here and there.
                assert change_pct(float(r["throughput_mbyte"]), base) == pytest.approx(
                    float(r["change_pct"]), abs=0.35
                )
                judged += 1
    assert judged == 13


@pytest.mark.parametrize(
    ("value", "baseline", "percent"),
    [(17.14, 5.99, 186.1), (5.60, 5.99, -6.5), (5.99, 5.99, 0.0), (0.0, 4.0, -100.0), (60.07, 65.31, -8.0)],
)
def test_overhead_is_the_difference_as_a_share_of_the_baseline(value: float, baseline: float, percent: float) -> None:
    assert change_pct(value, baseline) == pytest.approx(percent, abs=0.06)


@pytest.mark.parametrize(("value", "baseline"), [(1.0, 0.0), (math.nan, 1.0), (1.0, math.nan)])
def test_a_change_without_a_baseline_is_no_number(value: float, baseline: float) -> None:
    assert math.isnan(change_pct(value, baseline))

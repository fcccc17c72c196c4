"""nsprof from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import nsprof
from nsprof import store
from nsprof.errors import NsprofError
from tests.profiles import HOST_COSTS, bench_profile, bridge_costs


@pytest.fixture
def opened(tmp_path: Path) -> nsprof.api.Handle:  # type: ignore[name-defined]
    store.save(bench_profile(runs=8), tmp_path / "p.nsprof")
    return nsprof.open(tmp_path / "p.nsprof")


def test_frames_hold_the_same_figures_as_the_results(opened: nsprof.api.Handle) -> None:  # type: ignore[name-defined]
    assert opened.scenarios == ("host", "veth-bridge")
    report = opened.report("host")
    frame = report.to_frame()
    assert frame["self_cost"].sum() == pytest.approx(report.result.total)
    assert frame["self_interval_low"].notna().any()
    delta = opened.diff(baseline="host", scenario="veth-bridge")
    changed = delta.to_frame().query("verdict == '+'")
    assert "veth_xmit" in set(changed["name"])
    assert delta.categories_frame().set_index("name")["delta"]["bridge"] == pytest.approx(420, rel=0.1)
    assert opened.table().to_frame()["scenario"].tolist() == ["host", "veth-bridge"]
    tree = opened.flame("host", by="context").to_frame()
    assert tree["self_new"].sum() == pytest.approx(report.result.total)
    assert opened.report("host", by="context").groups_frame()["cost"].sum() == pytest.approx(report.result.total)


def test_samples_and_runs_are_joinable_frames(opened: nsprof.api.Handle) -> None:  # type: ignore[name-defined]
    samples, runs = opened.samples_frame(), opened.runs_frame()
    joined = samples.merge(runs[["run", "transactions"]], on="run")
    joined["ns"] = joined["weight"] / joined["transactions"]
    means = joined.groupby("scenario", observed=True)["ns"].sum() / 8
    assert means["host"] == pytest.approx(sum(HOST_COSTS.values()), rel=0.05)
    assert means["veth-bridge"] == pytest.approx(sum(bridge_costs().values()), rel=0.05)
    assert set(samples["context"]) == {"task", "softirq"}
    assert runs["throughput"].tolist() == [2000.0] * 16


def test_an_empty_split_is_an_empty_frame(opened: nsprof.api.Handle) -> None:  # type: ignore[name-defined]
    assert opened.report("host").groups_frame().empty
    assert "cost" in opened.report("host").groups_frame().columns


def test_a_file_that_is_none_raises_nsprofs_own_error(tmp_path: Path) -> None:
    with pytest.raises(NsprofError):
        nsprof.open(tmp_path / "missing")
    with pytest.raises(AttributeError):
        nsprof.opne  # noqa: B018

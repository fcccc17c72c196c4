"""Stopping, resuming, scaling and the reports of a bench, on profiles with known costs."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsprof import store
from nsprof.analyse import metrics
from nsprof.bench import BenchOptions, plan_of, resume, stopping
from nsprof.bench.plan import Progress, fair_order
from nsprof.bench.run import only_part
from nsprof.churn import ChurnOptions, netns_mounts
from nsprof.cli.bench_output import show
from nsprof.errors import ComparisonError, EvidenceError, NsprofError, UsageError
from tests.profiles import HOST_COSTS, bench_profile


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.5%", 0.005), ("0.02", 0.02)])
def test_shares(text: str, share: float) -> None:
    assert stopping.parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "2", "-1%", "100%", "two"])
def test_what_is_no_share_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        stopping.parse_share(text)


def test_the_half_width_shrinks_with_runs_and_is_unknown_for_one() -> None:
    widths = [
        stopping.half_widths(bench_profile(runs=n), [("host", "veth-bridge")])["veth-bridge"] for n in (1, 4, 16)
    ]
    assert widths[0] == float("inf")
    assert widths[2] < widths[1] < 1


def test_a_resumed_bench_runs_what_is_missing_only() -> None:
    names = ["0:host", "0:veth-bridge"]
    progress = Progress({"0:host": 3, "0:veth-bridge": 1})
    left = [name for block in progress.left(names, 4, seed=5) for name in block]
    assert sorted(left) == ["0:host", "0:veth-bridge", "0:veth-bridge", "0:veth-bridge"]
    assert [n for b in Progress().left(names, 4, 5) for n in b] == fair_order(names, 4, 5)


def test_good_runs_count_as_done_and_failed_ones_do_not() -> None:
    made = bench_profile(runs=2, hop_runs=1)
    runs = list(made.runs)
    runs[0] = replace(runs[0], failed="broke")
    counts = resume.earlier_runs(made.with_(runs=tuple(runs)), kinds=2)
    assert counts == {"0:host": 1, "0:veth-bridge": 2, "1:host": 1, "1:veth-bridge": 1}


def test_another_bench_is_not_resumed_and_the_differences_are_listed(tmp_path: Path) -> None:
    plan = plan_of(BenchOptions(command=("netperf", "-l", "1")))
    path = tmp_path / "b.nsprof"
    assert resume.open_earlier(str(path), plan) is None
    made = bench_profile(runs=1)
    store.save(made, path)
    with pytest.raises(UsageError, match="not made by nsprof bench"):
        resume.open_earlier(str(path), plan)
    made = made.with_(meta={**made.meta, "bench": {"plan": plan.describe()}})
    store.save(made.with_(runs=tuple(replace(r, kernel="5.4.0-other") for r in made.runs)), path)
    with pytest.raises(ComparisonError, match=r"made on kernel 5\.4\.0-other"):
        resume.open_earlier(str(path), plan)
    store.save(made.with_(runs=tuple(replace(r, kernel=platform.release()) for r in made.runs)), path)
    assert resume.open_earlier(str(path), plan) is not None
    other = plan_of(BenchOptions(command=("netperf", "-l", "2")))
    with pytest.raises(ComparisonError, match=r"was '1', is '2'"):
        resume.open_earlier(str(path), other)


@pytest.mark.parametrize(
    "words",
    [
        {"scenarios": ("host", "host")},
        {"scenarios": ()},
        {"baseline": "hots"},
        {"wire_rate": "fast"},
        {"offload": "tso"},
        {"scenarios": ("device",), "containers": 2},
    ],
)
def test_impossible_combinations_are_refused_before_anything_is_built(words: dict[str, object]) -> None:
    with pytest.raises(NsprofError):
        plan_of(BenchOptions(command=("netperf",), **words))  # type: ignore[arg-type]


def test_the_slope_per_container_is_found_within_its_interval() -> None:
    counts = {f"veth-route x{n}": n for n in (1, 10, 20, 50)}
    scenarios = {name: {k: v * (1 + 0.002 * n) for k, v in HOST_COSTS.items()} for name, n in counts.items()}
    made = bench_profile(runs=8, scenarios=scenarios, seed=3)
    found = metrics.scaling(made, counts, title="t")
    true = 0.002 * sum(HOST_COSTS.values())
    assert found.slope_interval is not None
    assert found.slope_interval.low < true < found.slope_interval.high
    assert found.slope == pytest.approx(true, rel=0.2)
    with pytest.raises(EvidenceError):
        metrics.scaling(made, {"veth-route x1": 1}, title="t")


def test_metrics_of_both_sides_have_means_spread_and_q_values() -> None:
    table = metrics.metric_table(bench_profile(runs=8), "host", "veth-bridge")
    rows = {row.name: row for row in table.rows}
    assert rows["cost"].change_pct > 20
    assert rows["cost"].verdict == "+"
    assert rows["cost"].q < 0.05
    parts = sum(r.new_mean for r in table.rows if r.name.startswith("cost."))
    assert parts <= rows["cost"].new_mean * 1.0001
    few = metrics.metric_table(bench_profile(runs=3), "host", "veth-bridge")
    assert all(np.isnan(r.q) and not r.verdict for r in few.rows)


def test_conditions_tell_spread_load_and_clock() -> None:
    made = bench_profile(runs=4)
    seen = [{"run": i, "before": {"load": 1.0, "mhz": [2000, 2100]}, "after": {"load": 3.5}} for i in range(8)]
    row = metrics.conditions(made, ["host"], seen)[0]
    assert 0 < row.spread < 0.05
    assert row.load == 3.5
    assert row.mhz == (2000, 2100)


def test_parts_of_a_bench_are_read_one_by_one() -> None:
    made = bench_profile(runs=2)
    made = made.with_(
        runs=tuple(replace(r, scenario=f"{'A' if i < 2 else 'B'}/{r.scenario}") for i, r in enumerate(made.runs))
    )
    part = only_part(made, "B")
    assert part.runs_of("host") == (2,)
    assert part.runs_of("A/host") == ()


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"], ["--markdown", "--commit-text"]])
def test_an_earlier_bench_is_shown_in_every_form(tmp_path: Path, form: list[str]) -> None:
    made = bench_profile(runs=8)
    runs = list(made.runs)
    runs[1] = replace(runs[1], failed="netperf: broke off")
    store.save(made.with_(runs=tuple(runs)), tmp_path / "bench.nsprof")
    argv = [sys.executable, "-m", "nsprof", "bench", "--show", "bench.nsprof", *form]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a run of veth-bridge failed: netperf: broke off" in done.stderr
    if form == ["--json"]:
        part = json.loads(done.stdout)["parts"][0]
        assert {r["scenario"] for r in part["scenarios"]["rows"]} == {"host", "veth-bridge"}
        assert part["metrics"][0]["runs_new"] == 7
    elif form == ["--csv"]:
        assert done.stdout.splitlines()[0].startswith("part,base,new,name,unit,base_mean")
    else:
        assert "overhead" in done.stdout
        assert "Noise of the runs" in done.stdout
    if "--commit-text" in form:
        assert "6.12.0-test" in done.stdout
        assert "failed: netperf: broke off" in done.stdout


def test_the_next_command_compares_within_one_workload(capsys: pytest.CaptureFixture[str]) -> None:
    made = bench_profile(runs=2)
    order = ["tbench/veth-bridge", "netperf TCP_STREAM/host", "tbench/host", "netperf TCP_STREAM/veth-bridge"]
    runs = [replace(run, scenario=order[i]) for i, run in enumerate(made.runs)]
    cases = [
        {"part": part, "label": label, "shape": label, "containers": 1, "command": []}
        for part in ("netperf TCP_STREAM", "tbench")
        for label in ("host", "veth-bridge")
    ]
    plan = {"cases": cases, "tables": ["document"]}
    show(made.with_(runs=tuple(runs), meta={**made.meta, "bench": {"plan": plan}}), "two.nsprof")
    said = capsys.readouterr().err
    assert "nsprof diff two.nsprof --baseline tbench/host --scenario tbench/veth-bridge" in said


def test_kernels_become_columns_as_in_2007(tmp_path: Path) -> None:
    made = bench_profile(runs=4)
    runs = tuple(replace(r, kernel="6.1" if i < 4 else "6.12") for i, r in enumerate(made.runs))
    store.save(made.with_(runs=runs), tmp_path / "k.nsprof")
    argv = [sys.executable, "-m", "nsprof", "bench", "--show", "k.nsprof", "--baseline", "6.1:host", "--top", "0"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if "CPU usage (%) / overhead" in line)
    assert lines[head].count("CPU usage") == 2
    assert "6.1 " in lines[head + 1]
    assert "6.12" in lines[head + 1]
    assert any("Observation" in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        {"namespaces": 0},
        {"mount_namespaces": -1},
        {"tools": ("no-such-ip",)},
        {"tools": ("pyroute2", "pyroute2")},
        {"propagation": "up"},
        {"rounds": 0},
    ],
)
def test_churn_refuses_what_it_cannot_do(words: dict[str, object]) -> None:
    with pytest.raises(NsprofError):
        ChurnOptions(**words).check()  # type: ignore[arg-type]


def test_mounts_of_namespaces_are_counted_once_a_mount() -> None:
    text = (
        "30 1 0:4 net:[4026532001] /run/netns/churn0-1 rw shared:1 - nsfs nsfs rw\n"
        "31 1 0:4 net:[4026532001] /run/netns/churn0-1 rw shared:1 - nsfs nsfs rw\n"
        "32 1 0:25 / /run rw shared:2 - tmpfs tmpfs rw\n"
        "34 1 0:4 net:[4026532003] /run/netns/blue rw - nsfs nsfs rw\n"
        "33 1 0:4 net:[4026532002] /var/lib/x rw - nsfs nsfs rw\n"
    )
    assert netns_mounts(text) == ["net:[4026532001]"] * 2


def test_a_namespace_whose_name_is_no_utf_8_does_not_hinder_the_count_of_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsprof import churn

    file = tmp_path / "mountinfo"
    line = b"30 23 0:4 net:[4026532001] /run/netns/%s rw - nsfs nsfs rw\n"
    file.write_bytes(line % b"caf\xe9\xff" + line % b"churn0" + line % b"\xc2\x85 churn")
    monkeypatch.setattr(churn, "Path", lambda _: file)
    assert churn._own_copies() == 1
    assert churn._Sandbox._mounts(1) == ["net:[4026532001]"]

"""Experiment files: what they say is what is run, and what they cannot mean is said with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof.bench import experiment
from nsprof.errors import UsageError
from tests.support import REPO

EXAMPLES = sorted((REPO / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_example_is_understood_reduced_and_in_full(path: Path) -> None:
    for full in (False, True):
        plan = experiment.load(str(path), full=full)
        assert plan.cases or experiment.churn_of(str(path), full=full)


def test_the_2007_experiment_has_its_scenarios_workloads_and_rate() -> None:
    plan = experiment.load(str(REPO / "examples/netns-2007.toml"), full=True)
    assert [c.label for c in plan.cases] == ["host", "device", "veth-route", "veth-bridge"] * 2
    assert plan.parts == ("netperf TCP_STREAM", "tbench")
    assert {c.spec.wire_rate_bps for c in plan.cases} == {10**9}
    assert plan.cases[0].command == ("netperf", "-t", "TCP_STREAM", "-l", "60")
    assert plan.runs == 8


def test_reduced_lengths_apply_without_full_and_seconds_replace_both() -> None:
    path = str(REPO / "examples/netns-2007.toml")
    assert experiment.load(path).runs == 3
    assert experiment.load(path).cases[0].command[-1] == "4"
    assert experiment.load(path, full=True, seconds=7).cases[0].command[-1] == "7"


def test_a_sweep_over_containers_keeps_one_host_a_table() -> None:
    plan = experiment.load(str(REPO / "examples/containers-scaling.toml"), full=True)
    labels = [c.label for c in plan.cases if c.part == "netperf UDP_RR all-busy"]
    assert labels == ["host", *(f"veth-route x{n}" for n in (1, 10, 20, 30, 40, 50))]
    assert {c.busy for c in plan.cases} == {"one", "all"}


def test_rx_runs_the_client_in_the_remote_end() -> None:
    plan = experiment.load(str(REPO / "examples/vrf-2015.toml"))
    assert [c.reverse for c in plan.cases] == [False, False, True, True] * 2
    assert plan.needs == ("vrf",)


GOOD = """\
runs = 2

[scenarios]
shapes = ["host", "veth-bridge"]

[[workload]]
command = ["netperf", "-l", "{seconds}"]
seconds = 3
"""


@pytest.mark.parametrize(
    ("before", "after", "line", "says"),
    [
        ("runs = 2", "rnus = 2", 1, "did you mean 'runs'"),
        ("seconds = 3", "secnds = 3", 8, "did you mean 'seconds'"),
        ("shapes =", "shape =", 4, "did you mean 'shapes'"),
        ("runs = 2", "wire-rate = '1gbit'", 1, "belongs to [topology]"),
        ("runs = 2", "runs = 'many'", 1, "must be a whole number"),
        ("runs = 2", "runs = true", 1, "must be a whole number"),
        ("runs = 2", "runs = 0", 1, "must be 1 or more"),
        ('"veth-bridge"', '"veth-brigde"', 4, "did you mean 'veth-bridge'"),
        ("runs = 2", "baseline = 'hots'", 1, "did you mean 'host'"),
        ("runs = 2", "tables = ['documents']", 1, "did you mean 'document'"),
        ("runs = 2", "per = 'skbs'", 1, "skb"),
        ("runs = 2", "until = 'soon'", 1, "not a share"),
        ("seconds = 3", "seconds = 0", 8, "1 or more"),
        ("seconds = 3", "direction = 'up'", 8, "'tx' or 'rx'"),
        ('shapes = ["host", "veth-bridge"]', 'shapes = ["device"]\ncontainers = [2]', 5, "one container only"),
        ("shapes =", "busy = ['some']\nshapes =", 4, "'one' or 'all'"),
        ('command = ["netperf", "-l", "{seconds}"]', "name = 'x'", 6, "command must be a list"),
        ("[[workload]]", "[[workload]]\ncommand = ['true']\n[[workload]]", 6, "need a name each"),
        ("[[workload]]", "[churn]\nnamespaces = 3\n[[workload]]", 6, "exclude each other"),
        ("[[workload]]", "[churn]\nnamspaces = 3\n[[workload]]", 7, "did you mean 'namespaces'"),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_line_and_the_nearest_word(
    tmp_path: Path, before: str, after: str, line: int, says: str
) -> None:
    path = tmp_path / "x.toml"
    assert before in GOOD
    path.write_text(GOOD.replace(before, after, 1))
    with pytest.raises(UsageError) as caught:
        experiment.load(str(path))
    assert f"{path}:{line}: " in caught.value.message, caught.value.message
    assert says in str(caught.value)


def test_no_file_no_toml_and_no_workload_are_said(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(UsageError, match="no such experiment"):
        experiment.load(str(path))
    path.write_text("runs = = 2")
    with pytest.raises(UsageError, match="not TOML"):
        experiment.load(str(path))
    path.write_text("runs = 2")
    with pytest.raises(UsageError, match="nothing to run"):
        experiment.load(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not TOML"):
        experiment.load(str(path))

"""Which comparisons a report page holds: each scenario with its baseline, the last one first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsprof.cli.html_report import page_content
from nsprof.errors import UsageError
from nsprof.model.profile import Profile
from tests.profiles import HOST_COSTS, bench_profile, bridge_costs


def several(*names: str) -> Profile:
    """A bench of so many scenarios, three runs each."""
    costs = {name: HOST_COSTS if name == "host" else bridge_costs() for name in names}
    return bench_profile(3, scenarios=costs)


def labels(profile: Profile, other: Profile | None = None, **options: str) -> list[str]:
    content = page_content(profile, other, options)
    return [each.label for each in (content, *content.others)]


def test_each_scenario_is_compared_with_host_and_the_last_is_shown_first() -> None:
    made = several("host", "veth-route", "veth-nat", "veth-bridge")
    assert labels(made) == ["veth-bridge against host", "veth-route against host", "veth-nat against host"]


def test_a_named_baseline_is_that_of_all() -> None:
    made = several("host", "veth-route", "veth-bridge")
    assert labels(made, baseline="veth-route") == ["veth-bridge against veth-route", "host against veth-route"]


def test_a_named_scenario_is_the_only_one() -> None:
    made = several("host", "veth-route", "veth-bridge")
    assert labels(made, scenario="veth-route") == ["veth-route against host"]
    assert labels(made, scenario="veth-route", baseline="veth-bridge") == ["veth-route against veth-bridge"]


def test_each_kernel_has_its_own_host_and_a_scenario_is_compared_between_kernels() -> None:
    both = bench_profile(6)
    runs = tuple(replace(run, kernel="6.1" if n < 6 else "6.12") for n, run in enumerate(both.runs))
    assert labels(both.with_(runs=runs)) == [
        "6.12:veth-bridge against 6.12:host",
        "6.1:veth-bridge against 6.1:host",
        "6.12:host against 6.1:host",
        "6.12:veth-bridge against 6.1:veth-bridge",
    ]


def test_every_scenario_of_a_file_is_compared_with_another_file() -> None:
    made, host = several("host", "veth-route", "veth-bridge"), bench_profile(3, scenarios={"plain": HOST_COSTS})
    assert labels(made, host) == ["veth-bridge against plain", "host against plain", "veth-route against plain"]


def test_a_scenario_that_cannot_be_compared_leaves_the_others() -> None:
    made = several("host", "veth-route", "veth-bridge")
    failed = tuple(replace(r, failed="killed") if r.scenario == "veth-route" else r for r in made.runs)
    content = page_content(made.with_(runs=failed), None, {})
    assert content.label == "veth-bridge against host" and not content.others
    (reason,) = content.left_out
    assert reason.startswith("veth-route: ")


def test_what_is_wrong_for_all_is_an_error() -> None:
    with pytest.raises(UsageError):
        page_content(several("host", "veth-route", "veth-bridge"), None, {"per": "nosuch"})


def test_comparisons_share_the_graph_of_their_baseline() -> None:
    content = page_content(several("host", "veth-route", "veth-bridge"), None, {})
    graphs = [next(v for v in each.views if v.label == "host") for each in (content, *content.others)]
    assert graphs[0].tree.self_new is graphs[1].tree.self_new

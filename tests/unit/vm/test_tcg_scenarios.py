"""What `nsprof simulate` makes of words: plans, perturbations, paths to assert, sweeps, caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsprof.cli.simulate import _caches, _numbers, _switches
from nsprof.errors import NsprofError, UsageError, VmError
from nsprof.model.scenario import TopologySpec
from nsprof.simulate import SimulateOptions, measure_all
from nsprof.simulate.paths import check_path
from nsprof.simulate.plans import SHAPES, Perturbations, plan_for
from nsprof.simulate.sweep import options_at, parse_sweep, slope
from nsprof.vm.tcg_memory import region_of

OPTIONS = SimulateOptions(kernels=("debian:6.1",))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", [4, 6])
def test_every_shape_has_a_plan_with_fixed_addresses(shape: str, family: int) -> None:
    plan = plan_for(TopologySpec(shape, family=family))
    lines = [line for step in plan.steps for line in step.ip]
    assert plan.client == ("host" if shape == "host" else "c0")
    made = [line for line in lines if line.startswith("link add") and " type " in line]
    assert made
    assert all("address 02:" in line for line in made if "ipvlan" not in line)
    assert {step.netns for step in plan.steps} <= set(plan.netns)
    assert plan_for(TopologySpec(shape, family=family)) == plan


def test_containers_have_a_namespace_each() -> None:
    plan = plan_for(TopologySpec("veth-bridge", containers=50))
    assert len([name for name in plan.netns if name.startswith("c")]) == 50
    births = [line for step in plan.steps for line in step.ip if line.startswith("link add v")]
    assert len({line.split(" address ")[1].split()[0] for line in births}) == 50


def test_rules_stand_where_the_packets_pass() -> None:
    def hooks(shape: str, **extra: int) -> str:
        plan = plan_for(TopologySpec(shape), Perturbations(rules=2, **extra))  # type: ignore[arg-type]
        return " ".join(word for step in plan.steps for words in step.run for word in words)

    assert hooks("veth-bridge").count("rule bridge nsprof forward") == 2
    assert "nft_meta_bridge" in plan_for(TopologySpec("veth-bridge"), Perturbations(rules=1)).modules
    assert "nft_meta_bridge" not in plan_for(TopologySpec("veth-route"), Perturbations(rules=1)).modules
    assert hooks("veth-bridge", br_nf=True).count("rule ip nsprof forward") == 2
    assert hooks("veth-route").count("rule ip nsprof forward") == 2
    assert hooks("host").count("drop") == 4


def test_ports_without_a_bridge_are_refused() -> None:
    with pytest.raises(UsageError, match="has no bridge"):
        plan_for(TopologySpec("veth-route"), Perturbations(bridge_ports=3))


def test_path_is_asserted_per_skb() -> None:
    plan = plan_for(TopologySpec("veth-bridge"))
    check_path(plan, OPTIONS, {"veth_xmit": 40, "br_handle_frame": 20}, 2.0)
    with pytest.raises(VmError, match="br_handle_frame ran 19 times for 20 skbs, 20 expected"):
        check_path(plan, OPTIONS, {"veth_xmit": 40, "br_handle_frame": 19}, 2.0)
    with pytest.raises(VmError, match="did not take the pairs"):
        check_path(plan, OPTIONS, {"br_handle_frame": 20}, 2.0)
    with pytest.raises(VmError, match="the counters of w0 saw 40"):
        check_path(plan, OPTIONS, {"veth_xmit": 40, "br_handle_frame": 20}, 4.0)


def test_sweeps() -> None:
    assert parse_sweep("containers=1,10,50") == ("containers", (1, 10, 50))
    assert options_at(OPTIONS, "containers", 7).containers == 7
    assert options_at(OPTIONS, "bridge-ports", 7).perturbations.bridge_ports == 7
    assert slope([(1, 100.0), (2, 110.0), (3, 120.0)]) == pytest.approx(10)
    for wrong in ("containers", "colour=1,2", "rules=1", "rules=1,x", "rules=-1,2"):
        with pytest.raises(UsageError):
            parse_sweep(wrong)


def test_caches_and_numbers() -> None:
    assert _caches("l1d=48k:12,l2=2m:16") == (("l1d", "48:12"), ("l2", "2048:16"))
    assert _numbers("l2=80,instruction=0.25", "--estimate", ("l2", "instruction")) == {"l2": 80, "instruction": 0.25}
    assert _switches("tso=off,gro=on") == {"tso": False, "gro": True}
    for wrong in ("l1d=48:12", "l3=48k:12", "l1d=48k", "l1d=48k:0", "l1d=1k:7", "l1d"):
        with pytest.raises(UsageError):
            _caches(wrong)
    for wrong in ("tso=maybe", "speed=on"):
        with pytest.raises(UsageError):
            _switches(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "sctp"}, "no workload"),
        ({"size": 1 << 20}, "--size"),
        ({"samples": 0}, "--samples"),
        ({"rounds": 0}, "--rounds"),
        ({"kernels": ()}, "no kernel"),
        ({"scenarios": ("veth-brige",)}, "no topology"),
        ({"kernels": ("/no/such/bzImage",)}, "no such file"),
    ],
)
def test_words_that_cannot_be_meant_are_refused_before_anything_boots(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(NsprofError, match=message):
        measure_all(replace(OPTIONS, **change))  # type: ignore[arg-type]


def test_regions_of_addresses() -> None:
    assert region_of(0x7FFE00000000) == "user"
    assert region_of(0xFFFF888001234567) == "direct map"
    assert region_of(0xFFFFFFFF81000000) == "kernel image"
    assert region_of(0xFFFFFFFFC0400000) == "module"

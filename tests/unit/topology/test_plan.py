"""What is decided before anything is made: names, addresses, CPUs, and what is refused."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import replace

import pytest

from nsprof.errors import TopologyError
from nsprof.model.scenario import TopologySpec
from nsprof.topology import SHAPES, plan, shapes
from nsprof.topology.construction import shaper_sizes
from nsprof.topology.namespaces import _cpu_mask

ODD = ["", "../x", "a b", "x'y", 'x"y', "<b>", "-rf", "UPPER", "a/b", "123456789", "x\n", "é", "a\0b", "$(id)"]


@pytest.mark.parametrize("run_id", ODD)
def test_run_ids_with_odd_characters_are_refused_in_words(run_id: str) -> None:
    with pytest.raises(TopologyError, match="cannot be used") as caught:
        plan.check_run_id(run_id)
    assert "a-z" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": "veth-brdge"}, "no topology 'veth-brdge'"),
        ({"shape": "../../etc"}, "no topology"),
        ({"containers": 0}, "1 to 1000"),
        ({"containers": 1001}, "1 to 1000"),
        ({"shape": "device", "containers": 2}, "one container only"),
        ({"family": 5}, "4 or 6"),
        ({"mtu": 67}, "68 to 65535"),
        ({"mtu": 65536}, "68 to 65535"),
        ({"mtu": 1279, "family": 6}, "1280 to 65535"),
        ({"mtu": 100, "shape": "vxlan"}, "118 to 65535"),
        ({"wire_rate_bps": 1}, "8 kbit/s"),
        ({"wire_rate_bps": -5}, "8 kbit/s"),
        ({"offloads": {"lro": False}}, "no offload 'lro'"),
        ({"host_netns": "mine"}, "'own' or 'init'"),
        ({"shape": "vrf", "host_netns": "init"}, "l3mdev"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_value_and_the_limits(change: dict[str, object], words: str) -> None:
    spec = replace(TopologySpec("veth-bridge"), **change)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=re.escape(words)):
        plan.check_spec(spec, SHAPES)


def test_a_misspelt_shape_gets_the_nearest_as_a_hint() -> None:
    with pytest.raises(TopologyError) as caught:
        plan.check_shape("veth-brigde", SHAPES)
    assert "did you mean 'veth-bridge'?" in caught.value.hint


@pytest.mark.parametrize("family", [4, 6])
def test_all_addresses_are_distinct_and_from_the_benchmarking_range(family: int) -> None:
    a = plan.Addresses(family)
    numbers = range(plan.MAX_CONTAINERS)
    lan = [a.remote, a.host, *map(a.container, numbers), *map(a.pair, numbers)]
    pods = [a.pod_gateway, *map(a.pod, numbers)]
    parsed = [ipaddress.ip_address(text) for text in lan + pods]
    assert len(set(parsed)) == len(parsed)
    whole, lan_net, pod_net = (ipaddress.ip_network(n) for n in (a.whole, a.lan, a.pods))
    assert all(ipaddress.ip_address(x) in lan_net for x in lan)
    assert all(ipaddress.ip_address(x) in pod_net for x in pods)
    assert str(lan_net.network_address) not in lan and str(lan_net.broadcast_address) not in lan
    official = ipaddress.ip_network("198.18.0.0/15" if family == 4 else "2001:2::/48")
    assert whole == official
    assert lan_net.subnet_of(official) and pod_net.subnet_of(official)  # type: ignore[arg-type]
    assert not lan_net.overlaps(pod_net)  # type: ignore[arg-type]


@pytest.mark.parametrize("run_id", ["a", "abcdefgh"])
def test_device_names_fit_the_kernel_and_carry_the_run_id_in_the_initial_namespace(run_id: str) -> None:
    names = plan.Names.of(TopologySpec(host_netns="init"), run_id)
    made = [names.wire, names.bridge, names.vrf, names.vxlan, names.pair(0), names.pair(999)]
    assert all(len(name) <= 15 and name.endswith(run_id) for name in made)
    assert len(set(made)) == len(made)
    assert plan.Names.of(TopologySpec(), run_id).wire == "w0"


def test_run_ids_are_random_and_acceptable() -> None:
    made = {plan.new_run_id() for _ in range(50)}
    assert len(made) > 45
    assert all(plan.check_run_id(run_id) == run_id for run_id in made)


def test_cpus_are_halved_and_never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (2, 3, 4, 16):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=count: set(range(n)))
        dut, remote = plan.choose_cpus(TopologySpec())
        assert dut and remote and not set(dut) & set(remote)
        assert set(dut) | set(remote) == set(range(count))
    assert plan.choose_cpus(TopologySpec(pin=False)) == ((), ())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert plan.choose_cpus(TopologySpec()) == ((), ())


def test_siblings_of_a_core_stay_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(
        plan.Path, "read_text", lambda path: "0,2\n" if str(path)[27:].startswith(("0/", "2/")) else "1,3\n"
    )
    assert plan.choose_cpus(TopologySpec()) == ((0, 2), (1, 3))


def test_cpu_masks_are_written_as_the_kernel_reads_them() -> None:
    assert _cpu_mask((0,)) == "00000001"
    assert _cpu_mask((0, 1, 31)) == "80000003"
    assert _cpu_mask((33,)) == "00000002,00000000"
    assert _cpu_mask(()) == "00000000"


@pytest.mark.parametrize("rate", [10**6, 10**9, 10**11])
def test_the_shaper_holds_two_of_the_largest_gso_skbs(rate: int) -> None:
    burst, limit = shaper_sizes(rate)
    assert burst >= 2 * 65536
    assert limit - burst >= 8 * 65536


def test_every_shape_says_what_it_is() -> None:
    seen = set()
    for name in SHAPES:
        shape = shapes.get(name)
        assert shape.name == name
        assert shape.chain.startswith("client") and shape.chain.endswith("server")
        assert shape.difference and shape.needs
        lines = shape.drawing.splitlines()
        assert max(map(len, lines)) <= 78, "fits a terminal of 80 columns"
        assert len({len(line) for line in lines[1:]}) == 1, "the right edge is straight"
        seen.add(shape.chain + shape.difference)
    assert len(seen) == len(SHAPES)

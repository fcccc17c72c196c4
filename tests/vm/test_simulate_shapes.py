"""Every shape's path in a guest, and whose packet the kernel worked for: what must run where, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsprof.errors import VmError
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import Direction
from nsprof.simulate import Measurement, SimulateOptions, measure_all, measure_each, profile_of
from nsprof.simulate.hops import hops_are_known
from nsprof.simulate.plans import SHAPES, Perturbations
from tests.support import need

pytestmark = pytest.mark.vm
#: 6.12 has all: netkit came with 6.7.
ONE = SimulateOptions(kernels=("debian:6.12",), samples=3, rounds=1)
#: Shapes whose order of receptions tells the device.
TOLD = ("host", "device", "veth-route", "netkit", "veth-bridge", "veth-bridge-route", "veth-nat", "vrf")


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    need("vm", "gcc")


@pytest.fixture(scope="module")
def shapes() -> dict[str, Measurement]:
    return {m.scenario: m for m in measure_all(replace(ONE, scenarios=tuple(SHAPES)))}


def test_the_path_of_every_shape_is_the_one_executed(shapes: dict[str, Measurement]) -> None:
    # Each of them passed nsprof.simulate.paths, or there were no measurement.
    assert set(shapes) == set(SHAPES)
    # One network each: an unlucky hash bucket costs five instructions, also in host.
    host = shapes["host"].instructions
    assert all(m.instructions > host - 20 for m in shapes.values())
    assert all(m.sample.unmatched == 0 for m in shapes.values())


def test_functions_run_on_the_devices_where_they_belong(shapes: dict[str, Measurement]) -> None:
    def places(name: str, function: str) -> set[str]:
        profile = profile_of(ONE, [shapes[name]])
        rows = profile.samples
        leaf = [fold_suffixes(profile.frames.name[int(profile.stacks[int(s)][0])]) for s in rows.stack]
        found = set()
        for row, what in enumerate(leaf):
            if what == function:
                device = rows.hop_dev[row]
                space = profile.namespace_label(rows.hop_ns[row])
                found.add(f"{space}:{profile.devices[device - 1].name if device else ''}")
        return found

    ends = {"c0:eth0", "remote:eth0"}
    for name in ("veth-route", "netkit", "vrf"):
        assert places(name, "ip_forward") == {"host:v0", "host:w0"}
        assert places(name, "udp_queue_rcv_one_skb") == ends
    assert places("veth-bridge", "br_handle_frame") == {"host:v0", "host:w0"}
    assert places("veth-bridge", "ip_rcv") == ends
    assert places("veth-bridge-route", "ip_forward") == {"host:br0", "host:w0"}
    assert places("host", "udp_queue_rcv_one_skb") == {"host:w0", "remote:eth0"}
    assert places("device", "udp_queue_rcv_one_skb") == {"c0:w0", "remote:eth0"}
    assert places("veth-bridge", "udp_sendmsg") == {"c0:", "remote:"}
    assert places("veth-route", "veth_xmit") == {"c0:eth0", "host:w0", "remote:eth0", "host:v0"}


def test_hops_are_claimed_only_where_the_order_tells_them(shapes: dict[str, Measurement]) -> None:
    for name, m in shapes.items():
        assert hops_are_known(m) == (name in TOLD), name
    profile = profile_of(ONE, [shapes["vxlan"]])
    assert set(profile.samples.hop_dir) == {int(Direction.UNKNOWN)}


def test_bridge_netfilter_and_rules_are_on_the_path_of_both_families() -> None:
    points = [
        replace(ONE, kernels=("debian:6.1",), scenarios=(shape,), family=family, perturbations=extra)
        for shape, extra in (
            ("veth-bridge", Perturbations(br_nf=True)),
            ("veth-bridge", Perturbations(rules=3)),
            ("veth-route", Perturbations(rules=3)),
        )
        for family in (4, 6)
    ]
    for options, (m,) in zip(points, measure_each(points), strict=True):
        wanted = "br_nf_pre_routing" if options.perturbations.br_nf else "nft_do_chain"
        assert m.calls()[wanted] == 2 * m.repetitions


def test_a_kernel_without_netkit_says_so() -> None:
    with pytest.raises(VmError, match=r"making netkit pair v0 \(it wants CONFIG_NETKIT, Linux 6.7\)"):
        measure_all(replace(ONE, kernels=("debian:6.1",), scenarios=("netkit",)))


def test_an_mtu_that_a_router_must_tell_is_learned_while_warming_up() -> None:
    # The server's 1,450 bytes go whole until the host, before the container's 1,400, has said that they cannot.
    mismatch = replace(ONE, scenarios=("veth-route",), size=1450, perturbations=Perturbations(mtu=1400))
    (m,) = measure_all(mismatch)
    assert m.calls()["ip_do_fragment"] == 2 * m.repetitions
    assert m.denominators["skb"] == 4 * m.repetitions


def test_datagrams_that_a_bridge_drops_for_their_length_are_told() -> None:
    # A bridge says nothing to the sender.
    mismatch = replace(ONE, scenarios=("veth-bridge",), size=4000, perturbations=Perturbations(mtu=9000))
    with pytest.raises(VmError, match=r"datagrams of 4000 bytes are lost on the way to the server \(is an MTU too"):
        measure_all(mismatch)

"""`nsprof explain` end to end: faults put into real topologies on this kernel, recorded and explained."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from nsprof.analyse import Filter, causes
from nsprof.collect.sampling.sampler import SamplerConfig
from nsprof.model.profile import Profile
from nsprof.model.results import Explanation
from nsprof.observe import Observer
from tests.causes_bed import Fault, measure
from tests.causes_faults import FAULTS, PAIRS
from tests.causes_more import MORE
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.netperf]

_BY_NAME = {fault.name: fault for fault in (*FAULTS, *MORE, *PAIRS)}


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    need("root", "bpf", "netperf")
    with Observer(SamplerConfig(frequency_hz=1999)) as ready:
        yield ready


def explained(fault: Fault, profile: Profile) -> Explanation:
    where = Filter(side=fault.side, everyone=fault.everyone)
    return causes.explain(profile, profile, base_scenario="clean", new_scenario="fault", where=where)


def told(observer: Observer, fault: Fault, runs: int, wanted: str = "") -> Explanation:
    """Recorded and explained; again where the machine was so busy with others that it says "not enough data", or
    drowned the throughput that a cause is seen by."""
    for _ in range(3):
        e = explained(fault, measure(observer, fault, runs=runs))
        if e.answer != "not enough data" and (not wanted or wanted in {f.cause for f in e.findings}):
            break
    return e


@pytest.mark.parametrize(
    "name", ["nft-2000-output", "tso-gso-off", "fragments-3", "policy-rules-1000", "xdp-generic", "packet-socket"]
)
def test_the_injected_fault_is_the_first_cause(observer: Observer, name: str) -> None:
    fault = _BY_NAME[name]
    e = told(observer, fault, runs=2)
    assert e.findings, (e.answer, e.reasons, e.forbids)
    assert e.findings[0].cause in fault.expect
    assert e.findings[0].certainty == "found"
    owned = sum(f.delta for f in e.findings)
    assert owned + e.not_explained == pytest.approx(e.total.delta)


#: cause -> (fault, what its evidence says of this very set-up).
KNOWN = {
    "software-segmentation": ("tso-gso-off", "tx-tcp-segmentation"),
    "extra-hop-veth": ("hop-route", "packets leave through 4 devices (base: 2)"),
    "small-writes": ("small-writes", "64 bytes a write (base: 16384)"),
    "window-limited": ("tiny-window", "socket buffers 2048 (base: default)"),
    "mtu-small": ("mtu-1500-of-9000", "MTU 1500"),
    "gro-lost": ("gro-off", "rx-gro is off"),
    "ksoftirqd": ("receiver-overloaded", "ksoftirqd has"),
    "pmtu-black-hole": ("pmtu-black-hole", "FragFails"),
    "wrong-checksums": ("wrong-checksums-udp", "packets with wrong checksums"),
    "shaped": ("shaped-htb-100mbit", "htb on w0 in host"),
}


@pytest.mark.parametrize("cause", KNOWN)
def test_a_cause_is_found_in_real_traffic_by_what_was_set_up(observer: Observer, cause: str) -> None:
    name, words = KNOWN[cause]
    e = told(observer, _BY_NAME[name], runs=2, wanted=cause)
    found = {f.cause: f for f in e.findings}
    assert cause in found, (e.answer, list(found), e.reasons, e.forbids)
    assert words in "; ".join(x.text for x in found[cause].evidence)


#: cause that costs throughput, not CPU time -> (fault, what its evidence says of this very set-up).
NOT_CPU = {
    "socket-buffer": ("tiny-receive-buffer", "of the datagrams dropped at the socket"),
    "softirq-bottleneck": ("receive-on-one-cpu", "CPU 1 spends"),
    "waiting": ("server-sleeps", "CPU than at base"),
    "retransmits": ("policed-100mbit", "of the segments were lost and sent again"),
}
_OTHERS = re.compile(r"tasks outside the scenario's namespaces took ([\d.]+)% of the busy time")


@pytest.mark.parametrize("cause", NOT_CPU)
def test_what_costs_no_cpu_time_is_told_from_what_does(observer: Observer, cause: str) -> None:
    name, words = NOT_CPU[cause]
    e = told(observer, _BY_NAME[name], runs=2, wanted=cause)
    found = {f.cause: f for f in e.findings}
    others = max((float(m[1]) for n in e.notes if (m := _OTHERS.search(n))), default=0.0)
    if cause not in found and others > 30:
        pytest.skip(f"{others:.0f} % of the busy time is other load: no CPU is idle, and throughput is the others'")
    assert cause in found, (e.answer, list(found), e.reasons, e.forbids)
    assert words in "; ".join(x.text for x in found[cause].evidence)
    assert e.findings[0].cause == cause
    assert e.answer == "not cpu"


def test_the_clean_twin_has_no_finding(observer: Observer) -> None:
    profile = measure(observer, _BY_NAME["nft-2000-output"].twin, runs=3)
    e = causes.explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert [f.cause for f in e.findings] == []


def test_two_faults_at_once_are_both_found(observer: Observer) -> None:
    fault = _BY_NAME["nft-1000 + packet-socket"]
    e = told(observer, fault, runs=2)
    assert set(fault.both) <= {f.cause for f in e.findings}

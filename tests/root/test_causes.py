"""`nsprof explain` end to end: faults put into real topologies on this kernel, recorded and explained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

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
    return causes.explain(profile, profile, base_scenario="clean", new_scenario="fault", where=where, per=fault.per)


def names(e: Explanation) -> list[str]:
    return [f.cause for f in e.findings]


def told(observer: Observer, fault: Fault, right: Callable[[Explanation], bool]) -> Explanation:
    """Recorded and explained, up to three times: two runs of a second a side are few, and on a machine that is busy
    with others they may show nothing, or that the others slowed one side down."""
    for _ in range(3):
        e = explained(fault, measure(observer, fault, runs=2))
        if right(e):
            break
    return e


def added_up(e: Explanation) -> None:
    assert sum(f.delta for f in e.findings) + e.not_explained == pytest.approx(e.total.delta, abs=1e-6)


#: Faults that cost as much as half of the path, or a multiple of it.
LARGE = ("nft-2000-output", "tso-gso-off", "fragments-3", "policy-rules-1000")


@pytest.mark.parametrize("name", LARGE)
def test_a_large_fault_is_the_first_cause(observer: Observer, name: str) -> None:
    fault = _BY_NAME[name]
    e = told(observer, fault, lambda e: names(e)[:1] == list(fault.expect))
    assert names(e)[:1] == list(fault.expect), (e.answer, names(e), e.reasons, e.forbids)
    assert e.findings[0].certainty == "found"
    added_up(e)


#: cause -> (fault, what its evidence says of this very set-up). Settings, counters, and code of one side only
#: are certain; what these cost may be a hundredth, so that other work can stand above it.
KNOWN = {
    "packet-socket": ("packet-socket", "1 more packet sockets in host than at base"),
    "xdp-generic": ("xdp-generic", "XDP in generic mode on w0 in host"),
    "software-checksum": ("checksum-off", "that they replace, set off: _copy_from_iter"),
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
    "cross-cpu": ("receive-on-other-cpu", "RPS 2 on eth0 in c0"),
    "flooding": ("flooding-30", "a bridge's ports send"),
    "namespace-churn": ("churn-beside", "of the programs that do it: ip"),
}


@pytest.mark.parametrize("cause", KNOWN)
def test_a_cause_is_found_in_real_traffic_by_what_was_set_up(observer: Observer, cause: str) -> None:
    name, words = KNOWN[cause]

    def evidence(e: Explanation) -> str:
        return "; ".join(x.text for f in e.findings if f.cause == cause for x in f.evidence)

    e = told(observer, _BY_NAME[name], lambda e: words in evidence(e))
    assert cause in names(e), (e.answer, names(e), e.reasons, e.forbids)
    assert words in evidence(e)
    added_up(e)


#: cause that costs throughput, not CPU time -> (fault, what its evidence says of this very set-up).
NOT_CPU = {
    "socket-buffer": ("tiny-receive-buffer", "of the datagrams dropped at the socket"),
    "softirq-bottleneck": ("receive-on-one-cpu", "CPU 1 spends"),
    "waiting": ("server-sleeps", "CPU than at base"),
    "retransmits": ("policed-100mbit", "of the segments were lost and sent again"),
}
_OTHERS = re.compile(r"tasks outside the scenario's namespaces took ([\d.]+)% of the busy time")
#: With so much of the CPUs' time taken by others throughput is theirs.
_BUSY = 20


@pytest.mark.parametrize("cause", NOT_CPU)
def test_what_costs_no_cpu_time_is_told_from_what_does(observer: Observer, cause: str) -> None:
    name, words = NOT_CPU[cause]
    e = told(observer, _BY_NAME[name], lambda e: names(e)[:1] == [cause])
    others = max((float(m[1]) for n in e.notes if (m := _OTHERS.search(n))), default=0.0)
    if names(e)[:1] != [cause] and others > _BUSY:
        pytest.skip(f"{others:.0f} % of the busy time is other load: no CPU is idle, and throughput is the others'")
    assert names(e)[:1] == [cause], (e.answer, names(e), e.reasons, e.forbids, e.notes)
    assert words in "; ".join(x.text for x in e.findings[0].evidence)
    assert e.answer == "not cpu"


def test_no_cause_is_found_twice_between_equal_sides(observer: Observer) -> None:
    """Three runs are slower than three others by chance once in 20 times, but not for the same reason again."""
    twin = _BY_NAME["nft-2000-output"].twin
    found = set(names(explained(twin, measure(observer, twin, runs=4))))
    if found:
        found &= set(names(explained(twin, measure(observer, twin, runs=4))))
    assert found == set()


def test_two_faults_at_once_are_both_found(observer: Observer) -> None:
    fault = _BY_NAME["nft-1000 + packet-socket"]
    e = told(observer, fault, lambda e: set(fault.both) <= set(names(e)))
    assert set(fault.both) <= set(names(e)), (e.answer, names(e), e.reasons)

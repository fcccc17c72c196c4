"""`nsprof explain` end to end: faults put into real topologies on this kernel, recorded and explained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsprof.analyse import causes
from nsprof.collect.sampler import SamplerConfig
from nsprof.model.results import Explanation
from nsprof.observe import Observer
from tests.causes_bed import Fault, measure
from tests.causes_faults import FAULTS, PAIRS
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.netperf]

_BY_NAME = {fault.name: fault for fault in (*FAULTS, *PAIRS)}


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    need("root", "bpf", "netperf")
    with Observer(SamplerConfig(frequency_hz=1999)) as ready:
        yield ready


def told(observer: Observer, fault: Fault, runs: int) -> Explanation:
    """Recorded and explained; once more where the machine was so busy with others that it says "not enough data"."""
    for _ in range(3):
        profile = measure(observer, fault, runs=runs)
        e = causes.explain(profile, profile, base_scenario="clean", new_scenario="fault")
        if e.findings or e.answer != "not enough data":
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


def test_the_clean_twin_has_no_finding(observer: Observer) -> None:
    profile = measure(observer, _BY_NAME["nft-2000-output"].twin, runs=3)
    e = causes.explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert [f.cause for f in e.findings] == []


def test_two_faults_at_once_are_both_found(observer: Observer) -> None:
    fault = _BY_NAME["nft-1000 + packet-socket"]
    e = told(observer, fault, runs=2)
    assert set(fault.both) <= {f.cause for f in e.findings}

"""`nsprof explain` on kernels that are not this machine's, in exact instructions: no noise, so shares must fit."""

from __future__ import annotations

import pytest

from nsprof.analyse import causes
from tests.causes_simulated import SIMULATED, pair_of
from tests.support import need

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.long]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", ["debian:6.1"])
def test_a_simulated_fault_is_found_and_its_share_is_what_it_costs(kernel: str) -> None:
    need("vm", "gcc")
    fault = next(f for f in SIMULATED if f.name == "rules-100")
    profile = pair_of(fault, kernel, {})
    e = causes.explain(profile, profile, base_scenario="clean", new_scenario="fault")
    assert e.findings[0].cause == "netfilter-rules"
    assert e.findings[0].certainty == "found"
    assert e.findings[0].share == pytest.approx(1.0, abs=0.15)
    assert e.answer == "explained"

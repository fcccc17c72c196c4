"""Under lockdown=confidentiality hop context stands on tp_btf; the other rungs are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsprof.collect.hop import probes as hop
from nsprof.errors import ProbeError
from tests.root.hop_bed import Bed, bed, bridged
from tests.vm.guest.hopping import check_rung


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    with bed() as one:
        bridged(one)
        yield one


def test_two_busy_containers_are_told_apart_under_lockdown(made: Bed) -> None:
    check_rung("tp_btf", made)


@pytest.mark.parametrize("rung", ["raw_tp", "fentry", "kprobe", "tracepoint"])
def test_other_rungs_are_refused(rung: str) -> None:
    probes = hop.HopProbes(rungs=hop.rungs_named([rung]))
    with pytest.raises(ProbeError, match=f"hop_tx stands on no rung of this kernel: {rung}: "):
        probes.load()
    assert probes.probe_infos() == ()

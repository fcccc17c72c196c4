"""Under lockdown=confidentiality hop context stands on tp_btf, and on names alone on classic tracepoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsprof.collect import hop
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


@pytest.mark.parametrize("rung", ["raw_tp", "fentry", "kprobe"])
def test_rungs_that_need_the_reading_helper_are_refused(rung: str) -> None:
    probes = hop.HopProbes(rungs=hop.rungs_named([rung]))
    with pytest.raises(ProbeError, match=f"hop_tx stands on no rung of this kernel: {rung}: "):
        probes.load()
    assert probes.probe_infos() == ()


def test_names_of_devices_need_no_helper() -> None:
    probes = hop.HopProbes(rungs=hop.rungs_named(["tracepoint"]))
    try:
        probes.load()
        rungs = {info.name: info.rung for info in probes.probe_infos()}
        assert (rungs["hop_tx"], rungs["hop_rx"]) == ("tracepoint", "tracepoint")
    finally:
        probes.close()

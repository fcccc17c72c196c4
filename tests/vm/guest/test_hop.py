"""Hop context on every rung: right namespace and device of at least 95 % of the samples that can be judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsprof.collect.hop import probes as hop
from tests.root.hop_bed import Bed, bed, bridged
from tests.vm.guest.hopping import check_rung


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    with bed() as one:
        bridged(one)
        yield one


@pytest.mark.parametrize("rung", [each.name for each in hop.RUNGS])
def test_two_busy_containers_are_told_apart_on(rung: str, made: Bed) -> None:
    check_rung(rung, made)

"""The sampler on this kernel: the known load is found, in the amount that its own CPU time says."""

from __future__ import annotations

from tests.vm.guest.sampling import check_reader


def test_sampler_finds_the_known_load() -> None:
    check_reader(3.0, 199)

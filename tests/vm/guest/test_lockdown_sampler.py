"""Under lockdown=confidentiality no program may read kernel memory, and the sampler works all the same."""

from __future__ import annotations

from pathlib import Path

from tests.vm.guest.sampling import check_reader


def test_kernel_is_locked_down() -> None:
    assert "[confidentiality]" in Path("/sys/kernel/security/lockdown").read_text()


def test_sampler_finds_the_known_load_under_lockdown() -> None:
    check_reader(3.0, 199)

"""The sampler on this kernel: the known load is found, in the amount that its own CPU time says."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof.collect.bpf.btf import kernel_types
from tests.vm.guest.sampling import check_reader


def test_sampler_finds_the_known_load() -> None:
    check_reader(3.0, 199)


@pytest.mark.parametrize("name", ["hrtimer_bases", "tick_cpu_sched"])
def test_per_cpu_variables_lie_where_kallsyms_says(name: str) -> None:
    """Which ticks were due in idle time is read relative to them. (Per-CPU symbols of x86 count from 0 here.)"""
    lines = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines())
    assert kernel_types().per_cpu(name) == next(int(words[0], 16) for words in lines if words[2] == name)


def test_a_per_cpu_variable_that_is_not_there_has_no_place() -> None:
    assert kernel_types().per_cpu("no_such_variable") is None
    assert kernel_types().per_cpu("jiffies") is None, "a variable, but not per CPU"

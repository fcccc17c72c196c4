"""The ledger's table of functions holds together, and agrees with the source of its programs."""

from __future__ import annotations

import re

import pytest

from nsprof.collect.bpf.loader import probes_dir
from nsprof.collect.ledger.names import CALLERS, EVENTS, FUNCTIONS, RENAMED, function_named


def test_every_program_that_the_table_names_is_in_the_source() -> None:
    calls = set(re.findall(r"^int (\w+)\(", (probes_dir() / "ledger_calls.c").read_text(), re.M))
    assert {f"{rung}_{row.body}" for row in FUNCTIONS for rung in ("traced", "probed")} <= calls
    hops = set(re.findall(r"^int (\w+)\(", (probes_dir() / "ledger_hop.c").read_text(), re.M))
    assert {event.program for event in EVENTS} == hops


def test_no_function_is_probed_twice() -> None:
    names = [name for row in FUNCTIONS for name in (row.name, *row.also)]
    assert len(names) == len(set(names))


def test_older_and_newer_names_are_one_row() -> None:
    for name, others in RENAMED.items():
        assert {function_named(other).name for other in others} == {name}


def test_each_caller_in_the_checksum_table_is_reached_by_its_own_row_or_is_an_end() -> None:
    for function, kernels in CALLERS.items():
        for kernel, callers in kernels.items():
            assert function not in callers
            for caller in callers:
                assert kernel in CALLERS.get(caller, {kernel: ()}) or caller == "csum_and_copy_to_iter"


@pytest.mark.parametrize("name", ["udp_rcv", "no_such_function"])
def test_a_function_that_is_not_in_the_table_is_counted_by_calls(name: str) -> None:
    row = function_named(name)
    assert (row.body, row.what) == ("count", f"calls of {name}")

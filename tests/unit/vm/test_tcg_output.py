"""Reading the counting plugin's output: trees, the modal sample, thunks, what is incomplete."""

from __future__ import annotations

import pytest

from nsprof.errors import VmError
from nsprof.vm.tcg_output import TreeSample, modal, parse

TEXT = """\
R 1 0 executed=110 repeats=10 user=5 unmatched=0 interrupt_unmatched=0
S 2 1 40 0 3 1 0 0 0 0 0
S 3 2 20 0 0 0 0 0 0 0 0
S 4 2 30 10 1 2 0 0 0 0 0
S 5 1 10 0 0 0 0 0 0 0 0
L d ffff888000001000 1000 ffff888000001008 ffffffff81000010 2 1 4
L t ffffffff81000000 0 ffffffff81000000 ffffffff81000000 1 0 2
T d ffff888000001000 7
A ffffffff81000010 2 1 0 0 movq (%rdi), %rax
R 2 0 executed=0 repeats=0 user=2002 unmatched=0 interrupt_unmatched=0
N 2 0 1 100 ffffffff81000000 entry_SYSCALL_64
N 3 2 2 0 ffffffff81000100 __x86_indirect_thunk_rax
N 4 3 3 101 ffffffff81000200 ip_rcv
N 5 4 4 0 ffffffff81000300 kfree.isra.0
Z
"""


def test_samples_hold_counts_lines_and_addresses() -> None:
    output = parse(TEXT)
    assert [(s.region, s.index) for s in output.samples] == [(1, 0), (2, 0)]
    (sample,) = output.of(1)
    assert sample.instructions == 100 == sample.sum_of("instructions")
    assert sample.sum_of("rep-iterations") == 10
    assert (sample.sum_of("loads"), sample.sum_of("stores")) == (4, 3)
    data, text = sample.lines()
    assert (data.text, data.address, data.loads, data.stores, data.node) == (False, 0xFFFF888000001000, 2, 1, 4)
    assert text.text
    assert list(sample.touchers()) == [(False, 0xFFFF888000001000, 7)]
    (address,) = sample.addresses()
    assert (address.count, address.l1d, address.text) == (2, 1, "movq (%rdi), %rax")
    assert output.of(2)[0].totals["user"] == 2002


def test_thunks_are_no_callers_but_keep_their_own_cost() -> None:
    output = parse(TEXT)
    assert output.names(5) == ("kfree.isra.0", "ip_rcv", "entry_SYSCALL_64")
    assert output.names(3) == ("__x86_indirect_thunk_rax", "entry_SYSCALL_64")


@pytest.mark.parametrize("text", ["", TEXT.replace("Z\n", "")])
def test_output_without_its_end_is_refused(text: str) -> None:
    with pytest.raises(VmError, match="incomplete"):
        parse(text)


def test_failure_of_the_plugin_is_told() -> None:
    with pytest.raises(VmError, match="snapshot of the guest's memory failed: No space left"):
        parse("E snapshot of the guest's memory failed: No space left on device\nZ\n")


def _sample(index: int, instructions: int) -> TreeSample:
    return TreeSample(1, index, {"executed": instructions, "repeats": 0}, f"2 1 {instructions} 0 0 0 0 0 0 0 0")


def test_modal_sample_is_the_commonest_tree_not_the_mean() -> None:
    found, share = modal([_sample(i, n) for i, n in enumerate((500, 100, 100, 900, 100))])
    assert (found.instructions, found.index, share) == (100, 1, 0.6)


def test_without_common_trees_the_sample_of_median_total_stands() -> None:
    found, share = modal([_sample(i, 100 + 7 * i) for i in range(11)])
    assert (found.instructions, share) == (135, pytest.approx(1 / 11))


def test_no_samples_are_an_error() -> None:
    with pytest.raises(VmError, match="no sample"):
        modal([])

"""Batches of the ledger's probes, with a kernel that is made up: who is with whom, and what a refusal does."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from nsprof.collect.ladder.finding import Found
from nsprof.collect.ledger import lines as ledger_lines
from nsprof.collect.ledger import probes as ledger_probes
from nsprof.collect.ledger.names import function_named
from nsprof.collect.ledger.probes import Batch, Group, Probe


class Kernel:
    """Grants batches unless an address is closed; each link is a descriptor that the test can look at."""

    def __init__(self, closed: Sequence[int] = (), error: int = errno.EINVAL) -> None:
        self.closed, self.error = set(closed), error
        self.asked: list[list[int]] = []

    def load(self, code: bytes, *, name: str) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    def attach(self, program: int, places: Sequence[tuple[int, int]], *, on_return: bool) -> int:
        os.fstat(program)
        addresses = [address for address, _ in places]
        self.asked.append(addresses)
        if self.closed & set(addresses) or self.closed == {0}:
            raise OSError(self.error, os.strerror(self.error))
        return os.open(os.devnull, os.O_RDONLY)


class Program:
    def code(self, function: str) -> bytes:
        return function.encode()

    def close(self) -> None:
        pass


def group(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, *names: str) -> Group:
    monkeypatch.setattr(ledger_probes, "load_batch", kernel.load)
    monkeypatch.setattr(ledger_probes, "attach_batch", kernel.attach)
    probes = []
    for slot, name in enumerate(names):
        row = function_named(name)
        rungs = ("fexit", "kretprobe") if row.result else ("fentry", "kprobe")
        found = Found(name, ((name, "", 1000 + slot),))
        probes.append(Probe(name, name, slot, "", found, dict.fromkeys(rungs, b""), row))
    return Group(Program(), probes)  # type: ignore[arg-type]


def together(made: Group) -> list[list[str]]:
    batches = {id(p.attached): p.attached for p in made.probes if isinstance(p.attached, Batch)}
    return sorted([each.name for each in batch.members] for batch in batches.values())


def test_functions_of_one_program_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    made = group(monkeypatch, kernel, "skb_copy", "skb_clone", "ip_do_fragment", "pskb_expand_head")
    made.attach_batches(made.probes)
    assert together(made) == [["ip_do_fragment"], ["pskb_expand_head"], ["skb_copy", "skb_clone"]]
    assert {probe.rung for probe in made.probes} == {"kprobe_multi"}
    made.close()
    assert made.loaded == {} and all(probe.attached is None for probe in made.probes)


def test_one_that_is_closed_leaves_the_others_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(closed=[1001])
    made = group(monkeypatch, kernel, "skb_copy", "skb_clone", "skb_copy_ubufs")
    made.attach_batches(made.probes)
    assert together(made) == [["skb_copy"], ["skb_copy_ubufs"]]
    assert [probe.alone for probe in made.probes] == [False, True, False]
    for probe in made.probes:
        probe.detach()
    made.attach_batches(made.probes)  # the next window knows
    assert together(made) == [["skb_copy", "skb_copy_ubufs"]]
    made.close()


def test_a_kernel_without_batches_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(closed=[0], error=errno.EOPNOTSUPP)
    made = group(monkeypatch, kernel, "skb_copy", "skb_clone", "ip_do_fragment")
    made.attach_batches(made.probes)
    made.attach_batches(made.probes)
    assert len(kernel.asked) == 1
    assert together(made) == []
    made.close()


def test_what_is_wanted_of_arguments_on_return_is_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = group(monkeypatch, Kernel(), "inet_sendmsg", "inet_recvmsg", "__skb_gso_segment")
    made.attach_batches(made.probes)
    assert together(made) == [["__skb_gso_segment"]]
    made.close()


def test_one_that_is_shed_leaves_its_batch_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    made = group(monkeypatch, kernel, "skb_copy", "skb_clone", "skb_copy_ubufs")
    made.attach_batches(made.probes)
    made.probes[1].shed = "too dear"
    made.remove(made.probes[1])
    assert together(made) == [["skb_copy", "skb_copy_ubufs"]]
    assert made.probes[1].attached is None
    assert kernel.asked[-1] == [1000, 1002]
    made.close()


def test_a_count_of_rules_that_was_cut_off_says_so() -> None:
    row = function_named("nft_do_chain")
    assert ledger_lines._detail(row, "nft_do_chain", 1) == "nft_do_chain: the chain has 1,024 rules or more"
    assert ledger_lines._detail(row, "nft_do_chain", 0) == "nft_do_chain"

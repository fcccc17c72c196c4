"""What doctor says of places that have no probe: the function's name is in the sentence."""

from __future__ import annotations

from typing import Any

import pytest

from nsprof.collect.ledger import places as ledger_places
from nsprof.collect.ledger.probes import Probe


def told(monkeypatch: pytest.MonkeyPatch, *probes: Probe) -> list[str]:
    class Stands:
        def __init__(self, **_: Any) -> None:
            self.probes = list(probes)

        def __enter__(self) -> Stands:
            return self

        def __exit__(self, *_: object) -> None:
            self.probes = self.probes

        def start(self) -> None:
            """Nothing is attached."""

        def stop(self) -> None:
            """Nothing is attached."""

    monkeypatch.setattr(ledger_places, "Ledger", Stands)
    return [each.reason for each in ledger_places.places()]


def refused(name: str, reason: str) -> Probe:
    return Probe(name, name, 0, name, reason=reason)


def test_a_missing_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one = refused("br_nf_pre_routing", "function br_nf_pre_routing is not in this kernel")
    assert told(monkeypatch, one) == ["function br_nf_pre_routing is not in this kernel"]


def test_those_refused_for_one_reason_are_one_place_that_names_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "fentry: BPF program nsprof_{} was refused: invalid access"
    probes = [refused(name, why.format(name.strip("_"))) for name in ("__pskb_pull_tail", "skb_copy", "skb_clone")]
    assert told(monkeypatch, *probes) == [
        "fentry: BPF program __pskb_pull_tail (and 2 more) was refused: invalid access"
    ]


def test_a_reason_without_a_name_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = [refused(name, "kprobe: the kernel is built without kprobes") for name in ("skb_copy", "skb_clone")]
    assert told(monkeypatch, *probes) == ["kprobe: the kernel is built without kprobes"]

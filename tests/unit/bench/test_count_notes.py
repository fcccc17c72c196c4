"""A probe that was shed in a bench's counting passes is told once: from the probes, not by a note too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nsprof.analyse.trust import refused
from nsprof.bench import run
from nsprof.collect.ledger.counting import Ledger
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import ProbeInfo

REASON = "0.5 s after the window began: over its budget; counted until then only: packets"


def test_shedding_is_not_a_note_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Observes:
        def __init__(self, _: Any, source: Any) -> None:
            source(None)

        def __enter__(self) -> Observes:
            return self

        def __exit__(self, *_: object) -> None:
            monkeypatch.undo()

    def source(ledger: Ledger) -> None:
        ledger._say(f"probe queue shed {REASON}")

    monkeypatch.setattr(run, "Observer", Observes)
    monkeypatch.setattr(run, "LedgerSource", source)
    bench: Any = SimpleNamespace(builder=ProfileBuilder(), plan=SimpleNamespace(cases=()), notes=[])
    run._count(bench, lambda done, total, what: None)
    assert bench.notes == []
    bench.builder.probes.append(ProbeInfo("queue", "net_dev_queue", "tp_btf", "shed", REASON))
    assert refused(bench.builder.build()) == [f"probe queue shed: {REASON}"]

"""A rule with its evidence, and what that evidence is enough for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsprof.analyse.causes import weigh
from nsprof.analyse.causes.rule import Rule, Seen

__all__ = ["Judged", "established", "repeats"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule with its evidence."""

    number: int
    rule: Rule
    weight: weigh.Weight
    shown: bool  # its functions cost more
    seen: tuple[Seen, ...]
    against: tuple[Seen, ...]
    strength: float = 0.0

    @property
    def set_up(self) -> bool:
        """Whether a setting or the way the traffic was made speaks for it, which no other cause brings about."""
        return any(s.kind in ("host", "workload") for s in self.seen)

    @property
    def kinds(self) -> set[str]:
        return {s.kind for s in self.seen} | ({"functions"} if self.shown else set())

    @property
    def place(self) -> str:
        """Where: a setting names the device, a counter often the namespace only."""
        return next((s.place for s in sorted(self.seen, key=lambda s: s.kind != "host") if s.place), "")


def established(rule: Rule, own: Sequence[Seen], seen: Sequence[Seen]) -> bool:
    """Whether a counter says that it happens, and something else of the scenario's own why (a counter of the whole
    machine needs a setting): then it does, though noise may hide what it costs."""
    kinds = {s.kind for s in own}
    happens = bool(kinds & {"counters", "ledger"}) and len(kinds) > 1
    set_up = "host" in kinds and any(s.kind == "counters" for s in seen)
    return bool(rule.owns) and (happens or set_up)


def repeats(j: Judged) -> bool:
    """Whether it is shown that the path runs more often, and why: so it does, though noise may hide the cost."""
    return j.rule.spread is not None and not j.rule.owns and len({s.kind for s in j.seen}) > 1 and not j.against

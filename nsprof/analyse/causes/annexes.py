"""What a cause is given besides its own functions.

- *replaced*: code that no longer runs because the cause's own does its work (a plain copy, where one that adds up a
  checksum copies now). What it cost is set off, so that a cause costs what it costs more than what it took over from.
- *programs*: all that the programs cost which bring the cause about (those that create namespaces), user code too.
- *repeated*: the rest of a path that the cause makes run more often.

Only samples that no cause owns are given, each once, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import categories
from nsprof.analyse.causes.owners import Claims
from nsprof.analyse.comparing import Sides
from nsprof.analyse.selection import View
from nsprof.analyse.stacks import row_categories
from nsprof.model.profile import Context

__all__ = ["Annex", "Annexes"]

_Array = NDArray[np.float64]
_Rows = list[NDArray[np.bool_]]
#: A program that has fewer of the samples of what a cause does was there by chance (interrupted, or its child not yet
#: another program).
_OFTEN = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Annex:
    """One part: its kind, its cost by run on both sides, and what is in it by name (change of the mean)."""

    kind: str
    cost: tuple[_Array, _Array]
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def delta(self) -> float:
        return float(self.cost[1].mean() - self.cost[0].mean())


class Annexes:
    """Hands out what `owner` (the cause of each group of claims, -1 for none) leaves. `taken` marks rows given."""

    def __init__(self, sides: Sides, claims: Claims, owner: NDArray[np.int64]) -> None:
        self.sides, self.claims = sides, claims
        self.free: _Rows = [owner[key] == -1 for key in claims.key]
        self.taken: _Rows = [np.zeros(len(key), bool) for key in claims.key]
        self.given: dict[int, list[Annex]] = {}

    def of(self, number: int, kind: str) -> Annex | None:
        """A cause's part of a kind."""
        return next((a for a in self.given.get(number, []) if a.kind == kind), None)

    def replaced(self, number: int) -> None:
        """Set off what costs less because the cause's own functions run instead."""
        there = np.array([number in dict(g) for g in self.claims.instead])
        rows = [there[k] & free for k, free in zip(self.claims.instead_key, self.free, strict=True)]
        cost = self._cost(rows)
        if cost[1].mean() >= cost[0].mean():
            return  # it runs as often as before: nothing was replaced
        names = [self.sides.functions.name[dict(g)[number]] if number in dict(g) else "" for g in self.claims.instead]
        labels = [np.array(names, object)[k] for k in self.claims.instead_key]
        self._give(number, "replaced", rows, cost, labels)

    def programs(self, number: int) -> None:
        """Give the rest of what those programs cost in which the cause's signature ran: tasks by their names, outside
        the scenario's namespaces."""
        names = [_programs(view) for view in self.sides.views]
        wanted = np.array([number in m for m in self.claims.marks])
        signed = wanted[self.claims.marked[1]] & _foreign_task(self.sides.views[1])
        seen = Counter(names[1][signed].tolist())
        doing = {name for name, n in seen.items() if n >= _OFTEN * seen.total()}
        # Kernel workers clear up after all programs; they have no user code.
        doing &= set(names[1][self.sides.views[1].column("context") == int(Context.USER)].tolist())
        rows = [
            np.isin(n, list(doing)) & free & _foreign_task(v)
            for n, free, v in zip(names, self.free, self.sides.views, strict=True)
        ]
        cost = self._cost(rows)
        if cost[1].mean() > cost[0].mean():
            self._give(number, "programs", rows, cost, names)

    def repeated(self, number: int, names: Sequence[str]) -> None:
        """Give what is left in these categories, if it became dearer."""
        wanted = np.isin(categories.ALL, names)
        pairs = zip(self.sides.views, self.sides.tables, self.free, strict=True)
        rows = [wanted[row_categories(v, t)] & free for v, t, free in pairs]
        cost = self._cost(rows)
        if cost[1].mean() > cost[0].mean():
            self._give(number, "repeated", rows, cost)

    def added(self, shares: Mapping[int, tuple[_Array, _Array]]) -> dict[int, tuple[_Array, _Array]]:
        """Costs by cause with what was given, which nobody (-1) has any more."""
        made = dict(shares)
        for number, annexes in self.given.items():
            for annex in annexes:
                for to, sign in ((number, 1), (-1, -1)):
                    own = made.get(to, (np.zeros_like(annex.cost[0]), np.zeros_like(annex.cost[1])))
                    made[to] = (own[0] + sign * annex.cost[0], own[1] + sign * annex.cost[1])
        return made

    def _cost(self, rows: _Rows) -> tuple[_Array, _Array]:
        one, two = (v.by_run(np.where(r, 0, -1), 1)[0] for v, r in zip(self.sides.views, rows, strict=True))
        return one, two

    def _give(
        self,
        number: int,
        kind: str,
        rows: _Rows,
        cost: tuple[_Array, _Array],
        labels: Sequence[NDArray[np.object_]] = (),
    ) -> None:
        parts: dict[str, float] = {}
        for sign, view, mine, label in zip((-1, 1), self.sides.views, rows, labels, strict=False):
            for name in set(label[mine].tolist()):
                part = float(view.cost[mine & (label == name)].sum()) / len(view.runs)
                parts[name] = parts.get(name, 0.0) + sign * part
        self.given.setdefault(number, []).append(Annex(kind, cost, parts))
        self.taken = [t | r for t, r in zip(self.taken, rows, strict=True)]
        self.free = [f & ~r for f, r in zip(self.free, rows, strict=True)]


def _programs(view: View) -> NDArray[np.object_]:
    """The name of each row's task."""
    names = np.array([t.comm for t in view.profile.tasks] or [""], object)
    made: NDArray[np.object_] = names[view.column("task")]
    return made


def _foreign_task(view: View) -> NDArray[np.bool_]:
    """Rows of tasks in their own context whose namespace has no part in the scenario."""
    ours = np.array([False, *(bool(n.role) for n in view.profile.namespaces)])
    own_context = np.isin(view.column("context"), (int(Context.TASK), int(Context.USER)))
    rows: NDArray[np.bool_] = own_context & ~ours[view.column("task_ns")]
    return rows

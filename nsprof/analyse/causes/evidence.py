"""What a cause's functions cost, in words: its own part by function, and what of their cost is another cause's.

Each ns belongs to one cause. A function that a cause owns, with all that it calls, may cost more than the cause is
given, where another cause owns a frame further to the leaf; the line says both figures and whose the rest is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes.owners import Claims
from nsprof.analyse.causes.rule import Rule

__all__ = ["Ownership"]

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Ownership:
    """Who owns each group of claims (-1: nobody), and what a group costs more (`delta`, in the measure's unit).

    `heirs` maps causes to those that they are a mere consequence of.
    """

    claims: Claims
    owner: NDArray[np.int64]
    heirs: Mapping[int, int]
    delta: _Array
    functions: Sequence[str]
    rules: Sequence[Rule]

    def groups(self, number: int) -> NDArray[np.bool_]:
        """Which groups a cause owns."""
        mine: NDArray[np.bool_] = self.owner == number
        return mine

    def by_function(self, number: int) -> dict[str, float]:
        """A cause's own functions: what each costs more with all it calls but for what other causes own there."""
        made: dict[str, float] = {}
        for rule, frame, delta in self._given(number):
            if rule == number:
                made[self.functions[frame]] = made.get(self.functions[frame], 0.0) + delta
        return made

    def inherited(self, number: int) -> dict[str, float]:
        """Title of a cause that is a mere consequence -> what this one was given for it."""
        made: dict[str, float] = {}
        for rule, _, delta in self._given(number):
            if rule != number:
                made[self.rules[rule].title] = made.get(self.rules[rule].title, 0.0) + delta
        return made

    def _given(self, number: int) -> list[tuple[int, int, float]]:
        """(cause by whose function, that function, what it costs more) of the groups that a cause owns."""
        rows = []
        for i in np.flatnonzero(self.groups(number)).tolist():
            pairs = zip(self.claims.groups[i], self.claims.frames[i], strict=True)
            rule, frame = next((r, f) for r, f in pairs if self.heirs.get(r, r) == number)
            rows.append((rule, frame, float(self.delta[i])))
        return rows

    def elsewhere(self, number: int) -> dict[str, float]:
        """Title of a cause -> what it owns, further to the leaf, of the cost of this one's functions."""
        made: dict[str, float] = {}
        for i, group in enumerate(self.claims.groups):
            whose = int(self.owner[i])
            if number in group and whose not in (number, -1):
                title = self.rules[whose].title
                made[title] = made.get(title, 0.0) + float(self.delta[i])
        return {title: delta for title, delta in made.items() if delta > 0}

    def named(self, number: int) -> list[tuple[str, float]]:
        """The functions by what they cost more, those that cost less left out."""
        rows = sorted(self.by_function(number).items(), key=lambda row: -row[1])
        return [(name, delta) for name, delta in rows if delta > 0]

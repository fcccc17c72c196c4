"""The two sides of an explanation with everything a cause may ask: samples, counters, settings, ledger, workload."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes.others import own_known
from nsprof.analyse.comparing import Sides
from nsprof.analyse.ledger_shed import Sheds, sheds_of
from nsprof.analyse.selection import View, amount
from nsprof.model.profile import Profile, Run

__all__ = ["Case", "Moved", "Side"]

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """A counter per unit of work on both sides, one number a run."""

    name: str
    base: _Array
    new: _Array
    place: str = ""

    @property
    def delta(self) -> float:
        return float(self.new.mean() - self.base.mean())


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side's counters and settings. `facts` maps namespace labels to what the snapshot says of them."""

    profile: Profile
    scenario: str
    runs: tuple[int, ...]
    units: _Array
    facts: Mapping[str, Any]
    described: Mapping[str, Any]
    host: Mapping[str, Any]
    table: Mapping[tuple[str, str], list[tuple[str, _Array]]] = field(default_factory=dict)
    kept: dict[str, Sheds] = field(default_factory=dict)

    @property
    def run_objects(self) -> tuple[Run, ...]:
        return tuple(self.profile.runs[i] for i in self.runs)

    def rows(self, name: str, scope: str = "") -> list[tuple[str, _Array]]:
        """(place, value by run) of every counter of a name (`*` as in the shell) and scope."""
        found: list[tuple[str, _Array]] = []
        for (at, key), rows in self.table.items():
            if (not scope or at == scope) and fnmatch.fnmatchcase(key, name):
                found += rows
        return found

    def total(self, *names: str, scope: str = "") -> _Array:
        """Sum over all namespaces, devices and CPUs, a number a run; zeros where nothing was counted."""
        total = np.zeros(len(self.runs))
        for name in names:
            for _, values in self.rows(name, scope):
                total = total + values
        return total

    @property
    def counted(self) -> bool:
        """Whether any protocol counter was read (then "did not move" is an answer)."""
        return any(scope == "netns" for scope, _ in self.table)

    def ledger_calls(self, what: str, per: str) -> float | None:
        """Calls a unit of work in the counting passes of the scenario; None without a pass or without units, and
        where a probe that counts them was shed on the way.
        """
        plain = self.scenario.partition(":")[2] or self.scenario
        lines = self.profile.ledger
        passes = {line.run for line in lines}
        passes |= {i for name in {self.scenario, plain} for i in self.profile.ledger_runs_of(name)}
        runs = [i for i in passes if self.profile.runs[i].scenario in (self.scenario, plain)]
        units = sum(_units(self.profile.runs[i], per) for i in runs)
        if not runs or units <= 0:
            return None
        meant = [line for line in lines if line.run in runs and line.what == what]
        if "sheds" not in self.kept:  # the same for every cause that asks
            self.kept["sheds"] = sheds_of(self.profile, runs)
        shed = self.kept["sheds"]
        if what in shed.events(runs) or not math.isnan(shed.of(meant)):
            return None
        return sum(line.calls for line in meant) / units

    def values(self, name: str) -> _Array:
        """A result of the workload, by run; empty where a run has none."""
        found = [next((v.value for v in run.values if v.name == name), np.nan) for run in self.run_objects]
        return np.zeros(0) if not found or any(np.isnan(found)) else np.array(found, "f8")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Base and new. Counters are per unit of the measure where it has one, else per second."""

    sides: Sides
    base: Side
    new: Side
    base_total: float
    new_total: float

    @property
    def per(self) -> str:
        """What counters are divided by, in words."""
        per = self.sides.measure.per
        return per if per not in ("", "share") else "second"

    def moved(self, *names: str, scope: str = "") -> Moved:
        """Counters of these names added up, per unit of work."""
        one, two = (s.total(*names, scope=scope) / s.units for s in (self.base, self.new))
        places = sorted(
            ((float(values.mean()), place) for name in names for place, values in self.new.rows(name, scope)),
            reverse=True,
        )
        place = places[0][1] if places and places[0][0] > 0 else ""
        return Moved(" + ".join(names), one, two, place)

    def devices(self, side: Side) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """(namespace, device, facts) of every device in the snapshot but lo."""
        for label, space in side.facts.items():
            for name, facts in (space.get("devices") or {}).items() if isinstance(space, Mapping) else ():
                if name != "lo" and isinstance(facts, Mapping):
                    yield label, name, facts

    def spaces(self, side: Side) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(namespace, facts) of every namespace in the snapshot."""
        for label, space in side.facts.items():
            if isinstance(space, Mapping):
                yield label, space

    def fact(self, side: Side, space: str, *path: str) -> Any:
        """A fact of a namespace, None where it is not known."""
        value: Any = side.facts.get(space)
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def side_of(view: View, per: str) -> Side:
    """Collect one side's counters and settings: those of the scenario's own namespaces, where the profile tells."""
    profile, position = view.profile, {run: i for i, run in enumerate(view.runs)}
    units = np.array([_units(profile.runs[i], per) for i in view.runs])
    counted = bool((units > 0).all())
    own = own_known(view)
    made: dict[tuple[str, str], dict[str, _Array]] = {}
    for row in profile.counters if counted else ():
        at = position.get(row.run)
        if at is None or (own and row.namespace and not profile.namespaces[row.namespace - 1].role):
            continue
        label = profile.namespace_label(row.namespace) if row.namespace else ""
        place = f"{row.device} in {label}" if row.device else label or (f"CPU {row.cpu}" if row.cpu >= 0 else "")
        values = made.setdefault((row.scope, row.name), {}).setdefault(place, np.zeros(len(position)))
        values[at] += row.delta
    table = {key: list(rows.items()) for key, rows in made.items()}
    topology = profile.meta.get("topology")
    plain = view.title.partition(":")[2] or view.title
    described = (topology.get(view.title) or topology.get(plain)) if isinstance(topology, Mapping) else None
    described = described if isinstance(described, Mapping) else {}
    # A setting of the whole machine that was another while this scenario ran is told with the scenario.
    host, changed = profile.meta.get("host"), described.get("host")
    host = host if isinstance(host, Mapping) else {}
    host = {**host, **changed} if isinstance(changed, Mapping) else host
    facts = described.get("namespaces") or host.get("namespaces") or {}
    facts = facts if isinstance(facts, Mapping) else {}
    return Side(
        profile, view.title, view.runs, units if counted else np.ones(len(units)), facts, described, host, table
    )


def _units(run: Run, per: str) -> float:
    """What counters are divided by: units of the measure, else seconds; 0 where neither is known."""
    return amount(run, per if per not in ("", "share") else "second")


def case_of(sides: Sides) -> Case:
    """The case of two comparable sides."""
    per = sides.measure.per
    base, new = (side_of(v, per) for v in sides.views)
    totals = [float(v.totals().mean()) for v in sides.views]
    return Case(sides, base, new, totals[0], totals[1])

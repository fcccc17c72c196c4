"""The looks that causes are made of: counters that rise, settings that differ, ledger lines, how traffic was made.

Every factory returns a `Check`. A setting counts only where it differs between the sides: what both sides have
explains no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.rule import Check, Seen

__all__ = [
    "device_fact",
    "ledger_rises",
    "more",
    "offload_lost",
    "rises",
    "size",
    "skbs_per_unit",
    "space_fact",
    "workload",
]


def size(value: float) -> str:
    """A count per unit in two or three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rises(*names: str, least: float, ratio: float = 1.2, scope: str = "", what: str = "", why: str) -> Check:
    """Counters that go up by at least `least` a unit of work, and by `ratio`. `why` says where the limit is from."""

    def look(case: Case) -> Seen | None:
        moved = case.moved(*names, scope=scope)
        base, new = float(moved.base.mean()), float(moved.new.mean())
        if new - base < least or new < ratio * base:
            return None
        if len(moved.base) > 1 and len(moved.new) > 1 and moved.new.min() <= moved.base.max():
            return None  # the runs of the two sides overlap
        label = what or " + ".join(names)
        return Seen("counters", f"{label}: {size(base)} -> {size(new)} a {case.per}", moved.place, 0.0)

    about = f"{' + '.join(names)} rises by {least:g} a unit or more and {ratio:g}-fold: {why}"
    return Check("counters", about, look, needs="nsprof record (counters of both sides)")


def more(
    function: Callable[[Case], Seen | None], kind: str, about: str, needs: str = "", *, must: bool = False
) -> Check:
    """A check of one's own."""
    return Check(kind, about, function, needs, must)


def ledger_rises(what: str, *, least: float, why: str) -> Check:
    """Lines of the packet ledger that go up by `least` calls a unit."""

    def count(side: Side) -> float:
        runs = set(side.runs)
        calls = sum(line.calls for line in side.profile.ledger if line.run in runs and line.what == what)
        return calls / max(float(side.units.sum()), 1e-12)

    def look(case: Case) -> Seen | None:
        base, new = count(case.base), count(case.new)
        if new - base < least:
            return None
        return Seen("ledger", f"ledger, {what}: {size(base)} -> {size(new)} a {case.per}")

    return Check("ledger", f"ledger lines '{what}' rise by {least:g} a unit: {why}", look)


def device_fact(
    test: Callable[[Mapping[str, Any]], Any], text: Callable[[str, str, Any, Any], str], about: str
) -> Check:
    """A setting of a device: `test` gives a true value where the cause is there. Found where new has it and base has
    not (on the same device, or has no such device)."""

    def look(case: Case) -> Seen | None:
        before = {(space, name): test(facts) for space, name, facts in case.devices(case.base)}
        for space, name, facts in case.devices(case.new):
            value = test(facts)
            if value and value != before.get((space, name)):
                return Seen("host", text(space, name, value, before.get((space, name))), f"{name} in {space}")
        return None

    return Check("host", about, look, needs="nsprof bench, or nsprof record --in NETNS (settings of its devices)")


def space_fact(test: Callable[[Mapping[str, Any]], Any], text: Callable[[str, Any, Any], str], about: str) -> Check:
    """The same for a setting of a namespace."""

    def look(case: Case) -> Seen | None:
        before = {space: test(facts) for space, facts in case.spaces(case.base)}
        for space, facts in case.spaces(case.new):
            value = test(facts)
            if value and value != before.get(space):
                return Seen("host", text(space, value, before.get(space)), space)
        return None

    return Check("host", about, look, needs="nsprof bench, or nsprof record --in NETNS (settings of the namespace)")


def offload_lost(*features: str, about: str) -> Check:
    """An offload that is on at base and off in new, on the same device; or off in new on a device base has not."""

    def off(facts: Mapping[str, Any]) -> tuple[str, ...]:
        offloads = facts.get("offloads") or {}
        return tuple(f for f in features if offloads.get(f) is False)

    def look(case: Case) -> Seen | None:
        before = {(s, n): off(f) for s, n, f in case.devices(case.base)}
        for space, name, facts in case.devices(case.new):
            lost = [f for f in off(facts) if f not in before.get((space, name), ())]
            if lost:
                return Seen("host", f"{', '.join(lost)} is off on {name} in {space}", f"{name} in {space}")
        return None

    return Check("host", about, look, needs="nsprof bench, or nsprof record --in NETNS (offloads of its devices)")


def skbs_per_unit(case: Case) -> float:
    """How many times as many skbs a unit of work takes (all devices but lo)."""
    totals = []
    for side in (case.base, case.new):
        rows = [v for place, v in side.rows("tx_packets", "device") if not place.startswith("lo in ")]
        devices = [r for r in rows if float(r.sum()) > 0]
        if not devices:
            return 1.0
        # The busiest device, not the sum: another device on the path is a hop, not more skbs.
        totals.append(max(float((r / side.units).mean()) for r in devices))
    return totals[1] / totals[0] if totals[0] > 0 else 1.0


def workload(words: Iterable[str]) -> Callable[[Side], tuple[str, ...]]:
    """Values of options in the commands of a side's runs (`-m 64` gives 64)."""
    wanted = tuple(words)

    def find(side: Side) -> tuple[str, ...]:
        found = []
        for run in side.run_objects:
            for option, value in zip(run.command, run.command[1:], strict=False):
                if option in wanted:
                    found.append(value)
        return tuple(dict.fromkeys(found))

    return find

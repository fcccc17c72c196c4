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
    "absent",
    "busy_share",
    "datapath_more",
    "device_fact",
    "device_kinds",
    "ledger_rises",
    "machine_differs",
    "more",
    "no_device",
    "none_of",
    "offload_lost",
    "rises",
    "share_of",
    "size",
    "skbs_per_unit",
    "slower",
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

    def look(case: Case) -> Seen | None:
        base, new = (side.ledger_calls(what, case.per) for side in (case.base, case.new))
        if base is None or new is None or new - base < least:
            return None
        return Seen("ledger", f"ledger, {what}: {size(base)} -> {size(new)} a {case.per}")

    about = f"ledger lines '{what}' rise by {least:g} a unit: {why}"
    return Check("ledger", about, look, needs="nsprof record --count -- COMMAND")


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


def slower(least: float = 0.1, *, must: bool = False) -> Check:
    """Throughput of every run below that of every run at base, and at least `least` less on average."""

    def look(case: Case) -> Seen | None:
        base, new = case.base.values("throughput"), case.new.values("throughput")
        if not len(base) or not len(new) or base.mean() <= 0 or new.max() >= base.min():
            return None
        lost = float(1 - new.mean() / base.mean())
        return Seen("workload", f"throughput {-lost:+.0%}", "", lost) if lost >= least else None

    about = f"throughput of every run is below base's, by {least:.0%} or more on average"
    return Check("workload", about, look, must=must)


def datapath_more(key: str, noun: str, *, least: int = 1) -> Check:
    """A count of the snapshot's `datapath` that is higher than at base by `least` (see collect/datapath.py)."""

    def look(case: Case) -> Seen | None:
        before = {space: _count(facts, key) for space, facts in case.spaces(case.base)}
        best: tuple[int, str] | None = None
        for space, facts in case.spaces(case.new):
            gained = _count(facts, key) - before.get(space, 0)
            if gained >= least and (best is None or gained > best[0]):
                best = gained, space
        if best is None:
            return None
        return Seen("host", f"{best[0]:,} more {noun} in {best[1]} than at base", best[1])

    return Check(
        "host", f"{least} or more {noun} than at base", look, needs="nsprof bench, or nsprof record --in NETNS"
    )


def _count(facts: Mapping[str, Any], key: str) -> int:
    value = (facts.get("datapath") or {}).get(key) or 0
    return sum(value.values()) if isinstance(value, Mapping) else int(value)


def device_kinds(*kinds: str) -> Check:
    """Devices of these kinds (or drivers) in a namespace that has none of them at base."""

    def there(facts: Mapping[str, Any]) -> tuple[str, ...]:
        devices = facts.get("devices") or {}
        return tuple(sorted(n for n, d in devices.items() if d.get("kind") in kinds))

    def look(case: Case) -> Seen | None:
        before = {space: there(facts) for space, facts in case.spaces(case.base)}
        for space, facts in case.spaces(case.new):
            gained = [n for n in there(facts) if n not in before.get(space, ())]
            if gained:
                shown = ", ".join(f"{n} ({facts['devices'][n].get('kind')})" for n in gained[:3])
                return Seen("host", f"{shown} in {space} (base: none)", f"{gained[0]} in {space}")
        return None

    return Check("host", f"a device of kind {', '.join(kinds)} that base has not", look, needs="nsprof bench")


def share_of(*counters: str, of: tuple[str, ...], least: float, noun: str, scope: str = "", why: str) -> Check:
    """Counters as a share of others: at least `least`, and three times base's share."""

    def look(case: Case) -> Seen | None:
        shares = []
        for side in (case.base, case.new):
            whole = float(side.total(*of, scope=scope).sum())
            part = float(side.total(*counters, scope=scope).sum())
            shares.append(part / whole if whole else 0.0)
        if shares[1] < least or shares[1] < 3 * shares[0]:
            return None
        return Seen(
            "counters", f"{noun}: {shares[1]:.2%} (base: {shares[0]:.2%})", case.moved(*counters).place, shares[1]
        )

    return Check("counters", f"{noun} at least {least:.1%} and three times base's share: {why}", look, must=True)


def machine_differs(test: Callable[[Side], str], noun: str) -> Check:
    """A fact of the whole machine that differs between the sides; `test` gives it in words, "" where unknown."""

    def look(case: Case) -> Seen | None:
        one, two = test(case.base), test(case.new)
        return Seen("host", f"{noun}: {two} (base: {one})") if one and two and one != two else None

    return Check("host", f"{noun} differs between the sides", look)


def busy_share(side: Side) -> float:
    """Busy share of the busiest CPU of the device under test (of any CPU where none is named), mean over runs."""
    shares = []
    for run in side.run_objects:
        cpus = [c for c in run.cpu_busy_s if not run.dut_cpus or c in run.dut_cpus]
        if run.duration_s > 0 and cpus:
            shares.append(max(run.cpu_busy_s[c] for c in cpus) / run.duration_s)
    return sum(shares) / len(shares) if shares else float("nan")


def absent(test: Callable[[Mapping[str, Any]], Any], what: str) -> Check:
    """Contradiction: the settings of all namespaces are known, and none has what the cause needs. Then the functions
    ran for somebody else's packets (softirqs of other namespaces share the CPU)."""

    def look(case: Case) -> Seen | None:
        spaces = [facts for _, facts in case.spaces(case.new)]
        known = spaces and all("datapath" in f and "devices" in f for f in spaces)
        if not known or any(test(f) for f in spaces):
            return None
        return Seen("host", f"no namespace of {case.new.scenario} has {what}: this ran for others on the same CPU")

    return Check("host", f"no namespace has {what}", look)


def no_device(*kinds: str) -> Check:
    """Contradiction: none of the namespaces has a device of these kinds."""

    def there(facts: Mapping[str, Any]) -> bool:
        return any(d.get("kind") in kinds for d in (facts.get("devices") or {}).values())

    return absent(there, f"a device of kind {' or '.join(kinds)}")


def none_of(*keys: str, noun: str) -> Check:
    """Contradiction: the counts of the datapath under these keys are all 0."""

    def there(facts: Mapping[str, Any]) -> bool:
        return any((facts.get("datapath") or {}).get(key) for key in keys)

    return absent(there, noun)

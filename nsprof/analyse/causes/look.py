"""The looks that causes are made of: counters that rise, settings that differ, ledger lines, how traffic was made.

Every factory returns a `Check`. A setting counts only where it differs between the sides: what both sides have
explains no difference. A namespace or device that base has not is compared with all that base has: what is everywhere
alike (a default) is no difference either, only because one more namespace has it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
from scipy import stats

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.rule import Check, Seen

__all__ = [
    "PATH",
    "RECEIVE",
    "STREAM",
    "absent",
    "busiest_sends",
    "busy_share",
    "command_word",
    "datapath_more",
    "device_fact",
    "device_kinds",
    "full_share",
    "gained",
    "ledger_rises",
    "lowered",
    "machine_differs",
    "more",
    "moves",
    "mtu_differs",
    "no_device",
    "no_qdisc",
    "none_of",
    "not_received",
    "offload_lost",
    "own_shares",
    "qdisc_differs",
    "read_share",
    "rises",
    "share_of",
    "size",
    "skbs_per_unit",
    "slower",
    "space_fact",
    "tracked",
    "workload",
    "xdp_mode",
]


def size(value: float) -> str:
    """A count per unit in two or three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


#: Categories of what runs once a packet: at the receiver, on the whole path, and on the whole path of a stream.
RECEIVE = (
    "IP",
    "routing",
    "softirq and backlog",
    "skb alloc/free",
    "memory",
    "locking",
    "veth",
    "bridge",
    "skid",
    "other",
)
PATH = (*RECEIVE, "neighbour", "qdisc and xmit", "scheduling")
STREAM = (
    *PATH, "TCP", "other virtual device", "GRO/GSO", "netfilter/conntrack", "copy", "syscall and socket",
)  # fmt: skip

#: Counters of these scopes are the whole machine's: whose packets moved them is not known.
_SHARED = frozenset({"softnet", "irq", "system", "cpu"})


def gained(before: Mapping[Any, Any], key: Hashable, value: Any) -> bool:
    """Whether a setting is one that base has not: at the same place another one, at a new place none like it."""
    if not value:
        return False
    if key in before:
        return bool(value != before[key])
    return value not in before.values()


def moves(base: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> bool:
    """Whether every run of new has more than every run of base. Of one run a side there is nothing to compare."""
    return min(len(base), len(new)) < 2 or bool(new.min() > base.max())


def rises(*names: str, least: float, ratio: float = 1.2, scope: str = "", what: str = "", why: str) -> Check:
    """Counters that go up by at least `least` a unit of work, and by `ratio`. `why` says where the limit is from."""

    def look(case: Case) -> Seen | None:
        moved = case.moved(*names, scope=scope)
        base, new = float(moved.base.mean()), float(moved.new.mean())
        if new <= base or new - base < least or new < ratio * base:
            return None
        if not moves(moved.base, moved.new):
            return None
        label = what or " + ".join(names)
        text = f"{label}: {size(base)} -> {size(new)} a {case.per}"
        times = new / base if base > 0 else inf
        return Seen("counters", text, moved.place, 0.0, scope not in _SHARED, times)

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
    not (see `gained`)."""

    def look(case: Case) -> Seen | None:
        before = {(space, name): test(facts) for space, name, facts in case.devices(case.base)}
        for space, name, facts in case.devices(case.new):
            value = test(facts)
            if gained(before, (space, name), value):
                return Seen("host", text(space, name, value, before.get((space, name))), f"{name} in {space}")
        return None

    return Check("host", about, look, needs="nsprof bench, or nsprof record --in NETNS (settings of its devices)")


def space_fact(test: Callable[[Mapping[str, Any]], Any], text: Callable[[str, Any, Any], str], about: str) -> Check:
    """The same for a setting of a namespace."""

    def look(case: Case) -> Seen | None:
        before = {space: test(facts) for space, facts in case.spaces(case.base)}
        for space, facts in case.spaces(case.new):
            value = test(facts)
            if gained(before, space, value):
                return Seen("host", text(space, value, before.get(space)), space)
        return None

    return Check("host", about, look, needs="nsprof bench, or nsprof record --in NETNS (settings of the namespace)")


def offload_lost(*features: str, about: str) -> Check:
    """An offload that is on at base and off in new, on the same device; or off in new on a device that base has not,
    where some device of base has it on."""

    def set_to(facts: Mapping[str, Any], value: bool) -> set[str]:
        offloads = facts.get("offloads") or {}
        return {f for f in features if offloads.get(f) is value}

    def look(case: Case) -> Seen | None:
        before = {(s, n): set_to(f, True) for s, n, f in case.devices(case.base)}
        anywhere = set().union(*before.values())
        for space, name, facts in case.devices(case.new):
            off = set_to(facts, False) & before.get((space, name), anywhere)
            lost = [f for f in features if f in off]
            if lost:
                return Seen("host", f"{', '.join(lost)} is off on {name} in {space}", f"{name} in {space}")
        return None

    return Check("host", about, look, needs="nsprof bench, or nsprof record --in NETNS (offloads of its devices)")


def busiest_sends(side: Side) -> float:
    """Packets a unit that the busiest device but lo sends; 0 where none was counted. Not the sum: another device on
    the path is a hop, not more packets."""
    rows = [v for place, v in side.rows("tx_packets", "device") if not place.startswith("lo in ")]
    return max((float((r / side.units).mean()) for r in rows), default=0.0)


def read_share(side: Side) -> float:
    """Of the datagrams that are sent, the part that is read; 1 where none is counted."""
    sent = side.total("Udp.OutDatagrams", "Udp6.OutDatagrams", scope="netns").sum()
    got = side.total("Udp.InDatagrams", "Udp6.InDatagrams", scope="netns").sum()
    return float(got / sent) if sent else 1.0


def not_received(side: Side) -> float:
    """Of the datagrams that the workload sent by its own count, the part that its other end did not receive; nan
    where it does not count both."""
    sent, got = (side.values(f"datagrams_{end}").sum() for end in ("sent", "received"))
    return float(max(0.0, 1 - got / sent)) if sent > 0 and len(side.values("datagrams_received")) else float("nan")


def skbs_per_unit(case: Case) -> float:
    """How many times as many skbs a unit of work takes."""
    base, new = busiest_sends(case.base), busiest_sends(case.new)
    return new / base if min(base, new) > 0 else 1.0


def command_word(side: Side, options: Mapping[str, Iterable[str]], default: Mapping[str, float]) -> float:
    """A number that a known tool was given: by tool its options and its default; 0 where the tool is not known."""
    command = side.run_objects[0].command
    tool = command[0].rpartition("/")[2] if command else ""
    for word, value in pairwise(command):
        if word in options.get(tool, ()) and value.isdecimal():
            return float(value)
    return default.get(tool, 0.0)


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
    """A count of the snapshot's `datapath` that is higher than at base by `least` (collect/system/datapath.py)."""

    def look(case: Case) -> Seen | None:
        before = {space: _count(facts, key) for space, facts in case.spaces(case.base)}
        # What every namespace has (the built-in policy rules) a new one has, too.
        usual = min(before.values(), default=0)
        best: tuple[int, str] | None = None
        for space, facts in case.spaces(case.new):
            added = _count(facts, key) - before.get(space, usual)
            if added >= least and (best is None or added > best[0]):
                best = added, space
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
            added = [n for n in there(facts) if n not in before.get(space, ())]
            if added:
                shown = ", ".join(f"{n} ({facts['devices'][n].get('kind')})" for n in added[:3])
                return Seen("host", f"{shown} in {space} (base: none)", f"{added[0]} in {space}")
        return None

    return Check("host", f"a device of kind {', '.join(kinds)} that base has not", look, needs="nsprof bench")


def share_of(
    *counters: str, of: tuple[str, ...], least: float, noun: str, scope: str = "", why: str, must: bool = True
) -> Check:
    """Counters as a share of others: at least `least` and three times base's share, in every run more than in
    every run of base, and more events than chance would divide like this (exact binomial test, 2.5 %)."""

    def look(case: Case) -> Seen | None:
        parts = [side.total(*counters, scope=scope) for side in (case.base, case.new)]
        wholes = [side.total(*of, scope=scope) for side in (case.base, case.new)]
        one, two = (float(p.sum() / w.sum()) if w.sum() > 0 else 0.0 for p, w in zip(parts, wholes, strict=True))
        if two < least or two < 3 * one:
            return None
        by_run = [p / np.maximum(w, 1.0) for p, w in zip(parts, wholes, strict=True)]
        if not moves(by_run[0], by_run[1]) or not _more_events(parts, wholes):
            return None
        place = case.moved(*counters, scope=scope).place
        return Seen("counters", f"{noun}: {two:.2%} (base: {one:.2%})", place, two, scope not in _SHARED)

    return Check("counters", f"{noun} at least {least:.1%} and three times base's share: {why}", look, must=must)


def _more_events(parts: list[np.ndarray[Any, Any]], wholes: list[np.ndarray[Any, Any]]) -> bool:
    first, second = (round(float(p.sum())) for p in parts)
    exposed, all_of = float(wholes[1].sum()), float(wholes[0].sum() + wholes[1].sum())
    if first + second <= 0 or all_of <= 0:
        return False
    return bool(stats.binomtest(second, first + second, exposed / all_of, alternative="greater").pvalue < 0.025)


def qdisc_differs() -> Check:
    """A device with a queueing discipline that base has not (noqueue is none)."""
    return device_fact(
        lambda f: f.get("qdisc") if f.get("qdisc") not in ("", "noqueue", None) else "",
        lambda space, name, now, before: f"{now} on {name} in {space} (base: {before or 'noqueue'})",
        "a device with another qdisc than at base",
    )


def no_qdisc() -> Check:
    """Contradiction: no device of the namespaces has a queue."""

    def there(facts: Mapping[str, Any]) -> bool:
        return any(d.get("qdisc") not in ("", "noqueue", None) for d in (facts.get("devices") or {}).values())

    return absent(there, "a queueing discipline")


def mtu_differs() -> Check:
    """A device whose MTU is not base's: on the same device another one, on a new device one that no device has."""
    return device_fact(
        lambda f: f.get("mtu"),
        lambda space, name, now, before: f"MTU {now} on {name} in {space} (base: {before or 'no such device'})",
        "a device whose MTU differs from base's",
    )


def xdp_mode(mode: str) -> Check:
    """A device with an XDP program in a mode ("driver", "generic") that base has not."""
    return space_fact(
        lambda f: tuple(d for d, m in ((f.get("datapath") or {}).get("xdp") or {}).items() if m == mode),
        lambda space, now, before: f"XDP in {mode} mode on {', '.join(now)} in {space} (base: none)",
        f"a device with an XDP program in {mode} mode that base has not",
    )


def tracked() -> Check:
    """Connections are tracked in a namespace where base has none."""
    return space_fact(
        lambda f: bool((f.get("datapath") or {}).get("conntrack_entries")),
        lambda space, now, before: f"connections are tracked in {space} (base: none)",
        "a namespace with tracked connections where base has none",
    )


def machine_differs(test: Callable[[Side], str], noun: str) -> Check:
    """A fact of the whole machine that differs between the sides; `test` gives it in words, "" where unknown."""

    def look(case: Case) -> Seen | None:
        one, two = test(case.base), test(case.new)
        return Seen("host", f"{noun}: {two} (base: {one})") if one and two and one != two else None

    return Check("host", f"{noun} differs between the sides", look)


def lowered(*names: str, noun: str) -> Check:
    """Settings of the whole machine (dotted sysctl names) that are lower than at base."""

    def look(case: Case) -> Seen | None:
        base, new = (side.host.get("sysctl") or {} for side in (case.base, case.new))
        known = [n for n in names if all(str(of.get(n, "")).isdecimal() for of in (base, new))]
        less = [n for n in known if int(new[n]) < int(base[n])]
        return Seen("host", ", ".join(f"{n} is {new[n]} (base: {base[n]})" for n in less)) if less else None

    return Check("host", noun, look)


def busy_share(side: Side) -> float:
    """Busy share of the busiest CPU of the device under test (of any CPU where none is named), mean over runs."""
    shares = []
    for run in side.run_objects:
        cpus = [c for c in run.cpu_busy_s if not run.dut_cpus or c in run.dut_cpus]
        if run.duration_s > 0 and cpus:
            shares.append(max(run.cpu_busy_s[c] for c in cpus) / run.duration_s)
    return sum(shares) / len(shares) if shares else float("nan")


#: A CPU that is busy for so much of a run has no time left that waiting could have cost.
FULL = 0.9


def full_share(side: Side) -> float:
    """Busy share of the CPUs under test (of all where none is named), whoever kept them so, mean over them and over
    the runs; nan unless each of them was busy for 90 % of the window in every run."""
    shares = []
    for run in side.run_objects:
        cpus = run.dut_cpus or tuple(run.cpu_busy_s) or (0,)
        wanted = len(run.dut_cpus) or max(run.cpus, 1)
        busy = [run.cpu_busy_s.get(c, 0.0) / run.duration_s for c in cpus] if run.duration_s > 0 else []
        if len(busy) < wanted or min(busy) < FULL:
            return float("nan")
        shares.append(min(1.0, sum(busy) / len(busy)))
    return sum(shares) / len(shares) if shares else float("nan")


def own_shares(case: Case, number: int) -> dict[int, float]:
    """By CPU, the share of its time that the scenario's own work takes (other load is not in the samples), mean over
    runs; empty where samples are no time."""
    chosen = case.sides.views[number]
    wall = sum(run.duration_s for run in chosen.run_objects)
    if case.sides.measure.unit != "ns" or case.sides.measure.kind != "sampled" or wall <= 0:
        return {}
    times = np.bincount(chosen.column("cpu"), weights=chosen.weight)
    return {cpu: float(time) / 1e9 / wall for cpu, time in enumerate(times) if time > 0}


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

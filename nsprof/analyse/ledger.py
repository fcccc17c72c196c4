"""The ledger as tables: events per unit and per KB, what devices saw, callers, and the kernel's MIBs beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from nsprof.analyse.ledger_reconcile import fragmentation, reconcile
from nsprof.analyse.ledger_shed import MARK, Sheds, sheds_of
from nsprof.errors import EvidenceError
from nsprof.model.ledger import EventRow, HopRow, LedgerReport, PlaceRow, Reconciled
from nsprof.model.profile import LedgerLine, Profile

__all__ = ["ledger"]

#: Functions between a drop and whoever decided on it.
_FREEING = frozenset(
    {
        "__kfree_skb",
        "__sk_skb_reason_drop",
        "kfree_skb",
        "kfree_skb_list_reason",
        "kfree_skb_reason",
        "sk_skb_reason_drop",
        "skb_release_data",
    }
)
_HOP_WHATS = ("skb queued", "segments queued", "skb tx", "segments tx", "skb rx", "segments rx")
#: Events that the kernel counts itself: scope -> its counter -> what they are called here.
_KERNEL_EVENTS = {
    ("netns", "Ip.FragFails"): "too big and not to be fragmented (kernel)",
    ("netns", "Ip6.FragFails"): "too big and not to be fragmented (kernel)",
    ("netns", "Ip.ReasmFails"): "reassembly failed (kernel)",
    ("netns", "Ip6.ReasmFails"): "reassembly failed (kernel)",
    ("softnet", "time_squeeze"): "time squeeze (kernel)",
    ("softnet", "dropped"): "backlog full (kernel)",
    ("device", "qdisc.requeues"): "qdisc requeue (kernel)",
    ("device", "qdisc.drops"): "qdisc drop (kernel)",
}

#: A probe shed so shortly before the window's end is told in few words: what it missed needs no list.
_LATE_S = 1.0

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Side:
    """The counting passes of one scenario."""

    profile: Profile
    scenario: str
    runs: tuple[int, ...]
    own: frozenset[int] = frozenset()
    sheds: Sheds = field(default_factory=Sheds)

    def counts(self, namespace: int) -> bool:
        """Whether what happens there is the scenario's: in its own namespaces (any, if none is known), or nowhere."""
        return not self.own or not namespace or namespace in self.own

    @property
    def lines(self) -> list[LedgerLine]:
        """The scenario's own lines."""
        return [line for line in self.all_lines if self.counts(line.namespace)]

    @property
    def all_lines(self) -> list[LedgerLine]:
        """Those of other namespaces too."""
        wanted = set(self.runs)
        return [line for line in self.profile.ledger if line.run in wanted and line.what != MARK]

    @property
    def left_out(self) -> str:
        """A note on lines of other namespaces, "" when there are none."""
        lines = [line for line in self.profile.ledger if line.run in self.runs and not self.counts(line.namespace)]
        if not lines:
            return ""
        number = len({line.namespace for line in lines})
        sent = [line for line in lines if line.what == "skb tx"]
        until = self.sheds.of(sent)
        return (
            f"left out: {number} namespace{'s' * (number != 1)} beside the scenario's, which sent "
            f"{sum(line.calls for line in sent):,} packets"
            f"{'' if math.isnan(until) else f' until that probe was shed at {until:g} s'} (--everyone)"
        )

    def units(self, per: str) -> float:
        """How many units the passes had together; nan unless every pass has some."""
        counts = [
            self.profile.runs[i].duration_s if per == "second" else self.profile.runs[i].denominators.get(per, 0.0)
            for i in self.runs
        ]
        return sum(counts) if counts and all(count > 0 for count in counts) else math.nan


def ledger(
    profile: Profile,
    *,
    scenario: str | None = None,
    baseline: Profile | None = None,
    baseline_scenario: str | None = None,
    per: str | None = None,
    namespaces: Sequence[str] = (),
    everyone: bool = False,
) -> LedgerReport:
    """The ledger of one scenario, beside a baseline's where one is given.

    `per` is a denominator (default: skb where all passes have it, else second). `namespaces` narrows the tables of
    places and hops down. Namespaces that are no part of the scenario (neither made for it nor watched; where there
    are none of these: whose counters were not read) are left out unless `everyone` is true. What a shed probe counted
    has no figure per unit. Raises EvidenceError when there was no counting pass.
    """
    side = _side(profile, scenario, everyone)
    base = _side(baseline, baseline_scenario, everyone) if baseline is not None else None
    sides = [side] + ([base] if base else [])
    unit = per or next((u for u in ("skb", "second") if all(not math.isnan(s.units(u)) for s in sides)), "")
    for each in sides:
        if per and math.isnan(each.units(per)):
            raise EvidenceError(
                f"the counting passes of {each.scenario!r} have no count of {per}s",
                "nsprof info shows what they have",
            )
    lines = side.lines
    runs = [profile.runs[i] for i in side.runs]
    cpu_s = sum(run.duration_s * run.cpus for run in runs)
    lost = sum(run.losses.map_full for run in runs)
    shown = lines
    if namespaces:  # whoever names one wants to see it, be it the scenario's or not
        shown = [line for line in side.all_lines if profile.namespace_label(line.namespace) in namespaces]
    alarms = [f"{lost:,} events found the table full and are missing"] if lost else []
    alarms += _shed(side) + ([f"{base.scenario}: {text}" for text in _shed(base)] if base else [])
    return LedgerReport(
        title=side.scenario,
        base_title=base.scenario if base else "",
        runs=len(runs),
        duration_s=sum(run.duration_s for run in runs),
        per=unit,
        reference=next((run.reference for run in runs if run.reference), "") if unit == "skb" else "",
        fragmentation=fragmentation(profile, side.runs, shown, side.sheds),
        cost_share=sum(run.own_cpu_s for run in runs) / cpu_s if cpu_s > 0 else math.nan,
        events=_events(side, base, unit),
        hops=_hops(profile, shown, side.sheds),
        places=_places(side, shown, side.units(unit) if unit else math.nan),
        reconciled=tuple(_reconciled(side, lines)),
        alarms=tuple(alarms),
        notes=(*filter(None, (side.left_out,)), *_notes(profile)),
    )


def _side(profile: Profile, scenario: str | None, everyone: bool) -> _Side:
    counted = [name for name in profile.scenarios if profile.ledger_runs_of(name)]
    if scenario is None and len(counted) > 1:
        raise EvidenceError(
            f"the profile has counting passes of {len(counted)} scenarios", f"--scenario {counted[0]} chooses one"
        )
    name = scenario or (counted[0] if counted else "")
    runs = profile.ledger_runs_of(name)
    if not runs:
        reasons = {r.failed for r in profile.runs if "ledger" in r.probes_on and r.failed}
        raise EvidenceError(
            f"no counting pass of {name!r} in the profile" if name else "no counting pass in the profile",
            f"it failed: {'; '.join(sorted(reasons))}" if reasons else "nsprof record --count -- COMMAND makes one",
        )
    return _Side(profile, name, runs, frozenset() if everyone else _own(profile, runs), sheds_of(profile, runs))


def _own(profile: Profile, runs: Sequence[int]) -> frozenset[int]:
    """The namespaces that a scenario is about: made or watched; without any, those whose counters were read."""
    found = {number for number, space in enumerate(profile.namespaces, 1) if space.role}
    return frozenset(found or {row.namespace for row in profile.counters if row.run in runs and row.scope == "netns"})


def _shed(side: _Side) -> list[str]:
    """A line a probe that was shed in the side's passes; of several passes the first time, and in how many."""
    reasons = {probe.name: probe.reason for probe in side.profile.probes if probe.state == "shed"}
    times: dict[str, list[float]] = defaultdict(list)
    left_s: dict[str, float] = defaultdict(float)
    for run in side.runs:
        for name, time_s in side.sheds.by_run.get(run, {}).items():
            times[name].append(time_s)
            window_s = side.profile.runs[run].duration_s or math.inf
            left_s[name] = max(left_s[name], window_s - time_s)
    found = []
    for name, seconds in times.items():
        lost = reasons.get(name, "").partition("counted until then only: ")[2]
        passes = f" in {len(seconds)} of {len(side.runs)} passes, first" if len(side.runs) > 1 else ""
        words = f"probe {name} was shed over its budget{passes} {min(seconds):g} s after the window began"
        if left_s[name] < _LATE_S:
            words = f"probe {name} was shed{passes.removesuffix(', first')} in the window's last second: no rates"
        elif lost:
            words += f"; counted until then only: {lost}"
        found.append(words)
    return found + [f"probe {name} was shed: {reasons[name].removeprefix('shed ')}" for name in side.sheds.untimed]


def _reconciled(side: _Side, lines: Sequence[LedgerLine]) -> Iterable[Reconciled]:
    return reconcile(side.profile, side.runs, lines, side.sheds, side.counts)


def _sums(lines: Iterable[LedgerLine], key: Callable[[LedgerLine], _Key]) -> dict[_Key, list[int]]:
    """[calls, bytes] by key, in order of appearance; bytes -1 where they mean nothing."""
    found: dict[_Key, list[int]] = {}
    for line in lines:
        row = found.setdefault(key(line), [0, -1])
        row[0] += line.calls
        if line.value_bytes >= 0:
            row[1] = max(row[1], 0) + line.value_bytes
    return found


def _kernel_events(side: _Side) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    wanted = set(side.runs)
    for row in side.profile.counters:
        what = _KERNEL_EVENTS.get((row.scope, row.name))
        if what and row.run in wanted and row.delta > 0 and side.counts(row.namespace):
            found.setdefault(what, [0, -1])[0] += int(row.delta)
    return found


def _events(side: _Side, base: _Side | None, unit: str) -> tuple[EventRow, ...]:
    new = {**_sums(side.lines, lambda line: line.what), **_kernel_events(side)}
    old = {**_sums(base.lines, lambda line: line.what), **_kernel_events(base)} if base else {}
    units = side.units(unit) if unit else math.nan
    base_units = base.units(unit) if base and unit else math.nan
    kb = side.units("kb")
    until, base_until = _until(side), _until(base) if base else {}
    rows = []
    for what in sorted({*new, *old}, key=lambda w: (w not in _HOP_WHATS, w)):
        calls, size = new.get(what, [0, -1])
        base_calls, base_size = old.get(what, [0, -1])
        known = size >= 0 or base_size >= 0
        whole, base_whole = what not in until, base is not None and what not in base_until
        rows.append(
            EventRow(
                what,
                calls,
                size,
                base_calls / base_units if base_whole else math.nan,
                calls / units if whole else math.nan,
                max(base_size, 0) / base_units if base_whole and known else math.nan,
                max(size, 0) / units if whole and known else math.nan,
                max(size, 0) / kb if whole and known else math.nan,
                until.get(what, math.nan),
                base_until.get(what, math.nan),
            )
        )
    return tuple(rows)


def _until(side: _Side) -> dict[str, float]:
    """Events of which some were counted by a probe that was shed, and when the first of these was."""
    found: dict[str, float] = {}
    for line in side.lines:
        time_s = side.sheds.line_s(line)
        if not math.isnan(time_s):
            found[line.what] = min(time_s, found.get(line.what, math.inf))
    return side.sheds.events(side.runs) | found


def _places(side: _Side, lines: Sequence[LedgerLine], units: float) -> tuple[PlaceRow, ...]:
    profile, kb = side.profile, side.units("kb")

    def key(line: LedgerLine) -> tuple[str, str, int, int, str]:
        return line.what, line.detail, line.namespace, line.device, caller(profile, line.stack)

    kept = [line for line in lines if line.what not in _HOP_WHATS]
    until: dict[tuple[str, str, int, int, str], float] = {}
    for line in kept:
        if not math.isnan(time_s := side.sheds.line_s(line)):
            until[key(line)] = min(time_s, until.get(key(line), math.inf))
    sums = _sums(kept, key)
    rows = [
        PlaceRow(
            what,
            detail,
            profile.namespace_label(space),
            profile.device_label(device),
            who,
            calls,
            size,
            calls / units if math.isnan(shed_s) else math.nan,
            size / kb if size >= 0 and math.isnan(shed_s) else math.nan,
            shed_s,
        )
        for (what, detail, space, device, who), (calls, size) in sums.items()
        for shed_s in (until.get((what, detail, space, device, who), math.nan),)
    ]
    return tuple(sorted(rows, key=lambda row: (row.what, -row.calls)))


def caller(profile: Profile, stack: int, depth: int = 2) -> str:
    """Who asked: the frames above the counted function (or above the freeing of a packet), nearest first."""
    if stack < 0:
        return ""
    names = [profile.frames.name[i] for i in profile.stacks[stack].tolist()]
    start = 1
    while start < len(names) and names[start] in _FREEING:
        start += 1
    return " < ".join(names[start : start + depth])


def _hops(profile: Profile, lines: Sequence[LedgerLine], sheds: Sheds) -> tuple[HopRow, ...]:
    table: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    mtus: dict[tuple[int, int], set[str]] = defaultdict(set)
    for line in lines:
        if line.device and line.what.endswith((" queued", " tx", " rx")):
            place = line.namespace, line.device
            table[place][line.what] += line.calls
            if line.detail.startswith("MTU "):
                mtus[place].add(line.detail.removeprefix("MTU "))
    runs = {line.run for line in lines}
    until = [sheds.first_s(runs, (name,)) for name in ("queue", "xmit", "receive")]
    rows = [
        HopRow(
            profile.namespace_label(space),
            profile.device_label(device),
            " or ".join(sorted(mtus[space, device])),
            seen["skb queued"],
            seen["segments queued"],
            seen["skb tx"],
            seen["segments tx"],
            seen["skb rx"],
            seen["segments rx"],
            seen["fragments tx"],
            seen["fragments rx"],
            seen["over MTU tx"] + seen["over MTU rx"],
            *until,
        )
        for (space, device), seen in table.items()
    ]
    return tuple(sorted(rows, key=lambda r: -(r.sent + r.received + r.queued)))


def _notes(profile: Profile) -> tuple[str, ...]:
    """What was not probed: functions refused for the same reason in one line."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for probe in profile.probes:
        if probe.state == "refused" and "; not counted: " in probe.reason:
            reasons[probe.reason.split("; not counted: ")[0]].append(probe.name)
    return tuple(f"not counted: {', '.join(names)}: {reason}" for reason, names in reasons.items())

"""`nsprof explain --kernel-diff`: what two kernels execute for the same packet, from simulated profiles.

Counts are exact, so every difference is one of code. Two kinds are told apart: a function that was inlined or split
(it comes or goes, and its caller's own count moves the other way by as much) and a real gain or loss. Real ones are
grouped by the leafmost caller that both kernels execute: the place where the new work was pulled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nsprof.analyse.comparing import Sides, diff, two_sides
from nsprof.analyse.selection import scenario_names
from nsprof.analyse.stacks import function_table
from nsprof.errors import ComparisonError, EvidenceError, UsageError
from nsprof.model.profile import Profile
from nsprof.model.results import DeltaRow, DiffReport, KernelDiff

__all__ = ["kernel_diff"]

#: A function and its caller together may change by this share of the function and still be "only inlined": the call,
#: the prologue and what the compiler can drop once it sees both.
_SAME = 0.25
_GROUPS, _FUNCTIONS, _PATH, _TOUCHED = 15, 8, 4, 30


def kernel_diff(
    base: Profile,
    base_kernel: str,
    new: Profile,
    new_kernel: str,
    *,
    scenario: str | None = None,
    per: str | None = None,
) -> KernelDiff:
    """Functions that gained or lost instructions per packet between two kernels, in one scenario.

    Raises UsageError where the scenario is not named and not the only one, ComparisonError where the profiles are not
    simulated ones.
    """
    names = [_name(p, k, scenario) for p, k in ((base, base_kernel), (new, new_kernel))]
    sides = two_sides(base, new, base_scenario=names[0], new_scenario=names[1], event="instructions", per=per)
    if sides.measure.kind != "modelled":
        raise ComparisonError(
            "--kernel-diff needs exact counts, which only simulated profiles have",
            "nsprof simulate --kernel A --kernel B -o both.nsprof",
        )
    report = diff(base, new, base_scenario=names[0], new_scenario=names[1], event="instructions", per=per)
    inlined = _inlining(sides, report)
    hidden = {callee for callee, _, _ in inlined} | {caller for _, caller, _ in inlined}
    return KernelDiff(
        measure=sides.measure,
        base_title=f"{base_kernel}: {names[0].rpartition(':')[2]}",
        new_title=f"{new_kernel}: {names[1].rpartition(':')[2]}",
        total=report.total,
        groups=_groups(sides, report, hidden),
        inlining=tuple(inlined),
        lines=_lines(base, new, names, per),
        notes=(
            "modelled: exact counts; inlining is told by a function that comes or goes while its caller's own count "
            f"moves the other way to within {_SAME:.0%} of it",
            *_no_members(base, new, names),
        ),
        touched=_touched(base, new, names),
    )


def _data_lines(profile: Profile, name: str) -> list[Mapping[str, Any]]:
    """The named data lines of a scenario's footprint, as `nsprof simulate --debug-info` stores them."""
    done = profile.meta.get("simulate")
    kernel, _, plain = name.rpartition(":")
    for run in (done.get("runs") or ()) if isinstance(done, Mapping) else ():
        if run.get("scenario") == plain and (not kernel or run.get("kernel") == kernel) and run.get("data_lines"):
            return list(run["data_lines"])
    return []


def _members(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """(function, struct) -> the member at which each line that it touches begins."""
    made: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        struct, _, member = str(line.get("member") or "").partition(".")
        for function in line.get("functions") or () if struct else ():
            made.setdefault((str(function), struct), []).append(member)
    return made


def _touched(
    base: Profile, new: Profile, names: Sequence[str]
) -> tuple[tuple[str, str, int, int, tuple[str, ...]], ...]:
    """Functions that touch more lines of a struct than before, where lines are touched that nobody touched at base;
    first those that did not touch the struct at all. A line that another function touched is none: code that was
    inlined there, or moved. Lines are told by the member that they begin with."""
    data = [_data_lines(p, n) for p, n in zip((base, new), names, strict=True)]
    one, two = (_members(lines) for lines in data)
    if not one or not two:
        return ()
    known, there = (Counter(str(line.get("member") or "") for line in lines) for lines in data)
    rows = []
    for (function, struct), members in two.items():
        before = one.get((function, struct), [])
        fresh = {m for m in members if there[f"{struct}.{m}"] > known[f"{struct}.{m}"]}
        if len(members) > len(before) and fresh:
            rows.append((function, struct, len(before), len(members), tuple(sorted(fresh))))
    rows.sort(key=lambda row: (row[2] > 0, row[2] - row[3], row[0], row[1]))
    return tuple(rows[:_TOUCHED])


def _no_members(base: Profile, new: Profile, names: Sequence[str]) -> tuple[str, ...]:
    if all(_members(_data_lines(p, n)) for p, n in zip((base, new), names, strict=True)):
        return ()
    return (
        "which lines of which struct are touched is not known: nsprof simulate --footprint --debug-info names them",
    )


def _name(profile: Profile, kernel: str, scenario: str | None) -> str:
    names = scenario_names(profile)
    several = len({r.kernel for r in profile.runs}) > 1
    mine = [n for n in names if not several or n.startswith(f"{kernel}:")]
    if scenario is not None:
        wanted = [n for n in mine if n == scenario or n.rpartition(":")[2] == scenario]
        if not wanted:
            raise UsageError(f"no scenario {scenario!r} of kernel {kernel}", f"there are: {', '.join(mine)}")
        return wanted[0]
    if len(mine) != 1:
        plain = ", ".join(n.rpartition(":")[2] for n in mine)
        raise UsageError(f"kernel {kernel} has {len(mine)} scenarios ({plain})", "choose one with --scenario NAME")
    return mine[0]


def _calls(sides: Sides) -> list[dict[tuple[str, str], float]]:
    """(callee, caller) -> the callee's own count under that caller, on both sides."""
    found: list[dict[tuple[str, str], float]] = [{}, {}]
    _, maps = function_table([v.profile.frames for v in sides.views])
    names = sides.functions.name
    for side, (chosen, frame_function) in enumerate(zip(sides.views, maps, strict=True)):
        stack = chosen.column("stack")
        by_stack = np.bincount(stack, weights=chosen.cost) / len(chosen.runs)
        for number in np.flatnonzero(by_stack):
            path = frame_function[chosen.profile.stacks[int(number)][:2]].tolist()
            if len(path) == 2:
                key = (names[path[0]], names[path[1]])
                found[side][key] = found[side].get(key, 0.0) + float(by_stack[number])
    return found


def _inlining(sides: Sides, report: DiffReport) -> list[tuple[str, str, float]]:
    """(callee, caller, both together) of functions that were inlined into a caller, or split off from it.

    What tells is the caller: its own count moves the other way by what came or went under it, all such callees taken
    together (a caller may swallow several), to within `_SAME` of it. A callee that is called from elsewhere, too,
    counts as far as its own count fell by what it had under this caller: it was not merely called elsewhere.
    """
    calls, rows = _calls(sides), {r.name: r for r in report.functions}
    found = []
    for caller, moved in _moved_callees(calls, rows).items():
        own = rows.get(caller)
        if own is None or own.status:
            continue
        # What the caller took in is positive, what it gave away negative.
        whole, together = sum(moved.values()), own.delta - sum(moved.values())
        if abs(whole) > 0 and own.delta * whole > 0 and abs(together) <= _SAME * abs(whole):
            found += [(callee, caller, together * part / whole) for callee, part in moved.items()]
            continue
        found += [
            (callee, caller, own.delta - part)
            for callee, part in moved.items()
            if own.delta * part > 0 and abs(own.delta - part) <= _SAME * abs(part)
        ]
    return found


def _moved_callees(
    calls: Sequence[dict[tuple[str, str], float]], rows: dict[str, DeltaRow]
) -> dict[str, dict[str, float]]:
    """caller -> callee -> what it had under the caller and has no more (positive), or has and had not (negative)."""
    made: dict[str, dict[str, float]] = {}
    for pair in dict.fromkeys((*calls[0], *calls[1])):
        one, two = (side.get(pair, 0.0) for side in calls)
        part = one - two
        row = rows.get(pair[0])
        if (one > 0 and two > 0) or part == 0 or row is None:
            continue
        if row.delta * part < 0 and abs(row.delta + part) <= _SAME * abs(part):
            made.setdefault(pair[1], {})[pair[0]] = part
    return made


def _groups(
    sides: Sides, report: DiffReport, hidden: set[str]
) -> tuple[tuple[str, float, tuple[tuple[str, float, str], ...]], ...]:
    status = {r.name: r.status for r in report.functions}
    _, maps = function_table([v.profile.frames for v in sides.views])
    names = sides.functions.name
    deltas: dict[str, dict[str, float]] = {}
    paths: dict[str, str] = {}
    for sign, chosen, frame_function in zip((-1, 1), sides.views, maps, strict=True):
        by_stack = np.bincount(chosen.column("stack"), weights=chosen.cost) / len(chosen.runs)
        for number in np.flatnonzero(by_stack):
            path = [names[f] for f in frame_function[chosen.profile.stacks[int(number)]].tolist()]
            if path[0] in hidden:
                continue
            key, shown = _anchor(path, status)
            paths[key] = shown
            group = deltas.setdefault(key, {})
            group[path[0]] = group.get(path[0], 0.0) + sign * float(by_stack[number])
    made = []
    for key, functions in deltas.items():
        moved = sorted(((n, d) for n, d in functions.items() if abs(d) >= 0.5), key=lambda item: -abs(item[1]))
        total = sum(d for _, d in moved)
        if moved:
            made.append(
                (paths[key], total, tuple((n, d, _what(status.get(n, ""), d)) for n, d in moved[:_FUNCTIONS]))
            )
    made.sort(key=lambda group: -sum(abs(d) for _, d, _ in group[2]))
    return tuple(made[:_GROUPS])


def _anchor(path: Sequence[str], status: dict[str, str]) -> tuple[str, str]:
    """The leafmost caller that both kernels execute, and the path to it (of the new kernel where both have one).

    Callers further up may be inlined in one kernel only, so that they do not tell groups apart.
    """
    at = next((i for i in range(1, len(path)) if not status.get(path[i])), len(path) - 1)
    return path[at], " < ".join(path[at : at + _PATH]) or "(entry)"


def _what(status: str, delta: float) -> str:
    return status or ("more" if delta > 0 else "less")


def _lines(
    base: Profile, new: Profile, names: Sequence[str], per: str | None
) -> tuple[tuple[str, float, float], ...]:
    """Functions that touch other numbers of distinct lines, where both profiles hold them (--footprint)."""
    rows: list[tuple[str, float, float]] = []
    events = [e.name for e in base.events if e.unit == "lines" and e.name in {x.name for x in new.events}]
    for event in events:
        try:
            report = diff(base, new, base_scenario=names[0], new_scenario=names[1], event=event, per=per)
        except EvidenceError:
            continue
        rows += [(f"{event}: {r.name}", r.base, r.new) for r in report.functions if r.delta != 0][:_FUNCTIONS]
    return tuple(rows)

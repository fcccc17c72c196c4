"""`nsprof explain --kernel-diff`: what two kernels execute for the same packet, from simulated profiles.

Counts are exact, so every difference is one of code. Two kinds are told apart: a function that was inlined or split
(it comes or goes, and its caller's own count moves the other way by as much) and a real gain or loss. Real ones are
grouped by the leafmost caller that both kernels execute: the place where the new work was pulled in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsprof.analyse.comparing import Sides, diff, two_sides
from nsprof.analyse.selection import scenario_names
from nsprof.analyse.stacks import function_table
from nsprof.errors import ComparisonError, EvidenceError, UsageError
from nsprof.model.profile import Profile
from nsprof.model.results import DiffReport, KernelDiff

__all__ = ["kernel_diff"]

#: A function and its caller together may change by this share of the function and still be "only inlined": the call,
#: the prologue and what the compiler can drop once it sees both.
_SAME = 0.25
_GROUPS, _FUNCTIONS, _PATH = 15, 8, 4


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
        ),
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
    """(callee, caller, both together) of functions that were inlined, or split off, between the kernels."""
    calls, rows = _calls(sides), {r.name: r for r in report.functions}
    found = []
    for row in report.functions:
        if row.status not in ("new", "gone") or row.delta == 0:
            continue
        side = 0 if row.status == "gone" else 1
        callers = {caller: own for (callee, caller), own in calls[side].items() if callee == row.name}
        for caller, own in callers.items():
            other = rows.get(caller)
            if other is None or other.status:
                continue
            together = other.delta + (own if side else -own)
            if other.delta * row.delta < 0 and abs(together) <= _SAME * own:
                found.append((row.name, caller, together))
    return found


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

"""`nsprof explain --function`: one function on both sides, who calls it, what it calls, and a paragraph to quote."""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np

from nsprof.analyse.comparing import Sides, diff, two_sides
from nsprof.analyse.stacks import function_table
from nsprof.errors import EvidenceError, UsageError
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import Profile
from nsprof.model.results import DeltaRow, FunctionExplanation

__all__ = ["explain_function"]

_PATH_FRAMES = 8
_ROWS = 12
Row = tuple[str, float, float]


def explain_function(
    base: Profile,
    new: Profile,
    name: str,
    *,
    base_scenario: str | None = None,
    new_scenario: str | None = None,
    **options: Any,
) -> FunctionExplanation:
    """Cost of a function (compiler suffixes folded) on both sides, by caller, callee and call path.

    Options as for `diff`: event, per, where, force. Raises UsageError where neither side has the function.
    """
    sides = two_sides(base, new, base_scenario=base_scenario, new_scenario=new_scenario, **options)
    wanted = fold_suffixes(name)
    numbers = {i for i, n in enumerate(sides.functions.name) if n == wanted}
    if not numbers:
        near = difflib.get_close_matches(wanted, sides.functions.name, n=3)
        raise UsageError(
            f"no function {name!r} on either side",
            f"did you mean {', '.join(near)}?" if near else "nsprof diff lists them",
        )
    callers, callees, paths = _around(sides, numbers)
    report = diff(base, new, base_scenario=base_scenario, new_scenario=new_scenario, **options)
    own = next((r for r in report.functions if r.name == wanted), DeltaRow(wanted, "", "", 0.0, 0.0, 0.0))
    return FunctionExplanation(
        name=wanted,
        measure=sides.measure,
        base_title=sides.titles[0],
        new_title=sides.titles[1],
        own=own,
        callers=callers,
        callees=callees,
        paths=paths,
        other_events=_other_events(base, new, base_scenario, new_scenario, wanted, options),
        source=_source(sides, wanted),
        summary=_summary(sides, own, callers, callees),
        notes=_notes(sides, own),
    )


def _around(sides: Sides, wanted: set[int]) -> tuple[tuple[Row, ...], tuple[Row, ...], tuple[Row, ...]]:
    """Inclusive cost by direct caller, by direct callee and by call path, on both sides."""
    tables: list[dict[str, list[float]]] = [{}, {}, {}]
    names = sides.functions.name
    _, maps = function_table([v.profile.frames for v in sides.views])
    for side, (chosen, table, frame_function) in enumerate(zip(sides.views, sides.tables, maps, strict=True)):
        by_stack = np.bincount(chosen.column("stack"), weights=chosen.cost, minlength=len(table.leaf)) / len(
            chosen.runs
        )
        for stack in np.flatnonzero(by_stack):
            path = frame_function[chosen.profile.stacks[int(stack)]].tolist()
            inside = path[: int(table.cut[stack]) + 1]
            at = next((i for i, f in enumerate(inside) if f in wanted), None)
            if at is None:
                continue
            above = [names[f] for f in inside[at + 1 :]]
            keys = (
                above[0] if above else "(entry)",
                names[inside[at - 1]] if at else "(itself)",
                " < ".join(above[:_PATH_FRAMES]) or "(entry)",
            )
            for found, key in zip(tables, keys, strict=True):
                found.setdefault(key, [0.0, 0.0])[side] += float(by_stack[stack])
    rows = [
        tuple((k, v[0], v[1]) for k, v in sorted(t.items(), key=lambda item: -max(item[1]))[:_ROWS]) for t in tables
    ]
    return rows[0], rows[1], rows[2]


def _other_events(
    base: Profile,
    new: Profile,
    base_scenario: str | None,
    new_scenario: str | None,
    name: str,
    options: dict[str, Any],
) -> tuple[Row, ...]:
    """Self amounts of every other event that both sides have (instructions, loads, lines, misses)."""
    rows = []
    common = [
        e.name for e in base.events if e.name in {x.name for x in new.events} and e.name != options.get("event")
    ]
    for event in dict.fromkeys(common):
        try:
            report = diff(
                base, new, base_scenario=base_scenario, new_scenario=new_scenario, **{**options, "event": event}
            )
        except EvidenceError:
            continue
        row = next((r for r in report.functions if r.name == name), None)
        if row is not None:
            label = report.measure.label
            rows.append((label if event in label else f"{event} ({label})", row.base, row.new))
    return tuple(rows) if len(rows) > 1 else ()


def _source(sides: Sides, name: str) -> str:
    for chosen in reversed(sides.views):
        frames = chosen.profile.frames
        for text, source in zip(frames.name, frames.source, strict=True):
            if source and fold_suffixes(text) == name:
                return source
    return ""


def _summary(sides: Sides, own: DeltaRow, callers: tuple[Row, ...], callees: tuple[Row, ...]) -> str:
    label = sides.measure.label
    change = own.new_total - own.base_total
    relative = f" ({change / own.base_total:+.0%})" if own.base_total > 0 else ""
    text = (
        f"{own.name}() with all that it calls costs {own.new_total:.4g} {label} in {sides.titles[1]} against "
        f"{own.base_total:.4g} in {sides.titles[0]}{relative}, of which {own.new:.4g} against {own.base:.4g} in "
        "itself."
    )
    if callers and change:
        most = max(callers, key=lambda row: abs(row[2] - row[1]))
        text += f" Of the change {most[2] - most[1]:+.4g} comes through {most[0]}()."
    inner = [row for row in callees if row[0] != "(itself)"]
    if inner and change:
        most = max(inner, key=lambda row: abs(row[2] - row[1]))
        text += f" Below it {most[0]}() changes most, by {most[2] - most[1]:+.4g}."
    runs = [len(v.runs) for v in sides.views]
    kind = "Modelled: exact counts." if sides.measure.kind == "modelled" else f"{runs[0]} against {runs[1]} runs."
    if own.interval is not None and sides.measure.kind == "sampled":
        kind = kind[:-1] + f"; 95 % interval of its own change [{own.interval.low:.3g}, {own.interval.high:.3g}]."
    return f"{text} {kind}"


def _notes(sides: Sides, own: DeltaRow) -> tuple[str, ...]:
    notes = []
    if own.skid_share > 0.5:
        notes.append(
            f"{own.skid_share:.0%} of its own samples arrived late (skid): that time was spent with interrupts off, "
            "before it"
        )
    if not _source(sides, own.name):
        notes.append("no source line: the profile was made without debug information of the kernel")
    return tuple(notes)

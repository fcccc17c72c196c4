"""`nsprof diff`: the change of every function's unit cost between two scenarios, with the evidence for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import categories, hosts, noise, statistics, trust
from nsprof.analyse.filters import Filter
from nsprof.analyse.grouping import group
from nsprof.analyse.selection import (
    Question,
    View,
    choose_denominator,
    choose_event,
    choose_runs,
    choose_scenario,
    usable_runs,
    view,
    with_measure,
)
from nsprof.analyse.stacks import (
    Functions,
    StackTable,
    function_categories,
    function_table,
    leaf_functions,
    row_categories,
    stack_table,
    totals_by_run,
)
from nsprof.errors import ComparisonError, EvidenceError, UsageError
from nsprof.model.profile import Profile
from nsprof.model.results import DeltaRow, DiffReport, Interval, Measure
from nsprof.units import format_figure

__all__ = ["compare", "diff", "sides_of", "two_sides"]

Test = Literal["welch", "permutation"]

#: Differences below this share of either side are the rounding of sums.
_ROUNDING = 1e-13


def diff(
    base: Profile,
    new: Profile,
    *,
    base_scenario: str | None = None,
    new_scenario: str | None = None,
    event: str | None = None,
    per: str | None = None,
    by: str | None = None,
    where: Filter | None = None,
    join_contexts: bool = False,
    min_effect: float | str = 0.0,
    test: Test = "welch",
    force: bool = False,
) -> DiffReport:
    """Unit costs of `new` minus those of `base`, by function, category and (`by`) group.

    `min_effect` is in the unit of the cost, or "2%" of the base's total; smaller differences get no verdict. From 8
    runs a side there are p and q values and verdicts, from 2 intervals, from 1 neither. `test` is "welch" or
    "permutation". `force` compares across CPU architectures all the same.

    Raises ComparisonError where the two have no event or unit in common.
    """
    asked = Question(base_scenario, new_scenario, event, per, by, where, join_contexts, force)
    return compare(sides_of(base, new, asked), by=by, min_effect=min_effect, test=test)


def compare(
    sides: Sides, *, by: str | None = None, min_effect: float | str = 0.0, test: Test = "welch"
) -> DiffReport:
    """`diff` of two sides that were brought together before."""
    effect = _effect(min_effect, sides)
    names = tuple((n, "", n) for n in categories.ALL)
    category_keys = [row_categories(v, t) for v, t in zip(sides.views, sides.tables, strict=True)]
    functions = _function_deltas(sides, category_keys, effect, test)
    groups = _group_deltas(sides, by, category_keys, effect, test) if by else ()
    total = _total(sides, effect, test)
    return DiffReport(
        base_title=sides.titles[0],
        new_title=sides.titles[1],
        measure=sides.measure,
        total=total,
        functions=functions,
        categories=_deltas(sides, category_keys, names, effect=effect, test=test),
        # The samples that no function can be blamed for: those without a stack.
        not_attributed=_not_attributed(sides),
        runs_base=len(sides.views[0].runs),
        runs_new=len(sides.views[1].runs),
        warnings=_warnings(sides),
        notes=_notes(sides, effect),
        groups=groups,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Two views of one measure, and one table of functions for both; index 0 is the base. `maps` say of each side's
    frames which function they are."""

    views: tuple[View, View]
    tables: tuple[StackTable, StackTable]
    functions: Functions
    measure: Measure
    titles: tuple[str, str]
    warnings: tuple[str, ...]
    maps: tuple[NDArray[np.int64], NDArray[np.int64]]


def two_sides(base: Profile, new: Profile, **words: Any) -> Sides:
    """`sides_of` with the fields of a Question as keywords."""
    return sides_of(base, new, Question(**words))


def sides_of(base: Profile, new: Profile, asked: Question) -> Sides:
    """Bring two profiles to one event, one denominator and one table of functions. Raises ComparisonError."""
    pair, where = (base, new), asked.where
    names = (
        _scenario(base, asked.base_scenario, "the base"),
        _scenario(new, asked.new_scenario, "the new profile"),
    )
    runs = [choose_runs(p, n, None, hop=asked.needs_hop) for p, n in zip(pair, names, strict=True)]
    event = _common_event(pair, runs, asked.event)
    refusal = hosts.refusal(base, new)
    if refusal and not asked.force:
        raise ComparisonError(refusal, "--force compares all the same")
    views = [
        view(p, scenario=n, event=event, per="total", where=where, hop=asked.hop_split)
        for p, n in zip(pair, names, strict=True)
    ]
    denominator, warning = _common_denominator(views, asked.per, where)
    views = [with_measure(v, denominator) for v in views]
    functions, maps = function_table([base.frames, new.frames])
    tables = [
        stack_table(p, m, len(functions), join_contexts=asked.join_contexts) for p, m in zip(pair, maps, strict=True)
    ]
    warnings = [
        *warning,
        *([refusal] if refusal else []),
        *hosts.differences(base, new, views[0].runs, views[1].runs),
    ]
    measure = views[1].measure
    if views[0].measure.reference != measure.reference:
        measure = replace(measure, reference=f"{views[0].measure.reference} / {measure.reference}")
    return Sides(
        (views[0], views[1]),
        (tables[0], tables[1]),
        functions,
        measure,
        _titles(base, new, names),
        tuple(warnings),
        (maps[0], maps[1]),
    )


def _scenario(profile: Profile, name: str | None, side: str) -> str:
    try:
        return choose_scenario(profile, name)
    except UsageError as error:
        raise UsageError(f"{side}: {error.message}", error.hint) from None


def _titles(base: Profile, new: Profile, names: tuple[str, str]) -> tuple[str, str]:
    kernels = [{p.runs[i].kernel for i in usable_runs(p, n)} for p, n in zip((base, new), names, strict=True)]
    if names[0] == names[1] and kernels[0] != kernels[1]:
        return (f"{names[0]} ({'/'.join(sorted(kernels[0]))})", f"{names[1]} ({'/'.join(sorted(kernels[1]))})")
    files = (str(base.meta.get("file", "")), str(new.meta.get("file", "")))
    if names[0] == names[1] and files[0] != files[1] and all(files):
        return files  # two recordings of one command are told apart by their files
    return names


def _common_event(profiles: Sequence[Profile], runs: Sequence[Sequence[int]], event: str | None) -> str:
    """The event to compare; equal in name, unit and kind on both sides."""
    present = []
    for profile, chosen in zip(profiles, runs, strict=True):
        rows = np.isin(profile.samples.run, list(chosen))
        numbers = np.unique(profile.samples.event[rows])
        present.append({profile.events[i].name: profile.events[i] for i in numbers})
    if not all(present):
        side = "base" if not present[0] else "new"
        raise EvidenceError(f"the {side} profile has no samples to compare", "nsprof info shows what it holds")
    common = [n for n in present[0] if n in present[1]]
    lists = " against ".join(", ".join(p) for p in present)
    if event is not None and event not in common:
        raise ComparisonError(f"event {event!r} is not on both sides ({lists})")
    if not common:
        raise ComparisonError(f"different events cannot be compared: {lists}", "record both with the same -e EVENT")
    if event is None:
        event = choose_event(profiles[0], None, runs[0])[0].name
        if event not in common:
            event = common[0]
    one, two = present[0][event], present[1][event]
    if (one.unit, one.kind) != (two.unit, two.kind):
        raise ComparisonError(
            f"event {event!r} is {one.kind} in {one.unit} on one side and {two.kind} in {two.unit} on the other"
        )
    return event


def _common_denominator(views: Sequence[View], per: str | None, where: Filter | None) -> tuple[str, list[str]]:
    if where is not None and where.slices is not None and per is None:
        per = "second"
    sets = [v.run_objects for v in views]
    known = [{n for run in runs for n, v in run.denominators.items() if v > 0} for runs in sets]
    try:
        found = choose_denominator(sets, per)
    except EvidenceError as error:
        raise ComparisonError(f"no common unit: {error.message}", error.hint) from None
    if found or per is not None:
        return found, []
    if known[0] and known[1]:
        raise ComparisonError(
            f"no common unit: per {', '.join(sorted(known[0]))} against per {', '.join(sorted(known[1]))}",
            "--per share compares shares of busy time",
        )
    return "share", [
        "no packets, bytes or seconds were counted on "
        + ("either side" if not any(known) else "one side")
        + ": shares of all samples are compared, which mislead where the totals differ"
    ]


def _effect(text: float | str, sides: Sides) -> float:
    if isinstance(text, (int, float)):
        return abs(float(text))
    word = text.strip()
    try:
        value = float(word.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"not an effect: {text!r}", "write 2% (of the base's total) or a number in the unit")
    return value / 100.0 * float(sides.views[0].totals().mean()) if word.endswith("%") else value


# --- deltas ---------------------------------------------------------------------------------------------------


def _by_run(sides: Sides, keys: Sequence[NDArray[np.int64]], number: int) -> list[NDArray[np.float64]]:
    return [v.by_run(k, number) for v, k in zip(sides.views, keys, strict=True)]


def _samples(sides: Sides, keys: Sequence[NDArray[np.int64]], number: int) -> list[NDArray[np.float64]]:
    return [v.by_run(k, number, v.count).sum(axis=1) for v, k in zip(sides.views, keys, strict=True)]


def _deltas(
    sides: Sides,
    keys: Sequence[NDArray[np.int64]],
    names: Sequence[tuple[str, str, str]],
    *,
    effect: float,
    test: Test,
    inclusive: Sequence[NDArray[np.float64]] | None = None,
) -> tuple[DeltaRow, ...]:
    """Rows of (name, module, category) sorted by |delta|; rows absent from both sides are left out.

    A row is tested where it has at least half a sample a run on average: a function seen once says nothing, and
    testing it would only cost the others their q values. That choice does not look at which side the samples are on.
    """
    number = len(names)
    costs = _by_run(sides, keys, number)
    samples = _samples(sides, keys, number)
    means = [c.mean(axis=1) for c in costs]
    wholes = [i.mean(axis=1) for i in inclusive] if inclusive is not None else means
    runs = sum(len(v.runs) for v in sides.views)
    evidence = statistics.compare(costs[0], costs[1], testable=2 * (samples[0] + samples[1]) >= runs, test=test)
    exact = sides.measure.kind != "sampled"
    skid = sum(v.by_run(k, number, v.weight * v.skid).sum(axis=1) for v, k in zip(sides.views, keys, strict=True))
    weight = sum(v.by_run(k, number, v.weight).sum(axis=1) for v, k in zip(sides.views, keys, strict=True))
    delta = means[1] - means[0]
    delta[np.abs(delta) <= _ROUNDING * np.maximum(means[0], means[1])] = 0.0
    there = (wholes[0] > 0) | (wholes[1] > 0) | (means[0] > 0) | (means[1] > 0)
    order = [int(i) for i in np.lexsort((-(wholes[0] + wholes[1]), -np.abs(delta))) if there[i]]
    rows = []
    for i in order:
        # Of what is seen less than once a run a t interval is too narrow (measured: docs/method.md, Calibration).
        known = not np.isnan(evidence.low[i]) and (exact or samples[0][i] + samples[1][i] >= runs)
        rows.append(
            DeltaRow(
                *names[i],
                base=float(means[0][i]),
                new=float(means[1][i]),
                delta=float(delta[i]),
                base_total=float(wholes[0][i]),
                new_total=float(wholes[1][i]),
                interval=Interval(float(evidence.low[i]), float(evidence.high[i])) if known else None,
                p=float(evidence.p[i]),
                q=float(evidence.q[i]),
                verdict=statistics.verdict(float(delta[i]), float(evidence.q[i]), effect),
                status="new" if wholes[0][i] <= 0 else "gone" if wholes[1][i] <= 0 else "",
                skid_share=float(skid[i] / weight[i]) if weight[i] > 0 else 0.0,
                samples_base=int(samples[0][i]),
                samples_new=int(samples[1][i]),
            )
        )
    return tuple(rows)


def _function_deltas(
    sides: Sides, category: Sequence[NDArray[np.int64]], effect: float, test: Test
) -> tuple[DeltaRow, ...]:
    f = sides.functions
    keys = [leaf_functions(v, t, f) for v, t in zip(sides.views, sides.tables, strict=True)]
    inclusive = [totals_by_run(v, t, f) for v, t in zip(sides.views, sides.tables, strict=True)]
    own = function_categories(f, list(zip(sides.views, keys, category, strict=True)))
    names = list(zip(f.name, f.module, own, strict=True))
    return _deltas(sides, keys, names, effect=effect, test=test, inclusive=inclusive)


def _group_deltas(
    sides: Sides, by: str, category: Sequence[NDArray[np.int64]], effect: float, test: Test
) -> tuple[DeltaRow, ...]:
    """Groups of both sides are matched by label: inodes and PIDs of two recordings have nothing in common."""
    if by == "run":
        raise UsageError("two profiles have no runs in common to split by", "nsprof report --by run shows each one's")
    split = [group(v, by, c) for v, c in zip(sides.views, category, strict=True)]
    labels = {label: i for i, label in enumerate(dict.fromkeys(label for s in split for label in s.labels))}
    keys = [np.array([labels[x] for x in s.labels], "i8")[s.number] for s in split]
    return _deltas(sides, keys, [(n, "", "") for n in labels], effect=effect, test=test)


def _total(sides: Sides, effect: float, test: Test) -> DeltaRow:
    keys = [np.zeros(len(v.row), "i8") for v in sides.views]
    row = _deltas(sides, keys, [("total", "", "")], effect=effect, test=test)
    return replace(row[0], status="") if row else DeltaRow("total", "", "", 0.0, 0.0, 0.0)


def _not_attributed(sides: Sides) -> float:
    def unplaced(chosen: View, table: StackTable) -> float:
        none = np.where(leaf_functions(chosen, table, sides.functions) < 0, 0, -1)
        return float(chosen.by_run(none, 1).mean())

    return unplaced(sides.views[1], sides.tables[1]) - unplaced(sides.views[0], sides.tables[0])


def _notes(sides: Sides, effect: float) -> tuple[str, ...]:
    base, new = sides.views
    said = []
    for chosen in sides.views:
        words, explained = trust.sums(chosen)
        said.append(
            [
                *chosen.notes,
                *trust.lost_elsewhere(chosen),
                *trust.recorded_notes(chosen),
                *(words if explained else ()),
                *noise.notes(chosen),
            ]
        )
    notes = _by_side(sides, said)
    fewest = min(len(base.runs), len(new.runs))
    if fewest < 2:
        notes.append("one run a side: its spread is not known, so there are neither intervals nor verdicts")
    elif fewest < statistics.RUNS_FOR_VERDICT:
        notes.append(
            f"{len(base.runs)} against {len(new.runs)} runs: 95 % intervals only; "
            f"verdicts need {statistics.RUNS_FOR_VERDICT} runs a side"
        )
    ratio = statistics.ratio_interval(base.totals(), new.totals())
    if ratio is not None:
        factor = new.totals().mean() / base.totals().mean()
        notes.append(f"total x {factor:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] (95 %)")
    if effect > 0:
        notes.append(f"differences under {format_figure(effect)} {sides.measure.label} get no verdict (--min-effect)")
    return tuple(notes)


def _by_side(sides: Sides, said: Sequence[Sequence[str]]) -> list[str]:
    """Sentences of both sides: what holds for both is said once, the rest with the side's title, each once."""
    both = [text for text in said[0] if text in said[1]]
    own = [f"{title}: {text}" for title, texts in zip(sides.titles, said, strict=True) for text in texts]
    shared = {f"{title}: {text}" for title in sides.titles for text in both}
    return list(dict.fromkeys([*both, *(text for text in own if text not in shared)]))


def _warnings(sides: Sides) -> tuple[str, ...]:
    said = []
    for chosen in sides.views:
        words, explained = trust.sums(chosen)
        said.append([*trust.trouble(chosen), *(words if not explained else ()), *trust.warnings(chosen)])
    return (*sides.warnings, *_uneven_load(sides), *_by_side(sides, said))


#: Of the busy time: where the sides leave out so differently much as other load, a difference of costs may be one of
#: what is counted.
_UNEVEN = 0.2


def _uneven_load(sides: Sides) -> list[str]:
    shares = [chosen.other_share for chosen in sides.views]
    if abs(shares[1] - shares[0]) <= _UNEVEN:
        return []
    words = [f"{title} leaves out {share:.0%}" for title, share in zip(sides.titles, shares, strict=True)]
    return [
        f"the sides may count different tasks: {' and '.join(words)} of the busy time as other load, "
        "a peer in a namespace outside the scenario included (--everyone counts all)"
    ]

"""`nsprof report`: what a scenario costs, by function, category and group, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import categories, noise, statistics, trust
from nsprof.analyse.filters import Filter
from nsprof.analyse.grouping import group, shares_by_context
from nsprof.analyse.selection import HOP_KINDS, View, view
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
from nsprof.analyse.trust import LOSS_LIMIT, STEAL_LIMIT, SUM_LIMIT
from nsprof.model.profile import Lateness, Profile, Run
from nsprof.model.results import CategoryRow, CostReport, FunctionRow, GroupRow, Interval, Measure
from nsprof.units import OWN_COUNT, OWN_UNITS

__all__ = ["LOSS_LIMIT", "STEAL_LIMIT", "SUM_LIMIT", "Quality", "own_count", "quality", "report"]


def report(
    profile: Profile,
    *,
    scenario: str | None = None,
    runs: Sequence[int] | None = None,
    event: str | None = None,
    per: str | None = None,
    by: str | None = None,
    where: Filter | None = None,
    join_contexts: bool = False,
) -> CostReport:
    """Unit costs of one scenario: the mean over its runs of each run's cost / denominator.

    `per` is a denominator ("transaction", "skb", ...), "share" for % of busy, "total" for plain sums; None takes what
    the runs counted. `by` also splits by "netns", "device", "hop", "context", "category", "task", "cpu" or "run".
    Raises UsageError for names that are not there and EvidenceError where nothing can be counted.
    """
    chosen = view(profile, scenario=scenario, runs=runs, event=event, per=per, where=where, hop=by in HOP_KINDS)
    functions, (mapping,) = function_table([profile.frames])
    table = stack_table(profile, mapping, len(functions), join_contexts=join_contexts)
    category = row_categories(chosen, table)
    total = float(chosen.totals().mean())
    groups = _groups(chosen, by, category, total) if by else ()
    notes, alarms = _trust(chosen)
    measured, sampled = trust.cpu_seconds(chosen)
    from_idle = trust.from_idle_cpu_s(chosen) if not math.isnan(sampled) else float("nan")
    return CostReport(
        title=chosen.title,
        measure=own_count(chosen.measure, chosen.run_objects),
        functions=_function_rows(chosen, table, functions, category),
        categories=_category_rows(chosen, category, total),
        groups=groups,
        total=total,
        runs=len(chosen.runs),
        samples=int(chosen.count.sum()),
        covered_share=_covered(chosen, category),
        skid_share=_skid(chosen),
        unknown_share=_unknown(chosen, category, by, groups),
        lost_share=_lost(chosen),
        own_share=_own_share([profile.runs[i] for i in chosen.runs]),
        measured_cpu_s=measured,
        sampled_cpu_s=sampled,
        from_idle_cpu_s=from_idle,
        notes=tuple(notes),
        alarms=tuple(alarms),
    )


def own_count(measure: Measure, runs: Sequence[Run]) -> Measure:
    """The measure with the tool that counted its unit as `reference`, where that is not a device: "netperf's own
    count". The runs' tools are those that their values came from."""
    if measure.per not in OWN_UNITS:
        return measure
    tools = "/".join(dict.fromkeys(v.source for run in runs for v in run.values if v.source)) or "the workload"
    return replace(measure, reference=f"{tools}'s {OWN_COUNT}")


def quality(profile: Profile, **words: Any) -> Quality:
    """How far the samples of one scenario can be trusted, without its functions; arguments as in `report`."""
    by = words.pop("by", None)
    words.pop("join_contexts", None)
    chosen = view(profile, **words, hop=by in HOP_KINDS)
    _, alarms = _trust(chosen)
    return Quality(
        chosen.title,
        len(chosen.runs),
        int(chosen.count.sum()),
        _lost(chosen),
        _skid(chosen),
        _own_share(chosen.run_objects),
        tuple(alarms),
    )


@dataclass(frozen=True, slots=True)
class Quality:
    """See `quality`; fields as in CostReport."""

    title: str
    runs: int
    samples: int
    lost_share: float
    skid_share: float
    own_share: float
    alarms: tuple[str, ...]


def _share(chosen: View, mask: NDArray[Any]) -> float:
    whole = float(chosen.cost.sum())
    return float(chosen.cost[mask].sum()) / whole if whole > 0 else 0.0


def _skid(chosen: View) -> float:
    """Share of late samples; nan where lateness was never observed (imports)."""
    if (chosen.column("lateness") == int(Lateness.UNKNOWN)).all():
        return float("nan")
    return _share(chosen, chosen.skid)


def _function_rows(
    chosen: View, table: StackTable, functions: Functions, category: NDArray[np.int64]
) -> tuple[FunctionRow, ...]:
    total = float(chosen.totals().mean())
    leaf = leaf_functions(chosen, table, functions)
    of_function = function_categories(functions, [(chosen, leaf, category)])
    number = len(functions)
    own_by_run = chosen.by_run(leaf, number)
    own = own_by_run.mean(axis=1)
    inclusive = totals_by_run(chosen, table, functions).mean(axis=1)
    samples = chosen.by_run(leaf, number, chosen.count).sum(axis=1)
    skid = chosen.by_run(leaf, number, chosen.cost * chosen.skid).mean(axis=1)
    low, high = statistics.row_intervals(own_by_run)
    contexts = shares_by_context(chosen, leaf, number)
    order = np.lexsort((-inclusive, -own))
    rows = []
    for i in order:
        if inclusive[i] <= 0 and own[i] <= 0:
            continue
        rows.append(
            FunctionRow(
                name=functions.name[i],
                module=functions.module[i],
                category=of_function[i],
                self_cost=float(own[i]),
                total_cost=float(inclusive[i]),
                self_share=float(own[i] / total) if total > 0 else 0.0,
                total_share=float(inclusive[i] / total) if total > 0 else 0.0,
                samples=int(samples[i]),
                skid_share=float(skid[i] / own[i]) if own[i] > 0 else 0.0,
                contexts=contexts[i],
                self_interval=None if math.isnan(low[i]) else Interval(float(low[i]), float(high[i])),
            )
        )
    return tuple(rows)


def _category_rows(chosen: View, category: NDArray[np.int64], total: float) -> tuple[CategoryRow, ...]:
    number = len(categories.ALL)
    cost = chosen.by_run(category, number).mean(axis=1)
    samples = chosen.by_run(category, number, chosen.count).sum(axis=1)
    rows = [
        CategoryRow(categories.ALL[i], float(cost[i]), float(cost[i] / total) if total > 0 else 0.0, int(samples[i]))
        for i in range(number)
        if cost[i] > 0
    ]
    return tuple(sorted(rows, key=lambda r: -r.cost))


def _groups(chosen: View, by: str, category: NDArray[np.int64], total: float) -> tuple[GroupRow, ...]:
    groups = group(chosen, by, category)
    cost = chosen.by_run(groups.number, len(groups)).mean(axis=1)
    if by == "run":
        # A run's own unit cost, not its share in the whole's.
        cost = chosen.by_run(groups.number, len(groups), chosen.cost / chosen.sizes[chosen.run]).sum(axis=1)
    samples = chosen.by_run(groups.number, len(groups), chosen.count).sum(axis=1)
    contexts = shares_by_context(chosen, groups.number, len(groups))
    whole = cost.sum() if by == "run" else total
    rows = [
        GroupRow(
            groups.keys[i],
            groups.labels[i],
            float(cost[i]),
            float(cost[i] / whole) if whole > 0 else 0.0,
            int(samples[i]),
            contexts[i],
        )
        for i in range(len(groups))
    ]
    return tuple(rows) if by == "run" else tuple(sorted(rows, key=lambda r: -r.cost))


def _covered(chosen: View, category: NDArray[np.int64]) -> float:
    """Share of the kernel's cost whose category is known; see `categories.NOT_COVERED`."""
    kernel = category != categories.USER
    bad = np.isin(category, [categories.ALL.index(n) for n in categories.NOT_COVERED])
    whole = float(chosen.cost[kernel].sum())
    return float(chosen.cost[kernel & ~bad].sum()) / whole if whole > 0 else float("nan")


def _unknown(chosen: View, category: NDArray[np.int64], by: str | None, groups: Sequence[GroupRow]) -> float:
    """Share of the cost that cannot be placed: in the split asked for, else for want of a stack."""
    if by in HOP_KINDS:
        return sum(g.share for g in groups if g.key == "unknown" or g.label == "unknown")
    return _share(chosen, category == categories.UNKNOWN)


# --- trust ----------------------------------------------------------------------------------------------------


def _lost(chosen: View) -> float:
    """Samples lost of those expected on the CPUs counted, over all runs, which weigh as much as they expected; nan if
    any run could not tell."""
    runs = chosen.run_objects
    if any(r.losses.expected <= 0 for r in runs):
        return float("nan")
    expected = sum(r.losses.expected for r in runs)
    return sum(max(0.0, trust.lost_share(r, chosen.filter.side)) * r.losses.expected for r in runs) / expected


def _own_share(runs: Sequence[Run]) -> float:
    """nsprof's own CPU time as a share of all busy CPU time of the recording."""
    busy = sum(sum(r.cpu_busy_s.values()) for r in runs)
    return sum(r.own_cpu_s for r in runs) / busy if busy > 0 and any(r.own_cpu_s for r in runs) else float("nan")


def _trust(chosen: View) -> tuple[list[str], list[str]]:
    """Notes and alarms."""
    alarms = trust.trouble(chosen)
    notes = [*chosen.notes, *trust.lost_elsewhere(chosen), *trust.warnings(chosen)]
    if any(math.isnan(run.losses.lost_share) for run in chosen.run_objects):
        notes.append("how many samples were lost could not be known")
    notes += [*trust.refused(chosen.profile), *trust.recorded_notes(chosen), *noise.notes(chosen)]
    notes += trust.few_samples(chosen)
    words, explained = trust.sums(chosen)
    (notes if explained else alarms).extend(words)
    return list(dict.fromkeys(notes)), list(dict.fromkeys(alarms))

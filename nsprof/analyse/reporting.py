"""`nsprof report`: what a scenario costs, by function, category and group, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import categories, noise, statistics
from nsprof.analyse.filters import Filter
from nsprof.analyse.grouping import HOP_KINDS, group, shares_by_context
from nsprof.analyse.selection import View, view
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
from nsprof.model.profile import Context, Lateness, Profile, Run
from nsprof.model.results import CategoryRow, CostReport, FunctionRow, GroupRow, Interval

__all__ = ["LOSS_LIMIT", "STEAL_LIMIT", "SUM_LIMIT", "report"]

#: Above these shares a report is marked: samples lost, CPU stolen, sampled against measured busy time.
LOSS_LIMIT = 0.01
STEAL_LIMIT = 0.01
SUM_LIMIT = 0.02


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
    notes += noise.notes(chosen)
    measured, sampled = _cpu_seconds(chosen)
    from_idle = _from_idle_cpu_s(chosen) if not math.isnan(sampled) else float("nan")
    (notes if _explained(measured, sampled, from_idle) else alarms).extend(_sum_words(measured, sampled, from_idle))
    return CostReport(
        title=chosen.title,
        measure=chosen.measure,
        functions=_function_rows(chosen, table, functions, category),
        categories=_category_rows(chosen, category, total),
        groups=groups,
        total=total,
        runs=len(chosen.runs),
        samples=int(chosen.count.sum()),
        covered_share=_covered(chosen, category),
        skid_share=_skid(chosen),
        unknown_share=_unknown(chosen, category, by, groups),
        lost_share=_lost([profile.runs[i] for i in chosen.runs]),
        own_share=_own_share([profile.runs[i] for i in chosen.runs]),
        measured_cpu_s=measured,
        sampled_cpu_s=sampled,
        from_idle_cpu_s=from_idle,
        notes=tuple(notes),
        alarms=tuple(alarms),
    )


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
        cost *= len(chosen.runs)  # a run's own unit cost, not its share in the mean
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


def _lost(runs: Sequence[Run]) -> float:
    """Samples lost of those expected, over all runs; nan if any run could not tell."""
    if any(r.losses.expected <= 0 for r in runs):
        return float("nan")
    expected = sum(r.losses.expected for r in runs)
    return max(0.0, (expected - sum(r.losses.seen for r in runs)) / expected)


def _own_share(runs: Sequence[Run]) -> float:
    """nsprof's own CPU time as a share of all busy CPU time of the recording."""
    busy = sum(sum(r.cpu_busy_s.values()) for r in runs)
    return sum(r.own_cpu_s for r in runs) / busy if busy > 0 and any(r.own_cpu_s for r in runs) else float("nan")


def _trust(chosen: View) -> tuple[list[str], list[str]]:
    notes, alarms = list(chosen.notes), []
    for number in chosen.runs:
        run = chosen.profile.runs[number]
        name = f"run {number + 1}" if len(chosen.profile.runs) > 1 else "the run"
        lost = run.losses.lost_share
        if lost > LOSS_LIMIT:
            alarms.append(f"{name} lost {lost:.1%} of its samples{_where_lost(run)}")
        if run.losses.damaged_share > LOSS_LIMIT:
            alarms.append(f"{name}: {run.losses.damaged_share:.1%} of the samples have no call stack")
        online = run.duration_s * max(run.cpus, 1)
        if online > 0 and run.cpu_steal_s / online > STEAL_LIMIT:
            alarms.append(f"{name}: the hypervisor took {run.cpu_steal_s / online:.1%} of the CPU time away (steal)")
        notes += [f"{name}: {text}" for text in run.warnings]
    if any(math.isnan(chosen.profile.runs[i].losses.lost_share) for i in chosen.runs):
        notes.append("how many samples were lost could not be known")
    shed = [p for p in chosen.profile.probes if p.state in ("refused", "shed")]
    notes += [f"probe {p.name} ({p.target}) {p.state}: {p.reason}" for p in shed]
    notes += [str(n) for n in _as_list(chosen.profile.meta.get("notes"))]
    return list(dict.fromkeys(notes)), list(dict.fromkeys(alarms))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _where_lost(run: Run) -> str:
    losses = run.losses
    parts = [
        f"{name.replace('_', ' ')} {value:,}"
        for name in ("map_full", "throttled", "lost_records", "stack_collisions")
        if (value := getattr(losses, name)) > 0
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _cpu_seconds(chosen: View) -> tuple[float, float]:
    """Measured and sampled busy seconds of the same CPUs and runs; nan where they cannot be compared."""
    if chosen.profile.events and chosen.filter.is_partial:
        return float("nan"), float("nan")
    event = next(e for e in chosen.profile.events if e.name == chosen.measure.event)
    if event.unit != "ns" or event.kind != "sampled":
        return float("nan"), float("nan")
    measured = 0.0
    for run in chosen.run_objects:
        cpus = {"dut": run.dut_cpus, "remote": run.remote_cpus, "all": ()}[chosen.filter.side] or tuple(
            run.cpu_busy_s
        )
        measured += sum(run.cpu_busy_s.get(c, 0.0) for c in cpus)
    return measured or float("nan"), (float(chosen.weight.sum()) + chosen.other_weight) / 1e9


def _from_idle_cpu_s(chosen: View) -> float:
    """Sampled seconds that the kernel counts as idle: the idle task's own work, and ticks that fell due while the CPU
    slept but landed, late (skid), in the interrupt that woke it."""
    idle_task = np.array([t.tgid == 0 and t.pid == 0 for t in chosen.profile.tasks] or [False], bool)
    context = chosen.column("context")
    late = chosen.skid | (context == int(Context.SCHED))
    mine = idle_task[chosen.column("task")] if chosen.profile.tasks else np.zeros(len(late), bool)
    return float(chosen.weight[mine & late].sum()) / 1e9


def _explained(measured: float, sampled: float, from_idle: float) -> bool:
    """Whether samples and idle accounting agree within SUM_LIMIT once what came out of idle is allowed for."""
    return sampled - from_idle <= measured * (1 + SUM_LIMIT) and sampled >= measured * (1 - SUM_LIMIT)


def _sum_words(measured: float, sampled: float, from_idle: float) -> list[str]:
    if math.isnan(measured) or math.isnan(sampled):
        return []
    off = (sampled - measured) / measured
    if abs(off) <= SUM_LIMIT:
        return []
    words = f"samples add up to {sampled:.2f} s of CPU where {measured:.2f} s were measured ({off:+.1%})"
    if off > 0 and from_idle > 0:
        words += f"; up to {from_idle:.2f} s of them came out of idle: due while the CPU slept, landed late"
    return [words]

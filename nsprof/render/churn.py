"""The tables of `nsprof churn`: times as time(1) has them, latencies, what the mounts did, where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from nsprof.model.profile import Run
from nsprof.model.results import CostReport
from nsprof.render.tables import Column, Grid, Heading, Lines, Part
from nsprof.render.text import cost, percent

__all__ = ["churn_parts", "function_parts"]

#: On every stack, so they say nothing of where the time went.
_ENTRIES = frozenset(
    (
        *("do_syscall_64", "entry_SYSCALL_64_after_hwframe", "ret_from_fork", "ret_from_fork_asm", "kthread"),
        *("worker_thread", "process_one_work", "asm_exc_page_fault", "[user]"),
    )
)
_STUBS = ("__x64_sys_", "__do_sys_", "__se_sys_")


def churn_parts(runs: Sequence[Run], *, title: str, propagation: str) -> list[Part]:
    """One line a tool, kernel and operation (means over rounds)."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if not run.failed:
            groups.setdefault((run.scenario, run.kernel), []).append(run)
    several = len({k for _, k in groups}) > 1
    columns = [Column("Operation", right=False, wrap=True)]
    if several:
        columns.append(Column("Kernel", right=False))
    columns += [
        Column("real s"),
        Column("user s"),
        Column("sys s"),
        Column("p50 us"),
        Column("p90 us", keep=3),
        Column("p99 us"),
        Column("max us", keep=2),
        Column("cleanup s", keep=1),
        Column("mounts\nhere", keep=5),
        Column("mounts\nelsewhere", keep=4),
        Column("still\npinned", keep=5),
        Column("rounds", keep=6),
    ]
    rows = []
    for (scenario, kernel), some in groups.items():
        mean = _means(some)
        cells = [scenario, *((kernel,) if several else ())]
        cells += [f"{mean[name]:.3f}" for name in ("real", "user", "sys")]
        cells += [cost(mean[f"latency_{p}"]) for p in ("p50", "p90", "p99", "max")]
        cells.append(f"{mean['cleanup']:.3f}" if "cleanup" in mean else "")
        cells += [f"{mean['mounts_here']:,.0f}", f"{mean['mounts_elsewhere']:,.0f}"]
        cells.append(f"{mean['still_pinned']:,.0f}" if "still_pinned" in mean else "")
        rows.append((*cells, str(len(some))))
    parts: list[Part] = [Heading(title, 1), Grid(tuple(columns), tuple(rows))]
    parts.append(Lines(tuple(_notes(groups, propagation)), bullet=True))
    return parts


def _means(runs: Sequence[Run]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for run in runs:
        for value in run.values:
            found.setdefault(value.name, []).append(value.value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _notes(groups: Mapping[tuple[str, str], Sequence[Run]], propagation: str) -> list[str]:
    notes = [
        f"mount propagation: {propagation}; "
        "mounts of namespaces when the operation had ended, in the tools' own mount namespace and in the others",
        "cleanup: how long the kernel went on taking namespaces down after the last delete",
    ]
    pinned = max((_means(runs).get("still_pinned", 0.0) for runs in groups.values()), default=0.0)
    if pinned:
        notes.append(f"{pinned:,.0f} deleted namespaces live on: other mount namespaces still hold them")
    for runs in groups.values():
        notes += [f"{run.scenario}: {w}" for run in runs for w in run.warnings]
    return list(dict.fromkeys(notes))


def function_parts(report: CostReport, *, what: str, limit: int) -> list[Part]:
    """The functions with the largest own and inclusive cost of a report, short."""
    rows = [f for f in sorted(report.functions, key=lambda f: -f.self_cost) if f.self_cost > 0][:limit]
    named = [f for f in report.functions if f.name not in _ENTRIES and not f.name.startswith(_STUBS)]
    totals = sorted(named, key=lambda f: -f.total_cost)[:limit]
    columns = (
        Column(what, right=False, wrap=True),
        Column(f"self {report.measure.label}"),
        Column("share"),
        Column("with what it calls", right=False, wrap=True, keep=1),
        Column(f"total {report.measure.label}", keep=1),
    )
    body = []
    for own, whole in zip_longest(rows, totals):
        left = (own.name, cost(own.self_cost), percent(own.self_share)) if own else ("", "", "")
        body.append((*left, *((whole.name, cost(whole.total_cost)) if whole else ("", ""))))
    return [Grid(columns, tuple(body))]

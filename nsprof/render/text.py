"""Reports, diffs and scenario tables as parts of text (see `tables`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from nsprof.model.results import (
    CostReport,
    DeltaRow,
    DiffReport,
    FunctionRow,
    Interval,
    Measure,
    ScenarioRow,
    ScenarioTable,
)
from nsprof.render.flamegraph_text import counted_at
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.units import DENOMINATOR_NOUNS, OWN_UNITS, format_count
from nsprof.units import format_figure as cost

__all__ = ["SHARES", "cost", "diff_parts", "gap", "percent", "report_parts", "scenario_parts", "split_legend"]

#: What a share is of. Not of busy time: other load is not in it, nor what --context, --netns and their like left out.
SHARES = "shares are of what is counted (other load and filters left out)"

#: From this share of late samples on, a function is marked.
SKID_MARK = 0.5
_MARK = " ~"
_LEGEND = "~ most of its samples arrived late (skid): the time was spent with interrupts off, before this function"


def percent(share: float, *, sign: bool = False, digits: int = 1) -> str:
    """A share as a percentage; "-" for nan."""
    if math.isnan(share):
        return "-"
    value = round(share * 100, digits) + 0.0  # no "-0.0"
    return f"{value:{'+' if sign else ''}.{digits}f}%"


def interval_text(interval: Interval | None, *, sign: bool = False) -> str:
    """`[low, high]`, "" without one."""
    return f"[{cost(interval.low, sign=sign)}, {cost(interval.high, sign=sign)}]" if interval else ""


def _known(share: float) -> str:
    return "unknown" if math.isnan(share) else percent(share, digits=2 if 0 < share < 0.01 else 1)


def _news(lines: Sequence[str], said: set[str] | None) -> tuple[str, ...]:
    """The lines that this command has not shown yet; they are marked as shown."""
    if said is None:
        return tuple(lines)
    found = tuple(line for line in dict.fromkeys(lines) if line not in said)
    said.update(found)
    return found


def gap() -> Lines:
    """An empty line between two parts."""
    return Lines(("",))


# --- report ---------------------------------------------------------------------------------------------------


def report_parts(
    report: CostReport, *, limit: int = 30, by_total: bool = False, said: set[str] | None = None
) -> list[Part]:
    """A report: header, alarms, groups, categories, functions.

    `limit` functions (0: all) by self cost, or by total cost, callers included, with `by_total`. Notes and alarms in
    `said` were shown before and are left out; those shown are added to it.
    """
    m = report.measure
    kind = "" if m.kind == "sampled" else f" ({m.kind})"
    parts: list[Part] = [Heading(f"{report.title}: {cost(report.total)} {m.label}{kind}", 1)]
    head = [
        f"{report.runs} run{'s' * (report.runs != 1)}, {format_count(report.samples)} samples of {m.event}"
        + _per(m, ", ")
        + f"; {SHARES}",
        f"lost {_known(report.lost_share)} · late (skid) {_known(report.skid_share)} · "
        f"unknown {_known(report.unknown_share)} · nsprof's own cost {_known(report.own_share)} · "
        f"categories cover {_known(report.covered_share)} of the kernel's",
    ]
    if not math.isnan(report.measured_cpu_s):
        off = (report.sampled_cpu_s - report.measured_cpu_s) / report.measured_cpu_s
        head.append(
            f"adds up: {report.sampled_cpu_s:.2f} s of CPU sampled, {report.measured_cpu_s:.2f} s measured "
            f"({percent(off, sign=True)})"
        )
    parts.append(Lines(tuple(head)))
    alarms, notes = _news(report.alarms, said), _news(report.notes, said)
    if alarms:
        parts.append(Lines(tuple(f"WARNING: {a}" for a in alarms), "bold red"))
    if notes:
        parts.append(Lines(notes, "dim", bullet=True))
    parts.append(Lines(("",)))
    if report.groups:
        parts += [_group_grid(report), Lines(("",))]
    if report.categories:
        parts += [_category_grid(report), Lines(("",))]
    parts += _function_grid(report, limit, by_total=by_total)
    return parts


def _per(measure: Measure, before: str) -> str:
    """`per skb of eth0 in c0 (rx + tx)`, `per KB (netperf's own count)`; "" where there is nothing to say."""
    place = counted_at(measure)
    if not place:
        return ""
    noun = DENOMINATOR_NOUNS.get(measure.per, measure.per)
    return f"{before}per {noun} ({place})" if measure.per in OWN_UNITS else f"{before}per {noun} of {place}"


def _group_grid(report: CostReport) -> Grid:
    labels = [g.label for g in report.groups]
    rows = [
        (
            Cell(g.label if labels.count(g.label) == 1 else f"{g.label} ({g.key})"),
            cost(g.cost),
            percent(g.share),
            format_count(g.samples),
            _contexts(g.contexts),
        )
        for g in report.groups
    ]
    columns = (
        Column("Split by", right=False, wrap=True),
        Column(report.measure.label),
        Column("share"),
        Column("samples", keep=3),
        Column("contexts", right=False, keep=2),
    )
    return Grid(columns, tuple(rows))


def _category_grid(report: CostReport) -> Grid:
    rows = [(c.name, cost(c.cost), percent(c.share), format_count(c.samples)) for c in report.categories]
    columns = (
        Column("Category", right=False),
        Column(report.measure.label),
        Column("share"),
        Column("samples", keep=3),
    )
    return Grid(columns, tuple(rows))


def _name(row: FunctionRow | DeltaRow) -> str:
    module = f" [{row.module}]" if row.module else ""
    return f"{row.name}{module}{_MARK if row.skid_share >= SKID_MARK else ''}"


def _contexts(contexts: object) -> str:
    items = list(contexts.items()) if isinstance(contexts, dict) else []
    return " ".join(
        f"{name} {share * 100:.0f}%" if share < 0.995 else name for name, share in items[:3] if share >= 0.005
    )


def _sorted(rows: Sequence[FunctionRow], *, by_total: bool) -> list[FunctionRow]:
    if by_total:
        return sorted(rows, key=lambda f: -f.total_cost)
    return [f for f in rows if f.self_cost > 0]


def _function_grid(report: CostReport, limit: int, *, by_total: bool = False) -> list[Part]:
    # Callers without time of their own are in the totals of --json and --sort total; here they would be noise.
    shown, rest = _cut(_sorted(report.functions, by_total=by_total), limit)
    rows: list[tuple[Cell | str, ...]] = [
        (
            Cell(_name(f), "yellow" if f.skid_share >= SKID_MARK else ""),
            percent(f.self_share),
            cost(f.self_cost),
            interval_text(f.self_interval),
            percent(f.total_share),
            cost(f.total_cost),
            format_count(f.samples),
            _contexts(f.contexts),
            f.category,
        )
        for f in shown
    ]
    if rest:
        more = sum(f.self_cost for f in rest)
        share = sum(f.self_share for f in rest)
        rows.append((Cell(f"... {len(rest):,} more (--limit 0)", "dim"), percent(share), cost(more), *[""] * 6))
    columns = (
        Column("Function", right=False, wrap=True),
        Column("self %"),
        Column("self"),
        Column("95%", keep=7),
        Column("total %", keep=1),
        Column("total", keep=2),
        Column("samples", keep=6),
        Column("context", right=False, keep=5),
        Column("category", right=False, keep=4),
    )
    parts: list[Part] = [Grid(columns, tuple(rows))]
    if any(f.skid_share >= SKID_MARK for f in shown):
        parts.append(Lines((_LEGEND,), "dim"))
    return parts


_Row = TypeVar("_Row")


def _cut(rows: Sequence[_Row], limit: int) -> tuple[Sequence[_Row], Sequence[_Row]]:
    return (rows, ()) if limit <= 0 else (rows[:limit], rows[limit:])


# --- diff -----------------------------------------------------------------------------------------------------


def diff_parts(diff: DiffReport, *, limit: int = 25, said: set[str] | None = None) -> list[Part]:
    """A diff: total, warnings, categories, groups, functions sorted by |delta|, and what adds up to the total.

    `said` as in `report_parts`.
    """
    m, t = diff.measure, diff.total
    change = percent(t.delta / t.base, sign=True) if t.base > 0 else "-"
    ratio = f", x{t.new / t.base:.2f}" if t.base > 0 else ""
    parts: list[Part] = [
        Heading(
            f"{diff.new_title} against {diff.base_title}: {cost(t.delta, sign=True)} {m.label} ({change}{ratio})", 1
        ),
        Lines(
            (
                f"from {cost(t.base)} to {cost(t.new)} {m.label}"
                + (f", 95% of the difference {interval_text(t.interval, sign=True)}" if t.interval else "")
                + (f", {_verdict_words(t)}" if t.verdict else ""),
                f"{diff.runs_base} against {diff.runs_new} run{'s' * (diff.runs_base + diff.runs_new > 2)}, "
                f"{format_count(t.samples_base)} against {format_count(t.samples_new)} samples of {m.event}"
                + ("" if m.kind == "sampled" else f" ({m.kind})")
                + _per(m, "; "),
            )
        ),
    ]
    warnings, notes = _news(diff.warnings, said), _news(diff.notes, said)
    if warnings:
        parts.append(Lines(tuple(f"WARNING: {w}" for w in warnings), "yellow"))
    if notes:
        parts.append(Lines(notes, "dim", bullet=True))
    parts.append(Lines(("",)))
    for title, rows in (("Split by", diff.groups), ("Category", diff.categories)):
        if rows:
            parts += [_delta_grid(title, rows, diff, categories=False), Lines(("",))]
    shown, rest = _cut([f for f in diff.functions if f.base > 0 or f.new > 0], limit)
    parts.append(_delta_grid("Function", shown, diff, rest=rest, sums=True))
    if any(f.skid_share >= SKID_MARK for f in shown):
        parts.append(Lines((_LEGEND,), "dim"))
    return parts


def _verdict_words(row: DeltaRow) -> str:
    word = {"+": "more", "-": "less", "~": "no difference shown"}[row.verdict]
    return f"{word} (q = {row.q:.2g})"


def _delta_grid(
    title: str,
    rows: Sequence[DeltaRow],
    diff: DiffReport,
    *,
    categories: bool = True,
    rest: Sequence[DeltaRow] = (),
    sums: bool = False,
) -> Grid:
    has_interval = any(r.interval for r in rows)
    has_verdict = any(r.verdict for r in rows)
    columns = [
        Column(title, right=False, wrap=True),
        Column("", right=False),
        Column("base", keep=1),
        Column("new", keep=2),
        Column("delta"),
        Column("of base", keep=5),
    ]
    if has_interval:
        columns.append(Column("95%", keep=3))
    if has_verdict:
        columns += [Column("q", keep=4), Column("", right=False)]
    if categories:
        columns.append(Column("category", right=False, keep=6))
    body: list[tuple[Cell | str, ...]] = []
    for r in rows:
        cells: list[Cell | str] = [
            # A late sample is in the right category or group; only its function is in doubt.
            Cell(_name(r), "yellow" if r.skid_share >= SKID_MARK else "") if categories else r.name,
            Cell(r.status, "bold"),
            cost(r.base),
            cost(r.new),
            Cell(cost(r.delta, sign=True), _colour(r)),
            percent(r.delta / diff.total.base, sign=True) if diff.total.base > 0 else "-",
        ]
        if has_interval:
            cells.append(interval_text(r.interval, sign=True))
        if has_verdict:
            cells += ["-" if math.isnan(r.q) else f"{r.q:.2g}", Cell(r.verdict, _colour(r))]
        if categories:
            cells.append(r.category)
        body.append(tuple(cells))
    blank = len(columns) - 5
    if rest:
        body.append(_sum_row(f"... {len(rest):,} more (--limit 0)", rest, blank))
    if sums:
        left = ("not attributed", "", "", "", cost(diff.not_attributed, sign=True), *[""] * blank)
        body.append(tuple(Cell(c, "dim") for c in left))
        total = (
            "total",
            "",
            cost(diff.total.base),
            cost(diff.total.new),
            cost(diff.total.delta, sign=True),
            *[""] * blank,
        )
        body.append(tuple(Cell(c, "bold") for c in total))
    return Grid(tuple(columns), tuple(body))


def _sum_row(label: str, rows: Sequence[DeltaRow], blank: int) -> tuple[Cell, ...]:
    sums = [sum(getattr(r, what) for r in rows) for what in ("base", "new", "delta")]
    cells = (label, "", cost(sums[0]), cost(sums[1]), cost(sums[2], sign=True), *[""] * blank)
    return tuple(Cell(c, "dim") for c in cells)


def _colour(row: DeltaRow) -> str:
    """Colour only where there is evidence: a verdict, or an interval without zero."""
    if row.verdict == "~":
        return "dim"
    sure = row.verdict in ("+", "-") or (row.interval is not None and (row.interval.low > 0 or row.interval.high < 0))
    if not sure:
        return ""
    return "red" if row.delta > 0 else "green"


# --- the table of scenarios -----------------------------------------------------------------------------------


def scenario_parts(table: ScenarioTable) -> list[Part]:
    """The table "CPU usage (%) / overhead | Throughput / changed", with the unit cost beside it."""
    parts: list[Part] = [Heading(table.title, 1)]
    if table.alarms:
        parts.append(Lines(tuple(f"WARNING: {a}" for a in table.alarms), "bold red"))
    several = len({r.kernel for r in table.rows}) > 1
    cost_unit = next((r.unit_cost_label for r in table.rows if r.unit_cost_label), "unit cost")
    units = {r.throughput_unit for r in table.rows if r.throughput_unit}
    remote = any(not math.isnan(r.cpu_remote_pct) for r in table.rows)
    spread, notes = split_legend(table)
    columns = [Column("Scenario", right=False, wrap=True)]
    if several:
        columns.append(Column("Kernel", right=False, keep=6))
    columns += [
        Column("CPU usage (%)\n/ overhead"),
        Column("±", keep=8, legend=spread),
        Column(f"Throughput ({units.pop()})\n/ changed" if len(units) == 1 else "Throughput\n/ changed"),
        Column("±", keep=8, legend=spread),
        Column(f"{cost_unit}\n/ changed", keep=1),
        Column("±", keep=7, legend=spread),
        Column("runs", keep=5),
    ]
    if remote:
        columns.append(Column("remote\nCPU (%)", keep=4))
    columns.append(Column("Observation", right=False, keep=3, wrap=True, below=True))
    one_unit = len({r.throughput_unit for r in table.rows if r.throughput_unit}) == 1
    rows = [_scenario_row(r, several=several, remote=remote, one_unit=one_unit) for r in table.rows]
    parts.append(Grid(tuple(columns), tuple(rows)))
    if notes:
        parts.append(Lines(notes, "dim", bullet=True))
    return parts


def split_legend(table: ScenarioTable) -> tuple[str, tuple[str, ...]]:
    """(what ± means, the other notes): the first is for those only who see a ±."""
    spread = next((n for n in table.notes if n.startswith("±")), "")
    return spread, tuple(n for n in table.notes if n != spread)


def _scenario_row(row: ScenarioRow, *, several: bool, remote: bool, one_unit: bool) -> tuple[Cell | str, ...]:
    def changed(value: float) -> str:
        return "" if math.isnan(value) else f" / {percent(value / 100, sign=True)}"

    def spread(interval: Interval | None) -> str:
        return "" if interval is None else cost((interval.high - interval.low) / 2)

    cells: list[Cell | str] = [Cell(row.scenario, "bold" if row.is_baseline else "")]
    if several:
        cells.append(row.kernel)
    unit = "" if one_unit else f" {row.throughput_unit}"
    throughput = "-" if math.isnan(row.throughput) else f"{row.throughput:,.2f}{unit}"
    cpu = "-" if math.isnan(row.cpu_pct) else f"{row.cpu_pct:.2f}"
    cells += [
        cpu + changed(row.cpu_change_pct),
        spread(row.cpu_interval),
        throughput + changed(row.throughput_change_pct),
        spread(row.throughput_interval),
        cost(row.unit_cost) + changed(row.unit_cost_change_pct),
        spread(row.unit_cost_interval),
        str(row.runs),
    ]
    if remote:
        cells.append("-" if math.isnan(row.cpu_remote_pct) else f"{row.cpu_remote_pct:.2f}")
    cells.append(row.observation)
    return tuple(cells)

"""The sections of the report page as HTML. Words from outside go through `escape`; no inline style or script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nsprof.model.results import CostReport, DeltaRow, DiffReport, Interval, ScenarioRow, ScenarioTable
from nsprof.render.flamegraph_text import clean, cost_text, counted_at, delta_text, escape, per_noun, percent
from nsprof.render.page_charts import bare, run_points, topology, value_text, waterfall
from nsprof.render.page_model import BY_CAUSE, Card, Facts, LedgerEntry, PageContent
from nsprof.units import counted

__all__ = [
    "alarms",
    "cards",
    "categories",
    "counted_at",
    "facts",
    "headline",
    "ledger",
    "runs",
    "scenario_table",
    "section",
    "table",
    "topology_section",
]


def section(name: str, title: str, body: str, note: str = "") -> str:
    """One section with its heading; "" without a body."""
    if not body:
        return ""
    extra = f'<p class="note">{escape(note)}</p>' if note else ""
    head = f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(title)}</h2>'
    return f"{head}{extra}{body}</section>"


#: Tables with more rows scroll within themselves.
_LONG = 25


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    caption: str,
    numeric: Sequence[int] = (),
    kind: str = "",
    tall: bool = False,
) -> str:
    """A table of escaped cells, the first column its row heads; every table can be copied as Markdown. A `tall` one
    scrolls within itself."""
    right = set(numeric)

    def cell(n: int, words: str) -> str:
        if n == 0:
            return f'<th scope="row"><bdi>{escape(words)}</bdi></th>'
        return f'<td class="num">{escape(words)}</td>' if n in right else f"<td><bdi>{escape(words)}</bdi></td>"

    head = "".join(
        f'<th scope="col"{" class=num" if n in right else ""}>{escape(h)}</th>' for n, h in enumerate(heads)
    )
    body = "".join("<tr>" + "".join(cell(n, c) for n, c in enumerate(row)) + "</tr>" for row in rows)
    return (
        f'<div class="scroll{" tall" if tall else ""}" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="plain{kind}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _interval(interval: Interval | None, unit: str) -> str:
    if interval is None:
        return ""
    return f"[{delta_text(interval.low, unit)}, {delta_text(interval.high, unit)}]"


# ---- what a manager reads ------------------------------------------------------------------------------------------


def _shares(diff: DiffReport) -> str:
    """ "; by category, 46 % of it is bridge" - only where one part goes the way of the whole and is a good piece of
    it. Where parts cancel each other they are no shares of the sum: then the largest are named with their amounts."""
    total = diff.total.delta
    same = [r for r in diff.categories if r.delta * total > 0 and r.verdict != "~"]
    if not same or total == 0:
        return ""
    same.sort(key=lambda r: -abs(r.delta))
    largest = [r for r in same[:2] if abs(r.delta) >= 0.1 * abs(total)]
    if not largest:
        return ""
    if math.fsum(r.delta for r in largest) / total > 1:
        unit = diff.measure.unit
        named = " and ".join(f"{r.name} {delta_text(r.delta, unit)}" for r in largest)
        return f"; by category, the largest parts are {named}, and others went the other way"
    first, *more = ((f"{100 * r.delta / total:.0f} %", r.name) for r in largest)
    shares = [f"{first[0]} of it is {first[1]}", *(f"{share} is {name}" for share, name in more)]
    return "; by category, " + " and ".join(shares)


def _shown(diff: DiffReport) -> bool:
    """Whether the runs show that the totals differ at all. What is modelled is exact."""
    total = diff.total
    if diff.measure.kind == "modelled" or total.verdict:
        return total.verdict != "~"
    return total.interval is not None and not total.interval.low <= 0 <= total.interval.high


def _verdict_words(diff: DiffReport) -> str:
    total = diff.total
    runs = f"{diff.runs_base} and {diff.runs_new} run{'s' * (diff.runs_base + diff.runs_new > 2)}"
    if diff.measure.kind == "modelled":
        return "Modelled, not timed: exact for the path that was simulated."
    if min(diff.runs_base, diff.runs_new) < 2:
        return "One run a side: whether this is more than noise cannot be said."
    level = f"{100 * total.interval.level:.0f} % interval" if total.interval else "interval"
    spread = f", {level} {_interval(total.interval, diff.measure.unit)}" if total.interval else ""
    if math.isfinite(total.q):  # as in the tables and the terminal; of one total it is the p of its test
        spread += f", q = {total.q:.2g}"
    if total.verdict == "~":
        return f"No significant change ({runs}{spread})."
    if total.verdict:
        return f"A significant change ({runs}{spread})."
    return f"{runs[0].upper()}{runs[1:]}{spread}."


def headline(content: PageContent) -> tuple[str, str]:
    """The sentence at the top and the line below it."""
    diff, report = content.diff, content.report
    if diff is not None:
        unit, per, total = diff.measure.unit, per_noun(diff.measure), diff.total
        each = f"each {per} costs" if per else "the total is"
        if total.verdict == "~":
            lead = f"{clean(diff.new_title)} against {clean(diff.base_title)}: no significant difference"
            lead += f" ({delta_text(total.delta, unit, per)})."
        elif not _shown(diff):
            lead = (
                f"{clean(diff.new_title)} against {clean(diff.base_title)}: a difference is not shown by these runs"
            )
            lead += f" ({delta_text(total.delta, unit, per)})."
        elif total.base > 0:
            lead = f"In {clean(diff.new_title)} {each} {total.new / total.base:.2f}x what it costs in "
            lead += f"{clean(diff.base_title)}: "
            lead += f"{delta_text(total.delta, unit, per)}{clean(_shares(diff))}."
        else:
            lead = f"In {clean(diff.new_title)} {each} {cost_text(total.new, unit, per)}; the baseline has no cost."
        return lead, _verdict_words(diff)
    if report is None:
        return clean(content.title), ""
    unit, per = report.measure.unit, per_noun(report.measure)
    each = f"Each {per} costs" if per else "The total is"
    top = [c for c in sorted(report.categories, key=lambda c: -c.share)[:2] if c.share > 0]
    parts = " and ".join(f"{percent(c.share, 0)} {c.name}" for c in top)
    lead = f"{each} {cost_text(report.total, unit, per)}" + (f", of which {clean(parts)}." if parts else ".")
    return (
        lead,
        f"{counted(report.runs, 'run')}, {counted(report.samples, 'sample')}; no baseline was given.",
    )


# ---- document 000 --------------------------------------------------------------------------------------------------


def _change(value: float, row: ScenarioRow) -> str:
    return "baseline" if row.is_baseline else "-" if not math.isfinite(value) else f"{value:+.1f} %"


def _half(interval: Interval | None, unit: str) -> str:
    """Half of the interval's width, as it is written behind a mean."""
    return "" if interval is None else f" ± {bare((interval.high - interval.low) / 2, unit)}"


def _with_unit(head: str, units: set[str]) -> str:
    """`Throughput (transactions/s)`, `Unit cost (per transaction)`: the figures say ns or us themselves."""
    unit = next(iter(units)) if len(units) == 1 else ""
    measure, slash, per = unit.partition("/")
    if slash and measure == "ns":
        return f"{head} (per {per})"
    return f"{head} ({unit})" if unit else head


def scenario_table(scenarios: ScenarioTable, said: Sequence[str] = ()) -> str:
    """CPU usage / overhead, throughput / changed, unit cost / changed, and the observation of each scenario; its
    alarms but those that are `said` already."""
    kernels = len({r.kernel for r in scenarios.rows}) > 1
    rates, costs = ({getattr(r, name) for r in scenarios.rows} for name in ("throughput_unit", "unit_cost_label"))
    heads = ["Scenario", *(["Kernel"] if kernels else []), "CPU usage", "overhead"]
    heads += [_with_unit("Throughput", rates), "changed", _with_unit("Unit cost", costs), "changed"]
    heads += ["Drops", "Retransmits", "Runs"]
    # One unit for all stands in the head: the table is wide enough without it in each cell.
    rate, cost = (bare if len(units) == 1 else value_text for units in (rates, costs))
    rows = []
    for r in scenarios.rows:
        row = [r.scenario, *([r.kernel] if kernels else [])]
        row += [value_text(r.cpu_pct, "%") + _half(r.cpu_interval, "%"), _change(r.cpu_change_pct, r)]
        row += [rate(r.throughput, r.throughput_unit) + _half(r.throughput_interval, r.throughput_unit)]
        row += [_change(r.throughput_change_pct, r)]
        row += [cost(r.unit_cost, r.unit_cost_label) + _half(r.unit_cost_interval, r.unit_cost_label)]
        row += [_change(r.unit_cost_change_pct, r)]
        row += [f"{r.drops:,.0f}", f"{r.retransmits:,.0f}", str(r.runs)]
        rows.append(row)
    numeric = range(2 if kernels else 1, len(heads))
    out = _alarms(a for a in scenarios.alarms if a not in said) + table(
        heads, rows, caption=scenarios.title or "Scenarios", numeric=numeric, kind=" scenarios"
    )
    seen = [(f"{r.kernel}:" if kernels else "") + f"{r.scenario}: {r.observation}" for r in scenarios.rows]
    observed = [text for text, r in zip(seen, scenarios.rows, strict=True) if r.observation and not r.is_baseline]
    out += "".join(f"<p>Observation: {escape(text)}</p>" for text in observed)
    return out + "".join(f'<p class="note">{escape(n)}</p>' for n in scenarios.notes)


def _alarms(lines: Iterable[str]) -> str:
    return "".join(f'<p class="alarm" role="alert">{escape(line)}</p>' for line in lines)


def alarms(content: PageContent) -> list[str]:
    """Alarms of the report and warnings of the comparison."""
    compared = content.diff.warnings if content.diff else ()
    own = content.report.alarms if content.report else ()
    # What the comparison says of a side, in the report's words behind the side's name, is said already.
    lines = [*(a for a in own if not any(w.endswith(f": {a}") for w in compared)), *compared]
    return list(dict.fromkeys(lines))


def warnings(content: PageContent) -> str:
    """`alarms` as HTML."""
    return _alarms(alarms(content))


# ---- the rest ------------------------------------------------------------------------------------------------------


#: Two sums over the same samples that need not agree.
_SHARES = (
    "Shares here are by cause: what a cause's functions cost more, with all that they call. Shares by category "
    "divide the same change by the kind of function that ran."
)


def cards(rows: Sequence[Card]) -> str:
    """Findings, each with its lines of evidence."""
    shares = f'<p class="note">{_SHARES}</p>' if any(BY_CAUSE in line for c in rows for line in c.lines) else ""
    return shares + "".join(
        f'<article class="card"><h3>{escape(c.title)}</h3>'
        + "".join(f"<p>{escape(x)}</p>" for x in c.lines)
        + "</article>"
        for c in rows
    )


def _delta_rows(rows: Iterable[DeltaRow], unit: str) -> list[list[str]]:
    return [
        [
            r.name,
            cost_text(r.base, unit),
            cost_text(r.new, unit),
            delta_text(r.delta, unit),
            _interval(r.interval, unit),
            f"{r.q:.2g}" if math.isfinite(r.q) else "-",
            r.verdict or r.status or "",
        ]
        for r in rows
    ]


def categories(diff: DiffReport | None, report: CostReport | None) -> str:
    """The waterfall with its table, or the plain table of one side."""
    if diff is not None:
        measure = diff.measure
        heads = ["Category", diff.base_title, diff.new_title, f"delta ({measure.label})", "interval", "q", "verdict"]
        rows = _delta_rows(diff.categories, measure.unit)
        rows += _delta_rows([diff.total], measure.unit)
        if diff.not_attributed:
            rows.insert(-1, ["not attributed", "", "", delta_text(diff.not_attributed, measure.unit), "", "", ""])
        listed = table(heads, rows, caption="Change by datapath category", numeric=range(1, 6))
        return f"<figure>{waterfall(diff)}</figure><details><summary>The same as a table</summary>{listed}</details>"
    if report is None:
        return ""
    unit, per = report.measure.unit, per_noun(report.measure)
    rows = [[c.name, cost_text(c.cost, unit, per), percent(c.share), f"{c.samples:,}"] for c in report.categories]
    return table(
        ["Category", "cost", "share", "samples"], rows, caption="Cost by datapath category", numeric=(1, 2, 3)
    )


def _small(value: float) -> str:
    return f"{value:+.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:+.3f}"


def ledger(entries: Sequence[LedgerEntry], per: str, notes: Sequence[str] = ()) -> str:
    """Copies, checksums, segments, fragments and drops per unit, both sides where both were counted."""
    if not entries:
        return ""
    compared = any(math.isfinite(e.base) for e in entries)

    def figure(value: float) -> str:
        return "not probed" if math.isnan(value) else f"{value:.3g}"

    def size(value: float) -> str:
        return "" if math.isnan(value) else f"{value:,.0f}"

    rows = []
    for e in entries:
        both = not (math.isnan(e.base) or math.isnan(e.new))
        figures = [figure(e.new), size(e.new_bytes)]
        if compared:
            delta = _small(e.new - e.base) if both else ""
            figures = [figure(e.base), figure(e.new), delta, size(e.base_bytes), size(e.new_bytes)]
        rows.append([e.what, e.detail, e.where, *figures])
    each = f" per {per}" if per else ""
    figures = ["base", "new", "delta", "base bytes", "new bytes"] if compared else ["calls", "bytes"]
    heads = ["Event", "Detail", "Where", *figures]
    words = "".join(f"<p>{escape(note)}</p>" for note in notes)
    caption = f"Events on packets, calls and bytes{each}"
    return words + table(heads, rows, caption=caption, numeric=range(3, len(heads)), tall=len(rows) > _LONG)


def runs(content: PageContent) -> str:
    """Every run as a point, one chart a metric, and the values as a table."""
    parts = []
    for chart in content.charts:
        drawn = run_points(chart)
        if not drawn:
            continue
        rows = [
            [g.label, value_text(g.centre, chart.unit), ", ".join(bare(v, chart.unit) for v in g.values)]
            for g in chart.groups
        ]
        listed = table(["Scenario", "centre", "each run"], rows, caption=f"{chart.title}: every run")
        note = f'<figcaption class="note">{escape(chart.note)}</figcaption>' if chart.note else ""
        parts.append(
            f"<figure><h3>{escape(chart.title)}</h3>{drawn}{note}</figure>"
            f"<details><summary>The same as a table</summary>{listed}</details>"
        )
    return "".join(parts)


def topology_section(content: PageContent) -> str:
    """The picture, and what its figures mean."""
    if content.topology is None or not content.topology.boxes:
        return ""
    rows = [
        [box.title, box.role, name, detail, box.spent[n] if n < len(box.spent) else "", box.cost]
        for box in content.topology.boxes
        for n, (name, detail) in enumerate(box.lines or (("", ""),))
    ]
    heads = ["Namespace", "Role", "Device", "Traffic", "CPU for its packets", "CPU of the namespace"]
    listed = table(heads, rows, caption="Namespaces and devices")
    note = f'<p class="note">{escape(content.topology.note)}</p>' if content.topology.note else ""
    drawn = topology(content.topology)
    return f"{note}<figure>{drawn}</figure><details><summary>The same as a table</summary>{listed}</details>"


def facts(group: Facts) -> str:
    """A table of facts."""
    heads = ["", *group.columns] if any(group.columns) else ["fact", "value"]
    rows = [[name, *values] for name, values in group.rows]
    if not rows:
        return ""
    if group.compare and len(group.columns) > 1:
        heads = [*heads, "differs"]
        rows = [[*row, "differs" if len(set(row[1:])) > 1 else ""] for row in rows]
    note = f'<p class="note">{escape(group.note)}</p>' if group.note else ""
    listed = table(heads, rows, caption=group.title, kind=" facts") + note
    if not group.folded:
        return listed
    return f"<details><summary>{escape(group.title)} ({len(rows)})</summary>{listed}</details>"

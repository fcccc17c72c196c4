"""Tables of a bench: kernels as columns, the kernel test robot's form, values, scaling, conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nsprof.model.metrics import ConditionRow, MetricTable, Scaling
from nsprof.model.profile import Run
from nsprof.model.results import ScenarioRow, ScenarioTable
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.render.text import cost, interval_text, percent, scenario_parts, split_legend

__all__ = ["condition_parts", "document_parts", "metric_parts", "raw_run_parts", "scaling_parts", "value_parts"]


def document_parts(table: ScenarioTable) -> list[Part]:
    """The table of the 2007 measurements; with several kernels these are columns, as they were there."""
    kernels = list(dict.fromkeys(row.kernel for row in table.rows))
    if len(kernels) < 2:
        return scenario_parts(table)
    parts: list[Part] = [Heading(table.title, 1)]
    if table.alarms:
        parts.append(Lines(tuple(f"WARNING: {a}" for a in table.alarms), "bold red"))
    labels = list(dict.fromkeys(_label(row) for row in table.rows))
    cell = {(row.kernel, _label(row)): row for row in table.rows}
    units = {row.throughput_unit for row in table.rows if row.throughput_unit}
    unit = units.pop() if len(units) == 1 else ""
    per = next((row.unit_cost_label for row in table.rows if row.unit_cost_label), "unit cost")
    heads = (
        ("CPU usage (%) / overhead", _cpu),
        (f"Throughput{f' ({unit})' if unit else ''} / changed", _throughput),
        (f"{per} / changed", _unit_cost),
    )
    for head, text in heads:
        columns = (Column("Scenario", right=False, wrap=True), *(Column(f"{head}\n{k}") for k in kernels))
        rows = [(label, *(text(cell[k, label]) if (k, label) in cell else "-" for k in kernels)) for label in labels]
        parts += [Grid(columns, tuple(rows)), Lines(("",))]
    seen = [f"{row.scenario}: {row.observation}" for row in table.rows if row.observation]
    parts.append(Lines(("Observation",), "bold"))
    parts.append(Lines(tuple(seen), bullet=True))
    _, notes = split_legend(table)  # no ± in these tables
    if notes:
        parts.append(Lines(notes, "dim", bullet=True))
    return parts


def _label(row: ScenarioRow) -> str:
    return row.scenario.partition(":")[2] or row.scenario


def _changed(value: float) -> str:
    return "" if math.isnan(value) else f" / {percent(value / 100, sign=True)}"


def _cpu(row: ScenarioRow) -> str:
    return ("-" if math.isnan(row.cpu_pct) else f"{row.cpu_pct:.2f}") + _changed(row.cpu_change_pct)


def _throughput(row: ScenarioRow) -> str:
    number = "-" if math.isnan(row.throughput) else f"{row.throughput:,.2f}"
    return number + _changed(row.throughput_change_pct)


def _unit_cost(row: ScenarioRow) -> str:
    return cost(row.unit_cost) + _changed(row.unit_cost_change_pct)


def metric_parts(table: MetricTable) -> list[Part]:
    """`base ± stddev   change   new ± stddev   metric`, as the kernel test robot reports, with q values."""

    def side(mean: float, deviation: float) -> str:
        spread = "" if math.isnan(deviation) or mean == 0 else f" ± {abs(deviation / mean):.1%}"
        return f"{cost(mean)}{spread}"

    has_q = any(not math.isnan(row.q) for row in table.rows)
    columns = [
        Column(f"{table.base_title}\nmean ± stddev"),
        Column("%change"),
        Column(f"{table.new_title}\nmean ± stddev"),
        Column("q" if has_q else "95% of the difference", keep=3),
        Column("metric", right=False, wrap=True),
    ]
    rows = []
    for row in table.rows:
        sure = row.verdict in ("+", "-")
        rows.append(
            (
                side(row.base_mean, row.base_stddev),
                Cell(percent(row.change_pct / 100, sign=True), "bold" if sure else ""),
                side(row.new_mean, row.new_stddev),
                ("-" if math.isnan(row.q) else f"{row.q:.2g} {row.verdict}")
                if has_q
                else interval_text(row.interval, sign=True),
                f"{row.name} ({row.unit})" if row.unit else row.name,
            )
        )
    head = f"{table.new_title} against {table.base_title}: {table.runs_base} and {table.runs_new} run"
    head += "s" * (table.runs_base + table.runs_new > 2)
    return [Heading(head, 2), Grid(tuple(columns), tuple(rows))]


def value_parts(title: str, runs: Mapping[str, Sequence[Run]]) -> list[Part]:
    """What the workload itself told, mean ± standard deviation a scenario; one line a value."""
    keys: dict[tuple[str, str], None] = {}
    for some in runs.values():
        for run in some:
            for value in run.values:
                keys.setdefault((value.name, value.unit))
    rows = []
    for name, unit in keys:
        cells = []
        for some in runs.values():
            numbers = [v.value for run in some for v in run.values if (v.name, v.unit) == (name, unit)]
            cells.append(_mean_text(numbers))
        rows.append((f"{name} ({unit})" if unit else name, *cells))
    columns = (Column("Value", right=False, wrap=True), *(Column(s) for s in runs))
    return [Heading(title, 2), Grid(columns, tuple(rows))] if rows else []


def _mean_text(numbers: Sequence[float]) -> str:
    if not numbers:
        return "-"
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return cost(mean)
    deviation = math.sqrt(sum((n - mean) ** 2 for n in numbers) / (len(numbers) - 1))
    return f"{cost(mean)} ± {cost(deviation)}"


def scaling_parts(scaling: Scaling) -> list[Part]:
    """Cost against the number of containers, and the slope."""
    columns = (
        Column("Containers"),
        Column(scaling.unit),
        Column("95%", keep=2),
        Column("runs", keep=1),
    )
    rows = [
        (str(point.containers), cost(point.cost), interval_text(point.interval), str(point.runs))
        for point in scaling.points
    ]
    word = "the slope's interval holds 0: no growth is shown"
    if scaling.slope_interval and (scaling.slope_interval.low > 0 or scaling.slope_interval.high < 0):
        word = "the slope's interval does not hold 0"
    line = (
        f"slope: {cost(scaling.slope, sign=True)} {scaling.unit} for each further container, "
        f"95% {interval_text(scaling.slope_interval, sign=True) or '-'}; {word}"
    )
    return [Heading(scaling.title, 2), Grid(columns, tuple(rows)), Lines((line,))]


def condition_parts(rows: Sequence[ConditionRow]) -> list[Part]:
    """How quiet the machine was: spread, stolen time, other load, losses, clock, load."""

    def share(value: float) -> str:
        return "-" if math.isnan(value) else percent(value, digits=2 if 0 < value < 0.01 else 1)

    columns = (
        Column("Noise of the runs", right=False, wrap=True),
        Column("runs", keep=1),
        Column("run to run\nstddev"),
        Column("stolen", keep=2),
        Column("other load\non its CPUs", keep=3),
        Column("lost\n(worst)", keep=4),
        Column("clock MHz", keep=6),
        Column("load\n(highest)", keep=5),
    )
    body = []
    for row in rows:
        low, high = row.mhz
        clock = "not told" if not high else f"{low:,.0f}" if low == high else f"{low:,.0f}-{high:,.0f}"
        body.append(
            (
                row.scenario,
                str(row.runs),
                share(row.spread),
                share(row.steal_share),
                share(row.other_share),
                share(row.lost_share),
                clock,
                "-" if math.isnan(row.load) else f"{row.load:.1f}",
            )
        )
    notes = [f"{row.scenario}: {note}" for row in rows for note in row.notes]
    parts: list[Part] = [Grid(columns, tuple(body))] if body else []
    if notes:
        parts.append(Lines(tuple(notes), bullet=True))
    return parts


def raw_run_parts(runs: Sequence[Run]) -> list[Part]:
    """Every run as it was: nothing is dropped without a word."""
    columns = (
        Column("Run"),
        Column("scenario", right=False, wrap=True),
        Column("kernel", right=False, keep=4),
        Column("seconds", keep=2),
        Column("CPU s"),
        Column("first value", right=False),
        Column("", right=False, keep=1),
    )
    rows = []
    for number, run in enumerate(runs):
        busy = sum(v for c, v in run.cpu_busy_s.items() if not run.dut_cpus or c in run.dut_cpus)
        value = next((f"{v.value:,.2f} {v.unit}" for v in run.values), "-")
        word = f"failed: {run.failed}" if run.failed else run.label if run.warmup else ""
        rows.append((str(number), run.scenario, run.kernel, f"{run.duration_s:.1f}", f"{busy:.2f}", value, word))
    return [Heading("Raw runs", 2), Grid(columns, tuple(rows))]

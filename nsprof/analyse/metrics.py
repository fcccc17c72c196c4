"""Every figure of two scenarios side by side, how they scale with containers, and how quiet their runs were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import categories, noise, statistics, trust
from nsprof.analyse.scenarios import change_pct, cpu_pct
from nsprof.analyse.selection import View, choose_denominator, choose_runs, choose_scenario, view
from nsprof.analyse.stacks import function_table, row_categories, stack_table
from nsprof.errors import EvidenceError
from nsprof.model.metrics import ConditionRow, MetricRow, MetricTable, Scaling, ScalingPoint
from nsprof.model.profile import Profile, Run
from nsprof.model.results import Interval

__all__ = ["conditions", "metric_table", "scaling"]

_Rows = dict[tuple[str, str], NDArray[np.float64]]


def metric_table(
    profile: Profile, base: str, new: str, *, per: str | None = None, min_effect: float = 0.0
) -> MetricTable:
    """The figures that both scenarios have: what the workload told, CPU, unit costs in all and by category.

    Verdicts as in a diff: q values over all rows, from 8 runs a side.
    """
    names = [choose_scenario(profile, name) for name in (base, new)]
    numbers = [choose_runs(profile, name, None, hop=False) for name in names]
    runs = [[profile.runs[i] for i in chosen] for chosen in numbers]
    unit = choose_denominator(runs, per)
    sides = [_figures(profile, n, r, unit) for n, r in zip(names, runs, strict=True)]
    keys = [k for k in sides[0] if k in sides[1]]
    if not keys:
        raise EvidenceError(f"{names[0]} and {names[1]} have no figure in common")
    base_rows, new_rows = (np.stack([side[k] for k in keys]) for side in sides)
    evidence = statistics.compare(base_rows, new_rows)
    rows = []
    for i, (name, unit) in enumerate(keys):
        mean = float(base_rows[i].mean()), float(new_rows[i].mean())
        known = not np.isnan(evidence.low[i])
        rows.append(
            MetricRow(
                name,
                unit,
                mean[0],
                _deviation(base_rows[i]),
                mean[1],
                _deviation(new_rows[i]),
                change_pct(mean[1], mean[0]),
                Interval(float(evidence.low[i]), float(evidence.high[i])) if known else None,
                float(evidence.p[i]),
                float(evidence.q[i]),
                statistics.verdict(mean[1] - mean[0], float(evidence.q[i]), min_effect),
            )
        )
    return MetricTable(names[0], names[1], len(runs[0]), len(runs[1]), tuple(rows))


def _deviation(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def _figures(profile: Profile, name: str, runs: Sequence[Run], per: str) -> _Rows:
    found: _Rows = {}
    tables = [{(v.name, v.unit): v.value for v in run.values} for run in runs]
    for key in tables[0] if tables else ():
        if all(key in table for table in tables):
            found[key] = np.array([table[key] for table in tables], "f8")
    cpu = {
        ("cpu", "% of the device under test"): [cpu_pct(r, r.dut_cpus) for r in runs],
        ("cpu_remote", "% of the remote end"): [
            cpu_pct(r, r.remote_cpus) if r.remote_cpus else math.nan for r in runs
        ],
    }
    for key, values in cpu.items():
        if not any(map(math.isnan, values)):
            found[key] = np.array(values, "f8")
    if not len(profile.samples):
        return found
    try:
        chosen = view(profile, scenario=name, per=per or None)
    except EvidenceError:
        return found
    label = chosen.measure.label
    found["cost", label] = chosen.totals()
    functions, maps = function_table([profile.frames])
    category = row_categories(chosen, stack_table(profile, maps[0], len(functions)))
    by_category = chosen.by_run(category, len(categories.ALL))
    for number, what in enumerate(categories.ALL):
        if by_category[number].any():
            found[f"cost.{what}", label] = by_category[number]
    return found


def scaling(profile: Profile, containers: Mapping[str, int], *, title: str) -> Scaling:
    """Unit cost against the number of containers: scenario -> containers. `scipy.stats.linregress` over runs.

    Raises EvidenceError with fewer than two different numbers.
    """
    from scipy import stats

    names = sorted(containers, key=lambda name: containers[name])
    views: list[tuple[int, View]] = [(containers[n], view(profile, scenario=n)) for n in names]
    if len({x for x, _ in views}) < 2:
        raise EvidenceError(f"{title}: a slope needs two different numbers of containers")
    points = []
    for count, chosen in views:
        totals = chosen.totals()
        points.append(ScalingPoint(count, float(totals.mean()), statistics.mean_interval(totals), len(totals)))
    x = np.concatenate([np.full(len(v.runs), float(count)) for count, v in views])
    y = np.concatenate([v.totals() for _, v in views])
    line = stats.linregress(x, y)
    interval = None
    if len(x) > 2:
        half = float(line.stderr * stats.t.ppf((1 + statistics.LEVEL) / 2, len(x) - 2))
        interval = Interval(float(line.slope) - half, float(line.slope) + half)
    return Scaling(
        title,
        views[0][1].measure.label,
        tuple(points),
        float(line.slope),
        interval,
        float(line.intercept),
        float(line.pvalue),
    )


def conditions(profile: Profile, names: Sequence[str], seen: Sequence[Mapping[str, Any]]) -> list[ConditionRow]:
    """How quiet each scenario's runs were; `seen` are the bench's own readings (run number, load, MHz)."""
    by_run = {entry["run"]: entry for entry in seen}
    rows = []
    for name in names:
        try:
            chosen = view(profile, scenario=name)
        except EvidenceError:
            continue
        totals, runs = chosen.run_costs(), chosen.run_objects
        online = sum(r.duration_s * max(1, r.cpus) for r in runs)
        losses = (trust.lost_share(run, chosen.filter.side) for run in runs)
        lost = [share for share in losses if not math.isnan(share)]
        marks = [by_run[i][when] for i in chosen.runs if i in by_run for when in ("before", "after")]
        clocks = [m for mark in marks for m in mark.get("mhz", ())]
        rows.append(
            ConditionRow(
                name,
                len(runs),
                _deviation(totals) / float(totals.mean()) if totals.mean() > 0 else math.nan,
                sum(r.cpu_steal_s for r in runs) / online if online > 0 else math.nan,
                chosen.other_share,
                max(lost, default=math.nan),
                (min(clocks), max(clocks)) if clocks else (0.0, 0.0),
                max((mark.get("load", 0.0) for mark in marks), default=math.nan),
                tuple(noise.notes(chosen)[1:]),
            )
        )
    return rows

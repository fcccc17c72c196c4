"""How much the runs of a scenario differ among themselves: spread, drift, outliers. Shown, never dropped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.selection import View
from nsprof.units import format_figure

__all__ = ["notes", "outliers"]

#: A run further from the median than so many (scaled) median absolute deviations stands out.
_OUTLIER = 5.0
#: Below this many runs neither outliers nor drift can be told.
_ENOUGH = 5
_DRIFT_P = 0.01


def outliers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of the run values that stand out: over 5 scaled MADs from the median, and over 1 % of it."""
    if len(values) < _ENOUGH:
        return np.zeros(0, "i8")
    median = float(np.median(values))
    deviation = np.abs(values - median)
    limit = max(_OUTLIER * 1.4826 * float(np.median(deviation)), 0.01 * abs(median))
    return np.flatnonzero(deviation > limit)


def notes(chosen: View) -> list[str]:
    """What the reader should know of the runs' spread, in sentences; none for a single run."""
    totals = chosen.run_costs()
    number = len(totals)
    if number < 2 or not totals.mean() > 0:
        return []
    spread = totals.std(ddof=1) / totals.mean()
    extent = f"{format_figure(totals.min())} to {format_figure(totals.max())} {chosen.measure.label}"
    found = [f"run to run: {spread:.1%} standard deviation, {extent}"]
    odd = outliers(totals)
    if len(odd):
        listed = ", ".join(f"run {chosen.runs[i] + 1} ({format_figure(totals[i])})" for i in odd[:5])
        found.append(f"stands out, and is counted: {listed}")
    if number >= _ENOUGH and np.ptp(totals) > 0:
        from scipy import stats

        started = np.array([r.started for r in chosen.run_objects])
        order = np.argsort(started, kind="stable")
        result = stats.kendalltau(np.arange(number), totals[order])
        if result.pvalue < _DRIFT_P:
            way = "rising" if result.statistic > 0 else "falling"
            found.append(f"drift: the runs' costs are {way} with time (Kendall's tau, p = {result.pvalue:.2g})")
    return found

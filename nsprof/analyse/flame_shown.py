"""Whether the runs show that a path of a differential flame graph, with all it calls, costs more or less than before.

A function's own cost is a small number: a new tower of a dozen functions may have none that is significant by itself,
while together they are. So each path is tested by its inclusive cost, over the runs, as functions are by their own
(`comparing`): Welch's test, paths with half a sample a run or more, Benjamini-Hochberg's q values over all of them.
Paths that carry the same samples (a caller that does nothing but call) are one hypothesis, counted once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import statistics
from nsprof.analyse.selection import View

__all__ = ["shown_paths"]


def shown_paths(
    views: Sequence[View],
    at: Sequence[NDArray[np.int64]],
    parent: NDArray[np.int64],
    ticks: NDArray[np.float64],
) -> NDArray[np.bool_] | None:
    """Per node: whether its inclusive change is significant (q < 0.05); None with too few runs for verdicts.

    `at` is the node at which each row of a view ends, `parent` ascends (level by level, as the tree was merged),
    `ticks` are each node's own on both sides together.
    """
    runs = [len(v.runs) for v in views]
    if min(runs) < statistics.RUNS_FOR_VERDICT:
        return None
    # What is seen less than half a time a run is not tested; a caller is seen as often as what it calls, at least.
    tested = 2 * _summed(ticks[:, np.newaxis], parent)[:, 0] >= sum(runs)
    tested[0] = True
    nearest = np.where(tested, np.arange(len(parent)), parent)
    while not tested[nearest].all():
        nearest = nearest[nearest]
    number = np.cumsum(tested) - 1
    up = np.where(parent[tested] < 0, -1, number[parent[tested]])
    costs = [_summed(v.by_run(number[nearest[n]], len(up)), up) for v, n in zip(views, at, strict=True)]
    distinct, which = np.unique(np.hstack(costs).round(9), axis=0, return_inverse=True)
    evidence = statistics.compare(distinct[:, : runs[0]], distinct[:, runs[0] :])
    shown = np.zeros(len(parent), np.bool_)
    shown[tested] = (evidence.q < statistics.ALPHA)[which.ravel()]
    return shown


def _summed(own: NDArray[np.float64], parent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Rows of `own` with those of everything below added, for a `parent` that ascends."""
    total = own.copy()
    starts = [0, 1]
    while starts[-1] < len(parent):
        starts.append(int(np.searchsorted(parent, starts[-1])))
    for first, last in zip(starts[-2:0:-1], starts[:1:-1], strict=True):
        np.add.at(total, parent[first:last], total[first:last])
    return total

"""Where a series of measurements changes its level.

Binary segmentation with a permutation test at each step, as the change point detection of MongoDB's performance CI
has it (D. Daly et al., "The use of change point detection to identify software performance regressions in a
continuous integration system", ICPE 2020; after D. Matteson, N. James, J. Am. Stat. Assoc. 109, 2014): of all places
the one with the largest difference of means, scaled by sqrt(k (n - k) / n), is a change point when shuffled series
seldom reach it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["change_points"]

ALPHA = 0.05
_SHUFFLES = 999
#: A segment of one point is an outlier until a second one follows.
_LEAST = 2


def change_points(values: NDArray[np.float64], *, exact: bool = False) -> list[int]:
    """Positions at which a new level begins, ascending. `exact` values have no noise: every change is one."""
    if exact:
        return [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    random = np.random.default_rng(0)
    found: list[int] = []
    work = [(0, len(values))]
    while work:
        start, end = work.pop()
        place, score = _best(values[start:end][np.newaxis])
        if not score[0] > 0:
            continue
        shuffled = random.permuted(np.tile(values[start:end], (_SHUFFLES, 1)), axis=1)
        reached = int((_best(shuffled)[1] >= score[0] * (1 - 1e-12)).sum())
        if (reached + 1) / (_SHUFFLES + 1) < ALPHA:
            at = start + int(place[0])
            found.append(at)
            work += [(start, at), (at, end)]
    return sorted(found)


def _best(rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(best split, its score) of each row; score 0 where a row is too short to be split."""
    number = rows.shape[1]
    if number < 2 * _LEAST:
        return np.zeros(len(rows), "i8"), np.zeros(len(rows))
    splits = np.arange(_LEAST, number - _LEAST + 1)
    sums = np.cumsum(rows, axis=1)
    left = sums[:, splits - 1] / splits
    right = (sums[:, -1:] - sums[:, splits - 1]) / (number - splits)
    scores = np.abs(left - right) * np.sqrt(splits * (number - splits) / number)
    best = scores.argmax(axis=1)
    return splits[best], scores[np.arange(len(rows)), best]

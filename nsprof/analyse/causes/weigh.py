"""Whether a cause's cost differs between two sides, and by how much of the whole: the statistics of `explain`.

The unit of evidence is the run. Two tests look at a cause's cost, because they fail in different places:

- *shift*: Welch's test on the ratio of the cause's cost to the rest of the same run. What slows a whole run down
  (another load on the machine, a changed clock) divides out.
- *presence*: code that runs on one side only. With equal rates n samples would all fall on one side with probability
  2^-n, whatever the noise in their cost, so that a binomial test on the numbers of samples decides. It is used only
  where the base has less than a tenth of the samples: between two sides that both run the code, samples of one run
  are not independent and this test would find too much.

Without other evidence the p values are multiplied by the number of causes looked at (Bonferroni), so that of A/A
pairs at most 5 % show anything; a cause for which independent evidence speaks was not picked out of many.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nsprof.analyse.statistics import LEVEL
from nsprof.model.results import Interval

__all__ = ["ALPHA", "MIN_EFFECT", "Weight", "difference", "share", "weigh"]

ALPHA = 0.05
#: Smaller changes (of the base's total) are not named: totals of runs on quiet machines spread by 2 %, and a change
#: of code layout alone moves this much.
MIN_EFFECT = 0.02
#: Below so many samples of a cause even its presence is chance.
FEW = 3

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weight:
    """A cause's cost on both sides: means, p value of the better test, samples."""

    base: float
    new: float
    p: float
    samples_base: float
    samples_new: float
    only_new: bool

    @property
    def delta(self) -> float:
        return self.new - self.base


def weigh(
    base: _Array,
    new: _Array,
    totals: tuple[_Array, _Array],
    samples: tuple[float, float],
    exposure: tuple[float, float],
    *,
    exact: bool,
) -> Weight:
    """Weigh run values of a cause against those of everything. `exposure` is how many samples each side has in all;
    `exact` says that costs were counted, not sampled."""
    delta = float(new.mean() - base.mean())
    p = 1.0
    if exact:
        p = 0.0 if delta > 0 else 1.0
    elif delta > 0:
        p = min(_shift(base, new, totals), _presence(samples, exposure))
    return Weight(float(base.mean()), float(new.mean()), p, *samples, samples[0] == 0 and samples[1] >= FEW)


def _shift(base: _Array, new: _Array, totals: tuple[_Array, _Array]) -> float:
    """One-sided p of Welch's test on cost / rest."""
    if min(len(base), len(new)) < 2:
        return 1.0
    one, two = (part / np.maximum(whole - part, 1e-12) for part, whole in zip((base, new), totals, strict=True))
    if np.ptp(one) == 0 and np.ptp(two) == 0:
        # Costs that never vary over sampled runs are no samples (or none at all): no test.
        return 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        p = float(stats.ttest_ind(two, one, equal_var=False, alternative="greater").pvalue)
    return p if np.isfinite(p) else 1.0


def _presence(samples: tuple[float, float], exposure: tuple[float, float]) -> float:
    first, second = round(samples[0]), round(samples[1])
    if second < FEW or first > second / 10 or min(exposure) <= 0:
        return 1.0
    chance = exposure[1] / (exposure[0] + exposure[1])
    return float(stats.binomtest(second, first + second, chance, alternative="greater").pvalue)


def difference(base: _Array, new: _Array) -> Interval | None:
    """95 % interval of the difference of means (Welch); None from fewer than 2 runs a side."""
    if min(len(base), len(new)) < 2:
        return None
    delta = float(new.mean() - base.mean())
    if np.ptp(base) == 0 and np.ptp(new) == 0:
        return Interval(delta, delta, LEVEL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(new, base, equal_var=False).confidence_interval(LEVEL)
    return Interval(float(found.low), float(found.high), LEVEL)


def share(part: tuple[_Array, _Array], whole: tuple[_Array, _Array]) -> tuple[float, Interval | None]:
    """The part's delta in the whole's, and its 95 % interval by linearising the ratio over runs (delta method with
    Welch's degrees of freedom); (nan, None) where the whole does not differ from 0."""
    delta = float(whole[1].mean() - whole[0].mean())
    around = difference(*whole)
    if delta <= 0 or (around is not None and around.low <= 0):
        return float("nan"), None
    ratio = float(part[1].mean() - part[0].mean()) / delta
    spread = difference(part[0] - ratio * whole[0], part[1] - ratio * whole[1])
    if spread is None:
        return ratio, None
    return ratio, Interval(ratio + spread.low / delta, ratio + spread.high / delta, LEVEL)

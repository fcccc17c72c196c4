"""Whether a cause's cost differs between two sides, and by how much of the whole: the statistics of `explain`.

A cause's cost differs where the lower bound of a 95 % interval of its change lies above 0. Three intervals are tried,
because they fail in different places; each leaves 2.5 % below its lower bound, and none is narrower than the error of
sampling (of numbers of samples) allows:

- *change*: Welch's interval of the cost itself over the runs.
- *shift*: Welch's interval of the ratio of the cost to the rest of the same run. What slows a whole run down (another
  load on the machine, a changed clock) divides out.
- *presence*: code that runs on one side only. Numbers of samples are Poisson's; the interval of the difference of two
  of them is put together from their exact ones (Zou and Donner 2008, "MOVER"), widened by how much more the runs of
  the new side differ among each other than Poisson allows (quasi-Poisson): bursts of somebody else's work, all in one
  run, show nothing. Of equal runs it takes six samples against none. It is used only where the base has less than a
  tenth of the samples, because between two sides that both run the code it would find too much.

Where nothing but functions speaks for a cause it was picked out of all that have samples: the level is divided by
their number (Bonferroni), and since what else goes on on a machine may begin and end between any two runs, presence
counts only where the runs of both sides could not have been divided like this by chance: 1 in C(n + m, m), below
2.5 % from 4 runs a side. A cause for which independent evidence speaks was not picked out of many.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nsprof.analyse.statistics import LEVEL
from nsprof.model.results import Interval

__all__ = ["ALPHA", "FEW", "MIN_EFFECT", "Counted", "Weight", "difference", "share", "weigh"]

#: What a 95 % interval leaves below its lower bound.
ALPHA = 0.025
#: Smaller changes (of the base's total) are not named: totals of runs on quiet machines spread by 2 %, and a change
#: of code layout alone moves this much.
MIN_EFFECT = 0.02
#: Below so many samples against none the lower bound of a difference of Poisson numbers is not above 0.
FEW = 6

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Samples of a cause by run on both sides, and how many each run has in all."""

    base: _Array
    new: _Array
    of_base: _Array
    of_new: _Array

    @property
    def both(self) -> tuple[float, float]:
        return float(self.base.sum()), float(self.new.sum())


@dataclass(frozen=True, slots=True)
class Weight:
    """A cause's cost on both sides: means, samples, the interval of the change that shows most. `alone` says that
    it is shown without any other evidence, too."""

    base: float
    new: float
    samples_base: float
    samples_new: float
    interval: Interval | None
    shown: bool
    alone: bool

    @property
    def delta(self) -> float:
        return self.new - self.base

    @property
    def only_new(self) -> bool:
        return self.samples_base == 0 and self.samples_new > 0


def weigh(
    base: _Array, new: _Array, totals: tuple[_Array, _Array], counted: Counted, *, exact: bool, tested: int = 1
) -> Weight:
    """Weigh run values of a cause against those of everything. `exact` says that costs were counted, not sampled;
    `tested` how many causes there are to choose from."""
    delta = float(new.mean() - base.mean())
    first, second = counted.both
    if exact or delta <= 0:
        around = difference(base, new)
        return Weight(float(base.mean()), float(new.mean()), first, second, around, exact and delta > 0, exact)
    usual = _intervals(base, new, totals, counted, LEVEL)
    shown = [i for i in usual if i.low > 0]
    strict = _intervals(base, new, totals, counted, 1 - (1 - LEVEL) / max(1, tested), alone=True)
    best = max(shown, key=lambda i: i.low, default=usual[0] if usual else None)
    return Weight(
        float(base.mean()), float(new.mean()), first, second, best, bool(shown), any(i.low > 0 for i in strict)
    )


def _intervals(
    base: _Array, new: _Array, totals: tuple[_Array, _Array], counted: Counted, level: float, *, alone: bool = False
) -> list[Interval]:
    """The intervals of a change that can be given, Welch's first."""
    runs = min(len(base), len(new))
    over_runs = [] if runs < 2 else [difference(base, new, level), _shift(base, new, totals, level)]
    least = _sampling(base, new, totals, counted, level, 1.0)
    found = [Interval(min(i.low, least.low), max(i.high, least.high), level) for i in over_runs if i is not None]
    # One run a side cannot be divided otherwise: then the numbers of samples are all there is.
    if not alone or runs == 1 or 1 / math.comb(len(base) + len(new), len(base)) < ALPHA:
        found += _presence(base, new, totals, counted, level)
    return found


def _shift(base: _Array, new: _Array, totals: tuple[_Array, _Array], level: float) -> Interval | None:
    """Change of cost / rest, times the rest of the new side; it includes the change of the cost itself."""
    one, two = (part / np.maximum(whole - part, 1e-12) for part, whole in zip((base, new), totals, strict=True))
    if np.ptp(one) == 0 and np.ptp(two) == 0:
        return None  # Costs that never vary over sampled runs are no samples (or none at all).
    around = difference(one, two, level)
    if around is None or not math.isfinite(around.low):
        return None
    rest, delta = float((totals[1] - new).mean()), float(new.mean() - base.mean())
    return Interval(min(around.low * rest, delta), max(around.high * rest, delta), level)


def _presence(
    base: _Array, new: _Array, totals: tuple[_Array, _Array], counted: Counted, level: float
) -> list[Interval]:
    """Interval from the numbers of samples, where the base has less than a tenth of them."""
    first, second = counted.both
    if second <= 0 or first > second / 10:
        return []
    return [_sampling(base, new, totals, counted, level, _dispersion(counted.new, counted.of_new))]


def _sampling(
    base: _Array, new: _Array, totals: tuple[_Array, _Array], counted: Counted, level: float, dispersion: float
) -> Interval:
    """What is left of a change after the error of sampling: no interval over a few runs that happen to agree is
    narrower than that."""
    first, second = counted.both
    # What one sample weighs in the mean of its side.
    one, each = (
        float(part.mean()) / n if n > 0 else float(whole.mean() / max(1.0, of.sum()))
        for part, n, whole, of in zip(
            (base, new), (first, second), totals, (counted.of_base, counted.of_new), strict=True
        )
    )
    (below, above), (low, high) = (_poisson(n, level) for n in (first, second))
    wide, delta = math.sqrt(dispersion), float(new.mean() - base.mean())
    return Interval(
        delta - math.hypot(each * low * wide, one * above), delta + math.hypot(each * high * wide, one * below), level
    )


def _poisson(number: float, level: float) -> tuple[float, float]:
    """How far the exact interval of a Poisson number reaches below and above it (Garwood 1936)."""
    tail = (1 - level) / 2
    low = float(stats.gamma.ppf(tail, number)) if number > 0 else 0.0
    return number - low, float(stats.gamma.ppf(1 - tail, number + 1)) - number


def _dispersion(counts: _Array, of: _Array) -> float:
    """Variance of the runs' numbers of samples over what Poisson has (Pearson's chi square over its degrees of
    freedom), at least 1."""
    if len(counts) < 2 or counts.sum() <= 0:
        return 1.0
    expected = counts.sum() * of / of.sum()
    there = expected > 0
    return max(1.0, float(((counts - expected)[there] ** 2 / expected[there]).sum()) / (len(counts) - 1))


def difference(base: _Array, new: _Array, level: float = LEVEL) -> Interval | None:
    """Interval of the difference of means (Welch); None from fewer than 2 runs a side."""
    if min(len(base), len(new)) < 2:
        return None
    delta = float(new.mean() - base.mean())
    if np.ptp(base) == 0 and np.ptp(new) == 0:
        return Interval(delta, delta, level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(new, base, equal_var=False).confidence_interval(level)
    return Interval(float(found.low), float(found.high), level)


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

"""Do the statistics keep their promises? Counted on pairs whose truth is known.

A/A pairs have no difference, so whatever is flagged is wrong; injected pairs have a known one, so its interval can be
checked. Runs are drawn whole (all functions of a run together) from recorded runs, so that noise that functions share
stays shared. Rates come with exact (Clopper-Pearson) intervals, `scipy.stats.binomtest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import statistics
from nsprof.analyse.comparing import two_sides
from nsprof.analyse.selection import view
from nsprof.analyse.stacks import function_table, leaf_functions, stack_table
from nsprof.model.profile import Profile

__all__ = [
    "Estimator",
    "Found",
    "Noise",
    "Rate",
    "aa_pairs",
    "estimators",
    "found",
    "injected_pairs",
    "noise_of",
    "quiet",
    "rate",
]

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `tries`, with the exact 95 % interval of the rate. `wanted` in words, `kept` whether it is met."""

    what: str
    hits: int
    tries: int
    low: float
    high: float
    wanted: str
    kept: bool

    @property
    def share(self) -> float:
        """hits / tries."""
        return self.hits / self.tries if self.tries else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Recorded runs of one scenario: unit costs and sample counts by function and run, shape (functions, runs).

    `period` is what one sample weighs and `units` how many units (transactions) each run had.
    """

    names: tuple[str, ...]
    costs: _Array
    samples: _Array
    period: float
    units: _Array
    label: str

    @property
    def runs(self) -> int:
        """How many runs there are to draw from."""
        return int(self.costs.shape[1])


def noise_of(profile: Profile, scenarios: Sequence[str]) -> Noise:
    """The runs of scenarios that are one and the same thing (a bench of a scenario against itself)."""
    functions, maps = function_table([profile.frames])
    table = stack_table(profile, maps[0], len(functions))
    costs, counts, units = [], [], []
    label, period = "", 1.0
    for name in scenarios:
        chosen = view(profile, scenario=name)
        keys = leaf_functions(chosen, table, functions)
        costs.append(chosen.by_run(keys, len(functions), chosen.cost / chosen.sizes[chosen.run]))
        counts.append(chosen.by_run(keys, len(functions), chosen.count))
        units += [r.denominators.get(chosen.measure.per, 1.0) for r in chosen.run_objects]
        label = chosen.measure.label
        period = float(chosen.weight.sum() / max(1.0, float(chosen.count.sum())))
    cost, count = np.concatenate(costs, axis=1), np.concatenate(counts, axis=1)
    there = count.sum(axis=1) > 0
    names = tuple(n for n, keep in zip(functions.name, there, strict=True) if keep)
    return Noise(names, cost[there], count[there], period, np.array(units), label)


def quiet(noise: Noise, *, spread: float, runs: int, seed: int = 3) -> Noise:
    """The same functions on a quiet machine: each run has the median number of units, costs differ between runs by a
    common factor (log-normal, `spread`), and each function's ticks are drawn as chance has it (Poisson)."""
    random = np.random.default_rng(seed)
    units = float(np.median(noise.units))
    cost = noise.samples.sum(axis=1) * noise.period / noise.units.sum()
    factor = random.lognormal(-(spread**2) / 2, spread, runs)
    ticks = random.poisson(np.outer(cost, factor) * units / noise.period).astype("f8")
    return Noise(noise.names, ticks * noise.period / units, ticks, noise.period, np.full(runs, units), noise.label)


def rate(what: str, hits: int, tries: int, *, at_most: float = 1.0, at_least: float = 0.0) -> Rate:
    """A rate and whether the promise is within its exact interval (so neither luck nor a small number breaks it)."""
    from scipy import stats

    found = stats.binomtest(hits, tries).proportion_ci(0.95, method="exact")
    kept = bool(found.low <= at_most and found.high >= at_least)
    wanted = f"at least {at_least:.0%}" if at_least else f"at most {at_most:.0%}"
    return Rate(what, hits, tries, float(found.low), float(found.high), wanted, kept)


def aa_pairs(noise: Noise, *, pairs: int, runs: int, what: str, seed: int = 1) -> list[Rate]:
    """Pairs drawn from the same runs: how often is a function flagged, how often the total?"""
    random = np.random.default_rng(seed)
    silent = total = 0
    for _ in range(pairs):
        base, new, counts = _draw(noise, random, runs)
        flagged, total_flagged = _flags(base, new, counts)
        silent += not flagged
        total += total_flagged
    size = f"{what}, {runs} runs a side"
    return [
        rate(f"A/A pairs that flag no function ({size})", silent, pairs, at_least=0.95),
        rate(f"A/A pairs that flag the total ({size})", total, pairs, at_most=0.05),
    ]


def injected_pairs(noise: Noise, *, true_cost: float, pairs: int, runs: int, what: str, seed: int = 2) -> list[Rate]:
    """Pairs whose new side has a function more that costs `true_cost` a unit, seen by the same clock: each run counts
    as many of its ticks as chance has it (Poisson). How often is the truth in the function's interval, how often in
    the total's?
    """
    random = np.random.default_rng(seed)
    own = whole = seen = 0
    for _ in range(pairs):
        base, new, counts, chosen = _draw_with_runs(noise, random, runs)
        units = noise.units[chosen]
        ticks = random.poisson(true_cost * units / noise.period)
        extra = ticks * noise.period / units
        one = np.vstack([base, np.zeros(runs)])
        two = np.vstack([new, extra])
        counted = np.append(counts, ticks.sum())
        evidence = statistics.compare(one, two, testable=counted >= runs)
        own += bool(evidence.low[-1] <= true_cost <= evidence.high[-1])
        seen += statistics.verdict(true_cost, float(evidence.q[-1]), 0.0) == "+"
        totals = statistics.compare(one.sum(axis=0)[np.newaxis], two.sum(axis=0)[np.newaxis])
        whole += bool(totals.low[0] <= true_cost <= totals.high[0])
    ticks_a_run = true_cost * float(noise.units.mean()) / noise.period
    text = f"{what}, {true_cost:,.0f} {noise.label} or {ticks_a_run:.0f} samples a run injected, {runs} runs a side"
    return [
        rate(f"the function's interval holds the truth ({text})", own, pairs, at_least=0.90),
        rate(f"the total's interval holds the truth ({text})", whole, pairs, at_least=0.90),
        Rate(f"the function is flagged ({text})", seen, pairs, *_exact(seen, pairs), "-", True),
    ]


@dataclass(frozen=True, slots=True)
class Estimator:
    """How an estimator of unit costs fares: A/A pairs that flag nothing, intervals that hold an injected truth, and
    the mean half-width of a pair's interval of the total, as a share of the total."""

    name: str
    silent: Rate
    holding: Rate
    total_holding: Rate
    half: float


def estimators(noise: Noise, *, true_cost: float, pairs: int, runs: int, seed: int = 4) -> list[Estimator]:
    """The mean of the runs' unit costs against the ratio of their sums, on the very same drawn pairs.

    A ratio of sums weighs a run by its units. Its runs count as pseudo-values R + (w - R u) / mean(u), whose mean is
    R and whose variance is that of the linearised ratio (W. G. Cochran, Sampling Techniques, 3rd ed. 1977, 6.3).
    """
    found = []
    for name, values in (("mean of run costs", _as_they_are), ("ratio of sums", _pseudo_values)):
        random = np.random.default_rng(seed)
        silent = own = whole = 0
        halves = []
        for _ in range(pairs):
            base, new, counts, (one, two) = _draw_both(noise, random, runs)
            first, second = noise.units[one], noise.units[two]
            ticks = random.poisson(true_cost * second / noise.period)
            sides = [
                values(np.vstack([base, np.zeros(runs)]), first),
                values(np.vstack([new, ticks * noise.period / second]), second),
            ]
            silent += not _flags(sides[0][:-1], sides[1][:-1], counts)[0]
            row = statistics.compare(sides[0][-1:], sides[1][-1:])
            own += bool(row.low[0] <= true_cost <= row.high[0])
            totals = statistics.compare(*(side.sum(axis=0)[np.newaxis] for side in sides))
            whole += bool(totals.low[0] <= true_cost <= totals.high[0])
            halves.append(float(totals.high[0] - totals.low[0]) / 2 / float(sides[0].sum(axis=0).mean()))
        found.append(
            Estimator(
                name,
                rate(f"{name}: A/A pairs that flag no function", silent, pairs, at_least=0.95),
                rate(f"{name}: the function's interval holds the truth", own, pairs, at_least=0.90),
                rate(f"{name}: the total's interval holds the truth", whole, pairs, at_least=0.90),
                float(np.mean(halves)),
            )
        )
    return found


def _as_they_are(costs: _Array, units: _Array) -> _Array:
    del units
    return costs


def _pseudo_values(costs: _Array, units: _Array) -> _Array:
    """Rows of run costs as pseudo-values of the ratio of sums."""
    weights = costs * units
    ratio = weights.sum(axis=1, keepdims=True) / units.sum()
    made: _Array = ratio + (weights - ratio * units) / units.mean()
    return made


def _exact(hits: int, tries: int) -> tuple[float, float]:
    from scipy import stats

    found = stats.binomtest(hits, tries).proportion_ci(0.95, method="exact")
    return float(found.low), float(found.high)


def _draw(noise: Noise, random: np.random.Generator, runs: int) -> tuple[_Array, _Array, _Array]:
    return _draw_with_runs(noise, random, runs)[:3]


def _draw_with_runs(
    noise: Noise, random: np.random.Generator, runs: int
) -> tuple[_Array, _Array, _Array, NDArray[np.int64]]:
    base, new, counts, (_, two) = _draw_both(noise, random, runs)
    return base, new, counts, two


def _draw_both(
    noise: Noise, random: np.random.Generator, runs: int
) -> tuple[_Array, _Array, _Array, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(costs, costs, samples by function, runs) of two sides drawn from the same runs."""
    one, two = (random.integers(0, noise.runs, runs) for _ in range(2))
    counts = noise.samples[:, one].sum(axis=1) + noise.samples[:, two].sum(axis=1)
    return noise.costs[:, one], noise.costs[:, two], counts, (one, two)


def _flags(base: _Array, new: _Array, counts: _Array) -> tuple[bool, bool]:
    """(whether any function gets a verdict, whether the total does), by the rules of a diff."""
    evidence = statistics.compare(base, new, testable=2 * counts >= base.shape[1] + new.shape[1])
    functions = bool((evidence.q < statistics.ALPHA).any())
    totals = statistics.compare(base.sum(axis=0)[np.newaxis], new.sum(axis=0)[np.newaxis])
    return functions, bool(totals.p[0] < statistics.ALPHA)


@dataclass(frozen=True, slots=True)
class Found:
    """What a comparison of two recorded scenarios says: whether any function is flagged, and one difference (a
    function's, or the total's) with its interval and whether it is flagged. `half` is half of the interval as a share
    of the base's total."""

    flagged: bool
    total_flagged: bool
    delta: float
    low: float
    high: float
    seen: bool
    half: float

    def holds(self, truth: float) -> bool:
        """Whether the interval holds a value."""
        return self.low <= truth <= self.high


def found(profile: Profile, base: str, new: str, *, function: str = "") -> Found:
    """Compare two scenarios by the rules of a diff; `function` is a part of one's name, "" the total."""
    sides = two_sides(profile, profile, base_scenario=base, new_scenario=new)
    keys = [leaf_functions(v, t, sides.functions) for v, t in zip(sides.views, sides.tables, strict=True)]
    costs = [v.by_run(k, len(sides.functions)) for v, k in zip(sides.views, keys, strict=True)]
    counts = sum(
        v.by_run(k, len(sides.functions), v.count).sum(axis=1) for v, k in zip(sides.views, keys, strict=True)
    )
    testable = 2 * np.asarray(counts, "f8") >= costs[0].shape[1] + costs[1].shape[1]
    evidence = statistics.compare(costs[0], costs[1], testable=testable)
    sums = [v.totals()[np.newaxis] for v in sides.views]
    totals = statistics.compare(sums[0], sums[1])
    at, of, means = 0, totals, sums
    if function:
        at = next((i for i, name in enumerate(sides.functions.name) if function in name), -1)
        of, means = evidence, costs
    half = float(totals.high[0] - totals.low[0]) / 2 / float(sums[0].mean())
    if at < 0:
        return Found(bool((evidence.q < statistics.ALPHA).any()), False, 0.0, 0.0, 0.0, False, half)
    return Found(
        flagged=bool((evidence.q < statistics.ALPHA).any()),
        total_flagged=bool(totals.p[0] < statistics.ALPHA),
        delta=float(means[1][at].mean() - means[0][at].mean()),
        low=float(of.low[at]),
        high=float(of.high[at]),
        seen=bool(of.q[at] < statistics.ALPHA),
        half=half,
    )

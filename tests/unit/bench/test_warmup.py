"""The warm-up rule: finds a slow start, leaves noise alone, and takes out what it cuts everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from nsprof.bench import warmup
from nsprof.bench.warmup import Cut, RateWatch, cut_of, mser5, take_out, trim
from nsprof.collect.system.cputime import CpuTimes
from nsprof.model.profile import Run
from tests.profiles import bench_profile


def _watch(rates: np.ndarray) -> RateWatch:
    watch = RateWatch("", "w0")
    total = 0.0
    for number in range(len(rates) + 1):
        watch.rows.append((number * warmup.OBSERVATION_S, round(total), round(total * 100)))
        if number % warmup.BATCH == 0 and number // warmup.BATCH <= warmup.LONGEST_S:
            second = number // warmup.BATCH
            # Busy 0.7 s of each second: idle grows by 0.3 s.
            watch.cpu[second] = CpuTimes("test", 1, {0: (second * 10**9, second * 3 * 10**8)})
        if number < len(rates):
            total += rates[number] * warmup.OBSERVATION_S
    return watch


@pytest.mark.parametrize("seconds", [1, 2, 4])
def test_a_slow_start_is_cut_where_it_ends(seconds: int) -> None:
    noise = np.random.default_rng(seconds)
    rates = noise.normal(10_000, 100, 20 * 5)
    rates[: seconds * 5] *= 0.3
    cut = cut_of(_watch(rates))
    assert cut.seconds == seconds
    assert cut.steady
    assert cut.skbs == pytest.approx(0.3 * seconds / (0.3 * seconds + 20 - seconds), rel=0.02)
    assert cut.busy_s == pytest.approx({0: 0.7 * seconds})


def test_noise_alone_is_seldom_cut() -> None:
    cuts = [cut_of(_watch(np.random.default_rng(seed).normal(10_000, 300, 20 * 5))).seconds for seed in range(200)]
    assert np.mean([c > 0 for c in cuts]) < 0.03


def test_a_rate_that_never_settles_is_said_and_not_cut() -> None:
    rates = np.concatenate([np.full(45, 1000.0), np.full(30, 9000.0)]) + np.random.default_rng(0).normal(0, 5, 75)
    cut = cut_of(_watch(rates))
    assert not cut.steady
    run, warm = trim(Run("host", duration_s=15), cut, 0)
    assert warm is None
    assert "no steady rate" in run.warnings[0]


def test_short_runs_are_left_whole() -> None:
    rates = np.concatenate([np.full(5, 1.0), np.full(15, 1000.0)])
    assert cut_of(_watch(rates)) == Cut()


def test_mser5_takes_the_cut_with_the_smallest_standard_error() -> None:
    rates = np.repeat([0.0, 0.0, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10], 5)
    assert mser5(rates) == 2
    assert mser5(np.full(60, 7.0)) == 0


def test_what_is_cut_leaves_denominators_cpu_time_and_samples_together() -> None:
    profile = bench_profile(runs=1, scenarios={"host": {"a < b": 100.0}}, seed=None)
    run = profile.runs[0]
    cut = Cut(2, 0.1, 0.2, {0: 0.0005})
    kept, warm = trim(run, cut, 0)
    assert warm is not None
    for name, value in run.denominators.items():
        assert kept.denominators[name] + warm.denominators[name] == pytest.approx(value)
    assert warm.denominators["transaction"] == pytest.approx(0.1 * run.denominators["transaction"])
    assert warm.denominators["second"] == 2
    assert kept.duration_s + warm.duration_s == run.duration_s
    assert kept.cpu_busy_s[0] + warm.cpu_busy_s[0] == pytest.approx(run.cpu_busy_s[0])
    split = take_out(profile.with_(runs=(kept,)), {0: (2, warm)})
    early = profile.samples.slice < 2
    assert split.samples.weight[split.samples.run == 1].sum() == profile.samples.weight[early].sum()
    assert split.samples.weight.sum() == profile.samples.weight.sum()
    assert split.runs_of("host") == (0,)

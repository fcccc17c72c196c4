"""`make calibrate`: the statistics against pairs whose truth is known, on this machine.

Native A/A pairs (a scenario against itself), synthetic pairs drawn from the noise of those very runs, and known
overheads injected into them. What is printed was measured in this call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsprof.bench.plan import BenchOptions, Case, Plan, plan_of
from nsprof.model.profile import Profile

__all__ = ["Calibration", "calibrate", "plan_aa"]


#: Spread between runs of the modelled noise: that of a machine with nothing else to do.
QUIET_SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Calibration:
    """Lines to print, and whether every promise was kept."""

    lines: tuple[str, ...]
    kept: bool


def plan_aa(command: Sequence[str], *, scenario: str, pairs: int, runs: int, seed: int | None = None) -> Plan:
    """`pairs` times the same scenario twice (A1, B1, A2, B2, ...), `runs` runs each, all in one fair order."""
    one = plan_of(BenchOptions(command=tuple(command), scenarios=(scenario,), runs=runs, seed=seed))
    spec = one.cases[0].spec
    cases = tuple(
        Case("", f"{side}{pair}", spec, tuple(command)) for pair in range(1, pairs + 1) for side in ("A", "B")
    )
    return Plan(cases=cases, runs=runs, baseline="A1", seed=seed, title=f"A/A of {scenario}")


def calibrate(
    profile: Profile, *, pairs: int, synthetic: int, runs: int, injected: Sequence[float] = (4.0, 16.0)
) -> Calibration:
    """Judge a profile of `plan_aa`. `synthetic` pairs are drawn for each question; `injected` overheads are so large
    that they are expected in so many samples a run."""
    from nsprof.analyse import calibration
    from nsprof.analyse.selection import view

    lines: list[str] = []
    rates = []
    flagged = total = 0
    halves = []
    for pair in range(1, pairs + 1):
        functions, whole, half = calibration.native_pair(profile, f"A{pair}", f"B{pair}")
        flagged += functions
        total += whole
        halves.append(half)
    rates.append(
        calibration.rate(
            f"native A/A pairs that flag no function ({runs} runs a side)", pairs - flagged, pairs, at_least=0.95
        )
    )
    rates.append(
        calibration.rate(f"native A/A pairs that flag the total ({runs} runs a side)", total, pairs, at_most=0.05)
    )
    names = [f"{side}{pair}" for pair in range(1, pairs + 1) for side in ("A", "B")]
    noise = calibration.noise_of(profile, names)
    totals = noise.costs.sum(axis=0)
    spread = float(totals.std(ddof=1) / totals.mean())
    seconds = [r.duration_s for n in names for r in view(profile, scenario=n).run_objects]
    lines.append(
        f"{noise.runs} runs of {sum(seconds) / len(seconds):.1f} s recorded, {len(noise.names)} functions, "
        f"{totals.mean():,.0f} {noise.label}, run-to-run standard deviation {spread:.1%}"
    )
    # What is expected to be sampled a few times a run can be judged; rarer things have no interval in a diff either.
    per_sample = noise.period / float(noise.units.mean())
    still = calibration.quiet(noise, spread=QUIET_SPREAD, runs=1000)
    for what, source in (("noise recorded here", noise), (f"modelled noise of {QUIET_SPREAD:.0%}", still)):
        rates += calibration.aa_pairs(source, pairs=synthetic, runs=runs, what=what)
        for samples in injected:
            cost = samples * (per_sample if source is noise else source.period / float(source.units.mean()))
            rates += calibration.injected_pairs(source, true_cost=cost, pairs=synthetic, runs=runs, what=what)
    for r in rates:
        word = "" if r.wanted == "-" else f"; wanted {r.wanted}: {'kept' if r.kept else 'NOT KEPT'}"
        lines.append(f"{r.what}: {r.hits}/{r.tries} = {r.share:.1%} [{r.low:.1%}, {r.high:.1%}]{word}")
    lines += _needed(spread, runs, halves)
    return Calibration(tuple(lines), all(r.kept for r in rates))


def _needed(spread: float, runs: int, halves: Sequence[float]) -> list[str]:
    """What it would take to tell 1 % here: the half-width goes with 1 / sqrt(runs)."""
    widest = max(halves)
    first = f"half-width of a pair's total here: {min(halves):.1%} to {widest:.1%} with {runs} runs a side"
    more = max(1.0, (widest / 0.01) ** 2)
    if more > 1000:
        return [first, f"a machine whose runs spread by {spread:.0%} cannot tell 1 % apart in any bearable time"]
    return [first, f"to tell 1 % apart with this spread ({spread:.1%}): about {more * runs:,.0f} runs a side"]


def run_and_calibrate(
    command: Sequence[str],
    *,
    scenario: str,
    pairs: int,
    runs: int,
    synthetic: int,
    say: Callable[[int, int, str], None],
) -> tuple[Profile, Calibration]:
    """Record the A/A pairs on this machine and judge them. Raises NsprofError."""
    from nsprof.bench.run import run_plan

    profile = run_plan(plan_aa(command, scenario=scenario, pairs=pairs, runs=runs), advance=say).profile
    return profile, calibrate(profile, pairs=pairs, synthetic=synthetic, runs=runs)

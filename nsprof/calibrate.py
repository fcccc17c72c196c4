"""`make calibrate`: the statistics against pairs whose truth is known, on this machine.

Native pairs: a scenario against itself, with a known cost added (a tc program, rules), and against one with a
hop more. Synthetic pairs, drawn from the noise of those very runs, with and without injected overheads. What is
printed was measured in this call or stands in the profile that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsprof.analyse import calibration
from nsprof.analyse.calibration import Found, Rate
from nsprof.bench.plan import BenchOptions, Case, Plan, plan_of
from nsprof.errors import EvidenceError
from nsprof.model.profile import Profile

__all__ = ["SIDES", "Calibration", "calibrate", "plan_pairs", "record_pairs"]

#: What each repeat of the native part runs. A and B are the same; the others are compared with A.
SIDES = ("A", "B", "burn", "rules", "hop")
#: The scenario, and the same with a hop more (a bridge between the pair and the route).
SCENARIO, LONGER = "veth-route", "veth-bridge-route"
#: Short runs: what makes a figure believable is their number.
COMMAND = ("netperf", "-t", "UDP_RR", "-l", "-20000")
FREQUENCY_HZ = 1999
RULES = 300
BURN_STEPS = 4_000
#: Spread between runs of the modelled noise: that of a machine with nothing else to do.
QUIET_SPREAD = 0.02
#: Samples a run that injected overheads are expected in.
INJECTED = (4.0, 16.0)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Lines to print, and whether every promise was kept."""

    lines: tuple[str, ...]
    kept: bool


def plan_pairs(
    command: Sequence[str] = COMMAND, *, pairs: int, runs: int, sides: Sequence[str] = SIDES, seed: int | None = None
) -> Plan:
    """Every side `pairs` times (A1, B1, burn1, ..., A2, ...), `runs` runs each, all in one fair order."""
    specs = {
        shape: plan_of(BenchOptions(command=tuple(command), scenarios=(shape,))).cases[0].spec
        for shape in (SCENARIO, LONGER)
    }
    cases = tuple(
        Case("", f"{side}{pair}", specs[LONGER if side == "hop" else SCENARIO], tuple(command))
        for pair in range(1, pairs + 1)
        for side in sides
    )
    return Plan(
        cases=cases, runs=runs, baseline="A1", seed=seed, frequency_hz=FREQUENCY_HZ, title=f"calibration, {SCENARIO}"
    )


def record_pairs(
    plan: Plan,
    *,
    earlier: Profile | None = None,
    advance: Callable[[int, int, str], None],
    checkpoint: Callable[[Profile], None] | None = None,
) -> Profile:
    """Record the native part, going on with `earlier`. What the tc program burned, timed before each of its runs,
    stands in `meta["calibration"]`. Raises NsprofError."""
    from nsprof.bench.known import Burn, rules
    from nsprof.bench.run import run_plan

    burned: dict[str, list[float]] = dict(earlier.meta.get("calibration", {}).get("burned_ns", {})) if earlier else {}
    wanted = any(case.label.startswith("burn") for case in plan.cases)

    with ExitStack() as stack:
        burn = stack.enter_context(Burn(BURN_STEPS)) if wanted else None

        @contextmanager
        def prepare(case: Case, topo: Any) -> Iterator[None]:
            with ExitStack() as inside:
                if case.label.startswith("burn") and burn is not None:
                    burned.setdefault(case.name, []).append(burn.burned_ns(topo.dut_cpus))
                    place, device = topo.reference
                    inside.enter_context(burn.attached(place.netns_path, device))
                elif case.label.startswith("rules"):
                    inside.enter_context(rules(topo.host.netns_path, RULES))
                yield

        def with_truth(profile: Profile) -> Profile:
            return profile.with_(meta={**profile.meta, "calibration": {"burned_ns": burned, "rules": RULES}})

        keep = (lambda profile: checkpoint(with_truth(profile))) if checkpoint is not None else None
        result = run_plan(plan, advance=advance, earlier=earlier, checkpoint=keep, prepare=prepare)
    return with_truth(result.profile)


def calibrate(profile: Profile, *, synthetic: int, runs: int, say: Callable[[str], None] = print) -> Calibration:
    """Judge a profile of `plan_pairs`; `synthetic` pairs are drawn for each question. `say` hears each line at once.
    Pairs with fewer than `runs` usable runs a side are left out."""
    lines: list[str] = []
    rates: list[Rate] = []

    def tell(line: str) -> None:
        lines.append(line)
        say(line)

    def judge(found: Sequence[Rate]) -> None:
        for r in found:
            rates.append(r)
            word = "" if r.wanted == "-" else f"; wanted {r.wanted}: {'kept' if r.kept else 'NOT KEPT'}"
            tell(f"{r.what}: {r.hits}/{r.tries} = {r.share:.1%} [{r.low:.1%}, {r.high:.1%}]{word}")

    whole = [n for n in profile.scenarios if len(profile.runs_of(n)) >= runs]
    names = [n for n in whole if n.startswith(("A", "B"))]
    if not names:
        raise EvidenceError(f"no side has {runs} usable runs yet", "go on with --resume")
    noise = calibration.noise_of(profile, names)
    totals = noise.costs.sum(axis=0)
    spread = float(totals.std(ddof=1) / totals.mean())
    lengths = [profile.runs[i].duration_s for n in names for i in profile.runs_of(n)]
    tell(
        f"{noise.runs} runs of {sum(lengths) / len(lengths):.2f} s recorded for A and B, "
        f"{len(noise.names)} functions, {totals.mean():,.0f} {noise.label}, "
        f"run-to-run standard deviation {spread:.1%}"
    )
    halves = _native_pairs(profile, whole, runs, judge)
    _native_injections(profile, whole, runs, judge, tell)
    # What is expected to be sampled a few times a run can be judged; rarer things have no interval in a diff either.
    still = calibration.quiet(noise, spread=QUIET_SPREAD, runs=1000)
    for what, source in (("noise recorded here", noise), (f"modelled noise of {QUIET_SPREAD:.0%}", still)):
        judge(calibration.aa_pairs(source, pairs=synthetic, runs=runs, what=what))
        for samples in INJECTED:
            cost = samples * source.period / float(source.units.mean())
            judge(calibration.injected_pairs(source, true_cost=cost, pairs=synthetic, runs=runs, what=what))
    for line in _needed(spread, runs, halves, sum(lengths) / len(lengths)):
        tell(line)
    return Calibration(tuple(lines), all(r.kept for r in rates))


def _native_pairs(
    profile: Profile, names: Sequence[str], runs: int, judge: Callable[[Sequence[Rate]], None]
) -> list[float]:
    """A/A pairs: A with B, and of each other side the first repeat with the second, the third with the fourth, ..."""
    pairs = [(f"A{n}", f"B{n}") for n in _numbers(names, "A") if f"B{n}" in names]
    for side in SIDES[2:]:
        numbers = _numbers(names, side)
        pairs += [(f"{side}{a}", f"{side}{b}") for a, b in zip(numbers[::2], numbers[1::2], strict=False)]
    found = [calibration.found(profile, *pair) for pair in pairs]
    what = f"{len({p[0].rstrip('0123456789') for p in pairs})} scenarios, {runs} runs a side"
    silent = sum(not f.flagged for f in found)
    total = sum(f.total_flagged for f in found)
    judge(
        [
            calibration.rate(f"native A/A pairs that flag no function ({what})", silent, len(found), at_least=0.95),
            calibration.rate(f"native A/A pairs that flag the total ({what})", total, len(found), at_most=0.05),
        ]
    )
    return [f.half for f in found]


def _native_injections(
    profile: Profile,
    names: Sequence[str],
    runs: int,
    judge: Callable[[Sequence[Rate]], None],
    tell: Callable[[str], None],
) -> None:
    """What a known cost is found as: the tc program's is known by the kernel's own timing, that of rules and of a
    further hop by all other repeats together."""
    burned = profile.meta.get("calibration", {}).get("burned_ns", {})
    for side, words in (
        ("burn", "a tc program's known time"),
        ("rules", f"{profile.meta.get('calibration', {}).get('rules', 0)} rules"),
        ("hop", "a hop more"),
    ):
        numbers = [n for n in _numbers(names, side) if f"A{n}" in names]
        if not numbers:
            continue
        whole = [calibration.found(profile, f"A{n}", f"{side}{n}") for n in numbers]
        text = f"{words}, {runs} runs a side"
        if side == "burn":
            truths = [float(np.mean(burned[f"burn{n}"])) for n in numbers]
            own = [calibration.found(profile, f"A{n}", f"burn{n}", function="known_burn") for n in numbers]
            tell(_told(words, truths, own))
            judge([_holding(f"the function's interval holds the truth ({text})", own, truths)])
        else:
            deltas = np.array([f.delta for f in whole])
            truths = [
                float(np.delete(deltas, i).mean()) if len(deltas) > 1 else float("nan") for i in range(len(deltas))
            ]
        tell(_told(f"{words}, total", truths, whole))
        judge([_holding(f"the total's interval holds the truth ({text})", whole, truths)])


def _told(words: str, truths: Sequence[float], found: Sequence[Found]) -> str:
    deltas, halves = [f.delta for f in found], [(f.high - f.low) / 2 for f in found]
    seen = sum(f.total_flagged for f in found)
    return (
        f"{words}: truth {np.mean(truths):,.0f}, found {np.mean(deltas):,.0f} (standard deviation between repeats "
        f"{np.std(deltas, ddof=1) if len(deltas) > 1 else 0:,.0f}), half-widths {min(halves):,.0f} to "
        f"{max(halves):,.0f}; total flagged in {seen} of {len(found)}"
    )


def _holding(what: str, found: Sequence[Found], truths: Sequence[float]) -> Rate:
    hits = sum(f.holds(t) for f, t in zip(found, truths, strict=True))
    return calibration.rate(what, hits, len(found), at_least=0.90)


def _numbers(names: Sequence[str], side: str) -> list[int]:
    return sorted(int(n.removeprefix(side)) for n in names if n.removeprefix(side).isdigit())


def _needed(spread: float, runs: int, halves: Sequence[float], length_s: float) -> list[str]:
    """What it would take to tell 1 % here: the half-width goes with 1 / sqrt(runs)."""
    if not halves:
        return []
    middle = float(np.median(halves))
    first = (
        f"half-width of a pair's total here: {min(halves):.1%} to {max(halves):.1%}, median {middle:.1%}, "
        f"with {runs} runs a side"
    )
    more = max(1.0, (middle / 0.01) ** 2)
    if more > 1000:
        return [first, f"a machine whose runs spread by {spread:.0%} cannot tell 1 % apart in any bearable time"]
    minutes = more * runs * length_s / 60
    return [
        first,
        f"to tell 1 % apart with this spread ({spread:.1%}): about {more * runs:,.0f} runs a side, "
        f"{minutes:,.0f} min in runs of {length_s:.2f} s",
    ]

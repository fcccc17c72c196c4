#!/usr/bin/env python3
"""Measures whether the statistics keep their promises on this machine (docs/method.md, "Calibration").

    sudo .venv/bin/python scripts/calibrate.py [--pairs 20] [--runs 8] [--synthetic 1000] [-o aa.nsprof]
    sudo .venv/bin/python scripts/calibrate.py -o aa.nsprof --resume --max-time 200      go on, so many seconds
    .venv/bin/python scripts/calibrate.py --profile aa.nsprof                            judge again, without root

Ends with 1 when a promise was not kept, 3 when runs are still lacking (--resume goes on).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from nsprof import store
from nsprof.analyse import calibration
from nsprof.bench import resume
from nsprof.calibrate import COMMAND, calibrate, plan_pairs, record_pairs
from nsprof.errors import NsprofError
from nsprof.model.profile import Profile


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="Calibrate nsprof's statistics on this machine.")
    parser.add_argument("--pairs", type=int, default=20, help="repeats of the native part")
    parser.add_argument("--runs", type=int, default=8, help="runs a side")
    parser.add_argument("--synthetic", type=int, default=1000, help="synthetic pairs for each question")
    parser.add_argument("--profile", help="recorded runs of an earlier call: only judge them")
    parser.add_argument("-o", "--output", help="keep the recorded runs here")
    parser.add_argument("--resume", action="store_true", help="go on with the runs in the output file")
    parser.add_argument("--max-time", type=float, default=0.0, help="start no run after so many seconds")
    parser.add_argument(
        "--estimators", action="store_true", help="mean of run costs against ratio of sums (--profile)"
    )
    parser.add_argument("--aa", action="store_true", help="A/A pairs drawn from each scenario of any --profile")
    parser.add_argument("--seed", type=int, default=1, help="of the order of runs")
    parser.add_argument("command", nargs="*", default=None)
    given = parser.parse_args()
    if given.resume and not given.output:
        parser.error("--resume needs the file to go on with: -o FILE")
    try:
        profile = store.load(given.profile) if given.profile else _record(given)
        if given.aa:
            return _drawn(profile, given)
        if given.estimators:
            return _estimators(profile, given)
        if not given.profile and _lacking(profile, given):
            return 3
        result = calibrate(
            profile, synthetic=given.synthetic, runs=given.runs, say=lambda line: print(line, flush=True)
        )
    except NsprofError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return error.exit_code
    print("every promise was kept" if result.kept else "NOT every promise was kept")
    return 0 if result.kept else 1


def _record(given: argparse.Namespace) -> Profile:
    plan = plan_pairs(given.command or COMMAND, pairs=given.pairs, runs=given.runs, seed=given.seed)
    plan = dataclasses.replace(plan, max_time_s=given.max_time)
    earlier = resume.open_earlier(given.output, plan) if given.resume else None

    def advance(done: int, total: int, what: str) -> None:
        if what and done % 20 == 0:
            print(f"run {done + 1} of {total}: {what}", file=sys.stderr)

    profile = record_pairs(plan, earlier=earlier, advance=advance)
    if given.output:
        store.save(profile, given.output)
    return profile


def _drawn(profile: Profile, given: argparse.Namespace) -> int:
    """A/A pairs of a recorded or simulated bench: its scenarios' own runs, drawn with replacement."""
    kept = True
    for name in profile.scenarios:
        noise = calibration.noise_of(profile, [name])
        totals = noise.costs.sum(axis=0)
        print(
            f"{name}: {noise.runs} runs, {totals.mean():,.1f} {noise.label}, "
            f"{totals.min():,.1f} to {totals.max():,.1f}"
        )
        for r in calibration.aa_pairs(noise, pairs=given.synthetic, runs=given.runs, what=name):
            kept = kept and r.kept
            print(f"  {r.what}: {r.hits}/{r.tries} = {r.share:.1%} [{r.low:.1%}, {r.high:.1%}]", flush=True)
    return 0 if kept else 1


def _estimators(profile: Profile, given: argparse.Namespace) -> int:
    """Of each scenario's runs: time-bound ones, else both estimators are the same."""
    for name in profile.scenarios:
        noise = calibration.noise_of(profile, [name])
        cost = 16 * noise.period / float(noise.units.mean())
        spread = float(noise.units.std() / noise.units.mean())
        print(f"{name}: {noise.runs} runs, their number of units spreads by {spread:.1%}")
        for each in calibration.estimators(noise, true_cost=cost, pairs=given.synthetic, runs=given.runs):
            for r in (each.silent, each.holding, each.total_holding):
                print(f"  {r.what}: {r.share:.1%} [{r.low:.1%}, {r.high:.1%}]")
            print(f"  {each.name}: mean half-width of the total {each.half:.2%}", flush=True)
    return 0


def _lacking(profile: Profile, given: argparse.Namespace) -> bool:
    done = sum(not run.failed and not run.warmup for run in profile.runs)
    wanted = 5 * given.pairs * given.runs
    if done >= wanted:
        return False
    where = given.output and Path(given.output).name
    print(f"{done} of {wanted} runs are there" + (f" in {where}; --resume goes on" if where else ""))
    return True


if __name__ == "__main__":
    sys.exit(main())

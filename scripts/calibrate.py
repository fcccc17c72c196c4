#!/usr/bin/env python3
"""Measures whether the statistics keep their promises on this machine (docs/method.md, "Calibration").

    sudo .venv/bin/python scripts/calibrate.py [--pairs 3] [--runs 8] [--synthetic 1000] [-- COMMAND...]
    .venv/bin/python scripts/calibrate.py --profile aa.nsprof            judge recorded runs again, without root

Ends with 1 when a promise was not kept.
"""

from __future__ import annotations

import argparse
import sys

from nsprof import store
from nsprof.calibrate import calibrate, run_and_calibrate
from nsprof.errors import NsprofError


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="Calibrate nsprof's statistics on this machine.")
    parser.add_argument("--pairs", type=int, default=3, help="native A/A pairs")
    parser.add_argument("--runs", type=int, default=8, help="runs a side")
    parser.add_argument("--synthetic", type=int, default=1000, help="synthetic pairs for each question")
    parser.add_argument("--scenario", default="veth-bridge")
    parser.add_argument("--profile", help="recorded runs of an earlier call (same --pairs and --runs)")
    parser.add_argument("-o", "--output", help="keep the recorded runs here")
    parser.add_argument("command", nargs="*", default=None)
    given = parser.parse_args()
    command = given.command or ["netperf", "-t", "UDP_RR", "-l", "1"]
    try:
        if given.profile:
            result = calibrate(
                store.load(given.profile), pairs=given.pairs, synthetic=given.synthetic, runs=given.runs
            )
        else:
            profile, result = run_and_calibrate(
                command,
                scenario=given.scenario,
                pairs=given.pairs,
                runs=given.runs,
                synthetic=given.synthetic,
                say=lambda done, total, what: print(f"run {done} of {total} {what}", file=sys.stderr),
            )
            if given.output:
                store.save(profile, given.output)
    except NsprofError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(result.lines))
    print("every promise was kept" if result.kept else "NOT every promise was kept")
    return 0 if result.kept else 1


if __name__ == "__main__":
    sys.exit(main())

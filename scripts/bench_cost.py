#!/usr/bin/env python3
"""What a bench takes beyond its workloads: 4 scenarios x 3 runs of netperf, timed from outside.

    sudo .venv/bin/python scripts/bench_cost.py [--seconds 2] [--rounds 3]

The workloads' own time is what netperf says it measured; everything else (start of Python, loading and calibrating
the sampler, topologies, servers, counters, symbols, the file and the tables) is the bench's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from nsprof import store
from nsprof.files import Scratch


def main() -> int:
    """Print a line a round."""
    parser = argparse.ArgumentParser(description="Time what a bench adds to its workloads.")
    parser.add_argument("--seconds", type=int, default=2, help="length of a run")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for _ in range(given.rounds):
        with Scratch("cost") as place:
            file = place / "cost.nsprof"
            words = ["bench", "-q", "-s", "host,device,veth-route,veth-bridge", "-n", "3", "-o", str(file), "--"]
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "nsprof", *words, "netperf", "-t", "UDP_RR", "-l", str(given.seconds)],
                capture_output=True,
                text=True,
                check=False,
            )
            whole = time.monotonic() - began
            if done.returncode:
                print(done.stderr.strip(), file=sys.stderr)
                return 1
            runs = store.load(file).runs
            own = sum(value.value for run in runs for value in run.values if value.name == "elapsed")
            windows = sum(run.duration_s for run in runs)
        print(
            f"{len(runs)} runs: {whole:.1f} s, of which workloads {own:.1f} s (windows {windows:.1f} s): "
            f"{100 * (whole / own - 1):.1f} % more",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""How long does it take, and how much memory, to compare many large result files?

    .venv/bin/python scripts/bench_compare.py bench.nsprof [--files 50] [--stacks 100000]

The files are made from a real recording by multiplication: each of its call paths gets so many further outermost
callers that there are `--stacks` different ones, and its samples are shared out among them; run-to-run noise is added
file by file. Then `nsprof history` reads all of them, and `nsprof diff` compares the first with the last. Each is a
process of its own, timed from outside.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsprof import store
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import FrameKind, Profile, Samples


def multiplied(profile: Profile, stacks: int) -> Profile:
    """The profile with about so many different call paths: copies of its own with further outermost callers."""
    whole = profile
    copies = max(1, -(-stacks // len(whole.stacks)))
    made = ProfileBuilder()
    made.append(whole.with_(samples=whole.samples.take(np.zeros(len(whole.samples), bool))))
    callers = [made.frame(f"caller_{number}", kind=FrameKind.USER) for number in range(copies)]
    frames = [made.frame(*row) for row in _frames(whole)]
    where = np.empty((len(whole.stacks), copies), "i8")
    for number in range(len(whole.stacks)):
        path = [frames[f] for f in whole.stacks[number]]
        for copy, caller in enumerate(callers):
            where[number, copy] = made.stack([*path, caller])
    rows = np.repeat(np.arange(len(whole.samples)), copies)
    samples = whole.samples
    columns = {
        name: getattr(samples, name)[rows] for name in samples.__dataclass_fields__ if not name.startswith("_")
    }
    held = samples.stack[rows] >= 0
    copy = np.tile(np.arange(copies), len(samples))
    columns["stack"] = np.where(held, where[np.maximum(samples.stack[rows], 0), copy], -1)
    columns["weight"] = columns["weight"] / copies
    made.samples(Samples.build(len(rows), **columns))
    return made.build()


def _frames(profile: Profile) -> list[tuple[str, str, FrameKind]]:
    frames = profile.frames
    return [
        (name, module, FrameKind(int(kind)))
        for name, module, kind in zip(frames.name, frames.module, frames.kind, strict=True)
    ]


def write_files(profile: Profile, folder: Path, files: int) -> None:
    """`files` files that differ as runs do."""
    random = np.random.default_rng(1)
    for number in range(files):
        runs = tuple(
            replace(run, denominators={k: v * random.lognormal(0, 0.02) for k, v in run.denominators.items()})
            for run in profile.runs
        )
        meta = {**profile.meta, "created": f"2026-01-{1 + number // 24:02d}T{number % 24:02d}:00:00Z"}
        store.save(profile.with_(runs=runs, meta=meta), folder / f"{number:03d}.nsprof")


def timed(*words: str) -> tuple[float, float, subprocess.CompletedProcess[str]]:
    """(seconds, peak MB, what came of it) of a command of nsprof's."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "nsprof", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None  # noqa: S101 - made with PIPE above
        assert child.stderr is not None  # noqa: S101
        out = child.stdout.read()
        err = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    done = subprocess.CompletedProcess(words, child.returncode, out, err)
    return time.monotonic() - began, usage.ru_maxrss / 1024, done


def main() -> int:
    """Print a line a command."""
    parser = argparse.ArgumentParser(description="Time the comparison of many large result files.")
    parser.add_argument("profile", help="a bench's result with two scenarios or more")
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--stacks", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nsprof-compare-") as place:
        folder = Path(place)
        began = time.monotonic()
        big = multiplied(store.load(given.profile), given.stacks)
        write_files(big, folder, given.files)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{given.files} files of {len(big.stacks):,} stacks and {len(big.samples):,} sample rows, {size:,.0f} MB"
            f" (made in {time.monotonic() - began:.1f} s with {peak:,.0f} MB)",
            flush=True,
        )
        names = sorted(folder.iterdir())
        first = big.scenarios[-1]
        for words in (
            ("history", str(folder)),
            ("diff", str(names[0]), str(names[-1]), "--scenario", first),
        ):
            seconds, megabytes, done = timed(*words)
            state = f"{seconds:.1f} s, {megabytes:,.0f} MB" if done.returncode == 0 else done.stderr.strip()
            print(f"nsprof {words[0]}: {state} ({len(done.stdout.splitlines())} lines)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""How long 100,000 distinct stacks take to become an SVG, and how much memory: `bench_flamegraph.py [STACKS]`.

First the rendering of a tree alone, then the whole program: `nsprof flamegraph --diff A B` of two files with so many
stacks each, of which half are on both sides.

The stacks are made by rule from this kernel's symbol names (or made-up ones where they cannot be read): call paths of
8 to 40 frames that branch as real ones do, one in three differing from another only near the leaf. Building the tree
is not part of the rendering and is shown apart.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from nsprof import store
from nsprof.model.profile import Event, FrameKind, Frames, Profile, Run, Samples, Stacks
from nsprof.model.results import FlameTree, Measure
from nsprof.render.flamegraph import FlameOptions, render_svg


def names(count: int) -> list[str]:
    """Function names of the running kernel, or invented ones."""
    try:
        lines = Path("/proc/kallsyms").read_text().splitlines()
    except OSError:
        lines = []
    found = list(dict.fromkeys(p[2] for p in (line.split() for line in lines) if len(p) > 2 and p[1] in "tT"))
    random.Random(1).shuffle(found)  # noqa: S311 - reproducible, not secret
    return (found + [f"invented_function_{n}" for n in range(count)])[:count]


def stacks(count: int, functions: int) -> list[tuple[int, ...]]:
    """Distinct stacks, root first; most share their beginning with an earlier one."""
    dice = random.Random(7)  # noqa: S311 - reproducible, not secret
    made: list[tuple[int, ...]] = [tuple(dice.randrange(functions) for _ in range(20))]
    seen = set(made)
    while len(made) < count:
        old = made[int(len(made) * dice.random() ** 2)]
        keep = dice.randrange(3, len(old)) if dice.random() < 0.67 else len(old) - 1
        tail = dice.randrange(1, max(2, min(14, 40 - keep)))
        stack = old[:keep] + tuple(dice.randrange(functions) for _ in range(tail))
        if stack not in seen:
            seen.add(stack)
            made.append(stack)
    return made


def tree(rows: list[tuple[int, ...]], strings: list[str]) -> FlameTree:
    """The call tree of the stacks, heavy-tailed costs on both sides."""
    dice = np.random.default_rng(3)
    children: dict[tuple[int, int], int] = {}
    name, parent = [len(strings)], [-1]
    leaves = np.empty(len(rows), np.int64)
    for index, row in enumerate(rows):
        at = 0
        for function in row:
            key = (at, function)
            nxt = children.get(key)
            if nxt is None:
                nxt = children[key] = len(name)
                name.append(function)
                parent.append(at)
            at = nxt
        leaves[index] = at
    ticks = np.zeros((2, len(name)))
    for side in (0, 1):
        np.add.at(ticks[side], leaves, np.ceil(dice.pareto(1.1, len(rows)) * dice.integers(0, 2, len(rows))))
    return FlameTree(
        strings=(*strings, "all", ""),
        name=np.array(name, "u4"),
        module=np.full(len(name), len(strings) + 1, "u4"),
        kind=np.full(len(name), FrameKind.KERNEL, "u1"),
        parent=np.array(parent, "i4"),
        self_new=ticks[0] * 12.5,
        self_base=ticks[1] * 12.5,
        samples_new=ticks[0],
        samples_base=ticks[1],
        measure=Measure("cpu-clock", "ns", "transaction", "ns/transaction"),
        differential=True,
        title="veth-bridge",
        base_title="host",
    )


def profile(rows: list[tuple[int, ...]], strings: list[str], seed: int) -> Profile:
    """A recording of 10 s with one sample key a stack, heavy-tailed."""
    dice = np.random.default_rng(seed)
    ticks = np.ceil(dice.pareto(1.1, len(rows)))
    kinds = np.full(len(strings), FrameKind.KERNEL, "u1")
    return Profile(
        events=(Event("cpu-clock", "ns", period=2_000_000),),
        runs=(Run("traffic", duration_s=10.0, cpus=2, denominators={"transaction": 1e6}),),
        frames=Frames(tuple(strings), ("",) * len(strings), kinds),
        stacks=Stacks.from_lists([row[::-1] for row in rows]),
        samples=Samples.build(
            len(rows), stack=np.arange(len(rows)), context=2, count=ticks, weight=ticks * 2e6, slice=seed
        ),
    )


def program(count: int) -> int:
    """Compare two files of `count` stacks each by the program itself; 1 when over 5 s or 500 MB."""
    rows, strings = stacks(count + count // 2, 8_000), names(8_000)
    with tempfile.TemporaryDirectory() as place:
        for seed, (name, some) in enumerate((("a", rows[:count]), ("b", rows[-count:])), 1):
            store.save(profile(some, strings, seed), Path(place) / f"{name}.nsprof")
        words = [sys.executable, "-m", "nsprof", "flamegraph", "--diff", "a.nsprof", "b.nsprof", "-o", "d.svg", "-q"]
        done = subprocess.run(
            [sys.executable, "-c", _WATCH, *words], cwd=place, capture_output=True, text=True, check=True
        )
        seconds, peak_mb = map(float, done.stdout.split())
        size = (Path(place) / "d.svg").stat().st_size
    print(f"flamegraph --diff of {count:,} stacks a side: {seconds:.2f} s, {size / 1e6:.2f} MB of SVG")
    print(f"peak memory of the program {peak_mb:.0f} MB")
    return int(seconds > 5 or peak_mb > 500)


#: Runs a program and prints its seconds and its peak memory. Not from here: a child's peak counts that of the process
#: that it was split off from.
_WATCH = """
import resource, subprocess, sys, time
started = time.perf_counter()
subprocess.run(sys.argv[1:], check=True)
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def main() -> int:
    """Render once, print the figures; exit status 1 when over 5 s or 500 MB."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    started = time.perf_counter()
    graph = tree(stacks(count, 8_000), names(8_000))
    print(f"{count:,} distinct stacks, {len(graph):,} frames, made in {time.perf_counter() - started:.1f} s")
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    text = render_svg(graph, FlameOptions())
    seconds = time.perf_counter() - started
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"rendered in {seconds:.2f} s to {len(text) / 1e6:.2f} MB")
    print(f"peak memory {peak_mb:.0f} MB ({before_mb:.0f} MB before rendering)")
    return int(seconds > 5 or peak_mb > 500) | program(count)


if __name__ == "__main__":
    sys.exit(main())

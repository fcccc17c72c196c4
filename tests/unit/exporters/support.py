"""What the tests of exporters share: a profile with everything in it, random ones, and npm packages at test time."""
# ruff: noqa: E501 - lines of other tools' files stand as they are

from __future__ import annotations

import functools
import io
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from nsprof.model.profile import (
    Context,
    Device,
    Event,
    FrameKind,
    Frames,
    Namespace,
    Profile,
    Run,
    Samples,
    Stacks,
    Task,
    Value,
)
from nsprof.store.exporters import export


def written(profile: Profile, format: str, **options: Any) -> bytes:
    """What `export` writes."""
    out = io.BytesIO()
    export(profile, format, out, **options)
    return out.getvalue()


FRAMES = Frames(
    ("udp_rcv", "veth_xmit", "main", "bpf_prog_x", "entry_SYSCALL_64_after_hwframe", "work"),
    ("", "veth", "app", "bpf", "", ""),
    np.array([1, 1, 2, 3, 1, 0], "u1"),
    ("net/ipv4/udp.c:12", "", "", "", "", "work.py:7"),
)


def sample_profile() -> Profile:
    """Two scenarios, two namespaces, devices of one name, three threads; one event."""
    stacks = Stacks.from_lists([[0, 4, 2], [1, 0, 4, 2], [5], [3, 0]])
    samples = Samples.build(
        5,
        run=[0, 0, 1, 1, 1],
        slice=[0, 1, 0, 0, 3],
        cpu=[0, 1, 0, 0, 65535],
        task=[0, 1, 0, 2, 2],
        task_ns=[1, 1, 2, 0, 0],
        hop_ns=[1, 2, 2, 0, 1],
        hop_dev=[1, 2, 2, 0, 1],
        hop_dir=[1, 2, 1, 0, 3],
        context=[Context.SOFTIRQ, Context.TASK, Context.HARDIRQ, Context.USER, Context.UNKNOWN],
        stack=[0, 1, 2, 3, 0],
        lateness=[0, 1, 2, 0, 0],
        count=[23, 1, 4, 2, 3],
        weight=[23e6, 1e6, 4e6, 2.5e6, 3e6],
    )
    runs = (
        Run("host", kernel="6.1", started=1.7e9, duration_s=2, values=(Value("throughput", 941.0, "Mbit/s", "netperf"), Value("latency", 12.5, "us"))),
        Run("veth-bridge", duration_s=4, values=(Value("throughput", 530.5, "Mbit/s", "netperf"), Value("latency", 30.0, "us"))),
        Run("veth-bridge", duration_s=4, values=(Value("throughput", 540.0, "Mbit/s", "netperf"), Value("latency", 0.0, "us"))),
        Run("veth-bridge", warmup=True, values=(Value("throughput", 1.0, "Mbit/s"),)),
    )  # fmt: skip
    return Profile(
        events=(Event("cpu-clock", "ns", period=1_000_000),),
        runs=runs,
        namespaces=(Namespace(0, name="c0"), Namespace(4026532001)),
        devices=(Device(1, 2, "eth0"), Device(2, 2, "eth0")),
        tasks=(Task(10, 10, "netperf"), Task(10, 11, 'a"b;c\n'), Task(0, 0, "swapper")),
        frames=FRAMES,
        stacks=stacks,
        samples=samples,
        meta={"notes": ["lost unknown"]},
    )


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=10)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """One run of one event with random frames, stacks and rows; weights are whole nanoseconds."""
    frames = draw(st.lists(st.tuples(names, st.sampled_from([0, 1, 2, 3])), min_size=1, max_size=8, unique=True))
    table = Frames(
        tuple(n for n, _ in frames),
        tuple({0: "", 1: "", 2: "lib.so", 3: "bpf"}[k] for _, k in frames),
        np.array([k for _, k in frames], "u1"),
    )
    index = st.integers(0, len(frames) - 1)
    stacks = draw(st.lists(st.lists(index, min_size=1, max_size=6).map(tuple), min_size=1, max_size=6, unique=True))
    row = st.tuples(st.integers(0, len(stacks) - 1), st.integers(1, 10**6), st.integers(0, 1), st.integers(0, 7))
    rows = draw(st.lists(row, min_size=1, max_size=20))
    columns = np.array(rows, "i8")
    samples = Samples.build(
        len(rows),
        stack=columns[:, 0],
        count=columns[:, 1],
        weight=columns[:, 1] * 1000,
        task=columns[:, 2],
        context=columns[:, 3],
        lateness=2,
    )
    return Profile(
        events=(Event("cpu-clock", "ns"),),
        runs=(Run("s"),),
        tasks=(Task(7, 7, "a"), Task(7, 8, "b c")),
        frames=table,
        stacks=Stacks.from_lists(stacks),
        samples=samples,
    )


def by_stack(profile: Profile, what: str = "weight") -> dict[tuple[tuple[str, str, int], ...], float]:
    """Values by stack of (name, module, kind), leaf first."""
    made: Counter[tuple[tuple[str, str, int], ...]] = Counter()
    f = profile.frames
    for stack, value in zip(profile.samples.stack.tolist(), getattr(profile.samples, what).tolist(), strict=True):
        made[tuple((f.name[i], f.module[i], int(f.kind[i])) for i in profile.stacks[stack])] += value
    return dict(made)


@functools.cache
def npm(package: str) -> Path:
    """Directory of an npm package, fetched once into a cache outside the checkout; skips where there is none."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nsprof-tests" / package.replace("@", "-")
    )
    where = cache / "node_modules" / package.rpartition("@")[0]
    if not where.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "package.json").write_text("{}")
        words = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", package]
        try:
            done = subprocess.run(words, cwd=cache, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not deliver {package} in 120 s")
        if done.returncode or not where.is_dir():
            pytest.skip(f"npm cannot fetch {package}: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}")
    return where


KINDS = FrameKind

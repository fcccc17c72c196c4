"""A known cost is found: so many ns burned for each skb by a tc program, measured beforehand by the kernel itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from nsprof.bench import BenchOptions, plan_of
from nsprof.bench.known import BURN_NAME, Burn
from nsprof.bench.run import run_plan
from nsprof.model.profile import Profile
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.netperf]

_STEPS = 60_000


@pytest.fixture(scope="module")
def burn() -> Iterator[Burn]:
    need("bpf", "netperf")
    with Burn(_STEPS) as loaded:
        yield loaded


def _rows(profile: Profile) -> np.ndarray:
    """Sample rows whose leaf is the burning program."""
    burning = [i for i, name in enumerate(profile.frames.name) if BURN_NAME in name]
    leaves = np.array(
        [int(profile.stacks[i][0]) if len(profile.stacks[i]) else -1 for i in range(len(profile.stacks))]
    )
    return np.isin(leaves, burning)[profile.samples.stack]


def test_known_ns_per_skb_are_found_in_their_function_namespace_and_device(burn: Burn) -> None:
    true_ns = burn.burned_ns()
    assert true_ns > 5_000
    plan = plan_of(
        BenchOptions(
            command=("netperf", "-t", "UDP_RR", "-l", "2"),
            scenarios=("veth-route",),
            runs=2,
            frequency_hz=997,
            hop=True,
        )
    )

    def prepare(case: Any, topo: Any) -> AbstractContextManager[None]:
        del case
        place, device = topo.reference
        return burn.attached(place.netns_path, device)

    profile = run_plan(plan, prepare=prepare).profile
    rows = _rows(profile)
    found = {}
    for number, run in enumerate(profile.runs):
        mine = rows & (profile.samples.run == number)
        # One skb of a transaction leaves by the wire's near end.
        found[number] = (float(profile.samples.weight[mine].sum()), run.denominators["transaction"], mine)
    weight, count = (sum(part[i] for part in found.values()) for i in (0, 1))
    samples = float(profile.samples.count[rows].sum())
    if samples < 50:
        pytest.skip(f"this machine is too busy: {samples:.0f} samples of the program in {len(profile.runs)} runs")
    # Four standard errors of the count; 15 % for caches and clock rates that differ from the idle test run's.
    assert weight / count == pytest.approx(true_ns, rel=0.15 + 4 / samples**0.5)
    hopped = rows & np.isin(profile.samples.run, [i for i, r in enumerate(profile.runs) if "hop" in r.probes_on])
    # Every run has a host namespace of its own.
    hosts = [i + 1 for i, n in enumerate(profile.namespaces) if n.role == "host"]
    inside = np.isin(profile.samples.hop_ns, hosts)
    counts = profile.samples.count
    right = float(counts[hopped & inside].sum()) / max(1.0, float(counts[hopped].sum()))
    seen: dict[tuple[str, str, int, int], float] = {}
    columns = ("hop_ns", "hop_dev", "hop_dir", "context", "count")
    for ns, device, way, context, number in zip(
        *(getattr(profile.samples.take(hopped), c) for c in columns), strict=True
    ):
        key = (profile.namespace_label(int(ns)), profile.device_label(int(device)), int(way), int(context))
        seen[key] = seen.get(key, 0.0) + float(number)
    assert right > 0.9, seen
    names = {profile.device_label(int(d)) for d in np.unique(profile.samples.hop_dev[hopped & inside])}
    assert names <= {"v0", "w0", "unknown"}

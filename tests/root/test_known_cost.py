"""A known cost is found: so many ns burned for each skb by a tc program, measured beforehand by the kernel itself."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from nsprof.bench import BenchOptions, plan_of
from nsprof.bench.run import run_plan
from nsprof.collect.bpf import bcc_door, headers
from nsprof.collect.bpf.syscalls import bpf
from nsprof.model.profile import Profile
from nsprof.netns import entered
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.netperf]

_STEPS = 60_000
_TEXT = """
int nsprof_burn(struct __sk_buff *skb) {
    u64 x = skb->len;
    for (int i = 0; i < STEPS; i++) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        asm volatile("" : "+r"(x));
    }
    return x == 1 ? 2 : 0;
}
"""
_TEST_RUN = 10  # enum bpf_cmd, BPF_PROG_TEST_RUN


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    need("bpf", "netperf")
    os.environ["BCC_KERNEL_SOURCE"] = str(headers.header_tree())
    bcc = bcc_door.load()
    loaded = bcc.BPF(text=_TEXT.encode(), cflags=[f"-DSTEPS={_STEPS}", "-Wno-everything"])
    yield loaded.load_func(b"nsprof_burn", bcc.BPF.SCHED_CLS)
    loaded.cleanup()


def _burned_ns(fd: int) -> float:
    """Mean time of a call as BPF_PROG_TEST_RUN has it; the least of ten, since interruptions only add."""
    import ctypes

    data = (ctypes.c_uint8 * 64)()
    found = []
    for _ in range(10):
        # prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration (union bpf_attr, test)
        attributes = struct.pack("=IIIIQQII", fd, 0, 64, 0, ctypes.addressof(data), 0, 200, 0)
        _, answer = bpf(_TEST_RUN, attributes)
        found.append(struct.unpack("=IIIIQQII", answer)[7])
    return float(min(found))


def _attach(fd: int) -> Any:
    @contextmanager
    def prepare(case: Any, topo: Any) -> Iterator[None]:
        from pyroute2 import IPRoute

        del case
        place, device = topo.reference
        with entered(place.netns_path), IPRoute() as door:
            index = door.link_lookup(ifname=device)[0]
            door.tc("add", "clsact", index)
            door.tc(
                *("add-filter", "bpf", index, ":1"),
                fd=fd,
                name="nsprof_burn",
                parent="ffff:fff3",
                direct_action=True,
            )
        yield

    return prepare


def _rows(profile: Profile) -> np.ndarray:
    """Sample rows whose leaf is the burning program."""
    burning = [i for i, name in enumerate(profile.frames.name) if "nsprof_burn" in name]
    leaves = np.array(
        [int(profile.stacks[i][0]) if len(profile.stacks[i]) else -1 for i in range(len(profile.stacks))]
    )
    return np.isin(leaves, burning)[profile.samples.stack]


def test_known_ns_per_skb_are_found_in_their_function_namespace_and_device(program: Any) -> None:
    true_ns = _burned_ns(program.fd)
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
    profile = run_plan(plan, prepare=_attach(program.fd)).profile
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

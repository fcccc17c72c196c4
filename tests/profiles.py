"""Small realistic profiles for everybody's tests: what a recording of UDP request/response looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import (
    Context,
    Counter,
    Device,
    Direction,
    Event,
    FrameKind,
    Lateness,
    Losses,
    Namespace,
    ProbeInfo,
    Profile,
    Run,
    Samples,
    Value,
)

__all__ = ["CLOCK", "HOST_COSTS", "bench_profile", "big_profile", "bridge_costs", "one_run", "stack_of"]

CLOCK = Event("cpu-clock", "ns", "sampled", period=2_004_008, frequency_hz=499)
PERIOD_NS = 2_000_000.0

_ENTRY = (
    "udp_sendmsg < sock_sendmsg < __sys_sendto < __x64_sys_sendto < do_syscall_64 < entry_SYSCALL_64_after_hwframe"
)
_SOFTIRQ = (
    f"handle_softirqs < do_softirq.part.0 < __local_bh_enable_ip < __dev_queue_xmit < ip_finish_output2 < "
    f"ip_output < ip_send_skb < udp_send_skb < {_ENTRY}"
)
_RX = (
    "__udp4_lib_rcv < ip_protocol_deliver_rcu < ip_local_deliver < ip_rcv < __netif_receive_skb_one_core < "
    f"process_backlog < __napi_poll < net_rx_action < {_SOFTIRQ}"
)

#: stack (leaf first, "<" between) -> ns a transaction on the host-only path.
HOST_COSTS: Mapping[str, float] = {
    f"fib_table_lookup < ip_route_output_key_hash_rcu < ip_route_output_flow < {_ENTRY}": 300.0,
    f"memcpy_orig < skb_copy_datagram_from_iter < __ip_append_data < ip_make_skb < {_ENTRY}": 100.0,
    f"kmem_cache_alloc_node < __alloc_skb < sock_alloc_send_pskb < __ip_append_data < {_ENTRY}": 150.0,
    f"__udp4_lib_lookup < {_RX}": 250.0,
    f"sock_def_readable < __udp_enqueue_schedule_skb < udp_queue_rcv_one_skb < {_RX}": 200.0,
    f"_raw_spin_unlock_irqrestore < __wake_up_sync_key < sock_def_readable < {_RX}": 180.0,
    "finish_task_switch.isra.0 < __schedule < schedule < schedule_timeout < __skb_wait_for_more_packets < "
    "__skb_recv_udp < udp_recvmsg < inet_recvmsg < __sys_recvfrom < do_syscall_64": 400.0,
    f"dev_hard_start_xmit < __dev_queue_xmit < ip_finish_output2 < ip_output < {_ENTRY}": 120.0,
}


def bridge_costs() -> dict[str, float]:
    """The same path with a pair and a bridge before the wire; `.isra.0` moves, `udp` work stays."""
    extra = {
        f"veth_xmit < dev_hard_start_xmit < __dev_queue_xmit < ip_finish_output2 < ip_output < {_ENTRY}": 160.0,
        f"br_handle_frame_finish < br_handle_frame < __netif_receive_skb_core.constprop.0 < process_backlog < "
        f"__napi_poll < net_rx_action < {_SOFTIRQ}": 220.0,
        f"fdb_find_rcu < br_handle_frame_finish < br_handle_frame < __netif_receive_skb_core.constprop.0 < "
        f"process_backlog < __napi_poll < net_rx_action < {_SOFTIRQ}": 110.0,
        f"br_dev_queue_push_xmit < br_forward_finish < br_handle_frame_finish < br_handle_frame < "
        f"process_backlog < __napi_poll < net_rx_action < {_SOFTIRQ}": 90.0,
    }
    renamed = {
        k.replace("finish_task_switch.isra.0", "finish_task_switch.constprop.1"): v for k, v in HOST_COSTS.items()
    }
    return {**renamed, **extra}


def stack_of(builder: ProfileBuilder, text: str, module: str = "") -> int:
    """Stack number of `leaf < caller < ...`; br_* and veth_* frames get their modules."""
    frames = []
    for name in filter(None, (part.strip() for part in text.split("<"))):
        own = module or ("bridge" if name.startswith(("br_", "fdb_")) else "veth" if name.startswith("veth_") else "")
        frames.append(builder.frame(name, own, FrameKind.KERNEL))
    return builder.stack(frames)


def _context(text: str) -> Context:
    return Context.SOFTIRQ if "handle_softirqs" in text else Context.TASK


def one_run(
    builder: ProfileBuilder,
    scenario: str,
    costs: Mapping[str, float],
    *,
    transactions: float = 20_000.0,
    duration_s: float = 10.0,
    noise: np.random.Generator | None = None,
    spread: float = 0.01,
    idle_s: float = 0.0,
    dut_cpus: tuple[int, ...] = (0,),
    remote_cpus: tuple[int, ...] = (1,),
    hop: bool = False,
    event: Event = CLOCK,
    skid: Sequence[str] = ("_raw_spin_unlock_irqrestore",),
    **fields: Any,
) -> int:
    """Add one run whose samples weigh exactly `costs` ns a transaction (with `noise`: normal, sd `spread`)."""
    run = len(builder.runs)
    number = builder.event(event)
    host = builder.namespace(Namespace(4026531840, 1, name="host", role="host"))
    pod = builder.namespace(Namespace(4026532100, 7, name="c0", role="container"))
    wire = builder.device(Device(host, 2, "w0", "veth", 1500))
    eth0 = builder.device(Device(pod, 2, "eth0", "veth", 1500))
    task = builder.task(100, 100, "netperf")
    idle_task = builder.task(0, 0, "swapper/0")
    rows: list[dict[str, Any]] = []
    for text, cost in costs.items():
        factor = 1.0 if noise is None else max(0.0, float(noise.normal(1.0, spread)))
        weight = cost * transactions * factor
        leaf = text.split("<")[0].strip()
        inside = leaf.startswith(("br_", "fdb_", "veth_"))
        softirq = _context(text) == Context.SOFTIRQ
        rows.append(
            {
                "stack": stack_of(builder, text),
                "context": _context(text),
                "weight": weight,
                "count": max(1, round(weight / PERIOD_NS)),
                "lateness": Lateness.SKID if leaf in skid else Lateness.ON_TIME,
                "task": task,
                "task_ns": pod if inside else host,
                "hop_ns": (pod if inside else host) if hop else 0,
                "hop_dev": (eth0 if inside else wire) if hop and softirq else 0,
                "hop_dir": (Direction.RX if softirq else Direction.TASK) if hop else 0,
                "cpu": dut_cpus[0] if dut_cpus else 0,
            }
        )
    busy_s = sum(row["weight"] for row in rows) / 1e9
    if idle_s:
        rows.append(
            {
                "stack": stack_of(builder, "default_idle < default_idle_call < do_idle < cpu_startup_entry"),
                "context": Context.IDLE,
                "weight": idle_s * 1e9,
                "count": round(idle_s * 499),
                "task": idle_task,
                "cpu": dut_cpus[0] if dut_cpus else 0,
            }
        )
    builder.samples(
        Samples.build(
            len(rows),
            run=run,
            event=number,
            **{key: [row.get(key, 0) for row in rows] for key in dict.fromkeys(k for row in rows for k in row)},
        )
    )
    seen = sum(int(row["count"]) for row in rows if row["context"] != Context.IDLE)
    values = {
        "label": "",
        "kernel": "6.12.0-test",
        "started": 1_700_000_000.0 + 60 * run,
        "duration_s": duration_s,
        "cpus": 2,
        "cpu_busy_s": {(dut_cpus or (0,))[0]: busy_s, **dict.fromkeys(remote_cpus, 1.0)},
        "dut_cpus": dut_cpus,
        "remote_cpus": remote_cpus,
        "denominators": {
            "transaction": transactions,
            "skb": 2 * transactions,
            "segment": 2 * transactions,
            "second": duration_s,
        },
        "reference": "w0 in host (rx+tx)",
        "values": (Value("throughput", transactions / duration_s, "transactions/s", "netperf"),),
        "losses": Losses(expected=seen, seen=seen),
        "probes_on": ("hop",) if hop else (),
        "own_cpu_s": 0.005 * busy_s,
        "command": ("netperf", "-t", "UDP_RR"),
        "status": 0,
        **fields,
    }
    builder.runs.append(Run(scenario=scenario, **values))
    for name, delta in (("rx_packets", transactions), ("tx_packets", transactions), ("rx_dropped", 0.0)):
        builder.counters.append(Counter(run, "device", host, "w0", -1, name, 1000.0, delta))
    return run


def bench_profile(
    runs: int = 3,
    *,
    scenarios: Mapping[str, Mapping[str, float]] | None = None,
    seed: int | None = 1,
    hop_runs: int = 0,
    **fields: Any,
) -> Profile:
    """Host-only and veth-bridge (or the given scenarios), `runs` runs each; seed None: without noise."""
    builder = ProfileBuilder()
    noise = None if seed is None else np.random.default_rng(seed)
    chosen = scenarios or {"host": HOST_COSTS, "veth-bridge": bridge_costs()}
    for turn in range(runs + hop_runs):
        for name, costs in chosen.items():
            one_run(builder, name, costs, noise=noise, hop=turn >= runs, **fields)
    builder.probes.append(
        ProbeInfo("sampler", "perf_event cpu-clock", "perf_event", hits=12345, cost_ns_per_hit=900.0)
    )
    builder.meta.update(
        tool={"name": "nsprof", "version": "0.1.0"},
        created="2026-01-01T00:00:00Z",
        host={"kernel": {"release": "6.12.0-test"}, "cpu": {"model": "Test CPU"}},
        boot_id="00000000-0000-0000-0000-000000000000",
        notes=["made for a test"],
    )
    return builder.build()


def big_profile(rows: int, *, stacks: int = 20_000, runs: int = 2, seed: int = 0) -> Profile:
    """`rows` sample rows over `stacks` random call paths with about 3,000 function names, 20 frames each."""
    random = np.random.default_rng(seed)
    builder = ProfileBuilder()
    names = [f"net_function_{i}" for i in range(2980)] + [f"br_step_{i}" for i in range(20)]
    frames = np.array([builder.frame(name) for name in names])
    # Paths share callers as real ones do: few roots, many leaves.
    depth = 20
    table = np.empty((stacks, depth), "u4")
    for level in range(depth):
        width = max(2, int(len(names) * ((depth - level) / depth) ** 3))
        table[:, level] = frames[random.integers(0, width, stacks)]
    for row in table:
        builder.stack(row)
    builder.event(CLOCK)
    builder.task(1, 1, "load")
    for _ in range(runs):
        builder.runs.append(
            Run(scenario="load", duration_s=100.0, cpus=2, denominators={"transaction": 1e6, "second": 100.0})
        )
    made = len(builder._stack_rows)
    builder.samples(
        Samples.build(
            rows,
            run=random.integers(0, runs, rows),
            slice=random.integers(0, 100, rows),
            cpu=random.integers(0, 2, rows),
            stack=random.integers(0, made, rows),
            context=random.choice([Context.TASK, Context.SOFTIRQ], rows),
            count=1,
            weight=PERIOD_NS,
        )
    )
    return builder.build()

"""Flame trees made by hand or by rule, for the tests of the renderers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nsprof.model.profile import FrameKind
from nsprof.model.results import FlameTree, Measure

NS = Measure("cpu-clock", "ns", "transaction", "ns/transaction", "netperf UDP_RR")

Row = tuple[tuple[str, ...], float, float]  # stack (root first, separated frames), cost new, cost base


def tree_of(
    rows: Iterable[Row],
    *,
    differential: bool = False,
    measure: Measure = NS,
    findings: Mapping[str, Mapping[str, Any]] | None = None,
    ns_per_tick: float = 10.0,
    title: str = "veth-bridge",
    notes: tuple[str, ...] = (),
) -> FlameTree:
    """A tree from stacks; a name may carry `module`name` and a kind: "u:", "b:", "p:" before it (default kernel)."""
    kinds = {"u": FrameKind.USER, "b": FrameKind.BPF, "p": FrameKind.PROFILER}
    strings: dict[str, int] = {"all": 0, "": 1}
    nodes: list[list[Any]] = [[0, 1, FrameKind.UNKNOWN, -1, 0.0, 0.0]]
    known: dict[tuple[int, str], int] = {}
    for stack, new, base in rows:
        at = 0
        for frame in stack:
            if (at, frame) not in known:
                kind, name = FrameKind.KERNEL, frame
                if len(frame) > 2 and frame[1] == ":" and frame[0] in kinds:
                    kind, name = kinds[frame[0]], frame[2:]
                module, _, name = name.rpartition("`")
                known[at, frame] = len(nodes)
                nodes.append(
                    [
                        strings.setdefault(name, len(strings)),
                        strings.setdefault(module, len(strings)),
                        kind,
                        at,
                        0.0,
                        0.0,
                    ]
                )
            at = known[at, frame]
        nodes[at][4] += new
        nodes[at][5] += base
    name, module, kind, parent, self_new, self_base = (list(c) for c in zip(*nodes, strict=True))
    return FlameTree(
        strings=tuple(strings),
        name=np.array(name, "u4"),
        module=np.array(module, "u4"),
        kind=np.array(kind, "u1"),
        parent=np.array(parent, "i4"),
        self_new=np.array(self_new),
        self_base=np.array(self_base),
        samples_new=np.round(np.array(self_new) / ns_per_tick),
        samples_base=np.round(np.array(self_base) / ns_per_tick),
        measure=measure,
        differential=differential,
        title=title,
        base_title="host" if differential else "",
        notes=notes,
        findings=findings or {},
    )


SYSCALL = (
    "u:netperf`send_udp_rr",
    "entry_SYSCALL_64_after_hwframe",
    "do_syscall_64",
    "__x64_sys_sendto",
    "__sys_sendto",
)
SEND = (
    *SYSCALL,
    "sock_sendmsg",
    "udp_sendmsg",
    "udp_send_skb",
    "ip_send_skb",
    "ip_output",
    "ip_finish_output2",
    "__dev_queue_xmit",
)
SOFT = (
    "do_softirq",
    "__do_softirq",
    "net_rx_action",
    "__napi_poll",
    "process_backlog",
    "__netif_receive_skb_one_core",
)


def datapath() -> list[Row]:
    """A small but lifelike UDP_RR path: host against veth and bridge (ns a transaction, new and base)."""
    return [
        ((*SYSCALL, "sock_sendmsg", "udp_sendmsg", "ip_route_output_flow"), 220, 210),
        ((*SYSCALL, "sock_sendmsg", "udp_sendmsg", "sock_alloc_send_pskb", "kmem_cache_alloc_node"), 310, 300),
        ((*SYSCALL, "sock_sendmsg", "udp_sendmsg", "_copy_from_iter"), 120, 118),
        ((*SEND, "dev_hard_start_xmit", "veth`veth_xmit"), 260, 150),
        ((*SEND, "dev_hard_start_xmit", "veth`veth_xmit", "__netif_rx"), 140, 80),
        ((*SEND, "_raw_spin_lock"), 90, 70),
        ((*SEND, "qdisc_old_path", "fq_dequeue"), 0, 160),
        ((*SYSCALL, *SOFT, "ip_rcv", "udp_rcv", "sock_def_readable"), 700, 690),
        ((*SYSCALL, *SOFT, "ip_rcv", "udp_rcv"), 210, 190),
        ((*SYSCALL, *SOFT, "__netif_receive_skb_core", "bridge`br_handle_frame", "br_handle_frame_finish"), 340, 0),
        (
            (*SYSCALL, *SOFT, "__netif_receive_skb_core", "bridge`br_handle_frame", "br_forward", "dev_queue_xmit"),
            260,
            0,
        ),
        ((*SYSCALL, *SOFT, "__netif_receive_skb_core", "bridge`br_handle_frame", "fdb_find_rcu"), 180, 0),
        ((*SYSCALL, *SOFT, "b:bpf_prog_6deef7357e7b4530_sd_fw_ingress"), 60, 0),
        ((*SYSCALL, *SOFT, "p:bpf_prog_nsprof_sample"), 12, 11),
        (
            (
                "u:netperf`recv_udp_rr",
                "entry_SYSCALL_64_after_hwframe",
                "do_syscall_64",
                "__x64_sys_recvfrom",
                "schedule",
                "__schedule",
            ),
            400,
            410,
        ),
        (
            (
                "u:netperf`recv_udp_rr",
                "entry_SYSCALL_64_after_hwframe",
                "do_syscall_64",
                "__x64_sys_recvfrom",
                "udp_recvmsg",
            ),
            180,
            178,
        ),
    ]


FINDINGS: dict[str, dict[str, Any]] = {
    "br_handle_frame_finish": {"verdict": "+", "q": 0.003, "low": 310.0, "high": 372.0},
    "dev_queue_xmit": {"verdict": "+", "q": 0.004, "low": 230.0, "high": 290.0},
    "fdb_find_rcu": {"verdict": "+", "q": 0.004, "low": 160.0, "high": 200.0},
    "veth_xmit": {"verdict": "+", "q": 0.01, "low": 90.0, "high": 130.0},
    "__netif_rx": {"verdict": "+", "q": 0.02, "low": 40.0, "high": 80.0},
    "fq_dequeue": {"verdict": "-", "q": 0.01, "low": -170.0, "high": -150.0},
    "udp_rcv": {"verdict": "~", "q": 0.4, "low": -10.0, "high": 50.0},
    "__schedule": {"verdict": "~", "q": 0.7, "low": -60.0, "high": 40.0},
}

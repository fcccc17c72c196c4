"""The per-CPU backlog is full."""

from __future__ import annotations

from nsprof.analyse.causes.look import lowered, share_of, slower
from nsprof.analyse.causes.rule import Rule, Try

RULE = Rule(
    name="backlog-overflow",
    title="the per-CPU backlog overflows (softnet drops)",
    what="netif_rx queues packets of virtual devices on a CPU; beyond netdev_max_backlog they are dropped unseen.",
    checks=(
        share_of(
            "dropped",
            of=("processed",),
            least=0.001,
            noun="packets dropped at the backlog",
            scope="softnet",
            why="loss below a thousandth does not limit a short path (Mathis)",
        ),
        lowered("net.core.netdev_max_backlog", noun="a shorter backlog than at base"),
        slower(),
    ),
    not_cpu=True,
    tries=(
        Try(
            "spread over CPUs with RPS; a longer backlog helps against bursts only",
            "sysctl -w net.core.netdev_max_backlog=10000",
        ),
    ),
    source="net/core/dev.c enqueue_to_backlog(); /proc/net/softnet_stat column 2",
    threshold="one packet in a thousand",
)

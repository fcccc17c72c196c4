"""Softirqs run out of budget."""

from __future__ import annotations

from nsprof.analyse.causes.look import lowered, share_of, slower
from nsprof.analyse.causes.rule import Rule, Try

RULE = Rule(
    name="time-squeeze",
    title="receive softirqs run out of budget (time squeeze)",
    what="net_rx_action stops after netdev_budget packets or netdev_budget_usecs and leaves the rest to a later "
    "softirq "
    "or to ksoftirqd: latency, and less batching.",
    checks=(
        share_of(
            "time_squeeze",
            of=("processed",),
            least=0.003,
            noun="softirqs cut short, of packets processed",
            scope="softnet",
            why="the default budget is 300 packets: once in 300 packets means always",
        ),
        lowered(
            "net.core.netdev_budget",
            "net.core.netdev_budget_usecs",
            "net.core.dev_weight",
            noun="a smaller budget than at base",
        ),
        slower(),
    ),
    not_cpu=True,
    tries=(Try("raise the budget", "sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000"),),
    source="net/core/dev.c net_rx_action(); /proc/net/softnet_stat column 3",
    threshold="once in 300 packets",
)

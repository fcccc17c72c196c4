"""Packets dropped at a device or its queue."""

from __future__ import annotations

from nsprof.analyse.causes.look import share_of, slower
from nsprof.analyse.causes.rule import Rule, Try

RULE = Rule(
    name="device-drops",
    title="packets are dropped at a device or its queue",
    what="A full queue, a full receiver or a device without carrier drops what has already cost the path up to "
    "there.",
    checks=(
        share_of(
            "rx_dropped",
            "tx_dropped",
            "qdisc.drops",
            "rx_missed_errors",
            of=("tx_packets",),
            least=0.001,
            noun="packets dropped at devices",
            scope="device",
            why="loss below a thousandth does not limit a short path (Mathis)",
        ),
        slower(),
    ),
    not_cpu=True,
    tries=(
        Try("see which counter moves, and who fills the queue", "ip -s -s link show DEV; tc -s qdisc show dev DEV"),
    ),
    source="Documentation/networking/statistics.rst",
    threshold="one packet in a thousand",
)

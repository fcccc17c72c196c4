"""Receive offload lost: many small skbs arrive where few large ones did."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, offload_lost, size
from nsprof.analyse.causes.rule import Rule, Seen, Spread, Try


def _ratio(case: Case) -> float:
    totals = []
    for side in (case.base, case.new):
        rows = [float((v / side.units).mean()) for p, v in side.rows("Ip.InReceives", "netns")]
        totals.append(max(rows, default=0.0))
    return totals[1] / totals[0] if totals[0] > 0 else 1.0


def _look(case: Case) -> Seen | None:
    ratio = _ratio(case)
    if case.per != "kb" or ratio < 1.25:
        return None
    return Seen("counters", f"{size(ratio)} times as many packets reach IP for the same {case.per}")


RULE = Rule(
    name="gro-lost",
    title="receive offload (GRO) is lost: packets are not joined",
    what="Without GRO every segment climbs the stack alone, with its own look-ups and ACKs.",
    checks=(
        offload_lost("rx-gro", "rx-gro-hw", "rx-lro", about="GRO on at base is off"),
        more(
            _look,
            "counters",
            "1.25 times as many packets reach IP: coalescing by itself varies by a tenth",
            must=True,
        ),
    ),
    spread=Spread(
        _ratio,
        "the receive path, once a packet",
        (
            "TCP",
            "IP",
            "routing",
            "softirq and backlog",
            "GRO/GSO",
            "skb alloc/free",
            "memory",
            "netfilter/conntrack",
            "locking",
            "veth",
            "bridge",
            "skid",
            "other",
        ),
    ),
    tries=(Try("switch GRO on", "ethtool -K DEV gro on"),),
    source="net/core/gro.c",
    threshold="1.25 times as many packets",
)

"""Receive offload lost: many small skbs arrive where few large ones did."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.look import RECEIVE, more, offload_lost, size
from nsprof.analyse.causes.rule import Rule, Seen, Spread, Try

#: Coalescing by itself varies by a tenth.
_LEAST = 1.25


def _packets(side: Side) -> tuple[float, float]:
    """(packets that reach IP in the namespace with most, packets that the busiest device receives) a unit."""
    at_ip = [float((v / side.units).mean()) for _, v in side.rows("Ip*.InReceives", "netns")]
    at_device = [
        float((v / side.units).mean()) for p, v in side.rows("rx_packets", "device") if not p.startswith("lo in ")
    ]
    return max(at_ip, default=0.0), max(at_device, default=0.0)


def _ratio(case: Case) -> float:
    """How many times as many packets reach IP, beyond what the devices receive more."""
    (ip_base, wire_base), (ip_new, wire_new) = _packets(case.base), _packets(case.new)
    if min(ip_base, wire_base, wire_new) <= 0:
        return 1.0
    return (ip_new / ip_base) / max(1.0, wire_new / wire_base)


def _look(case: Case) -> Seen | None:
    ratio = _ratio(case)
    if case.per != "kb" or ratio < _LEAST:
        return None
    return Seen(
        "counters", f"{size(ratio)} times as many packets reach IP while the devices receive as many as before"
    )


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
        (*RECEIVE, "TCP", "GRO/GSO", "netfilter/conntrack"),
    ),
    tries=(Try("switch GRO on", "ethtool -K DEV gro on"),),
    source="net/core/gro.c",
    threshold="1.25 times as many packets",
)

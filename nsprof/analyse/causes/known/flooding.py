"""A bridge sends packets to all ports."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import datapath_more, more, no_device, size
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Spread, Try, words


def _sent(case: Case) -> float:
    """Packets received by devices other than the busiest two, a packet sent by the busiest."""
    rows = sorted(
        (float(v.sum()) for p, v in case.new.rows("tx_packets", "device") if not p.startswith("lo in ")), reverse=True
    )
    return sum(rows) / rows[0] if rows and rows[0] else 0.0


def _base(case: Case) -> float:
    rows = sorted(
        (float(v.sum()) for p, v in case.base.rows("tx_packets", "device") if not p.startswith("lo in ")),
        reverse=True,
    )
    return sum(rows) / rows[0] if rows and rows[0] else 0.0


def _copies(case: Case) -> Seen | None:
    base, new = _base(case), _sent(case)
    if new < base + 2:
        return None
    return Seen(
        "counters", f"all devices together send {size(new)} times what the busiest sends (base: {size(base)})"
    )


def _ratio(case: Case) -> float:
    return _sent(case) / max(_base(case), 1e-9)


RULE = Rule(
    name="flooding",
    title="a bridge floods packets to all its ports",
    what="A frame to an unknown or broadcast address is cloned for every port, and every clone is received and "
    "thrown "
    "away by a stack of its own.",
    owns=(Owned(words("br_flood br_multicast_flood deliver_clone maybe_deliver")),),
    signature=words("br_flood"),
    checks=(
        more(_copies, "counters", "two copies more than at base, for every packet"),
        datapath_more("bridge_ports", "bridge ports"),
    ),
    spread=Spread(
        _ratio,
        "every clone is received by its port's stack",
        (
            "softirq and backlog",
            "IP",
            "skb alloc/free",
            "memory",
            "veth",
            "bridge",
            "UDP",
            "skid",
            "other",
            "locking",
            "qdisc and xmit",
            "scheduling",
            "neighbour",
            "routing",
        ),
    ),
    contradictions=(no_device("bridge"),),
    tries=(Try("let the bridge learn, or enter the address", "bridge fdb add MAC dev PORT master static"),),
    source="net/bridge/br_forward.c br_flood()",
    threshold="two copies a packet",
)

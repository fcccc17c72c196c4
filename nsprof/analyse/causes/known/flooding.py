"""A bridge sends packets to all ports."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.look import PATH, datapath_more, more, no_device, size
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Spread, Try, words


def _copies(case: Case, side: Side) -> float:
    """Packets that the ports of a bridge send for each that they receive, in the namespace where that is most."""
    most = 0.0
    for space, facts in case.spaces(side):
        devices = facts.get("devices") or {}
        if not any(d.get("kind") == "bridge" for d in devices.values()):
            continue
        ports = {f"{n} in {space}" for n, d in devices.items() if n != "lo" and d.get("kind") != "bridge"}
        sent, received = (
            sum(float(v.sum()) for place, v in side.rows(name, "device") if place in ports)
            for name in ("tx_packets", "rx_packets")
        )
        most = max(most, sent / received if received else 0.0)
    return most


def _flooded(case: Case) -> Seen | None:
    base, new = (_copies(case, side) for side in (case.base, case.new))
    if new < 2 or new < base + 1:
        return None
    return Seen(
        "counters", f"a bridge's ports send {size(new)} packets for each that they receive (base: {size(base)})"
    )


def _ratio(case: Case) -> float:
    """Stacks that a packet passes: those of all copies and the sender's."""
    base, new = (1 + max(1.0, _copies(case, side)) for side in (case.base, case.new))
    return new / base


RULE = Rule(
    name="flooding",
    title="a bridge floods packets to all its ports",
    what="A frame to an unknown or broadcast address is cloned for every port, and every clone is received and "
    "thrown "
    "away by a stack of its own.",
    owns=(Owned(words("br_flood br_multicast_flood deliver_clone maybe_deliver")),),
    signature=words("br_flood"),
    checks=(
        more(
            _flooded,
            "counters",
            "two packets leave a bridge for each that enters, one more than at base: what is forwarded leaves once",
            must=True,
        ),
        datapath_more("bridge_ports", "bridge ports"),
    ),
    spread=Spread(
        _ratio,
        "every clone is received by its port's stack",
        (*PATH, "UDP"),
    ),
    # Each copy leaves through a pair of its own and passes the bridge's hooks.
    absorbs=("extra-hop-veth", "extra-hop-bridge", "bridge-netfilter"),
    contradictions=(no_device("bridge"),),
    tries=(Try("let the bridge learn, or enter the address", "bridge fdb add MAC dev PORT master static"),),
    source="net/bridge/br_forward.c br_flood()",
    threshold="two copies a packet",
)

"""Segments smaller than before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import PATH, more, size
from nsprof.analyse.causes.rule import Rule, Seen, Spread, Try


def _segments(case: Case) -> float:
    found = []
    for side in (case.base, case.new):
        sent = float((side.total("Tcp.OutSegs", scope="netns") / side.units).mean())
        found.append(sent)
    return found[1] / found[0] if found[0] > 0 else 1.0


def _look(case: Case) -> Seen | None:
    ratio = _segments(case)
    if case.per != "kb" or ratio < 1.1:
        return None
    return Seen("counters", f"{size(ratio)} times as many TCP segments for the same KB")


def _smaller(case: Case) -> Seen | None:
    before: dict[tuple[str, str], Any] = {(s, n): f.get("mtu") for s, n, f in case.devices(case.base)}

    def mtu(facts: Mapping[str, Any]) -> int:
        return int(facts.get("mtu") or 0)

    for space, name, facts in case.devices(case.new):
        old = before.get((space, name))
        if old and mtu(facts) < old:
            return Seen("host", f"MTU {mtu(facts)} on {name} in {space} (base: {old})", f"{name} in {space}")
    return None


RULE = Rule(
    name="mtu-small",
    title="the MTU is smaller than it could be: more segments for the same bytes",
    what="Costs per segment (and per ACK) are paid more often.",
    checks=(
        more(_look, "counters", "a tenth more segments for the same bytes", must=True),
        more(_smaller, "host", "a device whose MTU is smaller than at base", must=True),
    ),
    spread=Spread(
        _segments,
        "the path once a segment",
        (*PATH, "TCP", "GRO/GSO", "netfilter/conntrack", "copy", "checksum"),
    ),
    # More segments for the same bytes means more to cut.
    absorbs=("software-segmentation",),
    tries=(Try("give all devices of the path the path's MTU", "ip link set DEV mtu 9000"),),
    source="RFC 6691 (MSS = MTU - headers)",
    threshold="a tenth more segments",
)

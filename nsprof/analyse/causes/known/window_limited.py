"""TCP waits for the receiver's or the sender's window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import STREAM, busy_share, more, moves, skbs_per_unit, slower, workload
from nsprof.analyse.causes.rule import Rule, Seen, Spread, Try

_SIZES = workload(("-s", "-S", "-w"))
_SLOWER = slower()


def _zero(case: Case) -> Seen | None:
    names = (
        "TcpExt.TCPToZeroWindowAdv",
        "TcpExt.TCPFromZeroWindowAdv",
        "TcpExt.TCPWantZeroWindowAdv",
        "TcpExt.TCPRcvQDrop",
        "TcpExt.TCPRcvCollapsed",
        "TcpExt.PruneCalled",
    )
    moved = case.moved(*names, scope="netns")
    per_segment = float(case.new.total(*names, scope="netns").sum()) / max(
        1.0, float(case.new.total("Tcp.OutSegs", scope="netns").sum())
    )
    if per_segment < 0.001 or moved.new.mean() < 3 * moved.base.mean() or not moves(moved.base, moved.new):
        return None
    return Seen(
        "counters",
        f"zero windows or a full receive queue {per_segment:.2%} of the segments",
        moved.place,
        per_segment,
    )


def _smaller(case: Case) -> Seen | None:
    one, two = _SIZES(case.base), _SIZES(case.new)
    return (
        Seen("workload", f"socket buffers {', '.join(two)} (base: {', '.join(one) or 'default'})")
        if two and one != two
        else None
    )


def _limits(case: Case) -> Seen | None:
    """Limits of auto-tuning (the largest of the three values) below base's."""
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        before = {space: _largest(facts, name) for space, facts in case.spaces(case.base)}
        usual = min(filter(None, before.values()), default=0)
        for space, facts in case.spaces(case.new):
            now, old = _largest(facts, name), before.get(space, usual)
            if 0 < now < old:
                return Seen("host", f"{name} ends at {now:,} bytes in {space} (base: {old:,})", space)
    return None


def _largest(facts: Mapping[str, Any], name: str) -> int:
    sizes = str((facts.get("sysctl") or {}).get(name, "")).split()
    return int(sizes[-1]) if sizes and sizes[-1].isdecimal() else 0


def _gathered(case: Case) -> Seen | None:
    ratio = skbs_per_unit(case)
    if case.per != "kb" or ratio < 1.25:
        return None
    return Seen("counters", f"{ratio:.3g} times as many skbs for the same KB: no more than a window is sent at once")


def _window(case: Case) -> Seen | None:
    sent = (case.new.total(n, scope="netns").sum() for n in ("Tcp.OutSegs", "Udp.OutDatagrams"))
    segments, datagrams = (float(n) for n in sent)
    if segments < datagrams:
        return None
    # Smaller buffers that cost no throughput limit nothing.
    return _zero(case) or ((_limits(case) or _smaller(case)) if _SLOWER.look(case) else None)


def _waiting(case: Case) -> Seen | None:
    busy = busy_share(case.new)
    return Seen("counters", f"the CPU under test is busy {busy:.0%} only") if busy < 0.9 else None


RULE = Rule(
    name="window-limited",
    title="TCP waits for a window (receiver or socket buffer too small)",
    what="No more than a window can be under way; rate = window / round trip, and CPUs wait meanwhile.",
    checks=(
        _SLOWER,
        more(
            _window,
            "counters",
            "zero windows or a pruned queue on one segment in a thousand and 3 times base's, or with less throughput "
            "other socket buffers or lower limits of auto-tuning (tcp_rmem, tcp_wmem)",
            must=True,
        ),
        more(_gathered, "counters", "1.25 times as many skbs a unit: the sender never gathers more than a window"),
        more(_waiting, "counters", "the busiest CPU under test is busy less than 90 %"),
    ),
    not_cpu=True,
    spread=Spread(
        skbs_per_unit,
        "the path per skb, and a wake-up a window",
        (*STREAM, "user"),
    ),
    tries=(
        Try(
            "leave the buffers to auto-tuning, and raise its limits",
            "sysctl -w net.ipv4.tcp_rmem='4096 131072 33554432'",
        ),
    ),
    source="RFC 7323 section 1.1 (rate = window / RTT); tcp(7)",
    threshold="one segment in a thousand",
)

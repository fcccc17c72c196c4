"""Large packets vanish: path MTU discovery does not work."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, mtu_differs, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try


def _timeouts(case: Case) -> Seen | None:
    names = ("TcpExt.TCPTimeouts", "TcpExt.TCPMTUPFail", "TcpExt.TCPMTUPSuccess")
    moved = case.moved(*names, scope="netns")
    stalled = float(case.new.total(*names, scope="netns").sum())
    before = float(case.base.total(*names, scope="netns").sum())
    if stalled < 1 or stalled <= 3 * before:
        return None
    return Seen(
        "counters", f"{stalled:.0f} timeouts of retransmission or MTU probes (base: {before:.0f})", moved.place
    )


def _told(case: Case) -> Seen | None:
    fails = float(case.new.total("Ip.FragFails", "Ip6.FragFails", scope="netns").sum())
    before = float(case.base.total("Ip.FragFails", "Ip6.FragFails", scope="netns").sum())
    if fails < 1 or fails <= 3 * before:
        return None
    return Seen(
        "counters",
        f"{fails:.0f} packets too large to go on (FragFails, base: {before:.0f})",
        case.moved("Ip.FragFails", "Ip6.FragFails").place,
    )


RULE = Rule(
    name="pmtu-black-hole",
    title="large packets vanish (path MTU black hole)",
    what="A router drops what is too large and its ICMP message does not arrive; TCP repeats the same segment "
    "until it "
    "times out.",
    checks=(
        more(_timeouts, "counters", "timeouts or MTU probes, 3 times base's", must=True),
        more(_told, "counters", "FragFails moves, 3 times base's", must=True),
        slower(0.5, must=True),
        mtu_differs(),
    ),
    # The segment that is too large is sent again until somebody notices.
    subsumes=("retransmits",),
    not_cpu=True,
    tries=(Try("let ICMP 'fragmentation needed' pass, or clamp the MSS", "sysctl -w net.ipv4.tcp_mtu_probing=1"),),
    source="RFC 2923 section 2.1, RFC 4821",
    threshold="any, where base has none: these do not happen on a sound path",
)

"""Segmentation in software, or none: many small skbs where one large one was."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import STREAM, ledger_rises, more, offload_lost, size, skbs_per_unit
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Spread, Try, words

#: One more skb for every four: a coalescing that varies by itself was seen to move by less than a tenth.
_RATIO = 1.25


def _ratio(case: Case) -> float:
    """How many times as many skbs; 1 for datagrams, of which none is cut: there a sender that outruns its reader
    shows as more packets for each that is read."""
    return skbs_per_unit(case) if case.per in ("kb", "operation", "transaction") and _by_tcp(case) else 1.0


def _by_tcp(case: Case) -> bool:
    return bool(case.new.rows("OutSegs", "netns")) or float(case.new.total("Tcp.OutSegs").sum()) > 0


def _skbs(case: Case) -> Seen | None:
    ratio = _ratio(case)
    if ratio < _RATIO:
        return None
    return Seen("counters", f"{size(ratio)} times as many skbs for the same {case.per} on the busiest device")


RULE = Rule(
    name="software-segmentation",
    title="large skbs are cut in software, or not made at all (TSO/GSO off)",
    what="With segmentation offload one skb of up to 64 KB passes the whole path; without, every segment of 1,448 "
    "bytes does, each with its own look-ups, queueing and wake-ups.",
    owns=(
        Owned(
            words(
                "__skb_gso_segment skb_mac_gso_segment skb_segment skb_segment_list tcp_gso_segment tcp4_gso_segment "
                "tcp6_gso_segment inet_gso_segment ipv6_gso_segment skb_gso_segment __udp_gso_segment "
                "udp4_ufo_fragment"
            )
        ),
    ),
    signature=words("skb_segment"),
    checks=(
        more(
            _skbs, "counters", f"{_RATIO} times as many skbs a unit of work: coalescing by itself varies by a tenth"
        ),
        ledger_rises("gso software", least=0.01, why="one in a hundred units already shows in a mean"),
        offload_lost(
            "tx-tcp-segmentation",
            "tx-tcp6-segmentation",
            "tx-generic-segmentation",
            "tx-scatter-gather",
            about="TSO, GSO or scatter-gather that is on at base is off",
        ),
    ),
    spread=Spread(
        _ratio,
        "the whole path per skb, as often as there are more skbs",
        (*STREAM, "checksum"),
    ),
    tries=(
        Try(
            "switch the offloads on, checksum offload first (TSO needs it)",
            "ethtool -K DEV tx on sg on tso on gso on",
        ),
    ),
    source="Documentation/networking/segmentation-offloads.rst",
    threshold=f"{_RATIO} times as many skbs a unit",
)

"""IP fragmentation and reassembly."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import PATH, more, mtu_differs, rises, size
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Spread, Try, words

_LEAST = 0.1


def _ratio(case: Case) -> float:
    made, cut = (
        float(case.new.total(f"Ip.{n}", f"Ip6.{n}", scope="netns").sum()) for n in ("FragCreates", "FragOKs")
    )
    return made / cut if cut else 1.0


def _each(case: Case) -> Seen | None:
    made = case.moved("Ip.FragCreates", "Ip6.FragCreates", scope="netns")
    if made.delta < _LEAST:
        return None
    return Seen(
        "counters",
        f"{size(_ratio(case))} fragments a datagram that is cut; {size(made.delta)} more FragCreates a {case.per}",
        made.place,
    )


RULE = Rule(
    name="ip-fragmentation",
    title="IP fragmentation and reassembly",
    what="Datagrams larger than a device's MTU are cut into fragments, each of which passes the rest of the "
    "path as a "
    "packet of its own and is kept in a queue until all have come.",
    owns=(
        Owned(
            words(
                "ip_do_fragment ip_fragment* ip6_fragment ip6_finish_output_gso_slowpath_drop ip_frag_* "
                "ip_fraglist_* "
                "ip_defrag ip_frag_queue inet_frag_* ip6_frag_* ipv6_frag_rcv ip_local_deliver_frag ip_check_defrag "
                "nf_ct_frag6_* ip_frag_reasm inet_frag_reasm_*"
            )
        ),
    ),
    signature=words("ip_do_fragment ip6_fragment ip_defrag ipv6_frag_rcv ip_frag_reasm"),
    checks=(
        more(_each, "counters", f"FragCreates rises by {_LEAST} a unit: one datagram in ten that is cut is no stray"),
        rises(
            "Ip.ReasmReqds",
            "Ip6.ReasmReqds",
            least=0.1,
            scope="netns",
            what="ReasmReqds",
            why="one datagram in ten that comes in pieces is no stray",
        ),
        mtu_differs(),
    ),
    spread=Spread(
        _ratio,
        "the rest of the path runs once a fragment",
        (*PATH, "other virtual device", "netfilter/conntrack", "UDP", "copy"),
    ),
    tries=(
        Try(
            "give all devices of the path one MTU, or lower the sender's datagram size below it",
            "ip link set DEV mtu 1500",
            "nstat -az IpFragCreates IpReasmReqds Ip6FragCreates Ip6ReasmReqds",
        ),
    ),
    # A datagram that is cut cannot leave its checksum to the device (udp_sendmsg, csummode in __ip_append_data).
    absorbs=("software-checksum",),
    source="RFC 791 section 2.3, RFC 8900; net/ipv4/ip_output.c ip_do_fragment()",
    threshold="a fragment for every tenth unit",
)

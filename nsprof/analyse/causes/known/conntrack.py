"""Connection tracking: a hash look-up and a state machine for every packet."""

from __future__ import annotations

from nsprof.analyse.causes.look import none_of, tracked
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="conntrack",
    title="connection tracking of every packet",
    what="A rule that needs state (ct, NAT, masquerade) makes the kernel look up a connection for every packet, and "
    "confirm a new one for every flow.",
    owns=(
        Owned(
            words(
                "nf_conntrack_* nf_ct_* __nf_conntrack_* __nf_ct_* ipv4_conntrack_* ipv6_conntrack_* "
                "resolve_normal_ct "
                "nf_confirm ipv4_confirm ipv6_confirm hash_conntrack_raw destroy_conntrack nf_conntrack_in "
                "tcp_in_window ipv4_conntrack_defrag ipv6_defrag nf_ct_get_tuple"
            ),
            not_under=words("nf_nat_masquerade_ipv4"),
        ),
    ),
    signature=words("nf_conntrack_in resolve_normal_ct"),
    checks=(tracked(),),
    contradictions=(none_of("conntrack_entries", "nft_rules", "iptables", noun="tracked connections or rules"),),
    tries=(
        Try("exempt the traffic from tracking (notrack in a raw chain)", "nft add rule ip raw prerouting notrack"),
    ),
    source="net/netfilter/nf_conntrack_core.c nf_conntrack_in()",
    threshold="no limit of its own: the functions run only where tracking is on",
    kernels=("nf_confirm was ipv4_confirm/ipv6_confirm before 6.0",),
)

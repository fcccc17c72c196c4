"""Network address translation."""

from __future__ import annotations

from nsprof.analyse.causes.look import none_of, space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="nat",
    title="network address translation",
    what="Addresses and checksums are rewritten in both directions, on top of connection tracking.",
    owns=(
        Owned(
            words(
                "nf_nat_* __nf_nat_* nft_nat_* nf_nat_inet_fn iptable_nat_* masquerade_* nft_masq_* "
                "l4proto_manip_pkt "
                "get_unique_tuple nf_xfrm_me_harder"
            )
        ),
    ),
    signature=words("nf_nat_inet_fn nf_nat_manip_pkt nf_nat_packet"),
    checks=(
        space_fact(
            lambda f: bool(
                (f.get("datapath") or {}).get("nft_rules") and (f.get("datapath") or {}).get("conntrack_entries")
            ),
            lambda space, now, before: f"rules and tracked connections in {space} (base: none)",
            "a namespace with both rules and tracked connections where base has not",
        ),
    ),
    contradictions=(none_of("nft_rules", "iptables", noun="netfilter rules"),),
    tries=(Try("route the containers' addresses instead of translating them", "ip route add POD_NET via HOST"),),
    source="net/netfilter/nf_nat_core.c nf_nat_inet_fn()",
    threshold="no limit of its own: the functions run only where NAT is configured",
)

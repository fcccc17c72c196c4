"""Netfilter rules that every packet walks through, one after the other."""

from __future__ import annotations

from nsprof.analyse.causes.look import datapath_more, none_of, space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

_COUNT = datapath_more("nft_rules", "nftables rules")
_LEGACY = space_fact(
    lambda f: (f.get("datapath") or {}).get("iptables"),
    lambda space, now, before: (
        f"iptables tables {', '.join(now)} in {space} (base: {', '.join(before or ()) or 'none'})"
    ),
    "iptables tables in a namespace that base has not",
)

RULE = Rule(
    name="netfilter-rules",
    title="netfilter rules evaluated one after the other",
    what="Rules of a chain are evaluated in order for every packet; a set or a map finds the verdict in one look-up.",
    owns=(
        Owned(
            words("nft_do_chain nft_do_chain_* ipt_do_table ip6t_do_table iptable_*_hook ip6table_*_hook nft_*"),
            not_under=words("nft_nat_do_chain nft_do_chain_bridge ebt_do_table br_nf_pre_routing br_nf_forward_ip"),
        ),
    ),
    signature=words("nft_do_chain ipt_do_table ip6t_do_table"),
    checks=(_COUNT, _LEGACY),
    contradictions=(none_of("nft_rules", "iptables", noun="netfilter rules"),),
    tries=(
        Try(
            "replace linear lists by sets, maps or verdict maps; move the usual verdict (established) to the front",
            "nft list ruleset",
        ),
    ),
    source="nftables wiki, 'Sets' and 'Verdict maps'; net/netfilter/nf_tables_core.c nft_do_chain()",
    threshold="no limit of its own: nft_do_chain runs only where a base chain is hooked",
    kernels=(
        "ipt_do_table took a state argument until 5.15",
        "nft_do_chain_inet and _ipv4 are inlined in some builds",
    ),
)

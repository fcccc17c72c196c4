"""Bridge-level filter rules."""

from __future__ import annotations

from nsprof.analyse.causes.look import datapath_more, no_device
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="ebtables",
    title="bridge filter rules (ebtables, nft bridge family)",
    what="Every frame that crosses the bridge walks the bridge family's chains.",
    owns=(Owned(words("ebt_do_table ebt_* ebtable_* nft_do_chain_bridge")),),
    signature=words("ebt_do_table nft_do_chain_bridge"),
    checks=(datapath_more("nft_rules", "nftables rules"),),
    contradictions=(no_device("bridge"),),
    tries=(Try("use sets in the bridge family, or filter at the routed hop", "nft list ruleset bridge"),),
    source="net/bridge/netfilter/ebtables.c, nf_tables_bridge.c",
    threshold="no limit of its own: runs only where the bridge family is hooked",
)

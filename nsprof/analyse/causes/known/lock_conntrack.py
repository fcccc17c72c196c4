"""Contention in connection tracking."""

from __future__ import annotations

from nsprof.analyse.causes.look import none_of, tracked
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="lock-conntrack",
    title="CPUs wait for connection tracking's locks",
    what="New and dying connections take locks of hash buckets; a full table is searched for victims.",
    owns=(
        Owned(
            words("native_queued_spin_lock_slowpath pv_queued_spin_lock_slowpath __pv_queued_spin_lock_slowpath"),
            under=words("nf_conntrack_* __nf_conntrack_* nf_ct_* __nf_ct_* nf_nat_*"),
        ),
        Owned(words("early_drop gc_worker nf_conntrack_double_lock nf_conntrack_all_lock")),
    ),
    checks=(tracked(),),
    contradictions=(none_of("conntrack_entries", "nft_rules", "iptables", noun="tracked connections or rules"),),
    tries=(
        Try(
            "exempt short connections from tracking; more buckets",
            "sysctl -w net.netfilter.nf_conntrack_buckets=262144",
        ),
    ),
    source="net/netfilter/nf_conntrack_core.c",
    threshold="2 % of the base's cost",
)

"""Contention in connection tracking."""

from __future__ import annotations

from nsprof.analyse.causes.look import space_fact
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
    checks=(
        space_fact(
            lambda f: bool((f.get("datapath") or {}).get("conntrack_entries")),
            lambda space, now, before: f"connections are tracked in {space} (base: none)",
            "a namespace with tracked connections where base has none",
        ),
    ),
    tries=(
        Try(
            "exempt short connections from tracking; more buckets",
            "sysctl -w net.netfilter.nf_conntrack_buckets=262144",
        ),
    ),
    source="net/netfilter/nf_conntrack_core.c",
    threshold="2 % of the base's cost",
)

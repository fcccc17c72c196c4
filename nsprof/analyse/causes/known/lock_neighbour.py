"""Contention on neighbour entries."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="lock-neighbour",
    title="CPUs wait for a neighbour entry's lock",
    what="Entries that are not permanent or are probed take a lock per packet; full tables are searched for garbage.",
    owns=(
        Owned(
            words(
                "native_queued_spin_lock_slowpath queued_read_lock_slowpath queued_write_lock_slowpath "
                "pv_queued_spin_lock_slowpath __pv_queued_spin_lock_slowpath"
            ),
            under=words("neigh_* __neigh_* ___neigh_create arp_* ndisc_* ip_neigh_*"),
        ),
        Owned(words("neigh_forced_gc ___neigh_create neigh_alloc")),
    ),
    tries=(Try("permanent entries, or larger tables", "sysctl -w net.ipv4.neigh.default.gc_thresh3=8192"),),
    source="net/core/neighbour.c",
    threshold="2 % of the base's cost",
)

"""Contention on routes and destination entries."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="lock-route",
    title="CPUs wait for route or destination entries",
    what="Reference counts and exception lists of a route are shared by all CPUs that use it.",
    owns=(
        Owned(
            words("native_queued_spin_lock_slowpath pv_queued_spin_lock_slowpath __pv_queued_spin_lock_slowpath"),
            under=words("ip_route_* fib_* rt_* dst_* ip6_route_* ip6_pol_route update_or_create_fnhe fnhe_*"),
        ),
    ),
    tries=(
        Try("see who takes it", "nsprof explain NEW --baseline BASE --function native_queued_spin_lock_slowpath"),
    ),
    source="net/ipv4/route.c",
    threshold="2 % of the base's cost",
)

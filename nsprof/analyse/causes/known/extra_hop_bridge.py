"""A bridge on the path."""

from __future__ import annotations

from nsprof.analyse.causes.look import no_device, space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="extra-hop-bridge",
    title="packets cross a bridge",
    what="The bridge learns the sender, looks up the receiver's port and sends the frame once more.",
    owns=(Owned(words("br_* __br_* fdb_* nbp_*"), not_under=words("br_flood")),),
    signature=words("br_handle_frame"),
    checks=(
        space_fact(
            lambda f: tuple(sorted(n for n, d in (f.get("devices") or {}).items() if d.get("kind") == "bridge")),
            lambda space, now, before: f"bridge {', '.join(now)} in {space} (base: none)",
            "a bridge in a namespace that has none at base",
        ),
    ),
    contradictions=(no_device("bridge"),),
    needs_check=True,
    tries=(
        Try(
            "route to the containers, or use macvlan on the wire, where no bridge is needed",
            "nsprof bench --scenario veth-bridge,veth-route,macvlan -- netperf -t UDP_RR",
        ),
    ),
    source="net/bridge/br_input.c br_handle_frame()",
    threshold="2 % of the base's cost",
)

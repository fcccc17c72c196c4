"""Packets are routed a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsprof.analyse.causes.look import rises, space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words


def _forwards(facts: Mapping[str, Any]) -> bool:
    """With one device there is nowhere to forward to, whatever the setting says."""
    settings, devices = facts.get("sysctl") or {}, facts.get("devices")
    several = devices is None or len([n for n in devices if n != "lo"]) > 1
    return several and (
        settings.get("net.ipv4.ip_forward") == "1" or settings.get("net.ipv6.conf.all.forwarding") == "1"
    )


RULE = Rule(
    name="extra-hop-routing",
    title="packets are routed once more (forwarding in the host)",
    what="The host receives, looks up the route, decrements the TTL and sends again what the container sent.",
    owns=(
        Owned(
            words(
                "ip_forward ip_forward_finish ip6_forward ip6_forward_finish ip_route_input_noref ip_route_input_rcu "
                "ip_route_input_slow ip6_route_input fib_validate_source __fib_validate_source ip_mkroute_input "
                "ip_rcv_finish_core ip6_rcv_finish_core"
            )
        ),
    ),
    signature=words("ip_forward ip6_forward"),
    checks=(
        rises(
            "Ip.ForwDatagrams",
            "Ip6.OutForwDatagrams",
            least=0.1,
            scope="netns",
            what="forwarded packets",
            why="one unit in ten that is forwarded is no stray",
        ),
        space_fact(
            _forwards,
            lambda space, now, before: f"forwarding is on in {space} (base: off)",
            "forwarding is on in a namespace with two devices or more, where it is off at base",
        ),
    ),
    needs_check=True,
    tries=(
        Try(
            "bridge or macvlan instead of routing",
            "nsprof bench --scenario veth-route,veth-bridge,macvlan -- netperf -t UDP_RR",
        ),
    ),
    source="net/ipv4/ip_forward.c",
    threshold="a forwarded packet for every tenth unit",
)

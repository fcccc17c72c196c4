"""br_netfilter: bridged frames pass the IP hooks of netfilter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsprof.analyse.causes.look import no_device, space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words


def _called(facts: Mapping[str, Any]) -> tuple[str, ...]:
    settings = facts.get("sysctl") or {}
    names = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")
    return tuple(n for n in names if settings.get(f"net.bridge.{n}") == "1")


RULE = Rule(
    name="bridge-netfilter",
    title="bridged packets go through the IP netfilter hooks",
    what="With bridge-nf-call-iptables every bridged packet is dressed up as a routed one: a FIB look-up, skb "
    "extensions, and all IP chains, conntrack included.",
    owns=(Owned(words("br_nf_* nf_bridge_* brnf_* setup_pre_routing br_validate_ipv4 br_validate_ipv6")),),
    signature=words("br_nf_pre_routing br_nf_post_routing br_nf_forward_ip br_nf_forward"),
    checks=(
        space_fact(
            _called,
            lambda space, now, before: f"{', '.join(now)} on in {space} (base: {', '.join(before or ()) or 'none'})",
            "net.bridge.bridge-nf-call-(ip|ip6|arp)tables is 1 in new and not at base",
        ),
    ),
    contradictions=(no_device("bridge"),),
    tries=(
        Try(
            "switch it off where no rule is meant for bridged traffic",
            "ip netns exec NETNS sysctl -w net.bridge.bridge-nf-call-iptables=0",
        ),
    ),
    source="net/bridge/br_netfilter_hooks.c",
    threshold="no limit of its own: the functions run only with br_netfilter hooked",
    kernels=("br_nf_forward_ip is br_nf_forward since 6.8",),
)

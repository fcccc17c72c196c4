"""br_netfilter: bridged frames pass the IP hooks of netfilter."""

from __future__ import annotations

from nsprof.analyse.causes.look import space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="bridge-netfilter",
    title="bridged packets go through the IP netfilter hooks",
    what="With bridge-nf-call-iptables every bridged packet is dressed up as a routed one: a FIB look-up, skb "
    "extensions, and all IP chains, conntrack included.",
    owns=(
        Owned(words("br_nf_* nf_bridge_* brnf_* setup_pre_routing br_validate_ipv4 br_validate_ipv6 ip_sabotage_in")),
    ),
    signature=words("br_nf_pre_routing br_nf_post_routing br_nf_forward_ip br_nf_forward"),
    checks=(
        space_fact(
            lambda f: (
                (f.get("sysctl") or {}).get("net.bridge.bridge-nf-call-iptables") == "1"
                or (f.get("sysctl") or {}).get("net.bridge.bridge-nf-call-ip6tables") == "1"
            ),
            lambda space, now, before: f"bridge-nf-call-iptables is on in {space} (base: off, or no such namespace)",
            "net.bridge.bridge-nf-call-ip(6)tables is 1 in new and not at base",
        ),
    ),
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

"""br_netfilter: bridged frames pass the IP hooks of netfilter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, no_device
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Try, words

_NAMES = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables")


def _bridges(facts: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(n for n, d in (facts.get("devices") or {}).items() if d.get("kind") == "bridge"))


def _on(facts: Mapping[str, Any]) -> tuple[str, ...]:
    settings = facts.get("sysctl") or {}
    return tuple(n for n in _NAMES if settings.get(f"net.bridge.{n}") == "1")


def _passed(case: Case) -> Seen | None:
    """The setting counts in the namespace that owns a bridge, and nowhere else: it is 1 by default everywhere."""
    before = dict(case.spaces(case.base))
    for space, facts in case.spaces(case.new):
        bridges, on, old = _bridges(facts), _on(facts), before.get(space, {})
        if bridges and on and not (_bridges(old) and set(on) <= set(_on(old))):
            was = ("off" if not _on(old) else ", ".join(_on(old))) if _bridges(old) else "no bridge there"
            return Seen("host", f"{', '.join(on)} on in {space}, where bridge {bridges[0]} is (base: {was})", space)
    return None


RULE = Rule(
    name="bridge-netfilter",
    title="bridged packets go through the IP netfilter hooks",
    what="With bridge-nf-call-iptables every bridged packet is dressed up as a routed one: a FIB look-up, skb "
    "extensions, and all IP chains, conntrack included.",
    owns=(
        Owned(
            words("br_nf_* nf_bridge_* brnf_* setup_pre_routing br_validate_ipv4 br_validate_ipv6"),
            # It calls the bridge's next step itself where the bridge would have.
            passes_to=words(
                "br_handle_frame_finish br_forward_finish br_dev_queue_push_xmit br_pass_frame_up "
                "br_netif_receive_skb br_handle_local_finish"
            ),
        ),
    ),
    signature=words("br_nf_pre_routing br_nf_post_routing br_nf_forward_ip br_nf_forward"),
    checks=(
        more(
            _passed,
            "host",
            "net.bridge.bridge-nf-call-(ip|ip6)tables is 1 in a namespace with a bridge, and not so at base",
            "nsprof bench, or nsprof record --in NETNS (settings of the namespace)",
        ),
    ),
    contradictions=(no_device("bridge"),),
    tries=(
        Try(
            "switch it off where no rule is meant for bridged traffic",
            "sysctl -w net.bridge.bridge-nf-call-iptables=0",
        ),
    ),
    source="net/bridge/br_netfilter_hooks.c",
    threshold="no limit of its own: the functions run only with br_netfilter hooked",
    kernels=("br_nf_forward_ip is br_nf_forward since 6.8",),
)

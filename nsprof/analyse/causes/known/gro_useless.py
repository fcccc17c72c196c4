"""GRO that joins nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsprof.analyse.causes.look import device_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

#: Kinds of devices whose packets pass GRO: those with a NAPI or GRO cells. On a bridge the feature means nothing.
_RECEIVERS = {None, "", "veth", "tun", "vxlan", "geneve", "gre", "gretap", "ipip", "wireguard"}


def _on(facts: Mapping[str, Any]) -> bool:
    return facts.get("kind") in _RECEIVERS and bool((facts.get("offloads") or {}).get("rx-gro"))


RULE = Rule(
    name="gro-useless",
    title="GRO costs and joins nothing",
    what="GRO compares each packet with those held back; small requests and mixed flows are never joined, and "
    "on veth it "
    "brings NAPI and a copy of its own.",
    owns=(
        Owned(
            words(
                "dev_gro_receive napi_gro_receive gro_receive_skb napi_gro_flush __napi_gro_flush inet_gro_receive "
                "tcp4_gro_receive tcp6_gro_receive udp4_gro_receive udp6_gro_receive gro_normal_list "
                "napi_gro_complete "
                "skb_gro_receive gro_complete gro_flush_normal __gro_flush"
            ),
            not_under=words("gro_cell_poll vxlan_rcv"),
        ),
    ),
    signature=words("dev_gro_receive"),
    checks=(
        device_fact(
            _on,
            lambda space, name, now, before: f"GRO is on for {name} in {space} (base: off)",
            "GRO on where it is off at base",
        ),
    ),
    tries=(Try("switch GRO off for request traffic on this device", "ethtool -K DEV gro off"),),
    source="net/core/gro.c dev_gro_receive(); drivers/net/veth.c veth_set_features()",
    threshold="2 % of the base's cost",
)

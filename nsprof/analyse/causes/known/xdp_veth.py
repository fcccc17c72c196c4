"""XDP on a veth device: skbs are turned into XDP buffers and back."""

from __future__ import annotations

from nsprof.analyse.causes.look import space_fact
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="xdp-veth",
    title="XDP on a veth device: packets are copied into XDP buffers",
    what="With an XDP program (or GRO) on veth its NAPI takes the packets; skbs whose head is shared or too "
    "short are "
    "copied to pages first.",
    owns=(
        Owned(
            words(
                "veth_xdp_rcv_skb veth_convert_skb_to_xdp_buff veth_xdp_rcv veth_poll skb_pp_cow_data "
                "skb_cow_data_for_xdp"
            )
        ),
    ),
    signature=words("veth_xdp_rcv_skb veth_convert_skb_to_xdp_buff"),
    checks=(
        space_fact(
            lambda f: tuple(d for d, m in ((f.get("datapath") or {}).get("xdp") or {}).items() if m == "driver"),
            lambda space, now, before: f"XDP in driver mode on {', '.join(now)} in {space} (base: none)",
            "a device with an XDP program in driver mode that base has not",
        ),
    ),
    tries=(Try("attach to tc of the pair instead, or to the physical device", "ip link set dev DEV xdp off"),),
    source="drivers/net/veth.c veth_convert_skb_to_xdp_buff()",
    threshold="no limit of its own: runs only with XDP on veth",
)

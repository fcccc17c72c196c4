"""XDP on a veth device: skbs are turned into XDP buffers and back."""

from __future__ import annotations

from nsprof.analyse.causes.look import STREAM, none_of, skbs_per_unit, xdp_mode
from nsprof.analyse.causes.rule import Owned, Rule, Spread, Try, words

RULE = Rule(
    name="xdp-veth",
    title="XDP on a veth device: packets are copied into XDP buffers",
    what="With an XDP program (or GRO) on veth its NAPI takes the packets; skbs whose head is shared or too "
    "short are "
    "copied to pages first.",
    owns=(
        Owned(words("veth_xdp_rcv_skb veth_convert_skb_to_xdp_buff skb_pp_cow_data skb_cow_data_for_xdp")),
        Owned(words("veth_xdp_rcv veth_poll"), leaf=True),
    ),
    signature=words("veth_xdp_rcv_skb veth_convert_skb_to_xdp_buff"),
    checks=(xdp_mode("driver"),),
    # The peer of a veth with XDP loses GSO (veth_set_features and veth_xdp_set): every segment travels alone.
    spread=Spread(
        skbs_per_unit,
        "the whole path per skb, as often as there are more skbs",
        (*STREAM, "checksum", "BPF"),
    ),
    subsumes=("software-segmentation", "gro-useless"),
    contradictions=(none_of("xdp", noun="an XDP program"),),
    tries=(Try("attach to tc of the pair instead, or to the physical device", "ip link set dev DEV xdp off"),),
    source="drivers/net/veth.c veth_convert_skb_to_xdp_buff()",
    threshold="no limit of its own: runs only with XDP on veth",
)

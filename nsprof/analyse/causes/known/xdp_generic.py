"""An XDP program in generic (skb) mode."""

from __future__ import annotations

from nsprof.analyse.causes.look import none_of, xdp_mode
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="xdp-generic",
    title="an XDP program in generic (skb) mode",
    what="Generic XDP runs after the skb is built and makes its data linear and its headroom large first, which "
    "copies "
    "what is not.",
    owns=(
        Owned(
            words(
                "do_xdp_generic netif_receive_generic_xdp netif_skb_check_for_xdp bpf_prog_run_generic_xdp "
                "generic_xdp_tx"
            )
        ),
    ),
    signature=words("do_xdp_generic netif_receive_generic_xdp bpf_prog_run_generic_xdp"),
    checks=(xdp_mode("generic"),),
    contradictions=(none_of("xdp", noun="an XDP program"),),
    tries=(Try("attach in driver mode where the driver can, or use tc", "ip link set dev DEV xdpdrv obj PROG.o"),),
    source="net/core/dev.c netif_receive_generic_xdp()",
    threshold="no limit of its own: runs only with generic XDP",
    kernels=("netif_skb_check_for_xdp is new in 6.9",),
)

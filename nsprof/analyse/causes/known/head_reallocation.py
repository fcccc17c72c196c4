"""Heads of skbs reallocated for want of headroom or because they are shared."""

from __future__ import annotations

from nsprof.analyse.causes.look import ledger_rises
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="head-reallocation",
    title="skb heads are copied into new memory (headroom, cloned headers)",
    what="A device that pushes more header than the headroom reserved for it, or writes into a cloned head, "
    "makes the "
    "kernel allocate a new head and copy the old one. The function itself looks cheap, its memcpy and slab frames do "
    "not.",
    owns=(
        Owned(
            words(
                "pskb_expand_head skb_expand_head skb_realloc_headroom skb_cow_head __skb_cow skb_copy_expand "
                "skb_ensure_writable skb_try_make_writable skb_cow_data skb_unshare skb_copy skb_unclone"
            ),
            not_under=words(
                "veth_convert_skb_to_xdp_buff veth_xdp_rcv_skb do_xdp_generic netif_receive_generic_xdp "
                "netif_skb_check_for_xdp"
            ),
        ),
    ),
    signature=words("pskb_expand_head"),
    checks=(ledger_rises("head realloc", least=0.05, why="one in twenty packets already shows in a mean"),),
    tries=(
        Try(
            "find who lacks headroom in the callers of pskb_expand_head; raise needed_headroom or the MTU of "
            "that device",
            "nsprof explain NEW --baseline BASE --function pskb_expand_head",
        ),
    ),
    source="source document 002 (pskb_expand_head); net/core/skbuff.c",
    threshold="2 % of the base's cost, as for every cause",
)

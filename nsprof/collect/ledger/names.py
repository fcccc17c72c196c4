"""What the ledger counts, and by which names kernels know it.

`EVENTS` are the tracepoints, on every kernel; `FUNCTIONS` the functions, where the kernel grants fentry or kprobes. A
function's older or newer names are in `also`: the first one that the kernel has is probed, under one event name, so
that profiles of different kernels compare. `docs/probes/ledger.md` says on which kernels each was seen.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CALLERS",
    "EVENTS",
    "FUNCTIONS",
    "GRO_RESULTS",
    "RENAMED",
    "Event",
    "Function",
    "function_named",
    "hook_name",
]


@dataclass(frozen=True, slots=True)
class Event:
    """A tracepoint: its program in probes/ledger_hop.c (also its slot in `hits`), and what goes without it.

    `optional`: kernels without it count the same by functions (`Function.unless` names the tracepoint).
    """

    program: str
    tracepoint: str
    lost: str
    optional: bool = False


EVENTS = (
    Event("ledger_queue", "net_dev_queue", "packets before segmentation and software checksums"),
    Event("ledger_xmit", "net_dev_start_xmit", "packets, segments and fragments that devices send"),
    Event("ledger_receive", "netif_receive_skb", "packets, segments and fragments that are received"),
    Event("ledger_busy", "net_dev_xmit", "requeues"),
    Event("ledger_drop", "kfree_skb", "drops and their reasons"),
    Event("ledger_backlog", "netif_rx", "packets put on a backlog"),
    Event("ledger_resend", "tcp_retransmit_skb", "TCP retransmissions"),
    Event("ledger_to_user", "skb_copy_datagram_iovec", "packets' bytes copied to user space"),
    Event("ledger_gro_in", "napi_gro_receive_entry", "devices of GRO's verdicts"),
    Event("ledger_gro_out", "napi_gro_receive_exit", "GRO's verdicts"),
    Event("ledger_sent", "sock_send_length", "bytes that sockets took from user space", optional=True),
    Event("ledger_read", "sock_recv_length", "bytes that sockets gave to user space", optional=True),
)

#: enum nf_inet_hooks by its numbers, and enum nf_inet_proto (include/uapi/linux/netfilter.h); two have their own.
_HOOKS = {0: "prerouting", 1: "input", 2: "forward", 3: "output", 4: "postrouting", 5: "ingress"}
_FAMILIES = {2: "IPv4", 3: "ARP", 5: "device", 7: "bridge", 10: "IPv6"}
_HOOKS_OF = {3: {0: "input", 1: "output", 2: "forward"}, 5: {0: "ingress", 1: "egress"}}


def hook_name(family: int, hook: int) -> str:
    """A netfilter hook in words, e.g. "IPv4 forward"."""
    place = _HOOKS_OF.get(family, _HOOKS).get(hook, f"hook {hook}")
    return f"{_FAMILIES.get(family, f'family {family}')} {place}"


#: enum gro_result (include/linux/netdevice.h); 5.12 dropped GRO_DROP, which was 4.
GRO_RESULTS = {0: "merged", 1: "merged, skb freed", 2: "held", 3: "normal", 4: "consumed"}


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel function. `body` is its program in probes/ledger_calls.c, without the rung's prefix.

    `what` is the event it is booked as. `result` says that its return value is looked at, `by_task` that it knows no
    packet: the namespace is the task's, in task context. `user_copy` functions are booked only under a socket call.
    `unless` names a tracepoint that tells the same, and cheaper: the function is probed only where it is not there.
    `segments` is what the row's segments are booked as, beside the calls.
    """

    name: str
    body: str
    what: str
    also: tuple[str, ...] = ()
    result: bool = False
    by_task: bool = False
    user_copy: bool = False
    note: str = ""
    unless: str = ""
    segments: str = ""


FUNCTIONS = (
    Function("pskb_expand_head", "expand", "head realloc"),
    Function("skb_copy", "skb0", "skb copy"),
    Function("skb_copy_expand", "skb0", "skb copy"),
    Function("__pskb_copy_fclone", "skb0", "skb copy", note="__pskb_copy before 3.18"),
    Function("skb_copy_ubufs", "skb0", "copy of user pages"),
    Function("__pskb_pull_tail", "pull", "linearise"),
    Function("skb_clone", "skb0", "skb clone"),
    Function("_copy_from_iter", "len1", "copy from user", by_task=True, user_copy=True),
    Function("_copy_to_iter", "len1", "copy to user", by_task=True, user_copy=True),
    Function("inet_sendmsg", "sent", "copy from user", result=True, unless="sock_send_length"),
    Function("inet6_sendmsg", "sent", "copy from user", result=True, unless="sock_send_length"),
    Function("packet_sendmsg", "sent", "copy from user", result=True, unless="sock_send_length"),
    Function("inet_recvmsg", "got", "copy to user", result=True, unless="sock_recv_length"),
    Function("inet6_recvmsg", "got", "copy to user", result=True, unless="sock_recv_length"),
    Function("packet_recvmsg", "got", "copy to user", result=True, unless="sock_recv_length"),
    Function("csum_and_copy_from_iter", "len1", "checksum", also=("csum_and_copy_from_iter_full",), by_task=True),
    Function("csum_and_copy_to_iter", "len1", "checksum", by_task=True),
    Function("skb_checksum_help", "help", "checksum"),
    Function("__skb_checksum_complete", "skb0", "checksum"),
    Function("csum_partial_copy_generic", "len2", "checksum primitive", by_task=True),
    Function("csum_partial", "len1", "checksum primitive", by_task=True),
    Function("__skb_gso_segment", "list", "gso software", result=True, segments="gso segments"),
    Function("dev_gro_receive", "skb1", "gro lookup"),
    Function("ip_do_fragment", "skb2", "fragmented"),
    Function("ip6_fragment", "skb2", "fragmented"),
    Function("ip_defrag", "skb1", "reassembly"),
    Function("ipv6_frag_rcv", "skb0", "reassembly"),
    Function("enqueue_to_backlog", "skb0", "backlog"),
    Function("nf_conntrack_in", "skb0", "conntrack"),
    Function("nf_hook_slow", "hook", "netfilter hook", segments="netfilter hook functions"),
    Function("nft_do_chain", "chain", "nft chain", segments="nft rules in chains entered"),
    Function("ipt_do_table", "skb1", "iptables table", note="(skb, state, table) before 5.15"),
    Function("br_nf_pre_routing", "skb1", "bridge netfilter"),
    Function("dev_queue_xmit_nit", "skb0", "packet socket"),
)


#: One function under several names: name -> kernels on which it was seen (their own symbol tables).
RENAMED = {
    "csum_and_copy_from_iter": {
        "csum_and_copy_from_iter": ("6.1",),
        "csum_and_copy_from_iter_full": ("6.12", "6.18"),
    },
}

#: Who calls the copies that add up a checksum: function -> kernel -> callers, read from the call instructions of
#: Debian's x86-64 images (6.1.192, 6.12.117). Each is reached by what stands in the row above it.
CALLERS: dict[str, dict[str, tuple[str, ...]]] = {
    "csum_and_copy_from_iter": {"6.1": ("ip_generic_getfrag", "ping_getfrag", "tcp_sendmsg_locked")},
    "csum_and_copy_from_iter_full": {"6.12": ("ip_generic_getfrag", "ping_getfrag", "tcp_sendmsg_locked")},
    "csum_and_copy_from_user": {"6.1": ("csum_and_copy_from_iter",), "6.12": ("csum_and_copy_from_iter_full",)},
    "csum_and_copy_to_user": {"6.1": ("csum_and_copy_to_iter",), "6.12": ("csum_and_copy_to_iter",)},
    "csum_partial_copy_nocheck": {
        "6.1": (
            "csum_and_copy_from_iter",
            "csum_and_copy_to_iter",
            "icmp_push_reply",
            "ip_reply_glue_bits",
            "raw6_getfrag",
            "raw_getfrag",
            "skb_copy_and_csum_bits",
        ),
        "6.12": (
            "csum_and_copy_from_iter_full",
            "csum_and_copy_to_iter",
            "icmp_push_reply",
            "ip_reply_glue_bits",
            "raw6_getfrag",
            "raw_getfrag",
            "skb_copy_and_csum_bits",
        ),
    },
    "csum_partial_copy_generic": {
        "6.1": ("csum_and_copy_from_user", "csum_and_copy_to_user", "csum_partial_copy_nocheck"),
        "6.12": ("csum_and_copy_from_user", "csum_and_copy_to_user", "csum_partial_copy_nocheck"),
    },
}


def function_named(name: str) -> Function:
    """The table's row of a function, or a plain count of its calls for one that is not in the table."""
    for row in FUNCTIONS:
        if name in (row.name, *row.also):
            return row
    return Function(name, "count", f"calls of {name}", by_task=True)

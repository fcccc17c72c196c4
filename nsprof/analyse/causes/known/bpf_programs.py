"""BPF programs on the path (tc, cgroup, socket filters)."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="bpf-programs",
    title="BPF programs run for every packet",
    what="Programs attached to cgroups, sockets or devices run for each packet; maps and helpers are theirs, too.",
    owns=(
        Owned(
            words("bpf_prog_* __cgroup_bpf_run_filter_* cls_bpf_classify bpf_skb_* bpf_fib_* bpf_redirect*"),
            not_under=words(
                "do_xdp_generic netif_receive_generic_xdp veth_xdp_rcv_skb veth_xdp_rcv packet_rcv tpacket_rcv "
                "bpf_trace_run* bpf_trampoline_* trace_call_bpf bpf_overflow_handler __perf_event_overflow"
            ),
        ),
    ),
    signature=words("__cgroup_bpf_run_filter_skb cls_bpf_classify"),
    tries=(Try("see what is attached, and its run time", "bpftool prog show; bpftool cgroup tree; bpftool net"),),
    source="kernel/bpf/cgroup.c, net/sched/cls_bpf.c",
    threshold="2 % of the base's cost",
)

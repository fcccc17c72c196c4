"""Which category a stack is: helpers follow callers, unknown work is `other`."""

from __future__ import annotations

import pytest

from nsprof.analyse import category_names, report
from nsprof.analyse.categories import ALL, category_of
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, FrameKind, Lateness, Run, Samples
from tests.profiles import CLOCK

SYSCALL = "do_syscall_64 < entry_SYSCALL_64_after_hwframe"
SOFTIRQ = "process_backlog < __napi_poll < net_rx_action < handle_softirqs < __local_bh_enable_ip"


def category(stack: str, *, late: bool = False, kinds: dict[str, FrameKind] | None = None) -> str:
    builder = ProfileBuilder()
    builder.event(CLOCK)
    frames = [builder.frame(n.strip(), "", (kinds or {}).get(n.strip(), FrameKind.KERNEL)) for n in stack.split("<")]
    lateness = Lateness.SKID if late else Lateness.ON_TIME
    builder.samples(
        Samples.build(1, stack=builder.stack(frames), context=Context.TASK, count=1, weight=1.0, lateness=lateness)
    )
    builder.runs.append(Run("s", duration_s=1, cpus=1, denominators={"second": 1}))
    (row,) = report(builder.build()).categories
    return row.name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("__x64_sys_sendto", "syscall and socket"),
        ("sock_def_readable", "syscall and socket"),
        ("tcp_v4_rcv", "TCP"),
        ("tcp_grow_window", "TCP"),
        ("tcp_newly_delivered", "TCP"),
        ("udp_queue_rcv_one_skb", "UDP"),
        ("__udp4_lib_rcv", "UDP"),
        ("ip_finish_output2", "IP"),
        ("ipv6_rcv", "IP"),
        ("ip_do_fragment", "IP"),
        ("fib_table_lookup", "routing"),
        ("ip_route_input_slow", "routing"),
        ("dst_release", "routing"),
        ("rt_cache_valid", "routing"),
        ("__neigh_event_send", "neighbour"),
        ("neigh_resolve_output", "neighbour"),
        ("arp_process", "neighbour"),
        ("__dev_queue_xmit", "qdisc and xmit"),
        ("fq_codel_dequeue", "qdisc and xmit"),
        ("dev_queue_xmit_nit", "qdisc and xmit"),
        ("packet_rcv", "qdisc and xmit"),
        ("veth_xmit", "veth"),
        ("br_handle_frame", "bridge"),
        ("fdb_find_rcu", "bridge"),
        ("br_nf_pre_routing", "netfilter/conntrack"),
        ("macvlan_queue_xmit", "other virtual device"),
        ("vxlan_xmit", "other virtual device"),
        ("nf_conntrack_in", "netfilter/conntrack"),
        ("nft_do_chain", "netfilter/conntrack"),
        ("net_rx_action", "softirq and backlog"),
        ("__netif_receive_skb_core", "softirq and backlog"),
        ("enqueue_to_backlog", "softirq and backlog"),
        ("dev_gro_receive", "GRO/GSO"),
        ("tcp_gro_receive", "GRO/GSO"),
        ("skb_segment", "GRO/GSO"),
        ("tcp_gso_segment", "GRO/GSO"),
        ("csum_partial", "checksum"),
        ("__skb_checksum_complete", "checksum"),
        ("csum_partial_copy_generic", "copy"),
        ("pskb_expand_head", "copy"),
        ("_copy_from_iter", "copy"),
        ("rep_movs_alternative", "copy"),
        ("__alloc_skb", "skb alloc/free"),
        ("kfree_skb_reason", "skb alloc/free"),
        ("native_queued_spin_lock_slowpath", "locking"),
        ("rtnl_lock", "locking"),
        ("__schedule", "scheduling"),
        ("try_to_wake_up", "scheduling"),
        ("get_page_from_freelist", "memory"),
        ("virtnet_poll", "driver"),
        ("ixgbe_poll", "driver"),
        ("cls_bpf_classify", "BPF"),
        ("memcpy", ""),
        ("__rcu_read_lock", ""),
        ("no_such_function", ""),
    ],
)
def test_names_have_their_category(name: str, expected: str) -> None:
    assert category_of(name) == expected
    assert category_of(name + ".isra.0.cold") == expected


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (f"memcpy_orig < ip_rcv_core < {SOFTIRQ}", "IP"),
        (f"_raw_spin_lock < __udp_enqueue_schedule_skb < {SOFTIRQ}", "UDP"),
        (f"__slab_free < kmem_cache_free < skb_free_head < tcp_ack < {SOFTIRQ}", "skb alloc/free"),
        (f"kmem_cache_alloc < br_fdb_update < {SOFTIRQ}", "bridge"),
        (f"__x86_indirect_thunk_rax < nf_hook_slow < ip_rcv < {SOFTIRQ}", "netfilter/conntrack"),
        (f"native_queued_spin_lock_slowpath < _raw_spin_lock < sch_direct_xmit < {SYSCALL}", "locking"),
        (f"csum_partial < __skb_checksum < tcp_v4_rcv < {SOFTIRQ}", "checksum"),
        (f"__check_object_size < _copy_from_iter < tcp_sendmsg_locked < {SYSCALL}", "copy"),
        (f"memcpy < pskb_expand_head < skb_cow_head < veth_xmit < {SYSCALL}", "copy"),
        (f"some_static_helper < tcp_write_xmit < {SYSCALL}", "TCP"),
        (f"ext4_readdir < iterate_dir < __x64_sys_getdents64 < {SYSCALL}", "other"),
        (f"kmem_cache_alloc < ext4_readdir < {SYSCALL}", "other"),
        (f"memset < {SYSCALL}", "syscall and socket"),
        ("kmem_cache_free < rcu_nothing_known", "memory"),
        ("no_such_function < neither_this", "other"),
        ("asm_exc_page_fault < libc_start", "memory"),
    ],
)
def test_helpers_follow_their_nearest_categorised_caller(stack: str, expected: str) -> None:
    assert category(stack) == expected


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (
            f"_raw_spin_unlock_irqrestore < __wake_up_common_lock < sock_def_readable < {SOFTIRQ}",
            "syscall and socket",
        ),
        (f"finish_task_switch < __schedule < {SYSCALL}", "scheduling"),
        (f"handle_softirqs < do_softirq < ip_finish_output2 < {SYSCALL}", "softirq and backlog"),
        (f"tcp_ack < ip_rcv < {SOFTIRQ}", "IP"),
        ("_raw_spin_unlock_irqrestore", "skid"),
        ("tcp_ack", "skid"),
    ],
)
def test_late_samples_are_their_callers(stack: str, expected: str) -> None:
    assert category(stack, late=True) == expected


def test_user_programs_do_not_own_kernel_work() -> None:
    kinds = {"main": FrameKind.USER, "send": FrameKind.USER}
    assert category("memcpy < send < main", kinds=kinds) == "other"
    assert category(f"memcpy < {SYSCALL} < send < main", kinds=kinds) == "syscall and socket"
    assert category("send < main", kinds=kinds) == "user"
    assert category("bpf_prog_x < cls_bpf_classify < main", kinds={"bpf_prog_x": FrameKind.BPF}) == "BPF"


def test_the_issue_of_categories_is_complete_and_named_once() -> None:
    assert set(category_names.EXACT) == set(category_names.CATEGORIES)
    assert len(ALL) == len(set(ALL))
    seen: dict[str, str] = {}
    for table in (category_names.EXACT, category_names.WEAK):
        for owner, names in table.items():
            for name in names:
                assert name not in category_names.HELPERS, name
                assert seen.setdefault(name, owner) == owner, f"{name} is in two categories"
    prefixes = [
        *(p for v in category_names.PREFIXES.values() for p in v),
        *(p for v in category_names.WEAK_PREFIXES.values() for p in v),
        *category_names.HELPER_PREFIXES,
    ]
    assert len(prefixes) == len(set(prefixes)), sorted(p for p in prefixes if prefixes.count(p) > 1)

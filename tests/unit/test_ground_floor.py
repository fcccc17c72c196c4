"""Units, names, errors and the profile builder."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsprof import errors, units
from nsprof.kernelnames import context_of, fold_suffixes
from nsprof.model.builder import ProfileBuilder, merge
from nsprof.model.profile import Context, Counter, Device, Event, Losses, Namespace, Run, Samples, Value


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("ip_rcv", "ip_rcv"),
        ("foo.isra.0", "foo"),
        ("foo.constprop.1.part.2", "foo"),
        ("foo.isra.0.cold", "foo"),
        ("foo.llvm.1234567890", "foo"),
        ("bpf_prog_6deef7357e7b4530_sd.devices", "bpf_prog_6deef7357e7b4530_sd.devices"),
        ("__pfx.x", "__pfx.x"),
        ("foo.partial", "foo.partial"),
        ("kmem_cache_alloc_node_noprof", "kmem_cache_alloc_node"),
    ],
)
def test_compiler_suffixes_are_folded_and_nothing_else(name: str, folded: str) -> None:
    assert fold_suffixes(name) == folded


@pytest.mark.parametrize(
    ("frames", "swapper", "context"),
    [
        (["ip_rcv", "net_rx_action", "handle_softirqs", "do_softirq", "__local_bh_enable_ip", "udp_sendmsg"], 0, 3),
        (["tick_sched_timer", "sysvec_apic_timer_interrupt", "ip_rcv", "handle_softirqs"], 0, 4),
        (["ip_rcv", "handle_softirqs", "__irq_exit_rcu", "sysvec_apic_timer_interrupt", "default_idle"], 1, 3),
        (["udp_sendmsg", "do_syscall_64"], 0, 2),
        (["pv_native_safe_halt", "default_idle", "do_idle"], 1, 6),
        (["schedule_idle", "do_idle"], 1, 7),
        (["process_backlog", "net_rx_action", "run_ksoftirqd", "smpboot_thread_fn"], 0, 3),
        (["veth_poll", "__napi_poll", "napi_threaded_poll", "kthread"], 0, 3),
    ],
)
def test_the_leafmost_entry_frame_decides_the_context(frames: list[str], swapper: int, context: int) -> None:
    assert context_of(frames, swapper=bool(swapper)) == Context(context)


def test_without_kernel_frames_it_is_user_or_unknown() -> None:
    assert context_of([], has_user=True) == Context.USER
    assert context_of([]) == Context.UNKNOWN


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 10**9), ("500mbit", 5 * 10**8), ("1.5Gbps", 1_500_000_000), ("9600", 9600)]
)
def test_rates_read_as_tc_writes_them(text: str, bits: int) -> None:
    assert units.parse_rate(text) == bits


@pytest.mark.parametrize("text", ["", "fast", "-1gbit", "1gbit; reboot", "1e9x"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a rate"):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "ns", "0 ns"),
        (999.7, "ns", "1.00 us"),
        (1234, "ns", "1.23 us"),
        (-5.1e6, "ns", "-5.10 ms"),
        (143000, "", "143 k"),
        (12.34, "lines", "12.3 lines"),
        (math.nan, "ns", "-"),
    ],
)
def test_quantities_have_three_digits(value: float, unit: str, text: str) -> None:
    assert units.format_quantity(value, unit) == text


def test_every_error_has_a_documented_status() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert {c.exit_code for c in classes} == {1, 2, 3, 125, 127}
    for c in classes:
        assert c.__name__ in (errors.__doc__ or ""), c.__name__
    assert str(errors.TopologyError("a", "b")) == "a\n  hint: b"


def test_loss_is_of_what_was_expected_and_unknown_stays_unknown() -> None:
    assert Losses(expected=200, seen=150).lost_share == 0.25
    assert Losses(expected=100, seen=103).lost_share == 0.0
    assert math.isnan(Losses(seen=5).lost_share)


def _one(comm: str, name: str, inode: int) -> ProfileBuilder:
    b = ProfileBuilder()
    event = b.event(Event("cpu-clock", "ns", period=1000))
    ns = b.namespace(Namespace(inode, name="c"))
    dev = b.device(Device(ns, 2, "eth0"))
    stack = b.stack([b.frame(name), b.frame("do_syscall_64")])
    b.runs.append(Run("host", values=(Value("x", 1, "s"),)))
    b.counters.append(Counter(0, "device", ns, "eth0", -1, "rx_packets", 0, 23))
    b.samples(
        Samples.build(
            2, event=event, task=b.task(1, 1, comm), hop_ns=ns, hop_dev=dev, stack=stack, count=3, weight=7.5
        )
    )
    return b


def test_merging_keeps_every_sample_with_its_own_names() -> None:
    a, b = _one("a", "ip_rcv", 10).build(), _one("b", "br_forward", 11).build()
    both = merge([a, b])
    assert len(both.samples) == 4
    assert both.samples.weight.sum() == 30
    assert len(both.events) == 1
    assert [n.inode for n in both.namespaces] == [10, 11]
    assert len(both.devices) == 2, "two eth0 in two namespaces are two devices"
    leaf = [both.frames.name[both.stacks[int(s)][0]] for s in both.samples.stack]
    assert leaf == ["ip_rcv", "ip_rcv", "br_forward", "br_forward"]
    assert [both.tasks[int(t)].comm for t in both.samples.task] == ["a", "a", "b", "b"]
    assert list(both.samples.run) == [0, 0, 1, 1]
    assert [both.namespaces[c.namespace - 1].inode for c in both.counters] == [10, 11]


def test_the_same_piece_twice_is_one_row() -> None:
    b = ProfileBuilder()
    assert b.stack([1, 2, 3]) == b.stack(np.array([1, 2, 3]))
    assert b.namespace(Namespace(5)) == b.namespace(Namespace(5, name="late", role="container"))
    assert b.build().namespaces == (Namespace(5, name="late", role="container"),)
    assert b.namespace(Namespace(5, cookie=1)) != b.namespace(Namespace(5, cookie=2)), "a reused inode is two"


def test_sample_columns_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Samples(run=np.zeros(2, "u2"))
    with pytest.raises(TypeError, match="no such sample columns"):
        Samples.build(1, nonsense=1)

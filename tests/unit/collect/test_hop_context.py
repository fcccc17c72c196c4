"""Which context holds for a sample: by its own frames, and by what the probes' rung knows."""

from __future__ import annotations

import numpy as np
import pytest

from nsprof.collect.hop.context import STANDING, Place, hop_columns, standing
from nsprof.collect.sampling.batch import _devices
from nsprof.collect.sampling.maps import SAMPLE_KEY
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Direction


def key(**fields: int) -> np.ndarray:
    made = np.zeros(1, SAMPLE_KEY)
    for name, value in fields.items():
        made[name] = value
    return made


def stands(*each: tuple[int, int]) -> np.ndarray:
    """Standings from (place, nesting)."""
    return np.array([(*one, 0) for one in each], STANDING)


def name_words(name: str) -> tuple[int, int, int]:
    """cookie, inode and ifindex that hold a device's name."""
    data = name.encode().ljust(16, b"\0")
    return tuple(int.from_bytes(part, "little") for part in (data[:8], data[8:12], data[12:]))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["lo", "eth0", "a23456789012345"])
def test_a_name_alone_is_a_device_of_no_known_namespace(name: str) -> None:
    cookie, inode, ifindex = name_words(name)
    rx = key(rx_state=5, rx_cookie=cookie, rx_ns=inode, rx_ifindex=ifindex)
    tx = key(tx_depth=0x80 | 2, tx_cookie=cookie, tx_ns=inode, tx_ifindex=ifindex)
    keys = np.concatenate([rx, tx])
    hop = hop_columns(keys, stands((Place.RECEIVE, 0), (Place.TRANSMIT, 2)))
    assert hop["name"].tolist() == [name.encode()] * 2
    assert not hop["cookie"].any() and not hop["inode"].any() and not hop["ifindex"].any()
    assert hop["direction"].tolist() == [Direction.RX, Direction.TX]
    assert hop["depth"].tolist() == [0, 2]
    builder = ProfileBuilder()
    rows = _devices(builder, hop, np.zeros(2, "u4"), None)
    assert rows.tolist() == [1, 1]
    (device,) = builder.build().devices
    assert (device.namespace, device.ifindex, device.name) == (0, 0, name)


def test_one_side_by_name_and_the_other_by_identity_are_not_mixed() -> None:
    cookie, inode, ifindex = name_words("eth0")
    both = key(rx_state=1, rx_cookie=7, rx_ns=8, rx_ifindex=9, tx_depth=0x81, tx_cookie=cookie, tx_ns=inode)
    both["tx_ifindex"] = ifindex
    keys = np.concatenate([both, both])
    hop = hop_columns(keys, stands((Place.RECEIVE, 0), (Place.TRANSMIT, 1)))
    assert hop["name"].tolist() == [b"", b"eth0"]
    assert hop["cookie"].tolist() == [7, 0] and hop["ifindex"].tolist() == [9, 0]


def test_a_handler_that_moves_packets_leaves_a_name_unknown() -> None:
    cookie, inode, ifindex = name_words("eth0")
    keys = key(rx_state=5, rx_cookie=cookie, rx_ns=inode, rx_ifindex=ifindex)
    hop = hop_columns(keys, stands((Place.MOVING, 0)))
    assert not hop["name"][0] and hop["direction"][0] == 0


@pytest.mark.parametrize(
    "probe",
    [
        "bpf_trampoline_6442",
        "kprobe_ftrace_handler",
        "kprobe_dispatcher",
        "asm_exc_int3",
        "perf_trace_net_dev_start_xmit",
    ],
)
def test_a_probe_at_work_is_nobody_s(probe: str) -> None:
    frames = ["bpf_prog_1_hop_tx", probe, "dev_hard_start_xmit", "__dev_queue_xmit", "ip_rcv"]
    frames += ["__netif_receive_skb_one_core", "process_backlog", "net_rx_action", "handle_softirqs"]
    assert standing(frames, Context.SOFTIRQ) == (Place.PROBING, 0, False)
    assert standing(["veth_xmit", *frames[2:]], Context.SOFTIRQ) == (Place.TRANSMIT, 1, False)
    keys = key(rx_state=1, rx_cookie=7, rx_ns=8, rx_ifindex=9, tx_depth=1, tx_ns=8, tx_ifindex=3)
    hop = hop_columns(keys, stands((Place.PROBING, 0)))
    assert hop["direction"][0] == Direction.PROBE and hop["inode"][0] == 0


SOFT = ["net_rx_action", "handle_softirqs", "do_softirq"]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (["net_rx_action", "handle_softirqs"], Place.BETWEEN),
        (["handle_softirqs", "__irq_exit_rcu", "sysvec_call_function_single", "do_syscall_64"], Place.BETWEEN),
        (["_raw_spin_unlock_irq", "process_backlog", "__napi_poll", *SOFT], Place.BETWEEN),
        (["_find_next_bit", "skb_defer_free_flush", *SOFT], Place.BETWEEN),
        (["veth_xdp_rcv_skb", "veth_xdp_rcv", "veth_poll", "__napi_poll", *SOFT], Place.BETWEEN),
        (["napi_threaded_poll_loop", "napi_threaded_poll", "kthread"], Place.BETWEEN),
        (["veth_poll", "__napi_poll", "napi_threaded_poll_loop", "napi_threaded_poll", "kthread"], Place.BETWEEN),
        # A packet is in hand, and the probe may stand before or behind this place.
        (["__netif_receive_skb_one_core", "process_backlog", "__napi_poll", *SOFT], Place.NOBODY),
        (["__netif_receive_skb", "process_backlog", "__napi_poll", *SOFT], Place.NOBODY),
        (["get_rps_cpu", "netif_receive_skb_list_internal", "napi_complete_done", "veth_poll", *SOFT], Place.NOBODY),
        (["inet_gro_complete", "napi_gro_complete", "napi_complete_done", "veth_poll", *SOFT], Place.NOBODY),
        # Other softirqs are not the loop that fetches packets.
        (["tcp_write_timer", "run_timer_softirq", "handle_softirqs"], Place.NOBODY),
        (["qdisc_run", "net_tx_action", "handle_softirqs"], Place.NOBODY),
        (["rcu_core", "handle_softirqs", "net_rx_action"], Place.NOBODY),
    ],
)
def test_between_packets_is_only_what_has_none_in_hand(frames: list[str], place: Place) -> None:
    assert standing(frames, Context.SOFTIRQ)[:2] == (place, 0)
    hop = hop_columns(key(rx_state=1, rx_ns=8, rx_ifindex=9, tx_depth=1, tx_ns=8), stands((place, 0)))
    assert hop["direction"][0] == (Direction.BETWEEN if place == Place.BETWEEN else Direction.UNKNOWN)
    assert not hop["inode"].any() and not hop["ifindex"].any()


def test_a_transmission_that_has_returned_is_not_taken_for_the_one_around_it() -> None:
    """In a tunnel's work behind the inner transmission, where that one's frames were: it looks alive by address."""
    frames = ["rcu_read_unlock", "ip_finish_output2", "iptunnel_xmit", "vxlan_xmit", "dev_hard_start_xmit"]
    assert standing(frames, Context.TASK) == (Place.TRANSMIT, 1, False)
    inner = ["veth_xmit", "dev_hard_start_xmit", "__dev_queue_xmit", *frames[1:]]
    assert standing(inner, Context.TASK) == (Place.TRANSMIT, 2, False)
    # As the leaf it is before or behind the work of its own device.
    assert standing(inner[1:], Context.TASK) == (Place.TRANSMIT, 1, False)
    two = key(tx_depth=2, tx_cookie=7, tx_ns=8, tx_ifindex=9)
    hop = hop_columns(np.concatenate([two, two]), stands((Place.TRANSMIT, 1), (Place.TRANSMIT, 2)))
    assert hop["inode"].tolist() == [0, 8] and hop["direction"].tolist() == [Direction.UNKNOWN, Direction.TX]


def test_a_bridge_s_work_is_a_port_s_and_never_that_of_the_device_it_handed_the_packet_up_to() -> None:
    """Behind br_pass_frame_up the probes still know the bridge's device only."""
    stack = [
        "ip_rcv",
        "__netif_receive_skb_one_core",
        "netif_receive_skb",
        "br_handle_frame_finish",
        "br_handle_frame",
    ]
    core = ["__netif_receive_skb_core.constprop.0", "__netif_receive_skb_one_core", "process_backlog", *SOFT]
    assert standing([*stack, *core], Context.SOFTIRQ) == (Place.RECEIVE, 0, False)
    assert standing([*stack[3:], *core], Context.SOFTIRQ) == (Place.FORWARD, 0, True)
    bridge = key(rx_state=1, rx_ns=8, rx_ifindex=2)
    port = key(rx_state=0x41, rx_ns=8, rx_ifindex=3)
    up = key(rx_state=0x21, rx_ns=8, rx_ifindex=2, tx_ns=8, tx_ifindex=3)
    bridging = (Place.FORWARD, 0, 1)
    where = np.array([(Place.RECEIVE, 0, 0), bridging, bridging, bridging, (Place.RECEIVE, 0, 0)], STANDING)
    hop = hop_columns(np.concatenate([bridge, bridge, port, up, up]), where)
    assert hop["ifindex"].tolist() == [2, 0, 3, 3, 2]
    wanted = [Direction.RX, Direction.UNKNOWN, Direction.FORWARD, Direction.FORWARD, Direction.RX]
    assert hop["direction"].tolist() == wanted

"""Which context holds for a sample: by its own frames, and by what the probes' rung knows."""

from __future__ import annotations

import numpy as np
import pytest

from nsprof.collect.hop_context import Place, hop_columns, place_of
from nsprof.collect.sampler_batch import _devices
from nsprof.collect.sampler_maps import SAMPLE_KEY
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Direction


def key(**fields: int) -> np.ndarray:
    made = np.zeros(1, SAMPLE_KEY)
    for name, value in fields.items():
        made[name] = value
    return made


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
    hop = hop_columns(keys, np.array([Place.RECEIVE, Place.TRANSMIT], "u1"))
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
    hop = hop_columns(keys, np.array([Place.RECEIVE, Place.TRANSMIT], "u1"))
    assert hop["name"].tolist() == [b"", b"eth0"]
    assert hop["cookie"].tolist() == [7, 0] and hop["ifindex"].tolist() == [9, 0]


def test_a_handler_that_moves_packets_leaves_a_name_unknown() -> None:
    cookie, inode, ifindex = name_words("eth0")
    keys = key(rx_state=5, rx_cookie=cookie, rx_ns=inode, rx_ifindex=ifindex)
    hop = hop_columns(keys, np.array([Place.MOVING], "u1"))
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
    assert place_of(frames, Context.SOFTIRQ) == Place.NOBODY
    assert place_of(["veth_xmit", *frames[2:]], Context.SOFTIRQ) == Place.TRANSMIT

"""Which of the contexts that the probes kept holds for one sample: decided by the sample's own stack.

The probes note where packets change hands; the frames between the leaf and the softirq's (or system call's) entry
say whether the CPU is inside a transmission, a reception, or neither. What the frames do not vouch for is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.kernelnames import HARDIRQ_ENTRY, SOFTIRQ_ENTRY, fold_suffixes
from nsprof.model.profile import Context, Direction

__all__ = ["HOP_COLUMNS", "Place", "hop_columns", "place_of"]

#: Inside these the CPU transmits to the device of the innermost `hop_tx`.
_TRANSMIT = frozenset({"dev_hard_start_xmit"})
#: Below these the receive core has taken a packet over: the `hop_rx` packet holds.
_RECEIVE = frozenset({"__netif_receive_skb_one_core", "__netif_receive_skb_core", "__netif_receive_skb_list_core"})
#: Inside these a driver has handed a packet to GRO: the `hop_gro` packet holds.
_GRO = frozenset({"napi_gro_receive", "gro_receive_skb", "napi_gro_frags", "gro_gro_frags"})
_FORWARD = frozenset(
    {
        "ip_forward",
        "ip_forward_finish",
        "ip6_forward",
        "ip6_forward_finish",
        "br_forward",
        "__br_forward",
        "br_forward_finish",
        "br_flood",
        "br_handle_frame",
        "br_handle_frame_finish",
    }
)
_PROBING = (
    *("bpf_trace_run", "__bpf_trace_", "__traceiter_", "bpf_trampoline_", "perf_trace_", "trace_call_bpf"),
    *("__bpf_prog_enter", "__bpf_prog_exit"),
    *("kprobe_", "kretprobe_", "optimized_callback", "opt_pre_handler", "asm_exc_int3", "ftrace_trampoline"),
    *("arch_ftrace_ops_list_func", "ftrace_ops_"),
)
#: Handlers that take a packet from one device to another within one reception.
_MOVING = frozenset({"macvlan_handle_frame", "ipvlan_handle_frame", "bond_handle_frame", "team_handle_frame"})


class Place(IntEnum):
    """What one stack says by itself.

    TRANSMIT, RECEIVE, FORWARD: inside one, of which the probes know the device; MOVING: in a handler that takes a
    received packet to another device. TASK: outside a packet in a system call, user mode or a kernel thread: the
    task's own namespace. NOBODY: in softirq before or between packets, or in an interrupt.
    """

    NOBODY = 0
    TASK = 1
    TRANSMIT = 2
    RECEIVE = 3
    FORWARD = 4
    MOVING = 5


def place_of(frames: Sequence[str], context: Context) -> Place:
    """Where the CPU was, from kernel frames leaf first and the context made of them."""
    outside = Place.TASK if context in (Context.TASK, Context.USER) else Place.NOBODY
    if outside == Place.NOBODY and context != Context.SOFTIRQ:
        return Place.NOBODY
    forward = moving = False
    for number, name in enumerate(frames):
        if name.startswith(_PROBING):
            return Place.NOBODY  # a probe at work, perhaps the very one that is about to note the hop
        plain = fold_suffixes(name)
        if plain in SOFTIRQ_ENTRY or plain in HARDIRQ_ENTRY:
            return outside
        if plain in _TRANSMIT and number:  # as the leaf it stands before or behind the device's work
            return Place.TRANSMIT
        if plain in _RECEIVE or plain in _GRO:
            if number == 0:
                return Place.NOBODY  # as the leaf it may stand before the probe as well as behind it
            return Place.MOVING if moving else Place.FORWARD if forward else Place.RECEIVE
        forward = forward or plain in _FORWARD
        moving = moving or plain in _MOVING
    return outside


HOP_COLUMNS = np.dtype(
    [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4"), ("direction", "u1"), ("depth", "u1"), ("name", "S16")]
)
_PLAIN, _MOVED, _LOST, _NAMED = 1, 2, 3, 5  # enum hop_rx_state, probes/include/hop.h
_TX_NAMED = 0x80  # in tx_depth, probes/include/sample.h


def hop_columns(keys: NDArray[Any], where: NDArray[np.uint8]) -> NDArray[Any]:
    """The hop of each sample (HOP_COLUMNS) from its raw key and its Place; all zero where it is unknown.

    Where the probes know no more than a device's name, `name` is that and the identity is zero.
    """
    hop = np.zeros(len(keys), HOP_COLUMNS)
    tx = (where == Place.TRANSMIT) & (keys["tx_depth"] > 0)
    held = (keys["rx_state"] == _PLAIN) | (keys["rx_state"] == _MOVED) | (keys["rx_state"] == _NAMED)
    rx = ((where == Place.RECEIVE) | (where == Place.FORWARD)) & held
    rx |= (where == Place.MOVING) & (keys["rx_state"] == _PLAIN)
    task = where == Place.TASK
    for rows, prefix in ((tx, "tx"), (rx, "rx")):
        hop["cookie"][rows] = keys[f"{prefix}_cookie"][rows]
        hop["inode"][rows] = keys[f"{prefix}_ns"][rows]
        hop["ifindex"][rows] = keys[f"{prefix}_ifindex"][rows]
    named = (tx & (keys["tx_depth"] & _TX_NAMED > 0)) | (rx & (keys["rx_state"] == _NAMED))
    identity = np.empty(int(named.sum()), [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4")])
    for name in ("cookie", "inode", "ifindex"):
        identity[name] = hop[name][named]
        hop[name][named] = 0
    hop["name"][named] = identity.view("S16")
    hop["cookie"][task] = keys["task_cookie"][task]
    hop["inode"][task] = keys["task_ns"][task]
    hop["direction"][tx] = Direction.TX
    hop["direction"][rx] = np.where(where[rx] == Place.FORWARD, Direction.FORWARD, Direction.RX)
    hop["direction"][task] = Direction.TASK
    hop["depth"][tx] = keys["tx_depth"][tx] & ~np.uint8(_TX_NAMED)
    return hop

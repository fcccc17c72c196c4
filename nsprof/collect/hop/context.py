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

__all__ = ["HOP_COLUMNS", "STANDING", "Place", "hop_columns", "standing"]

#: Inside these the CPU transmits to the device of the innermost `hop_tx`.
_TRANSMIT = frozenset({"dev_hard_start_xmit"})
#: Below these the receive core has taken a packet over: the `hop_rx` packet holds.
_RECEIVE = frozenset({"__netif_receive_skb_one_core", "__netif_receive_skb_core", "__netif_receive_skb_list_core"})
#: Inside these a driver has handed a packet to GRO: the `hop_gro` packet holds.
_GRO = frozenset({"napi_gro_receive", "gro_receive_skb", "napi_gro_frags", "gro_gro_frags"})
_BRIDGE = "br_handle_frame"
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
        _BRIDGE,
        "br_handle_frame_finish",
    }
)
_PROBING = (
    *("bpf_trace_run", "__bpf_trace_", "__traceiter_", "bpf_trampoline_", "perf_trace_", "trace_call_bpf"),
    *("__bpf_prog_enter", "__bpf_prog_exit"),
    *("kprobe_", "kretprobe_", "optimized_callback", "opt_pre_handler", "asm_exc_int3", "ftrace_trampoline"),
    *("arch_ftrace_ops_list_func", "ftrace_ops_"),
)
#: Frames that have a packet in hand of which the probes have not been told yet, or may not have been.
_IN_HAND = frozenset(
    {
        "__netif_receive_skb",
        "netif_receive_skb",
        "netif_receive_skb_internal",
        "netif_receive_skb_list_internal",
        "netif_receive_skb_list",
        "netif_receive_generic_xdp",
        "do_xdp_generic",
        "__dev_queue_xmit",
        "dev_hard_start_xmit",
        "sch_direct_xmit",
        "napi_gro_complete",
        "napi_gro_flush",
        "gro_flush",
        "gro_complete",
        "napi_skb_finish",
        "gro_skb_finish",
    }
)
#: The loops that fetch packets: below them and outside of packets nobody's is in hand.
_LOOP = frozenset({"net_rx_action", "napi_threaded_poll", "napi_threaded_poll_loop"})
#: Handlers that take a packet from one device to another within one reception.
_MOVING = frozenset({"macvlan_handle_frame", "ipvlan_handle_frame", "bond_handle_frame", "team_handle_frame"})


class Place(IntEnum):
    """What one stack says by itself.

    TRANSMIT, RECEIVE, FORWARD: inside one, of which the probes know the device; MOVING: in a handler that takes a
    received packet to another device. TASK: outside a packet in a system call, user mode or a kernel thread: the
    task's own namespace. BETWEEN: in the softirq loop, in that which fetches packets, or in a driver's poll before it
    hands one over. PROBING: a probe at work. NOBODY: none of these (a packet of which the probes are not told yet,
    another softirq, an interrupt).
    """

    NOBODY = 0
    TASK = 1
    TRANSMIT = 2
    RECEIVE = 3
    FORWARD = 4
    MOVING = 5
    BETWEEN = 6
    PROBING = 7


#: What standing() says of each sample. `nesting`: transmissions that its stack is inside of; `bridging`: whether a
#: bridge's handler is at work on the packet received.
STANDING = np.dtype([("place", "u1"), ("nesting", "u1"), ("bridging", "u1")])


def standing(frames: Sequence[str], context: Context) -> tuple[Place, int, bool]:
    """Where the CPU was, from kernel frames leaf first and the context made of them: a row of STANDING."""
    place, nesting, below = _standing(frames, context)
    return place, nesting, _BRIDGE in below


def _standing(frames: Sequence[str], context: Context) -> tuple[Place, int, Sequence[str]]:
    """The place, the transmissions, and the frames that are leafward of the reception."""
    outside = Place.TASK if context in (Context.TASK, Context.USER) else Place.NOBODY
    if outside == Place.NOBODY and context != Context.SOFTIRQ:
        return Place.NOBODY, 0, ()
    part = _own_part(frames)
    if any(name.startswith(_PROBING) for name in part):
        return Place.PROBING, 0, ()  # perhaps the very one that is about to note the hop
    nesting = sum(name in _TRANSMIT for name in part[1:])  # as the leaf it stands before or behind the device's work
    forward = moving = False
    for number, name in enumerate(part):
        if name in _TRANSMIT and number:
            return Place.TRANSMIT, nesting, ()
        if name in _RECEIVE or name in _GRO:
            if number == 0:
                return Place.NOBODY, 0, ()  # as the leaf it may stand before the probe as well as behind it
            place = Place.MOVING if moving else Place.FORWARD if forward else Place.RECEIVE
            return place, 0, part[:number]
        forward = forward or name in _FORWARD
        moving = moving or name in _MOVING
    if outside == Place.NOBODY and not _IN_HAND.intersection(part) and _in_loop(frames, part):
        return Place.BETWEEN, 0, ()
    return outside, 0, ()


def _own_part(frames: Sequence[str]) -> list[str]:
    """The frames leafward of the interrupt's entry, names folded: what lies behind it is somebody else's work."""
    part = []
    for name in frames:
        plain = fold_suffixes(name)
        if plain in SOFTIRQ_ENTRY or plain in HARDIRQ_ENTRY:
            break
        part.append(plain)
    return part


def _in_loop(frames: Sequence[str], part: Sequence[str]) -> bool:
    if not part:
        return True  # in the loop over the softirqs itself, or late by an interrupt that it enabled
    entry = fold_suffixes(frames[len(part)]) if len(part) < len(frames) else ""
    return entry in _LOOP or not _LOOP.isdisjoint(part)


HOP_COLUMNS = np.dtype(
    [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4"), ("direction", "u1"), ("depth", "u1"), ("name", "S16")]
)
_PLAIN, _MOVED, _NAMED = 1, 2, 5  # those that hold, of enum hop_rx_state, probes/include/hop.h
_UP, _PORT = 0x20, 0x40  # beside the state
_TX_NAMED = 0x80  # in tx_depth, probes/include/sample.h


def hop_columns(keys: NDArray[Any], standings: NDArray[Any]) -> NDArray[Any]:
    """The hop of each sample (HOP_COLUMNS) from its raw key and its STANDING; all zero where it is unknown.

    Where the probes know no more than a device's name, `name` is that and the identity is zero.

    The probes' innermost transmission is the sample's only if as many are noted as the stack is inside of: one that
    has just returned may look alive, since other functions run where its frames were. A bridge that has handed a
    packet up and goes on works for its port again, which is then noted where a transmission would be.
    """
    hop = np.zeros(len(keys), HOP_COLUMNS)
    where = standings["place"]
    depth = keys["tx_depth"] & ~np.uint8(_TX_NAMED)
    tx = (where == Place.TRANSMIT) & (depth > 0) & (depth == standings["nesting"])
    state = keys["rx_state"] & ~np.uint8(_PORT | _UP)
    held = (state == _PLAIN) | (state == _MOVED) | (state == _NAMED)
    held &= (standings["bridging"] == 0) | (keys["rx_state"] & _PORT > 0)
    port = (where == Place.FORWARD) & (standings["bridging"] > 0) & (keys["rx_state"] & _UP > 0) & (depth == 0)
    rx = ((where == Place.RECEIVE) | (where == Place.FORWARD)) & held
    rx |= (where == Place.MOVING) & (state == _PLAIN)
    task = where == Place.TASK
    for rows, prefix in ((tx | port, "tx"), (rx, "rx")):
        hop["cookie"][rows] = keys[f"{prefix}_cookie"][rows]
        hop["inode"][rows] = keys[f"{prefix}_ns"][rows]
        hop["ifindex"][rows] = keys[f"{prefix}_ifindex"][rows]
    named = (tx & (keys["tx_depth"] & _TX_NAMED > 0)) | (rx & (state == _NAMED))
    identity = np.empty(int(named.sum()), [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4")])
    for name in ("cookie", "inode", "ifindex"):
        identity[name] = hop[name][named]
        hop[name][named] = 0
    hop["name"][named] = identity.view("S16")
    hop["cookie"][task] = keys["task_cookie"][task]
    hop["inode"][task] = keys["task_ns"][task]
    hop["direction"][tx] = Direction.TX
    hop["direction"][rx] = np.where(where[rx] == Place.FORWARD, Direction.FORWARD, Direction.RX)
    hop["direction"][port] = Direction.FORWARD
    hop["direction"][task] = Direction.TASK
    hop["direction"][where == Place.BETWEEN] = Direction.BETWEEN
    hop["direction"][where == Place.PROBING] = Direction.PROBE
    hop["depth"][tx] = depth[tx]
    return hop

"""For whose packet the simulated kernel worked: the namespace and device of every node of the call tree.

The traffic program tells which end acts, and the plugin numbers receptions (`__netif_receive_skb_one_core`) and
transmissions (`dev_hard_start_xmit`) within each of its system calls. One packet is under way at a time, so the
scenario's own order of devices says which one each of them is - provided that there were exactly as many as it says.
Where not (acknowledgements, fragments, shapes whose order is not known), hops stay unknown.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import Context, Direction

if TYPE_CHECKING:
    from nsprof.simulate import Measurement

__all__ = ["Hop", "hop_of", "hops_are_known"]

#: Below these no packet is in hand until the next reception.
_LOOPS = ("net_rx_action", "net_tx_action", "__do_softirq", "handle_softirqs", "do_softirq")
#: A packet is in hand, but one node stands for all that pass.
_IN_HAND = ("__netif_receive_skb", "netif_receive_skb", "netif_receive_skb_internal")
#: Below these a received packet is on its way out again, as docs/method.md has it for recorded profiles.
_FORWARD = frozenset(
    {
        *("ip_forward", "ip_forward_finish", "ip6_forward", "ip6_forward_finish"),
        *("br_forward", "__br_forward", "br_forward_finish", "br_flood", "br_handle_frame", "br_handle_frame_finish"),
    }
)


class Hop(NamedTuple):
    """`netns` and `device` are "" where not known (netns) or where there is no packet (device)."""

    netns: str
    device: str
    direction: Direction


UNKNOWN = Hop("", "", Direction.UNKNOWN)


def hops_are_known(m: Measurement) -> bool:
    """Whether each end's packets were received and sent exactly as often as the scenario's devices say."""
    if m.plan.hops is None:
        return False
    seen: Counter[int] = Counter()
    for node, row in m.sample.counts.items():
        what = m.output.nodes[node]
        if what.number:
            seen[what.tag] += row[0]
    wanted: Counter[int] = Counter()
    for actor, hops in enumerate(m.plan.hops, start=1):
        for number in range(1, len(hops.received) + 1):
            wanted[actor << 8 | number] = m.repetitions
        for number in range(1, len(hops.sent) + 1):
            wanted[actor << 8 | 0x80 | number] = m.repetitions
    one_way = Counter({tag: count for tag, count in wanted.items() if tag >> 8 == 1})
    return seen in (wanted, one_way)


def hop_of(m: Measurement, node: int, context: Context) -> Hop:
    """Where one node worked, if hops_are_known(m)."""
    hops = m.plan.hops
    path = m.output.path(node)
    if hops is None:
        return UNKNOWN
    forwards = False
    for each in path:
        what = m.output.nodes[each]
        if what.number and what.actor:
            devices = hops[what.actor - 1]
            netns, device = (devices.sent if what.transmits else devices.received)[what.number - 1]
            received = Direction.FORWARD if forwards else Direction.RX
            return Hop(netns, device, Direction.TX if what.transmits else received)
        name = fold_suffixes(what.name)
        forwards = forwards or name in _FORWARD
        if name in _IN_HAND:
            return UNKNOWN
        if name in _LOOPS:
            return Hop("", "", Direction.BETWEEN) if context == Context.SOFTIRQ else UNKNOWN
    actor = m.output.nodes[path[-1]].actor
    if context != Context.TASK or not actor:
        return UNKNOWN
    return Hop(m.plan.client if actor == 1 else m.plan.server, "", Direction.TASK)

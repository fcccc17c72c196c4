"""A pair of veth devices on the path."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.look import device_kinds, more, size
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Try, words
from nsprof.units import counted


def _crossed(case: Case) -> Seen | None:
    def crossed(side: Side) -> tuple[int, bool]:
        """Devices that a tenth of the packets leave through, and whether lo is one besides them; the rest are strays
        (neighbours, multicast)."""
        sent = [(float(v.sum()), place.startswith("lo in ")) for place, v in side.rows("tx_packets", "device")]
        loops = [loop for n, loop in sent if n > 0.1 * max(m for m, _ in sent)]
        return loops.count(False), True in loops

    (base, base_lo), (new, new_lo) = crossed(case.base), crossed(case.new)
    moved = case.moved("tx_packets", scope="device")
    if new <= base or moved.delta <= 0:
        return None
    devices = counted(new, "device") + (" besides lo" if base_lo or new_lo else "")
    before = "lo only" if base_lo and not base else f"{base or 'none'}{' besides lo' if base_lo else ''}"
    return Seen(
        "counters", f"packets leave through {devices} (base: {before}), {size(moved.delta)} more a {case.per}"
    )


RULE = Rule(
    name="extra-hop-veth",
    title="one more pair of devices on the path (veth)",
    what="Every packet is sent once more: device queue, the pair, the backlog of a CPU, and a softirq that "
    "receives it "
    "in the other namespace.",
    owns=(
        Owned(
            words(
                "veth_xmit veth_poll veth_xdp_rcv veth_xdp_rcv_skb __veth_xdp_flush veth_forward_skb "
                "veth_get_stats64 "
                "__dev_forward_skb __dev_forward_skb2 skb_scrub_packet"
            )
        ),
        Owned(
            words(
                "process_backlog enqueue_to_backlog __netif_rx netif_rx netif_rx_internal ____napi_schedule "
                "net_rx_action __napi_poll"
            ),
            leaf=True,
        ),
    ),
    signature=(),
    checks=(more(_crossed, "counters", "more devices send packets than at base"), device_kinds("veth")),
    needs_check=True,
    tries=(
        Try(
            "take a device that needs no pair: macvlan, ipvlan or netkit",
            "nsprof bench --scenario host,veth-bridge,macvlan,netkit -- netperf -t UDP_RR",
        ),
    ),
    source="drivers/net/veth.c; net/core/dev.c enqueue_to_backlog()",
    threshold="2 % of the base's cost; more devices crossed than at base",
)

"""Packets are put into a tunnel."""

from __future__ import annotations

from nsprof.analyse.causes.look import device_kinds, no_device
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

_KINDS = words("vxlan geneve gre gretap ipip sit ip6tnl wireguard erspan bareudp")

RULE = Rule(
    name="tunnel",
    title="packets are put into a tunnel and taken out again",
    what="Encapsulation adds outer headers and a second pass through UDP, IP and routing, an outer checksum "
    "where the "
    "device cannot do it, and often costs GRO and TSO.",
    owns=(
        Owned(
            words(
                "vxlan_* geneve_* ip_tunnel_* iptunnel_* udp_tunnel_* udp_tunnel6_* gre_* ipgre_* ip6_tnl_* "
                "ip6gre_* sit_* "
                "ipip_* wg_* udp_encap_* gro_cell_* gro_cells_* udp_queue_rcv_one_skb_encap"
            )
        ),
    ),
    signature=words("vxlan_xmit vxlan_rcv geneve_xmit ip_tunnel_xmit ipgre_xmit wg_xmit"),
    checks=(device_kinds(*_KINDS),),
    contradictions=(no_device(*_KINDS),),
    tries=(
        Try(
            "route instead of tunnelling where the network allows; else check the outer checksum and GRO",
            "ip -d link show type vxlan; ethtool -k DEV | grep udp_tnl",
        ),
    ),
    source="RFC 7348; drivers/net/vxlan",
    threshold="no limit of its own: runs only with a tunnel",
)

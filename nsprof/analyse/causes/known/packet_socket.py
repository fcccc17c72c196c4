"""A packet socket or tap that gets a copy of every packet."""

from __future__ import annotations

from nsprof.analyse.causes.look import datapath_more, none_of
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="packet-socket",
    title="a packet socket (tcpdump, a DHCP client, an agent) sees every packet",
    what="A packet socket on all protocols gets a clone of every packet sent and received in its namespace, and "
    "a time "
    "stamp for each; one forgotten capture has been the whole story before.",
    owns=(
        Owned(
            words(
                "dev_queue_xmit_nit packet_rcv packet_rcv_spkt tpacket_rcv packet_rcv_fanout prb_* run_filter "
                "packet_recvmsg packet_poll packet_lookup_frame* __packet_* packet_direct_xmit"
            )
        ),
    ),
    signature=words("dev_queue_xmit_nit packet_rcv tpacket_rcv"),
    checks=(datapath_more("packet_sockets", "packet sockets"),),
    contradictions=(none_of("packet_sockets", "taps", noun="a packet socket"),),
    tries=(Try("find the owner and end it, or give it a filter and one device", "ss -0pn"),),
    source="net/core/dev.c dev_queue_xmit_nit(); packet(7)",
    threshold="no limit of its own: the functions run only with a packet socket",
)

"""Time stamps for packets."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="timestamping",
    title="packets are time-stamped",
    what="One socket with SO_TIMESTAMP or a packet socket makes every received packet of the machine read the clock; "
    "transmit time stamps clone the packet to the error queue.",
    owns=(
        Owned(
            words(
                "__sock_recv_timestamp __sock_recv_timestamping put_cmsg_scm_timestamping* skb_tstamp_tx "
                "__skb_tstamp_tx "
                "__skb_complete_tx_timestamp sock_recv_timestamp tcp_recv_timestamp __sock_recv_cmsgs "
                "net_timestamp_set "
                "skb_clone_tx_timestamp sk_error_queue*"
            )
        ),
        Owned(
            words("ktime_get_real_ts64 ktime_get_with_offset ktime_get_real"),
            under=words("netif_rx netif_rx_internal __netif_rx netif_receive_skb* __netif_receive_skb_core"),
        ),
    ),
    signature=words("__sock_recv_timestamp __skb_tstamp_tx put_cmsg_scm_timestamping"),
    tries=(Try("ask for time stamps on the sockets that need them only", "ss -tunape"),),
    source="Documentation/networking/timestamping.rst",
    threshold="2 % of the base's cost",
)

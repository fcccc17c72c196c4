"""Contention on sockets."""

from __future__ import annotations

from nsprof.analyse.causes.look import rises
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="lock-socket",
    title="CPUs wait for a socket (its lock or receive queue)",
    what="Softirq and reader, or several writers, meet at one socket; TCP packets go to the socket's backlog "
    "meanwhile.",
    owns=(
        Owned(
            words(
                "native_queued_spin_lock_slowpath pv_queued_spin_lock_slowpath __pv_queued_spin_lock_slowpath "
                "__lock_sock"
            ),
            under=words(
                "lock_sock* release_sock __release_sock sk_* sock_* __udp_enqueue_schedule_skb udp_* __skb_recv_udp "
                "tcp_* inet_csk_* __tcp_* skb_consume_udp udp_rmem_release"
            ),
            not_under=words("__dev_queue_xmit ep_poll_callback"),
        ),
    ),
    checks=(
        rises(
            "TcpExt.TCPBacklogDrop",
            "TcpExt.TCPBacklogCoalesce",
            least=0.01,
            scope="netns",
            what="packets at the socket's backlog",
            why="one in a hundred met a locked socket",
        ),
    ),
    tries=(Try("a socket for each thread (SO_REUSEPORT)", ""),),
    source="net/core/sock.c lock_sock_nested(); net/ipv4/udp.c",
    threshold="2 % of the base's cost",
)

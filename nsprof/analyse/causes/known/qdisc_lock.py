"""Contention on the root lock of a qdisc."""

from __future__ import annotations

from nsprof.analyse.causes.look import no_qdisc, qdisc_differs
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="qdisc-lock",
    title="CPUs wait for the root lock of a qdisc",
    what="A device with one transmit queue and a qdisc has one lock for all senders.",
    owns=(
        Owned(
            words(
                "native_queued_spin_lock_slowpath pv_queued_spin_lock_slowpath queued_spin_lock_slowpath "
                "__pv_queued_spin_lock_slowpath"
            ),
            under=words("__dev_queue_xmit __qdisc_run sch_direct_xmit net_tx_action"),
            not_under=words("neigh_resolve_output __neigh_event_send tcp_v4_rcv sock_def_readable"),
        ),
    ),
    checks=(qdisc_differs(),),
    contradictions=(no_qdisc(),),
    tries=(
        Try("more transmit queues with mq, or no queue on virtual devices", "tc qdisc replace dev DEV root noqueue"),
    ),
    source="net/core/dev.c __dev_xmit_skb(), qdisc_lock()",
    threshold="2 % of the base's cost",
)

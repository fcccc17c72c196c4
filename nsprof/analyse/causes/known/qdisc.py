"""A queueing discipline on a device that had none."""

from __future__ import annotations

from nsprof.analyse.causes.look import no_qdisc, qdisc_differs
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="qdisc",
    title="a queueing discipline on the path",
    what="A qdisc takes a lock, queues and dequeues each packet, and on virtual devices has nothing to wait for.",
    owns=(
        Owned(
            words(
                "__qdisc_run qdisc_* sch_direct_xmit dev_qdisc_enqueue pfifo_* bfifo_* fq_codel_* fq_enqueue "
                "fq_dequeue "
                "htb_* tbf_* hfsc_* prio_* sfq_* cake_* netem_* red_* dequeue_skb net_tx_action try_bulk_dequeue_skb "
                "codel_* fq_* mq_*"
            )
        ),
    ),
    signature=words("__qdisc_run sch_direct_xmit dev_qdisc_enqueue"),
    checks=(qdisc_differs(),),
    contradictions=(no_qdisc(),),
    tries=(Try("give virtual devices no queue", "tc qdisc replace dev DEV root noqueue"),),
    source="net/core/dev.c __dev_xmit_skb()",
    threshold="2 % of the base's cost",
)

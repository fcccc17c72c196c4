"""Receive work done by ksoftirqd."""

from __future__ import annotations

import numpy as np

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, share_of
from nsprof.analyse.causes.rule import Rule, Seen, Try


def _share(case: Case, side: int) -> float:
    chosen = case.sides.views[side]
    daemons = np.array([t.comm.startswith("ksoftirqd/") for t in chosen.profile.tasks], bool)
    if not daemons.any():
        return 0.0
    mine = daemons[chosen.column("task")]
    return float(chosen.weight[mine].sum() / max(chosen.weight.sum(), 1e-12))


def _moved(case: Case) -> Seen | None:
    base, new = _share(case, 0), _share(case, 1)
    if new < base + 0.1:
        return None
    return Seen("functions", f"ksoftirqd has {new:.0%} of the busy time (base: {base:.0%})", "", new - base)


RULE = Rule(
    name="ksoftirqd",
    title="softirqs are left to ksoftirqd",
    what="Under overload softirqs are handed to a thread of normal priority: packets wait for the scheduler.",
    checks=(
        more(_moved, "functions", "a tenth more of the busy time in ksoftirqd than at base", must=True),
        share_of(
            "time_squeeze",
            of=("processed",),
            least=0.003,
            noun="softirqs cut short, of packets processed",
            scope="softnet",
            why="once in 300 packets means always",
        ),
    ),
    not_cpu=True,
    tries=(Try("spread receive work over CPUs, or give it threaded NAPI", "echo 1 > /sys/class/net/DEV/threaded"),),
    source="kernel/softirq.c wakeup_softirqd()",
    threshold="a tenth of the busy time",
)

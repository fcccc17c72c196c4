"""Receive work done by ksoftirqd."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, moves, share_of, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try


def _shares(case: Case, side: int) -> NDArray[np.float64]:
    """ksoftirqd's share of the samples, by run."""
    chosen = case.sides.views[side]
    daemons = np.array([t.comm.startswith("ksoftirqd/") for t in chosen.profile.tasks], bool)
    mine = daemons[chosen.column("task")] if daemons.any() else np.zeros(len(chosen.row), bool)
    number = len(chosen.runs)
    part, whole = (
        np.bincount(chosen.run[rows], weights=chosen.weight[rows], minlength=number)
        for rows in (mine, np.ones(len(chosen.row), bool))
    )
    return part / np.maximum(whole, 1e-12)


def _moved(case: Case) -> Seen | None:
    by_run = [_shares(case, side) for side in (0, 1)]
    base, new = (float(run.mean()) for run in by_run)
    if new < base + 0.1 or not moves(*by_run):
        return None
    # The daemon serves everybody's packets.
    return Seen(
        "functions", f"ksoftirqd has {new:.0%} of the busy time (base: {base:.0%})", "", new - base, own=False
    )


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
            must=False,
        ),
        slower(),
    ),
    not_cpu=True,
    tries=(Try("spread receive work over CPUs, or give it threaded NAPI", "echo 1 > /sys/class/net/DEV/threaded"),),
    source="kernel/softirq.c wakeup_softirqd()",
    threshold="a tenth of the busy time",
)

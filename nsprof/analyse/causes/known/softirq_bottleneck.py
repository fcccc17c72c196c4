"""One CPU does all receive work."""

from __future__ import annotations

import numpy as np

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try
from nsprof.model.profile import Context


def _one(case: Case, side: int) -> tuple[int, float]:
    """(CPU, share of its wall time in softirq) of the CPU with most softirq time."""
    chosen = case.sides.views[side]
    wall = sum(r.duration_s for r in chosen.run_objects)
    softirq = chosen.column("context") == int(Context.SOFTIRQ)
    if wall <= 0 or (case.sides.measure.unit not in ("ns",) and case.sides.measure.per != "share"):
        return -1, 0.0
    times = np.bincount(chosen.column("cpu")[softirq], weights=chosen.weight[softirq])
    return (int(times.argmax()), float(times.max() / 1e9 / wall)) if len(times) else (-1, 0.0)


def _full(case: Case) -> Seen | None:
    (_, base), (cpu, new) = _one(case, 0), _one(case, 1)
    if new < 0.8 or base >= 0.8:
        return None
    return Seen(
        "functions",
        f"CPU {cpu} spends {new:.0%} of its time in softirqs (base: {base:.0%})",
        f"CPU {cpu}",
        new - base,
    )


def _others(case: Case) -> Seen | None:
    shares = [b / r.duration_s for r in case.new.run_objects for b in r.cpu_busy_s.values() if r.duration_s > 0]
    idle = [s for s in shares if s < 0.5]
    return Seen("counters", f"while {len(idle)} of {len(shares)} CPUs are busy less than half") if idle else None


RULE = Rule(
    name="softirq-bottleneck",
    title="all packets are received by one CPU",
    what="A device with one queue (veth, tunnels) is served by one CPU unless RPS spreads its packets.",
    checks=(
        more(_full, "functions", "one CPU spends 80 % of its time in softirqs, not so at base", must=True),
        more(_others, "counters", "while other CPUs are busy less than half"),
        slower(),
    ),
    not_cpu=True,
    tries=(Try("spread by flow", "echo ffff > /sys/class/net/DEV/queues/rx-0/rps_cpus"),),
    source="Documentation/networking/scaling.rst",
    threshold="80 % of a CPU",
)

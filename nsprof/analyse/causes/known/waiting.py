"""Time passes without CPU: latency from waiting."""

from __future__ import annotations

import math

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import busy_share, full_share, more, own_shares, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try

#: From here on the machine below took the time (runs are marked from this share on).
_STOLEN = 0.01
#: A fifth less is more than runs on a quiet machine differ by.
_LEAST = 0.2


def _lost(case: Case) -> float:
    """The share of base's throughput that is gone."""
    base, new = case.base.values("throughput"), case.new.values("throughput")
    return float(1 - new.mean() / base.mean()) if len(base) and len(new) and base.mean() > 0 else 0.0


def _idle(case: Case) -> Seen | None:
    busy, before = busy_share(case.new), busy_share(case.base)
    wall = sum(r.duration_s * max(1, r.cpus) for r in case.new.run_objects)
    stolen = sum(r.cpu_steal_s for r in case.new.run_objects)
    if wall > 0 and stolen > _STOLEN * wall:
        return None
    if not math.isnan(full_share(case.new)):
        return None  # whoever filled the CPUs (a peer in another namespace, too): they had no time to wait in
    # What is not done costs no time: the CPU must idle in proportion, at least by half.
    part = 1 - _lost(case) / 2
    if busy < 0.9 and busy <= before * part:
        return Seen("counters", f"the CPU under test is busy {busy:.0%} (base: {before:.0%})")
    own, was = (max(own_shares(case, number).values(), default=1.0) for number in (1, 0))
    if own < 0.9 and own <= was * part:
        return Seen(
            "counters",
            f"its own work takes {own:.0%} of the CPU under test (base: {was:.0%}); others were there, too",
        )
    return None


def _same(case: Case) -> Seen | None:
    """What a dearer unit explains of the loss on a full CPU; on an idle one not even that."""
    dearer = max(0.0, 1 - case.base_total / case.new_total) if case.new_total > 0 else 0.0
    waited = _lost(case) - dearer
    if waited < _LEAST:
        return None
    much = "no more" if dearer < 0.01 else f"{case.new_total / case.base_total - 1:.0%} more"
    return Seen("functions", f"a {case.per} costs {much} CPU than at base: that explains {dearer:.0%} at the most")


RULE = Rule(
    name="waiting",
    title="time passes in waiting (scheduler, sleep states, a slow peer), not in CPU",
    what="Less is done in the same time while CPUs are idle and each unit costs what it did.",
    checks=(
        slower(_LEAST, must=True),
        more(
            _idle,
            "counters",
            "the busiest CPU under test is busy less than 90 %, and less than at base by half of what is gone; "
            "of a CPU that others keep busy, the scenario's own part; not where all CPUs under test are full "
            "in every run",
            must=True,
        ),
        more(_same, "functions", "a fifth is gone beyond what a dearer unit explains", must=True),
    ),
    not_cpu=True,
    fallback=True,
    tries=(Try("look at what it waits for", "perf sched timehist; cat /proc/PID/stack; cpupower idle-info"),),
    source="handled apart because no profile of CPU time shows it (off-CPU analysis)",
    threshold="a fifth less throughput in every run, CPU busy below 90 %",
)

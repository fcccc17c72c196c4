"""Time passes without CPU: latency from waiting."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import busy_share, more, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try

#: From here on the machine below took the time (runs are marked from this share on).
_STOLEN = 0.01


def _idle(case: Case) -> Seen | None:
    busy, before = busy_share(case.new), busy_share(case.base)
    wall = sum(r.duration_s * max(1, r.cpus) for r in case.new.run_objects)
    stolen = sum(r.cpu_steal_s for r in case.new.run_objects)
    if not busy < 0.9 or busy > before or (wall > 0 and stolen > _STOLEN * wall):
        return None
    return Seen("counters", f"the CPU under test is busy {busy:.0%} (base: {before:.0%})")


def _same(case: Case) -> Seen | None:
    if case.new_total > 1.05 * case.base_total:
        return None
    return Seen("functions", f"a {case.per} costs no more CPU than at base")


RULE = Rule(
    name="waiting",
    title="time passes in waiting (scheduler, sleep states, a slow peer), not in CPU",
    what="Less is done in the same time while CPUs are idle and each unit costs what it did.",
    checks=(
        slower(0.2, must=True),
        more(_idle, "counters", "the busiest CPU under test is busy less than 90 % and less than at base", must=True),
        more(_same, "functions", "the unit cost is not 5 % higher", must=True),
    ),
    not_cpu=True,
    tries=(Try("look at what it waits for", "perf sched timehist; cat /proc/PID/stack; cpupower idle-info"),),
    source="handled apart because no profile of CPU time shows it (off-CPU analysis)",
    threshold="a fifth less throughput in every run, CPU busy below 90 %",
)

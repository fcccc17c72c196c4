"""One CPU does all receive work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more, moves, own_shares, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try
from nsprof.model.profile import Context

#: A CPU with so much of its time in softirqs does little else.
_FULL = 0.8


def _two(case: Case, side: int) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """(CPU with most softirq time, by run the share of its wall time in softirqs, that of the CPU with next most).
    Under load softirqs are handed to ksoftirqd: the same work, one at a time on the same CPU."""
    chosen = case.sides.views[side]
    wall = np.array([r.duration_s for r in chosen.run_objects])
    nothing = np.zeros(len(wall))
    daemons = np.array([t.comm.startswith("ksoftirqd/") for t in chosen.profile.tasks] or [False], bool)
    softirq = chosen.column("context") == int(Context.SOFTIRQ)
    if daemons.any():
        softirq |= daemons[chosen.column("task")]
    if not (wall > 0).all() or (case.sides.measure.unit != "ns" and case.sides.measure.per != "share"):
        return -1, nothing, nothing
    cpu = chosen.column("cpu")
    by_cpu = np.bincount(cpu[softirq], weights=chosen.weight[softirq])
    if not len(by_cpu):
        return -1, nothing, nothing

    def by_run(number: int) -> NDArray[np.float64]:
        rows = softirq & (cpu == number)
        times = np.bincount(chosen.run[rows], weights=chosen.weight[rows], minlength=len(wall))
        return np.asarray(times / 1e9 / wall, "f8")

    order = np.argsort(by_cpu)[::-1].tolist()
    return order[0], by_run(order[0]), by_run(order[1]) if len(order) > 1 else nothing


def _alone(first: float, second: float) -> bool:
    """Whether one CPU is full of softirqs and the next one has not half as much of it."""
    return first >= _FULL and second < first / 2


def _full(case: Case) -> Seen | None:
    (_, before, before_next), (cpu, now, now_next) = _two(case, 0), _two(case, 1)
    base, base_next, new, new_next = (float(each.mean()) for each in (before, before_next, now, now_next))
    if _alone(base, base_next) or not _alone(new, new_next) or not moves(before - before_next, now - now_next):
        return None
    # Softirqs of a CPU serve everybody's packets.
    text = f"CPU {cpu} spends {new:.0%} of its time in softirqs, the next {new_next:.0%}"
    text += f" (base: {base:.0%} and {base_next:.0%})"
    return Seen("functions", text, f"CPU {cpu}", new - new_next - (base - base_next), own=False)


def _others(case: Case) -> Seen | None:
    runs = [r for r in case.new.run_objects if r.duration_s > 0]
    cpus = sorted({cpu for r in runs for cpu in r.cpu_busy_s})
    busy = {c: sum(r.cpu_busy_s.get(c, 0.0) / r.duration_s for r in runs) / len(runs) for c in cpus}
    own = own_shares(case, 1)
    if own:  # the own time on the CPUs under test is known: one that others fill receives none of its packets
        busy.update({c: own.get(c, 0.0) for r in runs for c in r.dut_cpus})
        busy.update(own)
    idle = [c for c in cpus if busy[c] < 0.5]
    text = f"while {len(idle)} of {len(cpus)} CPUs have less than half of their time taken by it"
    return Seen("counters", text, own=False) if idle else None


RULE = Rule(
    name="softirq-bottleneck",
    title="all packets are received by one CPU",
    what="A device with one queue (veth, tunnels) is served by one CPU unless RPS spreads its packets.",
    checks=(
        more(
            _full,
            "functions",
            "one CPU spends 80 % of its time in softirqs, no other half as much, and not so at base",
            must=True,
        ),
        # Where no CPU is idle there is nobody to spread to: then it is overload, not one queue.
        more(_others, "counters", "while other CPUs are busy with it less than half of their time", must=True),
        slower(),
    ),
    # A CPU that does nothing but softirqs runs out of budget and leaves them to its thread.
    subsumes=("ksoftirqd", "time-squeeze"),
    not_cpu=True,
    tries=(Try("spread by flow", "echo ffff > /sys/class/net/DEV/queues/rx-0/rps_cpus"),),
    source="Documentation/networking/scaling.rst",
    threshold="80 % of a CPU, and twice what any other has",
)

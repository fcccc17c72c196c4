"""What observing costs."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import more
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Try, words


def _own(case: Case) -> Seen | None:
    shares = []
    for side in (case.base, case.new):
        own = sum(r.own_cpu_s for r in side.run_objects)
        busy = sum(sum(r.cpu_busy_s.values()) for r in side.run_objects)
        shares.append(own / busy if busy else 0.0)
    if shares[1] < shares[0] + 0.02:
        return None
    return Seen("counters", f"nsprof itself took {shares[1]:.1%} of the busy time (base: {shares[0]:.1%})")


def _probes(case: Case) -> Seen | None:
    sets = [{p for r in s.run_objects for p in r.probes_on} for s in (case.base, case.new)]
    gained = sets[1] - sets[0]
    return Seen("host", f"probe sets on: {', '.join(sorted(gained))} (base: not)") if gained else None


RULE = Rule(
    name="observer",
    title="the observation itself (nsprof's probes, or another tracer)",
    what="Tracers run in the path that they watch.",
    owns=(
        Owned(
            words(
                "perf_trace_* trace_event_raw_event_* trace_event_buffer_* kprobe_* optimized_callback kretprobe_* "
                "ftrace_ops_* bpf_trampoline_* bpf_trace_run* __bpf_trace_* perf_swevent_* perf_event_output* "
                "perf_tp_event __perf_event_overflow perf_event_overflow bpf_overflow_handler ring_buffer_* fprobe_*"
            )
        ),
    ),
    checks=(
        more(_own, "counters", "nsprof's own CPU time is 2 % of the busy time more than at base"),
        more(_probes, "host", "probe sets that base had not"),
    ),
    tries=(
        Try(
            "record without --hop, at a lower frequency; end other tracers",
            "bpftool prog show; cat /sys/kernel/tracing/set_event",
        ),
    ),
    source="docs/method.md (own cost)",
    threshold="2 % of the base's cost",
)

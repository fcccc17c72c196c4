"""How far the samples of a view can be trusted: what was lost, stolen, warned of while recording, and whether it adds
up. In sentences, each once; `report`, `diff` and the flame graphs say them in the same words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from nsprof.analyse.selection import View
from nsprof.model.profile import Context, Profile, Run

__all__ = [
    "LOSS_LIMIT",
    "STEAL_LIMIT",
    "SUM_LIMIT",
    "chance_of_sums",
    "counted_cpus",
    "cpu_seconds",
    "few_samples",
    "from_idle_cpu_s",
    "lost_elsewhere",
    "lost_share",
    "recorded_notes",
    "refused",
    "runs_trouble",
    "sums",
    "trouble",
    "warnings",
]

Side = Literal["dut", "remote", "all"]

#: Above these shares a report is marked: samples lost, CPU stolen, sampled against measured busy time.
LOSS_LIMIT = 0.01
STEAL_LIMIT = 0.01
SUM_LIMIT = 0.02
#: Of what refused probes would have counted so many kinds are named in a report; `nsprof info` has them all.
_NAMED = 4
#: Below so many samples chance moves a total by more than 36 %.
_FEW = 30
#: A few ticks more or less are no disagreement of sums, however short the recording was.
_LEAST_S = 0.01


def _name(profile: Profile, number: int) -> str:
    return f"run {number + 1}" if len(profile.runs) > 1 else "the run"


def counted_cpus(run: Run, side: Side) -> tuple[int, ...]:
    """The CPUs that a side's costs are of; empty: all."""
    return {"dut": run.dut_cpus, "remote": run.remote_cpus, "all": ()}[side]


def lost_share(run: Run, side: Side) -> float:
    """Share of the samples due on the CPUs counted that were lost, their busy time as weights.

    Of all CPUs together where it is not known CPU by CPU; nan where nothing is known.
    """
    cpus = counted_cpus(run, side)
    due = {cpu: run.cpu_busy_s.get(cpu, 0.0) for cpu in cpus}
    if not sum(due.values()) or any(cpu not in run.lost_by_cpu for cpu in cpus):
        return run.losses.lost_share
    return sum(run.lost_by_cpu[cpu] * busy for cpu, busy in due.items()) / sum(due.values())


def lost_elsewhere(chosen: View) -> list[str]:
    """What CPUs that are not counted lost, in a sentence: it concerns no figure shown, but whoever counts them."""
    worst: dict[int, tuple[float, int]] = {}
    for number, run in zip(chosen.runs, chosen.run_objects, strict=True):
        cpus = counted_cpus(run, chosen.filter.side)
        if not cpus:
            return []
        others = {cpu: share for cpu, share in run.lost_by_cpu.items() if cpu not in cpus and share > LOSS_LIMIT}
        if others:
            cpu = max(others, key=lambda each: others[each])
            worst[number] = (others[cpu], cpu)
    if not worst:
        return []
    most = max(worst, key=lambda number: worst[number][0])
    shares = _range({number: share for number, (share, _) in worst.items()})
    which = f", the most {_name(chosen.profile, most)}" if len(worst) > 1 else ""
    who = _runs(chosen.profile, chosen.runs, list(worst))
    return [f"{who} lost {shares} of the samples of CPUs that are not counted here (CPU {worst[most][1]}{which})"]


def trouble(chosen: View) -> list[str]:
    """What the view itself warns of, then `runs_trouble`."""
    return [*chosen.warnings, *runs_trouble(chosen.profile, chosen.runs, chosen.filter.side)]


def runs_trouble(profile: Profile, runs: Sequence[int], side: Side = "dut") -> list[str]:
    """Losses on the CPUs of a side, missing call stacks and stolen time above their limits, a sentence a kind,
    whatever runs have it."""
    lost: dict[int, float] = {}
    damaged: dict[int, float] = {}
    stolen: dict[int, float] = {}
    for number in runs:
        run = profile.runs[number]
        online = run.duration_s * max(run.cpus, 1)
        if lost_share(run, side) > LOSS_LIMIT:
            lost[number] = lost_share(run, side)
        if run.losses.damaged_share > LOSS_LIMIT:
            damaged[number] = run.losses.damaged_share
        if online > 0 and run.cpu_steal_s / online > STEAL_LIMIT:
            stolen[number] = run.cpu_steal_s / online
    found = []
    if lost:
        worst = max(lost, key=lambda number: lost[number])
        whose = "its" if len(lost) == 1 else "their"
        most = f"; the most: {_name(profile, worst)}" if len(lost) > 1 else ""
        where = _where_lost(profile.runs[worst])
        of = "" if profile.runs[worst].lost_by_cpu or not profile.runs[worst].dut_cpus else " on all CPUs together"
        found.append(f"{_runs(profile, runs, list(lost))} lost {_range(lost)} of {whose} samples{of}{most}{where}")
    if damaged:
        found.append(f"{_runs(profile, runs, list(damaged))}: {_range(damaged)} of the samples have no call stack")
    if stolen:
        who = _runs(profile, runs, list(stolen))
        found.append(f"{who}: the hypervisor took {_range(stolen)} of the CPU time away (steal)")
    return found


def _range(shares: Mapping[int, float]) -> str:
    low, high = f"{min(shares.values()):.1%}", f"{max(shares.values()):.1%}"
    return low if low == high else f"{low} to {high}"


def _where_lost(run: Run) -> str:
    losses = run.losses
    parts = [
        f"{name.replace('_', ' ')} {value:,}"
        for name in ("map_full", "throttled", "lost_records", "stack_collisions")
        if (value := getattr(losses, name)) > 0
    ]
    return f" ({', '.join(parts)})" if parts else ""


def warnings(chosen: View) -> list[str]:
    """What was warned of while recording. Of warnings that differ only in their figures the first is given in full,
    with the runs that had one like it."""
    said: dict[str, list[tuple[int, str]]] = {}
    for number, run in zip(chosen.runs, chosen.run_objects, strict=True):
        for text in run.warnings:
            said.setdefault(text.partition(": ")[0], []).append((number, text))
    lines = []
    for entries in said.values():
        texts = list(dict.fromkeys(text for _, text in entries))
        runs = list(dict.fromkeys(number for number, _ in entries))
        if len(texts) == 1 or len(runs) == 1:
            lines += [f"{_runs(chosen.profile, chosen.runs, runs)}: {text}" for text in texts]
        else:
            others = _runs(chosen.profile, chosen.runs, runs[1:])
            lines.append(f"{_name(chosen.profile, runs[0])}: {texts[0]} (the like in {others})")
    return lines


def _runs(profile: Profile, among: Sequence[int], numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return _name(profile, numbers[0])
    if len(numbers) == len(among) and len(numbers) > 2:
        return f"all {len(numbers)} runs"
    words = [str(number + 1) for number in numbers[:6]]
    if len(numbers) > 6:
        return f"runs {', '.join(words)} and {len(numbers) - 6} more"
    return f"runs {', '.join(words[:-1])} and {words[-1]}"


def refused(profile: Profile) -> list[str]:
    """Probes that did not stand, a short line a reason: on one kernel many fail for the same one."""
    by_reason: dict[tuple[str, str], dict[str, str]] = {}
    for probe in profile.probes:
        if probe.state not in ("refused", "shed"):
            continue
        reason, _, lost = probe.reason.partition("; not counted: ")
        by_reason.setdefault((probe.state, reason), {})[probe.name] = lost
    lines = []
    for (state, reason), lost_by in by_reason.items():
        few = len(lost_by) <= 3
        what = (
            ("probe " if len(lost_by) == 1 else "probes ") + ", ".join(lost_by) if few else f"{len(lost_by)} probes"
        )
        parts = [part.removesuffix(" by this function") for lost in lost_by.values() for part in lost.split(", ")]
        missing = list(dict.fromkeys(filter(None, parts)))
        words = f"{what} {state}{f': {reason}' if reason else ''}"
        if len(missing) > _NAMED:
            words += f"; {len(missing)} kinds of events not counted by them: {', '.join(missing[:_NAMED])} ..."
        elif missing:
            words += f"; not counted by them: {', '.join(missing)}"
        lines.append(words + ("" if few else " (nsprof info lists them)"))
    return lines


def recorded_notes(chosen: View) -> list[str]:
    """Notes for the reader that the profile carries."""
    notes = chosen.profile.meta.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def sums(chosen: View) -> tuple[list[str], bool]:
    """Whether sampled and measured CPU time agree, in words (none if they do), and whether a difference is explained
    by what came out of idle."""
    measured, sampled = cpu_seconds(chosen)
    if math.isnan(measured) or math.isnan(sampled):
        return [], True
    from_idle = from_idle_cpu_s(chosen)
    off = (sampled - measured) / measured
    limit = SUM_LIMIT + chance_of_sums(chosen)
    if abs(off) <= limit or abs(sampled - measured) < _LEAST_S:
        return [], True
    words = f"samples add up to {sampled:.2f} s of CPU where {measured:.2f} s were measured ({off:+.1%})"
    if off > 0 and from_idle > 0:
        words += f"; up to {from_idle:.2f} s of them came out of idle: due while the CPU slept, landed late"
    explained = sampled - from_idle <= measured * (1 + limit) and sampled >= measured * (1 - limit)
    return [words], explained


def chance_of_sums(chosen: View) -> float:
    """How far sampled busy time may be from the measured one by chance, as a share of it.

    Ticks come at fixed times; which of them fall into busy time on a CPU that sleeps and wakes in between is a sample
    of its busy share p. Of n ticks in busy time that is three standard deviations, 3 sqrt((1 - p) / n).
    """
    measured, sampled = cpu_seconds(chosen)
    event = next(e for e in chosen.profile.events if e.name == chosen.measure.event)
    wall = sum(
        run.duration_s * (len(counted_cpus(run, chosen.filter.side)) or max(run.cpus, 1))
        for run in chosen.run_objects
    )
    if not event.period or math.isnan(measured) or sampled <= 0 or wall <= 0:
        return 0.0
    ticks = sampled * 1e9 / event.period
    return 3 * math.sqrt(max(0.0, 1 - measured / wall) / ticks)


def few_samples(chosen: View) -> list[str]:
    """What chance alone does to a total of so few samples (Poisson, 95 %), in a sentence where it is much."""
    event = next(e for e in chosen.profile.events if e.name == chosen.measure.event)
    samples = int(chosen.count.sum())
    if event.kind != "sampled" or not 0 < samples < _FEW:
        return []
    what = f"{samples} sample{'s' * (samples != 1)}"
    return [f"{what}: too few for a cost, which chance alone moves by {1.96 / samples**0.5:.0%} (95 %)"]


def cpu_seconds(chosen: View) -> tuple[float, float]:
    """Measured and sampled busy seconds of the same CPUs and runs; nan where they cannot be compared."""
    if chosen.profile.events and chosen.filter.is_partial:
        return float("nan"), float("nan")
    event = next(e for e in chosen.profile.events if e.name == chosen.measure.event)
    if event.unit != "ns" or event.kind != "sampled":
        return float("nan"), float("nan")
    measured = 0.0
    for run in chosen.run_objects:
        cpus = counted_cpus(run, chosen.filter.side) or tuple(run.cpu_busy_s)
        measured += sum(run.cpu_busy_s.get(c, 0.0) for c in cpus)
    return measured or float("nan"), (float(chosen.weight.sum()) + chosen.other_weight) / 1e9


def from_idle_cpu_s(chosen: View) -> float:
    """Sampled seconds that the kernel counts as idle: the idle task's own work, and ticks that fell due while the CPU
    slept but landed, late (skid), in the interrupt that woke it."""
    idle_task = np.array([t.tgid == 0 and t.pid == 0 for t in chosen.profile.tasks] or [False], bool)
    context = chosen.column("context")
    late: Any = chosen.skid | (context == int(Context.SCHED))
    mine = idle_task[chosen.column("task")] if chosen.profile.tasks else np.zeros(len(late), bool)
    return float(chosen.weight[mine & late].sum()) / 1e9

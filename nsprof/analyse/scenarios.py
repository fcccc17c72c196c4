"""The table of source document 000: CPU usage / overhead, throughput / changed, one line a scenario."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import statistics, trust
from nsprof.analyse.filters import Filter
from nsprof.analyse.selection import choose_denominator, choose_scenario, scenario_names, usable_runs, view
from nsprof.errors import EvidenceError, UsageError
from nsprof.model.profile import Profile, Run
from nsprof.model.results import Interval, ScenarioRow, ScenarioTable

__all__ = ["change_pct", "cpu_pct", "outcome_notes", "scenario_table"]

#: When throughputs differ by more than this, CPU at unequal work misleads and the unit cost is the headline.
EQUAL_WORK = 0.01
#: Above this share of the busy time other load is said to be in the CPU usage.
OTHER_LOAD = 0.05
#: A throughput that differs by this much in every run is told even where no cost is shown to differ.
OUTCOME = 0.10
#: Workload values that are the throughput, in the order of preference.
_THROUGHPUT = (
    "throughput",
    "throughput_received",
    "transaction_rate",
    "throughput_total",
    "throughput_sent",
    "rate",
    "packets_per_second",
)
_RETRANSMITS = ("Tcp.RetransSegs", "TcpRetransSegs", "RetransSegs")


def change_pct(value: float, baseline: float) -> float:
    """(value - baseline) / baseline in %: the document's "overhead" and "changed". nan where it has no meaning."""
    if math.isnan(value) or math.isnan(baseline) or baseline == 0:
        return float("nan")
    return (value - baseline) / baseline * 100.0


def cpu_pct(run: Run, cpus: Sequence[int]) -> float:
    """Busy time of `cpus` as % of wall x CPUs, as netperf reckons; all online CPUs where `cpus` is empty."""
    number = len(cpus) or run.cpus
    if run.duration_s <= 0 or number <= 0 or not run.cpu_busy_s:
        return float("nan")
    busy = sum(run.cpu_busy_s.get(c, 0.0) for c in cpus) if cpus else sum(run.cpu_busy_s.values())
    return busy / (run.duration_s * number) * 100.0


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The run values of one scenario."""

    profile: Profile
    name: str
    kernel: str
    runs: tuple[int, ...]
    cpu: NDArray[np.float64]
    remote: NDArray[np.float64]
    throughput: NDArray[np.float64]
    unit: str
    cost: NDArray[np.float64]
    label: str
    other_share: float  # of the busy time sampled, what tasks outside the scenario's namespaces took


def scenario_table(
    profiles: Profile | Sequence[Profile],
    baseline: str | None = None,
    *,
    event: str | None = None,
    per: str | None = None,
    title: str = "",
) -> ScenarioTable:
    """Every scenario of the profiles against `baseline` (SCENARIO or KERNEL:SCENARIO; None: host, else the first).

    CPU is that of the device under test; the remote end has a column of its own. Runs without hop probes are used
    where there are both sorts. Raises UsageError for an unknown baseline, EvidenceError where nothing was run.
    """
    many = [profiles] if isinstance(profiles, Profile) else list(profiles)
    common = _common(many, per)
    sides = [side for p in many for name in scenario_names(p) if (side := _side(p, name, event, common)) is not None]
    if not sides:
        raise EvidenceError("no scenario has a usable run")
    base = _baseline(sides, baseline)
    sides.sort(key=lambda side: side is not base)  # the baseline first, the others as they were run
    rows = tuple(_row(side, base) for side in sides)
    return ScenarioTable(
        title=title or f"CPU usage and throughput against {base.name}",
        baseline=base.name,
        rows=rows,
        notes=_notes(sides, rows, base),
        alarms=tuple(_alarms(sides)),
    )


def _common(profiles: Sequence[Profile], per: str | None) -> str:
    """One denominator for the whole table; "" (no unit cost) where the scenarios have none in common."""
    runs = [[p.runs[i] for name in scenario_names(p) for i in usable_runs(p, name)] for p in profiles]
    if per is not None:
        return choose_denominator(runs, per)
    return choose_denominator([r for r in runs if r], None)


def _side(profile: Profile, name: str, event: str | None, per: str) -> _Side | None:
    usable = usable_runs(profile, name)
    if not usable:
        return None
    plain = tuple(i for i in usable if "hop" not in profile.runs[i].probes_on)
    numbers = plain or usable
    runs = [profile.runs[i] for i in numbers]
    throughput = [_throughput(r) for r in runs]
    cost, label = _unit_cost(profile, name, numbers, event, per)
    return _Side(
        profile=profile,
        name=name,
        kernel="/".join(dict.fromkeys(r.kernel for r in runs if r.kernel)),
        runs=numbers,
        cpu=np.array([cpu_pct(r, r.dut_cpus) for r in runs]),
        remote=np.array([cpu_pct(r, r.remote_cpus) if r.remote_cpus else math.nan for r in runs]),
        throughput=np.array([t[0] for t in throughput]),
        unit=next((t[1] for t in throughput if t[1]), ""),
        cost=cost,
        label=label,
        other_share=_other_share(profile, name, numbers, event),
    )


def _other_share(profile: Profile, name: str, runs: tuple[int, ...], event: str | None) -> float:
    """What other load had of the samples; 0 where there are none or nothing tells it apart."""
    if not len(profile.samples):
        return 0.0
    try:
        return view(profile, scenario=name, runs=runs, event=event, per="total", where=Filter()).other_share
    except EvidenceError:
        return 0.0


def outcome_notes(
    base: Profile, base_title: str, new: Profile, new_title: str, *, scenarios: tuple[str | None, str | None]
) -> tuple[str, ...]:
    """What became of the traffic itself, whatever it cost: a throughput that in every run of `new` is a tenth below
    (or above) every run of `base`, and the segments sent again meanwhile. Empty where it stayed or was not measured.
    """
    found = [_side(p, choose_scenario(p, n), None, "") for p, n in zip((base, new), scenarios, strict=True)]
    if found[0] is None or found[1] is None or found[0].unit != found[1].unit:
        return ()
    old, now = found[0].throughput, found[1].throughput
    if not (np.isfinite(old).all() and np.isfinite(now).all()):
        return ()
    fell = now.max() <= old.min() * (1 - OUTCOME)
    if not fell and now.min() < old.max() * (1 + OUTCOME):
        return ()
    change = abs(change_pct(_mean(now), _mean(old)))
    lines = [
        f"throughput {'fell' if fell else 'rose'} by {change:.0f}%, from {_mean(old):,.2f} to {_mean(now):,.2f} "
        f"{found[1].unit} (mean over runs); every run of {new_title} is {'below' if fell else 'above'} "
        f"every run of {base_title}"
    ]
    again = [_counted(side)[1] for side in found if side is not None]
    if any(again):
        lines.append(f"retransmitted segments a run: {again[0]:,.0f} in {base_title}, {again[1]:,.0f} in {new_title}")
    return tuple(lines)


def _throughput(run: Run) -> tuple[float, str]:
    for name in _THROUGHPUT:
        for value in run.values:
            if value.name == name:
                return value.value, value.unit
    return math.nan, ""


def _unit_cost(
    profile: Profile, name: str, runs: tuple[int, ...], event: str | None, per: str
) -> tuple[NDArray[np.float64], str]:
    """Unit cost by run; nan where the profile has no samples (a table of CPU and throughput alone is one too)."""
    nothing = np.full(len(runs), np.nan), ""
    if not len(profile.samples) or not per:
        return nothing
    try:
        chosen = view(profile, scenario=name, runs=runs, event=event, per=per, where=Filter())
    except EvidenceError:
        return nothing
    return chosen.totals(), chosen.measure.label


def _baseline(sides: Sequence[_Side], name: str | None) -> _Side:
    if name is None:
        return next((s for s in sides if s.name == "host" or s.name.endswith(":host")), sides[0])
    found = [s for s in sides if name in (s.name, f"{s.kernel}:{s.name}") or s.name.partition(":")[2] == name]
    if not found:
        raise UsageError(f"no scenario {name!r} to be the baseline", f"there are: {', '.join(s.name for s in sides)}")
    return found[0]


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _interval(values: NDArray[np.float64]) -> Interval | None:
    return None if np.isnan(values).any() else statistics.mean_interval(values)


def _row(side: _Side, base: _Side) -> ScenarioRow:
    is_base = side is base
    same_unit = side.unit == base.unit
    same_cost = side.label == base.label
    drops, retransmits = _counted(side)
    row: dict[str, Any] = {
        "cpu": _mean(side.cpu),
        "throughput": _mean(side.throughput),
        "cost": _mean(side.cost),
    }
    changes = {
        "cpu": change_pct(row["cpu"], _mean(base.cpu)),
        "throughput": change_pct(row["throughput"], _mean(base.throughput)) if same_unit else math.nan,
        "cost": change_pct(row["cost"], _mean(base.cost)) if same_cost else math.nan,
    }
    if is_base:
        changes = dict.fromkeys(changes, math.nan)
    return ScenarioRow(
        scenario=side.name,
        kernel=side.kernel,
        runs=len(side.runs),
        cpu_pct=row["cpu"],
        cpu_change_pct=changes["cpu"],
        throughput=row["throughput"],
        throughput_unit=side.unit,
        throughput_change_pct=changes["throughput"],
        unit_cost=row["cost"],
        unit_cost_label=side.label,
        unit_cost_change_pct=changes["cost"],
        cpu_remote_pct=_mean(side.remote),
        cpu_interval=_interval(side.cpu),
        throughput_interval=_interval(side.throughput),
        unit_cost_interval=_interval(side.cost),
        drops=drops,
        retransmits=retransmits,
        observation="baseline" if is_base else _observation(side, base, changes, drops, retransmits),
        is_baseline=is_base,
    )


def _counted(side: _Side) -> tuple[float, float]:
    """Dropped packets and retransmitted segments, mean a run."""
    wanted = set(side.runs)
    drops = retransmits = 0.0
    for counter in side.profile.counters:
        if counter.run in wanted:
            if counter.scope in ("device", "softnet", "qdisc") and "drop" in counter.name:
                drops += counter.delta
            elif counter.name in _RETRANSMITS:
                retransmits += counter.delta
    return drops / len(side.runs), retransmits / len(side.runs)


def _observation(side: _Side, base: _Side, changes: dict[str, float], drops: float, retransmits: float) -> str:
    """What the figures say, and no more: whose difference an interval does not allow is called none shown."""
    parts = []
    unequal = not math.isnan(changes["throughput"]) and abs(changes["throughput"]) > EQUAL_WORK * 100
    headline, values, other = ("unit cost", side.cost, base.cost) if unequal else ("CPU", side.cpu, base.cpu)
    key = "cost" if unequal else "cpu"
    if not math.isnan(changes[key]):
        if min(len(values), len(other)) >= 2:
            evidence = statistics.compare(other[np.newaxis], values[np.newaxis])
            shown = bool(evidence.low[0] > 0 or evidence.high[0] < 0)
        else:
            shown = True
        digits = 0 if abs(changes[key]) >= 10 else 1
        parts.append(f"{headline} {changes[key]:+.{digits}f}%" if shown else f"{headline}: no difference shown")
    if unequal:
        parts.append(f"unequal work ({changes['throughput']:+.1f}% throughput), so CPU alone misleads")
    if drops > 0:
        parts.append(f"{drops:,.0f} drops")
    if retransmits > 0:
        parts.append(f"{retransmits:,.0f} retransmits")
    return "; ".join(parts)


def _notes(sides: Sequence[_Side], rows: Sequence[ScenarioRow], base: _Side) -> tuple[str, ...]:
    notes = [f"overhead and changed: (x - {base.name}) / {base.name}"]
    if any(len(s.runs) >= 2 for s in sides):
        notes.append("±: half of the 95 % interval of the mean over runs")
    if any(abs(r.throughput_change_pct) > EQUAL_WORK * 100 for r in rows if not math.isnan(r.throughput_change_pct)):
        notes.append(f"throughputs differ by more than {EQUAL_WORK:.0%}: read the unit cost, not the CPU usage")
    loud = [f"{s.name} {s.other_share:.0%}" for s in sides if s.other_share > OTHER_LOAD]
    if loud:
        notes.append(
            f"CPU usage is of everything that ran, other load included ({', '.join(loud)} of the busy time); "
            "the unit cost leaves it out"
        )
    pinned = any(s.profile.runs[i].dut_cpus for s in sides for i in s.runs)
    if pinned:
        notes.append("CPU of the device under test only; the remote end is on other CPUs")
    for side in sides:
        failed = [r for r in side.profile.runs if r.scenario == side.name.rpartition(":")[2] and r.failed]
        if failed:
            notes.append(f"{side.name}: {len(failed)} run{'s' * (len(failed) != 1)} failed ({failed[0].failed})")
    return tuple(dict.fromkeys(notes))


def _alarms(sides: Sequence[_Side]) -> list[str]:
    return [f"{side.name}: {text}" for side in sides for text in trust.runs_trouble(side.profile, side.runs)]

"""Which samples a question is about, and what their weight is divided by.

A `View` is the answer to "this scenario, this event, per this denominator, only these namespaces": one row a sample
row that passed, its unit cost within its own run, and whatever the reports need to group by.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.filters import Filter, near, other_load, row_mask
from nsprof.errors import EvidenceError, UsageError
from nsprof.model.profile import Context, Event, Lateness, Profile, Run
from nsprof.model.results import Measure
from nsprof.units import DENOMINATOR_NOUNS

__all__ = [
    "DENOMINATOR_ORDER",
    "HOP_KINDS",
    "Filter",
    "Question",
    "View",
    "amount",
    "choose_event",
    "choose_runs",
    "choose_scenario",
    "hop_command",
    "scenario_names",
    "usable_runs",
    "view",
]

#: Denominators in the order in which one is chosen when the user names none: what the workload counts, then bytes,
#: then packets, then time.
DENOMINATOR_ORDER = ("transaction", "operation", "datagram", "kb", "skb", "segment", "second")
#: Words that people use, and what they mean here ("packet" is said for skb).
_ALIASES = {"packet": "skb", "byte": "kb", "request": "transaction", "s": "second", "kilobyte": "kb"}
#: Events by which a profile with several is read when none is named.
_EVENT_ORDER = ("cpu-clock", "cycles", "task-clock", "instructions")


#: Splits that say for whose packet the CPU worked, which only hop probes know in softirq.
HOP_KINDS = ("netns", "device", "hop")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of two profiles: which scenario of each, which event, per what, which samples, split by what.

    `join_contexts` lets totals run through interrupt entries; `force` compares across CPU architectures.
    """

    base_scenario: str | None = None
    new_scenario: str | None = None
    event: str | None = None
    per: str | None = None
    by: str | None = None
    where: Filter | None = None
    join_contexts: bool = False
    force: bool = False

    @property
    def scenarios(self) -> tuple[str | None, str | None]:
        """Of the base and of the new side."""
        return self.base_scenario, self.new_scenario

    @property
    def hop_split(self) -> bool:
        """Whether the split is one that hop probes answer."""
        return self.by in HOP_KINDS

    @property
    def needs_hop(self) -> bool:
        """Whether runs with hop probes answer it better."""
        return self.hop_split or (self.where is not None and self.where.needs_hop)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The chosen samples. All arrays have one entry a kept sample row; `run` counts the chosen runs from 0.

    `cost` is weight / mean denominator of the runs, so the mean over runs of its sums is the ratio of sums: all that
    was sampled by all units. `size` is each run's denominator as a share of that mean. `other_weight` is what was
    left out as other load on the same CPUs.
    """

    profile: Profile
    title: str
    measure: Measure
    runs: tuple[int, ...]
    filter: Filter
    row: NDArray[np.int64]
    run: NDArray[np.int64]
    cost: NDArray[np.float64]
    weight: NDArray[np.float64]
    count: NDArray[np.float64]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    other_weight: float = 0.0
    size: NDArray[np.float64] = field(default_factory=lambda: np.ones(0))
    _columns: dict[str, NDArray[Any]] = field(default_factory=dict)

    def column(self, name: str) -> NDArray[Any]:
        """A sample column of the kept rows, cast to int64."""
        if name not in self._columns:
            self._columns[name] = getattr(self.profile.samples, name)[self.row].astype("i8")
        return self._columns[name]

    @property
    def run_objects(self) -> tuple[Run, ...]:
        return tuple(self.profile.runs[i] for i in self.runs)

    @property
    def other_share(self) -> float:
        """What other load had of the samples' weight; 0 where there are none or nothing tells it apart."""
        whole = self.other_weight + float(self.weight.sum())
        return self.other_weight / whole if whole > 0 else 0.0

    @property
    def skid(self) -> NDArray[np.bool_]:
        late: NDArray[np.bool_] = self.column("lateness") == int(Lateness.SKID)
        return late

    def by_run(self, key: NDArray[Any], keys: int, values: NDArray[Any] | None = None) -> NDArray[np.float64]:
        """Sums of `values` by key and run, shape (keys, runs); negative keys are left out. Default: unit cost, as the
        runs' pseudo-values of the ratio of sums (docs/method.md), whose mean it is."""
        if values is None:
            return self._pseudo(self.by_run(key, keys, self.cost))
        number = len(self.runs)
        keep = key >= 0
        flat = np.bincount(
            (key[keep] * number + self.run[keep]), weights=values[keep].astype("f8"), minlength=keys * number
        )
        return flat.reshape(keys, number).astype("f8", copy=False)

    def totals(self) -> NDArray[np.float64]:
        """Unit cost of everything kept, by run (pseudo-values: their mean is the ratio of sums)."""
        row: NDArray[np.float64] = self._pseudo(sums(self.run, self.cost, len(self.runs))[np.newaxis])[0]
        return row

    def run_costs(self) -> NDArray[np.float64]:
        """Each run's own unit cost: what it sampled by its own units."""
        return sums(self.run, self.cost, len(self.runs)) * _inverse(self.sizes)

    @property
    def sizes(self) -> NDArray[np.float64]:
        """`size`, 1 for every run where nothing was divided."""
        return self.size if len(self.size) else np.ones(len(self.runs))

    def _pseudo(self, sums_by_run: NDArray[np.float64]) -> NDArray[np.float64]:
        """R + (w - R u) / mean(u) of rows of w / mean(u): the mean stays R, the variance is the ratio's."""
        ratio = sums_by_run.mean(axis=1, keepdims=True)
        made: NDArray[np.float64] = sums_by_run + ratio * (1.0 - self.sizes)
        return made


def sums(key: NDArray[Any], values: NDArray[Any], keys: int) -> NDArray[np.float64]:
    """Sum of `values` by `key` in 0..keys-1."""
    return np.bincount(key, weights=values, minlength=keys).astype("f8", copy=False)


def scenario_names(profile: Profile) -> tuple[str, ...]:
    """The scenarios as they are named: `KERNEL:SCENARIO` where the profile holds runs of several kernels."""
    if len({r.kernel for r in profile.runs}) <= 1:
        return profile.scenarios
    return tuple(dict.fromkeys(f"{r.kernel}:{r.scenario}" for r in profile.runs))


def choose_scenario(profile: Profile, scenario: str | None) -> str:
    """The scenario meant, as `scenario_names` has it; the only one when none is named. Raises UsageError,
    EvidenceError."""
    names = scenario_names(profile)
    if not names:
        raise EvidenceError("the profile holds no runs")
    if scenario is None:
        if len(names) > 1:
            raise UsageError(
                f"the profile holds {len(names)} scenarios ({', '.join(names)})", "choose one with --scenario NAME"
            )
        return names[0]
    if scenario in names:
        return scenario
    same = [n for n in names if n.partition(":")[2] == scenario and n not in profile.scenarios]
    if len(same) == 1:
        return same[0]
    if same:
        raise UsageError(f"scenario {scenario!r} was run on several kernels", f"choose one of {', '.join(same)}")
    raise UsageError(f"no scenario {scenario!r} in the profile", near(scenario, names))


def usable_runs(profile: Profile, name: str) -> tuple[int, ...]:
    """Usable runs (neither failed nor warm-up) of a scenario as `scenario_names` has it."""
    if name in profile.scenarios:
        return profile.runs_of(name)
    kernel, _, scenario = name.partition(":")
    return tuple(i for i in profile.runs_of(scenario) if profile.runs[i].kernel == kernel)


def choose_runs(profile: Profile, scenario: str, runs: Sequence[int] | None, *, hop: bool) -> tuple[int, ...]:
    """Usable runs of a scenario. Cost figures come from runs without hop probes, splits by hop from runs with them,
    as far as there are both sorts."""
    usable = usable_runs(profile, scenario)
    if runs is not None:
        wrong = [r for r in runs if r not in usable]
        if wrong:
            raise UsageError(f"run {wrong[0]} is no usable run of scenario {scenario!r}", f"usable: {list(usable)}")
        return tuple(runs)
    if not usable:
        plain = scenario if scenario in profile.scenarios else scenario.partition(":")[2]
        reasons = {r.failed for r in profile.runs if r.scenario == plain and r.failed}
        raise EvidenceError(
            f"scenario {scenario!r} has no usable run" + (f": {'; '.join(reasons)}" if reasons else "")
        )
    chosen = tuple(i for i in usable if ("hop" in profile.runs[i].probes_on) == hop)
    return chosen or usable


def choose_event(profile: Profile, event: str | None, runs: Sequence[int]) -> tuple[Event, NDArray[np.bool_], str]:
    """The event, which rows of the event table are it, and a note about the others.

    Equal name, unit and kind are one event whatever the period was (weights are in the unit, not in samples).
    """
    rows = np.isin(profile.samples.run, list(runs))
    present = np.bincount(profile.samples.event[rows], minlength=len(profile.events)) > 0
    names = tuple(dict.fromkeys(e.name for e, there in zip(profile.events, present, strict=True) if there))
    if event is None:
        if not names:
            raise EvidenceError("no samples in the chosen runs", "nsprof info shows what the profile holds")
        event = next((n for n in _EVENT_ORDER if n in names), names[0])
    elif event not in {e.name for e in profile.events}:
        raise UsageError(f"no event {event!r} in the profile", near(event, names))
    same = [i for i, e in enumerate(profile.events) if e.name == event]
    first = next((i for i in same if present[i]), same[0])
    chosen = profile.events[first]
    mask = np.array(
        [(e.name, e.unit, e.kind) == (chosen.name, chosen.unit, chosen.kind) for e in profile.events], bool
    )
    others = [n for n in names if n != event]
    note = f"also recorded: {', '.join(others)} (--event NAME; events are never added together)" if others else ""
    return chosen, mask, note


def choose_denominator(run_sets: Sequence[Sequence[Run]], per: str | None) -> str:
    """The denominator that every run of every side has; "" for plain totals, "share" where none has any.

    Raises UsageError for a word that is none, EvidenceError when it was not counted.
    """
    everyone = [run for runs in run_sets for run in runs]

    def everywhere(name: str) -> bool:
        return all(run.denominators.get(name, 0) > 0 for run in everyone)

    if per is not None:
        per = _ALIASES.get(per.lower(), per.lower())
        if per in ("share", "", "total", "none"):
            return "share" if per == "share" else ""
        if per not in DENOMINATOR_ORDER:
            raise UsageError(f"no unit {per!r} to reckon per", near(per, [*DENOMINATOR_ORDER, "share", "total"]))
        if not all(amount(run, per) > 0 for run in everyone):
            known = [d for d in DENOMINATOR_ORDER if everywhere(d)]
            raise EvidenceError(
                f"the number of {DENOMINATOR_NOUNS[per]}s was not counted in every run",
                f"known: {', '.join(known)}" if known else "",
            )
        return per
    for name in DENOMINATOR_ORDER:
        if everywhere(name):
            return name
    return ""


def measure_of(event: Event, per: str, reference: str = "") -> Measure:
    """The measure's label: "ns/transaction", "% of busy", "cycles"."""
    if per == "share":
        return Measure(event.name, "%", "share", f"% of {event.name}", "", event.kind)
    label = f"{event.unit}/{DENOMINATOR_NOUNS[per]}" if per else event.unit
    return Measure(
        event.name, event.unit, per, label, reference if per in ("skb", "segment", "kb") else "", event.kind
    )


def view(
    profile: Profile,
    *,
    scenario: str | None = None,
    runs: Sequence[int] | None = None,
    event: str | None = None,
    per: str | None = None,
    where: Filter | None = None,
    hop: bool = False,
) -> View:
    """Choose runs, event, denominator and rows. `hop` prefers runs with hop probes.

    Raises UsageError for names that are not there, EvidenceError where nothing is left to count.
    """
    where = where or Filter()
    name = choose_scenario(profile, scenario)
    chosen = choose_runs(profile, name, runs, hop=hop or where.needs_hop)
    found, event_rows, note = choose_event(profile, event, chosen)
    objects = [profile.runs[i] for i in chosen]
    if where.slices is not None and per is None and all(r.duration_s > 0 for r in objects):
        per = "second"
    denominator = choose_denominator([objects], per)
    if where.devices and not profile.devices:
        raise EvidenceError("the profile knows no devices: it was recorded without hop probes", hop_command(profile))
    mask, cpus_note = row_mask(profile, chosen, event_rows, where)
    others = mask & other_load(profile) if not where.everyone else np.zeros(len(mask), bool)
    other_weight = float(profile.samples.weight[others].sum())
    row = np.flatnonzero(mask & ~others)
    blind = _without_hop(profile, chosen) if hop or where.needs_hop else ""
    if not len(row):
        raise EvidenceError(
            f"no {found.name} samples left in scenario {name!r}" + (f": {blind}" if blind else ""),
            hop_command(profile) if blind else "loosen the filters",
        )
    position = np.full(len(profile.runs), -1, "i8")
    position[list(chosen)] = np.arange(len(chosen))
    run = position[profile.samples.run[row]]
    weight = profile.samples.weight[row]
    units = _units(objects, denominator, where, np.bincount(run, weights=weight, minlength=len(chosen)))
    reference = next((r.reference for r in objects if r.reference), "")
    other_note = _other_note(profile, chosen, other_weight, row, weight)
    notes = [note, cpus_note, other_note, _probe_note(profile, name, chosen, hop or where.needs_hop)]
    return View(
        profile,
        name,
        measure_of(found, denominator, reference),
        chosen,
        where,
        row,
        run,
        weight * _factor(units, denominator),
        weight,
        profile.samples.count[row].astype("f8"),
        notes=tuple(filter(None, notes)),
        warnings=(f"{blind}; to have that: {hop_command(profile)}",) if blind else (),
        other_weight=other_weight,
        size=_sizes(units),
    )


def _other_note(
    profile: Profile, chosen: Sequence[int], other: float, row: NDArray[Any], weight: NDArray[Any]
) -> str:
    """Who else ran on the same CPUs: left out where namespaces tell, said where nothing does."""
    counted = float(weight.sum())
    share = other / (other + counted) if other + counted > 0 else 0.0
    if share >= 0.001:
        note = (
            f"other load: tasks outside the scenario's namespaces took {share:.1%} of the busy time; "
            "not counted (--everyone counts them)"
        )
        if share >= 0.05 and not all("hop" in profile.runs[i].probes_on for i in chosen):
            note += "; what softirqs did for their packets is counted, since only --hop tells it apart"
        return note
    words = {PurePath(word).name[:15] for i in chosen for word in profile.runs[i].command}
    if not words or not profile.tasks or any(n.role for n in profile.namespaces):
        return ""
    own = np.array([t.comm in words for t in profile.tasks], bool)
    samples = profile.samples
    theirs = ~own[samples.task[row]] & np.isin(samples.context[row], (Context.TASK, Context.USER))
    share = float(weight[theirs].sum()) / counted if counted > 0 else 0.0
    if share < 0.1:
        return ""
    return (
        f"the whole machine is counted: tasks other than the command took {share:.0%} of the busy time "
        "(--task NAME narrows it down; record --in NETNS leaves other namespaces' tasks out)"
    )


def _units(runs: Sequence[Run], per: str, where: Filter, weights: NDArray[Any]) -> NDArray[np.float64]:
    """What each run's weights are divided by: how many units it had."""
    if per == "":
        return np.ones(len(runs))
    if per == "share":
        return np.asarray(weights, "f8")
    if where.slices is not None:
        if per != "second":
            raise UsageError(
                f"how many {DENOMINATOR_NOUNS[per]}s fell into part of a run is not known", "use --per second"
            )
        first, last = where.slices
        seconds = [max(0.0, min(last + 1.0, r.duration_s) - first) for r in runs]
        if min(seconds) <= 0:
            raise UsageError(
                f"the run lasted {min(r.duration_s for r in runs):.1f} s: seconds {first}-{last} are not in it"
            )
        return np.asarray(seconds, "f8")
    return np.asarray([amount(r, per) for r in runs], "f8")


def _factor(units: NDArray[np.float64], per: str) -> float:
    """What a weight is multiplied with to become a unit cost; a share is in %."""
    mean = float(units.mean())
    return (100.0 if per == "share" else 1.0) / mean if mean > 0 else 0.0


def _sizes(units: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = float(units.mean())
    return units / mean if mean > 0 else np.ones(len(units))


def amount(run: Run, per: str) -> float:
    """How many units of `per` a run had (0: not counted). Seconds need no counting: they are its length."""
    counted = run.denominators.get(per, 0.0)
    return run.duration_s if per == "second" and not counted > 0 else counted


def _inverse(values: Sequence[float] | NDArray[Any]) -> NDArray[np.float64]:
    """1 / value, 0 where the value is 0."""
    made: NDArray[np.float64] = np.zeros(len(values))
    array = np.asarray(values, "f8")
    np.divide(1.0, array, out=made, where=array > 0)
    return made


def _without_hop(profile: Profile, chosen: Sequence[int]) -> str:
    """What is missing where nothing in the runs tells for whose packet the CPU worked; else ""."""
    samples = profile.samples
    if any("hop" in profile.runs[i].probes_on for i in chosen):
        return ""
    if (samples.hop_dev[np.isin(samples.run, list(chosen))] != 0).any():  # simulated, or recorded by another tool
        return ""
    return "recorded without hop probes: for which namespace and device a softirq worked is not known"


def hop_command(profile: Profile) -> str:
    """The command that records the same once more, with hop probes."""
    bench = profile.meta.get("bench")
    if isinstance(bench, dict):
        scenarios = ",".join(map(str, bench.get("scenarios", ())))
        words = ["nsprof", "bench", "--hop", *(["--scenario", scenarios] if scenarios else [])]
        command = bench.get("command") or ()
    else:
        how = profile.meta.get("record")
        how = how if isinstance(how, dict) else {}
        words = ["nsprof", "record", "--hop", *(["--in", str(how["in"])] if how.get("in") else [])]
        for watched in how.get("watch") or ():
            words += ["--watch", str(watched)]
        command = how.get("command") or next((run.command for run in profile.runs if run.command), ())
        if not command:
            words += ["--duration", "10"]
    return "sudo " + shlex.join([*words, *(["--", *map(str, command)] if command else [])])


def _probe_note(profile: Profile, scenario: str, chosen: Sequence[int], hop: bool) -> str:
    left = len(usable_runs(profile, scenario)) - len(chosen)
    if left <= 0:
        return ""
    with_hop = ["hop" in profile.runs[i].probes_on for i in chosen]
    if hop and all(with_hop):
        return f"from the {len(chosen)} runs with hop probes (their cost a packet is higher than without)"
    if not hop and not any(with_hop):
        return f"from the {len(chosen)} runs without hop probes; {left} with them serve --by netns, device and hop"
    return ""


def with_measure(chosen: View, per: str) -> View:
    """The same view per another denominator (both sides of a comparison must agree on one)."""
    event = next(e for e in chosen.profile.events if e.name == chosen.measure.event)
    weights = np.bincount(chosen.run, weights=chosen.weight, minlength=len(chosen.runs))
    units = _units(chosen.run_objects, per, chosen.filter, weights)
    reference = next((r.reference for r in chosen.run_objects if r.reference), "")
    measure = replace(measure_of(event, per, reference), unit=chosen.measure.unit if per != "share" else "%")
    return replace(chosen, measure=measure, cost=chosen.weight * _factor(units, per), size=_sizes(units))

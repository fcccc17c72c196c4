"""What a profile says beside its costs, as rows for the report page: machine, losses, ledger, topology, runs."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsprof.analyse.ledger_shed import MARK, sheds_of
from nsprof.analyse.selection import amount
from nsprof.model.profile import Profile, Run
from nsprof.model.results import CostReport, Interval, ScenarioTable
from nsprof.render.flamegraph_text import cost_text, per_noun, percent
from nsprof.render.page_model import (
    Facts,
    LedgerEntry,
    PointGroup,
    RunChart,
    TopologyBox,
    TopologyLink,
    TopologyPicture,
)
from nsprof.units import DENOMINATOR_NOUNS, format_quantity

__all__ = ["Side", "environment", "ledger", "losses", "not_measurable", "refused_probes", "run_facts", "topology"]

_ROWS = 300  # facts of one group that are listed
_LINES = 8  # devices of one namespace that are drawn
_BOXES = 12  # namespaces drawn where no chain says which belong together


class Side:
    """One scenario of one profile, with the usable runs that its costs come from."""

    def __init__(self, profile: Profile, scenario: str, runs: Sequence[int]) -> None:
        self.profile, self.scenario, self.runs = profile, scenario, tuple(runs)

    @property
    def counted(self) -> list[int]:
        """The counting passes, which the ledger is of."""
        runs, kernels = self.profile.runs, {run.kernel for run in self.run_objects}
        return [i for i in self.profile.ledger_runs_of(self.plain_name) if runs[i].kernel in kernels]

    @property
    def run_objects(self) -> list[Run]:
        """The runs themselves."""
        return [self.profile.runs[i] for i in self.runs]

    @property
    def plain_name(self) -> str:
        """The scenario without its kernel."""
        return self.scenario if self.scenario in self.profile.scenarios else self.scenario.partition(":")[2]


def _mean(values: Iterable[float]) -> float:
    found = [v for v in values if math.isfinite(v)]
    return math.fsum(found) / len(found) if found else math.nan


# ---- machine and runs ----------------------------------------------------------------------------------------------


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for key, inner in value.items():
            found.update(_flat(inner, f"{prefix}.{key}" if prefix else str(key)))
        return found
    if isinstance(value, (list, tuple)):
        return {prefix: ", ".join(str(v) for v in value)}
    return {prefix: "" if value is None else str(value)}


def environment(sides: Sequence[Side]) -> tuple[Facts, ...]:
    """The runs, then the host snapshot group by group; a column a side where they come from different files."""
    several = len(sides) > 1 and sides[0].profile is not sides[1].profile
    shown = sides if several else sides[-1:]
    columns = tuple(s.scenario for s in shown) if several else ("",)
    hosts = [s.profile.meta.get("host") or {} for s in shown]
    groups = [run_facts(sides)]
    for key in dict.fromkeys(k for host in hosts for k in host):
        flat = [_flat(host.get(key), "") for host in hosts]
        names = [n for n in dict.fromkeys(n for f in flat for n in f) if any(f.get(n) for f in flat)]
        rows = tuple((name or key, tuple(f.get(name, "") for f in flat)) for name in names[:_ROWS])
        left = len(names) - len(rows)
        note = f"{left:,} more are in the profile (nsprof info --json)." if left else ""
        if rows:
            groups.append(Facts(key, columns, rows, note, folded=key not in ("kernel", "cpu"), compare=several))
    return tuple(groups)


def run_facts(sides: Sequence[Side]) -> Facts:
    """Command, kernel, duration and denominators of each side."""

    def first(side: Side, what: Any) -> str:
        return "; ".join(dict.fromkeys(str(what(r)) for r in side.run_objects if what(r)))

    rows: list[tuple[str, tuple[str, ...]]] = []

    def add(name: str, value: Any) -> None:
        values = tuple(value(side) for side in sides)
        if any(values):
            rows.append((name, values))

    add("kernel", lambda s: first(s, lambda r: r.kernel))
    add("command", lambda s: first(s, lambda r: " ".join(r.command)))
    add("runs", lambda s: str(len(s.runs)))
    add("seconds a run", lambda s: f"{_mean(r.duration_s for r in s.run_objects):.1f}")
    add("CPUs of the device under test", lambda s: first(s, lambda r: ", ".join(map(str, r.dut_cpus))))
    add("CPUs of the remote end", lambda s: first(s, lambda r: ", ".join(map(str, r.remote_cpus))))
    add("skbs and segments counted at", lambda s: first(s, lambda r: r.reference))
    names = dict.fromkeys(n for side in sides for r in side.run_objects for n in r.denominators)
    for name in names:
        noun = DENOMINATOR_NOUNS.get(name, name)
        add(
            f"{noun if name == 'kb' else f'{noun}s'} a run",
            lambda s, n=name: _count(_mean(r.denominators.get(n, math.nan) for r in s.run_objects)),
        )
    for value in dict.fromkeys((v.name, v.unit) for side in sides for r in side.run_objects for v in r.values):
        add(f"{value[0]} ({value[1]})", lambda s, v=value: _count(_mean(_value(r, v) for r in s.run_objects)))
    steal = [sum(r.cpu_steal_s for r in s.run_objects) for s in sides]
    if any(steal):
        rows.append(("CPU stolen by the hypervisor", tuple(f"{x:.2f} s" for x in steal)))
    warnings = tuple("; ".join(dict.fromkeys(w for r in s.run_objects for w in r.warnings)) for s in sides)
    if any(warnings):
        rows.append(("warnings of the tools", warnings))
    return Facts("Runs", tuple(s.scenario for s in sides), tuple(rows))


def _value(run: Run, key: tuple[str, str]) -> float:
    return next((v.value for v in run.values if (v.name, v.unit) == key), math.nan)


def _count(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


# ---- what was lost -------------------------------------------------------------------------------------------------


def losses(sides: Sequence[Side], reports: Sequence[CostReport]) -> Facts:
    """Ticks due and seen, where the others went, lateness, unknown shares and nsprof's own cost."""
    rows: list[tuple[str, tuple[str, ...]]] = []

    def total(side: Side, name: str) -> str:
        values = [getattr(r.losses, name) for r in side.run_objects]
        return "unknown" if not values or min(values) < 0 else f"{sum(values):,}"

    for name, words in (
        ("expected", "ticks due on busy CPUs"),
        ("seen", "ticks stored"),
        ("lost_records", "lost records"),
        ("stack_collisions", "stacks lost to collisions"),
        ("no_stack", "ticks without a stack"),
        ("map_full", "ticks lost to full maps"),
        ("throttled", "throttled"),
    ):
        rows.append((words, tuple(total(s, name) for s in sides)))

    def share(value: float) -> str:
        return "unknown" if math.isnan(value) else percent(value, 2).replace(" ", "\N{NO-BREAK SPACE}")

    rows.append(("samples lost", tuple(share(r.lost_share) for r in reports)))
    rows.append(("late samples (skid)", tuple(share(r.skid_share) for r in reports)))
    rows.append(("samples that no call stack places", tuple(share(r.unknown_share) for r in reports)))
    rows.append(("kernel samples in a known category", tuple(share(r.covered_share) for r in reports)))
    rows.append(("nsprof's own cost", tuple(share(r.own_share) for r in reports)))
    rows.append(("CPU seconds measured", tuple(_count(r.measured_cpu_s) or "unknown" for r in reports)))
    rows.append(("CPU seconds sampled", tuple(_count(r.sampled_cpu_s) or "unknown" for r in reports)))
    return Facts("Samples and losses", tuple(s.scenario for s in sides), tuple(rows))


def not_measurable(sides: Sequence[Side]) -> tuple[str, ...]:
    """Probes that were refused or shed, each with its reason, and the recording's own notes."""
    from nsprof.analyse.trust import refused

    lines = []
    for side in sides:
        lines += refused(side.profile)
        lines += [str(n) for n in side.profile.meta.get("notes") or ()]
    return tuple(dict.fromkeys(lines))


def refused_probes(sides: Sequence[Side]) -> Facts | None:
    """Every probe that was refused or shed: what it would have counted, and why it does not."""
    rows: dict[tuple[str, tuple[str, ...]], None] = {}
    for side in sides:
        for probe in side.profile.probes:
            if probe.state in ("refused", "shed"):
                reason, _, lost = probe.reason.partition("; not counted: ")
                rows[probe.name, (lost, f"{probe.state}: {reason}" if reason else probe.state)] = None
    title = "Each probe that was refused or shed"
    return Facts(title, ("would count", "why not"), tuple(rows), folded=True) if rows else None


#: Events a unit below which they are listed last.
_RARE = 0.02


# ---- ledger --------------------------------------------------------------------------------------------------------


def ledger(base: Side | None, new: Side, per: str) -> tuple[LedgerEntry, ...]:
    """Ledger lines of both sides by event and place, per `per` (plain counts where it was not counted)."""
    sums: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    counted_sides = []
    for name, side in (("base", base), ("new", new)):
        if side is None:
            continue
        counted = set(side.counted)
        units = math.fsum(amount(side.profile.runs[i], per) for i in counted) if per else 1.0
        if not counted or units <= 0:
            continue
        counted_sides.append(name)
        shed = sheds_of(side.profile, sorted(counted))
        for line in side.profile.ledger:
            # What was counted for a part of the pass only has no rate: the notes tell which probes were shed.
            if line.run not in counted or line.what == MARK or not math.isnan(shed.line_s(line)):
                continue
            places = (side.profile.namespace_label(line.namespace), side.profile.device_label(line.device))
            where = ": ".join(p for p in places if p != "unknown") or "unknown"
            row = sums[line.what, line.detail, where]
            row[name] = row.get(name, 0.0) + line.calls / units
            if line.value_bytes >= 0:
                row[name + "_bytes"] = row.get(name + "_bytes", 0.0) + line.value_bytes / units
    for row in sums.values():
        for name in counted_sides:
            row.setdefault(name, 0.0)  # this side was counted, and had none
    entries = [LedgerEntry(what, detail, where, **row) for (what, detail, where), row in sums.items()]

    def size(entry: LedgerEntry) -> float:
        return max((v for v in (entry.base, entry.new) if math.isfinite(v)), default=0.0)

    # What happens to fewer than one unit in fifty is not the traffic's own (its control connection, say): at the end.
    return tuple(sorted(entries, key=lambda e: (bool(per) and size(e) < _RARE, e.what, -size(e))))


def ledger_notes(base: Side | None, new: Side, entries: Sequence[LedgerEntry]) -> tuple[str, ...]:
    """Where fragments are made, whether the kernel's own counters agree, and what the counts come from."""
    from nsprof.analyse.ledger import ledger as whole

    if not entries:
        return ()
    notes = []
    for side in (base, new):
        if side is None:
            continue
        if not side.counted:
            notes.append(f"{side.scenario}: nothing was counted.")
            continue
        report = whole(side.profile, scenario=side.scenario)
        agree = [row for row in report.reconciled if row.verdict in ("yes", "edges")]
        against = [f"{row.what} ({row.namespace})" for row in report.reconciled if row.verdict == "no"]
        words = f"{len(agree)} of {len(report.reconciled)} counts that the kernel has too agree with it"
        words += f"; not: {', '.join(against)}" if against else ""
        notes.append(f"{side.scenario}: {report.fragmentation} {words}.")
        notes += [f"{side.scenario}: {alarm}" for alarm in report.alarms]
    return tuple(notes)


# ---- topology ------------------------------------------------------------------------------------------------------


def topology(
    side: Side, per: str, by_namespace: CostReport | None, by_device: CostReport | None = None
) -> TopologyPicture | None:
    """The chain of the scenario as it was built, else the namespaces that have a name; None without either."""
    known = (side.profile.meta.get("topology") or {}).get(side.plain_name)
    flows = _flows(side, per)
    costs: dict[str, str] = {}
    if by_namespace is not None:
        measure = by_namespace.measure
        costs = {g.label: cost_text(g.cost, measure.unit, per_noun(measure)) for g in by_namespace.groups}
    spent: dict[tuple[str, str], str] = {}
    if by_device is not None:
        unit = by_device.measure.unit
        for group in by_device.groups:
            place, colon, name = group.label.rpartition(":")
            if colon:
                spent[place, name] = cost_text(group.cost, unit)
    noun = DENOMINATOR_NOUNS.get(per, per)
    note = f"skbs that each device counted per {noun}; " if per else "skbs that each device counted; "
    note += "a bridge counts only what is for the host itself; "
    note += (
        "CPU by namespace, and for each device's packets, from the runs with hop probes."
        if costs
        else "no hop probes, so no CPU by namespace."
    )
    if isinstance(known, Mapping) and known.get("chain"):
        return _chain(str(known["chain"]), str(known.get("shape", "")), flows, costs, spent, note)
    spaces = [n for n in side.profile.namespaces if n.name]
    with_traffic = [ns for ns, _ in flows]
    known_labels = list(dict.fromkeys(n.label for n in spaces))
    # Of the machine's other namespaces only those are drawn that had a part in it.
    ours = {n.label for n in spaces if n.role}
    known_labels = [n for n in known_labels if n in with_traffic or n in costs or n in ours] or known_labels
    labels = sorted(known_labels, key=lambda name: name not in with_traffic)[:_BOXES]  # those with traffic first
    if not labels:
        return None
    left = len(known_labels) - len(labels)
    note += f" {left:,} more namespaces are not drawn." if left else ""
    roles = {n.label: n.role for n in spaces}
    boxes = []
    for label in labels:
        lines = _busiest([(d, t) for (ns, d), t in flows.items() if ns == label])
        own = tuple(spent.get((label, name), "") for name, _ in lines)
        boxes.append(TopologyBox(label, roles[label], lines, costs.get(label, ""), own))
    return TopologyPicture(tuple(boxes), (), note)


def _busiest(lines: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The first of the devices (they come with the most packets first) and how many more there are."""
    left = len(lines) - _LINES
    more = ((f"and {left:,} more", "with fewer packets"),) if left > 0 else ()
    return (*lines[:_LINES], *more)


def _flows(side: Side, per: str) -> dict[tuple[str, str], str]:
    """(namespace label, device) -> what it counted, in words; the busiest first."""
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    wanted = set(side.runs)
    for counter in side.profile.counters:
        if counter.run in wanted and counter.scope == "device":
            sums[side.profile.namespace_label(counter.namespace), counter.device][counter.name] += counter.delta
    units = math.fsum(amount(r, per) for r in side.run_objects) if per else float(len(side.runs))
    found = {}
    for key, values in sorted(sums.items(), key=lambda kv: -(kv[1]["rx_packets"] + kv[1]["tx_packets"])):
        if units > 0:
            text = f"rx {_flow(values['rx_packets'] / units)}, tx {_flow(values['tx_packets'] / units)} skbs"
            dropped = sum(v for name, v in values.items() if "drop" in name)
            found[key] = text + (f"/{DENOMINATOR_NOUNS.get(per, per)}" if per else " a run")
            found[key] += f", {dropped:,.0f} dropped" if dropped else ""
    return found


def _flow(value: float) -> str:
    return f"{value:.2f}" if value < 100 else format_quantity(value)


def _chain(
    chain: str,
    shape: str,
    flows: Mapping[tuple[str, str], str],
    costs: Mapping[str, str],
    spent: Mapping[tuple[str, str], str],
    note: str,
) -> TopologyPicture:
    """`client -> eth0 ~ v0 -> br0 -> w0 ~ eth0 -> server`: "~" is a wire or pair between namespaces, and a
    "(child of ...)" device lives in another namespace than its parent; [...] is what the kernel does between."""
    boxes: list[list[str]] = [[]]
    links: list[TopologyLink] = []
    for piece in re.split(r"( ~ | -> )", chain):
        if piece == " ~ " or (piece == " -> " and boxes[-1] and "(child of" in boxes[-1][-1]):
            links.append(TopologyLink((len(boxes) - 1, len(boxes[-1]) - 1), (len(boxes), 0)))
            boxes.append([])
        elif piece != " -> ":
            boxes[-1].append(piece)
    made = []
    for number, lines in enumerate(boxes):
        if number == len(boxes) - 1:
            label, role = "remote", "the other machine"
        elif number == 0 and shape != "host":
            label, role = "c0", "container"
        else:
            label, role = "host", ""
        shown = tuple((line, flows.get((label, line.split(" ")[0]), _what(line))) for line in lines)
        own = tuple(spent.get((label, line.split(" ")[0]), "") for line in lines)
        made.append(TopologyBox(label, role, shown, costs.get(label, ""), own))
    return TopologyPicture(tuple(made), tuple(links), note)


def _what(line: str) -> str:
    return {"client": "the traffic's client", "server": "the traffic's server"}.get(
        line, "a step of the kernel" if line.startswith("[") else "no counters"
    )


# ---- every run -----------------------------------------------------------------------------------------------------


def point_chart(
    title: str, unit: str, values: Sequence[tuple[str, Sequence[float]]], table: ScenarioTable | None, field: str
) -> RunChart | None:
    """One metric; centre and interval are the scenario table's. None where no run has a value."""
    groups = []
    for name, each in values:
        if not any(math.isfinite(v) for v in each):
            continue
        row = next((r for r in table.rows if r.scenario == name), None) if table else None
        interval: Interval | None = getattr(row, f"{field}_interval", None) if row else None
        groups.append(PointGroup(name, tuple(each), _mean(each), interval))
    note = "One point a run; line: mean; band: 95 % interval of the mean." if groups else ""
    return RunChart(title, unit, tuple(groups), note) if groups else None

"""`report --html`: what the analysis says, put together for the report page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsprof.analyse.selection import amount
from nsprof.cli import html_facts
from nsprof.cli.common import tell
from nsprof.cli.html_facts import Side
from nsprof.errors import EvidenceError, NsprofError, UsageError

if TYPE_CHECKING:
    from nsprof.model.profile import Profile, Run
    from nsprof.model.results import CostReport, DiffReport, FlameTree, Measure, ScenarioTable
    from nsprof.render.page_model import Card, FlameView, PageContent

__all__ = ["page_content", "write_page", "write_report"]

#: Denominators offered in the flame graph's unit list, beside the one of the report.
_UNITS = ("transaction", "operation", "datagram", "skb", "segment", "kb")
_EVENTS = 4  # further events that get a flame graph of their own
_SPLITS = (("netns", "by namespace"), ("device", "by device"), ("context", "by context"))


def write_page(profile: Profile, baseline: Profile | None, path: str, options: Mapping[str, Any]) -> None:
    """Write the report page of `profile` (against `baseline`, or against another of its own scenarios) to `path`.

    `options` are those of `nsprof report`: scenario, baseline (a scenario's name), event, per, where (a Filter),
    join_contexts, title; all optional. "-" is stdout. Raises NsprofError as the analysis does.
    """
    from nsprof.cli.flamegraph import write_text
    from nsprof.render.page import report_page

    write_text(report_page(page_content(profile, baseline, options)), path)


def write_report(
    profile: Profile, path: str, options: Mapping[str, Any], *, strict: bool = False, as_json: bool = False
) -> int:
    """`nsprof report --html`: `--baseline` is a scenario of the profile, or else the file of another profile.

    `as_json` says on stdout, as JSON, what was written where. Returns the exit status: 1 with `strict` where the
    report has alarms.
    """

    from nsprof.cli.common import other_side, write_json
    from nsprof.cli.flamegraph import write_text
    from nsprof.render.page import report_page

    if as_json and path == "-":
        raise UsageError("--json and --html - would both write to stdout", "name a file with --html FILE")
    words = dict(options)
    baseline: Profile | None = None
    if words.get("baseline"):
        baseline, words["baseline"] = other_side(profile, words["baseline"])
    content = page_content(profile, baseline, words)
    text = report_page(content)
    write_text(text, path)
    reports = [each.report for each in (content, *content.others) if each.report]
    alarms = tuple(dict.fromkeys(alarm for report in reports for alarm in report.alarms))
    if as_json:
        size = len(text.encode())
        write_json("report-page", {"file": path, "bytes": size, "title": content.title, "alarms": alarms})
    elif path != "-":
        tell(f"{path} ({len(text.encode()) / 1e6:.1f} MB)", who="report page: ")
    return int(strict and bool(alarms))


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    base: Side | None
    new: Side

    @property
    def all(self) -> list[Side]:
        return [self.base, self.new] if self.base else [self.new]


def page_content(profile: Profile, baseline: Profile | None, options: Mapping[str, Any]) -> PageContent:
    """Everything that the page shows, from one or two profiles: the comparison that is asked for, or else, where
    there are several scenarios, each of them with its baseline, the last one first.

    Raises NsprofError where nothing can be shown; a further comparison that cannot says so in `left_out`.
    """
    if baseline is not None and not options.get("scenario"):
        baseline, profile = _by_file(baseline, profile)
    made: list[PageContent] = []
    failed: list[tuple[str, NsprofError]] = []
    trees: dict[tuple[int, str, str], FlameTree] = {}
    for words in _comparisons(profile, baseline, options):
        try:
            sides = _choose(profile, baseline, words)
            made.append(_content(sides, words, trees))
        except NsprofError as error:
            if not words.get("scenario") or words.get("scenario") == options.get("scenario"):
                raise
            failed.append((str(words["scenario"]), error))
    if not made:
        raise failed[0][1]
    left_out = tuple(f"{name}: {error.message}" for name, error in failed)
    return replace(made[0], others=tuple(made[1:]), left_out=left_out)


def _content(sides: _Sides, options: Mapping[str, Any], trees: dict[tuple[int, str, str], FlameTree]) -> PageContent:
    """One comparison; `trees` holds the flame graphs of single sides, which several comparisons share."""
    from nsprof import __version__, analyse
    from nsprof.analyse.reporting import own_count
    from nsprof.render.page_model import PageContent

    common: dict[str, Any] = {k: options.get(k) for k in ("event", "per", "where")}
    common["join_contexts"] = bool(options.get("join_contexts"))
    diff: DiffReport | None = None
    if sides.base is not None:
        diff = analyse.diff(
            sides.base.profile,
            sides.new.profile,
            base_scenario=sides.base.scenario,
            new_scenario=sides.new.scenario,
            **common,
        )
        common["per"] = diff.measure.per or "total"  # the one that both sides have
    reports = [analyse.report(s.profile, scenario=s.scenario, **common) for s in sides.all]
    common["per"] = reports[-1].measure.per or "total"
    if diff is not None:
        diff = replace(diff, measure=own_count(diff.measure, [r for s in sides.all for r in s.run_objects]))
    missing: dict[str, str] = {}
    per = reports[-1].measure.per if reports[-1].measure.per != "share" else ""
    table = _table(sides, options, missing)
    hop, devices = (_by_hop(sides.new, common, by) for by in ("netns", "device"))
    entries = html_facts.ledger(sides.base, sides.new, per)
    if not entries:
        missing["ledger"] = "no run counted copies, checksums or fragments (record and bench do with --count)."
    return PageContent(
        title=str(options.get("title") or _title(sides)),
        report=reports[-1],
        diff=diff,
        table=table,
        views=_without_repeats(_views(sides, common, reports[-1].measure, missing, trees), diff, reports[-1]),
        ledger=entries,
        ledger_per=per,
        ledger_notes=html_facts.ledger_notes(sides.base, sides.new, entries),
        charts=_charts(sides, table, common),
        cards=_cards(sides, common, missing),
        topology=html_facts.topology(sides.new, per, hop, devices),
        environment=html_facts.environment(sides.all),
        losses=html_facts.losses(sides.all, reports) if reports[-1].measure.kind == "sampled" else None,
        not_measurable=html_facts.not_measurable(sides.all),
        refused=html_facts.refused_probes(sides.all),
        missing=missing,
        created=str(sides.new.profile.meta.get("created") or ""),
        version=__version__,
        label=_label(sides),
    )


# ---- which scenarios -----------------------------------------------------------------------------------------------


def _by_file(base: Profile, new: Profile) -> tuple[Profile, Profile]:
    """Two plain recordings of one command carry its name both: their files tell them apart, in every table."""
    from nsprof.analyse.selection import scenario_names

    files = (str(base.meta.get("file", "")), str(new.meta.get("file", "")))
    names = (scenario_names(base), scenario_names(new))
    if len(names[0]) != 1 or names[0] != names[1] or files[0] == files[1] or not all(files):
        return base, new
    return _renamed(base, files[0]), _renamed(new, files[1])


def _renamed(profile: Profile, name: str) -> Profile:
    """A profile of one scenario with that scenario under another name."""
    chains = list((profile.meta.get("topology") or {}).values())
    meta = {**profile.meta, **({"topology": {name: chains[0]}} if chains else {})}
    return profile.with_(runs=tuple(replace(run, scenario=name) for run in profile.runs), meta=meta)


def _side(profile: Profile, scenario: str) -> Side:
    from nsprof.analyse.selection import choose_runs

    return Side(profile, scenario, choose_runs(profile, scenario, None, hop=False))


def _choose(profile: Profile, baseline: Profile | None, options: Mapping[str, Any]) -> _Sides:
    """Two files: the scenario of each. One file: `scenario` against `baseline`, host or the first of the others."""
    from nsprof.analyse.selection import choose_scenario, scenario_names

    scenario, base_name = options.get("scenario"), options.get("baseline")
    names = scenario_names(profile)
    if baseline is not None:
        base_names = scenario_names(baseline)
        if base_name is None and len(base_names) > 1:
            base_name = _host(base_names)
        return _Sides(_side(baseline, choose_scenario(baseline, base_name)), _side(profile, _one(profile, scenario)))
    if len(names) < 2 or (scenario is not None and base_name is None and _host(names) in (None, scenario)):
        if base_name is not None:
            raise UsageError(
                f"one profile with one scenario ({', '.join(names)}): nothing to compare it with",
                "name the baseline's file with --baseline",
            )
        return _Sides(None, _side(profile, choose_scenario(profile, scenario)))
    base_name = choose_scenario(profile, base_name or _host(names) or names[0])
    others = [n for n in names if n != base_name]
    scenario = choose_scenario(profile, scenario) if scenario else others[-1]
    return _Sides(_side(profile, base_name), _side(profile, scenario))


def _comparisons(profile: Profile, baseline: Profile | None, options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The options of each comparison, the one first that the page opens with."""
    from nsprof.analyse.selection import choose_scenario, scenario_names

    names = scenario_names(profile)
    if options.get("scenario") or len(names) < 2:
        return [options]
    if baseline is not None:
        others = [name for name in names if name != _host(names)] or list(names)
        if _host(names) and len(others) < len(names):
            others.insert(0, str(_host(names)))
        return [{**options, "scenario": name} for name in _last_first(others)]
    base = choose_scenario(profile, options.get("baseline") or _host(names) or names[0])
    found: list[Mapping[str, Any]] = []
    for name in (n for n in names if n != base):
        against = [base]
        if not options.get("baseline"):
            # Each kernel has a host of its own; and the same scenario under two kernels is a question as well.
            kernel, plain = name.rpartition(":")[0], name.rpartition(":")[2]
            own, twin = f"{kernel}:host", f"{base.rpartition(':')[0]}:{plain}"
            against = [other for other in (twin, own) if kernel and other in names and other != name] or against
        found += [{**options, "scenario": name, "baseline": other} for other in dict.fromkeys(against)]
    return _last_first(found)


def _last_first(found: list[Any]) -> list[Any]:
    return [*found[-1:], *found[:-1]]


def _label(sides: _Sides) -> str:
    if sides.base is None:
        return sides.new.scenario
    return f"{sides.new.scenario} against {sides.base.scenario}"


def _host(names: tuple[str, ...]) -> str | None:
    return next((n for n in names if n == "host" or n.endswith(":host")), None)


def _one(profile: Profile, scenario: str | None) -> str:
    from nsprof.analyse.selection import choose_scenario, scenario_names

    names = scenario_names(profile)
    if scenario is None and len(names) > 1:
        scenario = next(n for n in reversed(names) if n != _host(names))
    return choose_scenario(profile, scenario)


def _words(side: Side, run: Run) -> Sequence[str]:
    """The command as the user wrote it: a bench completes it by addresses, ports and output formats."""
    bench = side.profile.meta.get("bench")
    asked = bench.get("command") if isinstance(bench, dict) else None
    return [str(word) for word in asked] if asked else run.command


def _title(sides: _Sides) -> str:
    commands = dict.fromkeys(" ".join(_words(s, r)) for s in sides.all for r in s.run_objects if r.command)
    what = f"{next(iter(commands))}: " if len(commands) == 1 else ""
    return what + _label(sides)


# ---- sections ------------------------------------------------------------------------------------------------------


def _table(sides: _Sides, options: Mapping[str, Any], missing: dict[str, str]) -> ScenarioTable | None:
    """The document-000 table of every scenario in the files; None where nothing compares."""
    from nsprof import analyse

    base = sides.base
    profiles = list({id(s.profile): s.profile for s in sides.all}.values())
    try:
        table = analyse.scenario_table(
            profiles, baseline=base.scenario if base else None, event=options.get("event"), per=options.get("per")
        )
    except (EvidenceError, UsageError) as error:
        missing["scenarios"] = error.message
        return None
    return table if base is not None or len(table.rows) > 1 or table.rows[0].throughput > 0 else None


def _cards(sides: _Sides, common: Mapping[str, Any], missing: dict[str, str]) -> tuple[Card, ...]:
    """What `nsprof explain` finds, as cards; the reason where it cannot say anything."""
    from nsprof.analyse import causes
    from nsprof.analyse.scenarios import outcome_notes
    from nsprof.render.page_cards import explanation_cards

    if sides.base is None:
        return ()
    base, new = sides.base, sides.new
    words = {key: common[key] for key in ("event", "per", "where")}
    try:
        found = causes.explain(
            base.profile, new.profile, base_scenario=base.scenario, new_scenario=new.scenario, **words
        )
        said = outcome_notes(
            base.profile, found.base_title, new.profile, found.new_title, scenarios=(base.scenario, new.scenario)
        )
        return explanation_cards(replace(found, notes=(*said, *found.notes)))
    except NsprofError as error:  # no answer is an answer; the rest of the page stands
        missing["findings"] = error.message
        return ()


def _by_hop(side: Side, common: Mapping[str, Any], by: str) -> CostReport | None:
    """CPU by namespace or device, where a run had hop probes to know it."""
    from nsprof import analyse

    if not any("hop" in run.probes_on for run in side.profile.runs if run.scenario == side.plain_name):
        return None
    return analyse.report(side.profile, scenario=side.scenario, by=by, **common)


def _views(
    sides: _Sides,
    common: Mapping[str, Any],
    measure: Measure,
    missing: dict[str, str],
    trees: dict[tuple[int, str, str], FlameTree],
) -> tuple[FlameView, ...]:
    """The difference, each side, splits by namespace, device and context, and the other events both sides have."""
    from nsprof import analyse
    from nsprof.render.page_model import FlameView

    units = _units(sides, measure)
    views: list[FlameView] = []

    def both(label: str, **more: Any) -> None:
        words = {**common, **more}
        scales = units if "event" not in more and "by" not in more else ()
        if sides.base is None:
            tree = analyse.flame(sides.new.profile, scenario=sides.new.scenario, **words)
            views.append(FlameView(f"{sides.new.scenario}{label}", tree, scales))
            return
        tree = analyse.flame_diff(
            sides.base.profile,
            sides.new.profile,
            base_scenario=sides.base.scenario,
            new_scenario=sides.new.scenario,
            **words,
        )
        views.append(FlameView(f"difference{label}", tree, scales))

    both("")
    if sides.base is not None:
        for side in (sides.new, sides.base):
            key = (id(side.profile), side.scenario, str(common["per"]))
            if key not in trees:
                trees[key] = analyse.flame(side.profile, scenario=side.scenario, **common)
            views.append(FlameView(side.scenario, trees[key]))
    for by, words in _SPLITS:
        if _splits(sides, by):
            both(f" {words}", by=by)
    for event in _other_events(sides, measure.event):
        try:
            both(f": {event}", event=event)
        except NsprofError as error:  # one event's lack must not cost the whole page
            missing.setdefault("events", f"{event}: {error.message}")
    return tuple(views)


def _without_repeats(
    views: tuple[FlameView, ...], diff: DiffReport | None, report: CostReport
) -> tuple[FlameView, ...]:
    """The views with those notes only that the page does not have elsewhere."""
    said = {*report.notes, *report.alarms, *((*diff.notes, *diff.warnings) if diff else ())}
    return tuple(
        replace(view, tree=replace(view.tree, notes=tuple(n for n in view.tree.notes if n not in said)))
        for view in views
    )


def _splits(sides: _Sides, by: str) -> bool:
    """Whether a split says anything: hop splits need hop probes, contexts are always known."""
    if by == "context":
        return True
    return all(any("hop" in r.probes_on for r in s.profile.runs) for s in sides.all)


def _other_events(sides: _Sides, main: str) -> list[str]:
    import numpy as np

    found = []
    for side in sides.all:
        samples = side.profile.samples
        rows = np.isin(samples.run, side.runs)
        found.append({side.profile.events[i].name for i in np.unique(samples.event[rows]).tolist()})
    return sorted(set.intersection(*found) - {main})[:_EVENTS]


def _units(sides: _Sides, measure: Measure) -> tuple[Any, ...]:
    """Other denominators for the same tree. A factor is the ratio of both counts' sums over the runs, as unit costs
    are ratios of sums; a unit that was not counted in every run is left out."""
    from nsprof.render.flamegraph_data import UnitScale
    from nsprof.units import DENOMINATOR_NOUNS

    scales = []
    for other in _UNITS if measure.per in _UNITS else ():
        if other == measure.per:
            continue
        factors = []
        for side in sides.all:
            runs = [(amount(r, measure.per), amount(r, other)) for r in side.run_objects]
            if runs and all(new > 0 for _, new in runs):
                factors.append(math.fsum(old for old, _ in runs) / math.fsum(new for _, new in runs))
        if len(factors) == len(sides.all):
            noun = DENOMINATOR_NOUNS[other]
            scales.append(UnitScale(f"{measure.unit}/{noun}", measure.unit, noun, factors[-1], factors[0]))
    return tuple(scales)


def _charts(sides: _Sides, table: ScenarioTable | None, common: Mapping[str, Any]) -> tuple[Any, ...]:
    """Unit cost, throughput and CPU of every run of every scenario in the files."""
    from nsprof.analyse.scenarios import cpu_pct
    from nsprof.analyse.selection import scenario_names, view

    costs, rates, busy = [], [], []
    label, rate_unit = "", ""
    for profile in {id(s.profile): s.profile for s in sides.all}.values():
        for name in scenario_names(profile):
            try:
                chosen = view(profile, scenario=name, event=common["event"], per=common["per"], where=common["where"])
            except EvidenceError:
                continue  # a scenario whose runs all failed has no points; the table says so
            label = label or chosen.measure.label
            runs = chosen.run_objects
            costs.append((name, chosen.totals().tolist()))
            found = [
                next(((v.value, v.unit) for v in r.values if v.name == "throughput"), (math.nan, "")) for r in runs
            ]
            rate_unit = rate_unit or next((unit for _, unit in found if unit), "")
            rates.append((name, [v if unit == rate_unit else math.nan for v, unit in found]))
            busy.append((name, [cpu_pct(r, r.dut_cpus) for r in runs]))
    charts = (
        html_facts.point_chart("Unit cost", label, costs, table, "unit_cost"),
        html_facts.point_chart("Throughput", rate_unit, rates, table, "throughput"),
        html_facts.point_chart("CPU usage", "%", busy, table, "cpu"),
    )
    return tuple(c for c in charts if c is not None)

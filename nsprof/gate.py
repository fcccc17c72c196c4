"""`nsprof gate`: may this change pass? An answer for machines, with the evidence for people.

Counted or modelled costs (nsprof simulate) are the same each time, so they are compared as they are, to the
instruction. Sampled costs are compared by the 95 % interval of the difference over runs:

    pass     the whole interval is at or below the limit
    fail     the whole interval is above it
    unknown  it is neither, or there are fewer runs a side than verdicts need: more runs would tell
"""

from __future__ import annotations

import difflib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nsprof.errors import ComparisonError, EvidenceError, UsageError
from nsprof.model.metrics import GateReport, GateRow
from nsprof.model.profile import Profile
from nsprof.model.results import DeltaRow, DiffReport, Interval

__all__ = ["EXIT", "gate", "junit"]

#: Exit statuses of the outcomes.
EXIT = {"pass": 0, "fail": 1, "unknown": 3}


def gate(
    base: Profile,
    new: Profile,
    *,
    limit: float | None,
    functions: Mapping[str, float] | None = None,
    scenarios: Sequence[str] = (),
    per: str | None = None,
    event: str | None = None,
    least_runs: int = 8,
    force: bool = False,
) -> list[GateReport]:
    """One report a scenario that both have (or of `scenarios`).

    `limit` is the share by which the total may rise (None: not guarded), `functions` the same for the self cost of
    functions. Raises UsageError for names that are nowhere, ComparisonError where the two cannot be compared: no
    scenario in common, no common unit, another CPU (unless `force`).
    """
    from nsprof import analyse

    if limit is None and not functions:
        raise UsageError("nothing is guarded", "--fail-above 2%, or --function ip_rcv=1%")
    pairs = _pairs(base, new, scenarios)
    reports = []
    for one, two in pairs:
        diff = analyse.diff(base, new, base_scenario=one, new_scenario=two, event=event, per=per, force=force)
        if diff.measure.kind == "sampled" and not force:
            _same_machine(base, new)
        reports.append(_report(diff, limit, functions or {}, least_runs))
    return reports


def _pairs(base: Profile, new: Profile, wanted: Sequence[str]) -> list[tuple[str, str]]:
    from nsprof.analyse.selection import choose_scenario, scenario_names, usable_runs

    if wanted:
        return [(choose_scenario(base, name), choose_scenario(new, name)) for name in wanted]
    there = [[n for n in scenario_names(p) if usable_runs(p, n)] for p in (base, new)]
    # Two kernels of one name each are compared by scenario, whatever the kernels are called.
    plain = [{n.partition(":")[2] or n: n for n in names} for names in there]
    common = [name for name in plain[0] if name in plain[1]]
    if not common:
        if len(there[0]) == len(there[1]) == 1:
            return [(there[0][0], there[1][0])]
        raise ComparisonError(
            f"no scenario in common: {', '.join(there[0]) or 'none'} against {', '.join(there[1]) or 'none'}"
        )
    return [(plain[0][name], plain[1][name]) for name in common]


def _same_machine(base: Profile, new: Profile) -> None:
    """Sampled time of two CPU models is two different things."""
    models = []
    for profile in (base, new):
        cpu = profile.meta.get("host", {}).get("cpu", {})
        models.append(str(cpu.get("model", "")) if isinstance(cpu, dict) else "")
    if all(models) and models[0] != models[1]:
        raise ComparisonError(
            f"different CPUs: {models[0]} against {models[1]}", "--force compares them all the same"
        )


def _report(diff: DiffReport, limit: float | None, functions: Mapping[str, float], least_runs: int) -> GateReport:
    exact = diff.measure.kind in ("modelled", "counted")
    fewest = min(diff.runs_base, diff.runs_new)
    rows = []
    if limit is not None:
        rows.append(_row(replace(diff.total, name="total"), limit, exact, fewest, least_runs))
    by_name = {row.name: row for row in diff.functions}
    for name, allowed in functions.items():
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            raise UsageError(
                f"--function {name}: neither side has it", f"did you mean {near[0]}?" if near else "nsprof diff"
            )
        rows.append(_row(by_name[name], allowed, exact, fewest, least_runs))
    notes = list(diff.warnings)
    if exact:
        notes.append("exact counts: any difference is real, no statistics are needed")
    elif len(rows) > 1:
        notes.append(f"{len(rows)} things are guarded at 95 % each")
    return GateReport(diff.base_title, diff.new_title, diff.measure.label, exact, tuple(rows), tuple(notes))


def _row(row: DeltaRow, limit: float, exact: bool, fewest: int, least_runs: int) -> GateRow:
    change = row.delta / row.base if row.base > 0 else (float("inf") if row.new > 0 else 0.0)
    interval = None
    if row.interval is not None and row.base > 0:
        interval = Interval(row.interval.low / row.base, row.interval.high / row.base, row.interval.level)
    if exact:
        outcome = "pass" if change <= limit else "fail"
        why = f"{change:+.2%}, exact; allowed is {limit:+.2%}"
    elif interval is None or fewest < least_runs:
        outcome, why = "unknown", f"{fewest} run{'s' * (fewest != 1)} a side; a verdict needs {least_runs}"
    elif interval.low > limit:
        outcome, why = "fail", f"at least {interval.low:+.2%}, allowed is {limit:+.2%}"
    elif interval.high <= limit:
        outcome, why = "pass", f"at most {interval.high:+.2%}, allowed is {limit:+.2%}"
    else:
        outcome = "unknown"
        why = f"between {interval.low:+.2%} and {interval.high:+.2%}, allowed is {limit:+.2%}: more runs would tell"
    return GateRow(row.name, row.base, row.new, change, interval, limit, outcome, why)


def junit(reports: Sequence[GateReport]) -> bytes:
    """JUnit XML: a test suite a scenario, a test case a guarded thing; unknown is an error, not a failure."""
    root = ET.Element("testsuites", name="nsprof gate")
    for report in reports:
        outcomes = [row.outcome for row in report.rows]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_xml(f"{report.new_title} against {report.base_title}"),
            tests=str(len(outcomes)),
            failures=str(outcomes.count("fail")),
            errors=str(outcomes.count("unknown")),
            skipped="0",
        )
        for row in report.rows:
            case = ET.SubElement(suite, "testcase", classname=_xml(f"nsprof.{report.new_title}"), name=_xml(row.name))
            text = f"{row.base:,.6g} -> {row.new:,.6g} {report.unit}: {row.why}"
            if row.outcome == "fail":
                ET.SubElement(case, "failure", message=_xml(row.why)).text = _xml(text)
            elif row.outcome == "unknown":
                ET.SubElement(case, "error", message=_xml(row.why)).text = _xml(text)
            else:
                ET.SubElement(case, "system-out").text = _xml(text)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _xml(text: str) -> str:
    """Only characters that XML 1.0 can hold."""
    return "".join(
        c if c in "\t\n" or (c >= " " and not 0xD800 <= ord(c) <= 0xDFFF and ord(c) < 0xFFFE) else "?" for c in text
    )


def overall(reports: Sequence[GateReport]) -> str:
    """The outcome of all. Raises EvidenceError where there is none."""
    if not reports:
        raise EvidenceError("there was nothing to compare")
    found = {r.outcome for r in reports}
    return "fail" if "fail" in found else "unknown" if "unknown" in found else "pass"

"""Explanations as text: for a terminal, and as Markdown of 72 columns for a mailing list."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from nsprof.escape import own_name, safe
from nsprof.model.results import (
    Explanation,
    Finding,
    FunctionExplanation,
    Interval,
    KernelDiff,
    Measure,
)
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.render.text import cost, percent
from nsprof.units import counted

__all__ = [
    "answer_words",
    "explain_parts",
    "full_cpus",
    "function_parts",
    "hang",
    "kernel_diff_parts",
    "mail",
    "title_of",
    "told",
]

_ANSWERS = {
    "explained": "explained",
    "partly explained": "partly explained",
    "not explained": "no known cause fits: not explained",
    "not cpu": "not a CPU problem in the first place",
    "no difference": "no difference shown",
    "not enough data": "not enough data",
}
_MAIL_WIDTH = 72
#: Other load is named from this share of the busy time on.
_OTHERS = 0.01
#: How the notes begin that tell what became of the traffic (nsprof.analyse.scenarios.outcome_notes, causes.engine).
_OUTCOME = ("throughput ", "retransmitted segments ", "datagrams sent and not received")


def amount(value: float, measure: Measure, *, sign: bool = True, beside: float = 0.0) -> str:
    """A cost with its unit: `+5.1 us/packet`, `+1,204 instructions/transaction`; in that of `beside`, the largest
    figure of the same line, so that a reader can subtract."""
    if measure.unit == "ns" and measure.per not in ("share",) and max(abs(value), abs(beside)) >= 10_000:
        text = cost(value / 1000, sign=sign)
        return f"{text} {measure.label.replace('ns', 'us', 1)}"
    return f"{cost(value, sign=sign)} {measure.label}"


def _bounds(interval: Interval | None, measure: Measure, value: float) -> str:
    if interval is None:
        return ""
    scale = 1000 if measure.unit == "ns" and abs(value) >= 10_000 and measure.per != "share" else 1
    return f" [{cost(interval.low / scale)}, {cost(interval.high / scale)}]"


def title_of(finding: Finding) -> str:
    """The cause and where it is."""
    return finding.title + (f" at {finding.place}" if finding.place else "")


#: Of a cause of which counters and settings are sure, and whose cost noise hides.
COST_NOT_SHOWN = "that it happens is shown, what it costs is not"


def cost_is_hidden(finding: Finding) -> bool:
    """Whether nothing was measured of what the cause costs: then there is no number to show."""
    return finding.delta == 0 and finding.interval is None


def _size(finding: Finding, explanation: Explanation) -> str:
    if finding.not_cpu and finding.delta <= 0:
        return "costs no CPU time"
    if cost_is_hidden(finding):
        return COST_NOT_SHOWN
    measure = explanation.measure
    text = amount(finding.delta, measure) + _bounds(finding.interval, measure, finding.delta)
    if finding.interval is not None and finding.interval.low <= 0:
        text += f" ({COST_NOT_SHOWN})"
    if math.isnan(finding.share):
        return text
    around = finding.share_interval
    spread = f" [{percent(around.low, digits=0)}, {percent(around.high, digits=0)}]" if around else ""
    beyond = " (something else became cheaper, see below)" if finding.share > 1.005 else ""
    return f"{percent(finding.share, digits=0)}{spread} of the extra cost{beyond}, {text}"


def explain_parts(explanation: Explanation) -> list[Part]:
    """The explanation for a terminal."""
    e = explanation
    parts: list[Part] = [Heading(f"{e.new_title} against {e.base_title}: {answer_words(e)}", 1)]
    t = e.total
    largest = max(abs(t.base), abs(t.new), abs(t.delta))
    spread = _bounds(t.interval, e.measure, largest)
    change = f" ({t.delta / t.base:+.0%})" if t.base > 0 else ""
    parts.append(
        Lines(
            (
                f"{amount(t.base, e.measure, sign=False, beside=largest)} -> "
                f"{amount(t.new, e.measure, sign=False, beside=largest)}: "
                f"{amount(t.delta, e.measure, beside=largest)}{change}{spread}",
                _basis(e),
            )
        )
    )
    if e.warnings:
        parts.append(Lines(tuple(f"warning: {w}" for w in e.warnings), "yellow"))
    if e.forbids:
        parts.append(Lines(tuple(f"not to be concluded: {w}" for w in e.forbids), "bold red"))
    for number, finding in enumerate(e.findings, 1):
        parts += _finding_parts(number, finding, e)
    parts += _tail(e)
    return parts


def answer_words(e: Explanation) -> str:
    """The class of the answer in words."""
    if e.answer == "not cpu" and not math.isnan(e.cpu_full):
        return "more is lost than CPU time, and the CPUs were full"
    return _ANSWERS[e.answer]


def full_cpus(e: Explanation) -> str:
    """How full the CPUs were, and of whose work; "" where one of them had time left."""
    if math.isnan(e.cpu_full):
        return ""
    text = f"the CPUs were {percent(e.cpu_full, digits=0)} busy"
    if e.cpu_full_others >= _OTHERS:
        text += f", {percent(e.cpu_full_others, digits=0)} of it tasks outside the scenario's namespaces"
        text += " (a peer in another namespace counts there: --in it too, or --everyone)"
    return text


def _basis(e: Explanation) -> str:
    runs = f"{e.runs_base} against {counted(e.runs_new, 'run')}"
    if e.measure.kind != "sampled":
        return f"exact counts ({e.measure.kind}), {runs}: no spread to allow for"
    alone = "" if min(e.runs_base, e.runs_new) > 1 else "; one run a side: no intervals"
    counts = f"{e.total.samples_base:,} against {e.total.samples_new:,} samples"
    return f"{runs}, {counts}{alone}"


def _finding_parts(number: int, finding: Finding, e: Explanation) -> list[Part]:
    mark = "" if finding.certainty == "found" else " (possible: one kind of evidence only)"
    style = "bold" if finding.certainty == "found" else ""
    lines = [f"   {_size(finding, e)}"]
    for piece in finding.evidence:
        lines.append(f"   {'evidence' if piece.agrees else 'against '}: [{piece.kind}] {piece.text}")
    for s in finding.suggestions:
        lines.append(f"   try: {s.text}" + (f": {s.command}" if s.command else ""))
        if s.verify:
            lines.append(f"   verify: {s.verify}")
    if not finding.not_cpu and finding.delta > 0:
        gain = finding.delta / e.total.new if e.total.new > 0 else 0.0
        rest = e.not_explained_interval
        most = "at most " if finding.share > 1.005 or (rest is not None and rest.high < 0) else ""
        lines.append(f"   expected gain: {most}{percent(gain, digits=0)} of {e.new_title}'s cost")
    return [Lines(("",)), Lines((f"{number}. {title_of(finding)}{mark}",), style), Lines(tuple(lines))]


def _tail(e: Explanation) -> list[Part]:
    not_cpu = [f for f in e.findings if f.not_cpu]
    rest = "unknown" if math.isnan(e.not_explained_share) else percent(e.not_explained_share, digits=0)
    lines = [
        "",
        f"not explained: {rest}, {amount(e.not_explained, e.measure)}"
        f"{_bounds(e.not_explained_interval, e.measure, e.not_explained)}",
        f"CPU-bound: {_bound(e, not_cpu)}",
    ]
    if e.unexplained_functions:
        lines.append(
            "  mostly in: " + ", ".join(f"{name} ({cost(v, sign=True)})" for name, v in e.unexplained_functions)
        )
    lines += [f"  {r}" for r in e.reasons]
    lines += [f"note: {n}" for n in told(e)]
    lines += [f"next: {n.replace('nsprof ', own_name() + ' ', 1) if n.startswith('nsprof ') else n}" for n in e.next]
    return [Lines(tuple(lines))]


def told(e: Explanation) -> list[str]:
    """The notes that belong to an answer: what became of the traffic, and what others did meanwhile."""
    return [n for n in e.notes if "other load" in n or n.startswith(_OUTCOME)]


def _bound(e: Explanation, not_cpu: Sequence[Finding]) -> str:
    """Whether CPU time is the trouble, or loss, shaping, full buffers, waiting."""
    causes, full = ", ".join(f.title for f in not_cpu[:2]), full_cpus(e)
    if e.answer in ("not enough data", "no difference"):
        return f"unknown; {full}" if full else "unknown"
    if full:
        return f"in part: {full}; besides: {causes}" if not_cpu else f"yes: {full}"
    if e.answer == "not cpu":
        return f"no, not a CPU problem in the first place ({causes})"
    waits = [f.title for f in e.findings if not f.not_cpu and f.strength > 0]
    if waits and not not_cpu:
        return f"in part: CPUs idle and less gets through besides what each unit costs ({waits[0]})"
    return f"in part, besides: {causes}" if not_cpu else "yes (no sign of loss, shaping, full buffers or waiting)"


def hang(parts: Sequence[Part], width: int) -> list[Part]:
    """Lines folded at `width` with their continuation indented, as a terminal shows them best."""
    made: list[Part] = []
    for part in parts:
        if isinstance(part, Lines):
            lines: list[str] = []
            for line in part.lines:
                indent = line[: len(line) - len(line.lstrip())]
                lines += textwrap.wrap(
                    safe(line),
                    width,
                    subsequent_indent=f"{indent}   ",
                    break_long_words=False,
                    break_on_hyphens=False,
                    drop_whitespace=True,
                ) or [""]
            made.append(Lines(tuple(lines), part.style, part.bullet))
        else:
            made.append(part)
    return made


def mail(parts: Sequence[Part], width: int = _MAIL_WIDTH) -> str:
    """The same parts as Markdown that a mailing list takes: no line longer than `width` where a blank allows."""
    out: list[str] = []
    for part in parts:
        if isinstance(part, Heading):
            out += [*textwrap.wrap("#" * part.level + " " + safe(part.text), width), ""]
        elif isinstance(part, Lines):
            for line in part.lines:
                out += _mail_line(safe(line), width)
        elif isinstance(part, Grid):
            out += _mail_grid(part, width)
    lines = [line for i, line in enumerate(out) if line or (i and out[i - 1])]
    return "\n".join(lines).rstrip() + "\n"


def _mail_line(line: str, width: int) -> list[str]:
    if not line.strip():
        return [""]
    indent = line[: len(line) - len(line.lstrip())]
    bullet = f"{indent}- " if indent else ""
    return textwrap.wrap(
        line.lstrip(),
        width,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet) if bullet else "   " if line[0].isdecimal() else "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _mail_grid(grid: Grid, width: int) -> list[str]:
    """A fixed-width table, indented by four (a code block); the first column takes what is left."""
    rows = [[safe(c.text if isinstance(c, Cell) else c) for c in row] for row in grid.rows]
    heads = [c.title for c in grid.columns]
    wide = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    first = max(12, min(wide[0], width - 4 - sum(w + 1 for w in wide[1:])))
    lines = []
    for row in [heads, *rows]:
        rest = "".join(f" {text:>{w}}" for text, w in zip(row[1:], wide[1:], strict=True))
        pieces = textwrap.wrap(row[0], first) or [""]
        lines.append(f"    {pieces[0]:<{first}}{rest}")
        lines += [f"    {piece}" for piece in pieces[1:]]
    return ["", *([safe(grid.title), ""] if grid.title else []), *lines, ""]


def function_parts(f: FunctionExplanation) -> list[Part]:
    """`--function`: cost, callers, callees, and a paragraph to quote."""
    label = f.measure.label
    parts: list[Part] = [Heading(f"{f.name}: {f.new_title} against {f.base_title}", 1)]
    head = [
        f"self {cost(f.own.base)} -> {cost(f.own.new)} {label}, with all it calls {cost(f.own.base_total)} -> "
        f"{cost(f.own.new_total)} {label}"
    ]
    if f.source:
        head.append(f"source: {f.source}")
    parts.append(Lines(tuple(head)))
    for title, rows in (("Called by", f.callers), ("Calls", f.callees), ("Call paths", f.paths)):
        if rows:
            parts.append(Lines(("",)))
            parts.append(_grid(title, rows))
    if f.other_events:
        parts += [Lines(("",)), _grid("Other quantities (self)", f.other_events)]
    parts.append(Lines(("", f.summary)))
    if f.notes:
        parts.append(Lines(f.notes, "dim", bullet=True))
    return parts


def _grid(title: str, rows: Sequence[tuple[str, float, float]]) -> Grid:
    return Grid(
        (Column(title, right=False, wrap=True), Column("base"), Column("new"), Column("delta")),
        tuple((name, cost(base), cost(new), cost(new - base, sign=True)) for name, base, new in rows),
    )


def kernel_diff_parts(d: KernelDiff) -> list[Part]:
    """`--kernel-diff`: gains and losses grouped by the path that pulled them in."""
    t = d.total
    parts: list[Part] = [
        Heading(f"{d.new_title} against {d.base_title}", 1),
        Lines((f"{cost(t.base)} -> {cost(t.new)} {d.measure.label}: {cost(t.delta, sign=True)}",)),
    ]
    for path, delta, functions in d.groups:
        parts += [
            Lines(("", f"{cost(delta, sign=True)} {d.measure.label} under {path}"), "bold"),
            Lines(
                tuple(
                    f"   {cost(v, sign=True):>10}  {name}" + (f" ({how})" if how else "")
                    for name, v, how in functions
                )
            ),
        ]
    if d.inlining:
        parts += [
            Lines(("", "Changes of compilation only (inlined or split; caller and callee together cost the same):")),
            Lines(
                tuple(f"   {callee} in {caller}: {cost(v, sign=True)} together" for callee, caller, v in d.inlining)
            ),
        ]
    if d.touched:
        parts += [Lines(("", "Lines of data touched that were not (new indirections first):"), "bold"), *_touched(d)]
    if d.lines:
        parts += [Lines(("",)), _grid("Distinct lines touched", d.lines)]
    if d.notes:
        parts.append(Lines(("", *d.notes), "dim"))
    return parts


def _touched(d: KernelDiff) -> list[Part]:
    """One sentence a function and struct."""
    said = []
    for function, struct, before, now, members in d.touched:
        more = now - before
        lines = f"{more} line{'s' if more > 1 else ''}"
        where = f" (new: {', '.join(members[:4])})" if members else ""
        if before:
            said.append(f"   {function} touches {lines} more of `{struct}` than before{where}: {before} -> {now}")
        else:
            said.append(f"   {function} touches {lines} of `{struct}`, which it did not touch before{where}")
    return [Lines(tuple(said))]

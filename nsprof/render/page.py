"""The report page: one HTML file, complete in itself, that can be opened from disk, mailed and printed.

Nothing is fetched (a Content-Security-Policy forbids it), the only script and style that may run are the page's own
(by their hashes), and every name reaches the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from nsprof.model.results import CostReport, DeltaRow, DiffReport, FunctionRow
from nsprof.render import page_parts as parts
from nsprof.render.flamegraph import asset
from nsprof.render.flamegraph_text import clean, cost_text, delta_text, escape, number, per_noun, percent, script_json
from nsprof.render.page_flame import FRAME_BUDGET, Flames, flame_graphs
from nsprof.render.page_model import PageContent
from nsprof.render.text import SHARES

__all__ = ["FRAME_BUDGET", "FUNCTION_LIMIT", "report_page"]

#: Rows of the first function table kept in the file, and of all others together (or 100 each); what is left out is
#: counted in the table's last line.
FUNCTION_LIMIT = 3_000
_STATIC_ROWS = 40  # shown where no script runs
_FLAMES_LEFT_OUT = (
    "the flame graphs of so many comparisons do not fit into one file of 3 MB; "
    "'nsprof report --html FILE --scenario NAME PROFILE' makes a page of this one alone."
)


@dataclass(frozen=True, slots=True)
class _Section:
    """A section of a comparison, in pieces so that two comparisons need hold once only what is alike in both."""

    name: str
    title: str
    pieces: tuple[str, ...]

    def html(self, same: Collection[str] = ()) -> str:
        """The section; of pieces in `same` ("NAME-NUMBER") there is a mark only."""
        body = []
        for n, piece in enumerate(self.pieces):
            place = f"{self.name}-{n}"
            body.append(f'<div data-same="{place}"></div>' if place in same else f'<div id="{place}">{piece}</div>')
        return parts.section(self.name, self.title, "".join(body))


@dataclass(frozen=True, slots=True)
class _Sheet:
    """One comparison: its head and its sections."""

    title: str
    head: str
    sections: tuple[_Section, ...]


def report_page(content: PageContent) -> str:
    """The whole HTML text of a page; where it holds several comparisons the reader chooses one of them."""
    contents = (content, *content.others)
    flames, flame_data = flame_graphs(contents)
    sheets = [_sheet(each, flame) for each, flame in zip(contents, flames, strict=True)]
    rows = _rows(len(contents))
    data = {
        "flame": flame_data,
        "sheets": [
            {
                "name": clean(c.label),
                "title": clean(c.title),
                "views": list(f.views),
                "functions": _functions(c, limit),
            }
            for c, f, limit in zip(contents, flames, rows, strict=True)
        ],
    }
    first = sheets[0]
    style = asset("page.css") + asset("flame.css")
    script = asset("flame.js") + asset("page.js")
    made = escape(" ".join(filter(None, (f"nsprof {content.version}".strip(), content.created))))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(content.title)}</title>\n<style>{style}</style></head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the report</a>\n{_chooser(contents, content.left_out)}'
        f"{first.head}\n"
        f'<nav aria-label="Sections"><ul id="nav-list">{_nav(first)}</ul></nav>\n<main id="main" tabindex="-1">'
        + "\n".join(section.html() for section in first.sections)
        + f"</main>\n<footer><p>Made by {made}. This file asks nothing of any network.</p></footer>\n"
        '<div id="toast" role="status" aria-live="polite"></div>\n'
        + "".join(_template(n, sheet, first) for n, sheet in enumerate(sheets[1:], 1))
        + f'<script type="application/json" id="nsprof-data">{script_json(data)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _sheet(content: PageContent, flames: Flames) -> _Sheet:
    lead, below = parts.headline(content)
    why = _FLAMES_LEFT_OUT if flames.left_out else ""
    missing = {**({"flame": why} if why else {}), **content.missing}
    sections = [
        ("findings", "Why", [parts.cards(content.cards)]),
        (
            "scenarios",
            "Scenarios",
            [parts.scenario_table(content.table, parts.alarms(content)) if content.table else ""],
        ),
        ("flame", "Flame graph", [flames.html]),
        (
            "categories",
            "Where the change is" if content.diff else "Categories",
            [parts.categories(content.diff, content.report)],
        ),
        ("functions", "Functions", [_function_section(content)]),
        (
            "ledger",
            "What happens to each packet",
            [parts.ledger(content.ledger, content.ledger_per, content.ledger_notes)],
        ),
        ("runs", "Every run", [parts.runs(content)]),
        ("topology", "Topology", [parts.topology_section(content)]),
        ("losses", "What was lost or could not be measured", [_losses(content)]),
        ("environment", "Environment", [parts.facts(group) for group in content.environment]),
    ]
    shown = []
    for name, title, bodies in sections:
        pieces = [body for body in bodies if body]
        if not pieces and missing.get(name):
            pieces = [f'<p class="note">Not shown: {escape(missing[name])}</p>']
        if pieces:
            shown.append(_Section(name, title, tuple(pieces)))
    head = (
        f'<header id="head"><p class="eyebrow">{escape(content.title)}</p><h1>{escape(lead)}</h1>'
        f'<p class="below">{escape(below)}</p>{_figures(content)}{parts.warnings(content)}</header>'
    )
    return _Sheet(content.title, head, tuple(shown))


def _rows(sheets: int) -> list[int]:
    """How many functions each comparison's table may have."""
    return [FUNCTION_LIMIT, *[max(100, FUNCTION_LIMIT // max(1, sheets - 1))] * (sheets - 1)]


# ---- several comparisons -------------------------------------------------------------------------------------------


def _chooser(contents: Sequence[PageContent], left_out: Sequence[str]) -> str:
    """The list of comparisons, for readers with scripts; the first is what all others see."""
    words = "".join(f'<p class="note">Not in this file: {escape(reason)}</p>' for reason in left_out)
    if len(contents) == 1:
        return words
    options = "".join(f'<option value="{n}">{escape(c.label)}</option>' for n, c in enumerate(contents))
    others = ", ".join(c.label for c in contents[1:])
    return (
        '<div class="tools" id="sheets" hidden><label>Comparison '
        f'<select id="sheet">{options}</select></label> '
        f'<span class="note">{len(contents)} in this file</span></div>\n'
        f'<noscript><p class="note">Shown: {escape(contents[0].label)}. The other comparisons in this file '
        f"({escape(others)}) need scripts.</p></noscript>{words}\n"
    )


def _nav(sheet: _Sheet) -> str:
    return "".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in sheet.sections)


def _template(number: int, sheet: _Sheet, first: _Sheet) -> str:
    """A further comparison, which the script puts in the first one's place. What both have alike is there once."""
    held = {section.name: section.pieces for section in first.sections}
    same = {
        f"{section.name}-{n}"
        for section in sheet.sections
        for n, (ours, theirs) in enumerate(zip(section.pieces, held.get(section.name, ()), strict=False))
        if ours == theirs
    }
    body = "".join(section.html(same) for section in sheet.sections)
    return f'<template id="sheet-{number}">{sheet.head}<ul>{_nav(sheet)}</ul><div>{body}</div></template>\n'


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; "
        "img-src 'none'; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


# ---- key figures ---------------------------------------------------------------------------------------------------


def _figures(content: PageContent) -> str:
    boxes: list[tuple[str, str]] = []
    if content.diff is not None:
        m, total = content.diff.measure, content.diff.total
        boxes.append((content.diff.base_title, cost_text(total.base, m.unit, per_noun(m))))
        boxes.append((content.diff.new_title, cost_text(total.new, m.unit, per_noun(m))))
        boxes.append(("change", delta_text(total.delta, m.unit, per_noun(m))))
    elif content.report is not None:
        m = content.report.measure
        boxes.append(("cost", cost_text(content.report.total, m.unit, per_noun(m))))
    if content.report is not None and content.report.measure.kind == "sampled":
        boxes.append(("samples", f"{content.report.samples:,}"))
        for name, share in (
            ("samples lost", content.report.lost_share),
            ("nsprof's own cost", content.report.own_share),
        ):
            boxes.append((name, "unknown" if math.isnan(share) else percent(share, 2)))
    measure = content.diff.measure if content.diff else content.report.measure if content.report else None
    how = ""
    if measure is not None:
        kind = "" if measure.kind == "sampled" else f" ({measure.kind})"
        place = parts.counted_at(measure)
        reference = f", read from {place}" if place else ""
        what = f"{measure.event}{kind} in {measure.label}{reference}; {SHARES}"
        how = f'<p class="note">Measured: {escape(what)}.</p>'
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in boxes)
    return f'<dl class="figures">{cells}</dl>{how}' if cells else ""


def _losses(content: PageContent) -> str:
    body = parts.facts(content.losses) if content.losses else ""
    if content.not_measurable:
        body += (
            "<h3>Not measured, and why</h3><ul>"
            + "".join(f"<li>{escape(x)}</li>" for x in content.not_measurable)
            + "</ul>"
        )
    body += parts.facts(content.refused) if content.refused else ""
    notes = list(dict.fromkeys(content.diff.notes if content.diff else ()))
    notes += [n for n in (content.report.notes if content.report else ()) if not any(n in other for other in notes)]
    notes = [n for n in notes if n not in content.not_measurable]
    if notes:
        body += "<h3>Notes</h3><ul>" + "".join(f"<li>{escape(x)}</li>" for x in notes) + "</ul>"
    return body


# ---- functions -----------------------------------------------------------------------------------------------------


def _sig(value: float) -> float | int | None:
    return number(value, 5) if math.isfinite(value) else None


def _diff_row(r: DeltaRow) -> list[Any]:
    low = _sig(r.interval.low) if r.interval else None
    high = _sig(r.interval.high) if r.interval else None
    return [
        clean(r.name), clean(r.module), clean(r.category), _sig(r.base), _sig(r.new), _sig(r.delta), low, high,
        _sig(r.q), r.verdict, r.status, _sig(r.base_total), _sig(r.new_total),
        r.samples_base, r.samples_new, _sig(r.skid_share),
    ]  # fmt: skip


def _report_row(r: FunctionRow) -> list[Any]:
    low = _sig(r.self_interval.low) if r.self_interval else None
    high = _sig(r.self_interval.high) if r.self_interval else None
    contexts = ", ".join(
        f"{k} {100 * v:.0f} %" for k, v in sorted(r.contexts.items(), key=lambda kv: -kv[1]) if v >= 0.005
    )
    return [
        clean(r.name), clean(r.module), clean(r.category), _sig(r.self_cost), _sig(r.self_share), low, high,
        _sig(r.total_cost), _sig(r.total_share), clean(contexts), r.samples, _sig(r.skid_share),
    ]  # fmt: skip


def _column(title: str, kind: str, hint: str = "", rank: int = 0) -> dict[str, Any]:
    """A column; where there is no room for all, those of the lowest `rank` (but 0) give way first."""
    return {"title": title, "kind": kind, "hint": hint, **({"rank": rank} if rank else {})}


def _diff_columns(diff: DiffReport) -> list[dict[str, Any]]:
    return [
        _column("Function", "name"),
        _column("Module", "text", rank=2),
        _column("Category", "text", rank=5),
        _column(clean(diff.base_title), "cost", "self cost of the baseline"),
        _column(clean(diff.new_title), "cost", "self cost of the new side"),
        _column("delta", "delta", "new minus base, self cost"),
        _column("interval", "interval", "confidence interval of the delta", 4),
        _column("", "hidden"),
        _column("q", "q", "false discovery rate at which the change is called", 4),
        _column("verdict", "verdict", "+ or - significant, ~ not, empty: the runs allow none", 6),
        _column("only in", "status", "new: absent from the baseline; gone: absent from the new side", 4),
        _column("base total", "cost", "with everything it calls, up to softirq and hardirq entry", 3),
        _column("new total", "cost", "with everything it calls, up to softirq and hardirq entry", 3),
        _column("samples base", "count", rank=1),
        _column("samples new", "count", rank=1),
        _column("skid", "share", "share of its samples that came late and may belong elsewhere", 2),
    ]


def _report_columns() -> list[dict[str, Any]]:
    return [
        _column("Function", "name"),
        _column("Module", "text", rank=2),
        _column("Category", "text", rank=5),
        _column("self", "cost"),
        _column("self share", "share", SHARES),
        _column("interval", "interval", "confidence interval of self", 4),
        _column("", "hidden"),
        _column("total", "cost", "with everything it calls, up to softirq and hardirq entry"),
        _column("total share", "share", SHARES),
        _column("context", "text", rank=3),
        _column("samples", "count", rank=1),
        _column("skid", "share", "share of its samples that came late and may belong elsewhere", 2),
    ]


def _functions(content: PageContent, limit: int) -> dict[str, Any] | None:
    if content.diff is not None:
        rows = [_diff_row(r) for r in content.diff.functions[:limit]]
        columns, sort, left = _diff_columns(content.diff), 5, content.diff.functions[limit:]
        measure, rest = content.diff.measure, math.fsum(r.delta for r in left)
    elif content.report is not None:
        rows = [_report_row(f) for f in content.report.functions[:limit]]
        columns, sort, more = _report_columns(), 3, content.report.functions[limit:]
        measure, rest, left = content.report.measure, math.fsum(f.self_cost for f in more), more  # type: ignore[assignment]
    else:
        return None
    return {
        "columns": columns,
        "rows": rows,
        "unit": clean(measure.unit),
        "per": clean(per_noun(measure)),
        "sort": sort,
        "left": len(left),
        "rest": number(rest),
    }


def _function_section(content: PageContent) -> str:
    diff, report = content.diff, content.report
    if diff is None and report is None:
        return ""
    return (
        '<div class="tools" id="function-tools"></div>'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Functions">'
        f'<table id="function-table">{_static_functions(diff, report)}</table></div>'
        '<p class="note" id="function-note"></p>'
    )


def _static_functions(diff: DiffReport | None, report: CostReport | None) -> str:
    """The first rows, for readers without scripts; the script puts the whole table in their place."""
    if diff is not None:
        heads, unit = ["Function", "Category", diff.base_title, diff.new_title, "delta"], diff.measure.unit
        rows = [
            [r.name, r.category, cost_text(r.base, unit), cost_text(r.new, unit), delta_text(r.delta, unit)]
            for r in diff.functions[:_STATIC_ROWS]
        ]
    else:
        assert report is not None  # noqa: S101 - the caller has one of both
        heads, unit = ["Function", "Category", "self", "share", "total"], report.measure.unit
        rows = [
            [f.name, f.category, cost_text(f.self_cost, unit), percent(f.self_share), cost_text(f.total_cost, unit)]
            for f in report.functions[:_STATIC_ROWS]
        ]
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"

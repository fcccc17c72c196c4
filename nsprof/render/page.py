"""The report page: one HTML file, complete in itself, that can be opened from disk, mailed and printed.

Nothing is fetched (a Content-Security-Policy forbids it), the only script and style that may run are the page's own
(by their hashes), and every name reaches the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from typing import Any

from nsprof.model.results import CostReport, DeltaRow, DiffReport, FunctionRow
from nsprof.render import page_parts as parts
from nsprof.render.flamegraph import GONE_PATTERN, asset, fold_note, legend_html
from nsprof.render.flamegraph_data import FrameTable, view_data
from nsprof.render.flamegraph_layout import fold, layout
from nsprof.render.flamegraph_text import clean, cost_text, delta_text, escape, number, per_noun, percent, script_json
from nsprof.render.page_model import FlameView, PageContent
from nsprof.render.text import SHARES

__all__ = ["FRAME_BUDGET", "FUNCTION_LIMIT", "report_page"]

#: Frames of all views of a page together; keeps the file under 3 MB (about 20 bytes a frame).
FRAME_BUDGET = 80_000
#: Rows of the function table kept in the file; what is left out is counted in its last line.
FUNCTION_LIMIT = 3_000
_STATIC_ROWS = 40  # shown where no script runs


def report_page(content: PageContent) -> str:
    """The whole HTML text of a page."""
    lead, below = parts.headline(content)
    flame_html, flame_data = _flame(content.views)
    data = {"flame": flame_data, "functions": _functions(content)}
    sections = [
        ("findings", "Why", parts.cards(content.cards), ""),
        ("scenarios", "Scenarios", parts.scenario_table(content.table) if content.table else "", ""),
        ("flame", "Flame graph", flame_html, ""),
        (
            "categories",
            "Where the change is" if content.diff else "Categories",
            parts.categories(content.diff, content.report),
            "",
        ),
        ("functions", "Functions", _function_section(content), ""),
        (
            "ledger",
            "What happens to each packet",
            parts.ledger(content.ledger, content.ledger_per, content.ledger_notes),
            "",
        ),
        ("runs", "Every run", parts.runs(content), ""),
        ("topology", "Topology", parts.topology_section(content), ""),
        ("losses", "What was lost or could not be measured", _losses(content), ""),
        ("environment", "Environment", "".join(parts.facts(group) for group in content.environment), ""),
    ]
    shown = []
    for name, title, body, note in sections:
        reason = content.missing.get(name, "")
        html = body or (f'<p class="note">Not shown: {escape(reason)}</p>' if reason else "")
        if html:
            shown.append((name, title, parts.section(name, title, html, note)))
    nav = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in shown)
    style = asset("page.css") + asset("flame.css")
    script = asset("flame.js") + asset("page.js")
    made = escape(" ".join(filter(None, (f"nsprof {content.version}".strip(), content.created))))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(content.title)}</title>\n<style>{style}</style></head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f'<header><p class="eyebrow">{escape(content.title)}</p><h1>{escape(lead)}</h1>'
        f'<p class="below">{escape(below)}</p>{_figures(content)}{parts.warnings(content)}</header>\n'
        f'<nav aria-label="Sections"><ul>{nav}</ul></nav>\n<main id="main" tabindex="-1">'
        + "\n".join(html for _, _, html in shown)
        + f"</main>\n<footer><p>Made by {made}. This file asks nothing of any network.</p></footer>\n"
        '<div id="toast" role="status" aria-live="polite"></div>\n'
        f'<script type="application/json" id="nsprof-data">{script_json(data)}</script>\n<script>{script}</script>\n'
        "</body></html>\n"
    )


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
    notes = list(dict.fromkeys(content.diff.notes if content.diff else ()))
    notes += [n for n in (content.report.notes if content.report else ()) if not any(n in other for other in notes)]
    if notes:
        body += "<h3>Notes</h3><ul>" + "".join(f"<li>{escape(x)}</li>" for x in notes) + "</ul>"
    return body


# ---- flame graphs --------------------------------------------------------------------------------------------------


def _flame(views: Sequence[FlameView]) -> tuple[str, dict[str, Any] | None]:
    drawn = [v for v in views if len(v.tree)]
    if not drawn:
        return "", None
    table = FrameTable()
    data, notes, legends = [], [], []
    # The first views (the whole, and the difference) get the finer grain; splits share what is left.
    first = FRAME_BUDGET // 2 if len(drawn) > 2 else FRAME_BUDGET // len(drawn)
    rest = (FRAME_BUDGET - 2 * (FRAME_BUDGET // 4)) // max(1, len(drawn) - 2)
    for n, view in enumerate(drawn):
        limit = first if len(drawn) <= 2 else FRAME_BUDGET // 4 if n < 2 else rest
        folded = fold(view.tree, min_share=0.00004, limit=limit // 2)
        one = view_data(layout(folded.tree), table, label=view.label, units=view.units)
        said = (*view.tree.notes, fold_note(folded.frames, folded.share, folded.threshold))
        one["note"] = clean(" ".join(note if note.endswith(".") else f"{note}." for note in said if note))
        data.append(one)
        notes.append(one["note"])
        legends.append(legend_html(folded.tree))
    plain = next((x for x, v in zip(legends, drawn, strict=True) if not v.tree.differential), "")
    differential = next((x for x, v in zip(legends, drawn, strict=True) if v.tree.differential), "")
    html = (
        '<p class="note">Click or Enter zooms, Escape resets, arrows walk, / searches. A frame is as wide as its '
        "cost; in the differential graph blue is less, vermilion more, grey not significant, hatched gone.</p>"
        '<div class="flamebox nsprof-flame"><div class="controls" id="flame-controls"></div>'
        f'<div class="legend" data-diff="no">{plain}</div><div class="legend" data-diff="yes">{differential}</div>'
        '<svg id="flame-svg" class="nsprof-flame" width="100%" height="300" aria-label="Flame graph">'
        f'<defs>{GONE_PATTERN}</defs><g id="flame-frames"></g></svg>'
        '<p id="flame-status" role="status" aria-live="polite"></p><p id="flame-note" class="note"></p></div>'
        "<noscript><p>The flame graph needs scripts; the tables below do not.</p></noscript>"
    )
    return html, {"views": data, **table.data()}


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


def _column(title: str, kind: str, hint: str = "") -> dict[str, str]:
    return {"title": title, "kind": kind, "hint": hint}


def _diff_columns(diff: DiffReport) -> list[dict[str, str]]:
    return [
        _column("Function", "name"),
        _column("Module", "text"),
        _column("Category", "text"),
        _column(clean(diff.base_title), "cost", "self cost of the baseline"),
        _column(clean(diff.new_title), "cost", "self cost of the new side"),
        _column("delta", "delta", "new minus base, self cost"),
        _column("interval", "interval", "confidence interval of the delta"),
        _column("", "hidden"),
        _column("q", "q", "false discovery rate at which the change is called"),
        _column("verdict", "verdict", "+ or - significant, ~ not, empty: the runs allow none"),
        _column("only in", "status", "new: absent from the baseline; gone: absent from the new side"),
        _column("base total", "cost", "with everything it calls, up to softirq and hardirq entry"),
        _column("new total", "cost", "with everything it calls, up to softirq and hardirq entry"),
        _column("samples base", "count"),
        _column("samples new", "count"),
        _column("skid", "share", "share of its samples that came late and may belong elsewhere"),
    ]


def _report_columns() -> list[dict[str, str]]:
    return [
        _column("Function", "name"),
        _column("Module", "text"),
        _column("Category", "text"),
        _column("self", "cost"),
        _column("self share", "share", SHARES),
        _column("interval", "interval", "confidence interval of self"),
        _column("", "hidden"),
        _column("total", "cost", "with everything it calls, up to softirq and hardirq entry"),
        _column("total share", "share", SHARES),
        _column("context", "text"),
        _column("samples", "count"),
        _column("skid", "share", "share of its samples that came late and may belong elsewhere"),
    ]


def _functions(content: PageContent) -> dict[str, Any] | None:
    if content.diff is not None:
        rows = [_diff_row(r) for r in content.diff.functions[:FUNCTION_LIMIT]]
        columns, sort, left = _diff_columns(content.diff), 5, content.diff.functions[FUNCTION_LIMIT:]
        measure, rest = content.diff.measure, math.fsum(r.delta for r in left)
    elif content.report is not None:
        rows = [_report_row(f) for f in content.report.functions[:FUNCTION_LIMIT]]
        columns, sort, more = _report_columns(), 3, content.report.functions[FUNCTION_LIMIT:]
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

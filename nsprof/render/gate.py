"""The answer of `nsprof gate` as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nsprof.model.metrics import GateReport
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.render.text import cost, percent

__all__ = ["gate_parts"]

_WORDS = {"pass": "pass", "fail": "REGRESSION", "unknown": "not enough evidence"}
_STYLE = {"pass": "green", "fail": "bold red", "unknown": "yellow"}


def gate_parts(reports: Sequence[GateReport], outcome: str) -> list[Part]:
    """One table a scenario and the outcome in one line."""
    parts: list[Part] = []
    for report in reports:
        title = report.new_title
        if report.base_title != report.new_title:
            title = f"{report.new_title} against {report.base_title}"
        columns = (
            Column("Guarded", right=False, wrap=True),
            Column(f"base {report.unit}", keep=2),
            Column(f"new {report.unit}", keep=2),
            Column("change"),
            Column("allowed", keep=1),
            Column("", right=False),
            Column("because", right=False, wrap=True, keep=3),
        )
        rows = []
        for row in report.rows:
            change = "new" if math.isinf(row.change) else percent(row.change, sign=True, digits=2)
            rows.append(
                (
                    row.name,
                    cost(row.base),
                    cost(row.new),
                    change,
                    percent(row.limit, sign=True, digits=2),
                    Cell(_WORDS[row.outcome], _STYLE[row.outcome]),
                    row.why,
                )
            )
        parts += [Heading(title, 2), Grid(columns, tuple(rows))]
        if report.notes:
            parts.append(Lines(report.notes, "dim", bullet=True))
    parts.append(Lines((f"gate: {_WORDS[outcome]}",), _STYLE[outcome]))
    return parts

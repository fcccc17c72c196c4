"""A history as a table with a chart in it, and as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nsprof.escape import safe
from nsprof.model.metrics import History, HistoryPoint
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.render.text import cost, interval_text, percent
from nsprof.units import counted

__all__ = ["history_parts", "history_svg"]

_WIDTH = 24


def history_parts(history: History) -> list[Part]:
    """One line a file: when, kernel, cost, change, chart; change points in bold."""
    low, high = _range(history.points)
    several = any(p.commit for p in history.points)
    columns = [Column("File", right=False, wrap=True), Column("when", right=False, keep=5)]
    columns.append(Column("kernel", right=False, keep=4))
    if several:
        columns.append(Column("commit", right=False, keep=3))
    columns += [
        Column(history.unit),
        Column("95%", keep=6),
        Column("change"),
        Column(f"{cost(low)} to {cost(high)}", right=False, keep=2),
        Column("", right=False, wrap=True, keep=1),
    ]
    rows = []
    for point in history.points:
        style = "bold red" if point.mark and point.change_pct > 0 else "bold green" if point.mark else ""
        cells: list[Cell | str] = [point.file, point.when[:16].replace("T", " "), point.kernel]
        if several:
            cells.append(point.commit[:12])
        cells += [
            cost(point.cost),
            interval_text(point.interval),
            Cell(percent(point.change_pct / 100, sign=True), style),
            _line(point, low, high),
            Cell(f"<- {point.mark}" if point.mark else "", style),
        ]
        rows.append(tuple(cells))
    parts: list[Part] = [Heading(f"{history.scenario}: {history.unit} over {counted(len(rows), 'file')}", 1)]
    parts.append(Grid(tuple(columns), tuple(rows)))
    if history.notes:
        parts.append(Lines(history.notes, "dim", bullet=True))
    return parts


def _bounds(point: HistoryPoint) -> tuple[float, float]:
    return (point.interval.low, point.interval.high) if point.interval else (point.cost, point.cost)


def _range(points: Sequence[HistoryPoint]) -> tuple[float, float]:
    low = min(_bounds(p)[0] for p in points)
    high = max(_bounds(p)[1] for p in points)
    return (low, high) if high > low else (low - abs(low) * 0.01 - 1e-9, high + abs(high) * 0.01 + 1e-9)


def _line(point: HistoryPoint, low: float, high: float) -> str:
    """The point as `o` on a line, its interval as dashes."""

    def at(value: float) -> int:
        return max(0, min(_WIDTH - 1, round((value - low) / (high - low) * (_WIDTH - 1))))

    first, last = (at(v) for v in _bounds(point))
    line = [" "] * _WIDTH
    line[first : last + 1] = "-" * (last + 1 - first)
    line[at(point.cost)] = "#" if point.mark else "o"
    return "".join(line)


_CSS = """
text{font:13px system-ui,sans-serif;fill:#222}.grid{stroke:#ddd}.back{fill:#fff}
.line{fill:none;stroke:#0b57a4;stroke-width:2}.dot{fill:#0b57a4}.bar{stroke:#0b57a4;stroke-width:1.5}
.up{stroke:#b3261e;fill:#b3261e}.down{stroke:#1b6e34;fill:#1b6e34}.mark{stroke-dasharray:4 3;stroke-width:1.5}
@media (prefers-color-scheme:dark){text{fill:#eee}.back{fill:#1b1b1b}.grid{stroke:#444}
.line,.bar{stroke:#7ab7f5}.dot{fill:#7ab7f5}.up{stroke:#ff8a80;fill:#ff8a80}.down{stroke:#7bd88f;fill:#7bd88f}}
"""


def history_svg(histories: Sequence[History]) -> str:
    """All histories below each other in one SVG; change points are dashed lines with their change."""
    height, width = 300, 900
    body = [_chart(history, number * height, width, height) for number, history in enumerate(histories)]
    total = height * len(histories)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}" '
        f'role="img" aria-label="History of unit costs"><style>{_CSS}</style>'
        f'<rect class="back" width="{width}" height="{total}"/>{"".join(body)}</svg>\n'
    )


def _chart(history: History, top: int, width: int, height: int) -> str:
    left, right, upper, lower = 90, 20, 40, 60
    points = history.points
    low, high = _range(points)
    low, high = low - (high - low) * 0.08, high + (high - low) * 0.08

    def x(number: int) -> float:
        inner = width - left - right
        return left + (inner / 2 if len(points) == 1 else inner * number / (len(points) - 1))

    def y(value: float) -> float:
        return top + upper + (height - upper - lower) * (1 - (value - low) / (high - low))

    out = [
        f'<text x="{left}" y="{top + 22}" font-weight="bold">{_text(history.scenario)}: {_text(history.unit)}</text>'
    ]
    for step in range(5):
        value = low + (high - low) * step / 4
        out.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        out.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{cost(value)}</text>')
    places = " ".join(f"{x(i):.1f},{y(p.cost):.1f}" for i, p in enumerate(points))
    out.append(f'<polyline class="line" points="{places}"/>')
    every = max(1, math.ceil(len(points) / 9))
    for number, point in enumerate(points):
        first, last = _bounds(point)
        at = x(number)
        if point.mark:
            way = "up" if point.change_pct > 0 else "down"
            ends = f'y1="{top + upper}" y2="{top + height - lower}"'
            out.append(f'<line class="mark {way}" x1="{at:.1f}" x2="{at:.1f}" {ends}/>')
            out.append(
                f'<text class="{way}" stroke="none" x="{at + 4:.1f}" y="{top + upper - 4}">'
                f"{percent(point.change_pct / 100, sign=True)}</text>"
            )
        if last > first:
            out.append(f'<line class="bar" x1="{at:.1f}" x2="{at:.1f}" y1="{y(first):.1f}" y2="{y(last):.1f}"/>')
        title = f"{point.file}\n{point.kernel} {point.commit}\n{cost(point.cost)} {history.unit}"
        title += f", {counted(point.runs, 'run')}"
        if point.mark:
            title += f"\n{point.mark}"
        out.append(
            f'<circle class="dot" cx="{at:.1f}" cy="{y(point.cost):.1f}" r="4"><title>{_text(title)}</title></circle>'
        )
        if number % every == 0:
            label = point.commit[:10] or point.kernel or point.file
            anchor = "start" if number == 0 else "end" if number == len(points) - 1 else "middle"
            shift = (number // every % 2) * 18
            out.append(
                f'<text x="{at:.1f}" y="{top + height - lower + 20 + shift}" text-anchor="{anchor}">'
                f"{_text(label[:24])}</text>"
            )
    return "".join(out)


def _text(text: str) -> str:
    return escape("\n".join(safe(line) for line in text.split("\n")))

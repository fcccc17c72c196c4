"""Charts of the report page as inline SVG: the waterfall of categories, runs as points, the topology.

Colours are CSS classes, so they follow light, dark and print. Every chart has a title for screen readers, and the
page has its figures as a table too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nsprof.model.results import DeltaRow, DiffReport
from nsprof.render.flamegraph_text import clean, cost_text, delta_text, escape, per_noun
from nsprof.render.page_model import PointGroup, RunChart, TopologyPicture

__all__ = ["bare", "nice_ticks", "run_points", "topology", "value_text", "waterfall", "waterfall_steps"]

WIDTH = 900
_PREFIXED = frozenset({"", "ns", "cycles", "instructions", "misses", "lines", "count", "events"})
_SHOWN = 14  # categories with a bar of their own in the waterfall


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within low..high."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.9999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def value_text(value: float, unit: str) -> str:
    """A value with its unit: SI prefixes for event units, as it stands for units that have one (Mbit/s, %)."""
    if not math.isfinite(value):
        return "-"
    if unit in _PREFIXED or unit.partition("/")[0] in _PREFIXED:
        event, _, per = unit.partition("/")
        return cost_text(value, event, per)
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {clean(unit)}".rstrip()


def bare(value: float, unit: str) -> str:
    """The value alone where its unit stands beside it already, else with the event's unit (ns, us, ...)."""
    if _short(unit) != unit or unit in _PREFIXED:
        return value_text(value, _short(unit))
    return value_text(value, unit).removesuffix(clean(unit)).rstrip()


def _short(unit: str) -> str:
    """The unit without what it is divided by: enough beside a value that has the whole."""
    event = unit.partition("/")[0]
    return event if event in _PREFIXED else unit


def _cut(text: str, room: int) -> str:
    text = clean(text)
    return text if len(text) <= room else text[: room - 1] + "…"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _open(height: float, title: str, kind: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" class="chart {kind}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    left: float
    right: float

    def __call__(self, value: float) -> float:
        return self.left + (value - self.low) / (self.high - self.low) * (self.right - self.left)


def _axis_marks(axis: _Axis, top: float, bottom: float, unit: str) -> str:
    parts = []
    widest = max(len(value_text(v, _short(unit))) for v in (axis.low, axis.high))
    count = int((axis.right - axis.left) / (7 * widest + 20))  # as many as have room for their words
    for tick in nice_ticks(axis.low, axis.high, max(1, min(5, count))):
        x = axis(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.0f}" y2="{bottom:.0f}" class="grid"/>')
        parts.append(_text(x, bottom + 15, value_text(tick, _short(unit)), "tick", "middle"))
    return "".join(parts)


def waterfall_steps(diff: DiffReport) -> list[DeltaRow]:
    """The category changes that get a bar: the largest by size, the others added up, what is not attributed."""
    rows = sorted((r for r in diff.categories if r.delta != 0), key=lambda r: -abs(r.delta))
    shown, others = rows[:_SHOWN], rows[_SHOWN:]

    def plain(name: str, delta: float) -> DeltaRow:
        return DeltaRow(name, "", "", 0.0, 0.0, delta)

    if others:
        shown.append(plain(f"{len(others)} smaller categories", sum(r.delta for r in others)))
    if abs(diff.not_attributed) > 1e-9 * max(abs(diff.total.base), abs(diff.total.new), 1e-12):
        shown.append(plain("not attributed", diff.not_attributed))
    return shown


def waterfall(diff: DiffReport) -> str:
    """From the base total to the new total, one floating bar a category; "" when there is nothing to show."""
    unit, per = diff.measure.unit, per_noun(diff.measure)
    steps = waterfall_steps(diff)
    if not steps:
        return ""
    levels = [diff.total.base]
    for step in steps:
        levels.append(levels[-1] + step.delta)
    low, high = min(*levels, diff.total.new), max(*levels, diff.total.new)
    spread = (high - low) or abs(high) or 1.0
    start = max(0.0, low - 0.25 * spread) if low > 1.5 * spread else 0.0
    ends = [cost_text(value, unit, per) for value in (diff.total.base, diff.total.new)]
    axis = _Axis(start, high + 0.02 * spread, 230, WIDTH - 20 - 7.2 * max(map(len, ends)))
    top, row = 8, 24
    height = top + row * (len(steps) + 2) + 40
    bottom = top + row * (len(steps) + 2) + 4
    parts = [_open(height, f"Change by category from {diff.base_title} to {diff.new_title}", "waterfall")]
    parts.append(_axis_marks(axis, top, bottom, unit))

    def bar(n: int, words: str, ends: tuple[float, float], value: str, kind: str) -> None:
        y = top + n * row
        x1, x2 = sorted((axis(ends[0]), axis(ends[1])))
        parts.append(_text(220, y + 16, _cut(words, 32), "label", "end"))
        parts.append(
            f'<rect x="{x1:.1f}" y="{y + 3}" width="{max(x2 - x1, 1.5):.1f}" height="{row - 6}" class="{kind}"/>'
        )
        parts.append(_text(x2 + 6, y + 16, value, "value"))

    bar(0, diff.base_title, (start, diff.total.base), ends[0], "total")
    for n, step in enumerate(steps, 1):
        kind = "none" if step.verdict == "~" else "more" if step.delta > 0 else "less"
        bar(n, step.name, (levels[n - 1], levels[n]), delta_text(step.delta, unit), kind)
        y = top + n * row
        x = axis(levels[n - 1])
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + 3}" class="joint"/>')
    bar(len(steps) + 1, diff.new_title, (start, diff.total.new), ends[1], "total")
    if start > 0:
        parts.append(_text(230, height - 4, f"The axis begins at {cost_text(start, unit)}, not at zero.", "tick"))
    return "".join(parts) + "</svg>"


def _points_row(group: PointGroup, axis: _Axis, y: float, unit: str) -> str:
    parts = [_text(180, y + 5, _cut(group.label, 26), "label", "end")]
    if group.interval is not None:
        a, b = axis(group.interval.low), axis(group.interval.high)
        parts.append(f'<rect x="{a:.1f}" y="{y - 9}" width="{max(b - a, 1):.1f}" height="18" class="interval"/>')
    for n, value in enumerate(group.values):
        if math.isfinite(value):
            shift = ((n * 5) % 7 - 3) * 2.0  # apart, so that equal runs do not hide one another
            place = f'cx="{axis(value):.1f}" cy="{y + shift:.1f}" r="4"'
            tip = escape(f"run {n + 1}: {value_text(value, unit)}")
            parts.append(f'<circle {place} class="point"><title>{tip}</title></circle>')
    if math.isfinite(group.centre):
        x = axis(group.centre)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 12}" y2="{y + 12}" class="centre"/>')
        words = value_text(group.centre, unit)
        if group.interval is not None:
            words += f" [{bare(group.interval.low, unit)}, {bare(group.interval.high, unit)}]"
        parts.append(_text(WIDTH - 10, y + 5, words, "value", "end"))
    return "".join(parts)


def run_points(chart: RunChart) -> str:
    """Every run as a point, with the interval behind and the centre as a line; "" without any value."""
    values = [v for g in chart.groups for v in g.values if math.isfinite(v)]
    if not values:
        return ""
    for group in chart.groups:
        values += [group.interval.low, group.interval.high] if group.interval is not None else []
        values += [group.centre] if math.isfinite(group.centre) else []
    low, high = min(values), max(values)
    pad = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    if 0 <= low < 0.4 * high:
        low, pad_low = 0.0, 0.0
    else:
        pad_low = pad
    axis = _Axis(low - pad_low, high + pad, 195, WIDTH - 290)
    row, top = 34, 6
    bottom = top + row * len(chart.groups)
    title = f"{chart.title} of every run ({chart.unit})" if chart.unit else f"{chart.title} of every run"
    parts = [_open(bottom + 24, title, "points"), _axis_marks(axis, top, bottom, chart.unit)]
    for n, group in enumerate(chart.groups):
        parts.append(_points_row(group, axis, top + row * n + row / 2, chart.unit))
    return "".join(parts) + "</svg>"


def _box_places(picture: TopologyPicture) -> tuple[list[tuple[float, float, float, float]], float]:
    count = len(picture.boxes)
    columns = min(count, 3)
    gap = 60
    width = (WIDTH - 4 - gap * (columns - 1)) / columns
    places, y, tallest = [], 2.0, 0.0
    for n, box in enumerate(picture.boxes):
        if n and n % columns == 0:
            y, tallest = y + tallest + 30, 0.0
        height = 50.0 + 34 * len(box.lines) + (16 if box.cost else 0)
        places.append((2 + (n % columns) * (width + gap), y, width, height))
        tallest = max(tallest, height)
    return places, y + tallest + 4


def topology(picture: TopologyPicture) -> str:
    """Namespaces as boxes, devices inside, wires and pairs between; "" without boxes."""
    if not picture.boxes:
        return ""
    places, height = _box_places(picture)
    parts = [_open(height, "Topology: " + ", ".join(clean(b.title) for b in picture.boxes), "topology")]
    ends: dict[tuple[int, int], tuple[float, float, float]] = {}
    for n, (box, (x, y, width, high)) in enumerate(zip(picture.boxes, places, strict=True)):
        room = int((width - 20) / 6.6)
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{high:.1f}" rx="8" class="space"/>')
        role = f" ({box.role})" if box.role and box.role != box.title else ""
        parts.append(_text(x + 10, y + 20, _cut(box.title + role, int(room * 0.9)), "boxtitle"))
        inner = y + 32
        if box.cost:
            parts.append(_text(x + 10, y + 37, _cut(box.cost, room), "label"))
            inner += 16
        for k, (name, detail) in enumerate(box.lines):
            top = inner + 34 * k
            parts.append(
                f'<rect x="{x + 8:.1f}" y="{top:.1f}" width="{width - 16:.1f}" height="30" rx="4" class="device"/>'
            )
            spent = box.spent[k] if k < len(box.spent) else ""
            parts.append(_text(x + 14, top + 13, _cut(name, room - 2 - len(spent)), "devname"))
            if spent:
                parts.append(_text(x + width - 14, top + 13, spent, "tick", "end"))
            parts.append(_text(x + 14, top + 25, _cut(detail, int(room * 1.12) - 2), "tick"))
            ends[n, k] = (x + 8, x + width - 8, top + 15)
    for link in picture.links:
        if link.one in ends and link.other in ends:
            parts.append(_link(ends[link.one], ends[link.other]))
    return "".join(parts) + "</svg>"


def _link(one: Sequence[float], other: Sequence[float]) -> str:
    """A curve from one device's side to the other's; both on the right where they lie in one column."""
    if one[0] > other[0]:
        one, other = other, one
    x1, y1 = one[1], one[2]
    x2, y2 = (other[0], other[2]) if other[0] > one[1] else (other[1], other[2])
    reach = 40 if other[0] > one[1] else 30
    c2 = x2 - reach if other[0] > one[1] else x2 + reach
    return (
        f'<path d="M{x1:.1f} {y1:.1f} C{x1 + reach:.1f} {y1:.1f} {c2:.1f} {y2:.1f} {x2:.1f} {y2:.1f}" class="wire"/>'
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="3" class="plug"/>'
        f'<circle cx="{x2:.1f}" cy="{y2:.1f}" r="3" class="plug"/>'
    )

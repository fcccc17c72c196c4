"""The flame graph as one self-contained SVG file: a picture for every viewer, interactive where scripts run.

The file holds the drawing itself (frames of a pixel's fraction and more), the tree as data to a much finer grain, and
the script that draws it anew when zoomed, searched or resized. It asks nothing of any network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import numpy as np

from nsprof.model.profile import FrameKind
from nsprof.model.results import FlameTree
from nsprof.render.flamegraph_colours import GREY, HUES, LESS, MIDDLE, MORE, STRIPES, fills, rgb
from nsprof.render.flamegraph_data import FrameTable, view_data
from nsprof.render.flamegraph_layout import NARROW, SIZE_BY, Drawing, fold, judged, layout
from nsprof.render.flamegraph_text import (
    clean,
    cost_text,
    counted_at,
    delta_text,
    escape,
    per_noun,
    percent,
    script_json,
)
from nsprof.units import counted

__all__ = [
    "GONE_PATTERN",
    "FlameOptions",
    "asset",
    "fold_note",
    "legend_html",
    "render_svg",
    "summary",
]

ROW = 17  # pixels a frame, its gap included
CHAR = 7.23  # width of a character of the 12 px monospace label font
NOTES = 6  # notes that are shown above the picture; the others are told when pointed at
SEEN = 0.4  # frames narrower than so many pixels are not drawn until zoomed into

GONE_PATTERN = (
    '<pattern id="nsprof-gone" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="2" height="6" fill="#fff" fill-opacity=".75"/></pattern>'
)


@dataclass(frozen=True, slots=True)
class FlameOptions:
    """How a flame graph is drawn.

    `width` in pixels where no script adapts it; `size_by` says whose cost is a frame's width ("new", "base" or
    "both", see docs/flamegraph.md); `root_on_top` for reversed trees; frames narrower than `grain` pixels are
    folded away, and all beyond `limit` frames; `title` replaces the tree's own.
    """

    width: int = 1200
    size_by: str = "new"
    root_on_top: bool = False
    grain: float = 0.05
    limit: int = 60_000
    title: str = ""

    def __post_init__(self) -> None:
        if self.size_by not in SIZE_BY:
            raise ValueError(f"size_by is one of {', '.join(SIZE_BY)}, not {self.size_by!r}")
        if not 300 <= self.width <= 20_000:
            raise ValueError(f"width is 300 to 20000 pixels, not {self.width}")


def asset(name: str) -> str:
    """The text of a file of nsprof/render/assets."""
    return resources.files("nsprof.render").joinpath("assets", name).read_text(encoding="utf-8")


def summary(tree: FlameTree, new: float, base: float) -> str:
    """One line: the unit, the totals, the change."""
    measure = tree.measure
    per, unit = per_noun(measure), measure.unit
    modelled = "" if measure.kind == "sampled" else f", {measure.kind}"
    place = counted_at(measure)
    where = f" ({place})" if place else ""
    if not tree.differential:
        return (
            f"Total {cost_text(new, unit, per)}; {measure.event}{modelled}, widths in {measure.label or unit}{where}."
        )
    ratio = f", {new / base:.2f}x" if base > 0 and new > 0 else ""
    sides = (
        f"{tree.base_title or 'base'} {cost_text(base, unit, per)}, {tree.title or 'new'} {cost_text(new, unit, per)}"
    )
    return (
        f"{sides}: "
        f"{delta_text(new - base, unit, per)}{ratio}; {measure.event}{modelled}, in {measure.label or unit}{where}."
    )


def fold_note(frames: int, share: float, threshold: float) -> str:
    """What was folded away, in words; "" if nothing was."""
    if not frames:
        return ""
    return (
        f"{counted(frames, 'frame')} narrower than {100 * threshold:.2g} % of the whole drawn together as "
        f"'narrower frames': {percent(share, 2)} of the width."
    )


_SIZES = {
    "new": "A frame is as wide as its cost on the new side; frames that are gone keep their base width (hatched).",
    "base": "A frame is as wide as its cost on the base side; frames that base lacks keep their new width.",
    "both": "A frame is as wide as the larger of both sides' self costs, added up.",
}


def _notes(tree: FlameTree, options: FlameOptions) -> list[str]:
    if not tree.differential:
        return []
    notes = [_SIZES[options.size_by]]
    if not judged(tree) and tree.measure.kind == "sampled":
        notes.append("Grey: within the counting noise of its samples (99 %); too few runs for a test over runs.")
    elif judged(tree):
        notes.append("Grey: a change that is not significant over the runs, or within counting noise.")
    return notes


def _wrap(text: str, room: int) -> Iterator[str]:
    """Lines of at most `room` characters (longer words stay whole), as assets/flame_svg.js does it."""
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > room:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    if line:
        yield line


def _head_lines(tree: FlameTree, options: FlameOptions, first: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Title and total, then what the reader must know of the data, then how to read the picture. Notes beyond NOTES
    are one line, of kind "more", whose tooltip has them (with the line itself before the first newline)."""
    notes = [clean(note) for note in dict.fromkeys(tree.notes) if note]
    kept = len(notes) if len(notes) <= NOTES + 1 else NOTES
    head = [*first, *(("line", note) for note in notes[:kept])]
    if notes[kept:]:
        verb = "diff" if tree.differential else "report"
        line = f"... and {len(notes) - kept} more notes: point here, or see nsprof {verb}"
        head.append(("more", "\n".join([line, *notes[kept:]])))
    return head + [("line", note) for note in _notes(tree, options)]


def _head(head: list[tuple[str, str]], width: int) -> tuple[str, int]:
    room = int((width - 24) // 6.4)
    rows, y = [], 8
    for kind, text in head:
        if kind == "more":
            y += 17
            line, _, rest = text.partition("\n")
            rows.append(f'<text x="12" y="{y}" class="line more">{escape(line)}<title>{_lines(rest)}</title></text>')
            continue
        for line in _wrap(text, int(room * 0.72) if kind == "title" else room):
            y += 22 if kind == "title" else 17
            rows.append(f'<text x="12" y="{y}" class="{kind}">{escape(line)}</text>')
    return "".join(rows), y + 8


def _lines(text: str) -> str:
    return "\n".join(escape(line) for line in text.split("\n"))


def _legend_items(tree: FlameTree) -> list[tuple[str, str]]:
    """(SVG of the swatch, words) of everything the colours say in this graph."""

    def box(fill: str, extra: str = "") -> str:
        return f'<rect width="22" height="12" fill="{fill}" stroke="#888" stroke-width=".5"/>{extra}'

    kinds = {int(k) for k in np.unique(tree.kind)}
    items: list[tuple[str, str]] = []
    if tree.differential:
        steps = [(-1.0, LESS), (-0.5, LESS), (0.0, MIDDLE), (0.5, MORE), (1.0, MORE)]
        bar = "".join(
            f'<rect x="{22 * n}" width="22" height="12" fill="{rgb(MIDDLE, end, abs(s))}"/>'
            for n, (s, end) in enumerate(steps)
        )
        items.append(
            (
                bar + '<rect width="110" height="12" fill="none" stroke="#888" stroke-width=".5"/>',
                "less - same - more",
            )
        )
        items.append((box(rgb(GREY, GREY, 0)), "not significant"))
        items.append((box(rgb(LESS, LESS, 0), '<rect width="22" height="12" fill="url(#nsprof-gone)"/>'), "gone"))
        items.append((box(rgb(MORE, MORE, 0), '<rect width="3" height="12" class="added"/>'), "not in base"))
    names = {
        FrameKind.KERNEL: "kernel",
        FrameKind.USER: "user",
        FrameKind.BPF: "BPF",
        FrameKind.PROFILER: "nsprof itself",
    }
    for kind, name in names.items():
        if kind not in kinds or (tree.differential and kind not in STRIPES):
            continue
        fill = rgb(*HUES[kind], 0.5) if not tree.differential else rgb(MIDDLE, MIDDLE, 0)
        stripe = f'<rect width="22" height="2.5" fill="{STRIPES[kind]}"/>' if kind in STRIPES else ""
        items.append((box(fill, stripe), name))
    if NARROW in kinds:
        items.append((box(rgb(*HUES[NARROW], 0)), "narrower frames"))
    return items


def _legend(tree: FlameTree, width: int, y: int) -> tuple[str, int]:
    parts, x = [], 12
    for swatch, words in _legend_items(tree):
        left = 116 if "110" in swatch else 28
        need = left + int(len(words) * 6.6) + 18
        if x > 12 and x + need > width - 10:
            x, y = 12, y + 18
        parts.append(
            f'<g data-width="{need}" transform="translate({x},{y + 2})">{swatch}'
            f'<text x="{left}" y="10" class="line">{escape(words)}</text></g>'
        )
        x += need
    return "".join(parts), y + 22


def legend_html(tree: FlameTree) -> str:
    """The legend for a page: the same swatches as in the file, as HTML."""
    parts = []
    for swatch, words in _legend_items(tree):
        wide = 110 if "110" in swatch else 22
        picture = f'<svg width="{wide}" height="12" aria-hidden="true">{swatch}</svg>'
        parts.append(f'<span class="item">{picture} {escape(words)}</span>')
    return "".join(parts)


def _fit(name: str, width: float) -> str:
    room = int((width - 6) // CHAR)
    if room < 3:
        return ""
    return name if len(name) <= room else name[: room - 1] + "…"


def _title_text(drawing: Drawing, row: int, name: str) -> str:
    """The tooltip of viewers without scripts."""
    tree = drawing.tree
    unit, per = tree.measure.unit, per_noun(tree.measure)
    new, base = float(drawing.cost_new[row]), float(drawing.cost_base[row])
    whole = float(drawing.cost_new[0])
    share = percent(new / whole if whole else 0.0)
    text = f"{name}: {cost_text(new, unit, per)} ({share}), {drawing.ticks_new[row]:,.0f} samples"
    if not tree.differential:
        return text
    return f"{text}; base {cost_text(base, unit, per)}, delta {delta_text(new - base, unit, per)}"


def _frames(drawing: Drawing, options: FlameOptions, top: int) -> str:
    """The frames as SVG; what is narrower than SEEN pixels is left to the script."""
    tree = drawing.tree
    names = [clean(text) for text in tree.strings]
    scale = (options.width - 20) / drawing.total if drawing.total > 0 else 0.0
    rows = np.flatnonzero(drawing.width * scale >= SEEN)
    deepest = int(drawing.depth.max()) if len(drawing) else 0
    parts = []
    for row, fill in zip(rows.tolist(), fills(drawing, names, rows), strict=True):
        node = drawing.source[row]
        kind, name = int(tree.kind[node]), names[int(tree.name[node])]
        x, width = float(drawing.x[row]) * scale, float(drawing.width[row]) * scale
        depth = int(drawing.depth[row])
        y = top + (depth if options.root_on_top else deepest - depth) * ROW
        shown = max(width - (0.6 if width > 3 else 0), 0.3)
        place = f'x="{x:.2f}" y="{y}" width="{shown:.2f}" height="{ROW - 1}"'
        if width >= 2:
            tip = escape(_title_text(drawing, row, name))
            parts.append(f'<rect {place} fill="{fill}" class="f"><title>{tip}</title></rect>')
        else:
            parts.append(f'<rect {place} fill="{fill}" class="f"/>')
        if drawing.gone[row] and kind != NARROW and width > 1:
            parts.append(f'<rect {place} fill="url(#nsprof-gone)"/>')
        if drawing.added[row] and kind != NARROW and width > 10:
            parts.append(f'<rect x="{x:.2f}" y="{y}" width="3" height="{ROW - 1}" class="added"/>')
        if kind in STRIPES and width > 2:
            parts.append(f'<rect x="{x:.2f}" y="{y}" width="{shown:.2f}" height="2.5" fill="{STRIPES[kind]}"/>')
        label = _fit(name, width)
        if label:
            narrow = " narrow" if kind == NARROW else ""
            parts.append(f'<text x="{x + 4:.2f}" y="{y + 12}" class="name{narrow}">{escape(label)}</text>')
    return "".join(parts)


def render_svg(tree: FlameTree, options: FlameOptions | None = None) -> str:
    """The whole SVG file of a tree. Raises nothing for any names; an empty tree gives a picture that says so."""
    options = options or FlameOptions()
    folded = fold(tree, size_by=options.size_by, min_share=options.grain / (options.width - 20), limit=options.limit)
    drawing = layout(folded.tree, size_by=options.size_by)
    new = float(drawing.cost_new[0]) if len(drawing) else 0.0
    base = float(drawing.cost_base[0]) if len(drawing) else 0.0
    title = clean(
        options.title
        or (f"{tree.title} against {tree.base_title}" if tree.differential else tree.title)
        or "Flame graph"
    )
    total = clean(summary(tree, new, base)) if drawing.total > 0 else "There are no samples to draw."
    head = _head_lines(tree, options, [("title", title), ("line", total)])
    note = fold_note(folded.frames, folded.share, folded.threshold)
    if note:
        head.append(("line", note))
    head_svg, y = _head(head, options.width)
    legend_svg, y = _legend(folded.tree, options.width, y)
    deepest = int(drawing.depth.max()) if len(drawing) else 0
    height = y + 8 + (deepest + 1) * ROW + 30
    table = FrameTable()
    view = view_data(drawing, table, size_by=options.size_by)
    data = {"width": options.width, "flip": options.root_on_top, "head": head, "views": [view], **table.data()}
    size = f'viewBox="0 0 {options.width} {height}" width="{options.width}" height="{height}"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} class="nsprof-flame" aria-label="{escape(title)}">\n'
        f"<title>{escape(title)}</title>\n<style>{asset('flame.css')}</style>\n<defs>{GONE_PATTERN}</defs>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n<g id="nsprof-head">{head_svg}</g>\n'
        f'<g id="nsprof-legend">{legend_svg}</g>\n'
        f'<g id="nsprof-frames" transform="translate(10,0)">{_frames(drawing, options, y + 8)}</g>\n'
        f'<text id="nsprof-status" class="line" x="12" y="{height - 10}" role="status" aria-live="polite"></text>\n'
        f'<script type="application/json" id="nsprof-data">{script_json(data)}</script>\n'
        f"<script><![CDATA[\n{asset('flame.js')}\n{asset('flame_svg.js')}]]></script>\n</svg>\n"
    )

"""The flame graphs of a page: one table of frames for all of them, and as many as fit into the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsprof.render.flamegraph import GONE_PATTERN, fold_note, legend_html
from nsprof.render.flamegraph_data import FrameTable, view_data
from nsprof.render.flamegraph_layout import fold, layout
from nsprof.render.flamegraph_text import clean
from nsprof.render.page_model import FlameView, PageContent

__all__ = ["FRAME_BUDGET", "Flames", "flame_graphs"]

#: Frames of all views of a page together; keeps the file under 3 MB (about 20 bytes a frame).
FRAME_BUDGET = 80_000
#: Frames without which a further comparison's flame graphs say too little to be there.
_LEAST = 4_000


@dataclass(frozen=True, slots=True)
class Flames:
    """The flame graphs of one comparison: their place in the page and the numbers of their views in the data;
    `left_out`: there are some, but they do not fit."""

    html: str = ""
    views: tuple[int, ...] = ()
    left_out: bool = False


def flame_graphs(contents: Sequence[PageContent]) -> tuple[list[Flames], dict[str, Any] | None]:
    """The flame graphs of every comparison, and the data of all their views (None where there are none).

    The first comparison may have half of the budget (alone: all), the others share what is left in their order;
    those whose part would be too small get none.
    """
    table = FrameTable()
    views: list[dict[str, Any]] = []
    known: dict[Any, int] = {}
    made: list[Flames] = []
    left = FRAME_BUDGET
    for number, content in enumerate(contents):
        drawn = [view for view in content.views if len(view.tree)]
        others = len(contents) - number - 1
        budget = min(left, max(_LEAST, left // (others + 1 if number else 1 + bool(others))))
        if number and drawn and budget < _LEAST:
            made.append(Flames(left_out=True))
            continue
        one, used = _flames(drawn, budget, table, views, known)
        left -= used
        made.append(one)
    return made, {"views": views, **table.data()} if views else None


def _flames(
    drawn: Sequence[FlameView], budget: int, table: FrameTable, views: list[dict[str, Any]], known: dict[Any, int]
) -> tuple[Flames, int]:
    """One comparison's graphs and how many frames they added; a tree that is in the file already adds none."""
    if not drawn:
        return Flames(), 0
    numbers, legends, used = [], {True: "", False: ""}, 0
    # The first views (the whole, and the difference) get the finer grain; splits share what is left.
    first = budget // 2 if len(drawn) > 2 else budget // len(drawn)
    rest = (budget - 2 * (budget // 4)) // max(1, len(drawn) - 2)
    for n, view in enumerate(drawn):
        tree = view.tree
        key = (id(tree.self_new), id(tree.self_base), tree.notes, view.label)
        if key in known:
            numbers.append(known[key])
            legends[tree.differential] = legends[tree.differential] or legend_html(tree)
            continue
        limit = first if len(drawn) <= 2 else budget // 4 if n < 2 else rest
        folded = fold(tree, min_share=0.00004, limit=limit // 2)
        one = view_data(layout(folded.tree), table, label=view.label, units=view.units)
        said = (*tree.notes, fold_note(folded.frames, folded.share, folded.threshold))
        one["note"] = clean(" ".join(note if note.endswith(".") else f"{note}." for note in said if note))
        numbers.append(len(views))
        known[key] = len(views)
        views.append(one)
        used += len(one["d"])
        legends[tree.differential] = legends[tree.differential] or legend_html(folded.tree)
    return Flames(_place(legends), tuple(numbers)), used


def _place(legends: dict[bool, str]) -> str:
    return (
        '<p class="note">Click or Enter zooms, Escape resets, arrows walk, / searches. A frame is as wide as its '
        "cost; in the differential graph blue is less, vermilion more, grey not significant, hatched gone.</p>"
        '<div class="flamebox nsprof-flame"><div class="controls" id="flame-controls"></div>'
        f'<div class="legend" data-diff="no">{legends[False]}</div>'
        f'<div class="legend" data-diff="yes">{legends[True]}</div>'
        '<svg id="flame-svg" class="nsprof-flame" width="100%" height="300" aria-label="Flame graph">'
        f'<defs>{GONE_PATTERN}</defs><g id="flame-frames"></g></svg>'
        '<p id="flame-status" role="status" aria-live="polite"></p><p id="flame-note" class="note"></p></div>'
        "<noscript><p>The flame graph needs scripts; the tables below do not.</p></noscript>"
    )

"""The tree as the script reads it: compact JSON columns in depth-first order.

    {"s": strings, "f": [[name, module, kind], ...], "views": [{"d": depths, "f": frames, "n": new, "b": base,
     "t": ticks new, "u": ticks base, "g": change of the path shown, "units": [...],
     "findings": {frame: {...}}, ...}, ...]}

Columns hold what a node has by itself; the script adds up. Names are already `clean`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.results import FlameTree, Measure
from nsprof.render.flamegraph_layout import Drawing
from nsprof.render.flamegraph_text import clean, number, per_noun

__all__ = ["FrameTable", "UnitScale", "view_data"]


@dataclass(frozen=True, slots=True)
class UnitScale:
    """Another unit for the same tree: its costs times `factor_new` and `factor_base` are `unit` per `per`."""

    label: str
    unit: str
    per: str
    factor_new: float
    factor_base: float


class FrameTable:
    """Strings and frames shared by all views of a file, numbered as they come."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {}
        self.frames: dict[tuple[int, int, int], int] = {}

    def numbers(self, tree: FlameTree) -> NDArray[np.int64]:
        """The frame number of every node of the tree."""
        width = len(tree.strings)
        packed = (tree.name.astype(np.int64) * width + tree.module) * 256 + tree.kind
        distinct, inverse = np.unique(packed, return_inverse=True)
        known: dict[int, int] = {}

        def string(index: int) -> int:
            if index not in known:
                known[index] = self.strings.setdefault(clean(tree.strings[index]), len(self.strings))
            return known[index]

        codes = np.empty(len(distinct), np.int64)
        for place, value in enumerate(distinct.tolist()):
            pair, kind = divmod(value, 256)
            name, module = divmod(pair, width)
            key = (string(name), string(module), kind)
            codes[place] = self.frames.setdefault(key, len(self.frames))
        return np.asarray(codes[inverse], np.int64)

    def data(self) -> dict[str, Any]:
        """The table for the script."""
        return {"s": list(self.strings), "f": [list(frame) for frame in self.frames]}


def _column(values: NDArray[Any], digits: int) -> list[float | int]:
    return [0 if value == 0 else number(value, digits) for value in np.asarray(values, np.float64).tolist()]


def _findings(tree: FlameTree, nodes: NDArray[np.int64], frames: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    firsts = np.unique(frames, return_index=True)[1]
    for first in firsts.tolist():
        row = tree.findings.get(tree.strings[int(tree.name[nodes[first]])])
        if row is None:
            continue
        kept: dict[str, Any] = {"verdict": str(row.get("verdict", ""))}
        for key in ("q", "low", "high"):
            value = row.get(key)
            if value is not None and math.isfinite(value):
                kept[key] = number(float(value), 4)
        found[str(int(frames[first]))] = kept
    return found


def _unit(measure: Measure) -> dict[str, Any]:
    return {
        "label": clean(measure.label or measure.unit),
        "unit": clean(measure.unit),
        "per": clean(per_noun(measure)),
    }


def view_data(
    drawing: Drawing, table: FrameTable, *, label: str = "", size_by: str = "new", units: Sequence[UnitScale] = ()
) -> dict[str, Any]:
    """One view for the script; `units` are offered beside the tree's own."""
    tree, nodes = drawing.tree, drawing.source
    frames = table.numbers(tree)[nodes]
    view: dict[str, Any] = {
        "label": clean(label),
        "diff": tree.differential,
        "kind": tree.measure.kind,
        "sizeBy": size_by,
        "d": drawing.depth.tolist(),
        "f": frames.tolist(),
        "n": _column(tree.self_new[nodes], 5),
        "t": _column(tree.samples_new[nodes], 6),
        "units": [{**_unit(tree.measure), "fn": 1, "fb": 1}],
        "findings": _findings(tree, nodes, frames) if tree.differential else {},
    }
    if tree.differential:
        view["b"] = _column(tree.self_base[nodes], 5)
        view["u"] = _column(tree.samples_base[nodes], 6)
        if tree.shown is not None:
            view["g"] = tree.shown[nodes].astype(int).tolist()
    for scale in units:
        view["units"].append(
            {
                "label": clean(scale.label),
                "unit": clean(scale.unit),
                "per": clean(scale.per),
                "fn": number(scale.factor_new, 9),
                "fb": number(scale.factor_base, 9),
            }
        )
    return view

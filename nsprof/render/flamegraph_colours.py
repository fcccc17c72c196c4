"""Colours of frames, chosen so that readers with any kind of colour vision can tell them apart.

Plain graphs tell the kind of code by hue (kernel amber, user blue, BPF green, profiler violet) with a lightness that
depends on the name. Differential graphs run from blue (less) through white to vermilion (more), the ends taken near
Okabe and Ito's colour-blind safe blue and vermilion, all light enough for black text (contrast over 5:1).
assets/flame.js draws with the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import FrameKind
from nsprof.render.flamegraph_layout import NARROW, Drawing

__all__ = ["GREY", "HUES", "LESS", "MIDDLE", "MORE", "STRIPES", "fills", "name_shade", "rgb"]

RGB = tuple[int, int, int]
HUES: dict[int, tuple[RGB, RGB]] = {
    FrameKind.UNKNOWN: ((188, 188, 188), (212, 212, 212)),
    FrameKind.KERNEL: ((244, 156, 66), (253, 208, 130)),
    FrameKind.USER: ((116, 178, 224), (170, 214, 242)),
    FrameKind.BPF: ((90, 190, 160), (158, 224, 200)),
    FrameKind.PROFILER: ((188, 168, 216), (214, 200, 232)),
    NARROW: ((228, 228, 228), (228, 228, 228)),
}
MIDDLE, MORE, LESS, GREY = (236, 236, 228), (224, 102, 31), (67, 147, 195), (194, 194, 198)
#: A line at the foot of frames that are not kernel code, in both kinds of graph.
STRIPES: dict[int, str] = {FrameKind.USER: "#0b5fa5", FrameKind.BPF: "#00745a", FrameKind.PROFILER: "#6b4ba3"}


def name_shade(name: str) -> float:
    """A number in 0..1 that depends on the name only, so that a function has one colour in every picture."""
    value = 7
    for character in name:
        value = (value * 31 + ord(character)) % 65521
    return value / 65520


def rgb(low: RGB, high: RGB, share: float) -> str:
    """The colour `share` of the way from one to another, as CSS writes it."""
    # floor(x + 0.5) as JavaScript's Math.round does it; Python's round() would take halves to even.
    return (
        "rgb(" + ",".join(str(int(np.floor(a + (b - a) * share + 0.5))) for a, b in zip(low, high, strict=True)) + ")"
    )


def fills(drawing: Drawing, names: list[str], rows: NDArray[np.int64]) -> list[str]:
    """Fill colours of some rows of a drawing; `names` are the tree's strings as shown."""
    tree = drawing.tree
    shades: dict[int, float] = {}
    colours = []
    for row in rows.tolist():
        node = drawing.source[row]
        kind, string = int(tree.kind[node]), int(tree.name[node])
        if not tree.differential or kind == NARROW:
            if string not in shades:
                shades[string] = name_shade(names[string])
            colours.append(rgb(*HUES.get(kind, HUES[0]), shades[string]))
        elif drawing.grey[row]:
            colours.append(rgb(GREY, GREY, 0))
        else:
            shade = float(drawing.shade[row])
            colours.append(rgb(MIDDLE, LESS if shade < 0 else MORE, abs(shade)))
    return colours

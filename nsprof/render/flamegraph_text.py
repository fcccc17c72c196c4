"""Names as data: what comes out of kernels, files and processes, made harmless for SVG, HTML and scripts.

A symbol, comm, device or namespace name may hold anything. Three things are done, always in this order: characters
that act on the reader's eyes or terminal are written out (`clean`), markup is escaped (`escape`), and data for a
script goes through `script_json`, which can neither close its element nor start another.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any
from xml.sax.saxutils import escape as _xml_escape

from nsprof.model.results import Measure
from nsprof.units import DENOMINATOR_NOUNS, OWN_COUNT, OWN_UNITS, format_quantity

__all__ = [
    "clean",
    "cost_text",
    "counted_at",
    "delta_text",
    "escape",
    "number",
    "per_noun",
    "percent",
    "quantity",
    "script_json",
]

# C0 and C1 controls (ANSI escapes among them), zero-width and bidi marks, line separators, lone surrogates (what
# surrogateescape makes of non-UTF-8 bytes), noncharacters that XML forbids, tags and interlinear marks.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def _spell(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(name: str) -> str:
    """The name with every character that cannot be seen, or that moves others, spelled as an escape (`\\x1b`)."""
    return name if name.isascii() and name.isprintable() else _UNSEEN.sub(_spell, name)


def escape(name: str) -> str:
    """`clean`, then escaped for text and for double-quoted attributes of SVG and HTML."""
    return _xml_escape(clean(name), {'"': "&quot;", "'": "&#39;"})


def script_json(data: Any) -> str:
    """JSON for a `<script type="application/json">` of HTML or SVG: no character in it is markup."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def number(value: float, digits: int = 5) -> float | int:
    """`value` with so many significant digits, as short as JSON can hold it; nan and infinity become 0."""
    if not math.isfinite(value) or value == 0:
        return 0
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def per_noun(measure: Measure) -> str:
    """What stands after the slash: "transaction", "KB"; "" for totals and for shares, whose unit is % already."""
    return "" if measure.per == "share" else DENOMINATOR_NOUNS.get(measure.per, measure.per)


def counted_at(measure: Measure) -> str:
    """Where the units were counted: skbs and segments at a device, the workload's own units by its tool. "" without
    a unit, or with one that needs no place."""
    if measure.per not in OWN_UNITS or measure.reference.endswith(OWN_COUNT):
        return measure.reference
    return f"the workload's {OWN_COUNT}"


#: Units as they are written where the event's own word reads badly behind a number.
UNIT_WORDS = {"count": "events"}


def quantity(value: float, unit: str) -> str:
    """`format_quantity`, but a unit that is a word keeps apart from its prefix: 1,697 instructions, 2.28 M lines."""
    unit = UNIT_WORDS.get(unit, unit)
    if len(unit) <= 2 or not math.isfinite(value):
        return format_quantity(value, unit)
    number = f"{value:,.0f}" if 100 <= abs(value) < 1e6 else format_quantity(value)
    return f"{number} {unit}"


def cost_text(value: float, unit: str, per: str = "") -> str:
    """A unit cost for people: `1.24 us/transaction`."""
    text = quantity(value, unit)
    return f"{text}/{per}" if per and text != "-" else text


def delta_text(value: float, unit: str, per: str = "") -> str:
    """A difference, always with its sign: `+1.24 us/transaction`."""
    text = cost_text(value, unit, per)
    return text if value < 0 or math.isnan(value) else f"+{text}"


def percent(share: float, digits: int = 1) -> str:
    """A share (0..1) as `12.3 %`; "-" for nan."""
    return "-" if math.isnan(share) else f"{100 * share:.{digits}f} %"

"""Units, and how they are written for people.

A unit cost is `cost / denominator`: the cost in an event's unit (ns, cycles, instructions, lines, ...), the
denominator one of `DENOMINATORS`. Nothing here multiplies a number by anything but a power of ten.
"""

from __future__ import annotations

import math
import re

__all__ = [
    "DENOMINATORS",
    "DENOMINATOR_NOUNS",
    "OWN_COUNT",
    "OWN_UNITS",
    "counted",
    "format_bytes",
    "format_count",
    "format_quantity",
    "parse_rate",
]

#: What a cost may be divided by. Keys of `Run.denominators`. "skb" and "segment" are never the same word: one
#: skb can carry many MTU-size segments. A KB is 1,024 bytes of payload received, as netperf counts.
DENOMINATORS = ("skb", "segment", "kb", "transaction", "datagram", "second", "operation")

#: How a denominator is called in prose ("ns/packet" is said for skb only where both are equal).
DENOMINATOR_NOUNS = {
    "skb": "skb",
    "segment": "segment",
    "kb": "KB",
    "transaction": "transaction",
    "datagram": "datagram",
    "second": "second",
    "operation": "operation",
}

#: Units that the workload's own tool counts; skbs and segments are counted at a device.
OWN_UNITS = ("kb", "transaction", "datagram", "operation")
#: How `Measure.reference` ends for them: "netperf's own count".
OWN_COUNT = "own count"

_RATE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)(bit|bps|)\s*$", re.IGNORECASE)
_PREFIX = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_rate(text: str) -> int:
    """Bits per second of a rate written as tc(8) writes it (`1gbit`, `500mbit`, `1.5Gbps` read as bits).

    Raises ValueError with the text when it is not a rate.
    """
    match = _RATE.match(text)
    if not match:
        raise ValueError(f"not a rate: {text!r} (write 1gbit, 500mbit, ...)")
    number, prefix, binary, _ = match.groups()
    base = 1024 if binary else 1000
    return round(float(number) * float(base) ** _PREFIX[prefix.lower()])


def format_quantity(value: float, unit: str = "") -> str:
    """Three significant digits and an SI prefix: 1234567, "ns" -> "1.23 ms"; times scale ns -> us -> ms -> s."""
    if math.isnan(value):
        return "-"
    sign = "-" if value < 0 else ""
    value = abs(value)
    if unit == "ns":
        for name, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
            if value >= size * 0.9995:
                return f"{sign}{_three(value / size)} {name}"
        return f"{sign}{_three(value)} ns"
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size * 0.9995:
            return f"{sign}{_three(value / size)} {prefix}{unit}".rstrip()
    return f"{sign}{_three(value)} {unit}".rstrip()


def _three(value: float) -> str:
    if value == 0:
        return "0"
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def format_figure(value: float, *, sign: bool = False) -> str:
    """A unit cost with three to four digits: 1,234  56.7  0.123."""
    if math.isnan(value):
        return "-"
    size = abs(value)
    if size >= 1e7:
        text = format_quantity(size)
    elif size >= 99.95:
        text = f"{size:,.0f}"
    elif size >= 9.995:
        text = f"{size:.1f}"
    elif size >= 0.0005 or size == 0:
        text = f"{size:.2f}" if size >= 0.995 or size == 0 else f"{size:.3f}"
    else:
        text = f"{size:.1e}"
    minus = "-" if value < 0 else "+" if sign and value > 0 else ""
    return minus + text


def format_count(value: float) -> str:
    """A count with thousands separators."""
    return f"{value:,.0f}"


def format_bytes(value: float) -> str:
    """Bytes with a binary prefix: 1536 -> "1.50 KiB"."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def counted(number: int, noun: str) -> str:
    """A number of things in grammar: `1 run`, `1,234 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

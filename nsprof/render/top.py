"""The screen of `nsprof top`: a view as lines that fit any terminal, drawn on the alternate screen.

Lines are made by hand: a table of rich's costs ten times as much, every second.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from nsprof.escape import safe
from nsprof.units import format_quantity

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["FunctionLine", "Line", "Screen", "TopRow", "TopView", "draw", "painted", "plain_text"]

#: Pieces of one line: (text, style).
Line = list[tuple[str, str]]

_SMALLEST = (24, 5)


@dataclass(frozen=True, slots=True)
class TopRow:
    """One namespace and device. Shares are percent of one CPU; nan is unknown (not read, no packets)."""

    key: tuple[int, int, int]
    namespace: str
    device: str
    cpu: float
    softirq: float
    task: float
    user: float
    rx_skb_s: float = math.nan
    tx_skb_s: float = math.nan
    ns_per_skb: float = math.nan
    drops_s: float = math.nan

    @property
    def skb_s(self) -> float:
        """Both directions."""
        return self.rx_skb_s + self.tx_skb_s


@dataclass(frozen=True, slots=True)
class FunctionLine:
    """Self time of one function in the selected row: percent of one CPU, of the row, ns a skb, share that is late."""

    name: str
    cpu: float
    share: float
    ns_per_skb: float
    late: float


@dataclass(frozen=True, slots=True)
class TopView:
    """All of one screen: `head` are lines of facts, `alarm` those that must be seen, `foot` the last line."""

    head: tuple[str, ...]
    alarm: tuple[str, ...]
    rows: tuple[TopRow, ...]
    selected: int
    functions: tuple[FunctionLine, ...]
    title: str
    foot: str
    sort: str = "cpu"
    help: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    width: int
    sort: str
    need: int  # shown from this terminal width on


_COLUMNS = (
    _Column("CPU %", 7, "cpu", 0),
    _Column("softirq", 8, "softirq", 46),
    _Column("task", 7, "", 66),
    _Column("user", 7, "", 74),
    _Column("skb/s", 8, "rate", 54),
    _Column("rx/s", 8, "", 100),
    _Column("tx/s", 8, "", 108),
    _Column("ns/skb", 8, "cost", 60),
    _Column("drop/s", 8, "drops", 82),
)


def _figures(row: TopRow) -> tuple[str, ...]:
    return (
        f"{row.cpu:.1f}",
        f"{row.softirq:.1f}",
        f"{row.task:.1f}",
        f"{row.user:.1f}",
        format_quantity(row.skb_s),
        format_quantity(row.rx_skb_s),
        format_quantity(row.tx_skb_s),
        "-" if math.isnan(row.ns_per_skb) else f"{row.ns_per_skb:,.0f}",
        format_quantity(row.drops_s),
    )


def _fit(text: str, width: int) -> str:
    """Exactly `width` terminal cells: cut with an ellipsis or filled with spaces."""
    if width <= 0:
        return ""
    if text.isascii():
        return text.ljust(width) if len(text) <= width else text[: width - 1] + "…"
    from rich.cells import cell_len, set_cell_size

    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def draw(view: TopView, width: int, height: int) -> list[Line]:
    """The screen as at most `height` lines of at most `width` cells. Names are made harmless here."""
    if width < _SMALLEST[0] or height < _SMALLEST[1]:
        return [[(_fit("terminal too small", width), "bold")]][: max(height, 0)]
    lines: list[Line] = [[(_fit(safe(text), width), "bold" if n == 0 else "")] for n, text in enumerate(view.head)]
    lines += [[(_fit(safe(text), width), "bold red")] for text in view.alarm]
    lines = lines[: max(1, height - 4)]
    if view.help:
        lines += [[(_fit(text, width), "")] for text in view.help]
        return [*lines[: height - 1], [(_fit(view.foot, width), "reverse")]]
    room = height - len(lines) - 2  # the table's head and the foot
    below = 0 if room < 8 or not view.title else min(len(view.functions) + 1, max(4, room // 3))
    lines += _table(view, width, room - below)
    if below:
        lines.append([(_fit(safe(view.title), width), "bold")])
        lines += [_function(each, width) for each in view.functions[: below - 1]]
    lines += [[("", "")]] * (height - 1 - len(lines))
    return [*lines[: height - 1], [(_fit(safe(view.foot), width), "reverse")]]


def _table(view: TopView, width: int, room: int) -> list[Line]:
    columns = [(n, c) for n, c in enumerate(_COLUMNS) if width >= c.need]
    figures = sum(c.width for _, c in columns)
    names = width - figures
    device = min(18, names // 3)
    space = names - device
    head = _fit("NAMESPACE", space) + _fit("DEVICE", device)
    pieces: Line = [(head, "bold underline" if view.sort == "name" else "bold")]
    for _, column in columns:
        on = column.sort == view.sort
        pieces.append((column.head.rjust(column.width), "bold underline" if on else "bold"))
    lines: list[Line] = [pieces]
    first = max(0, min(view.selected - room + 1, len(view.rows) - room)) if room > 0 else 0
    for number, row in enumerate(view.rows[first : first + max(0, room)], first):
        chosen = number == view.selected
        name = _fit(safe(row.namespace), space - 1) + " " + _fit(safe(row.device), device - 1) + " "
        figures_text = _figures(row)
        text = "".join(figures_text[n].rjust(c.width)[: c.width] for n, c in columns)
        style = "reverse" if chosen else "dim" if row.cpu == 0 else ""
        lines.append([(_fit(name, names), style), (text, style)])
    if not view.rows and room > 0:
        lines.append([(_fit("  nothing to show", width), "dim")])
    return lines


def _function(line: FunctionLine, width: int) -> Line:
    figures = f"{line.cpu:7.1f}{line.share:7.1f}%"
    if width >= 60:
        cost = "-" if math.isnan(line.ns_per_skb) else f"{line.ns_per_skb:,.0f}"
        figures += f"{cost:>8}"
    if width >= 74:
        figures += f"{line.late:8.0f}%"
    return [(_fit("  " + safe(line.name), width - len(figures)), ""), (figures, "")]


def plain_text(view: TopView, width: int = 110) -> str:
    """The same without a screen: every row, no selection, no colour."""
    view = TopView(view.head, view.alarm, view.rows, -1, (), "", "", "")
    made = draw(view, width, len(view.rows) + len(view.head) + len(view.alarm) + 6)
    lines = ["".join(text for text, _ in pieces).rstrip() for pieces in made]
    while lines and not lines[-1]:
        lines.pop()
    return "\n".join(lines) + "\n"


#: How a terminal is told of a style (ECMA-48, 8.3.117); bold says it where colour is not wanted.
_CODES = {"bold": "1", "bold red": "1;31", "bold underline": "1;4", "reverse": "7", "dim": "2"}
_CODES_WITHOUT_COLOUR = {**_CODES, "bold red": "1"}


def painted(lines: Sequence[Line], height: int, codes: Mapping[str, str]) -> str:
    """What a terminal is sent to show the lines from its upper left corner on, and nothing else.

    Each line is cleared before it is written: clearing its rest afterwards takes the last column with it where the
    line is full. Nothing is ever scrolled.
    """
    made = []
    for number in range(height):
        made.append(f"\x1b[{number + 1};1H\x1b[2K")
        for text, style in lines[number] if number < len(lines) else ():
            code = codes.get(style)
            made.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(made)


class Screen:
    """The alternate screen with a view on it; a context manager that gives the terminal back as it was.

    rich knows what the terminal can; the lines go there directly, since its own way costs four times as much.
    """

    def __init__(self) -> None:
        from rich.console import Console

        # Exported COLUMNS and LINES would fix the size for good; a screen follows its terminal.
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._console: Console = Console(highlight=False, markup=False, emoji=False, _environ=environ)
        colour = self._console.color_system is not None
        self._codes = (_CODES_WITHOUT_COLOUR if self._console.no_color else _CODES) if colour else {}

    @property
    def is_terminal(self) -> bool:
        """Whether there is a screen to draw on at all."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> Self:
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)

    def show(self, view: TopView) -> None:
        """Draw a view."""
        size = self._console.size
        self._console.file.write(painted(draw(view, size.width, size.height), size.height, self._codes))
        self._console.file.flush()

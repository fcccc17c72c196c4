"""Parts of a text report, drawn for a terminal or as Markdown.

A report is a list of parts (`Heading`, `Lines`, `Grid`); `print_parts` draws them with rich, `markdown` as Markdown.
Cell texts are data: they are escaped, and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nsprof.escape import safe

__all__ = ["Cell", "Column", "Grid", "Heading", "Lines", "Part", "markdown", "print_parts"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a style of rich's ("bold", "red"); Markdown leaves the style out."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """`keep` is the order in which columns go where the terminal is narrow: 0 stays always, 9 goes first.

    A column with `below` is then written under the table, a line a row: what it says must not be lost. `legend` is a
    line under the table where the column is shown.
    """

    title: str
    right: bool = True
    keep: int = 0
    wrap: bool = False
    below: bool = False
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """A title of a section; `level` 1 is the report's own."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of plain text in one style."""

    lines: tuple[str, ...]
    style: str = ""
    bullet: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; every row has a cell a column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    title: str = ""
    footer: tuple[Cell | str, ...] = field(default=())


Part = Heading | Lines | Grid

#: A column of names is never squeezed below this.
_NAME_WIDTH = 34


def print_parts(parts: Iterable[Part], console: Console) -> None:
    """Draw the parts on a terminal of the console's width, at least 60 columns."""
    for part in parts:
        if isinstance(part, Heading):
            console.print(Text(safe(part.text), style="bold" if part.level == 1 else "bold underline"))
        elif isinstance(part, Lines):
            for line in part.lines:
                console.print(Text(("- " if part.bullet else "") + safe(line), style=part.style), soft_wrap=False)
        else:
            _print_grid(part, console)


def _cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _all_rows(grid: Grid) -> list[tuple[Cell, ...]]:
    rows = [*grid.rows, grid.footer] if grid.footer else list(grid.rows)
    return [tuple(_cell(c) for c in row) for row in rows]


def _fitting(grid: Grid, rows: Sequence[Sequence[Cell]], width: int) -> list[int]:
    """Columns that fit: the ones with the highest `keep` go until names have their room."""
    natural = [
        max([*map(cell_len, c.title.split("\n")), *(cell_len(safe(row[i].text)) for row in rows)])
        for i, c in enumerate(grid.columns)
    ]
    shown = list(range(len(grid.columns)))

    def needed() -> int:
        wide = sum(min(natural[i], _NAME_WIDTH) if grid.columns[i].wrap else natural[i] for i in shown)
        return wide + 2 * (len(shown) - 1)

    while needed() > width and (loose := [i for i in shown if grid.columns[i].keep > 0]):
        shown.remove(max(loose, key=lambda i: (grid.columns[i].keep, i)))
    return shown


def _print_grid(grid: Grid, console: Console) -> None:
    rows = _all_rows(grid)
    shown = _fitting(grid, rows, console.width)
    table = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, title=None, header_style="bold", collapse_padding=True
    )
    for i in shown:
        column = grid.columns[i]
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold",  # a long name goes on in the next line, it is never cut
        )
    for row in rows:
        table.add_row(*(Text(safe(row[i].text), style=row[i].style) for i in shown))
    if grid.title:
        console.print(Text(safe(grid.title), style="bold"))
    console.print(table)
    for i in (i for i, column in enumerate(grid.columns) if column.below and i not in shown):
        said = [f"{row[0].text}: {row[i].text}" for row in rows if row[i].text]
        print_parts([Lines((f"{grid.columns[i].title}:", *(f"  {line}" for line in said)))] if said else [], console)
    print_parts([Lines(tuple(_legends(grid, rows, shown)), "dim", bullet=True)], console)


def _legends(grid: Grid, rows: Sequence[Sequence[Cell]], shown: Sequence[int]) -> list[str]:
    """The legends of the columns shown that have a cell at all, each once."""
    used = [grid.columns[i].legend for i in shown if any(row[i].text for row in rows)]
    return [line for line in dict.fromkeys(used) if line]


def markdown(parts: Iterable[Part]) -> str:
    """The parts as GitHub-flavoured Markdown."""
    out: list[str] = []
    for part in parts:
        if isinstance(part, Heading):
            out += [f"{'#' * (part.level + 1)} {_plain(part.text)}", ""]
        elif isinstance(part, Lines):
            out += [*(f"- {_plain(line)}" if line else "" for line in part.lines), ""]
        else:
            out += _markdown_grid(part)
    lines = [line for i, line in enumerate(out) if line or (i and out[i - 1])]
    return "\n".join(lines).rstrip() + "\n"


def _plain(text: str) -> str:
    escaped = safe(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|":
        escaped = escaped.replace(character, "\\" + character)
    return escaped


def _code(text: str) -> str:
    if not text:
        return ""
    shown = safe(text).replace("|", "\\|")
    fence = "`" if "`" not in shown else "``"
    return f"{fence}{shown}{fence}"


def _markdown_grid(grid: Grid) -> list[str]:
    lines = [f"**{_plain(grid.title)}**", ""] if grid.title else []
    lines.append("| " + " | ".join(_plain(c.title.replace("\n", " ")) or " " for c in grid.columns) + " |")
    lines.append("| " + " | ".join("---:" if c.right else "---" for c in grid.columns) + " |")
    for row in _all_rows(grid):
        cells = [
            _code(c.text) if column.wrap else _plain(c.text) for c, column in zip(row, grid.columns, strict=True)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    legends = _legends(grid, _all_rows(grid), range(len(grid.columns)))
    return [*lines, "", *(f"- {_plain(line)}" for line in legends)]

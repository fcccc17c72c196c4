"""The doctor's table: one row a finding, grouped, with what a lack prevents and what mends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

__all__ = ["print_rows"]

_MARK = {
    "yes": ("yes", "green"),
    "no": ("no", "red"),
    "partly": ("partly", "yellow"),
    "unknown": ("unknown", "yellow"),
}


def print_rows(rows: Sequence[Mapping[str, str]], verdict: str, stream: TextIO, *, width: int = 0) -> None:
    """Draw the rows (keys group, title, state, detail, prevents, remedy) and the verdict below.

    The state is a word as well as a colour. A lack's consequence and remedy stand on lines of their own, so that
    the command can be copied.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, width=width or None, highlight=False, soft_wrap=False)
    titles = max((len(row["title"]) for row in rows), default=0)
    for group in dict.fromkeys(row["group"] for row in rows):
        console.print(Text(group, style="bold"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=7)
        table.add_column(no_wrap=True, min_width=titles)
        table.add_column(overflow="fold")
        for row in rows:
            if row["group"] != group:
                continue
            word, colour = _MARK[row["state"]]
            body = Text(row["detail"])
            if row["state"] != "yes":
                if row["prevents"]:
                    body.append("\nprevents: ", style="dim").append(row["prevents"])
                if row["remedy"]:
                    body.append("\nmend: ", style="dim").append(row["remedy"], style="bold")
            table.add_row(Text(word, style=colour), Text(row["title"]), body)
        console.print(Padding(table, (0, 0, 0, 2)))
        console.print()
    console.print(Text(verdict, style="bold"))

"""The screen of nsprof top: fits every size, lets no name reach the terminal raw."""

from __future__ import annotations

import math
import re

import pytest
from rich.cells import cell_len

from nsprof.render.top import FunctionLine, TopRow, TopView, draw, painted, plain_text

HOSTILE = ("\x1b[2Jevil", "tab\there", "\u202eRTL", "日本語の名前空間", "new\nline", "\udc80")


def view(rows: int = 30, selected: int = 0) -> TopView:
    names = [HOSTILE[n % len(HOSTILE)] + str(n) for n in range(rows)]
    made = tuple(
        TopRow((n + 1, 0, 1), name, "eth\x1b0", 10.0 / (n + 1), 5.0, 1.0, 0.5, 1e6, 2e3, 1234.0, 0.0)
        for n, name in enumerate(names)
    )
    functions = tuple(FunctionLine(f"fn_{n}\x07", 1.0, 10.0, 5.0, 0.0) for n in range(10))
    return TopView(("head \x1b[31m", "second"), ("lost",), made, selected, functions, "functions of \x1b", "foot")


@pytest.mark.parametrize("width", [0, 1, 10, 24, 39, 60, 80, 120, 300])
@pytest.mark.parametrize("height", [0, 1, 4, 5, 8, 24, 100])
def test_no_line_is_wider_and_no_screen_higher_than_the_terminal(width: int, height: int) -> None:
    lines = draw(view(), width, height)
    assert len(lines) <= height
    for pieces in lines:
        assert cell_len("".join(text for text, _ in pieces)) <= width


def test_names_cannot_move_the_cursor() -> None:
    text = plain_text(view(), 120)
    assert all(c == "\n" or c.isprintable() for c in text)
    assert "\\x1b[2Jevil" in text


def test_the_selected_row_is_on_the_screen_wherever_it_is() -> None:
    for selected in (0, 5, 29):
        lines = draw(view(selected=selected), 100, 20)
        marked = ["".join(t for t, _ in pieces) for pieces in lines[:-1] if pieces[0][1] == "reverse"]
        assert len(marked) == 1
        assert f"{selected} " in marked[0]


class Terminal:
    """As much of a terminal as `painted` may use: place the cursor, clear a line, set a style."""

    def __init__(self, width: int, height: int) -> None:
        self.rows = [["?"] * width for _ in range(height)]
        self.styles: set[str] = set()
        self.at = [0, 0]

    def feed(self, text: str) -> list[str]:
        """What stands in each row afterwards. A sequence of another kind raises KeyError."""
        for plain, code, letter in re.findall(r"([^\x1b]+)|\x1b\[([0-9;]*)([A-Za-z])", text):
            for character in plain:
                self.rows[self.at[0]][self.at[1]] = character  # beyond the last column: IndexError
                self.at[1] += 1
            if letter:
                {"H": self.place, "K": self.clear, "m": self.styles.add}[letter](code)
        return ["".join(row) for row in self.rows]

    def place(self, code: str) -> None:
        self.at = [int(number) - 1 for number in code.split(";")]

    def clear(self, code: str) -> None:
        assert code == "2"
        self.rows[self.at[0]] = [" "] * len(self.rows[0])


@pytest.mark.parametrize(("width", "height"), [(24, 5), (80, 24), (120, 40), (10, 3)])
def test_what_a_terminal_shows_is_the_view_whatever_stood_there(width: int, height: int) -> None:
    made = TopView(("head",), ("lost",), (TopRow((1, 0, 0), "ns", "-", 1.0, 0.0, 1.0, 0.0),), 0, (), "", "foot")
    lines = draw(made, width, height)
    terminal = Terminal(width, height)
    codes = {"bold": "1", "bold red": "1;31", "bold underline": "1;4", "reverse": "7", "dim": "2"}
    wanted = ["".join(text for text, _ in pieces).ljust(width) for pieces in lines]
    assert terminal.feed(painted(lines, height, codes)) == wanted + [" " * width] * (height - len(lines))
    assert terminal.feed(painted(lines, height, {})) == wanted + [" " * width] * (height - len(lines))
    assert terminal.styles >= ({"0", "1", "1;31", "1;4", "7"} if height >= 24 else {"0", "1"})


def test_plain_text_has_every_row_and_no_selection() -> None:
    text = plain_text(view(), 100)
    assert len(text.splitlines()) == 3 + 1 + 30
    assert "foot" not in text


def test_unknown_figures_are_a_dash_not_a_zero() -> None:
    row = TopRow((1, 0, 0), "ns", "-", 1.0, 0.0, 1.0, 0.0)
    made = TopView(("h",), (), (row,), 0, (), "", "f")
    line = plain_text(made, 120).splitlines()[2]
    assert math.isnan(row.skb_s)
    assert line.split()[-1] == "-"

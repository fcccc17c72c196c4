"""Keys as terminals send them."""

from __future__ import annotations

import pytest

from nsprof.top.keys import parse


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bj", ["up", "down", "j"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b[B", ["escape", "down"]),
        (b"\x1bg", ["escape", "g"]),
        (b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~", ["pageup", "pagedown", "home", "end"]),
        (b"\r\x7f\x08\x04", ["enter", "backspace", "backspace", "end-of-file"]),
        ("é日".encode(), ["é", "日"]),
        (b"\x1b[1;5Cx", ["x"]),  # Ctrl-Right means nothing
        (b"\x1b[200", []),  # a torn sequence
        (b"\x01\xff", []),
        (b"", []),
    ],
)
def test_what_a_terminal_sends_becomes_keys(sent: bytes, keys: list[str]) -> None:
    assert parse(sent) == keys

"""Stack lines of `perf script` as columns: which of the distinct ones each is.

What stands behind the address in a line, its tail, mostly tells the frame alone, and there are far fewer different
tails than lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers import columns as c

__all__ = ["NAME_AT", "LineTexts", "line_texts"]

NAME_AT = 18  # tab, address in 16 columns, blank
_F = ord("f")


@dataclass(slots=True)
class LineTexts:
    """Lines text[start[i]:end[i]]: which of the distinct tails each one has, -1 for a line of another form."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    tail: NDArray[np.int32]
    tails: list[bytes]

    def kernel(self, buf: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the address of lines of the usual form may be one of the kernel's half."""
        found: NDArray[np.bool_] = buf[self.start[rows] + 1] == _F  # 16 digits, of which the first one is f
        return found


def line_texts(buf: NDArray[np.uint8], start: NDArray[np.int64], end: NDArray[np.int64]) -> LineTexts:
    """The distinct tails of lines that begin with a tab, an address in 16 columns and a blank."""
    usual = (end - start > NAME_AT + 3) & (buf[start] == 9)
    rows = slice(None) if usual.all() else np.flatnonzero(usual)
    at = start[rows]
    fine = (buf[at + NAME_AT - 1] == 32) & (c.HEX[buf[at + NAME_AT - 2]] < 16)
    if not fine.all():
        usual[usual] = fine
        rows = np.flatnonzero(usual)
    which, pieces = c.distinct(buf, start[rows] + NAME_AT, end[rows])
    if not isinstance(rows, slice):
        tail = np.full(len(start), -1, "i4")
        tail[rows] = which
        which = tail
    return LineTexts(start, end, which, pieces.tolist())

"""Names from kernels and files made harmless for a terminal or a text table."""

from __future__ import annotations

import unicodedata

__all__ = ["safe"]

#: Categories whose characters move the cursor, change direction or show nothing: Cc control, Cf format (bidi
#: marks, zero width), Cs surrogate, Co private use, Cn unassigned, Zl/Zp line and paragraph separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def safe(text: str) -> str:
    """`text` with every character that is not plain printable written as its escape (`\\x1b`, `\\u202e`)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if unicodedata.category(c) not in _UNSAFE else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8, as Python reads it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

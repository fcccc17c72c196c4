"""Names from kernels and files made harmless for a terminal or a text table."""

from __future__ import annotations

__all__ = ["safe"]


def safe(text: str) -> str:
    """`text` with every character that moves the cursor, changes direction or shows nothing written as its escape
    (`\\x1b`, `\\u202e`): controls, format characters, surrogates, private use, separators other than the space."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8, as Python reads it
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

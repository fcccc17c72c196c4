"""Names from kernels, files and command lines: harmless wherever they are shown, the same wherever they are compared.

A name may hold bytes that are no UTF-8. Python hands them on as lone surrogates (`os.fsdecode`), with which files and
namespaces are opened; profiles hold them written out (`a\\xff`), since neither JSON nor Arrow takes surrogates.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Iterable

__all__ = ["as_stored", "own_name", "safe", "shell_word", "shell_words"]


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


def as_stored(word: str) -> str:
    """A name of a command line or of `os.listdir` as profiles hold it: bytes that are no UTF-8 are written out."""
    try:
        word.encode()
    except UnicodeEncodeError:
        pass
    else:
        return word
    try:
        return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that stand for no byte, of a JSON file
        return word.encode("utf-8", "backslashreplace").decode()


def shell_word(word: str) -> str:
    """`word` quoted so that a shell takes it for this one word, and nothing in it does anything to a terminal.

    What cannot be shown is written as bash, zsh and ksh read it (`$'a\\xff'`); sh has no way to write it.
    """
    if word.isprintable():
        return shlex.quote(word)
    shown = {"\\": "\\\\", "'": "\\'"}
    inside = (shown.get(c, c) if c.isprintable() else "".join(map(r"\x{:02x}".format, os.fsencode(c))) for c in word)
    return f"$'{''.join(inside)}'"


def shell_words(words: Iterable[str]) -> str:
    """A command as one types it; see `shell_word`."""
    return " ".join(map(shell_word, words))


@functools.cache
def own_name() -> str:
    """How to call this program again from the same shell: `nsprof`, or, where that is not on PATH, the path by which
    it was called (`.venv/bin/nsprof`), quoted."""
    import shutil  # a few milliseconds, which only those who ask need to wait

    folder, slash, name = sys.argv[0].rpartition("/") if sys.argv else ("", "", "")
    if name != "nsprof" or not slash or shutil.which("nsprof"):
        return "nsprof"
    return shell_word(f"{folder}/{name}")

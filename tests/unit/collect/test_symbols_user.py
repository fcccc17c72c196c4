"""Names of user-space addresses, read from this very process."""

from __future__ import annotations

import ctypes
import os
import subprocess

from nsprof.collect.symbols.user import UserSymbols


def address_of(function: str) -> int:
    value = ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value
    assert value is not None
    return value


def test_a_library_function_is_named_with_its_file() -> None:
    name, module = UserSymbols()(os.getpid(), address_of("strtol") + 3)
    assert "strtol" in name and module.startswith("libc")


def test_an_address_that_is_not_mapped_is_unknown() -> None:
    assert UserSymbols()(os.getpid(), 0x10) == ("", "")


def test_what_was_captured_outlives_the_process() -> None:
    symbols = UserSymbols()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            text = ""
            while "libc" not in text:  # until the loader has mapped it
                with open(f"/proc/{process.pid}/maps") as maps:  # noqa: PTH123
                    text = maps.read()
            symbols.capture(process.pid)
            line = next(x for x in text.splitlines() if "libc" in x and "x" in x.split()[1])
        finally:
            process.kill()
            process.wait()
    name, module = symbols(process.pid, int(line.split("-")[0], 16) + 0x1000)
    assert module.startswith("libc") and name


def test_a_process_that_is_gone_gives_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert UserSymbols()(process.pid, 0x400000) == ("", "")

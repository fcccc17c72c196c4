"""`nsprof simulate --annotate FUNC`: the executed instructions of a function: counts, misses, source lines."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsprof.errors import UsageError, VmError
from nsprof.kernelnames import fold_suffixes
from nsprof.render.tables import Column, Grid, Lines, Part
from nsprof.simulate import Measurement

__all__ = ["AnnotatedLine", "annotate", "annotate_parts"]


@dataclass(frozen=True)
class AnnotatedLine:
    """One instruction, counts a repetition. `block` tells whether a basic block begins here (the count changes)."""

    address: int
    offset: int
    symbol: str
    count: float
    l1d: float
    l1i: float
    l2: float
    text: str
    block: bool
    source: str = ""
    code: str = ""


def annotate(measurement: Measurement, function: str, vmlinux: Path | None = None) -> list[AnnotatedLine]:
    """The instructions of a function (all its parts: .cold, .isra.0, ...) in the modal sample.

    Raises UsageError when it did not run, naming near names; VmError when addr2line is wanted and missing.
    """
    ranges = _ranges(measurement.symbols, function)
    found: list[AnnotatedLine] = []
    before = -1.0
    for each in measurement.sample.addresses():
        part = next(((s, e, n) for s, e, n in ranges if s <= each.address < e), None)
        if part is None:
            continue
        count = each.count / measurement.repetitions
        l1d, l1i, l2 = (value / measurement.repetitions for value in (each.l1d, each.l1i, each.l2))
        offset = each.address - part[0]
        found.append(
            AnnotatedLine(each.address, offset, part[2], count, l1d, l1i, l2, each.text, block=count != before)
        )
        before = count
    if not found:
        import difflib

        ran = sorted(measurement.functions())
        near = difflib.get_close_matches(function, ran, n=3)
        raise UsageError(
            f"--annotate: {function} did not run in {measurement.scenario}",
            f"near names that did: {', '.join(near)}" if near else f"{len(ran)} functions ran: see the table",
        )
    return _with_source(found, vmlinux) if vmlinux else found


def _ranges(table: Path, function: str) -> list[tuple[int, int, str]]:
    """(start, end, symbol) of everything that is a part of the function."""
    rows = []
    with table.open() as lines:
        for line in lines:
            words = line.split()
            if words[1] in "tTwW" and words[0][0] == "f":
                rows.append((int(words[0], 16), words[2]))
    rows.sort()
    ends = [address for address, _ in rows[1:]] + [1 << 64]
    wanted = fold_suffixes(function)
    return [(a, e, n) for (a, n), e in zip(rows, ends, strict=True) if fold_suffixes(n) == wanted and a != e]


def _with_source(lines: Sequence[AnnotatedLine], vmlinux: Path) -> list[AnnotatedLine]:
    from dataclasses import replace

    if not vmlinux.is_file():
        raise UsageError(f"--vmlinux {vmlinux}: no such file")
    program = shutil.which("addr2line")
    if program is None:
        raise VmError("addr2line is not installed: file and line need it", "apt install binutils")
    words = "\n".join(f"{line.address:x}" for line in lines) + "\n"
    done = subprocess.run(
        [program, "-e", str(vmlinux)], input=words, capture_output=True, text=True, errors="replace", check=False
    )
    places = done.stdout.splitlines()
    if done.returncode or len(places) != len(lines):
        raise VmError(f"addr2line cannot read {vmlinux}: {done.stderr.strip()[:200]}")
    made = []
    for line, place in zip(lines, places, strict=True):
        where = place.partition(" (")[0]
        known = not where.startswith("?")
        short = "/".join(where.rsplit("/", 3)[-3:]) if known else ""
        made.append(replace(line, source=short, code=_source_line(where) if known else ""))
    return made


def _source_line(where: str) -> str:
    name, _, number = where.rpartition(":")
    path = Path(name)
    if not number.isdecimal() or not path.is_file():
        return ""
    with path.open(errors="replace") as file:
        for at, text in enumerate(file, 1):
            if at == int(number):
                return text.strip()
    return ""


def annotate_parts(measurement: Measurement, function: str, lines: Sequence[AnnotatedLine]) -> list[Part]:
    """The listing."""
    misses = any(line.l1d or line.l1i or line.l2 for line in lines)
    columns = [Column("count"), Column("offset"), Column("instruction", right=False, wrap=True)]
    columns += [Column(title, keep=2) for title in ("l1d", "l1i", "l2") if misses]
    if any(line.source for line in lines):
        columns += [Column("source", right=False, keep=1)]
    if any(line.code for line in lines):
        columns += [Column("code", right=False, keep=3, wrap=True)]
    rows = []
    for line in lines:
        row = [f"{line.count:g}" if line.block else '"', f"+0x{line.offset:x}", line.text or f"{line.address:x}"]
        row += [f"{value:g}" if value else "" for value in (line.l1d, line.l1i, line.l2) if misses]
        row += [line.source] if any(each.source for each in lines) else []
        row += [line.code] if any(each.code for each in lines) else []
        rows.append(tuple(row))
    total = sum(line.count for line in lines)
    title = f"{function} in {measurement.scenario}, {measurement.kernel.release}: {len(lines)} instructions executed"
    return [
        Grid(tuple(columns), tuple(rows), title=title),
        Lines((f'{total:g} executions a repetition (rep iterations included); " = as often as the line above.',)),
    ]

"""What hardware told of memory and branches (`nsprof report --memory`, `--branches`) as parts of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nsprof.render.tables import Column, Grid, Heading, Lines, Part
from nsprof.render.text import gap, percent
from nsprof.units import counted, format_count

__all__ = ["branch_parts", "memory_parts"]

_OTHER = ("L4", "PMEM", "CXL", "I/O", "uncached", "other cache", "missed", "unknown")
#: heads of columns, with the levels of memory that they add up, and the order in which they go where room is short
_LEVELS = (
    ("L1", ("L1",), 3),
    ("LFB", ("LFB",), 5),
    ("L2", ("L2",), 4),
    ("L3", ("L3",), 3),
    ("RAM", ("RAM",), 2),
    ("remote", ("remote cache", "remote RAM"), 2),
    ("other", _OTHER, 6),
)
_LEGEND_LEVELS = (
    "L1 ... other: share of the function's accesses that found their data there (LFB: in a line that was on its way; "
    "remote: another socket's; other: L4, PMEM, CXL, I/O, uncached, missed, unknown)"
)
_LEGEND_HITM = "HITM: the line was found modified in another cache"
_LEGEND_WEIGHT = "weight: the mean of what the hardware says an access weighs, mostly cycles until its data was there"
_LEGEND_TLB = "TLB: accesses whose address was not in the TLB"
_LEGEND_SHARED = "shared: lines that were touched from more than one CPU (by a task that moved, too)"
_WAYS = 3


def _name(row: Mapping[str, Any], prefix: str = "") -> str:
    module = row[f"{prefix}module"]
    return f"{row[f'{prefix}function']}{f' [{module}]' if module else ''}"


def _share(part: float, whole: float, digits: int = 1) -> str:
    return percent(part / whole, digits=digits) if whole else "-"


def _count(number: int | None) -> str:
    return "" if number is None else format_count(number)


def _shown(rows: Sequence[Mapping[str, Any]], limit: int) -> tuple[Sequence[Mapping[str, Any]], int]:
    """(the rows that are shown, how many are not)."""
    return (rows[:limit], max(0, len(rows) - limit)) if limit else (rows, 0)


def _rest(noun: str, hidden: int, others: int, samples: int) -> list[Part]:
    """A line on what is not in a table: further rows that --limit hides, and those that were only summed up."""
    words = []
    if hidden:
        words.append(f"{counted(hidden, noun)} more (--limit 0)")
    if others:
        words.append(f"{counted(others, f'other {noun}')} with {samples:,} in sum")
    return [Lines((f"... {'; '.join(words)}",), "dim")] if words else []


def _used(columns: Sequence[tuple[Column, list[str]]]) -> Grid:
    """A table of the columns that have something in some row."""
    kept = [(column, cells) for column, cells in columns if any(cell not in ("", "0", "0.0%", "-") for cell in cells)]
    rows = tuple(zip(*(cells for _, cells in kept), strict=True))
    return Grid(tuple(column for column, _ in kept), rows)


# --- memory -----------------------------------------------------------------------------------------------------


def memory_parts(file: Mapping[str, Any], *, limit: int = 30) -> list[Part]:
    """Accesses by function and level, lines by function, and lines of more than one CPU, of one imported file."""
    parts: list[Part] = [Heading(f"Memory: {file['file']}", 1)]
    for event, table in file["accesses"].items():
        parts += [gap(), *_accesses(event, table, limit)]
    for event, table in file["lines"].items():
        parts += [gap(), *_lines(event, table, limit)]
    if file["shared"]:
        parts += [gap(), *_shared(file["shared"], limit)]
    return parts


def _accesses(event: str, table: Mapping[str, Any], limit: int) -> list[Part]:
    everything = [*table["functions"], table["others"]]
    total = sum(row["samples"] for row in everything)
    rows, hidden = _shown(table["functions"], limit)

    def column(of: Callable[[Mapping[str, Any]], str]) -> list[str]:
        return [of(row) for row in rows]

    def level(row: Mapping[str, Any], names: Sequence[str]) -> str:
        part = sum(row["levels"].get(name, {"samples": 0})["samples"] for name in names)
        return _share(part, row["samples"], 0) if part else ""

    columns = [
        (Column("Function", right=False, wrap=True), column(_name)),
        (Column("samples"), column(lambda r: format_count(r["samples"]))),
        (Column("share", keep=7), column(lambda r: _share(r["samples"], total))),
        (
            Column("weight", keep=1, legend=_LEGEND_WEIGHT),
            column(lambda r: "" if r["weight_sum"] is None else f"{r['weight_sum'] / r['samples']:,.0f}"),
        ),
    ]
    for head, names, keep in _LEVELS:
        cells = [level(row, names) for row in rows]
        columns.append((Column(head, keep=keep, legend=_LEGEND_LEVELS), cells))
    columns += [
        (Column("HITM", keep=1, legend=_LEGEND_HITM), column(lambda r: format_count(r["hitm"] + r["peer"]))),
        (Column("TLB", keep=5, legend=_LEGEND_TLB), column(lambda r: format_count(r["tlb_misses"]))),
        (Column("locked", keep=8), column(lambda r: format_count(r["locked"]))),
        (Column("loads", keep=9), column(lambda r: format_count(r["loads"]))),
        (Column("stores", keep=9), column(lambda r: format_count(r["stores"]))),
    ]
    return [
        Heading(f"{event}: {total:,} access{'es' if total != 1 else ''}"),
        _used(columns),
        *_rest("function", hidden, table["others"]["functions"], table["others"]["samples"]),
    ]


def _where(place: Mapping[str, Any]) -> str:
    """A line's address; with the kernel's name for it, or its process."""
    address = place["address"] or f"phys:{place['physical']}"
    return f"{address}{' ' + place['symbol'] if place['symbol'] else ''}"


def _lines(event: str, table: Mapping[str, Any], limit: int) -> list[Part]:
    rows, hidden = _shown(table["functions"], limit)
    columns = [
        (Column("Function", right=False, wrap=True), [_name(row) for row in rows]),
        (Column("samples"), [format_count(row["samples"]) for row in rows]),
        (Column("lines"), [format_count(row["lines"]) for row in rows]),
        (Column("shared", legend=_LEGEND_SHARED), [format_count(row["shared_lines"]) for row in rows]),
        (
            Column("most touched lines", right=False, wrap=True, keep=1),
            ["; ".join(f"{_where(p)} ({p['samples']:,})" for p in row["top_lines"]) for row in rows],
        ),
    ]
    head = f"{event}: {counted(table['lines'], 'line')} of 64 bytes, {table['shared_lines']:,} of them shared"
    return [
        Heading(head),
        _used(columns),
        *_rest("function", hidden, table["others"]["functions"], table["others"]["samples"]),
    ]


def _shared(table: Mapping[str, Any], limit: int) -> list[Part]:
    rows, hidden = _shown(table["lines"], limit)

    def touching(row: Mapping[str, Any]) -> str:
        words = []
        for each in row["functions"][:_WAYS]:
            places = ",".join(f"{offset:#x}" for offset in each["offsets"][:_WAYS])
            more = ",..." if len(each["offsets"]) > _WAYS else ""
            words.append(f"{_name(each)} at {places}{more} ({each['samples']:,} on {counted(each['cpus'], 'CPU')})")
        return "; ".join(words)

    columns = [
        (Column("Line", right=False), [_where(row) for row in rows]),
        (Column("samples"), [format_count(row["samples"]) for row in rows]),
        (Column("loads", keep=4), [_count(row["loads"]) for row in rows]),
        (Column("stores", keep=3), [_count(row["stores"]) for row in rows]),
        (
            Column("HITM", keep=1, legend=_LEGEND_HITM),
            ["" if row["hitm"] is None else format_count(row["hitm"] + row["peer"]) for row in rows],
        ),
        (Column("CPUs", keep=2), [format_count(row["cpus"]) for row in rows]),
        (Column("touched by", right=False, wrap=True), [touching(row) for row in rows]),
    ]
    number = len(table["lines"]) + table["others"]["lines"]
    return [
        Heading(f"{counted(number, 'line')} touched from more than one CPU: may be shared, if one of them stores"),
        _used(columns),
        *_rest("line", hidden, table["others"]["lines"], table["others"]["samples"]),
    ]


# --- branches ---------------------------------------------------------------------------------------------------


def branch_parts(file: Mapping[str, Any], *, limit: int = 30) -> list[Part]:
    """Branches by function jumped from, and by both ends, of one imported file."""
    sums = file["sums"]
    head = f"{sums['entries']:,} branch entries of {sums['samples']:,} samples"
    if sums.get("empty"):
        head += f", {sums['empty']:,} of them empty"
    parts: list[Part] = [Heading(f"Branches: {file['file']}", 1), Lines((head,))]
    for event, table in file["functions"].items():
        total = sum(row["branches"] for row in [*table["functions"], table["others"]])
        rows, hidden = _shown(table["functions"], limit)
        names = [(Column("From function", right=False, wrap=True), [_name(row) for row in rows])]
        others = table["others"]
        parts += [gap(), Heading(f"{event}: {total:,} branch{'es' if total != 1 else ''}")]
        parts += [
            _branch_grid(names, rows, total),
            *_rest("function", hidden, others["functions"], others["branches"]),
        ]
    for event, table in file["edges"].items():
        total = sum(row["branches"] for row in [*table["edges"], table["others"]])
        rows, hidden = _shown(table["edges"], limit)
        names = [
            (Column("From", right=False, wrap=True), [_name(row, "from_") for row in rows]),
            (Column("to", right=False, wrap=True), [_name(row, "to_") for row in rows]),
        ]
        others = table["others"]
        parts += [gap(), Heading(f"{event}: from function to function")]
        parts += [_branch_grid(names, rows, total), *_rest("pair", hidden, others["edges"], others["branches"])]
    return parts


def _branch_grid(names: list[tuple[Column, list[str]]], rows: Sequence[Mapping[str, Any]], total: int) -> Grid:
    cycles = ["" if row["mean_cycles"] is None else f"{row['mean_cycles']:,.1f}" for row in rows]
    columns = [
        *names,
        (Column("branches"), [format_count(row["branches"]) for row in rows]),
        (Column("share", keep=4), [_share(row["branches"], total) for row in rows]),
        (Column("mispredicted", keep=2), [format_count(row["mispredicted"]) for row in rows]),
        (Column("of its own", keep=1), [_share(row["mispredicted"], row["branches"]) for row in rows]),
        (Column("cycles", keep=3, legend="cycles: mean since the branch before"), cycles),
        (Column("aborted", keep=5), [format_count(row["aborted"]) for row in rows]),
    ]
    return _used(columns)

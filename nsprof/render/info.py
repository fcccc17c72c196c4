"""`nsprof info` as parts of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.render.text import gap, percent
from nsprof.units import counted, format_count

__all__ = ["info_parts"]

_SPACES = 20
#: what imports tell of functions, which are reports of their own
_TABLES = {
    "nsprof report --memory": ("accesses_by_function", "lines_by_function", "shared_lines"),
    "nsprof report --branches": ("branches_by_function", "branch_edges"),
    "weights in nsprof info --json": ("weights_by_function",),
}


def info_parts(info: Mapping[str, Any]) -> list[Part]:
    """What a profile holds, from the data that `nsprof info --json` prints."""
    meta = info["meta"]
    tool = meta.get("tool") if isinstance(meta.get("tool"), Mapping) else {}
    head = [
        f"recorded by {tool.get('name', 'nsprof')} {tool.get('version', '')} {meta.get('created', '')}".strip(),
        f"{info['stacks']:,} stacks of {info['frames']:,} frames; {info['counters']:,} counters; "
        f"{info['ledger_lines']:,} ledger lines",
    ]
    source = meta.get("source")
    if source:
        tables = {name for names in _TABLES.values() for name in names}
        sums = {k: v for k, v in source.items() if k not in tables}
        head.append(f"imported from {_flat(sums)}")
        more = [word for word, tables in _TABLES.items() if any(table in source for table in tables)]
        if more:
            head.append(f"by function: {', '.join(more)}")
    parts: list[Part] = [Heading("Profile", 1), Lines(tuple(head))]
    notes = meta.get("notes")
    if isinstance(notes, list) and notes:
        parts.append(Lines(tuple(map(str, notes)), "dim", bullet=True))
    parts += [gap(), _events(info["events"]), gap(), _runs(info["runs"])]
    warnings = _warnings(info["runs"])
    if warnings:
        parts += [gap(), Lines(tuple(f"WARNING: {w}" for w in warnings), "yellow")]
    attached = [p for p in info["probes"] if p.state == "attached"]
    if attached:
        parts += [gap(), _probes(attached)]
    parts += _not_attached(info["probes"])
    parts += _namespaces(info)
    host = meta.get("host")
    if isinstance(host, Mapping) and host:
        parts += [gap(), Heading("Host"), Lines(tuple(_host(host)))]
    return parts


def _warnings(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each once, with the runs that had it."""
    by_text: dict[str, list[str]] = {}
    for run in runs:
        for text in dict.fromkeys(run["warnings"]):
            by_text.setdefault(text, []).append(str(run["run"] + 1))
    return [f"run{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {text}" for text, numbers in by_text.items()]


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_flat(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)


def _events(events: Sequence[Mapping[str, Any]]) -> Grid:
    rows = [
        (
            Cell(e["name"]),
            e["unit"],
            e["kind"],
            f"{e['frequency_hz']} Hz" if e["frequency_hz"] else "",
            format_count(e["samples"]),
            format_count(e["rows"]),
        )
        for e in events
    ]
    columns = (
        Column("Event", right=False, wrap=True),
        Column("unit", right=False),
        Column("kind", right=False),
        Column("asked", keep=2),
        Column("samples"),
        Column("rows", keep=3),
    )
    return Grid(columns, tuple(rows))


def _runs(runs: Sequence[Mapping[str, Any]]) -> Grid:
    rows = []
    for run in runs:
        denominators = " ".join(f"{k} {v:,.0f}" for k, v in run["denominators"].items() if k != "second")
        state = f"failed: {run['failed']}" if run["failed"] else "warm-up" if run["warmup"] else ""
        lost = run["lost_share"]
        rows.append(
            (
                str(run["run"] + 1),
                Cell(run["scenario"]),
                run["kernel"],
                f"{run['duration_s']:.1f}",
                format_count(run["samples"]),
                Cell(percent(lost) if not math.isnan(lost) else "unknown", "red" if lost > 0.01 else ""),
                denominators,
                " ".join(run["probes_on"]),
                Cell(state, "red" if run["failed"] else "dim"),
            )
        )
    columns = (
        Column("Run"),
        Column("scenario", right=False, wrap=True),
        Column("kernel", right=False, keep=3),
        Column("seconds"),
        Column("samples"),
        Column("lost"),
        Column("counted", right=False, keep=2, wrap=True),
        Column("probes", right=False, keep=4),
        Column("", right=False),
    )
    return _used(columns, rows)


def _used(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]]) -> Grid:
    """A table of the columns in which some row has something."""
    kept = [n for n in range(len(columns)) if any(cell != "" and cell != Cell("") for cell in (r[n] for r in rows))]
    return Grid(tuple(columns[n] for n in kept), tuple(tuple(row[n] for n in kept) for row in rows))


def _spans(numbers: Sequence[int]) -> str:
    """Run numbers from 0 as they are read, from 1: "1-3 5"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1]:
            spans[-1][1] = number + 1
        else:
            spans.append([number + 1, number + 1])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _probes(probes: Sequence[Any]) -> Grid:
    rows = [
        (
            Cell(p.name),
            p.target,
            p.rung,
            format_count(p.hits),
            f"{p.cost_ns_per_hit:.0f} ns" if p.cost_ns_per_hit else "",
        )
        for p in probes
    ]
    columns = (
        Column("Probe", right=False, wrap=True),
        Column("target", right=False, keep=1),
        Column("rung", right=False),
        Column("hits", keep=2),
        Column("a hit", keep=3),
    )
    return Grid(columns, tuple(rows))


def _not_attached(probes: Sequence[Any]) -> list[Part]:
    """Probes that were refused or shed, by the reason that they have in common, with what each would have counted."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for p in probes:
        if p.state != "attached":
            reason, _, lost = p.reason.partition("; not counted: ")
            by_reason.setdefault((p.state, reason), []).append(f"{p.name} ({lost})" if lost else p.name)
    parts: list[Part] = []
    for (state, reason), names in by_reason.items():
        head = f"{counted(len(names), 'probe')} {state}{f': {reason}' if reason else ''}"
        parts += [gap(), Lines((head,), "yellow"), Lines(tuple(names), bullet=True)]
    return parts


def _namespaces(info: Mapping[str, Any]) -> list[Part]:
    """Those of which something was recorded, with the runs and the devices; the rest of the machine's is counted."""
    known = [n for n in info["namespaces"] if n["runs"] or n["role"]]
    # A host with thousands of pods: those that something is known of come first.
    spaces = sorted(known, key=lambda n: (not n["role"], n["label"].startswith("net:[")))
    rows: list[tuple[Cell | str, ...]] = [
        (Cell(n["label"]), str(n["inode"]), n["role"], _spans(n["runs"]), " ".join(n["devices"]))
        for n in spaces[:_SPACES]
    ]
    columns = (
        Column("Namespace", right=False, wrap=True),
        Column("inode", keep=2),
        Column("role", right=False, keep=1),
        Column("runs", right=False, keep=3),
        Column("devices", right=False, wrap=True),
    )
    parts: list[Part] = [gap(), _used(columns, rows)] if rows else []
    others = len(info["namespaces"]) - len(known)
    left = [f"{len(spaces) - _SPACES} more"] if len(spaces) > _SPACES else []
    left += [f"{counted(others, 'namespace')} of which nothing was recorded"] if others else []
    return [*parts, Lines((f"... {', '.join(left)} (--json)",), "dim")] if left else parts


def _host(host: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, value in host.items():
        text = _flat(value)
        lines.append(f"{key}: {text if len(text) <= 300 else text[:297] + '...'}")
    return lines

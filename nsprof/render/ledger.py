"""The ledger for terminals and Markdown."""

from __future__ import annotations

import math

from nsprof.model.ledger import LedgerReport
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.units import format_count, format_figure

__all__ = ["ledger_parts"]

#: Names of namespaces longer than this would push the figures out of a narrow terminal.
_NAME_LENGTH = 24


def ledger_parts(report: LedgerReport, *, limit: int = 40) -> list[Part]:
    """A ledger: where fragmentation starts, events per unit, what devices saw, callers, agreement with MIBs.

    `limit` rows of places (0: all).
    """
    against = f" against {report.base_title}" if report.base_title else ""
    per = f", per {report.per}" + (f" of {report.reference}" if report.reference else "") if report.per else ""
    cost = "unknown" if math.isnan(report.cost_share) else f"{report.cost_share * 100:.2f} % of the CPUs"
    parts: list[Part] = [
        Heading(f"Ledger of {report.title}{against}", 1),
        Lines(
            (
                report.fragmentation,
                f"{report.runs} counting pass{'es' * (report.runs != 1)}, {report.duration_s:.1f} s{per}; "
                f"the probes cost {cost}",
            )
        ),
    ]
    if report.alarms:
        parts.append(Lines(tuple(f"WARNING: {text}" for text in report.alarms), "bold red"))
    parts += [Lines(("",)), _events(report)]
    if report.hops:
        parts += [Lines(("",)), Heading("Devices"), _hops(report, limit)]
    if report.places:
        parts += [Lines(("",)), Heading("Where, and who asked"), _places(report, limit)]
    if report.reconciled:
        parts += [Lines(("",)), Heading("Against the kernel's own counters"), _reconciled(report)]
    if report.notes:
        parts += [Lines(("",)), Lines(report.notes, "dim", bullet=True)]
    return parts


def _named(name: str) -> str:
    """A name of a namespace that leaves room for the figures: a long one is shortened in the middle."""
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH // 2]}…{name[1 - _NAME_LENGTH // 2 :]}"


def _until(text: str, shed_s: float, base_shed_s: float = math.nan) -> str:
    """An event with until when it was counted, where that is not the window's end."""
    said = [] if math.isnan(base_shed_s) else [f"base until {base_shed_s:g} s"]
    said += [] if math.isnan(shed_s) else [f"until {shed_s:g} s"]
    return f"{text} ({', '.join(said)})" if said else text


def _size(value: int) -> str:
    return format_count(value) if value >= 0 else ""


def _figure(value: float) -> str:
    return "" if math.isnan(value) else format_figure(value)


def _events(report: LedgerReport) -> Grid:
    unit = f" per {report.per}" if report.per else ""
    columns = [Column("Event", right=False, wrap=True)]
    if report.base_title:
        columns += [Column(f"base{unit}", keep=1), Column(f"new{unit}"), Column("delta")]
    else:
        columns.append(Column(f"calls{unit}"))
    columns += [
        Column(f"bytes{unit}", keep=2),
        Column("bytes per KB", keep=3),
        Column("calls", keep=1 if report.base_title else 0),
        Column("bytes", keep=4),
    ]
    rows = []
    for row in report.events:
        figures = [_figure(row.base), _figure(row.new)] if report.base_title else [_figure(row.new)]
        if report.base_title:
            delta = row.new - row.base
            figures.append("=" if delta == 0 else "" if math.isnan(delta) else format_figure(delta, sign=True))
        cells = (*figures, _figure(row.new_bytes), _figure(row.new_bytes_per_kb), format_count(row.calls))
        rows.append((_until(row.what, row.shed_s, row.base_shed_s), *cells, _size(row.size_bytes)))
    return Grid(tuple(columns), tuple(rows))


def _hops(report: LedgerReport, limit: int) -> Grid:
    def both(skbs: int, segments: int) -> str:
        return format_count(skbs) if skbs == segments else f"{skbs:,} ({segments:,})"

    first = report.hops[0]  # a probe stands for all devices
    queued, sent, received = (
        f"\nuntil {shed_s:g} s" if not math.isnan(shed_s) else ""
        for shed_s in (first.queued_shed_s, first.sent_shed_s, first.received_shed_s)
    )
    columns = (
        Column("Device", right=False, wrap=True),
        Column("MTU"),
        Column(f"queued\n(segments){queued}", keep=2),
        Column(f"sent\n(segments){sent}"),
        Column(f"received\n(segments){received}"),
        Column(f"fragments\nsent{sent}"),
        Column(f"fragments\nreceived{received}", keep=1),
        Column(f"over\nMTU{sent or received}", keep=3),
    )
    rows = tuple(
        (
            f"{row.device} in {_named(row.namespace)}",
            row.mtu,
            both(row.queued, row.queued_segments),
            both(row.sent, row.sent_segments),
            both(row.received, row.received_segments),
            format_count(row.fragments_sent),
            format_count(row.fragments_received),
            format_count(row.over_mtu),
        )
        for row in report.hops[: limit or None]
    )
    return Grid(columns, rows)


def _places(report: LedgerReport, limit: int) -> Grid:
    columns = (
        Column("Event", right=False, wrap=True),
        Column("where", right=False),
        Column("caller", right=False, keep=3, wrap=True),
        Column("calls"),
        Column(f"per {report.per or 'unit'}", keep=1),
        Column("bytes", keep=2),
        Column("per KB", keep=4),
    )
    shown = report.places[:limit] if limit else report.places
    rows: list[tuple[Cell | str, ...]] = [
        (
            _until(f"{row.what}: {row.detail}" if row.detail else row.what, row.shed_s),
            f"{row.device} in {_named(row.namespace)}" if row.device != "unknown" else _named(row.namespace),
            row.caller,
            format_count(row.calls),
            _figure(row.per_unit),
            _size(row.size_bytes),
            _figure(row.bytes_per_kb),
        )
        for row in shown
    ]
    if len(shown) < len(report.places):
        rows.append((Cell(f"... {len(report.places) - len(shown):,} more (--limit 0)", "dim"), *[""] * 6))
    return Grid(columns, tuple(rows))


def _reconciled(report: LedgerReport) -> Grid:
    columns = (
        Column("Event", right=False, wrap=True),
        Column("namespace", right=False),
        Column("counted"),
        Column("kernel"),
        Column("agree", right=False),
        Column("kernel's counter", right=False, keep=2, wrap=True),
        Column("why not", right=False, keep=1, wrap=True, below=True),
    )
    rows = tuple(
        (
            row.what,
            _named(row.namespace),
            format_count(row.counted),
            format_count(row.kernel),
            Cell(row.verdict, {"yes": "green", "no": "yellow"}.get(row.verdict, "")),
            row.mib,
            row.why,
        )
        for row in report.reconciled
    )
    return Grid(columns, rows)

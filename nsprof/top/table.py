"""From one interval to the rows of a view: grouped, filtered, sorted, one selected."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from operator import attrgetter

from nsprof.model.profile import Context
from nsprof.render.top import FunctionLine, TopRow, TopView
from nsprof.top import SORTS, TopOptions
from nsprof.top.devices import STILL, Devices, Rate
from nsprof.top.watch import Cell, RowKey, Snapshot
from nsprof.units import counted

__all__ = ["HELP", "State", "cells_of", "row_dict", "rows_of", "view_of"]

_TASK = (Context.TASK, Context.SCHED, Context.UNKNOWN)
_LOSS_ALARM = 0.01
_FUNCTIONS = 40
_NAME_ORDER = attrgetter("namespace", "device", "key")

HELP = (
    "",
    "  up/down j/k   select a row: its functions are below     PgUp/PgDn Home/End  far",
    "  s / S         sort by the next / previous column        r  reverse",
    "  /             filter: type, Enter keeps it, Esc drops it",
    "  g             rows by device or by namespace            a  idle namespaces too",
    "  p or space    pause the display (sampling goes on)      + / -  interval",
    "  w             write the last seconds as a profile       q  quit",
    "",
    "  CPU is in percent of one CPU. softirq is charged to the namespace and device served; 'nobody' is softirq",
    "  and interrupt work outside of any packet, or whose packet is not known. skb/s is rx + tx of the device,",
    "  ns/skb the row's CPU time divided by them. late: ticks that were due while interrupts were off.",
    "",
)


@dataclass(slots=True)
class State:
    """What the user has chosen."""

    sort: str = "cpu"
    reverse: bool = False
    filter: str = ""
    by: str = "device"
    idle: bool = False
    paused: bool = False
    typing: bool = False
    help: bool = False
    interval_s: float = 1.0
    selected: RowKey | None = None
    position: int = 0
    message: str = ""
    #: (version of the devices, by, the rows that --idle adds), kept since most of a thousand namespaces do nothing
    at_rest: tuple[int, str, dict[RowKey, TopRow]] = (0, "", {})

    @classmethod
    def of(cls, options: TopOptions) -> State:
        """As the command line has it."""
        return cls(
            sort=options.sort,
            reverse=options.reverse,
            filter=options.filter,
            by=options.by,
            idle=options.idle,
            interval_s=options.interval_s,
        )

    def next_sort(self, step: int) -> None:
        """Sort by another column."""
        self.sort = SORTS[(SORTS.index(self.sort) + step) % len(SORTS)]


def cells_of(snapshot: Snapshot, by: str) -> dict[RowKey, Cell]:
    """The interval's sums by device, or joined by namespace (ifindex 0)."""
    if by == "device":
        return dict(snapshot.cells)
    joined: dict[RowKey, Cell] = {}
    for (inode, cookie, _), cell in snapshot.cells.items():
        into = joined.setdefault((inode, cookie, 0), Cell())
        for context, ns in cell.contexts.items():
            into.contexts[context] = into.contexts.get(context, 0.0) + ns
        for name, ns in cell.functions.items():
            into.functions[name] = into.functions.get(name, 0.0) + ns
        for name, ns in cell.late.items():
            into.late[name] = into.late.get(name, 0.0) + ns
    return joined


def _busiest(devices: Devices) -> dict[tuple[int, int], tuple[int, Rate]]:
    """Of each namespace the device that carries most skbs; lo only where no other carries any."""
    best: dict[tuple[int, int], tuple[int, Rate]] = {}
    for (inode, cookie, index), rate in devices.active.items():
        held = best.get((inode, cookie))
        order = (devices.labels.get((inode, cookie, index)) != "lo" and rate.skb > 0, rate.skb)
        if held is None or order > (
            devices.labels.get((inode, cookie, held[0])) != "lo" and held[1].skb > 0,
            held[1].skb,
        ):
            best[inode, cookie] = (index, rate)
    return best


def rows_of(snapshot: Snapshot, devices: Devices, state: State, *, hop: bool) -> list[TopRow]:
    """All rows that pass the filter, sorted."""
    cells = cells_of(snapshot, state.by)
    keys = dict.fromkeys(cells)
    for key, rate in devices.active.items():
        if rate.skb > 0:
            keys.setdefault(key if state.by == "device" else (*key[:2], 0))
    if state.idle and state.by == "device":
        keys.update(dict.fromkeys(devices.active))  # those that only drop, too
    busiest = _busiest(devices) if state.by == "namespace" else {}
    blank = Cell()
    rows = [_row(key, cells.get(key, blank), snapshot.seconds, devices, busiest, hop) for key in keys]
    rows.sort(key=_NAME_ORDER)
    if state.idle:
        listed = {key[0] for key in keys}
        still = _at_rest(devices, state, hop)
        rows += [r for k, r in still.items() if k not in keys and (k[2] or k[0] not in listed)]
    word = state.filter.casefold()
    if word:
        rows = [row for row in rows if word in row.namespace.casefold() or word in row.device.casefold()]
    return _sorted(rows, state)


def _at_rest(devices: Devices, state: State, hop: bool) -> dict[RowKey, TopRow]:
    """The rows of devices that carry nothing, and of namespaces that have none, in the order of their names."""
    version, by, rows = state.at_rest
    if (version, by) != (devices.version, state.by):
        keys = devices.resting() if state.by == "device" else []
        listed = {key[0] for key in keys}
        keys += [(*devices.keys.get(inode, (inode, 0)), 0) for inode in devices.paths if inode not in listed]
        # A thousand namespaces are found one after the other, and making all rows anew each time costs 15 ms: those
        # that are called as before are kept.
        known = rows if by == state.by else {}
        made = []
        for key in keys:
            row = known.get(key)
            if row is None or (row.namespace, row.device) != (_name(key, devices, hop), _device(key, devices)):
                row = _row(key, Cell(), 1.0, devices, {}, hop, still=True)
            made.append(row)
        rows = {row.key: row for row in sorted(made, key=_NAME_ORDER)}
        state.at_rest = (devices.version, state.by, rows)
    return rows


def _name(key: RowKey, devices: Devices, hop: bool) -> str:
    if not key[0]:
        return "nobody" if hop else "nobody (softirq, interrupts)"
    return devices.names.get(key[0]) or devices.named.get(key[:2]) or f"net:[{key[0]}]"


def _device(key: RowKey, devices: Devices) -> str:
    return (devices.labels.get(key) or f"if{key[2]}") if key[2] else "-"


def _row(
    key: RowKey,
    cell: Cell,
    seconds: float,
    devices: Devices,
    busiest: dict[tuple[int, int], tuple[int, Rate]],
    hop: bool,
    *,
    still: bool = False,
) -> TopRow:
    inode, cookie, ifindex = key
    name, device = _name(key, devices, hop), _device(key, devices)
    scale = 1e-7 / seconds  # ns in an interval to percent of one CPU
    contexts = cell.contexts
    rate = (STILL if ifindex else None) if still else devices.rate(key)
    if not ifindex and (inode, cookie) in busiest:
        index, rate = busiest[inode, cookie]
        device = devices.labels.get((inode, cookie, index), f"if{index}")
    skb_s = rate.skb if rate else math.nan
    return TopRow(
        key,
        name,
        device,
        cell.ns * scale,
        contexts.get(Context.SOFTIRQ, 0.0) * scale,
        sum(contexts.get(c, 0.0) for c in _TASK) * scale,
        contexts.get(Context.USER, 0.0) * scale,
        rate.rx_skb if rate else math.nan,
        rate.tx_skb if rate else math.nan,
        cell.ns / seconds / skb_s if skb_s > 0 and cell.ns else math.nan,
        rate.drops if rate else math.nan,
    )


def _sorted(rows: list[TopRow], state: State) -> list[TopRow]:
    def number(value: float) -> float:
        return -1.0 if math.isnan(value) else value

    keys = {
        "cpu": lambda r: -r.cpu,
        "softirq": lambda r: -r.softirq,
        "rate": lambda r: -number(r.skb_s),
        "cost": lambda r: -number(r.ns_per_skb),
        "drops": lambda r: -number(r.drops_s),
        "name": lambda r: (r.namespace, r.device),
    }
    rows.sort(key=_NAME_ORDER)  # quick: two runs that are in order
    rows.sort(key=keys[state.sort], reverse=state.reverse)
    return rows


def _functions(cell: Cell, row: TopRow, seconds: float) -> tuple[FunctionLine, ...]:
    total = cell.ns or math.nan
    best = sorted(cell.functions.items(), key=lambda item: (-item[1], item[0]))[:_FUNCTIONS]
    return tuple(
        FunctionLine(
            name,
            ns * 1e-7 / seconds,
            100 * ns / total,
            row.ns_per_skb * ns / total,
            100 * cell.late.get(name, 0.0) / ns if ns else 0.0,
        )
        for name, ns in best
    )


def view_of(snapshot: Snapshot, devices: Devices, state: State, *, hop: bool, notes: tuple[str, ...]) -> TopView:
    """The screen for an interval, with the selection kept on its row while rows move."""
    rows = rows_of(snapshot, devices, state, hop=hop)
    selected = _select(rows, state)
    functions: tuple[FunctionLine, ...] = ()
    title = ""
    if 0 <= selected < len(rows):
        row = rows[selected]
        cell = cells_of(snapshot, state.by).get(row.key, Cell())
        functions = _functions(cell, row, snapshot.seconds)
        title = f"functions of {row.namespace} {row.device}  (self: % of a CPU, of the row, ns/skb, late)"
    lost = snapshot.losses.lost_share
    alarm = (f"{lost * 100:.1f} % of the samples due were lost",) if lost > _LOSS_ALARM else ()
    return TopView(
        _head(snapshot, devices, state, len(rows)),
        (*alarm, *notes),
        tuple(rows),
        selected,
        functions,
        title,
        _foot(state),
        state.sort,
        HELP if state.help else (),
    )


def _select(rows: list[TopRow], state: State) -> int:
    if not rows:
        return -1
    if state.selected is not None:
        for number, row in enumerate(rows):
            if row.key == state.selected:
                state.position = number
                return number
    state.position = max(0, min(state.position, len(rows) - 1))
    return state.position


def _head(snapshot: Snapshot, devices: Devices, state: State, shown: int) -> tuple[str, ...]:
    busy, cpus = sum(snapshot.busy_s.values()), len(snapshot.busy_s)
    lost = snapshot.losses.lost_share
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.wall))
    charged = sum(cell.ns for key, cell in snapshot.cells.items() if key[0]) / 1e9
    first = (
        f"nsprof top {clock}  {100 * busy / snapshot.seconds:.0f} % of {cpus} CPUs' {100 * cpus} % busy, "
        f"{100 * charged / snapshot.seconds:.0f} % charged to a namespace  {'PAUSED' if state.paused else ''}"
    )
    loss = "loss unknown" if math.isnan(lost) else f"{lost * 100:.1f} % lost"
    second = (
        f"{counted(len(devices.paths), 'namespace')}, {counted(shown, 'row')}  {snapshot.samples:,} samples in "
        f"{snapshot.seconds:.1f} s, {loss}  own cost {100 * snapshot.own_s / snapshot.seconds:.1f} % of one CPU"
    )
    return first, second


def _foot(state: State) -> str:
    if state.typing:
        return f" filter: {state.filter}_   (Enter keeps, Esc drops)"
    if state.message:
        return f" {state.message}"
    order = f"{state.sort}{' reversed' if state.reverse else ''}"
    kept = f"  filter {state.filter}" if state.filter else ""
    return f" sort {order}  by {state.by}{kept}   ?:help s:sort /:filter p:pause g:group w:save q:quit"


def row_dict(row: TopRow, cell: Cell | None, seconds: float, limit: int = 10) -> dict[str, object]:
    """A row with its functions for `--json`."""
    return {
        "namespace": row.namespace,
        "inode": row.key[0],
        "cookie": row.key[1],
        "device": row.device,
        "ifindex": row.key[2],
        "cpu_percent": row.cpu,
        "softirq_percent": row.softirq,
        "task_percent": row.task,
        "user_percent": row.user,
        "rx_skb_per_s": row.rx_skb_s,
        "tx_skb_per_s": row.tx_skb_s,
        "ns_per_skb": row.ns_per_skb,
        "drops_per_s": row.drops_s,
        "functions": [
            {"name": f.name, "cpu_percent": f.cpu, "share_percent": f.share, "late_percent": f.late}
            for f in _functions(cell or Cell(), row, seconds)[:limit]
        ],
    }

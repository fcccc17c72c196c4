"""A profile as flat tables and back: what each Parquet member holds, and what makes a table invalid.

Every table is plain columns (numbers, text, and for stacks one list), so that pandas or DuckDB join them without
nsprof. The columns are described for readers in docs/file-format.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.escape import as_stored
from nsprof.model.profile import (
    Counter,
    Device,
    Direction,
    Event,
    Frames,
    LedgerLine,
    Losses,
    Namespace,
    ProbeInfo,
    Profile,
    Run,
    Samples,
    Stacks,
    Task,
    Value,
)
from nsprof.store.possible import WORDS, check_numbers, check_words

__all__ = ["SCHEMAS", "build_profile", "profile_tables"]

_U1, _U2, _U4, _U8 = pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()
_I4, _I8, _F8, _T, _B = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_()
_DTYPES = {_U1: "u1", _U2: "u2", _U4: "u4", _U8: "u8", _I4: "i4", _I8: "i8", _F8: "f8", _B: "?"}
_LOSSES = tuple(Losses.__dataclass_fields__)

#: table -> column -> type. `run`, `event`, `task`, `stack`, `frame` are row numbers of those tables;
#: `*_ns`, `namespace`, `hop_dev`, `device` numbers are row + 1, 0 meaning unknown.
SCHEMAS: dict[str, dict[str, Any]] = {
    "events": {"event": _I4, "name": _T, "unit": _T, "kind": _T, "period": _I8, "frequency_hz": _I8},
    "runs": {
        "run": _I4,
        "scenario": _T,
        "label": _T,
        "kernel": _T,
        "started": _F8,
        "duration_s": _F8,
        "cpus": _I4,
        "cpu_steal_s": _F8,
        "reference": _T,
        "own_cpu_s": _F8,
        "status": _I4,
        "failed": _T,
        "warmup": _B,
        **{f"lost_{name}" if name not in ("expected", "seen") else name: _I8 for name in _LOSSES},
    },
    "run_cpus": {"run": _I4, "cpu": _I4, "busy_s": _F8, "side": _T, "lost_share": _F8},
    "denominators": {"run": _I4, "name": _T, "value": _F8},
    "run_values": {"run": _I4, "name": _T, "value": _F8, "unit": _T, "source": _T},
    "run_words": {"run": _I4, "what": _T, "position": _I4, "text": _T},
    "namespaces": {"namespace": _I4, "inode": _U8, "cookie": _U8, "birth_slice": _I8, "name": _T, "role": _T},
    "devices": {"device": _I4, "namespace": _I4, "ifindex": _I8, "name": _T, "kind": _T, "mtu": _I8},
    "tasks": {"task": _I4, "tgid": _I8, "pid": _I8, "comm": _T},
    "frames": {"frame": _I4, "name": _T, "module": _T, "kind": _U1, "source": _T},
    "stacks": {"stack": _I4, "frames": pa.large_list(_U4)},
    "samples": {
        "run": _U2,
        "slice": _U4,
        "event": _U1,
        "cpu": _U2,
        "task": _U4,
        "task_ns": _U4,
        "hop_ns": _U4,
        "hop_dev": _U4,
        "hop_dir": _U1,
        "hop_depth": _U1,
        "context": _U1,
        "stack": _U4,
        "lateness": _U1,
        "count": _U8,
        "weight": _F8,
    },
    "counters": {
        "run": _I4,
        "scope": _T,
        "namespace": _I4,
        "device": _T,
        "cpu": _I4,
        "name": _T,
        "start": _F8,
        "delta": _F8,
    },
    "ledger": {
        "run": _I4,
        "what": _T,
        "detail": _T,
        "namespace": _I4,
        "device": _I4,
        "stack": _I4,
        "calls": _I8,
        "value_bytes": _I8,
    },
    "probes": {
        "name": _T,
        "target": _T,
        "rung": _T,
        "state": _T,
        "reason": _T,
        "hits": _I8,
        "cost_ns_per_hit": _F8,
        "attach_ms": _F8,
    },
}


def _table(name: str, columns: Mapping[str, Iterable[Any] | NDArray[Any]]) -> pa.Table:
    return pa.table({column: _array(columns[column], kind) for column, kind in SCHEMAS[name].items()})


def _array(data: Iterable[Any] | NDArray[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array put together from its buffers: pa.array() would import pandas, for 0.2 s at every saving.

    Raises ValueError or OverflowError for numbers that the type does not hold.
    """
    if isinstance(data, pa.Array):
        return data
    if kind == _T:
        words = [as_stored(v).encode() for v in data]
        ends = np.zeros(len(words) + 1, "i8")
        np.cumsum([len(w) for w in words], out=ends[1:])
        if ends[-1] >= 1 << 31:
            raise ValueError(f"{ends[-1]} bytes of text in one column")
        parts = [None, pa.py_buffer(ends.astype("i4")), pa.py_buffer(b"".join(words))]
        return pa.Array.from_buffers(kind, len(words), parts)
    values = data if isinstance(data, np.ndarray) else list(data)
    numbers = np.ascontiguousarray(values, _DTYPES[kind])
    cast = isinstance(data, np.ndarray) and data.dtype != numbers.dtype and numbers.dtype.kind in "iu"
    if cast and not (numbers == data).all():
        raise ValueError(f"numbers beyond {kind}")
    bits = np.packbits(numbers, bitorder="little") if kind == _B else numbers
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(bits)])


def _rows(name: str, rows: Sequence[Any], fields: Mapping[str, str] | None = None) -> pa.Table:
    """A table from model rows; the column named after the table's singular is the row number."""
    singular = name.removesuffix("s")
    columns: dict[str, Any] = {}
    for column in SCHEMAS[name]:
        if column == singular:
            columns[column] = np.arange(len(rows))
        else:
            attribute = (fields or {}).get(column, column)
            columns[column] = [getattr(row, attribute) for row in rows]
    return _table(name, columns)


def profile_tables(profile: Profile) -> dict[str, pa.Table]:
    """All tables of a profile by name."""
    frames, stacks, samples = profile.frames, profile.stacks, profile.samples
    stack_lists = pa.LargeListArray.from_arrays(_array(stacks.offsets, _I8), _array(stacks.frames, _U4))
    return {
        "events": _rows("events", profile.events),
        **_run_tables(profile.runs),
        "namespaces": _rows("namespaces", profile.namespaces),
        "devices": _rows("devices", profile.devices),
        "tasks": _rows("tasks", profile.tasks),
        "frames": _table(
            "frames",
            {
                "frame": np.arange(len(frames)),
                "name": frames.name,
                "module": frames.module,
                "kind": frames.kind,
                "source": frames.source,
            },
        ),
        "stacks": _table("stacks", {"stack": np.arange(len(stacks)), "frames": stack_lists}),
        "samples": _table("samples", {name: getattr(samples, name) for name in SCHEMAS["samples"]}),
        "counters": _rows("counters", profile.counters),
        "ledger": _rows("ledger", profile.ledger),
        "probes": _rows("probes", profile.probes),
    }


def _run_tables(runs: Sequence[Run]) -> dict[str, pa.Table]:
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMAS["runs"]}
    cpus: list[tuple[int, int, float, str, float]] = []
    denominators: list[tuple[int, str, float]] = []
    values: list[tuple[int, str, float, str, str]] = []
    words: list[tuple[int, str, int, str]] = []
    for number, run in enumerate(runs):
        for name, column in columns.items():
            if name == "run":
                column.append(number)
            elif name.removeprefix("lost_") in _LOSSES:
                column.append(getattr(run.losses, name.removeprefix("lost_")))
            else:
                column.append(getattr(run, name))
        for cpu in sorted({*run.cpu_busy_s, *run.lost_by_cpu, *run.dut_cpus, *run.remote_cpus}):
            side = "dut" if cpu in run.dut_cpus else "remote" if cpu in run.remote_cpus else ""
            lost = run.lost_by_cpu.get(cpu, math.nan)
            cpus.append((number, cpu, run.cpu_busy_s.get(cpu, math.nan), side, lost))
        denominators += [(number, name, value) for name, value in run.denominators.items()]
        values += [(number, *value) for value in run.values]
        for what in ("warnings", "probes_on", "command"):
            words += [(number, what, i, text) for i, text in enumerate(getattr(run, what))]
    return {
        "runs": _table("runs", columns),
        "run_cpus": _from_tuples("run_cpus", cpus),
        "denominators": _from_tuples("denominators", denominators),
        "run_values": _from_tuples("run_values", values),
        "run_words": _from_tuples("run_words", words),
    }


def _from_tuples(name: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    return _table(name, {c: [row[i] for row in rows] for i, c in enumerate(SCHEMAS[name])})


# --- back -----------------------------------------------------------------------------------------------------


def _numbers(array: pa.Array) -> NDArray[Any]:
    """The numbers of an Arrow array without gaps, not copied (its own way to numpy would import pandas)."""
    if array.type == _B:
        return np.array(array.to_pylist(), "?")
    dtype = np.dtype(_DTYPES[array.type])
    data = array.buffers()[1]
    if not len(array) or data is None:
        return np.zeros(0, dtype)
    return np.frombuffer(data, dtype, count=len(array), offset=array.offset * dtype.itemsize)


class _Reader:
    """The columns of the tables of one file, checked when asked for."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = tables

    def array(self, table: str, column: str) -> NDArray[Any]:
        """A numeric column as numpy, of the schema's dtype."""
        data = self.tables[table].column(column)
        parts = [_numbers(chunk) for chunk in data.chunks]
        if not parts:
            return np.zeros(0, _DTYPES[data.type])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def values(self, table: str, column: str) -> list[Any]:
        values: list[Any] = self.tables[table].column(column).to_pylist()
        return values

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return list(zip(*(self.values(table, column) for column in SCHEMAS[table]), strict=True))

    def index(self, table: str, column: str, limit: int, *, low: int = 0) -> NDArray[Any]:
        """A column of row numbers, each in low..limit-1."""
        values = self.array(table, column)
        if len(values) and (int(values.min()) < low or int(values.max()) >= limit):
            raise ProfileFormatError(
                f"damaged: {table}.{column} points outside its table ({int(values.min())}..{int(values.max())} "
                f"where {low}..{limit - 1} may be)"
            )
        return values


def build_profile(tables: Mapping[str, pa.Table], meta: Mapping[str, Any]) -> Profile:
    """The profile of a set of tables with the columns of `SCHEMAS`.

    Raises ProfileFormatError where a row number leads nowhere or a number cannot be.
    """
    reader = _Reader(tables)
    check_numbers(reader.array, SCHEMAS)
    for table, columns in WORDS.items():
        for column in columns:
            check_words(table, column, tables[table].column(column))
    events = tuple(Event(*row[1:]) for row in reader.rows("events"))
    namespaces = tuple(Namespace(*row[1:]) for row in reader.rows("namespaces"))
    tasks = tuple(Task(*row[1:]) for row in reader.rows("tasks"))
    reader.index("devices", "namespace", len(namespaces) + 1)
    devices = tuple(Device(*row[1:]) for row in reader.rows("devices"))
    frames = Frames(
        tuple(reader.values("frames", "name")),
        tuple(reader.values("frames", "module")),
        reader.array("frames", "kind"),
        tuple(reader.values("frames", "source")),
    )
    if len(frames):
        reader.index("frames", "kind", 5)
    stacks = _stacks(reader, len(frames))
    runs = _runs(reader)
    limits = (len(runs), len(namespaces) + 1, len(devices) + 1, len(stacks))
    return Profile(
        events=events,
        runs=runs,
        namespaces=namespaces,
        devices=devices,
        tasks=tasks,
        frames=frames,
        stacks=stacks,
        samples=_samples(reader, len(events), len(tasks), limits),
        counters=_counters(reader, limits),
        ledger=_ledger(reader, limits),
        probes=tuple(ProbeInfo(*row) for row in reader.rows("probes")),
        meta=dict(meta),
    )


def _stacks(reader: _Reader, frames: int) -> Stacks:
    column = reader.tables["stacks"].column("frames")
    if not column.num_chunks:
        return Stacks()
    chunk = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    offsets, values = _numbers(chunk.offsets), _numbers(chunk.values)
    if chunk.values.null_count:
        raise ProfileFormatError("damaged: a stack holds an empty frame")
    values = values[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    if len(values) and int(values.max()) >= frames:
        raise ProfileFormatError(f"damaged: a stack points to frame {int(values.max())} of {frames}")
    return Stacks(offsets, values)


def _samples(reader: _Reader, events: int, tasks: int, limits: tuple[int, int, int, int]) -> Samples:
    runs, spaces, devices, stacks = limits
    rows = reader.tables["samples"].num_rows
    # A profile without a task table (an import that knows no tasks) holds zeros there.
    bounds = {
        "run": runs,
        "event": events,
        "task": max(tasks, 1),
        "task_ns": spaces,
        "hop_ns": spaces,
        "hop_dev": devices,
        "hop_dir": len(Direction),
        "context": 8,
        "lateness": 3,
        "stack": stacks,
    }
    columns = {
        name: reader.index("samples", name, bounds[name])
        if name in bounds and rows
        else reader.array("samples", name)
        for name in SCHEMAS["samples"]
    }
    return Samples(**columns)


def _runs(reader: _Reader) -> tuple[Run, ...]:
    number = reader.tables["runs"].num_rows
    extra: list[dict[str, Any]] = [
        {"cpu_busy_s": {}, "lost_by_cpu": {}, "dut_cpus": [], "remote_cpus": [], "denominators": {}, "values": []}
        for _ in range(number)
    ]
    words: list[dict[str, list[str]]] = [{"warnings": [], "probes_on": [], "command": []} for _ in range(number)]
    for table in ("run_cpus", "denominators", "run_values", "run_words"):
        reader.index(table, "run", number)
    for run, cpu, busy, side, lost in reader.rows("run_cpus"):
        if not math.isnan(busy):
            extra[run]["cpu_busy_s"][cpu] = busy
        if not math.isnan(lost):
            extra[run]["lost_by_cpu"][cpu] = lost
        if side in ("dut", "remote"):
            extra[run][f"{side}_cpus"].append(cpu)
    for run, name, value in reader.rows("denominators"):
        extra[run]["denominators"][name] = value
    for run, *value in reader.rows("run_values"):
        extra[run]["values"].append(Value(*value))
    for run, what, _, text in reader.rows("run_words"):
        if what in words[run]:
            words[run][what].append(text)
    made = []
    names = list(SCHEMAS["runs"])
    for row, more, texts in zip(reader.rows("runs"), extra, words, strict=True):
        fields = dict(zip(names, row, strict=True))
        losses = {
            name: fields.pop(f"lost_{name}") if f"lost_{name}" in fields else fields.pop(name) for name in _LOSSES
        }
        fields.pop("run")
        tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in {**more, **texts}.items()}
        made.append(Run(**fields, **tuples, losses=Losses(**losses)))
    return tuple(made)


def _counters(reader: _Reader, limits: tuple[int, int, int, int]) -> tuple[Counter, ...]:
    reader.index("counters", "run", limits[0])
    reader.index("counters", "namespace", limits[1])
    return tuple(Counter(*row) for row in reader.rows("counters"))


def _ledger(reader: _Reader, limits: tuple[int, int, int, int]) -> tuple[LedgerLine, ...]:
    for column, limit, low in (("run", limits[0], 0), ("namespace", limits[1], 0), ("device", limits[2], 0)):
        reader.index("ledger", column, limit, low=low)
    reader.index("ledger", "stack", limits[3], low=-1)
    return tuple(LedgerLine(*row) for row in reader.rows("ledger"))

"""Which function read and wrote which memory, and from where it came: tables of what `perf mem record` writes.

Columns with a row a sample become tables by function and by cache line, bounded in size, with the rest summed up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import Frames
from nsprof.store.importers.assemble import U64, grouped
from nsprof.store.importers.codes import codes
from nsprof.store.importers.perfdata.decode import Columns

__all__ = ["COLUMNS", "LEVELS", "NO_WEIGHT", "Accesses", "columns", "facts", "tables"]

NO_WEIGHT = 2**32 - 1
#: columns of samples that tell of memory, beside their weight; 0 says nothing
COLUMNS = ("address", "physical", "data_source")
#: where an access found its data; "missed" where only is told which cache had not got it
LEVELS = (
    "L1",
    "LFB",
    "L2",
    "L3",
    "L4",
    "RAM",
    "remote cache",
    "remote RAM",
    "PMEM",
    "CXL",
    "I/O",
    "uncached",
    "other cache",
    "missed",
    "unknown",
)
_FLAGS = ("loads", "stores", "hitm", "peer", "tlb_misses", "locked")
_ROWS, _TOP, _CPUS = 200, 3, 64
_LINE = U64(6)  # 64 bytes
_NO_CPU = 0xFFFF
_OPS = U64(0x1E)  # load, store, prefetch, execute
_NUMBERS = {1: 0, 2: 2, 3: 3, 4: 4, 5: 2, 8: 11, 9: 9, 10: 10, 11: 12, 12: 1, 13: 5, 14: 8}
_BITS = ((0x0008, 0), (0x0010, 1), (0x0020, 2), (0x0040, 3), (0x0080, 5), (0x1000, 10), (0x2000, 11))


def facts(value: int) -> tuple[int, ...]:
    """(index of LEVELS, then 0 or 1 for each of: load, store, HITM, from a peer's cache, TLB missed, locked) of a
    PERF_SAMPLE_DATA_SRC: union perf_mem_data_src in include/uapi/linux/perf_event.h."""
    level, number = value >> 5 & 0x3FFF, value >> 33 & 0xF
    remote = value >> 37 & 1
    if level & 4 and not level & 2:
        where = LEVELS.index("missed")
    elif level & 0x0C00:
        where = LEVELS.index("remote cache")
    elif level & 0x0300:
        where = LEVELS.index("remote RAM")
    else:
        where = _NUMBERS.get(number, -1)
        if where < 0:
            where = next((each for bit, each in _BITS if level & bit), LEVELS.index("unknown"))
        if remote and where != LEVELS.index("unknown"):
            where = LEVELS.index("remote RAM" if LEVELS[where] == "RAM" else "remote cache")
    snoop, peer = value >> 19 & 0x1F, value >> 38 & 2
    return (
        where,
        value >> 1 & 1,
        value >> 2 & 1,
        int(snoop & 0x10 > 0),
        int(peer > 0),
        value >> 28 & 1,
        value >> 25 & 1,
    )


def columns(cols: Columns, rows: NDArray[np.int64]) -> dict[str, NDArray[np.uint64]]:
    """Those of COLUMNS that say something of some samples."""
    made: dict[str, NDArray[np.uint64]] = {}
    for name in COLUMNS:
        column = getattr(cols, name)
        if column is not None:
            values = column[rows]
            if name == "data_source":
                values[values & _OPS == 0] = 0
            if values.any():
                made[name] = values
    return made


@dataclass(slots=True)
class Accesses:
    """Columns with a row a sample; `frame` is the leaf's. None: no sample has it. Weights are NO_WEIGHT where there
    is none, CPUs 65535 where unknown, the others 0 where a sample does not tell."""

    event: NDArray[Any]
    frame: NDArray[Any]
    cpu: NDArray[Any]
    pid: NDArray[Any]
    weight: NDArray[Any] | None
    address: NDArray[np.uint64] | None
    physical: NDArray[np.uint64] | None
    data_source: NDArray[np.uint64] | None

    def take(self, rows: NDArray[np.int64]) -> Accesses:
        """Some of the rows."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})

    def weights(self) -> NDArray[np.float64] | None:
        """Weights to be summed: 0 where there is none."""
        if self.weight is None:
            return None
        return np.where(self.weight == NO_WEIGHT, 0, self.weight).astype("f8")

    def functions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(a row of each function of each event, which of them each row is)."""
        return grouped(self.event.astype("i8") << 32 | self.frame.astype("i8"))


def tables(
    seen: Accesses, events: Sequence[str], frames: Frames, symbol: Callable[[int], str] = lambda address: ""
) -> dict[str, Any]:
    """`accesses_by_function`, `lines_by_function` and `shared_lines`, as far as samples tell of them.

    `symbol` names the kernel's data at an address, "" where it is none.
    """
    made: dict[str, Any] = {}
    if seen.data_source is not None:
        rows = np.flatnonzero(seen.data_source)
        made["accesses_by_function"] = _accesses(seen.take(rows), events, frames)
    if seen.address is not None or seen.physical is not None:
        where = [column for column in (seen.address, seen.physical) if column is not None]
        rows = np.flatnonzero(np.bitwise_or.reduce(where))
        lines = _Lines(seen.take(rows))
        made["lines_by_function"] = lines.by_function(events, frames, symbol)
        shared = lines.shared(frames, symbol)
        if shared:
            made["shared_lines"] = shared
    return {name: table for name, table in made.items() if table}


def _ranked(
    event: NDArray[Any], samples: NDArray[np.int64], events: Sequence[str]
) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64]]]:
    """For every event its name, the rows with most samples, most first, and the other ones."""
    order = np.argsort(-samples, kind="stable")
    made = []
    for each in np.unique(event).tolist():
        mine = order[event[order] == each]
        made.append((events[each], mine[:_ROWS], mine[_ROWS:]))
    return made


def _function(frames: Frames, index: int) -> dict[str, Any]:
    return {"function": frames.name[index], "module": frames.module[index]}


def _accesses(seen: Accesses, events: Sequence[str], frames: Frames) -> dict[str, Any]:
    """Event -> functions by level of memory."""
    if not len(seen.event) or seen.data_source is None:
        return {}
    which, first = codes(seen.data_source)
    meaning = np.array([facts(value) for value in seen.data_source[first].tolist()], "i8")[which]
    begin, function = seen.functions()
    count, width = len(begin), len(LEVELS)
    weights = seen.weights()
    cell = function * width + meaning[:, 0]
    samples = np.bincount(cell, minlength=count * width).reshape(count, width)
    sums = None if weights is None else np.bincount(cell, weights, count * width).reshape(count, width)
    flags = np.stack([np.bincount(function, meaning[:, n + 1], count) for n in range(len(_FLAGS))], axis=1)

    def row(rows: NDArray[np.int64]) -> dict[str, Any]:
        some, told = samples[rows].sum(axis=0), flags[rows].sum(axis=0)
        weight = None if sums is None else sums[rows].sum(axis=0)
        levels = {
            LEVELS[n]: {"samples": int(some[n]), "weight_sum": None if weight is None else int(weight[n])}
            for n in np.flatnonzero(some).tolist()
        }
        made: dict[str, Any] = {
            "samples": int(some.sum()),
            "weight_sum": None if weight is None else int(weight.sum()),
        }
        return {**made, **dict(zip(_FLAGS, map(int, told.tolist()), strict=True)), "levels": levels}

    made: dict[str, Any] = {}
    for name, top, rest in _ranked(seen.event[begin], samples.sum(axis=1), events):
        leaf = seen.frame[begin[top]].tolist()
        table = [{**_function(frames, f), **row(top[n : n + 1])} for n, f in enumerate(leaf)]
        made[name] = {"functions": table, "others": {"functions": len(rest), **row(rest)}}
    return made


class _Lines:
    """The cache lines that samples tell of. A line is known by its physical address where the file has it; else
    by its virtual one, which for a user's address is that of its process only."""

    def __init__(self, seen: Accesses) -> None:
        self.seen = seen
        zero = np.zeros(len(seen.event), "u8")
        self.virtual = zero if seen.address is None else seen.address
        self.physical = zero if seen.physical is None else seen.physical
        real = self.physical != 0
        self.address = np.where(real, self.physical, self.virtual)
        owner = np.where(real, 0, np.where(self.virtual >> U64(63) > 0, 1, seen.pid.astype("i8") + 3))
        base = grouped(self.address >> _LINE)[1]
        self.begin, self.line = grouped(base << 32 | owner)
        known = np.flatnonzero(seen.cpu != _NO_CPU)
        pairs = self.line[known] << 16 | seen.cpu[known].astype("i8")
        self.cpus = np.bincount(self.line[known][grouped(pairs)[0]], minlength=len(self.begin))
        self.weights = seen.weights()

    def by_function(self, events: Sequence[str], frames: Frames, symbol: Callable[[int], str]) -> dict[str, Any]:
        """Event -> functions with the lines they touched."""
        seen = self.seen
        if not len(seen.event):
            return {}
        begin, function = seen.functions()
        first, pair = grouped(function << 32 | self.line)
        number = np.bincount(pair, minlength=len(first))
        of, line = function[first], self.line[first]
        order = np.lexsort((-number, of))
        cuts = np.searchsorted(of[order], np.arange(len(begin) + 1))
        samples = np.bincount(function, minlength=len(begin))
        several = np.bincount(of[self.cpus[line] > 1], minlength=len(begin))
        event = seen.event[begin]
        lines = np.diff(cuts)
        made: dict[str, Any] = {}
        for name, top, rest in _ranked(event, samples, events):
            table = []
            for each in top.tolist():
                best = order[cuts[each] : min(cuts[each] + _TOP, cuts[each + 1])]
                told = [{**self._place(line[at], symbol), "samples": int(number[at])} for at in best.tolist()]
                row = {"samples": int(samples[each]), "lines": int(lines[each]), "shared_lines": int(several[each])}
                table.append({**_function(frames, int(seen.frame[begin[each]])), **row, "top_lines": told})
            beyond = np.unique(line[np.isin(of, rest)])
            mine = np.unique(line[event[of] == event[top[0]]])
            made[name] = {
                "samples": int(samples[top].sum() + samples[rest].sum()),
                "lines": len(mine),
                "shared_lines": int((self.cpus[mine] > 1).sum()),
                "functions": table,
                "others": {
                    "functions": len(rest),
                    "samples": int(samples[rest].sum()),
                    "lines": len(beyond),
                    "shared_lines": int((self.cpus[beyond] > 1).sum()),
                },
            }
        return made

    def _place(self, line: Any, symbol: Callable[[int], str]) -> dict[str, Any]:
        """Where a line is: its addresses, None where not told, and the kernel's name for what lies there."""
        row = self.begin[line]
        virtual, physical = (int(column[row]) & ~63 for column in (self.virtual, self.physical))
        user = virtual and not virtual >> 63 and not physical
        return {
            "address": f"{virtual:#x}" if virtual else None,
            "physical": f"{physical:#x}" if physical else None,
            "pid": int(self.seen.pid[row]) if user else None,
            "symbol": symbol(virtual) if virtual >> 63 else "",
        }

    def shared(self, frames: Frames, symbol: Callable[[int], str]) -> dict[str, Any]:
        """Lines touched from more than one CPU, by all events: those in which a line was found modified in another
        cache (HITM, or a peer's) first, then those that were stored to, then those with most samples."""
        seen = self.seen
        count = len(self.begin)
        chosen = np.flatnonzero(self.cpus > 1)
        if not len(chosen):
            return {}
        told = seen.data_source is not None
        meaning = np.zeros((len(seen.event), 1 + len(_FLAGS)), "i8")
        if seen.data_source is not None:
            which, first = codes(seen.data_source)
            meaning = np.array([facts(value) for value in seen.data_source[first].tolist()], "i8")[which]
            meaning[seen.data_source == 0] = 0
        loads, stores, hitm, peer = (np.bincount(self.line, meaning[:, n], count) for n in range(1, 5))
        samples = np.bincount(self.line, minlength=count)
        order = chosen[np.lexsort((-samples[chosen], -np.sign(stores[chosen]), -(hitm + peer)[chosen]))]
        rows_of = np.argsort(self.line, kind="stable")
        cuts = np.searchsorted(self.line[rows_of], np.arange(count + 1))
        table = []
        for each in order[:_ROWS].tolist():
            rows = rows_of[cuts[each] : cuts[each + 1]]
            cpus = np.unique(seen.cpu[rows][seen.cpu[rows] != _NO_CPU])
            row = {
                **self._place(each, symbol),
                "samples": int(samples[each]),
                "loads": int(loads[each]) if told else None,
                "stores": int(stores[each]) if told else None,
                "hitm": int(hitm[each]) if told else None,
                "peer": int(peer[each]) if told else None,
                "cpus": len(cpus),
                "cpu_numbers": cpus[:_CPUS].tolist(),
                "functions": self._touching(rows, meaning, frames, told=told),
            }
            table.append(row)
        rest = order[_ROWS:]
        return {"lines": table, "others": {"lines": len(rest), "samples": int(samples[rest].sum())}}

    def _touching(
        self, rows: NDArray[np.int64], meaning: NDArray[np.int64], frames: Frames, *, told: bool
    ) -> list[dict[str, Any]]:
        """The functions that touched a line most, with the places in it."""
        frame = self.seen.frame[rows]
        used, number = np.unique(frame, return_counts=True)
        made = []
        for at in np.argsort(-number, kind="stable")[:_TOP].tolist():
            mine = rows[frame == used[at]]
            cpus = self.seen.cpu[mine]
            made.append(
                {
                    **_function(frames, int(used[at])),
                    "samples": int(number[at]),
                    "loads": int(meaning[mine, 1].sum()) if told else None,
                    "stores": int(meaning[mine, 2].sum()) if told else None,
                    "cpus": len(np.unique(cpus[cpus != _NO_CPU])),
                    "offsets": np.unique(self.address[mine] & U64(63)).tolist(),
                }
            )
        return made

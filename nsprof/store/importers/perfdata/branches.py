"""Branch stacks (`perf record -b`): what is jumped from where to where, how often mispredicted, in how many cycles.

A sample has some ten branches, most of which were seen before: the distinct ones of each batch are kept as columns
with their sums, and named at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import Frames
from nsprof.store.importers.assemble import U64, grouped, spans
from nsprof.store.importers.codes import codes
from nsprof.store.importers.perfdata import rows as r
from nsprof.store.importers.perfdata.decode import Columns
from nsprof.store.importers.perfdata.places import Places
from nsprof.store.importers.perfdata.resolve import Resolver
from nsprof.store.importers.perfdata.sideband import Side

__all__ = ["Branches", "SomeBranches"]

# struct perf_branch_entry: from, to, and a word of bits of which these are the lowest (the highest ones, in files of
# big-endian machines): mispredicted, predicted, in a transaction, an aborted one; then 16 bits of cycles.
_FLAGS = ("mispredicted", "predicted", "in_transaction", "aborted")
#: what is summed up: "timed" are the branches that tell their cycles
_SUMS = ("entries", *_FLAGS, "cycles", "timed")
_COLUMNS = ("event", "source", "target", "pid", "time", "sums")
_ROWS = 200
_MANY = 1 << 21
_ENTRIES = 1 << 18
_K = (U64(0x9E3779B97F4A7C15), U64(0xD6E8FEB86659FD93), U64(0xA0761D6478BD642F))


@dataclass(slots=True)
class SomeBranches:
    """Distinct branches: an event's, from an address to an address, in a process; -1 where both are the kernel's.
    `time` is that of one of them, `sums` has a row each. `samples` had some, `empty` entries held nothing."""

    event: NDArray[np.int64]
    source: NDArray[np.uint64]
    target: NDArray[np.uint64]
    pid: NDArray[np.int64]
    time: NDArray[np.uint64]
    sums: NDArray[np.float64]
    samples: int = 0
    empty: int = 0

    def merged(self) -> SomeBranches:
        """Equal ones as one."""
        which, first = codes(self.keys())
        return replace(self.take(first), sums=_added(self.sums, which, len(first)))

    def keys(self) -> NDArray[np.uint64]:
        """Equal for equal branches (and for two others among a million with a probability of 3e-8)."""
        key = self.source * _K[0] ^ self.target * _K[1] ^ (self.pid << 8 | self.event).view("u8") * _K[2]
        return key ^ key >> U64(29)

    def take(self, rows: NDArray[np.int64]) -> SomeBranches:
        """Some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})


@dataclass(slots=True)
class Branches:
    """All branches of a file, by batches, and their sums."""

    parts: list[SomeBranches] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("samples", *_SUMS, "empty"), 0))

    @staticmethod
    def of(
        words: NDArray[Any], cols: Columns, rows: NDArray[np.int64], event: NDArray[np.int64], order: str
    ) -> SomeBranches | None:
        """The distinct branches of some (good) samples, None if there are none; `event` has a row for all samples."""
        rows = rows[cols.branches[rows] > 0]
        if not len(rows):
            return None
        ends = np.zeros(len(rows) + 1, "i8")
        np.cumsum(cols.branches[rows], out=ends[1:])
        parts = [_distinct(words, cols, rows[low:high], event, order) for low, high in spans(ends, _ENTRIES)]
        return _joined(parts).merged() if len(parts) > 1 else parts[0]

    def add(self, some: SomeBranches | None) -> None:
        """Take in the branches of a batch."""
        if some is None:
            return
        self.parts.append(some)
        self.sums["samples"] += some.samples
        self.sums["empty"] += some.empty
        for name, value in zip(_SUMS, some.sums.sum(axis=0).tolist(), strict=True):
            self.sums[name] += int(value)
        self.sums["entries"] += some.empty
        if sum(len(part.event) for part in self.parts) > _MANY:
            self.parts = [_joined(self.parts).merged()]

    def summary(self) -> dict[str, int]:
        """The sums over all branches. `empty` entries, in which the hardware had nothing, are among the `entries`."""
        return {name: value for name, value in self.sums.items() if name != "timed" and (value or name != "empty")}

    def tables(
        self, resolver: Resolver, side: Side, event: NDArray[np.uint8], events: Sequence[str]
    ) -> dict[str, Any]:
        """`branches_by_function` and `branch_edges`: by the function jumped from, and by both functions; `event` is
        the profile's number of each of the file's events."""
        if not self.parts:
            return {}
        rows = _joined(self.parts)
        self.parts = []
        source, target = _frames(resolver, side, rows)
        frames = resolver.table.frames()
        number = event[rows.event].astype("i8")

        def function(row: int) -> dict[str, Any]:
            return _named(frames, int(source[row]))

        def edge(row: int) -> dict[str, Any]:
            ends = (("from", source), ("to", target))
            return {f"{end}_{k}": v for end, column in ends for k, v in _named(frames, int(column[row])).items()}

        both = grouped(source << 32 | target)[1]
        return {
            "branches_by_function": _table(number, source, rows.sums, events, "functions", function),
            "branch_edges": _table(number, both, rows.sums, events, "edges", edge),
        }


def _joined(parts: Sequence[SomeBranches]) -> SomeBranches:
    made: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
    return SomeBranches(**made, samples=sum(p.samples for p in parts), empty=sum(p.empty for p in parts))


def _distinct(
    words: NDArray[Any], cols: Columns, rows: NDArray[np.int64], event: NDArray[np.int64], order: str
) -> SomeBranches:
    """The distinct branches of some samples that have some: few enough that their columns stay in the cache."""
    count = cols.branches[rows]
    sample = np.repeat(rows, count)
    at = np.arange(len(sample)) - np.repeat(np.cumsum(count) - count, count)
    at *= cols.branch_words
    at += cols.branch_at[sample]
    source, target, flags = (words[at + n].astype("u8") for n in range(3))
    full = np.flatnonzero(source | target)
    empty = len(source) - len(full)
    if empty:
        sample, source, target, flags = sample[full], source[full], target[full], flags[full]
    pid = np.where(
        (source & target) >> U64(63) > 0, -1, cols.pid[sample]
    )  # of no process: both ends are the kernel's
    made = SomeBranches(event[sample], source, target, pid, cols.time[sample], np.zeros(0), len(rows), empty)
    which, first = codes(made.keys())
    # Of the flags each combination is counted; the cycles are added up.
    bits = _bits(flags, 0, 4, order).astype("i8")
    counts = np.bincount(which.astype("i8") << 4 | bits, minlength=len(first) << 4).reshape(-1, 16)
    cycles = _bits(flags, 4, 16, order)
    sums = np.zeros((len(first), len(_SUMS)))
    sums[:, 0] = counts.sum(axis=1)
    for n in range(4):
        bit = n if order == "<" else 3 - n
        sums[:, 1 + n] = counts[:, np.arange(16) >> bit & 1 > 0].sum(axis=1)
    if cycles.any():
        sums[:, 5] = np.bincount(which, cycles, len(first))
        sums[:, 6] = np.bincount(which, cycles > 0, len(first))
    columns = {name: getattr(made, name)[first] for name in _COLUMNS if name != "sums"}
    return replace(made, **columns, sums=sums)


def _bits(words: NDArray[np.uint64], at: int, width: int, order: str) -> NDArray[np.uint64]:
    """A bit field; the compilers of big-endian machines begin with the highest bits."""
    shift = at if order == "<" else 64 - at - width
    return words >> U64(shift) & U64((1 << width) - 1)


def _added(sums: NDArray[np.float64], which: NDArray[Any], number: int) -> NDArray[np.float64]:
    return np.stack([np.bincount(which, column, number).astype("f8") for column in sums.T], axis=1)


def _named(frames: Frames, index: int) -> dict[str, Any]:
    return {"function": frames.name[index], "module": frames.module[index]}


def _frames(resolver: Resolver, side: Side, rows: SomeBranches) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(frame jumped from, frame jumped to) of every row. The kernel's half are the addresses whose highest bit is
    set, as on all machines of 64 bits that have branch stacks."""
    address = np.concatenate([rows.source, rows.target])
    kernel = address >> U64(63) > 0
    pid = np.where(kernel, -1, np.tile(rows.pid, 2))
    time = np.tile(rows.time, 2)
    life = np.where(kernel, 0, r.lives_of(side, pid, time))
    space = grouped(pid << 24 | life)[1]
    one = grouped(address)[1]
    first, which = grouped(space << 32 | one)  # in the order of spaces, as Places wants them
    places = Places(resolver, space[first], pid[first], time[first])
    modes = np.where(kernel[first], np.uint8(1), np.uint8(2))
    numbers = places.number(address[first], modes, np.arange(len(first)))
    frame = places.frames()[numbers].astype("i8")[which]
    return frame[: len(rows.source)], frame[len(rows.source) :]


def _table(
    event: NDArray[np.int64],
    what: NDArray[np.int64],
    sums: NDArray[np.float64],
    events: Sequence[str],
    name: str,
    said: Callable[[int], dict[str, Any]],
) -> dict[str, Any]:
    """Event -> the 200 of `what` with most branches, and the others summed up; `said` tells of a row what it is."""
    first, which = grouped(event << 32 | what)
    total = _added(sums, which, len(first))
    order = np.argsort(-total[:, 0], kind="stable")
    made: dict[str, Any] = {}
    for each in np.unique(event).tolist():
        mine = order[event[first][order] == each]
        rows = [{**said(int(first[at])), **_summed(total[at])} for at in mine[:_ROWS].tolist()]
        rest = mine[_ROWS:]
        made[events[each]] = {name: rows, "others": {name: len(rest), **_summed(total[rest].sum(axis=0))}}
    return made


def _summed(sums: NDArray[np.float64]) -> dict[str, Any]:
    made = dict(zip(("branches", *_SUMS[1:]), map(int, sums.tolist()), strict=True))
    timed, cycles = made.pop("timed"), made.pop("cycles")
    return {**made, "mean_cycles": cycles / timed if timed else None}

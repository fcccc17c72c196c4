"""What samples hold that a profile has no place for - weights, data addresses and sources: summed up, and said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers.perfdata.decode import Columns
from nsprof.store.importers.perfdata.memory import NO_WEIGHT

__all__ = ["Passed", "data_source", "weights_by_function"]

_FUNCTIONS = 200

_OPS = ((2, "load"), (4, "store"), (8, "prefetch"), (16, "execute"))
_LEVELS = (
    (0x0008, "L1"),
    (0x0010, "LFB"),
    (0x0020, "L2"),
    (0x0040, "L3"),
    (0x0080, "local RAM"),
    (0x0300, "remote RAM"),
    (0x0C00, "remote cache"),
    (0x1000, "I/O"),
    (0x2000, "uncached"),
)
_LEVEL_NUMBERS = {
    1: "L1",
    2: "L2",
    3: "L3",
    4: "L4",
    8: "uncached",
    9: "CXL",
    10: "I/O",
    12: "LFB",
    13: "RAM",
    14: "PMEM",
}


def data_source(value: int) -> str:
    """`load L1 hit` and the like of a PERF_SAMPLE_DATA_SRC (union perf_mem_data_src in uapi/linux/perf_event.h)."""
    op = "/".join(name for bit, name in _OPS if value & bit) or "access"
    level = value >> 5 & 0x3FFF
    where = _LEVEL_NUMBERS.get(value >> 33 & 0xF) or "/".join(name for bits, name in _LEVELS if level & bits)
    outcome = "hit" if level & 2 else "miss" if level & 4 else ""
    return " ".join(word for word in (op, where or "unknown level", outcome) if word)


def weights_by_function(
    event: NDArray[Any], frame: NDArray[Any], weight: NDArray[np.uint32], events: Sequence[str], names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Event -> the functions with the largest sums of sample weights (for memory events: cycles that accesses took),
    each with its samples, mean, median and 99th percentile (the smallest weight that so many samples do not exceed).

    `event`, `frame` (of the leaf) and `weight` are columns with a row a sample; NO_WEIGHT rows are left out.
    """
    rows = np.flatnonzero(weight != NO_WEIGHT)
    if not len(rows):
        return {}
    rows = rows[np.lexsort((weight[rows], frame[rows], event[rows]))]
    function = event[rows].astype("i8") << 32 | frame[rows].astype("i8")
    first = np.flatnonzero(np.diff(function, prepend=-1))
    number = np.diff(np.append(first, len(rows)))
    sums = np.add.reduceat(weight[rows].astype("f8"), first)
    made: dict[str, list[dict[str, Any]]] = {}
    for each in np.argsort(-sums, kind="stable").tolist():
        table = made.setdefault(events[function[first[each]] >> 32], [])
        if len(table) == _FUNCTIONS:
            continue
        ordered, count = weight[rows[first[each] : first[each] + number[each]]], int(number[each])
        table.append(
            {
                "function": names[function[first[each]] & 0xFFFFFFFF],
                "samples": count,
                "mean": float(sums[each]) / count,
                "median": int(ordered[(count + 1) // 2 - 1]),
                "p99": int(ordered[-(-count * 99 // 100) - 1]),
            }
        )
    return made


@dataclass(slots=True)
class Passed:
    """Sums over all samples."""

    weights: int = 0
    weight_sum: int = 0
    addresses: int = 0
    sources: Counter[int] = field(default_factory=Counter)

    def add(self, cols: Columns, rows: NDArray[np.int64]) -> None:
        """Take in some (good) samples."""
        if cols.latency is not None:
            self.weights += len(rows)
            self.weight_sum += int(cols.latency[rows].astype("f8").sum())
        if cols.address is not None:
            self.addresses += int(np.count_nonzero(cols.address[rows]))
        if cols.data_source is not None:
            values, counts = np.unique(cols.data_source[rows], return_counts=True)
            if len(self.sources) < 100_000:
                self.sources.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def summary(self) -> dict[str, Any]:
        """The sums, for the metadata."""
        made: dict[str, Any] = {}
        if self.weights:
            made["sample_weights"] = {"samples": self.weights, "sum": self.weight_sum}
        if self.addresses:
            made["data_addresses"] = self.addresses
        names: Counter[str] = Counter()
        for value, count in self.sources.items():
            names[data_source(value)] += count
        if names:
            made["data_sources"] = dict(names.most_common(1000))
        return made

    def notes(self, branches: Mapping[str, int]) -> list[str]:
        """A line about what a profile does not keep of every sample, if there was any of it."""
        words = []
        if branches["entries"]:
            words.append(f"{branches['entries']:,} branch entries of {branches['samples']:,} samples")
        for number, what in (
            (self.weights, "weights"),
            (self.addresses, "data addresses"),
            (sum(self.sources.values()), "data sources"),
        ):
            if number:
                words.append(f"the {what} of {number:,} samples")
        return [f"kept as sums only (nsprof report --memory, --branches): {', '.join(words)}"] if words else []

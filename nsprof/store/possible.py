"""What the numbers of a profile's tables can be: one table of rules, asked when a file is read.

A file comes from somewhere else, and a number that cannot be (an own cost of -25 %, an infinity of busy seconds)
would be reported as a fact. What the rules let through is what docs/file-format.md says of each column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError

__all__ = ["RULES", "WORDS", "check_numbers", "check_words"]

_Numbers = Mapping[str, NDArray[Any]]
#: A window of CPU time is read a little before or after the window of the run: up to twice and a second is no lie.
_FACTOR, _SLACK_S = 2.0, 1.0
_COUNTER = 2.0**64  # the kernel's counters have 64 bits


@dataclass(frozen=True, slots=True)
class Rule:
    """What a column must be, in words that follow "must be", and for which of its rows that holds."""

    words: str
    holds: Callable[[NDArray[Any]], NDArray[Any]]


def _between(low: float, high: float, words: str) -> Rule:
    return Rule(words, lambda v: (v >= low) & (v <= high))  # a NaN is in no range


def _at_least(low: int) -> Rule:
    words = "0 or more" if low == 0 else f"{low} (not known) or more"
    return Rule(words, lambda v: v >= low)


_AMOUNT = Rule("a finite number, 0 or more", lambda v: np.isfinite(v) & (v >= 0))
_SHARE = Rule("a share, 0 to 1, or NaN", lambda v: np.isnan(v) | ((v >= 0) & (v <= 1)))
_MEASURED = Rule("a finite number, 0 or more, or NaN", lambda v: np.isnan(v) | (np.isfinite(v) & (v >= 0)))
_COUNT, _COUNT_OR_NONE = _at_least(0), _at_least(-1)
_MOVED = _between(-_COUNTER, _COUNTER, "a finite number of 64 bits")
_OWN = Rule("its row's number", lambda v: v == np.arange(len(v)))

#: table -> column -> rule. Row numbers that lead into other tables, and what an unsigned type says already, are
#: checked where the tables are put together. `run_values.value` is what another tool printed and kept as it is.
RULES: dict[str, dict[str, Rule]] = {
    "events": {"event": _OWN, "period": _COUNT, "frequency_hz": _COUNT},
    "runs": {
        "run": _OWN,
        "started": _between(0, 1e11, "a time in seconds since 1970, or 0"),
        "duration_s": _between(0, 1e9, "a finite number of seconds, 0 (not known) or more"),
        "cpus": _between(0, 1 << 16, "0 (not known) to 65536"),
        "cpu_steal_s": _AMOUNT,
        "own_cpu_s": _AMOUNT,
        "status": _between(-255, 255, "an exit status, or -1"),
        "expected": _COUNT_OR_NONE,
        "seen": _COUNT_OR_NONE,
        "lost_stack_collisions": _COUNT_OR_NONE,
        "lost_map_full": _COUNT_OR_NONE,
        "lost_throttled": _COUNT_OR_NONE,
        "lost_lost_records": _COUNT_OR_NONE,
        "lost_no_stack": _COUNT_OR_NONE,
    },
    "run_cpus": {"cpu": _COUNT, "busy_s": _MEASURED, "lost_share": _SHARE},
    "denominators": {"value": _AMOUNT},
    "run_words": {"position": _COUNT},
    "namespaces": {"namespace": _OWN, "birth_slice": _COUNT},
    "devices": {"device": _OWN, "ifindex": _COUNT, "mtu": _COUNT},
    "tasks": {"task": _OWN, "tgid": _COUNT_OR_NONE, "pid": _COUNT_OR_NONE},
    "frames": {"frame": _OWN},
    "stacks": {"stack": _OWN},
    "samples": {"weight": _AMOUNT},
    "counters": {"cpu": _at_least(-1), "start": _MOVED, "delta": _MOVED},
    "ledger": {"calls": _COUNT, "value_bytes": _COUNT_OR_NONE},
    "probes": {"hits": _COUNT, "cost_ns_per_hit": _AMOUNT, "attach_ms": _AMOUNT},
}

#: table -> column -> the words that may stand there.
WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "events": {"kind": ("sampled", "counted", "modelled")},
    "run_cpus": {"side": ("dut", "remote", "")},
    "namespaces": {"role": ("host", "remote", "container", "watched", "")},
    "counters": {"scope": ("device", "netns", "cpu", "softnet", "softirq", "irq", "system")},
    "probes": {"state": ("attached", "refused", "shed")},
}


def check_words(table: str, column: str, data: pa.ChunkedArray) -> None:
    """Raise ProfileFormatError for a word that is not among those of its column."""
    known = WORDS.get(table, {}).get(column)
    if known is None:
        return
    for word in data.unique().to_pylist():
        if word not in known:
            row = data.to_pylist().index(word)
            said = ", ".join(each or "empty" for each in known)
            raise ProfileFormatError(f"damaged: {_place(table, column, row, {})} is {word[:60]!r}: must be {said}")


def check_numbers(number: Callable[[str, str], NDArray[Any]], columns: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ProfileFormatError, with the place and what must stand there, for the first number that cannot be.

    `number` gives a numeric column of a table as numpy, `columns` the columns of each table.
    """
    for table, rules in RULES.items():
        for column, rule in rules.items():
            values = number(table, column)
            with np.errstate(invalid="ignore"):
                bad = np.flatnonzero(~rule.holds(values))
            if len(bad):
                runs = {"run": number(table, "run")} if table != "runs" and "run" in columns[table] else {}
                _refuse(table, column, int(bad[0]), values[bad[0]], rule.words, runs)
    _check_pairs(number)


def _check_pairs(number: Callable[[str, str], NDArray[Any]]) -> None:
    """What one number says of another."""
    duration = number("runs", "duration_s")
    there = number("runs", "cpus") * duration
    own = number("runs", "own_cpu_s")
    for row in np.flatnonzero((there > 0) & (own > _FACTOR * there + _SLACK_S))[:1]:
        words = f"no more than its CPUs had in {duration[row]:g} s"
        _refuse("runs", "own_cpu_s", int(row), own[row], words, {})
    run, busy = number("run_cpus", "run"), number("run_cpus", "busy_s")
    if len(run) and int(run.min()) >= 0 and int(run.max()) < len(duration):
        window = duration[run]
        with np.errstate(invalid="ignore"):
            long = np.flatnonzero((window > 0) & (busy > _FACTOR * window + _SLACK_S))
        for row in long[:1]:
            words = f"no more than the {window[row]:g} s of its run"
            _refuse("run_cpus", "busy_s", int(row), busy[row], words, {"run": run})
    count, weight = number("samples", "count"), number("samples", "weight")
    for row in np.flatnonzero((count == 0) & (weight > 0))[:1]:
        words = f"1 or more, as its weight is {weight[row]:g}"
        _refuse("samples", "count", int(row), count[row], words, {"run": number("samples", "run")})
    for column, values in (("count", count), ("weight", weight)):
        with np.errstate(over="ignore"):
            total = float(values.sum(dtype="f8"))
        if not math.isfinite(total) or (column == "count" and total >= 2.0**63):
            raise ProfileFormatError(f"damaged: samples.{column} adds up to {total:g}: more than can be counted")


def _place(table: str, column: str, row: int, more: _Numbers) -> str:
    """A cell in words. Runs count from 1, as in every report; rows of other tables from 0, as in the file."""
    if table == "runs":
        return f"runs.{column} of run {row + 1}"
    of = f" (run {int(more['run'][row]) + 1})" if "run" in more else ""
    return f"{table}.{column} in row {row}{of}"


def _refuse(table: str, column: str, row: int, value: Any, words: str, more: _Numbers) -> None:
    raise ProfileFormatError(f"damaged: {_place(table, column, row, more)} is {value.item()}: must be {words}")

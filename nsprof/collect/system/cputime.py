"""How long each CPU was busy, to the nanosecond where the kernel keeps idle time that fine.

The kernel adds up each CPU's idle time in nanoseconds (tick_sched, `idle_sleeptime`); /proc/stat shows the same
sum in ticks of 10 ms, /proc/timer_list in nanoseconds. An idle period that still lasts is in neither of its
fields, so each CPU's row is read by a thread that runs on that CPU: what runs is not idle, and its sum is complete.
Interrupts that arrive while a CPU idles end the idle period, so interrupt and softirq work counts as busy.
Where there is no timer_list (not root, or no NO_HZ), /proc/stat's ticks serve, and `CpuTimes.source` says so.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CpuTimes", "busy_seconds", "read", "wall_seconds"]

#: With more CPUs than this, one read serves all and a CPU that naps with its tick running may be off by one tick.
_MAX_VISITS = 64
_ROW = re.compile(r"^cpu: (\d+)$", re.MULTILINE)
_FIELD = re.compile(
    r"^\s+\.(nohz|nohz_mode|tick_stopped|idle_entrytime|idle_waketime|idle_sleeptime|iowait_sleeptime)\s*:\s*(\d+)",
    re.MULTILINE,
)
_NOW = re.compile(r"^now at (\d+) nsecs", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """`idle` maps each online CPU to (time of reading, idle and iowait time since boot), both in nanoseconds.

    `steal_s` maps CPUs to stolen seconds since boot, `resolution_ns` how fine `idle` is.
    """

    source: str
    resolution_ns: int
    idle: Mapping[int, tuple[int, int]]
    steal_s: Mapping[int, float] = field(default_factory=dict)


def read() -> CpuTimes:
    """Read now. Takes well under a millisecond a CPU."""
    ticks, steal = _from_stat()
    try:
        idle = _from_timer_list(ticks.idle)
    except (OSError, ValueError):
        return ticks
    return CpuTimes("/proc/timer_list", 1, idle, steal)


def busy_seconds(before: CpuTimes, after: CpuTimes) -> dict[int, float]:
    """CPU -> busy seconds between two readings: wall - idle - iowait. CPUs that came or went are left out."""
    if before.source != after.source:
        return {}
    busy = {}
    for cpu, (end_ns, end_idle_ns) in after.idle.items():
        if cpu in before.idle:
            begin_ns, begin_idle_ns = before.idle[cpu]
            wall_ns = end_ns - begin_ns
            busy[cpu] = min(max(0, wall_ns - (end_idle_ns - begin_idle_ns)), wall_ns) / 1e9
    return busy


def wall_seconds(before: CpuTimes, after: CpuTimes) -> float:
    """Mean over the CPUs of the time between their readings, seconds; 0.0 when there is none in common."""
    spans = [end[0] - before.idle[cpu][0] for cpu, end in after.idle.items() if cpu in before.idle]
    return sum(spans) / len(spans) / 1e9 if spans else 0.0


def _from_stat() -> tuple[CpuTimes, dict[int, float]]:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    text = Path("/proc/stat").read_text()
    now = time.monotonic_ns()
    idle, steal = {}, {}
    for line in text.splitlines():
        fields = line.split()
        if not re.fullmatch(r"cpu\d+", fields[0]):
            continue
        cpu = int(fields[0][3:])
        idle[cpu] = (now, round((int(fields[4]) + int(fields[5])) * tick_s * 1e9))
        steal[cpu] = int(fields[8]) * tick_s if len(fields) > 8 else 0.0
    return CpuTimes("/proc/stat", round(tick_s * 1e9), idle, steal), steal


def _from_timer_list(cpus: Mapping[int, object]) -> dict[int, tuple[int, int]]:
    """Raises OSError without permission, ValueError when a CPU has no nanosecond idle time."""
    if len(cpus) > _MAX_VISITS:
        now, rows = _rows()
        return {cpu: (now, _idle_ns(rows[cpu], now, running=False)) for cpu in cpus if cpu in rows}
    mask = os.sched_getaffinity(0)
    found = {}
    try:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, {cpu})
                here = True
            except OSError:  # a CPU outside our cpuset
                here = False
            now, rows = _rows()
            if cpu in rows:
                found[cpu] = (now, _idle_ns(rows[cpu], now, running=here))
    finally:
        os.sched_setaffinity(0, mask)
    return found


def _rows() -> tuple[int, dict[int, dict[str, int]]]:
    text = Path("/proc/timer_list").read_text(errors="replace")
    now = _NOW.search(text)
    if not now:
        raise ValueError("no time in /proc/timer_list")
    parts = _ROW.split(text)  # [head, cpu, text, cpu, text, ...]
    rows = {
        int(cpu): {name: int(value) for name, value in _FIELD.findall(part)}
        for cpu, part in zip(parts[1::2], parts[2::2], strict=True)
    }
    return int(now[1]), rows


def _idle_ns(row: Mapping[str, int], now_ns: int, *, running: bool) -> int:
    """Idle time of one CPU; that of an ongoing idle period is added when its tick is stopped (else unknown, <= 1
    tick)."""
    has_nohz = row.get("nohz") or row.get("nohz_mode")  # nohz_mode: before Linux 6.10
    if not has_nohz or "idle_sleeptime" not in row:
        raise ValueError("idle time is not kept in nanoseconds")
    idle = row["idle_sleeptime"] + row.get("iowait_sleeptime", 0)
    if not running and row.get("tick_stopped") and row["idle_entrytime"] > row.get("idle_waketime", 0):
        idle += max(0, now_ns - row["idle_entrytime"])
    return idle

"""CPU time is read where the kernel keeps it finest, and agrees with the coarse account."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nsprof.collect.system import cputime


def test_idle_period_that_lasts_is_added_only_when_it_is_known_to_last() -> None:
    row = {"nohz": 1, "tick_stopped": 1, "idle_entrytime": 4, "idle_waketime": 3, "idle_sleeptime": 700}
    assert cputime._idle_ns(row, 10, running=False) == 706
    assert cputime._idle_ns(row, 10, running=True) == 700
    assert cputime._idle_ns(row | {"tick_stopped": 0}, 10, running=False) == 700
    assert cputime._idle_ns(row | {"idle_waketime": 5}, 10, running=False) == 700
    assert cputime._idle_ns({"nohz_mode": 2, "idle_sleeptime": 5}, 10, running=True) == 5  # before Linux 6.10
    assert cputime._idle_ns(row | {"iowait_sleeptime": 23}, 10, running=True) == 723


def test_no_nanoseconds_without_nohz() -> None:
    for row in ({"nohz": 0, "idle_sleeptime": 5}, {"idle_sleeptime": 5}, {"nohz": 1}):
        with pytest.raises(ValueError, match="not kept in nanoseconds"):
            cputime._idle_ns(row, 10, running=True)


def test_affinity_is_put_back() -> None:
    before = os.sched_getaffinity(0)
    cputime.read()
    assert os.sched_getaffinity(0) == before


def test_agrees_with_the_ticks_of_proc_stat() -> None:
    coarse_before, fine_before = cputime._from_stat()[0], cputime.read()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    time.sleep(0.3)
    fine_after, coarse_after = cputime.read(), cputime._from_stat()[0]
    fine = cputime.busy_seconds(fine_before, fine_after)
    coarse = cputime.busy_seconds(coarse_before, coarse_after)
    # The windows differ by the time of reading, the coarse one by up to two ticks of 10 ms.
    reading = cputime.wall_seconds(coarse_before, coarse_after) - cputime.wall_seconds(fine_before, fine_after)
    assert fine.keys() == coarse.keys()
    for cpu, busy in fine.items():
        assert abs(busy - coarse[cpu]) < 0.03 + abs(reading)
    assert max(fine.values()) > 0.25


def test_own_cpu_time_shows_up_as_busy() -> None:
    before, used = cputime.read(), time.thread_time()
    while time.thread_time() - used < 0.2:
        pass
    after = cputime.read()
    busy = cputime.busy_seconds(before, after)
    assert sum(busy.values()) > 0.18  # a tick of 10 ms at either end may not be in yet
    assert all(0 <= b <= cputime.wall_seconds(before, after) + 0.05 for b in busy.values())


def test_every_online_cpu_is_there() -> None:
    online = Path("/sys/devices/system/cpu/online").read_text()
    assert len(cputime.read().idle) >= 1
    assert str(max(cputime.read().idle)) in online

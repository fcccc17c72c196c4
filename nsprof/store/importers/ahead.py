"""Work on the pieces of a large input beside the work on those before them."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["WORKERS", "ahead"]

#: Threads beside the one that puts together what they made. More would wait for it, and hold more pieces in memory.
WORKERS = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def ahead(function: Callable[[_Item], _Made], items: Iterable[_Item]) -> Iterator[_Made]:
    """`function` of every item, in order, up to WORKERS items being worked on beforehand in threads.

    For functions that spend their time in numpy and Arrow, which let other threads run. For an input of one piece,
    and on one CPU, no thread is started.
    """
    rest = iter(items)
    begin = list(itertools.islice(rest, WORKERS))
    if len(begin) < 2:
        yield from map(function, itertools.chain(begin, rest))
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            pending = deque(pool.submit(function, item) for item in begin)
        except RuntimeError:  # no thread can be had (ulimit -u, a cgroup's pids.max)
            pool.shutdown(cancel_futures=True)
            yield from map(function, itertools.chain(begin, rest))
            return
        while pending:
            made = pending.popleft().result()
            pending.extend(pool.submit(function, item) for item in itertools.islice(rest, 1))
            yield made

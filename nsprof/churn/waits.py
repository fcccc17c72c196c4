"""Where processes wait: kernel stacks of sleeping tasks, looked at many times a second.

A CPU profile shows what burns; creating and deleting namespaces mostly waits (for rtnl, for an RCU grace period, for
`cleanup_net`). /proc/PID/stack shows a sleeping task's kernel stack; each look stands for the time since the last.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["EVENT", "WaitSampler"]

EVENT = "off-cpu"
INTERVAL_S = 0.002
_FRAME = re.compile(r"\] ([^+\s]+)\+0x")
#: How often the list of kernel workers is read anew.
_WORKERS_S = 0.1


class WaitSampler:
    """Looks at the tasks that `watched` names, and at the kernel workers that clean up network namespaces.

    `stacks` maps (comm, frames leaf first) to nanoseconds waited.
    """

    def __init__(self, watched: Callable[[], list[int]]) -> None:
        self.stacks: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.looks = 0
        self._watched = watched

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample within the block, from a thread."""
        ended = threading.Event()
        thread = threading.Thread(target=self._sample, args=(ended,), name="nsprof-waits", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _sample(self, ended: threading.Event) -> None:
        last, workers, listed = time.monotonic_ns(), list[int](), 0
        while not ended.wait(INTERVAL_S):
            now = time.monotonic_ns()
            if now - listed > _WORKERS_S * 1e9:
                workers, listed = netns_workers(), now
            for pid in (*self._watched(), *workers):
                self._look(pid, now - last, worker=pid in workers)
            last = now
            self.looks += 1

    def _look(self, pid: int, passed_ns: int, *, worker: bool) -> None:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape")
            comm, _, rest = stat.partition("(")[2].rpartition(")")
            if rest.split()[0] not in ("D", "S"):
                return
            frames = tuple(_FRAME.findall(Path(f"/proc/{pid}/stack").read_text()))
        except OSError:  # it has ended meanwhile
            return
        if worker and "cleanup_net" not in frames:
            return  # waiting for work is no wait of ours
        if frames:
            self.stacks["cleanup_net worker" if worker else comm, frames] += passed_ns


def netns_workers() -> list[int]:
    """The kernel workers that have to do with network namespaces now (`kworker/u8:3+netns`)."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                comm = (place / "comm").read_text(errors="surrogateescape")
            except OSError:
                continue
            if comm.startswith("kworker/u") and "netns" in comm:
                found.append(int(place.name))
    return found


def cleaning() -> bool:
    """Whether a kernel worker is taking namespaces down right now."""
    for pid in netns_workers():
        try:
            if "cleanup_net" in Path(f"/proc/{pid}/stack").read_text():
                return True
        except OSError:
            continue
    return False

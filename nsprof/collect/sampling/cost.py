"""What one hit of the sampler costs, found by comparing the same work with the sampler on and off.

BPF run statistics would leave out the timer, the interrupt and the set-up of the program's arguments, and slow
every BPF program on the host while they are on; the comparison sees all that a sampled task loses.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable

from nsprof.collect.bpf.syscalls import perf_ioctl

__all__ = ["CALIBRATION_HZ", "ROUND_TRIPS", "Echo", "cost_per_hit_ns", "paired_difference_ns"]

#: High enough that the difference stands out of the noise, low enough that hits do not follow each other.
CALIBRATION_HZ = 8_000

#: Packets in one piece of work: some 2 ms between two looks at the clock.
ROUND_TRIPS = 500


def cost_per_hit_ns(program: int, *, open_event: Callable[[int, int], int], seconds: float) -> float:
    """Nanoseconds a hit of a perf event program, interrupt included, as a median over pairs off/on.

    The work is UDP to itself over loopback, so that stacks are as deep as a packet's. `open_event(cpu, hz)` opens
    a disabled event. The calling thread is pinned to its CPU meanwhile.
    """
    before = os.sched_getaffinity(0)
    cpu = min(before)
    os.sched_setaffinity(0, {cpu})
    try:
        fd = open_event(cpu, CALIBRATION_HZ)
        try:
            perf_ioctl(fd, "set_bpf", program)
            with Echo() as work:
                added, took = paired_difference_ns(
                    work, on=lambda: perf_ioctl(fd, "enable"), off=lambda: perf_ioctl(fd, "disable"), seconds=seconds
                )
                return max(0.0, added / (took * CALIBRATION_HZ / 1e9))
        finally:
            os.close(fd)
    finally:
        os.sched_setaffinity(0, before)


def paired_difference_ns(
    work: Callable[[], None], *, on: Callable[[], None], off: Callable[[], None], seconds: float, repeats: int = 1
) -> tuple[float, float]:
    """CPU time that a piece of work takes longer when it is on, and the time it takes then, in ns; medians of rounds.

    Each round is off, on, off, so that drift cancels out. Each time is the best of `repeats`: small differences need
    it, but where the added cost is a matter of chance (ticks) only 1 is fair. The first may be negative: noise.
    """
    work()
    deadline = time.monotonic() + seconds
    added: list[float] = []
    took: list[float] = []
    while time.monotonic() < deadline or len(added) < 5:
        first = _timed(work, repeats)
        on()
        loaded = _timed(work, repeats)
        off()
        last = _timed(work, repeats)
        added.append(loaded - (first + last) / 2)
        took.append(loaded)
    return statistics.median(added), statistics.median(took)


def _timed(work: Callable[[], None], repeats: int) -> int:
    times = []
    for _ in range(repeats):
        begun = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - begun)
    return min(times)


class Echo:
    """A socket that sends to itself: `with Echo() as work` gives the piece of work."""

    def __enter__(self) -> Callable[[], None]:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.connect(self.socket.getsockname())
        self.socket.settimeout(5.0)

        def work() -> None:
            send, receive = self.socket.send, self.socket.recv
            for _ in range(ROUND_TRIPS):
                send(b"x")
                receive(16)

        return work

    def __exit__(self, *_: object) -> None:
        self.socket.close()

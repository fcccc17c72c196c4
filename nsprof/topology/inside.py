"""Processes that are still inside a run's namespaces: servers whose nsprof was killed outlive it.

Removing the names of a namespace does not end it as long as a process is in it, so these are ended first.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

__all__ = ["end_inside", "pids_inside"]

_GRACE_S = 1.0
_KILL_S = 5.0
#: A process may start another while it is being ended: that one is found in the next round.
_ROUNDS = 5
#: Processes ended at once; each takes a file descriptor.
_AT_ONCE = 200


def end_inside(places: Iterable[Path]) -> int:
    """End the processes that are in the network namespaces mounted at `places`; returns how many have ended.

    They get SIGTERM, and a second later SIGKILL. Never touched is whoever is in the caller's namespace or in that of
    PID 1, even if it is among `places`. The mounts must stand until this returns, so that no other namespace can get
    the inode numbers meanwhile.
    """
    wanted = _namespaces(places)
    ended = 0
    for _ in range(_ROUNDS if wanted else 0):
        found = _processes(wanted)
        if not found:
            break
        for start in range(0, len(found), _AT_ONCE):
            ended += _end(found[start : start + _AT_ONCE], wanted)
    return ended


def pids_inside(places: Iterable[Path]) -> list[int]:
    """The processes that `end_inside` would end."""
    wanted = _namespaces(places)
    return _processes(wanted) if wanted else []


def _namespaces(places: Iterable[Path]) -> frozenset[int]:
    own = Path("/proc/thread-self/ns/net").stat()
    spared = {own.st_ino, _namespace("self"), _namespace("1")}
    found = set()
    for place in places:
        with suppress(OSError):  # removed meanwhile
            at = place.stat()
            if at.st_dev == own.st_dev:  # else a plain file that carries no mount
                found.add(at.st_ino)
    return frozenset(found - spared)


def _namespace(pid: str) -> int:
    """The inode of a process's namespace; 0 when it has ended or is not ours to look at."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116 - of every process: a Path object costs more
    except OSError:
        return 0


def _processes(wanted: Collection[int]) -> list[int]:
    names = os.listdir("/proc")  # noqa: PTH208 - as above
    return [int(name) for name in names if name.isdigit() and _namespace(name) in wanted]


def _end(pids: Iterable[int], wanted: Collection[int]) -> int:
    with ExitStack() as stack:
        living: list[int] = []
        for pid in pids:
            try:
                door = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, door)
            if _namespace(str(pid)) in wanted:  # looked at again: the number may have passed on before the door stood
                living.append(door)
        number = len(living)
        for how, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
            for door in living:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(door, how)
            living = _wait(living, patience_s)
        return number - len(living)


def _wait(doors: Iterable[int], patience_s: float) -> list[int]:
    """Those that have not ended in time."""
    living = set(doors)
    poll = select.poll()
    for door in living:
        poll.register(door, select.POLLIN)
    until = time.monotonic() + patience_s
    while living and (left := until - time.monotonic()) > 0:
        for door, _ in poll.poll(left * 1000):
            living.discard(door)
            poll.unregister(door)
    return sorted(living)

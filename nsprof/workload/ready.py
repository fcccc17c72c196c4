"""Whether a port is free in a namespace, and whether a server listens on it: looked up, not slept for."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from nsprof.errors import WorkloadError
from nsprof.netns import entered

__all__ = ["free_port", "listening_inodes", "wait_answering", "wait_listening"]

_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_POLL_S = 0.003


def free_port(netns: str | os.PathLike[str] | None, asked: int, default: int, *, program: str, hint: str = "") -> int:
    """A TCP port that nobody has bound in the namespace: `asked` (or an error), else `default`, else any.

    Raises WorkloadError when the asked port is taken.
    """
    with entered(netns):
        if asked:
            reason = _bind_error(asked)
            if reason:
                raise WorkloadError(
                    f"{program}: port {asked} cannot be used in {netns or 'this namespace'}: {reason}",
                    hint or "choose another with -p, or leave -p out and nsprof finds a free one",
                )
            return asked
        if not _bind_error(default):
            return default
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            return port


def _bind_error(port: int) -> str:
    """Why a listener could not be set up on the port on any address, IPv4 or IPv6; "" when it could."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As the servers do: connections of an earlier one that linger in TIME_WAIT do not matter.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
                probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # no IPv6 there
                continue
            return error.strerror or str(error)
        except OverflowError:
            return "not a port number"
    return ""


def wait_listening(pid: int, port: int, timeout_s: float) -> Literal["listening", "ended", "silent"]:
    """Wait until a child process itself listens on the port ("silent": not within the time). Does not reap it.

    The socket must be one of the process's own, so that another listener is never taken for it.
    """
    deadline = time.monotonic() + timeout_s
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        while time.monotonic() < deadline:
            if listening_inodes(pid, port) & _own_sockets(pid):
                return "listening"
            if poller.poll(_POLL_S * 1000):
                return "ended"
    finally:
        os.close(pidfd)
    return "silent"


def wait_answering(netns: str | os.PathLike[str] | None, address: str, port: int, timeout_s: float) -> str:
    """Try to connect from a namespace until it works, which gives "", or the time is over: then why it does not."""
    deadline = time.monotonic() + timeout_s
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        left = deadline - time.monotonic()
        with entered(netns):
            probe = socket.socket(family, socket.SOCK_STREAM)
        with probe:
            probe.settimeout(max(0.05, min(2.0, left)))
            try:
                probe.connect((address, port))
            except OSError as error:
                wrong = error.strerror or str(error)
            else:
                return ""
        if time.monotonic() + 0.1 >= deadline:
            return wrong
        time.sleep(0.1)


def listening_inodes(pid: int, port: int) -> frozenset[int]:
    """Inodes of the TCP sockets listening on `port` in the process's network namespace."""
    return frozenset(
        int(fields[9])
        for table in ("tcp", "tcp6")
        for fields in _socket_rows(Path(f"/proc/{pid}/net/{table}"))
        if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port
    )


def _socket_rows(path: Path) -> Iterator[list[str]]:
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:  # the process is gone, or there is no IPv6
        return
    yield from (fields for fields in map(str.split, lines) if len(fields) > 9)


def _own_sockets(pid: int) -> frozenset[int]:
    found = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - a Path object a descriptor costs more than the look
    except OSError:
        return frozenset()
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 - the same
        except OSError:  # closed since
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return frozenset(found)

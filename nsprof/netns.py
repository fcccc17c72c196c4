"""Network namespaces as files, and starting processes inside them.

The one place where the process (one thread of it) changes its namespace. Making namespaces is topology's work.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nsprof.errors import CommandNotFound, NsprofError, TopologyError
from nsprof.escape import as_stored

__all__ = ["CLONE_NEWNET", "cookie", "entered", "inode", "resolve", "spawn"]

CLONE_NEWNET = 0x40000000
_SO_NETNS_COOKIE = 71  # include/uapi/asm-generic/socket.h, Linux 5.14+
_libc = ctypes.CDLL(None, use_errno=True)


def inode(path: str | os.PathLike[str] = "/proc/self/ns/net") -> int:
    """The inode number by which the kernel shows a namespace (`net:[4026531840]`). Raises TopologyError."""
    try:
        return Path(path).stat().st_ino
    except OSError as error:
        raise TopologyError(f"network namespace {os.fspath(path)} cannot be read: {error.strerror}") from error


def cookie(path: str | os.PathLike[str]) -> int:
    """The namespace's cookie, unique for the life of the kernel; 0 where the kernel has none (before 5.14)."""
    import socket

    with entered(path), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            raw = probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
        except OSError:
            return 0
    return int.from_bytes(raw, "little")


def resolve(word: str) -> str:
    """The path of the namespace that a user's word means: a name of `ip netns`, a PID, or a path.

    A namespace whose name is a number goes before the process of that number, as `ip netns exec` has it. Raises
    TopologyError naming what was tried.
    """
    if "/" in word:
        path = Path(word)
    elif word.isdigit() and not (Path("/run/netns") / word).exists() and Path(f"/proc/{word}").is_dir():
        path = Path(f"/proc/{word}/ns/net")
    elif word in ("", ".", ".."):
        raise TopologyError(f"no network namespace {word!r}", "give a name of 'ip netns', a PID or a path")
    else:
        path = Path("/run/netns") / word
    if not path.exists():
        known = sorted(p.name for p in Path("/run/netns").iterdir()) if Path("/run/netns").is_dir() else []
        shown = [name for name in known if as_stored(name) == word]
        if shown:  # typed as it was shown, a byte that is no UTF-8 written out
            path = Path("/run/netns") / shown[0]
    if not path.exists():
        names = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise TopologyError(
            f"no network namespace {word!r}: {path} does not exist",
            f"names here: {names}" if known else "give a name of 'ip netns', a PID or a path",
        )
    with entered(path):  # proves that it is a network namespace and that we may enter it
        return str(path)


@contextmanager
def entered(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """The calling thread is in the namespace within the block; sockets and children made there belong to it.

    None means: stay. Raises TopologyError when the path is no network namespace or entering is not permitted.
    """
    if path is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(path)
        try:
            yield
        finally:
            if _libc.setns(own, CLONE_NEWNET) != 0:
                # Going on in the wrong namespace would touch the user's network: nothing is safer than to stop.
                os._exit(125)
    finally:
        os.close(own)


def _setns(path: str | os.PathLike[str]) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TopologyError(f"network namespace {os.fspath(path)} cannot be opened: {error.strerror}") from error
    try:
        if _libc.setns(fd, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            reason = "it is not a network namespace" if code == 22 else os.strerror(code)
            raise TopologyError(f"network namespace {os.fspath(path)} cannot be entered: {reason}")
    finally:
        os.close(fd)


def spawn(
    argv: Sequence[str],
    *,
    netns: str | os.PathLike[str] | None = None,
    cpus: Sequence[int] = (),
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    new_group: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command in a namespace, pinned to `cpus` (empty: anywhere). No shell, no wrapper process.

    The child inherits both from the calling thread at fork, so its PID is the command's own from the start.
    `new_group` gives it a process group, to be ended as a whole. Raises CommandNotFound (127, or 126 when the
    file is there but cannot be executed), as env(1) does.
    """
    if not argv or not argv[0]:
        raise CommandNotFound("no command given", "write it after --, e.g. nsprof record -- ping -c 3 10.0.0.7")
    before = os.sched_getaffinity(0)
    try:
        with entered(netns):
            if cpus:
                os.sched_setaffinity(0, cpus)
            return subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=None if env is None else dict(env),
                process_group=0 if new_group else None,
            )
    except FileNotFoundError as error:
        raise CommandNotFound(f"{argv[0]}: command not found") from error
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == 8:  # ENOEXEC
            raise CommandNotFound(f"{argv[0]}: cannot be executed: {error.strerror}", exit_code=126) from error
        raise NsprofError(f"{argv[0]}: cannot be started: {error.strerror}", exit_code=125) from error
    except ValueError as error:  # an embedded NUL byte
        raise CommandNotFound(f"{argv[0]!r}: not a command: {error}", exit_code=126) from error
    finally:
        os.sched_setaffinity(0, before)

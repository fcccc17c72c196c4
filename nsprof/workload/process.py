"""Running commands to their end: captured or passed through, bounded in time, signals handed on.

No shell is involved. Only processes started here, and those they started, are ever signalled.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from nsprof.errors import CommandNotFound
from nsprof.netns import spawn

__all__ = ["End", "Job", "pass_through", "run_all", "shell_status", "start", "stop"]

#: What a process gets between SIGTERM and SIGKILL, seconds.
GRACE_S = 2.0
#: A copy of a command's output is kept for parsing up to this size.
KEEP_BYTES = 64 << 20
#: After the end of the command, how long its output may stay silent while somebody else holds it open.
_LINGER_S = 0.2
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Job:
    """A command to be run: its words, its namespace (None: ours) and its CPUs (empty: any)."""

    argv: tuple[str, ...]
    netns: str | None = None
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended. `status` as a shell gives it."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool
    timeout_s: float


def shell_status(returncode: int) -> int:
    """128 + n for a death by signal n, else the exit status."""
    return 128 - returncode if returncode < 0 else returncode


def start(
    argv: Sequence[str],
    *,
    netns: str | os.PathLike[str] | None,
    cpus: Sequence[int],
    output: IO[bytes],
    package_hint: str = "",
    keep_input: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a background process in a group of its own, its output in a file; `keep_input` leaves its standard input
    open, as a pipe that the caller closes. Raises CommandNotFound."""
    given = subprocess.PIPE if keep_input else subprocess.DEVNULL
    with _package(package_hint):
        return spawn(argv, netns=netns, cpus=cpus, stdin=given, stdout=output, stderr=output, new_group=True)


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a process that `start` began, with its group: asked first, then killed. Returns when it is reaped."""
    if child.returncode is not None:  # reaped: its number may belong to somebody else by now
        return
    _signal_group(child.pid, signal.SIGTERM)
    pidfd = os.pidfd_open(child.pid)
    try:
        select.select([pidfd], [], [], GRACE_S)
    finally:
        os.close(pidfd)
    _signal_group(child.pid, signal.SIGKILL)  # also what it left in its group, while the number is still its own
    child.wait()


def run_all(jobs: Sequence[Job], *, timeout_s: float = 0.0, package_hint: str = "") -> list[End]:
    """Run commands side by side with captured output, until all have ended or the time is over (0: no limit).

    Raises CommandNotFound when one cannot be started (those already started are stopped). Ctrl-C and SIGTERM are
    not handed on but end the call as exceptions, with every command stopped: a client may take SIGINT for a reason
    to print its figures and end well (netperf does), and nobody would know that the run was cut short.
    """
    tees: list[_Tee] = []
    with ExitStack() as stack:
        for job in jobs:
            with _package(package_hint):
                child = spawn(
                    job.argv,
                    netns=job.netns,
                    cpus=job.cpus,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    new_group=True,
                )
            stack.callback(stop, child)
            tee = _Tee(child, job.argv, group=True, tidy=True)
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    stack.callback(stream.close)
                    tee.watch(stream, None)
            tees.append(tee)
        _attend(tees, timeout_s)
    return [tee.end(timeout_s) for tee in tees]


def pass_through(job: Job, *, copy: bool, timeout_s: float = 0.0, package_hint: str = "") -> End:
    """Run a command as if nsprof were not there: its output reaches ours byte by byte, stdin is ours.

    `copy` keeps what it writes. Then the command writes to a pipe, or to a pseudo terminal in raw mode where our
    own output is a terminal, so that it buffers by line as it would without us. SIGTERM and SIGHUP are handed on;
    so are SIGINT and SIGQUIT unless the terminal sends them to the command by itself.
    """
    on_terminal = _is_terminal(0)
    early: list[int] = []  # signals that arrive before there is a command to hand them to
    started: list[_Tee] = []

    def forward(number: int) -> None:
        if on_terminal and number in (signal.SIGINT, signal.SIGQUIT):
            return
        if not started:
            early.append(number)
        for tee in started:
            tee.signal(number)

    with ExitStack() as stack:
        stack.enter_context(_forwarding(forward))
        tee = _begin_plain(job, stack, copy=copy, own_group=not on_terminal, package_hint=package_hint)
        started.append(tee)
        for number in early:
            tee.signal(number)
        _attend([tee], timeout_s)
    return tee.end(timeout_s)


def _begin_plain(job: Job, stack: ExitStack, *, copy: bool, own_group: bool, package_hint: str) -> _Tee:
    """Start the command of `pass_through`; `stack` closes what belongs to it."""
    taps = [_tap(fd) for fd in (1, 2)] if copy else []
    readers = [stack.enter_context(os.fdopen(reader, "rb", buffering=0)) for reader, _ in taps]
    with ExitStack() as writers, _package(package_hint):
        for _, writer in taps:
            writers.callback(os.close, writer)
        child = spawn(
            job.argv,
            netns=job.netns,
            cpus=job.cpus,
            stdout=taps[0][1] if taps else None,
            stderr=taps[1][1] if taps else None,
            # On a terminal the command stays in our group, else it could neither read nor be stopped by ^Z.
            new_group=own_group,
        )
    tee = _Tee(child, job.argv, group=own_group)
    stack.callback(tee.kill_rest)
    for target, reader in enumerate(readers, start=1):
        tee.watch(reader, target)
    return tee


@dataclass
class _Stream:
    """Where output comes from, where it goes (None: nowhere) and a copy of it."""

    source: IO[bytes]
    target: int | None
    kept: bytearray = field(default_factory=bytearray)

    def take(self) -> bool:
        """Move what is there to where it belongs; False at the end, which closes the source."""
        try:
            data = os.read(self.source.fileno(), 1 << 16)
        except OSError:  # EIO: the last writer of a pseudo terminal has gone
            data = b""
        if data and self.target is not None:
            try:
                _write_all(self.target, data)
            except BrokenPipeError:  # our reader has gone; the closed source tells the command in its own way
                data = b""
        if data:
            self.kept += data[: max(0, KEEP_BYTES - len(self.kept))]
        return bool(data)


@dataclass
class _Tee:
    """One running command and its output. `tidy`: what it leaves in its group ends with it."""

    child: subprocess.Popen[bytes]
    argv: tuple[str, ...]
    group: bool
    tidy: bool = False
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    timed_out: bool = False
    streams: list[_Stream] = field(default_factory=list)

    def watch(self, source: IO[bytes], target: int | None) -> None:
        self.streams.append(_Stream(source, target))

    def signal(self, number: int) -> None:
        if self.child.returncode is not None:
            return
        if self.group:
            _signal_group(self.child.pid, number)
        else:
            for pid in (self.child.pid, *_descendants(self.child.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def reap(self) -> None:
        """It has ended: take its status."""
        self.ended = time.monotonic()
        if self.tidy or self.timed_out:
            self.signal(signal.SIGKILL)
        self.child.wait()

    def kill_rest(self) -> None:
        """Nothing of the command outlives an error on our side."""
        if self.child.returncode is None:
            self.signal(signal.SIGKILL)
            self.child.wait()

    def end(self, timeout_s: float) -> End:
        out, err = [bytes(stream.kept) for stream in self.streams] or [b"", b""]
        status = shell_status(self.child.returncode)
        return End(self.argv, status, out, err, self.ended - self.began, self.timed_out, timeout_s)


def _attend(tees: Sequence[_Tee], timeout_s: float) -> None:
    """Serve the output of all commands until each has ended and its streams are closed or silent."""
    deadline = time.monotonic() + timeout_s if timeout_s > 0 else None
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for tee in tees:
            pidfd = os.pidfd_open(tee.child.pid)
            stack.callback(os.close, pidfd)
            selector.register(pidfd, selectors.EVENT_READ, tee)
            for stream in tee.streams:
                selector.register(stream.source, selectors.EVENT_READ, stream)
        while selector.get_map():
            running = any(tee.child.returncode is None for tee in tees)
            wait = None if running else _LINGER_S
            if running and deadline is not None:
                wait = max(0.0, deadline - time.monotonic())
            events = selector.select(wait)
            if not events and not running:
                return
            for key, _ in events:
                if isinstance(key.data, _Tee):
                    selector.unregister(key.fd)
                    key.data.reap()
                elif not key.data.take():
                    selector.unregister(key.data.source)
                    key.data.source.close()
            if deadline is not None and time.monotonic() >= deadline:
                deadline = _escalate(tees)


def _escalate(tees: Sequence[_Tee]) -> float | None:
    """The time is over: SIGTERM the first time, SIGKILL the second. Returns the next deadline."""
    again = False
    for tee in tees:
        if tee.child.returncode is None:
            again = again or tee.timed_out
            tee.signal(signal.SIGKILL if tee.timed_out else signal.SIGTERM)
            tee.timed_out = True
    return None if again else time.monotonic() + GRACE_S


def _tap(target: int) -> tuple[int, int]:
    """(read end, write end) that stands in for our stdout or stderr; a raw pseudo terminal if that is a terminal."""
    if not _is_terminal(target):
        return os.pipe()
    read_end, write_end = os.openpty()
    tty.setraw(write_end)  # no newline translation: the real terminal does its own
    with suppress(OSError):
        size = os.get_terminal_size(target)
        import fcntl
        import struct
        import termios

        fcntl.ioctl(write_end, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
    return read_end, write_end


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # somebody made our stdout non-blocking
            select.select([], [target], [])


@contextmanager
def _forwarding(forward: Callable[[int], object]) -> Iterator[None]:
    """Signals that would end us go to the command within the block; we end when it has."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        forward(number)

    before = {number: signal.signal(number, handler) for number in _FORWARDED if _not_ignored(number)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _not_ignored(number: int) -> bool:
    return signal.getsignal(number) is not signal.SIG_IGN  # nohup(1) and its like mean it


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _descendants(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    found: list[int] = []
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return found
    for word in words:
        found.append(int(word))
        found.extend(_descendants(int(word)))
    return found


@contextmanager
def _package(hint: str) -> Iterator[None]:
    """A program that is not installed is named with the package that has it."""
    try:
        yield
    except CommandNotFound as error:
        if hint and not error.hint:
            raise CommandNotFound(error.message, hint, exit_code=error.exit_code) from error
        raise

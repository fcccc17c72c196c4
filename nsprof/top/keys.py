"""The keyboard of a terminal in cbreak mode, read key by key; the terminal's settings come back whatever happens."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from types import FrameType, TracebackType
from typing import Self

__all__ = ["Keyboard", "parse"]

_NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x04": "end-of-file",
}


def parse(data: bytes) -> list[str]:
    """Keys of what a terminal has sent: characters as they are, others by name; unknown sequences are dropped."""
    keys: list[str] = []
    while data:
        length = _length(data)
        piece, data = data[:length], data[length:]
        name = _NAMES.get(piece)
        if name:
            keys.append(name)
        elif piece == b"\x1b":
            keys.append("escape")
        elif not piece.startswith(b"\x1b"):
            text = piece.decode("utf-8", "ignore")
            keys += [c for c in text if c.isprintable()]
    return keys


def _length(data: bytes) -> int:
    """Bytes of the first key."""
    first = data[0]
    if first != 0x1B:
        width = (
            1 if first < 0x80 else 2 if first >> 5 == 6 else 3 if first >> 4 == 14 else 4 if first >> 3 == 30 else 1
        )
        return min(width, len(data))
    if len(data) == 1 or data[1] == 0x1B:
        return 1
    if data[1] == ord("O"):
        return min(3, len(data))
    if data[1] != ord("["):
        return 1  # Escape, and a key typed right after it
    for number in range(2, len(data)):
        if 0x40 <= data[number] <= 0x7E:
            return number + 1
    return len(data)


class Keyboard:
    """A context manager around a terminal's input; `wait` returns early when a key or a signal arrives."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._saved: list[int | list[bytes | int]] = []
        self._wake: tuple[int, int] = (-1, -1)
        self._old_wake = -1
        self._old_winch: object = None
        self.ended = False

    def __enter__(self) -> Self:
        self._saved = termios.tcgetattr(self._fd)
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wake = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        self._old_winch = signal.signal(signal.SIGWINCH, _nothing)
        self.grab()
        return self

    def grab(self) -> None:
        """Keys one by one and unseen."""
        tty.setcbreak(self._fd, termios.TCSADRAIN)

    def release(self) -> None:
        """The terminal's own settings again."""
        with contextlib.suppress(termios.error):  # the terminal itself may be gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        signal.set_wakeup_fd(self._old_wake)
        signal.signal(signal.SIGWINCH, self._old_winch)  # type: ignore[arg-type]
        for fd in self._wake:
            os.close(fd)

    def wait(self, seconds: float) -> list[str]:
        """Keys that came within `seconds`; an empty list after the time, or when a signal (resize) came first."""
        ready, _, _ = select.select([self._fd, self._wake[0]], [], [], max(0.0, seconds))
        if self._wake[0] in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake[0], 512)
        if self._fd not in ready:
            return []
        try:
            data = os.read(self._fd, 512)
        except OSError:
            data = b""
        if not data:
            self.ended = True
        return parse(data)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal wakes select()."""
    del number, frame

"""A small process between nsprof and QEMU, so that nothing stays behind however nsprof ends.

    python -I -S keeper.py DIRECTORY QEMU-ARGUMENTS...

It starts QEMU (which the kernel kills should the keeper die), says `ended STATUS` when QEMU ends, and waits for
the end of its standard input: nsprof closing it, or dying by whatever signal. Then it kills QEMU if it still runs
and removes the run's directory. It stands in a session of its own, so a Ctrl-C at the terminal does not reach it.
It imports only the standard library, and is run as a file.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(directory: str, argv: list[str]) -> None:
    """Keep one QEMU. See the module's text."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        with (Path(directory) / "qemu.log").open("wb") as log:
            qemu = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_dies_with_parent(os.getpid()),  # noqa: PLW1509 - this process has one thread
            )
        _wait(qemu)
    except OSError as error:
        _say(f"failed {error.strerror}")
        sys.stdin.buffer.read()
    finally:
        _remove(directory)


def _wait(qemu: subprocess.Popen[bytes]) -> None:
    ended = os.pidfd_open(qemu.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if ended in ready:
                _say(f"ended {qemu.wait()}")
                selector.unregister(ended)
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 64):
                break
    os.close(ended)
    if qemu.poll() is None:
        qemu.kill()
        qemu.wait()


def _say(line: str) -> None:
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        return  # nobody is left to hear it; the end of input follows


def _dies_with_parent(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(125)

    return prepare


def _remove(directory: str) -> None:
    """Remove all of it, also what the guest made unreadable."""
    for top, names, _ in os.walk(directory):
        for name in names:
            place = Path(top, name)
            if not place.is_symlink():
                place.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Sampling without BPF: `perf record` underneath, where BCC or BPF on perf events is missing.

Only start, stop and the file: the importer of perf.data makes the profile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from nsprof.errors import NsprofError, PreflightError
from nsprof.files import Scratch

__all__ = ["PerfRecorder", "perf_path"]

_STOP_TIMEOUT_S = 30.0


def perf_path(bpf_reason: str = "") -> str:
    """Where `perf` is. Raises PreflightError naming both ways to sample when it is missing, too.

    `bpf_reason` is why BPF sampling is not to be had.
    """
    found = shutil.which("perf")
    if found is None:
        first = f"BPF sampling: {bpf_reason}; perf" if bpf_reason else "perf"
        raise PreflightError(
            f"nothing to sample with: {first} is not installed",
            "apt install python3-bpfcc bpftool (BPF sampling), or apt install linux-perf (perf record)",
        )
    return found


class PerfRecorder:
    """`perf record -a -g` into a private file; use it as a context manager, which removes the file at the end."""

    def __init__(
        self, events: tuple[str, ...] = ("cpu-clock",), frequency_hz: int = 499, *, reason: str = ""
    ) -> None:
        """Raises PreflightError where perf is missing; `reason` is why BPF sampling is not used."""
        self.perf = perf_path(reason)
        self.events = events
        self.frequency_hz = frequency_hz
        self.path = Path()
        self._scratch: Scratch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin to record; returns once perf records. Raises PreflightError with perf's own words."""
        if self._process is not None or self.path.name:
            raise NsprofError("perf record was started already", exit_code=125)
        self._scratch = Scratch("perf")
        self.path = self._scratch.path / "perf.data"
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    def _launch(self) -> None:
        control_read = control_write = ack_read = ack_write = -1
        try:
            control_read, control_write = os.pipe()
            ack_read, ack_write = os.pipe()
            self._process = subprocess.Popen(
                [
                    self.perf,
                    "record",
                    "-a",
                    "-g",
                    "-F",
                    str(self.frequency_hz),
                    "-e",
                    ",".join(self.events),
                    "-k",
                    "CLOCK_MONOTONIC",
                    "-D",
                    "-1",  # attached but disabled until told over the control pipe
                    "--control",
                    f"fd:{control_read},{ack_write}",
                    "-o",
                    str(self.path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(control_read, ack_write),
                process_group=0,  # Ctrl-C reaches nsprof, which stops perf itself
            )
            os.close(ack_write)
            ack_write = -1
            os.write(control_write, b"enable\n")
            if not os.read(ack_read, 16):  # end of file: perf is gone
                raise self._failed()
            self._control, control_write = control_write, -1  # perf breaks off when its control pipe is closed
        finally:
            for fd in (control_read, control_write, ack_read, ack_write):
                if fd >= 0:
                    os.close(fd)

    def stop(self) -> Path:
        """End the recording; returns the perf.data file. Raises NsprofError when perf failed."""
        process = self._process
        if process is None:
            raise NsprofError("perf record was not started", exit_code=125)
        process.send_signal(signal.SIGINT)
        try:
            _, words = process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise NsprofError(
                f"perf record did not end within {_STOP_TIMEOUT_S:.0f} s of being told to", exit_code=125
            ) from error
        finally:
            self._close_control()
        self._process = None
        # perf ends itself by the signal that it was sent, once the file is complete.
        complete = process.returncode in (0, -signal.SIGINT, 128 + signal.SIGINT)
        if not complete or not self.path.is_file() or self.path.stat().st_size == 0:
            last = (words.decode(errors="replace").strip().splitlines() or ["it wrote nothing"])[-1]
            raise NsprofError(f"perf record failed: {last}", exit_code=125)
        return self.path

    def close(self) -> None:
        """End perf if it still runs and remove the file. Calling it twice is harmless."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        self._close_control()
        path, self.path = self.path, Path()
        if self._scratch is not None:
            # First the file: for more than an empty directory, one must be opened, and perhaps no more files may be.
            path.unlink(missing_ok=True)
            self._scratch.remove()
            self._scratch = None

    def _close_control(self) -> None:
        fd, self._control = self._control, -1
        if fd >= 0:
            os.close(fd)

    def _failed(self) -> PreflightError:
        process, self._process = self._process, None
        words = b""
        if process is not None:
            deadline = time.monotonic() + 5
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            process.kill()
            with contextlib.suppress(ValueError):
                _, words = process.communicate()
        last = words.decode(errors="replace").strip().splitlines() or ["no words"]
        cause = next((line for line in last if "rror" in line), last[-1])
        return PreflightError(f"perf record -a -e {','.join(self.events)} cannot start: {cause}", "run as root")

"""Chrome trace events as py-spy writes them: B and E events with process, thread and microseconds.

A profile keeps seconds and sums, not the moment of every sample: inside a second the stacks of a thread are laid one
after the other, each as long as it weighs. What overlaps with the stack before it stays open.
"""

from __future__ import annotations

import json
from typing import IO, Any

import numpy as np

from nsprof.errors import UsageError
from nsprof.model.profile import Profile
from nsprof.store.exporters.select import frame_file, one_event, rows_of, thread_of

__all__ = ["write"]

_CHUNK = 20_000


def write(profile: Profile, stream: IO[bytes], *, event: str | None = None, scenario: str | None = None) -> None:
    """Events of one clock. Raises UsageError for an event that is no time."""
    number, samples = one_event(profile, rows_of(profile, scenario), event, "chrometrace")
    if profile.events and profile.events[number].unit != "ns":
        name = profile.events[number].name
        raise UsageError(f"chrometrace shows time, and {name} is no clock", "export --format speedscope or folded")
    order = np.lexsort((samples.stack, samples.slice, samples.task, samples.run))
    out = _Writer(profile, stream)
    thread: tuple[int, int] | None = None
    clock_us = begin_us = end_us = 0.0
    for row in order.tolist():
        here = int(samples.run[row]), int(samples.task[row])
        if here != thread:
            out.close([], clock_us)
            end_us = max(end_us, clock_us)
            if thread is not None and here[0] != thread[0]:
                begin_us = end_us  # threads of two runs may share their numbers: one run stands after the other
            thread, clock_us = here, begin_us
            out.thread(*thread_of(profile, here[1])[:2])
        clock_us = _at_least(out, clock_us, begin_us + float(samples.slice[row]) * 1e6)
        out.switch(profile.stacks[int(samples.stack[row])][::-1].tolist(), clock_us)
        clock_us += float(samples.weight[row]) / 1e3
    out.close([], clock_us)
    out.end()


def _at_least(out: _Writer, now: float, second: float) -> float:
    if now < second:
        out.close([], now)
        return second
    return now


class _Writer:
    def __init__(self, profile: Profile, stream: IO[bytes]) -> None:
        self._stream = stream
        self._frames = [self._head(profile, i) for i in range(len(profile.frames))]
        self._open: list[int] = []
        self._lines: list[str] = []
        self._begun = False
        self._who = ""

    @staticmethod
    def _head(profile: Profile, index: int) -> str:
        file, line = frame_file(profile, index)
        args: dict[str, Any] = {"filename": file, "line": line or None}
        head = {"args": args, "cat": "nsprof", "name": profile.frames.name[index]}
        return json.dumps(head, separators=(",", ":"))[:-1]

    def thread(self, pid: int, tid: int) -> None:
        """The thread that the following events belong to."""
        self._who = f'"pid":{pid},"tid":{tid}'

    def _event(self, frame: int, phase: str, at_us: float) -> None:
        ts = int(at_us) if at_us == int(at_us) else round(at_us, 3)
        self._lines.append(f'{self._frames[frame]},"ph":"{phase}",{self._who},"ts":{ts}}}')
        if len(self._lines) >= _CHUNK:
            self._flush()

    def close(self, keep: list[int], at_us: float) -> int:
        """End the open frames that are not the beginning of `keep`; how many stay open."""
        same = 0
        while same < min(len(keep), len(self._open)) and keep[same] == self._open[same]:
            same += 1
        for frame in reversed(self._open[same:]):
            self._event(frame, "E", at_us)
        del self._open[same:]
        return same

    def switch(self, frames: list[int], at_us: float) -> None:
        """Go over to another stack, root first."""
        for frame in frames[self.close(frames, at_us) :]:
            self._event(frame, "B", at_us)
        self._open = list(frames)

    def _flush(self) -> None:
        text = ("," if self._begun else "[") + ",".join(self._lines)
        self._begun = True
        self._lines.clear()
        self._stream.write(text.encode("utf-8", "backslashreplace"))

    def end(self) -> None:
        """The closing bracket."""
        if self._lines:
            self._flush()
        self._stream.write(b"]" if self._begun else b"[]")

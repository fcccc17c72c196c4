"""pprof's profile.proto (github.com/google/pprof), encoded here: varints and lengths need no library."""

from __future__ import annotations

import gzip
from typing import IO, Any

import numpy as np

from nsprof import __version__
from nsprof.model.profile import Context, Direction, Lateness, Profile
from nsprof.store.exporters.select import (
    device_name,
    dso_of,
    namespace_label,
    one_event,
    rows_of,
    source_of,
    thread_of,
)

__all__ = ["write"]

_UNITS = {"ns": "nanoseconds"}
_NO_CPU = 0xFFFF


def write(profile: Profile, stream: IO[bytes], *, event: str | None = None, scenario: str | None = None) -> None:
    """Every sampled event as two sample types, `<event>_samples/count` and `<event>/<unit>`, for `samples` and the
    event itself when there is one only; labels say namespace, device, direction, context, task, cpu, lateness, run.

    Weights are whole numbers in this format: fractions are rounded.
    """
    samples = rows_of(profile, scenario)
    if event is not None:
        _, samples = one_event(profile, samples, event, "pprof")
    out = _Message(profile)
    stream.write(gzip.compress(out.encode(samples), 6, mtime=0))


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _packed(field: int, values: list[int]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values))) if values else b""


class _Message:
    """A Profile message being put together; the string table grows as words are met."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.strings: dict[str, int] = {"": 0}
        self._labels: dict[tuple[Any, ...], bytes] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def encode(self, samples: Any) -> bytes:
        profile = self.profile
        sampled = np.unique(samples.event).tolist() or ([0] if profile.events else [])
        parts: list[bytes] = []
        for index in sampled:
            event = profile.events[index]
            count_name = "samples" if len(sampled) == 1 else f"{event.name}_samples"
            parts.append(_bytes(1, self._type(count_name, "count")))
            parts.append(_bytes(1, self._type(event.name, _UNITS.get(event.unit, event.unit))))
        parts.append(self._samples(samples, sampled))
        parts.append(self._frames())
        run = profile.runs[0] if profile.runs else None
        if run is not None:
            parts.append(_number(9, int(run.started * 1e9)) + _number(10, int(run.duration_s * 1e9)))
        if sampled:
            event = profile.events[sampled[0]]
            parts.append(_bytes(11, self._type(event.name, _UNITS.get(event.unit, event.unit))))
            parts.append(_number(12, event.period))
            if len(sampled) > 1:  # readers show the last type by default, which is right for a single event
                parts.append(_number(14, self.string(event.name)))
        notes = [str(n) for n in profile.meta.get("notes", [])]
        parts.append(_packed(13, [self.string(f"nsprof {__version__}"), *(self.string(n) for n in notes)]))
        table = b"".join(_bytes(6, s.encode("utf-8", "backslashreplace")) for s in self.strings)
        return b"".join(parts) + table

    def _type(self, name: str, unit: str) -> bytes:
        return _number(1, self.string(name)) + _number(2, self.string(unit))

    def _samples(self, samples: Any, sampled: list[int]) -> bytes:
        """Sample messages; rows that differ only in what this format does not hold are added up."""
        names = [
            "stack",
            "event",
            "run",
            "cpu",
            "task",
            "task_ns",
            "hop_ns",
            "hop_dev",
            "context",
            "slice",
            "hop_dir",
            "hop_depth",
            "lateness",
        ]
        columns = [np.asarray(getattr(samples, n), "i8") for n in names]
        place = {event: i for i, event in enumerate(sampled)}
        stacks = [
            _packed(1, [f + 1 for f in self.profile.stacks[i].tolist()]) for i in range(len(self.profile.stacks))
        ]
        out: list[bytes] = []
        counts, weights = samples.count.tolist(), np.rint(samples.weight).astype("i8").tolist()
        for row, key in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            values = [0] * (2 * len(sampled))
            at = 2 * place[key[1]]
            values[at : at + 2] = int(counts[row]), weights[row]
            label = self._labels.get(key[2:])
            if label is None:
                label = self._labels[key[2:]] = self._label(*key[2:])
            out.append(_bytes(2, stacks[key[0]] + _packed(2, values) + label))
        return b"".join(out)

    def _label(self, *key: int) -> bytes:
        run, cpu, task, task_ns, hop_ns, hop_dev, context, second, direction, depth, lateness = key
        profile = self.profile
        tgid, pid, comm = thread_of(profile, task)
        words = {
            "scenario": profile.runs[run].scenario if run < len(profile.runs) else "",
            "namespace": namespace_label(profile, hop_ns),
            "task_namespace": namespace_label(profile, task_ns),
            "device": device_name(profile, hop_dev),
            "context": Context(context).name.lower(),
            "comm": comm,
            "direction": Direction(direction).name.lower() if direction else "",
            "lateness": Lateness(lateness).name.lower() if lateness != Lateness.UNKNOWN else "",
        }
        numbers = {"pid": tgid, "tid": pid, "second": second, "depth": depth, "run": run}
        numbers |= {"cpu": cpu} if cpu != _NO_CPU else {}
        out = [_bytes(3, _number(1, self.string(k)) + _number(2, self.string(v))) for k, v in words.items() if v]
        out += [
            _bytes(3, _number(1, self.string(k)) + _varint(3 << 3) + _varint(v))
            for k, v in numbers.items()
            if v >= 0 and (v or k == "cpu")
        ]
        return b"".join(out)

    def _frames(self) -> bytes:
        """Mappings, locations and functions: one location and one function a frame."""
        frames = self.profile.frames
        modules: dict[str, int] = {}
        out: list[bytes] = []
        for index, name in enumerate(frames.name):
            file = dso_of(int(frames.kind[index]), frames.module[index])
            mapping = modules.setdefault(file, len(modules) + 1) if file else 0
            source, line = source_of(frames.source[index])
            where = _number(1, index + 1) + _number(2, line)
            out.append(_bytes(4, _number(1, index + 1) + _number(2, mapping) + _bytes(4, where)))
            text = self.string(name)
            out.append(
                _bytes(
                    5, _number(1, index + 1) + _number(2, text) + _number(3, text) + _number(4, self.string(source))
                )
            )
        head = [
            _bytes(3, _number(1, number) + _number(5, self.string(file)) + _number(7, 1))
            for file, number in modules.items()
        ]
        return b"".join(head + out)

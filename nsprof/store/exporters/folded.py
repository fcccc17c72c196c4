"""Folded stacks as py-spy's `raw` writes them: `root;caller;leaf count`, a frame being `name (file:line)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import UsageError
from nsprof.model.profile import FrameKind, Profile, Samples
from nsprof.store.exporters.select import cleaned, one_event, prefixes, rows_of, source_of

__all__ = ["frame_text", "values_of", "write"]

_CHUNK = 20_000
_REMARKS = ("#", "//")  # what readers take for a remark; a space before it tells that it is none


def frame_text(profile: Profile, index: int, *, marks: bool = False) -> str:
    """A frame as py-spy writes it, its source in brackets where known; `_[k]` behind kernel frames if `marks`."""
    frames = profile.frames
    text = cleaned(frames.name[index]) or "[unknown]"
    if frames.source[index]:
        file, line = source_of(frames.source[index])
        text += f" ({cleaned(file)}:{line})" if line else f" ({cleaned(file)})"
    return text + "_[k]" if marks and frames.kind[index] in (FrameKind.KERNEL, FrameKind.BPF) else text


def values_of(profile: Profile, event: int, samples: Samples, value: str | None) -> NDArray[np.float64]:
    """The number behind each row: samples for clocks (py-spy's unit), else weights, whose periods may vary."""
    if value not in (None, "count", "weight"):
        raise UsageError(f"--value is count or weight, not {value}")
    unit = profile.events[event].unit if profile.events else "count"
    if value == "count" or (value is None and unit == "ns"):
        return samples.count.astype("f8")
    return samples.weight.astype("f8")


def write(
    profile: Profile,
    stream: IO[bytes],
    *,
    event: str | None = None,
    scenario: str | None = None,
    value: str | None = None,
    roots: Sequence[str] = (),
    marks: bool = False,
) -> None:
    """One line a distinct stack, in the order of the profile's stacks; whole numbers without a fraction."""
    number, samples = one_event(profile, rows_of(profile, scenario), event, "folded")
    amount = values_of(profile, number, samples, value)
    words, which = prefixes(profile, samples, roots)
    above = ["".join(f"{cleaned(w)};" for w in row) for row in words]
    key = which.astype("u8") * np.uint64(max(1, len(profile.stacks))) + samples.stack.astype("u8")
    distinct, inverse = np.unique(key, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=amount, minlength=len(distinct))
    texts = [frame_text(profile, i, marks=marks) for i in range(len(profile.frames))]
    lines: list[str] = []
    for code, weight in zip(distinct.tolist(), total.tolist(), strict=True):
        prefix, stack = divmod(code, max(1, len(profile.stacks)))
        if weight == 0:
            continue
        frames = profile.stacks[stack][::-1].tolist()
        body = ";".join(texts[f] for f in frames) or "[unknown]"
        shown = int(weight) if weight == int(weight) else repr(weight)
        line = f"{above[prefix]}{body} {shown}\n"
        lines.append(f" {line}" if line.startswith(_REMARKS) else line)
        if len(lines) >= _CHUNK:
            stream.write("".join(lines).encode("utf-8", "backslashreplace"))
            lines.clear()
    stream.write("".join(lines).encode("utf-8", "backslashreplace"))

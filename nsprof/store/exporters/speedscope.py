"""speedscope JSON as py-spy writes it: one `sampled` profile a thread, frames root first, weights in seconds.

Schema: https://www.speedscope.app/file-format-schema.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from nsprof import __version__
from nsprof.model.profile import Profile
from nsprof.store.exporters.select import frame_file, one_event, prefixes, rows_of, thread_of

__all__ = ["write"]


def write(
    profile: Profile,
    stream: IO[bytes],
    *,
    event: str | None = None,
    scenario: str | None = None,
    roots: Sequence[str] = (),
) -> None:
    """Threads of all events (of one, if named); events with another unit than time are of unit `none`.

    Rows of one thread come in order of time where the profile has it. A frame's file is its source, or its DSO.
    """
    samples = rows_of(profile, scenario)
    if event is not None:
        _, samples = one_event(profile, samples, event, "speedscope")
    words, which = prefixes(profile, samples, roots)
    frames = [_frame(profile, i) for i in range(len(profile.frames))]
    extra: dict[str, int] = {}
    for word in (w for row in words for w in row):
        extra.setdefault(word, len(frames) + len(extra))
    frames += [{"name": w, "file": None, "line": None, "col": None} for w in extra]
    above = [[extra[w] for w in row] for row in words]
    order = np.lexsort((samples.slice, samples.task, samples.run, samples.event))
    key = np.stack([samples.event, samples.run, samples.task], axis=1).astype("i8")[order]
    cuts: list[int] = (np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1).tolist() if len(key) else []
    profiles = [
        _sampled(profile, samples, rows, [above[w] for w in which[rows].tolist()])
        for rows in np.split(order, cuts)
        if len(rows)
    ]
    scenarios = profile.scenarios if scenario is None else (scenario,)
    data = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "profiles": profiles,
        "shared": {"frames": frames},
        "activeProfileIndex": None,
        "exporter": f"nsprof@{__version__}",
        "name": ", ".join(scenarios) or "nsprof profile",
    }
    stream.write(json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace"))


def _frame(profile: Profile, index: int) -> dict[str, Any]:
    file, line = frame_file(profile, index)
    return {"name": profile.frames.name[index], "file": file or None, "line": line or None, "col": None}


def _sampled(profile: Profile, samples: Any, rows: Any, above: list[list[int]]) -> dict[str, Any]:
    first = int(rows[0])
    event = profile.events[int(samples.event[first])]
    _, tid, comm = thread_of(profile, int(samples.task[first]))
    name = f'Thread {tid} "{comm}"'
    if len(profile.events) > 1:
        name += f" {event.name}"
    if len(profile.runs) > 1:
        name = f"{profile.runs[int(samples.run[first])].scenario} run {int(samples.run[first])}: {name}"
    clock = event.unit == "ns"
    weights = [w / 1e9 for w in samples.weight[rows].tolist()] if clock else samples.weight[rows].tolist()
    stacks = [profile.stacks[s][::-1].tolist() for s in samples.stack[rows].tolist()]
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds" if clock else "none",
        "startValue": 0.0,
        "endValue": float(sum(weights)),
        "samples": [a + s for a, s in zip(above, stacks, strict=True)],
        "weights": weights,
    }

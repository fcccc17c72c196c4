"""A row a sample, in words: CSV for spreadsheets, Parquet for everything that reads columns."""

from __future__ import annotations

import csv
import io
from typing import IO, Any

import numpy as np

from nsprof.model.profile import FrameKind, Profile
from nsprof.store.exporters.folded import frame_text
from nsprof.store.exporters.select import one_event, readable, rows_of

__all__ = ["write_csv", "write_parquet"]


def _rows(profile: Profile, event: str | None, scenario: str | None, format: str) -> Any:
    samples = rows_of(profile, scenario)
    return one_event(profile, samples, event, format)[1] if event is not None else samples


def write_csv(profile: Profile, stream: IO[bytes], *, event: str | None = None, scenario: str | None = None) -> None:
    """Columns as of `readable`, and `stack`: frames from the root, joined by semicolons."""
    samples = _rows(profile, event, scenario, "csv")
    columns = readable(profile, samples)
    texts = [frame_text(profile, i) for i in range(len(profile.frames))]
    stacks = [";".join(texts[f] for f in profile.stacks[i][::-1].tolist()) for i in range(len(profile.stacks))]
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*columns, "stack"])
        lists = [c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()]
        for row, stack in zip(zip(*lists, strict=True), samples.stack.tolist(), strict=True):
            writer.writerow([_safe(cell) for cell in row] + [_safe(stacks[stack])])
    finally:
        text.detach()


def _safe(cell: Any) -> Any:
    """A text that a spreadsheet would take for a formula, made harmless by an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def write_parquet(
    profile: Profile, stream: IO[bytes], *, event: str | None = None, scenario: str | None = None
) -> None:
    """Columns as of `readable`, and lists from the root: `stack` (names), `modules`, `frame_kinds`, `sources`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    samples = _rows(profile, event, scenario, "parquet")
    columns = readable(profile, samples)
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        made = pa.array(column)
        arrays[name] = made.dictionary_encode() if pa.types.is_string(made.type) and len(made) else made
    frames = profile.frames
    kinds = [FrameKind(int(k)).name.lower() for k in frames.kind]
    stacks = [profile.stacks[i][::-1].tolist() for i in range(len(profile.stacks))]
    chosen = samples.stack.tolist()
    lists = (("stack", frames.name), ("modules", frames.module), ("frame_kinds", kinds), ("sources", frames.source))
    for name, words in lists:
        each = pa.array([[words[f] for f in s] for s in stacks], pa.list_(pa.string()))
        arrays[name] = each.take(pa.array(chosen, pa.int64())) if stacks else pa.array([], pa.list_(pa.string()))
    pq.write_table(pa.table(arrays), stream, compression="zstd")

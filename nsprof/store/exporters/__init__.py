"""Profiles for other tools; one module a format.

`export(profile, format, stream)` writes bytes; what a format cannot hold is left out, never folded into something
else: formats with one value a stack take one event, and say so when a profile has several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

from nsprof.errors import UsageError
from nsprof.model.profile import Profile

__all__ = ["BINARY", "FORMATS", "export"]

#: format -> what reads it
FORMATS = {
    "folded": "folded stacks: flamegraph.pl, inferno, speedscope",
    "raw": "the same, under py-spy's name",
    "speedscope": "speedscope JSON, as py-spy writes it",
    "chrometrace": "Chrome trace events (chrome://tracing, Perfetto), as py-spy writes them",
    "pprof": "gzipped protobuf: go tool pprof, Pyroscope, Parca",
    "firefox": "Firefox Profiler (profiler.firefox.com)",
    "csv": "a row a sample, for spreadsheets",
    "parquet": "a row a sample, for DuckDB, pandas, Polars",
    "pyperf": "values of the runs, for python -m pyperf",
}
BINARY = frozenset({"pprof", "parquet"})


def export(profile: Profile, format: str, stream: IO[bytes], **options: Any) -> None:
    """Write `profile` in one of FORMATS to a binary stream.

    Options: `event` (name; where one is needed and several were sampled), `scenario` (only its runs), `value`
    ("count" or "weight", folded only), `roots` (folded and speedscope: words out of comm, namespace, device, context,
    cpu that become root frames), `marks` (folded: kernel frames end in `_[k]`).

    Raises UsageError for a format or event that does not exist, or options that the format has no use for.
    """
    from nsprof.store.exporters import chrometrace, firefox, folded, pprof, pyperf_json, speedscope, tables

    writers: dict[str, Callable[..., None]] = {
        "folded": folded.write,
        "raw": folded.write,
        "speedscope": speedscope.write,
        "chrometrace": chrometrace.write,
        "pprof": pprof.write,
        "firefox": firefox.write,
        "csv": tables.write_csv,
        "parquet": tables.write_parquet,
        "pyperf": pyperf_json.write,
    }
    if format not in writers:
        raise UsageError(f"no such format: {format}", f"one of: {', '.join(FORMATS)}")
    given = {k: v for k, v in options.items() if v}
    try:
        writers[format](profile, stream, **given)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        word = str(error).rsplit("'", 2)[-2]
        raise UsageError(f"format {format} has no use for --{'root' if word == 'roots' else word}") from error

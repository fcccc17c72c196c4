"""The .nsprof container: a zip of Parquet tables and one JSON, written in one step and read with suspicion."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from nsprof import __version__, files
from nsprof.errors import NsprofError, ProfileFormatError
from nsprof.model.profile import Profile
from nsprof.store import MAGIC, VERSION
from nsprof.store.importers.ahead import ahead
from nsprof.store.metas import check_meta
from nsprof.store.tables import SCHEMAS, build_profile, profile_tables

__all__ = ["load", "save"]

#: Limits for files that lie: a table may unfold to so many bytes, and all members to so many stored ones.
MAX_TABLE_BYTES = 4 << 30
MAX_META_BYTES = 64 << 20
MAX_MEMBERS = 64
_BATCH_ROWS = 1 << 18

#: Columns in which values hardly repeat, or repeat as zstd sees better: with a dictionary they take a third longer to
#: write, and more room.
_PLAIN = {"stacks": ("stack", "frames"), "samples": ("stack", "count", "weight")}
_GROUP_OF_STACKS = 1 << 16  # rows: what Parquet keeps of the depth of each list is more than the lists
_MANY = 1 << 20  # frames of stacks and rows of samples, from which on threads are worth it

#: What reading a damaged archive raises, by what is damaged.
_DAMAGE = (
    zipfile.BadZipFile,  # directory of the archive, header or checksum of a member
    zlib.error,  # a compressed member
    EOFError,  # ... that breaks off
    struct.error,  # header that breaks off
    NotImplementedError,  # number of a compression, or of a version, that zipfile does not know
    ValueError,  # text that is no UTF-8, numbers too large for their place
)


def _losses_by_cpu_unknown(
    tables: dict[str, pa.Table], meta: dict[str, Any]
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Version 1 told the losses of a run, not of its CPUs."""
    cpus = tables.get("run_cpus")
    if cpus is not None and "lost_share" not in cpus.column_names:
        unknown = pa.array([math.nan] * cpus.num_rows, pa.float64())
        tables = {**tables, "run_cpus": cpus.append_column("lost_share", unknown)}
    return tables, meta


#: from version -> (tables, meta) of that version to those of the next one.
UPGRADES: dict[int, Callable[[dict[str, pa.Table], dict[str, Any]], tuple[dict[str, pa.Table], dict[str, Any]]]] = {
    1: _losses_by_cpu_unknown
}

_Tables = dict[str, pa.Table]


def save(profile: Profile, path: str | os.PathLike[str], *, keep_old: bool = False) -> None:
    """See `nsprof.store.save`."""
    content = _members(profile)
    if os.fspath(path) == "-":
        sys.stdout.buffer.write(_whole_archive(content))
        sys.stdout.buffer.flush()
        return
    files.check_target(path)
    straight = Path(path).exists() and not Path(path).is_file()
    with files.replacing(path, keep_old=keep_old) as stream:
        if straight:
            stream.write(_whole_archive(content))
        else:
            _write(content, stream)


def _whole_archive(content: Mapping[str, Any]) -> memoryview:
    """The archive in memory, for pipes and devices: a zip is written with seeks, which they have not."""
    whole = io.BytesIO()
    _write(content, whole)
    return whole.getbuffer()


def _members(profile: Profile) -> dict[str, Any]:
    meta = {
        "format": MAGIC.decode(),
        "version": VERSION,
        "written_by": {"name": "nsprof", "version": __version__},
        "meta": dict(profile.meta),
    }
    try:
        text = json.dumps(meta, indent=1, ensure_ascii=True, allow_nan=True, default=_plain)
    except (TypeError, ValueError) as error:
        raise NsprofError(f"the profile's metadata are no JSON: {error}") from error
    content: dict[str, Any] = {"mimetype": MAGIC, "metadata.json": text.encode()}
    tables = profile_tables(profile).items()
    work = ahead if len(profile.stacks.frames) + len(profile.samples) > _MANY else map
    for (name, _), packed in zip(tables, work(_packed, tables), strict=True):
        content[f"{name}.parquet"] = packed
    return content


def _packed(item: tuple[str, pa.Table]) -> pa.Buffer:
    """A table, by its name, as a Parquet file."""
    name, table = item
    sink = pa.BufferOutputStream()
    plain = _PLAIN.get(name, ())
    with_dictionary = [column for column in table.column_names if column not in plain]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=1,
        row_group_size=_GROUP_OF_STACKS if name == "stacks" else 1 << 20,
        use_dictionary=with_dictionary if plain else True,
    )
    return sink.getvalue()


def _plain(value: Any) -> Any:
    """JSON for what is nearly JSON: mappings, tuples and sets of the model, numpy numbers."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r}")


def _write(content: Mapping[str, Any], stream: IO[bytes]) -> None:
    # Stored, because Parquet is compressed already; a fixed date, so that equal profiles are equal files.
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o600 << 16
            if name == "metadata.json":
                info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=len(data) > 1 << 30) as member:
                member.write(data)


def load(path: str | os.PathLike[str]) -> Profile:
    """See `nsprof.store.load`."""
    name = os.fspath(path)
    try:
        if name == "-":
            return _read(_whole(sys.stdin.buffer), "standard input")
        with Path(name).open("rb") as stream:
            return _read(stream if stream.seekable() else _whole(stream), name)
    except FileNotFoundError as error:
        hint = files.near_names(name) or "nsprof record -o profile.nsprof -- COMMAND makes one"
        raise NsprofError(f"no such file: {name}", hint) from error
    except OSError as error:
        raise NsprofError(f"cannot read {name}: {error.strerror or error}") from error


def _whole(stream: IO[bytes]) -> IO[bytes]:
    """A pipe's content, to be read with seeks; only its beginning where that is no archive, as it may never end."""
    head = stream.read(4)
    return io.BytesIO(head + stream.read() if head.startswith(b"PK") else head)


def _read(stream: IO[bytes], name: str) -> Profile:
    head = stream.read(4)
    if not head.startswith(b"PK"):
        raise ProfileFormatError(f"{name}: not a .nsprof file{' (it is empty)' if not head else ''}")
    try:
        with zipfile.ZipFile(stream) as archive:
            members = _checked_members(archive, name)
            described = _metadata(archive, members, name)
            version = described["version"]
            meta = described.get("meta")
            if not isinstance(meta, dict):
                raise ProfileFormatError(f"{name}: damaged: metadata.json holds no metadata")
            tables = {
                member.removesuffix(".parquet"): _table(archive, info, name)
                for member, info in members.items()
                if member.endswith(".parquet")
            }
            while version < VERSION:
                tables, meta = UPGRADES[version](tables, meta)
                version += 1
            return build_profile({t: _conform(t, tables, name) for t in SCHEMAS}, check_meta(meta))
    except ProfileFormatError as error:
        if error.message.startswith(name):
            raise
        raise ProfileFormatError(f"{name}: {error.message}", error.hint) from error
    except _DAMAGE as error:
        raise ProfileFormatError(
            f"{name}: truncated or damaged: {_one_line(error)}", "copy it again from where it was recorded"
        ) from error


def _checked_members(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if "metadata.json" not in members:
        raise ProfileFormatError(f"{name}: a zip archive, but not a .nsprof file")
    if len(members) != len(infos):
        twice = next(name for name, times in Counter(info.filename for info in infos).items() if times > 1)
        raise ProfileFormatError(f"{name}: damaged: member {twice[:60]!r} twice")
    if len(infos) > MAX_MEMBERS:
        raise ProfileFormatError(f"{name}: damaged: {len(infos)} members where at most {MAX_MEMBERS} belong")
    for info in infos:
        if info.flag_bits & 0x1:
            raise ProfileFormatError(f"{name}: {info.filename!r} is encrypted")
        limit = MAX_META_BYTES if info.filename == "metadata.json" else MAX_TABLE_BYTES
        if info.file_size > limit:
            raise ProfileFormatError(f"{name}: {info.filename!r} unpacks to {info.file_size:,} bytes: refused")
        if info.filename != "metadata.json" and info.file_size > 1000 * max(info.compress_size, 1):
            raise ProfileFormatError(f"{name}: {info.filename!r} unpacks 1,000-fold: refused")
    return members


def _metadata(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str) -> dict[str, Any]:
    try:
        described = json.loads(archive.read(members["metadata.json"]))
    except (ValueError, RecursionError) as error:
        raise ProfileFormatError(f"{name}: damaged: metadata.json: {_one_line(error)}") from error
    if not isinstance(described, dict) or described.get("format") != MAGIC.decode():
        raise ProfileFormatError(f"{name}: a zip archive, but not a .nsprof file")
    version = described.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ProfileFormatError(f"{name}: damaged: version {version!r}")
    if version > VERSION:
        by = described.get("written_by")
        tool = f", written by nsprof {by['version']}" if isinstance(by, dict) and "version" in by else ""
        raise ProfileFormatError(
            f"{name}: format version {version}{tool}; this nsprof {__version__} reads up to version {VERSION}",
            "read it with a newer nsprof",
        )
    return described


def _table(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> pa.Table:
    """One Parquet member, read in pieces so that what unfolds without end is noticed while it is small."""
    data = archive.read(info)  # also checks the CRC
    try:
        reader = pq.ParquetFile(pa.BufferReader(data))
        declared = sum(reader.metadata.row_group(i).total_byte_size for i in range(reader.metadata.num_row_groups))
        if declared > MAX_TABLE_BYTES:
            raise ProfileFormatError(f"{name}: {info.filename!r} unfolds to {declared:,} bytes: refused")
        batches, size = [], 0
        for batch in reader.iter_batches(batch_size=_BATCH_ROWS):
            size += batch.nbytes
            if size > MAX_TABLE_BYTES:
                raise ProfileFormatError(f"{name}: {info.filename!r} unfolds to over {size:,} bytes: refused")
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=reader.schema_arrow)
    except MemoryError as error:
        what = "damaged, or larger than the memory there is"
        raise ProfileFormatError(f"{name}: {what}: {info.filename!r}: {_one_line(error)}") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProfileFormatError(f"{name}: damaged: {info.filename!r}: {_one_line(error)}") from error


def _conform(table: str, tables: Mapping[str, pa.Table], name: str) -> pa.Table:
    """The table with exactly the columns and types of this version; no gaps."""
    if table not in tables:
        raise ProfileFormatError(f"{name}: damaged: no table {table!r}")
    found = tables[table]
    columns = {}
    for column, kind in SCHEMAS[table].items():
        if column not in found.column_names:
            raise ProfileFormatError(f"{name}: damaged: table {table!r} has no column {column!r}")
        data = found.column(column)
        if data.null_count:
            raise ProfileFormatError(f"{name}: damaged: {table}.{column} has empty cells")
        try:
            columns[column] = data if data.type == kind else data.cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise ProfileFormatError(f"{name}: damaged: {table}.{column}: {_one_line(error)}") from error
    return pa.table(columns)


def _one_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]

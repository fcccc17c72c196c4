"""perf.data without the perf program: file and pipe mode, both byte orders, every size of perf_event_attr.

`import_perf_data` reads the header, cuts the data into records (`records`), decodes samples in batches (`decode`),
keeps what the other records say (`sideband`), and names the addresses of the distinct call chains (`resolve`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Event, Frames, Profile, Run, Stacks
from nsprof.store.importers import assemble as a
from nsprof.store.importers.ahead import ahead
from nsprof.store.importers.assemble import U64
from nsprof.store.importers.perfdata import decode as d
from nsprof.store.importers.perfdata import header as h
from nsprof.store.importers.perfdata import memory as m
from nsprof.store.importers.perfdata import rows as r
from nsprof.store.importers.perfdata.branches import Branches, SomeBranches
from nsprof.store.importers.perfdata.memory import NO_WEIGHT
from nsprof.store.importers.perfdata.passed import Passed, weights_by_function
from nsprof.store.importers.perfdata.records import Batch, Scan
from nsprof.store.importers.perfdata.resolve import Resolver, kernel_symbols
from nsprof.store.importers.perfdata.sideband import LOST, LOST_SAMPLES, THROTTLE, UNTHROTTLE, Side
from nsprof.store.importers.text import event_unit

__all__ = ["import_perf_data"]

_NO_CPU = 0xFFFF
_COLUMNS = ("event", "chain", "pid", "tid", "time", "cpu", "weight")


@dataclass(slots=True)
class _Gathered:
    """Columns of the batches decoded so far, and what was counted on the way."""

    parts: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    chains: d.Chains = field(default_factory=d.Chains)
    branches: Branches = field(default_factory=Branches)
    bad: int = 0
    unknown_event: int = 0
    memory: Passed = field(default_factory=Passed)
    cgroups: Counter[int] = field(default_factory=Counter)
    last_read: dict[int, int] = field(default_factory=dict)
    guessed_period: set[int] = field(default_factory=set)

    def column(self, name: str) -> NDArray[Any]:
        if len(self.parts) > 1:
            merged = np.concatenate([p.pop(name) for p in self.parts])
            self.parts[0][name] = merged
        return self.parts[0][name]


def import_perf_data(
    buf: memoryview,
    name: str,
    *,
    more: Sequence[tuple[str, memoryview]] = (),
    kallsyms: Path | None = None,
    vmlinux: Path | None = None,
) -> tuple[Profile, bool]:
    """(profile, whether the file is damaged) of a perf.data file in memory or mapped.

    `more` are the other files of a directory that `perf record --threads` wrote, by name: records without a header.
    What stands before the damage is kept. Raises ProfileFormatError when nothing can be read, when there are no
    samples, or when given symbols do not belong to the recording.
    """
    head = h.parse_header(buf)
    side = Side(head)
    scans = [Scan(buf, head.data_offset, head.data_offset + head.data_size, head.order)]
    scans.extend(Scan(part, 0, len(part), head.order) for _, part in more)
    got = _Gathered()
    for file, scan in zip(("", *(file for file, _ in more)), scans, strict=True):
        for decoded in ahead(_decode_batch, _batches(scan, side, name)):
            for part in decoded:
                _keep(part, head, got)
        if scan.damage is not None:
            where = f"{file}, {scan.damage.offset:#x}" if file else f"{scan.damage.offset:#x}"
            head.notes.append(f"damaged at {where}: {scan.damage.what}; what stands before it was kept")
    damaged = any(scan.damage for scan in scans)
    if not head.attrs:
        raise ProfileFormatError(f"{name}: no event is described in it")
    if not got.parts:
        head.notes.append("no samples" + (" before the damage" if damaged else " in it"))
        got.parts.append(_no_rows())
    side.settle()
    profile = _profile(name, head, side, got, scans, kallsyms=kallsyms, vmlinux=vmlinux)
    return profile, damaged or bool(got.bad)


def _no_rows() -> dict[str, NDArray[Any]]:
    kinds = ("u1", "u4", "i4", "i4", "u8", "u2", "f8")
    return {name: np.zeros(0, kind) for name, kind in zip(_COLUMNS, kinds, strict=True)}


@dataclass(slots=True)
class _Decoded:
    """Samples of one layout, decoded: the rows that are good, the event of each row, the chains of the good ones."""

    words: NDArray[Any]
    columns: d.Columns
    rows: NDArray[np.int64]
    event: NDArray[np.int64]
    chains: d.SomeChains
    branches: SomeBranches | None
    unknown_event: int


def _batches(scan: Scan, side: Side, name: str) -> Iterator[tuple[Batch, tuple[h.Attr, ...], str]]:
    """Batches with samples, the events described so far, and the order of bytes; other records are taken in."""
    for batch in scan:
        for at in batch.others:
            side.add(batch.buf, at)
        if len(batch.samples):
            if not side.head.attrs:
                raise ProfileFormatError(f"{name}: samples without a description of their event")
            yield batch, tuple(side.head.attrs), side.head.order


def _decode_batch(given: tuple[Batch, tuple[h.Attr, ...], str]) -> list[_Decoded]:
    batch, attrs, order = given
    made: list[_Decoded] = []
    for residue in range(8):
        at = (
            batch.samples[batch.samples & 7 == residue] if not (batch.samples & 7 == residue).all() else batch.samples
        )
        if not len(at):
            continue
        usable = (len(batch.buf) - residue) // 8
        words = np.frombuffer(batch.buf, order + "u8", count=usable, offset=residue)
        start = (at - residue) >> 3
        head_words = words[start].astype("u8")
        size = (head_words >> U64(48) if order == "<" else head_words & U64(0xFFFF)).astype("i8")
        end = start + (size >> 3)
        which = _events_of(words, start, end, attrs)
        unknown = int((which < 0).sum())
        # One pass a layout: events that share one are decoded together, whatever their ids.
        layouts: dict[tuple[int, ...], list[int]] = {}
        for index, attr in enumerate(attrs):
            key = (attr.sample_type, attr.read_format, attr.branch_sample_type, attr.regs_user, attr.regs_intr)
            layouts.setdefault(key, []).append(index)
        for members in layouts.values():
            rows = np.flatnonzero(np.isin(which, members)) if len(layouts) > 1 else np.flatnonzero(which >= 0)
            if len(rows) or unknown:
                columns = d.decode(words, start[rows], end[rows], attrs[members[0]], order)
                good = np.flatnonzero(~columns.bad)
                chains = d.Chains.of(words, columns, good)
                branches = Branches.of(words, columns, good, which[rows], order)
                made.append(_Decoded(words, columns, good, which[rows], chains, branches, unknown))
                unknown = 0
    return made


def _events_of(
    words: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64], attrs: Sequence[h.Attr]
) -> NDArray[np.int64]:
    """Index of each sample's event; -1 for an id that no event has. An id of 0, or none, means the first event."""
    kind = attrs[0].sample_type
    if len(attrs) == 1 or not kind & (h.IDENTIFIER | h.ID):
        return np.zeros(len(start), "i8")
    place = 1 if kind & h.IDENTIFIER else 1 + sum(bool(kind & bit) for bit in (h.IP, h.TID, h.TIME, h.ADDR))
    ids = words[np.minimum(start + place, len(words) - 1)].astype("u8")
    known = [(each, index) for index, attr in enumerate(attrs) for each in attr.ids]
    if not known:
        return np.zeros(len(start), "i8")
    known.sort()
    table = np.array([k for k, _ in known], "u8")
    index = np.array([i for _, i in known], "i8")
    at = np.searchsorted(table, ids).clip(0, len(table) - 1)
    which = np.where(table[at] == ids, index[at], np.where(ids == 0, 0, -1))
    which[start + place >= end] = -1
    return which


def _keep(part: _Decoded, head: h.Header, got: _Gathered) -> None:
    words, cols, rows = part.words, part.columns, part.rows
    got.unknown_event += part.unknown_event
    got.bad += len(cols.bad) - len(rows)
    if not len(rows):
        return
    chain = got.chains.add(part.chains)
    got.memory.add(cols, rows)
    got.branches.add(part.branches)
    event = part.event[rows]
    if cols.period is not None:
        weight = cols.period[rows].astype("f8")
    else:
        table = np.array([_fixed_period(attr, index, got) for index, attr in enumerate(head.attrs)])
        weight = table[event]
    if cols.cgroup is not None:
        ids, counts = np.unique(cols.cgroup[rows], return_counts=True)
        got.cgroups.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
    cpu = cols.cpu[rows]
    made = {
        "event": event.astype("u1"),
        "chain": chain,
        "pid": cols.pid[rows].astype("i4"),
        "tid": cols.tid[rows].astype("i4"),
        "time": cols.time[rows],
        "cpu": np.where((cpu >= 0) & (cpu < _NO_CPU), cpu, _NO_CPU).astype("u2"),
        "weight": weight,
    }
    if cols.latency is not None:
        made["latency"] = np.minimum(cols.latency[rows], U64(NO_WEIGHT - 1)).astype("u4")
    made.update(m.columns(cols, rows))
    if cols.read is not None:
        made = _deliver(words, cols.read.take(rows), made, head, got)
    got.parts.append(made)


def _fixed_period(attr: h.Attr, index: int, got: _Gathered) -> float:
    """The weight of a sample that carries no period: the event's, or what the frequency means for a clock."""
    if not attr.freq:
        return float(attr.period or 1)
    got.guessed_period.add(index)
    return 1e9 / attr.period if attr.period and attr.type == 1 and attr.config < 2 else 1.0


def _deliver(
    words: NDArray[Any],
    where: d.ReadAt,
    part: dict[str, NDArray[Any]],
    head: h.Header,
    got: _Gathered,
) -> dict[str, NDArray[Any]]:
    """PERF_SAMPLE_READ: each counter value is a sample of its event, weighing what was counted since the last one.

    As perf does (evlist__deliver_sample); a value that did not move makes no sample.
    """
    row, ids, value = d.read_values(words, where)
    if not where.id_shift:
        return part
    order = np.lexsort((np.arange(len(row)), part["time"][row], ids))
    ids_o, value_o = ids[order], value[order]
    before = np.zeros(len(order), "u8")
    before[1:] = value_o[:-1]
    new = np.ones(len(order), bool)
    new[1:] = ids_o[1:] != ids_o[:-1]
    before[new] = [got.last_read.get(i, 0) & 0xFFFFFFFFFFFFFFFF for i in ids_o[new].tolist()]
    last = np.append(new[1:], True) if len(new) else new
    got.last_read.update(zip(ids_o[last].tolist(), value_o[last].tolist(), strict=True))
    delta = np.zeros(len(order), "f8")
    delta[order] = np.where(value_o >= before, value_o - before, value_o).astype("f8")
    by_id = {each: index for index, attr in enumerate(head.attrs) for each in attr.ids}
    event = np.array([by_id.get(i, -1) for i in ids.tolist()], "i8")
    keep = (event >= 0) & (delta > 0)
    made = {name: column[row[keep]] for name, column in part.items()}
    made["event"] = event[keep].astype("u1")
    made["weight"] = delta[keep]
    # What the record tells of memory is told once, of the event that made it.
    others = part["event"][row[keep]] != made["event"]
    for name in (*m.COLUMNS, "latency"):
        if name in made:
            made[name][others] = NO_WEIGHT if name == "latency" else 0
    return made


def _optional(got: _Gathered, name: str, missing: int, kind: str) -> NDArray[Any] | None:
    """A column that not every event has, `missing` standing for those; None where no sample has it."""
    if not any(name in part for part in got.parts):
        return None
    for part in got.parts:
        if name not in part:
            part[name] = np.full(len(part["pid"]), missing, kind)
    return got.column(name)


def _profile(
    name: str,
    head: h.Header,
    side: Side,
    got: _Gathered,
    scans: Sequence[Scan],
    *,
    kallsyms: Path | None,
    vmlinux: Path | None,
) -> Profile:
    latency = _optional(got, "latency", NO_WEIGHT, "u4")
    told = {name: _optional(got, name, 0, "u8") for name in m.COLUMNS}
    columns = {each: got.column(each) for each in _COLUMNS}
    got.parts.clear()
    events, number = _events(head, columns)
    kernel = kernel_symbols(head, side, kallsyms, vmlinux)
    resolver = Resolver(head, side, kernel)
    stacks, of_chain = r.stacks(resolver, side, got.chains, columns)
    task, tasks = r.tasks(side, columns)
    task_ns, namespaces = r.namespaces(side, columns)
    rows = a.Rows(
        event=columns["event"],
        stack=of_chain,
        weight=columns["weight"],
        task=task,
        cpu=columns["cpu"],
        time_ns=columns["time"],
        task_ns=task_ns,
        events=events,
        tasks=tasks,
        namespaces=namespaces,
    )
    notes = [*head.notes, *_notes(head, side, got, scans), kernel.note, *_user_notes(resolver)]
    counts = {
        "chain_addresses": got.chains.addresses,
        "branch_entries": got.branches.sums["entries"],
        "throttle": side.counts[THROTTLE],
        "unthrottle": side.counts[UNTHROTTLE],
        "lost_records": side.counts[LOST],
        "lost_samples_records": side.counts[LOST_SAMPLES],
        "compressed_bytes": sum(scan.compressed_bytes for scan in scans),
        "aux_bytes_skipped": sum(scan.skipped_aux_bytes for scan in scans),
        "files": len(scans) if len(scans) > 1 else 0,
    }
    features = {k: v for k, v in head.features.items() if k != "cmdline"}
    run = Run(
        scenario=Path(name).name,
        kernel=str(head.features.get("osrelease", "")),
        cpus=int(head.features.get("nrcpus", 0)),
        command=tuple(head.features.get("cmdline", ())),
        warnings=tuple(n for n in notes if n.startswith(("damaged", "lost", "throttled"))),
        losses=a.no_losses(lost_records=side.lost + side.lost_samples, throttled=side.counts[THROTTLE]),
    )
    meta = a.source_meta("perf.data", name, notes, **counts, **features)
    meta["source"].update(got.memory.summary())
    frames = resolver.table.frames()
    names = [event.name for event in events]
    alike = np.array([names.index(each) for each in names], "u1")  # events of one name are one in tables of names
    seen = m.Accesses(alike[columns["event"]], of_chain, columns["cpu"], columns["pid"], latency, **told)
    meta["source"].update(_memory(seen, stacks, names, frames, resolver))
    if got.branches.parts:
        meta["source"]["branches"] = got.branches.summary()
        meta["source"].update(got.branches.tables(resolver.beside(), side, alike[number], names))
    if got.cgroups:
        groups = {group: side.cgroups.get(group, f"cgroup {group}") for group in got.cgroups}
        meta["cgroups"] = {groups[n]: count for n, count in got.cgroups.most_common(1000)}
    return a.assemble(rows, frames, stacks, run=run, meta=meta, named=np.array(resolver.named, bool))


def _memory(
    seen: m.Accesses, stacks: Stacks, events: Sequence[str], frames: Frames, resolver: Resolver
) -> dict[str, Any]:
    """The tables of what samples tell of memory; in `seen` there are stacks yet in the place of their leaves."""
    if all(column is None for column in (seen.weight, seen.address, seen.physical, seen.data_source)):
        return {}
    at = stacks.offsets[seen.frame]
    full = np.flatnonzero(at < stacks.offsets[seen.frame + 1])
    seen = seen.take(full)
    seen.frame = stacks.frames[at[full]]
    made = m.tables(seen, events, frames, resolver.data)
    if seen.weight is not None:
        made["weights_by_function"] = weights_by_function(seen.event, seen.frame, seen.weight, events, frames.name)
    return {name: table for name, table in made.items() if table}


def _events(head: h.Header, columns: dict[str, NDArray[Any]]) -> tuple[list[Event], NDArray[np.uint8]]:
    """The events that a profile shows, and which of them each of the file's is: perf's own helper event ("dummy")
    only if it was sampled.

    Events that are equal in all a reader sees become one; the numbers in `columns` change accordingly.
    """
    sampled = set(np.unique(columns["event"]).tolist())
    table: dict[Event, int] = {}
    number = np.zeros(256, "u1")
    for index, attr in enumerate(head.attrs):
        if index in sampled or (attr.type, attr.config) != (1, 9):
            number[index] = table.setdefault(_event(attr, head), len(table))
    columns["event"] = number[columns["event"]]
    return list(table), number


def _event(attr: h.Attr, head: h.Header) -> Event:
    name = h.event_name(attr, head.event_types)
    return Event(
        name,
        event_unit(name),
        period=0 if attr.freq else min(attr.period, 2**63 - 1),
        frequency_hz=min(attr.period, 2**31) if attr.freq else 0,
    )


def _notes(head: h.Header, side: Side, got: _Gathered, scans: Sequence[Scan]) -> list[str]:
    notes: list[str] = []
    if side.lost or side.lost_samples:
        notes.append(f"lost: {side.lost} records and {side.lost_samples} samples, by the file's own account")
    if side.counts[THROTTLE]:
        notes.append(
            f"throttled: {side.counts[THROTTLE]} times (unthrottled {side.counts[UNTHROTTLE]}): "
            "the kernel held the sampling back, so busy moments are underrepresented"
        )
    if got.bad:
        notes.append(f"damaged: {got.bad} samples do not fit into their records and were left out")
    if got.unknown_event:
        notes.append(f"{got.unknown_event} samples of an event that the file does not describe were left out")
    if side.bad:
        notes.append(f"damaged: {side.bad} records other than samples are malformed and were left out")
    notes.extend(got.memory.notes(got.branches.sums))
    skipped = sum(scan.skipped_aux_bytes for scan in scans)
    if skipped:
        notes.append(f"{skipped} bytes of AUX data (hardware traces) were stepped over")
    for index in sorted(got.guessed_period):
        attr = head.attrs[index]
        notes.append(
            f"{h.event_name(attr, head.event_types)}: the samples carry no period; "
            + ("the nominal one is used" if attr.type == 1 and attr.config < 2 else "each one counts as 1")
        )
    return notes


def _user_notes(resolver: Resolver) -> list[str]:
    missing = sorted(resolver.user_missing - resolver.user_files)
    if not missing:
        return []
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return [f"user symbols: [unknown] in {shown} (no file here has the recorded build-id and symbols)"]

"""The footprint of a packet by what its lines belong to, and which function touches what it did not touch before.

A footprint counts distinct 64-byte lines: an upper bound on the misses of one CPU with cold caches. It says nothing
of coherence between CPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsprof.kernelnames import fold_suffixes
from nsprof.render.tables import Column, Grid, Lines, Part
from nsprof.simulate import Measurement
from nsprof.vm import tcg_memory

__all__ = ["Footprint", "footprint", "footprint_parts", "footprint_rows"]


@dataclass(frozen=True)
class Footprint:
    """The named data lines of one boot's modal sample, and which functions touched each."""

    measurement: Measurement
    lines: tuple[tcg_memory.NamedLine, ...]
    functions: dict[int, frozenset[str]]
    with_memory: bool

    @property
    def named_share(self) -> float:
        """Share of the lines named by symbol, per-CPU variable, stack or slab cache."""
        return sum(line.named for line in self.lines) / max(1, len(self.lines))

    @property
    def member_share(self) -> float:
        """Share of the slab lines (typed objects are slab objects too) whose struct member is known."""
        slab = [line for line in self.lines if line.kind in ("slab", "typed")]
        return sum(bool(line.member) for line in slab) / max(1, len(slab))

    def objects(self) -> Counter[str]:
        """What the lines belong to -> lines."""
        return Counter(_object(line) for line in self.lines)

    def by_function(self) -> Counter[tuple[str, str]]:
        """(function, what) -> lines that the function touched."""
        found: Counter[tuple[str, str]] = Counter()
        for line in self.lines:
            for function in self.functions.get(line.line.address, ()):
                found[function, _object(line)] += 1
        return found


def _object(line: tcg_memory.NamedLine) -> str:
    if line.member:
        return line.member.partition(".")[0]
    return f"{line.kind} {line.name}" if line.name else line.kind


def footprint(measurement: Measurement, vmlinux: Path | None) -> Footprint:
    """Name the modal sample's data lines: through drgn with a vmlinux and a memory copy, else by symbol and region.

    Raises VmError when drgn is missing or cannot read the memory.
    """
    lines = list(measurement.sample.lines())
    if vmlinux is not None and measurement.snapshot is not None:
        named = tcg_memory.name_lines(measurement.snapshot, vmlinux, measurement.symbols, lines)
    else:
        named = tcg_memory.name_by_symbols(measurement.symbols, lines)
    by_index = {node.function: fold_suffixes(node.name) for node in measurement.output.nodes.values()}
    functions: dict[int, set[str]] = {}
    for text, address, function in measurement.sample.touchers():
        if not text and function in by_index:
            functions.setdefault(address, set()).add(by_index[function])
    touched = {address: frozenset(names) for address, names in functions.items()}
    return Footprint(measurement, tuple(named), touched, vmlinux is not None)


def footprint_rows(each: Footprint) -> list[dict[str, Any]]:
    """The lines as JSON types, for the profile's metadata."""
    return [
        {
            "address": f"{line.line.address:x}",
            "kind": line.kind,
            "name": line.name,
            "member": line.member,
            "loads": line.line.loads,
            "stores": line.line.stores,
            "functions": sorted(each.functions.get(line.line.address, ())),
        }
        for line in each.lines
    ]


def footprint_parts(prints: Sequence[Footprint], limit: int) -> list[Part]:
    """Lines by what they belong to, one column a scenario; and the functions that touch more than in the first."""
    objects = [each.objects() for each in prints]
    names = sorted({n for found in objects for n in found}, key=lambda n: (-max(f[n] for f in objects), n))
    columns = (Column("data lines of", right=False, wrap=True), *(Column(p.measurement.scenario) for p in prints))
    rows = [(name, *(str(found[name]) for found in objects)) for name in (names[:limit] if limit else names)]
    total = ("all", *(str(len(each.lines)) for each in prints))
    parts: list[Part] = [Grid(columns, tuple(rows), title="Footprint: distinct 64-byte lines of data", footer=total)]
    for each in prints:
        shared = sum(len(each.functions.get(line.line.address, ())) > 1 for line in each.lines)
        words = f"{each.measurement.scenario}: {shared} of {len(each.lines)} lines are shared by several functions"
        if each.with_memory:
            words += f"; {each.named_share:.1%} named, {each.member_share:.1%} of slab lines by struct member"
        parts.append(Lines((words,)))
    base = prints[0].by_function()
    for each in prints[1:]:
        more = [(n - base[key], key) for key, n in each.by_function().items() if n > base[key]]
        more.sort(key=lambda item: (-item[0], item[1]))
        said = [
            f"{function} touches {count} more line{'s' if count > 1 else ''} of {what}"
            for count, (function, what) in (more[:limit] if limit else more)
        ]
        parts.append(Lines((f"{each.measurement.scenario} against {prints[0].measurement.scenario}:",)))
        parts.append(Lines(tuple(said), bullet=True))
    parts.append(Lines(("A footprint bounds the misses of one CPU from above and says nothing of coherence.",)))
    return parts

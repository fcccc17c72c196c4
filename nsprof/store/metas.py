"""What readers rely on in a profile's `meta`, checked in one place when a file is read.

`meta` is free JSON: keys that are not named here pass through as they are. Those that are named have the shape given
here, so no reader has to ask whether a host is a mapping before it looks for the CPU in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsprof.errors import ProfileFormatError

__all__ = ["META", "check_meta"]

_DEEPEST = 40  # what nests deeper is no description of a measurement, but an attempt on the reader's stack
_LARGEST = 2**63  # what counts something in here fits in 64 bits; Python's own numbers have no end


@dataclass(frozen=True, slots=True)
class Plain:
    """A value without parts: of one of these types, in words."""

    words: str
    types: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """A mapping of which some keys are known; `need` are those without which it cannot be read."""

    known: Mapping[str, Shape] = field(default_factory=dict)
    need: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Each:
    """A mapping whose values all have one shape."""

    value: Shape


@dataclass(frozen=True, slots=True)
class Items:
    """A list whose items all have one shape."""

    value: Shape


@dataclass(frozen=True, slots=True)
class Maybe:
    """The shape, or null."""

    value: Shape


@dataclass(frozen=True, slots=True)
class Either:
    """One of two shapes; what is wrong is told by the first."""

    first: Shape
    second: Shape


Shape = Plain | Keys | Each | Items | Maybe | Either

TEXT = Plain("text", (str,))
WHOLE = Plain("a whole number", (int,))
NUMBER = Plain("a number", (int, float))
WORD = Plain("text or a number", (str, int, float, bool, type(None)))
COMMAND = Items(TEXT)

_COUNTS = ("nft_rules", "routes", "policy_rules", "conntrack_entries", "packet_sockets", "taps")
_COUNTS_BY_DEVICE = ("tc_filters", "bridge_ports")
_SPACE = Keys(
    {
        "sysctl": Maybe(Each(WORD)),
        "datapath": Maybe(
            Keys(
                {
                    **dict.fromkeys(_COUNTS, WHOLE),
                    **dict.fromkeys(_COUNTS_BY_DEVICE, Maybe(Each(WHOLE))),
                    "xdp": Maybe(Each(TEXT)),
                }
            )
        ),
        "devices": Maybe(
            Each(
                Keys(
                    {
                        "kind": Maybe(TEXT),
                        "driver": Maybe(TEXT),
                        "qdisc": Maybe(TEXT),
                        "qdiscs": Maybe(Items(TEXT)),
                        "mtu": Maybe(WHOLE),
                        "offloads": Maybe(Each(WORD)),
                        "queues": Maybe(Each(WORD)),
                    }
                )
            )
        ),
    }
)
_HOST = Keys({"namespaces": Maybe(Each(_SPACE)), "sysctl": Maybe(Keys()), "config": Maybe(Each(WORD))})

_FUNCTION: dict[str, Shape] = {"function": TEXT, "module": TEXT}
_LEVELS = Each(Keys({"samples": WHOLE, "weight_sum": Maybe(NUMBER)}, ("samples",)))
_FLAGS = ("samples", "hitm", "peer", "tlb_misses", "locked", "loads", "stores")
_ACCESS: dict[str, Shape] = {**dict.fromkeys(_FLAGS, WHOLE), "weight_sum": Maybe(NUMBER), "levels": _LEVELS}
_PLACE: dict[str, Shape] = {"address": Maybe(TEXT), "physical": Maybe(TEXT), "symbol": TEXT}
_LINES: dict[str, Shape] = dict.fromkeys(("samples", "lines", "shared_lines"), WHOLE)
_BRANCH: dict[str, Shape] = {
    **dict.fromkeys(("branches", "mispredicted", "aborted"), WHOLE),
    "mean_cycles": Maybe(NUMBER),
}
_EDGE: dict[str, Shape] = {f"{end}_{k}": v for end in ("from", "to") for k, v in _FUNCTION.items()}


def _row(*parts: Mapping[str, Shape]) -> Keys:
    """A row that has all of these keys."""
    known = {k: v for part in parts for k, v in part.items()}
    return Keys(known, tuple(known))


def _table(row: Shape, others: Keys, rows: str = "functions", more: Mapping[str, Shape] | None = None) -> Keys:
    return _row({rows: Items(row), "others": others}, more or {})


_TOUCHING = _row(_FUNCTION, {"offsets": Items(WHOLE), "samples": WHOLE, "cpus": WHOLE})
_SHARED: dict[str, Shape] = {"samples": WHOLE, "cpus": WHOLE, "functions": Items(_TOUCHING)}
_TOLD = ("loads", "stores", "hitm", "peer")  # all of them, or none
_SHARED_LINE = Either(
    _row(_PLACE, _SHARED, dict.fromkeys(_TOLD, WHOLE)),
    _row(_PLACE, _SHARED, dict.fromkeys(_TOLD, Plain("null", (type(None),)))),
)
_SOURCE = Keys(
    {
        "importer": TEXT,
        "file": TEXT,
        "runs": WHOLE,
        "accesses_by_function": Each(_table(_row(_FUNCTION, _ACCESS), _row({"functions": WHOLE}, _ACCESS))),
        "lines_by_function": Each(
            _table(
                _row(_FUNCTION, _LINES, {"top_lines": Items(_row(_PLACE, {"samples": WHOLE}))}),
                _row({"functions": WHOLE}, _LINES),
                more=_LINES,
            )
        ),
        "shared_lines": Maybe(_table(_SHARED_LINE, _row({"lines": WHOLE, "samples": WHOLE}), "lines")),
        "branches": Keys({"entries": WHOLE, "samples": WHOLE, "empty": WHOLE}, ("entries", "samples")),
        "branches_by_function": Each(_table(_row(_FUNCTION, _BRANCH), _row({"functions": WHOLE}, _BRANCH))),
        "branch_edges": Each(_table(_row(_EDGE, _BRANCH), _row({"edges": WHOLE}, _BRANCH), "edges")),
    }
)
_CASE = _row({"command": COMMAND, "containers": WHOLE, **dict.fromkeys(("name", "part", "label", "shape"), TEXT)})
_MARK = Keys({"load": NUMBER, "mhz": Items(NUMBER)})
_BENCH = Keys(
    {
        "command": Maybe(COMMAND),
        "scenarios": Items(TEXT),
        "conditions": Items(Keys({"run": WHOLE, "before": _MARK, "after": _MARK}, ("run", "before", "after"))),
        "kernels": Items(TEXT),
        "seed": Maybe(WHOLE),
        "plan": Keys(
            {
                "cases": Items(_CASE),
                "tables": Items(TEXT),
                "per": Maybe(TEXT),
                **dict.fromkeys(("title", "baseline", "about", "experiment"), TEXT),
            },
            ("cases",),
        ),
    }
)
_DATA_LINE = Keys({"member": Maybe(TEXT), "functions": Maybe(Items(TEXT))})

#: What is relied on, by key of `meta`.
META = Keys(
    {
        "tool": Maybe(Keys({"name": TEXT, "version": TEXT})),
        "created": Maybe(TEXT),
        "commit": Maybe(TEXT),
        "boot_id": Maybe(TEXT),
        "file": Maybe(TEXT),
        "notes": Maybe(Items(TEXT)),
        "host": Maybe(_HOST),
        "hosts": Maybe(Each(_HOST)),
        "topology": Maybe(
            Each(
                Keys(
                    {
                        "chain": TEXT,
                        "shape": TEXT,
                        "mitigations": TEXT,
                        "namespaces": Maybe(Each(_SPACE)),
                        "host": Maybe(_HOST),
                    }
                )
            )
        ),
        "source": Maybe(_SOURCE),
        "sources": Maybe(Items(_SOURCE)),
        "bench": Maybe(_BENCH),
        "record": Maybe(Keys({"in": Maybe(TEXT), "watch": Maybe(Items(TEXT)), "command": Maybe(COMMAND)})),
        "simulate": Maybe(
            Keys(
                {
                    "workload": TEXT,
                    "mitigations": TEXT,
                    "runs": Items(Keys({"kernel": TEXT, "scenario": TEXT, "data_lines": Maybe(Items(_DATA_LINE))})),
                }
            )
        ),
        "churn": Maybe(Keys()),
        "churn_pids": Maybe(Each(Items(WHOLE))),
        "calibration": Maybe(Keys({"burned_ns": Each(Items(NUMBER)), "rules": WHOLE})),
    }
)


def check_meta(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata with nulls left out that stand for a whole key. Raises ProfileFormatError naming the first place
    whose value a reader could not use."""
    if not all(_shallow(value, _DEEPEST) for value in meta.values()):
        raise ProfileFormatError(f"damaged: meta nests deeper than {_DEEPEST} levels")
    for place, value, wanted in _misfits(META, meta, "meta"):
        shown = type(value).__name__ if isinstance(value, (dict, list)) else repr(value)
        kinds = {"dict": "a mapping", "list": "a list", "None": "null"}
        raise ProfileFormatError(f"damaged: {place} is {kinds.get(shown, shown[:60])}: must be {wanted}")
    return {key: value for key, value in meta.items() if value is not None}


def _shallow(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(part, levels - 1) for part in parts)


def _misfits(shape: Shape, value: Any, place: str) -> Iterator[tuple[str, Any, str]]:
    """(place, value, what it must be) of whatever has not the shape."""
    if isinstance(shape, Maybe):
        if value is not None:
            yield from _misfits(shape.value, value, place)
    elif isinstance(shape, Either):
        if any(_misfits(shape.second, value, place)):
            yield from _misfits(shape.first, value, place)
    elif isinstance(shape, Plain):
        if not _fits(shape, value):
            yield place, value, shape.words
    elif isinstance(shape, Items):
        if not isinstance(value, list):
            yield place, value, "a list"
            return
        for number, part in enumerate(value):
            yield from _misfits(shape.value, part, f"{place}[{number}]")
    elif not isinstance(value, Mapping):
        yield place, value, "a mapping"
    elif isinstance(shape, Each):
        for key, part in value.items():
            yield from _misfits(shape.value, part, f"{place}.{key[:60]}")
    else:
        missing = next((key for key in shape.need if key not in value), None)
        if missing is not None:
            yield place, value, f"one with {missing!r}"
        for key, part in shape.known.items():
            if key in value:
                yield from _misfits(part, value[key], f"{place}.{key}")


def _fits(shape: Plain, value: Any) -> bool:
    if isinstance(value, bool):  # Python's truths are whole numbers, JSON's are not
        return bool in shape.types
    if isinstance(value, int) and abs(value) > _LARGEST:
        return False
    return isinstance(value, shape.types)

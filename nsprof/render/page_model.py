"""What the report page is made from: model results, and the few plain rows that no other room needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nsprof.model.results import CostReport, DiffReport, FlameTree, Interval, ScenarioTable
from nsprof.render.flamegraph_data import UnitScale

__all__ = [
    "BY_CAUSE",
    "Card",
    "Facts",
    "FlameView",
    "LedgerEntry",
    "PageContent",
    "PointGroup",
    "RunChart",
    "TopologyBox",
    "TopologyLink",
    "TopologyPicture",
]

#: Behind a share of a finding: categories divide the same change otherwise.
BY_CAUSE = "of the change, by cause"


@dataclass(frozen=True, slots=True, eq=False)
class FlameView:
    """One entry of the flame graph's "Show" list; `units` are offered beside the tree's own and %."""

    label: str
    tree: FlameTree
    units: tuple[UnitScale, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One kind of event on packets (copy, checksum, fragment, ...) on one place, per unit of `PageContent.per`.

    nan where a side was not probed; bytes likewise.
    """

    what: str
    detail: str
    where: str
    base: float = float("nan")
    new: float = float("nan")
    base_bytes: float = float("nan")
    new_bytes: float = float("nan")


@dataclass(frozen=True, slots=True)
class PointGroup:
    """The runs of one scenario: one value a run, in order; `centre` and `interval` what they say together."""

    label: str
    values: tuple[float, ...]
    centre: float = float("nan")
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class RunChart:
    """One metric, every run of every scenario as a point."""

    title: str
    unit: str
    groups: tuple[PointGroup, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class TopologyBox:
    """A namespace: `lines` are its devices as (name, what flowed); `cost` is the CPU spent for it, `spent` that for
    each device's packets, one a line ("" where it is not known)."""

    title: str
    role: str
    lines: tuple[tuple[str, str], ...] = ()
    cost: str = ""
    spent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """Two devices that are the ends of one wire or pair, each as (box number, line number)."""

    one: tuple[int, int]
    other: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TopologyPicture:
    """Boxes from the workload's end to the remote end; `note` says what the figures are."""

    boxes: tuple[TopologyBox, ...]
    links: tuple[TopologyLink, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A titled table of (name, one value a column); `columns` are heads ("" for a single value column).

    `folded` tables are shown when their title is opened; `compare` marks rows whose values differ.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    note: str = ""
    folded: bool = False
    compare: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """A finding in words: a title and lines of evidence."""

    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageContent:
    """Everything on the page. What is None or empty gets no section, or a line that says why it is missing.

    `report` is the new (or only) side; `missing` maps a section ("ledger", "runs", "topology", "flame", ...) to the
    reason it cannot be shown; `not_measurable` are lines for the reader,
    `refused` every probe behind them.

    A page may hold several comparisons: `others` are the further ones, which the reader chooses by their `label`
    ("veth-route against host"; it is in links too), `left_out` says why others still are not there.
    """

    title: str
    report: CostReport | None = None
    diff: DiffReport | None = None
    table: ScenarioTable | None = None
    views: tuple[FlameView, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()
    ledger_per: str = ""
    ledger_notes: tuple[str, ...] = ()
    charts: tuple[RunChart, ...] = ()
    topology: TopologyPicture | None = None
    environment: tuple[Facts, ...] = ()
    losses: Facts | None = None
    not_measurable: tuple[str, ...] = ()
    refused: Facts | None = None
    cards: tuple[Card, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    version: str = ""
    label: str = ""
    others: tuple[PageContent, ...] = ()
    left_out: tuple[str, ...] = ()

"""What the analysis hands to the renderers: plain immutable rows, no DataFrames.

Costs are *unit costs* (event unit per denominator) unless a field says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CategoryRow",
    "CostReport",
    "DeltaRow",
    "DiffReport",
    "Evidence",
    "Explanation",
    "Finding",
    "FlameTree",
    "FunctionExplanation",
    "FunctionRow",
    "GroupRow",
    "Interval",
    "KernelDiff",
    "Measure",
    "ScenarioRow",
    "ScenarioTable",
    "Suggestion",
]


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; `level` 0.95 means 95 %."""

    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class Measure:
    """In what a report is written: event, its unit, and the denominator ("" = plain totals, no unit cost).

    `label` is what a column head says, e.g. "ns/transaction"; `reference` where the denominator was read.
    """

    event: str
    unit: str
    per: str
    label: str
    reference: str = ""
    kind: str = "sampled"


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One function in one profile. Shares are of busy weight; `skid_share` is of the row's own self weight.

    `contexts` maps context names to the share of the function's self weight spent there.
    """

    name: str
    module: str
    category: str
    self_cost: float
    total_cost: float
    self_share: float
    total_share: float
    samples: int
    skid_share: float = 0.0
    contexts: Mapping[str, float] = field(default_factory=dict)
    self_interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One datapath category ("bridge", "checksum", ...)."""

    name: str
    cost: float
    share: float
    samples: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One namespace, device or hop of `--by`; `key` tells it apart where two have the same label."""

    key: str
    label: str
    cost: float
    share: float
    samples: int
    contexts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostReport:
    """`nsprof report`: one side. `total` is the unit cost of everything busy; `notes` are lines to print."""

    title: str
    measure: Measure
    functions: tuple[FunctionRow, ...]
    categories: tuple[CategoryRow, ...]
    groups: tuple[GroupRow, ...] = ()
    total: float = 0.0
    runs: int = 0
    samples: int = 0
    covered_share: float = 0.0
    skid_share: float = 0.0
    unknown_share: float = 0.0
    lost_share: float = float("nan")
    own_share: float = float("nan")
    measured_cpu_s: float = float("nan")
    sampled_cpu_s: float = float("nan")
    from_idle_cpu_s: float = float("nan")
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeltaRow:
    """One function (or category) on both sides: `delta` = `new` - `base`, in unit cost of self weight.

    `status` is "new" (absent from base), "gone" (absent from new) or "". `verdict` is "+", "-", "~" or "" where
    the evidence allows none. p and q are nan where no test was made.
    """

    name: str
    module: str
    category: str
    base: float
    new: float
    delta: float
    base_total: float = 0.0
    new_total: float = 0.0
    interval: Interval | None = None
    p: float = float("nan")
    q: float = float("nan")
    verdict: str = ""
    status: str = ""
    skid_share: float = 0.0
    samples_base: int = 0
    samples_new: int = 0


@dataclass(frozen=True, slots=True)
class DiffReport:
    """`nsprof diff`: `functions` sorted by |delta|; their deltas plus `not_attributed` make `total.delta`."""

    base_title: str
    new_title: str
    measure: Measure
    total: DeltaRow
    functions: tuple[DeltaRow, ...]
    categories: tuple[DeltaRow, ...]
    not_attributed: float = 0.0
    runs_base: int = 0
    runs_new: int = 0
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    groups: tuple[DeltaRow, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class FlameTree:
    """A call tree for drawing, columnar; node 0 is the root, a parent comes before its children.

    `name` and `module` index into `strings`; `parent[0]` is -1. `self_base`/`self_new` are unit costs (a plain
    flame graph has `self_base` all zero and `differential` False). `kind` is a FrameKind. `samples_*` are ticks.
    `shown` is whether a node's inclusive change is significant over the runs; None where they are too few to tell.
    """

    strings: tuple[str, ...]
    name: NDArray[np.uint32]
    module: NDArray[np.uint32]
    kind: NDArray[np.uint8]
    parent: NDArray[np.int32]
    self_new: NDArray[np.float64]
    self_base: NDArray[np.float64]
    samples_new: NDArray[np.float64]
    samples_base: NDArray[np.float64]
    measure: Measure
    differential: bool = False
    title: str = ""
    base_title: str = ""
    notes: tuple[str, ...] = ()
    #: function name -> {"verdict": ..., "q": ..., "low": ..., "high": ...} for tooltips and greying
    findings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shown: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """One line of the document-000 table. CPU in % of all online CPUs of the machine under test.

    Changes are against the table's baseline: (x - baseline) / baseline in %, nan for the baseline itself.
    `unit_cost` is the headline unit cost with its change; `cpu_remote_pct` the other end, apart.
    """

    scenario: str
    kernel: str
    runs: int
    cpu_pct: float
    cpu_change_pct: float
    throughput: float
    throughput_unit: str
    throughput_change_pct: float
    unit_cost: float
    unit_cost_label: str
    unit_cost_change_pct: float
    cpu_remote_pct: float = float("nan")
    cpu_interval: Interval | None = None
    throughput_interval: Interval | None = None
    unit_cost_interval: Interval | None = None
    drops: float = 0.0
    retransmits: float = 0.0
    observation: str = ""
    is_baseline: bool = False


@dataclass(frozen=True, slots=True)
class ScenarioTable:
    """The table of source document 000: "CPU usage (%) / overhead | Throughput / changed", Observation."""

    title: str
    baseline: str
    rows: tuple[ScenarioRow, ...]
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence for (`agrees`) or against a cause. `kind` is functions, simulation, counters, ledger,
    host or workload; pieces of different kinds do not depend on each other."""

    kind: str
    text: str
    agrees: bool = True


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to try, a command for it ("" if there is none), and how to verify that it helped."""

    text: str
    command: str = ""
    verify: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause. `certainty` is "found" (two kinds of evidence or more) or "possible" (one).

    `delta` is its part of the extra cost, in the measure's unit; `share` of the total's delta (nan where that is not
    shown to differ from 0, or for causes that cost no CPU). `not_cpu` causes have `strength` instead, the share of
    throughput, packets or time concerned.
    """

    cause: str
    title: str
    what: str
    place: str
    certainty: str
    not_cpu: bool
    delta: float
    interval: Interval | None
    share: float
    share_interval: Interval | None
    strength: float
    evidence: tuple[Evidence, ...]
    functions: tuple[tuple[str, float], ...]
    suggestions: tuple[Suggestion, ...]
    source: str
    threshold: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`nsprof explain`: findings in order of weight, and what remains.

    `answer` is "explained", "partly explained", "not explained", "not cpu", "no difference" or "not enough data".
    The findings' deltas plus `not_explained` make `total.delta`. `forbids` says which conclusions the input does not
    allow, `reasons` how the answer came about, `next` what one more recording would settle. `cpu_full` is the
    busy share of the new side's CPUs under test where all of them were full in every run (else nan), and
    `cpu_full_others` the part of the sampled busy time that tasks outside the scenario's namespaces took there.
    """

    base_title: str
    new_title: str
    measure: Measure
    answer: str
    total: DeltaRow
    findings: tuple[Finding, ...]
    not_explained: float
    not_explained_interval: Interval | None
    not_explained_share: float
    unexplained_functions: tuple[tuple[str, float], ...] = ()
    runs_base: int = 0
    runs_new: int = 0
    forbids: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tested: int = 0
    cpu_full: float = float("nan")
    cpu_full_others: float = float("nan")


@dataclass(frozen=True, slots=True)
class FunctionExplanation:
    """`nsprof explain --function`: one function on both sides, with its callers and what it calls.

    `callers` and `callees` are (name, base, new) of inclusive cost; `source` "file:line" where debug info gave it.
    """

    name: str
    measure: Measure
    base_title: str
    new_title: str
    own: DeltaRow
    callers: tuple[tuple[str, float, float], ...]
    callees: tuple[tuple[str, float, float], ...]
    paths: tuple[tuple[str, float, float], ...]
    other_events: tuple[tuple[str, float, float], ...] = ()
    source: str = ""
    summary: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelDiff:
    """`nsprof explain --kernel-diff`: what two kernels execute for the same packet.

    `groups` are (call path that pulled them in, delta, functions with their delta and what became of them: "more",
    "less", "new", "gone"); `inlining` the functions whose change is one of compilation only, (callee, caller, both
    together). `touched` are (function, struct, lines at base, lines in new, members that more lines begin with
    than at base).
    """

    measure: Measure
    base_title: str
    new_title: str
    total: DeltaRow
    groups: tuple[tuple[str, float, tuple[tuple[str, float, str], ...]], ...]
    inlining: tuple[tuple[str, str, float], ...]
    lines: tuple[tuple[str, float, float], ...] = ()
    notes: tuple[str, ...] = ()
    touched: tuple[tuple[str, str, int, int, tuple[str, ...]], ...] = ()

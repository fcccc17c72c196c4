"""Results of a bench beyond the table of scenarios: metrics of both sides, scaling, conditions, histories, gates."""

from __future__ import annotations

from dataclasses import dataclass

from nsprof.model.results import Interval

__all__ = [
    "ConditionRow",
    "GateReport",
    "GateRow",
    "History",
    "HistoryPoint",
    "MetricRow",
    "MetricTable",
    "Scaling",
    "ScalingPoint",
]

_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One figure of both sides over their runs: mean and standard deviation (nan for one run).

    `change_pct` is (new - base) / base; `interval` the 95 % interval of the difference in the metric's unit; p and q
    nan where no test was made.
    """

    name: str
    unit: str
    base_mean: float
    base_stddev: float
    new_mean: float
    new_stddev: float
    change_pct: float
    interval: Interval | None = None
    p: float = _NAN
    q: float = _NAN
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Two sides in the form of the kernel test robot's tables: mean +- stddev, change, mean +- stddev."""

    base_title: str
    new_title: str
    runs_base: int
    runs_new: int
    rows: tuple[MetricRow, ...]


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Unit cost with `containers` containers: mean over runs."""

    containers: int
    cost: float
    interval: Interval | None
    runs: int


@dataclass(frozen=True, slots=True)
class Scaling:
    """Least squares line through the runs: `slope` is what one more container costs, in the cost's unit."""

    title: str
    unit: str
    points: tuple[ScalingPoint, ...]
    slope: float
    slope_interval: Interval | None
    intercept: float
    p: float


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """How quiet a scenario's runs were. Shares of CPU time; `mhz` lowest and highest clock seen (0: not told)."""

    scenario: str
    runs: int
    spread: float
    steal_share: float
    other_share: float
    lost_share: float
    mhz: tuple[float, float]
    load: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateRow:
    """One thing that is guarded. `change` and `limit` are shares of the base; `outcome` "pass", "fail" or
    "unknown"; `why` a sentence."""

    name: str
    base: float
    new: float
    change: float
    interval: Interval | None
    limit: float
    outcome: str
    why: str


@dataclass(frozen=True, slots=True)
class GateReport:
    """The answer of `nsprof gate`."""

    base_title: str
    new_title: str
    unit: str
    exact: bool
    rows: tuple[GateRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """ "fail" if anything fails, else "unknown" if anything is, else "pass"."""
        found = {row.outcome for row in self.rows}
        return "fail" if "fail" in found else "unknown" if "unknown" in found or not found else "pass"


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One scenario in one file. `change_pct` against the point before; `mark` says why a change point begins here."""

    file: str
    when: str
    kernel: str
    commit: str
    cost: float
    interval: Interval | None
    runs: int
    change_pct: float = _NAN
    mark: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """One scenario over many files, oldest first."""

    scenario: str
    unit: str
    points: tuple[HistoryPoint, ...]
    notes: tuple[str, ...] = ()

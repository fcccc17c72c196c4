"""nsprof from Python: open profiles, compare them, get DataFrames.

    import nsprof
    host, pod = nsprof.open("host.nsprof"), nsprof.open("pod.nsprof")
    host.report().to_frame()                       # cost per function
    pod.report(by="netns").groups_frame()          # CPU by namespace
    delta = host.diff(pod)                         # pod minus host
    delta.to_frame().query("verdict == '+'")
    delta.result.total.interval

Everything that a file or an argument can do wrong raises a subclass of `nsprof.errors.NsprofError`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsprof import analyse, store
from nsprof.model.profile import Profile
from nsprof.model.results import (
    CategoryRow,
    CostReport,
    DeltaRow,
    DiffReport,
    FlameTree,
    FunctionRow,
    GroupRow,
    ScenarioRow,
    ScenarioTable,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DiffResult", "FlameResult", "Handle", "ReportResult", "TableResult", "open_profile"]


def open_profile(path: str | os.PathLike[str], **options: Any) -> Handle:
    """Open a profile of any format that nsprof reads; `options` go to the importer. Available as `nsprof.open`."""
    return Handle(store.open_any(path, **options))


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """An open profile. `profile` is the immutable data itself (`nsprof.model.profile.Profile`)."""

    profile: Profile

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The names that `scenario=` takes."""
        from nsprof.analyse.selection import scenario_names

        return scenario_names(self.profile)

    def report(self, scenario: str | None = None, **options: Any) -> ReportResult:
        """Unit cost per function of one scenario; options as `nsprof.analyse.report`: event, per, by, where, ..."""
        return ReportResult(analyse.report(self.profile, scenario=scenario, **options))

    def diff(
        self, other: Handle | None = None, *, baseline: str | None = None, scenario: str | None = None, **options: Any
    ) -> DiffResult:
        """`other` (default: another scenario of this profile) minus this one; options as `nsprof.analyse.diff`."""
        new = other.profile if other is not None else self.profile
        return DiffResult(analyse.diff(self.profile, new, base_scenario=baseline, new_scenario=scenario, **options))

    def flame(self, scenario: str | None = None, **options: Any) -> FlameResult:
        """The call tree; options as `nsprof.analyse.flame`."""
        return FlameResult(analyse.flame(self.profile, scenario=scenario, **options))

    def table(self, baseline: str | None = None, **options: Any) -> TableResult:
        """CPU usage, throughput and unit cost of every scenario against `baseline`."""
        return TableResult(analyse.scenario_table(self.profile, baseline, **options))

    def samples_frame(self) -> pd.DataFrame:
        """All samples with names instead of numbers."""
        from nsprof.analyse import tables

        return tables.samples_frame(self.profile)

    def runs_frame(self) -> pd.DataFrame:
        """All runs with their denominators and the workload's results."""
        from nsprof.analyse import tables

        return tables.runs_frame(self.profile)

    def save(self, path: str | os.PathLike[str], *, keep_old: bool = False) -> None:
        """Write a .nsprof file, all of it or nothing."""
        store.save(self.profile, path, keep_old=keep_old)


def _frame(rows: Any, row_type: type) -> pd.DataFrame:
    from nsprof.analyse import tables

    return tables.rows_frame(rows, row_type)


@dataclass(frozen=True, slots=True, eq=False)
class ReportResult:
    """A report; `result` holds all of it."""

    result: CostReport

    def to_frame(self) -> pd.DataFrame:
        """One row a function, most expensive first."""
        return _frame(self.result.functions, FunctionRow)

    def categories_frame(self) -> pd.DataFrame:
        """One row a datapath category."""
        return _frame(self.result.categories, CategoryRow)

    def groups_frame(self) -> pd.DataFrame:
        """One row a group of `by=`."""
        return _frame(self.result.groups, GroupRow)


@dataclass(frozen=True, slots=True, eq=False)
class DiffResult:
    """A comparison; `result` holds all of it."""

    result: DiffReport

    def to_frame(self) -> pd.DataFrame:
        """One row a function, largest change first."""
        return _frame(self.result.functions, DeltaRow)

    def categories_frame(self) -> pd.DataFrame:
        """One row a datapath category."""
        return _frame(self.result.categories, DeltaRow)

    def groups_frame(self) -> pd.DataFrame:
        """One row a group of `by=`."""
        return _frame(self.result.groups, DeltaRow)


@dataclass(frozen=True, slots=True, eq=False)
class FlameResult:
    """A call tree; `result` holds all of it."""

    result: FlameTree

    def to_frame(self) -> pd.DataFrame:
        """One row a node, parents before children."""
        from nsprof.analyse import tables

        return tables.tree_frame(self.result)


@dataclass(frozen=True, slots=True, eq=False)
class TableResult:
    """The table of scenarios; `result` holds all of it."""

    result: ScenarioTable

    def to_frame(self) -> pd.DataFrame:
        """One row a scenario."""
        return _frame(self.result.rows, ScenarioRow)

"""Numbers: unit costs, categories, deltas, statistics, ledger, causes.

Importing this package is cheap; numpy, pandas and scipy come with the first call.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsprof.analyse.comparing import diff
    from nsprof.analyse.filters import Filter
    from nsprof.analyse.flaming import flame, flame_diff
    from nsprof.analyse.reporting import report
    from nsprof.analyse.scenarios import scenario_table

__all__ = ["Filter", "diff", "flame", "flame_diff", "report", "scenario_table"]

_HOME = {
    "Filter": "filters",
    "diff": "comparing",
    "flame": "flaming",
    "flame_diff": "flaming",
    "report": "reporting",
    "scenario_table": "scenarios",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"nsprof.analyse.{_HOME[name]}"), name)

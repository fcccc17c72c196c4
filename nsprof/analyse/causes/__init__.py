"""Why a profile costs more than its baseline: declarative causes, and the engine that weighs them.

A cause is one file in `known/` holding one `Rule`; `registry.rules()` lists them. Adding a cause is adding one file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsprof.analyse.causes.engine import explain
    from nsprof.analyse.causes.function import explain_function
    from nsprof.analyse.causes.kerneldiff import kernel_diff
    from nsprof.analyse.causes.registry import rules

__all__ = ["explain", "explain_function", "kernel_diff", "rules"]

_HOME = {"explain": "engine", "explain_function": "function", "kernel_diff": "kerneldiff", "rules": "registry"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"nsprof.analyse.causes.{_HOME[name]}"), name)

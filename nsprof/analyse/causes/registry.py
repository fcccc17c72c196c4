"""The list of causes: every module of `known`, in the order of their names."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from nsprof.analyse.causes import known
from nsprof.analyse.causes.rule import Rule

__all__ = ["rules"]


@cache
def rules() -> tuple[Rule, ...]:
    """All causes. Raises TypeError for a module of `known` without a `RULE`."""
    found = []
    for module in sorted(m.name for m in pkgutil.iter_modules(known.__path__)):
        rule = getattr(importlib.import_module(f"{known.__name__}.{module}"), "RULE", None)
        if not isinstance(rule, Rule):
            raise TypeError(f"{module}: no RULE")
        found.append(rule)
    names = [rule.name for rule in found]
    if len(set(names)) != len(names):
        raise TypeError(f"two causes have one name: {sorted(n for n in names if names.count(n) > 1)}")
    return tuple(found)

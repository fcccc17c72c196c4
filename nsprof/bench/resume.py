"""Going on with a bench that was interrupted or had failures: its good runs are kept, what is missing is run."""

from __future__ import annotations

import platform
from collections import Counter
from pathlib import Path
from typing import Any

from nsprof.bench.plan import Plan
from nsprof.errors import ComparisonError, UsageError
from nsprof.model.profile import Profile

__all__ = ["earlier_runs", "open_earlier"]


def open_earlier(path: str, plan: Plan) -> Profile | None:
    """The profile to go on with, None when there is none yet.

    Raises ComparisonError when it was made by other words, naming the first differences; UsageError when it is no
    bench at all.
    """
    from nsprof import store

    if not Path(path).exists():
        return None
    profile = store.load(path)
    before = profile.meta.get("bench", {}).get("plan")
    if before is None:
        raise UsageError(f"{path} was not made by nsprof bench, so it cannot be resumed", "-o another file")
    kernels = sorted({run.kernel for run in profile.runs if run.kernel})
    if kernels and kernels != [platform.release()]:
        raise ComparisonError(
            f"{path} was made on kernel {', '.join(kernels)}, this is {platform.release()}",
            "-o another file, then compare the two: nsprof diff OLD NEW",
        )
    changed = _changes(before, plan.describe())
    if changed:
        raise ComparisonError(
            f"{path} was made by another bench: {'; '.join(changed[:4])}", "repeat its words, or -o another file"
        )
    return profile


def earlier_runs(profile: Profile, *, kinds: int) -> dict[str, int]:
    """How many usable runs there are of each `kind:case` (kind 1: with hop probes)."""
    found: Counter[str] = Counter()
    for run in profile.runs:
        if not run.failed and not run.warmup and "ledger" not in run.probes_on:
            kind = 1 if kinds > 1 and "hop" in run.probes_on else 0
            found[f"{kind}:{run.scenario}"] += 1
    return dict(found)


def _changes(before: Any, now: Any, path: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys((*before, *now))
        return [c for k in keys for c in _changes(before.get(k), now.get(k), f"{path}.{k}" if path else k)]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [c for i, (b, n) in enumerate(zip(before, now, strict=True)) for c in _changes(b, n, f"{path}[{i}]")]
    return [] if before == now else [f"{path} was {before!r}, is {now!r}"]

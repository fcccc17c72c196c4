"""`--until 2%`: go on until the difference to the baseline is known well enough.

After every whole block (each case once, in fair order) the half-width of the 95 % interval of each case's
difference to the baseline is looked at, as a share of the baseline's unit cost. Looking again and again makes them
a little narrower than they should be (Y. S. Chow, H. Robbins, "On the asymptotic theory of fixed-width sequential
confidence intervals", Ann. Math. Stat. 36, 1965: right in the limit of many runs only), so nothing stops before
LEAST_RUNS runs a case, and the profile says that it was stopped by its own data.
"""

from __future__ import annotations

import re

import numpy as np

from nsprof.errors import EvidenceError, UsageError
from nsprof.model.profile import Profile

__all__ = ["LEAST_RUNS", "half_widths", "parse_share"]

#: As many runs as verdicts need: stopping earlier would be stopping by luck.
LEAST_RUNS = 8


def parse_share(text: str) -> float:
    """`2%` or `0.02` as a share. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not match or not 0 < value < 1:
        raise UsageError(f"not a share: {text!r}", "write 2% (or 0.02)")
    return value


def half_widths(profile: Profile, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """New scenario -> half-width of the difference's 95 % interval as a share of the base's unit cost.

    `pairs` are (base, new). Infinite where it is not known yet.
    """
    from nsprof.analyse import selection, statistics

    found: dict[str, float] = {}
    for base, new in pairs:
        try:
            sides = [selection.view(profile, scenario=name) for name in (base, new)]
        except EvidenceError:
            found[new] = float("inf")
            continue
        costs = [side.totals()[np.newaxis] for side in sides]
        comparable = sides[0].measure.label == sides[1].measure.label
        evidence = statistics.compare(costs[0], costs[1])
        half = float(evidence.high[0] - evidence.low[0]) / 2
        mean = float(costs[0].mean())
        found[new] = half / mean if comparable and mean > 0 and np.isfinite(half) else float("inf")
    return found

"""One set of values for several clients that ran side by side."""

from __future__ import annotations

from collections.abc import Sequence

from nsprof.model.profile import Value
from nsprof.workload.base import Outcome

__all__ = ["combined"]

_SUMS = ("throughput", "transaction", "bytes_", "datagrams_", "messages", "packets", "operations", "retransmits_")
_LARGEST = ("elapsed", "latency_max", "rtt_max")
_SMALLEST = ("latency_min", "rtt_min")
_NOT_A_SUM = ("throughput_confidence", "throughput_harmonic_mean")


def combined(outcomes: Sequence[Outcome]) -> tuple[Value, ...]:
    """Values of clients that ran at the same time: rates and amounts added up, extremes of extremes.

    What cannot be put together from the parts (percentiles, means, CPU figures) is left out, and so is what not
    every client told. One outcome gives its values as they are.
    """
    if len(outcomes) == 1:
        return outcomes[0].values
    tables = [{(v.name, v.unit): v for v in outcome.values} for outcome in outcomes]
    found = []
    for key, first in tables[0].items() if tables else ():
        if not all(key in table for table in tables):
            continue
        numbers = [table[key].value for table in tables]
        if first.name in _LARGEST:
            found.append(first._replace(value=max(numbers)))
        elif first.name in _SMALLEST:
            found.append(first._replace(value=min(numbers)))
        elif first.name.startswith(_SUMS) and first.name not in _NOT_A_SUM:
            found.append(first._replace(value=sum(numbers)))
    return tuple(found)

"""`nsprof top`: which namespace and device the CPU works for, live, in a terminal or as batches of text or JSON.

watch.py samples and counts, devices.py reads packet counters, table.py turns a second into rows, keys.py reads the
keyboard, live.py is the loop of the screen, batch.py that of scripts, save.py writes the last seconds as a profile.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SORTS", "TopOptions"]

#: What rows may be sorted by, in the order of the `s` key.
SORTS = ("cpu", "softirq", "rate", "cost", "drops", "name")


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What the command line of `nsprof top` says. `keep_s` is how many seconds a save holds."""

    interval_s: float = 1.0
    frequency_hz: int = 199
    hop: bool = True
    sort: str = "cpu"
    reverse: bool = False
    filter: str = ""
    by: str = "device"
    idle: bool = False
    keep_s: int = 60
    output: str = "top.nsprof"
    count: int = 0
    batch: bool = False
    as_json: bool = False
    limit: int = 0
    quiet: bool = False

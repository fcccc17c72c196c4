"""What `analyse.ledger` makes of ledger lines: events per unit, hops, callers, and the kernel's MIBs beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["EventRow", "HopRow", "LedgerReport", "PlaceRow", "Reconciled"]


@dataclass(frozen=True, slots=True)
class EventRow:
    """One kind of event over all places. `base` and `new` are calls per unit, nan where that side did not probe it;
    `base_bytes` and `new_bytes` are bytes per unit (nan where bytes mean nothing), `calls` and `size_bytes` the new
    side's totals (size_bytes -1 where bytes mean nothing). `shed_s` and `base_shed_s` say until when that side was
    counted, where its probe was shed: then its figures per unit are nan.
    """

    what: str
    calls: int
    size_bytes: int
    base: float
    new: float
    base_bytes: float
    new_bytes: float
    new_bytes_per_kb: float
    shed_s: float = math.nan
    base_shed_s: float = math.nan


@dataclass(frozen=True, slots=True)
class HopRow:
    """What one device saw. Segments are those of the wire that skbs stand for; nothing here is per unit.

    `queued_shed_s`, `sent_shed_s` and `received_shed_s` say until when, where that probe was shed (else nan).
    """

    namespace: str
    device: str
    mtu: str
    queued: int
    queued_segments: int
    sent: int
    sent_segments: int
    received: int
    received_segments: int
    fragments_sent: int
    fragments_received: int
    over_mtu: int
    queued_shed_s: float = math.nan
    sent_shed_s: float = math.nan
    received_shed_s: float = math.nan


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """One kind of event at one place by one caller: calls per unit, and bytes per KB of payload.

    Both are nan where the probe was shed, at `shed_s`.
    """

    what: str
    detail: str
    namespace: str
    device: str
    caller: str
    calls: int
    size_bytes: int
    per_unit: float
    bytes_per_kb: float
    shed_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Reconciled:
    """An event against the kernel's own counter of it.

    `verdict` is "yes" (equal), "edges" (no more apart than what passes while probes are attached and detached), "no",
    or "shed" (not compared: the count stopped early); `why` says what is known of the difference.
    """

    what: str
    namespace: str
    counted: int
    mib: str
    kernel: int
    verdict: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """`per` is the unit ("skb", ...), "" where the runs have no common one; then per-unit figures are nan."""

    title: str
    base_title: str
    runs: int
    duration_s: float
    per: str
    reference: str
    fragmentation: str
    cost_share: float
    events: tuple[EventRow, ...]
    hops: tuple[HopRow, ...]
    places: tuple[PlaceRow, ...]
    reconciled: tuple[Reconciled, ...]
    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

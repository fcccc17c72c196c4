"""What `analyse.ledger` makes of ledger lines: events per unit, hops, callers, and the kernel's MIBs beside them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EventRow", "HopRow", "LedgerReport", "PlaceRow", "Reconciled"]


@dataclass(frozen=True, slots=True)
class EventRow:
    """One kind of event over all places. `base` and `new` are calls per unit, nan where that side did not probe it;
    `base_bytes` and `new_bytes` are bytes per unit (nan where bytes mean nothing), `calls` and `size_bytes` the new
    side's totals (size_bytes -1 where bytes mean nothing).
    """

    what: str
    calls: int
    size_bytes: int
    base: float
    new: float
    base_bytes: float
    new_bytes: float
    new_bytes_per_kb: float


@dataclass(frozen=True, slots=True)
class HopRow:
    """What one device saw. Segments are those of the wire that skbs stand for; nothing here is per unit."""

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


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """One kind of event at one place by one caller: calls per unit, and bytes per KB of payload."""

    what: str
    detail: str
    namespace: str
    device: str
    caller: str
    calls: int
    size_bytes: int
    per_unit: float
    bytes_per_kb: float


@dataclass(frozen=True, slots=True)
class Reconciled:
    """An event against the kernel's own counter of it.

    `verdict` is "yes" (equal), "edges" (no more apart than what passes while probes are attached and detached) or
    "no"; `why` says what the difference can be.
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

"""IPv6: only the sender fragments; a router on the way refuses, and that is counted where it happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsprof.analyse.ledger import ledger
from nsprof.observe import Observer
from tests.ledger_bed import COUNT, REMOTE6, Bed, counted, datagrams, observer, routed6

pytestmark = [pytest.mark.root, pytest.mark.bpf]
_HEADERS = 48  # IPv6's own, and the fragment's


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    with routed6() as standing:
        yield standing


@pytest.fixture(scope="module")
def watching() -> Iterator[Observer]:
    with observer() as loaded:
        yield loaded


@pytest.mark.parametrize("size", [4000, 9000])
def test_fragments_are_those_of_arithmetic_at_the_sender(watching: Observer, made: Bed, size: int) -> None:
    made.ip("c", "link", "set", "eth0", "mtu", "1400")
    try:
        counted(watching, made, datagrams(made, 1, 100, to=REMOTE6))  # neighbours are known from here on
        seen = counted(watching, made, datagrams(made, COUNT, size, to=REMOTE6))
    finally:
        made.ip("c", "link", "set", "eth0", "mtu", "1500")
    pieces = -(-(size + 8) // ((1400 - _HEADERS) // 8 * 8))
    assert seen.calls("fragments tx", "c", "eth0") == COUNT * pieces
    assert seen.size("fragments tx", "c", "eth0") == COUNT * (size + 8 + _HEADERS * pieces)
    assert seen.calls("fragments rx", "h", "pc") == seen.calls("fragments rx", "r", "eth0") == COUNT * pieces
    report = ledger(seen.profile)
    assert report.fragmentation.startswith(
        f"Fragmentation starts at eth0 in {made.full('c')} (MTU 1400): {COUNT} datagrams leave as {COUNT * pieces} "
    )
    verdicts = {(row.what, row.namespace): row for row in report.reconciled}
    assert verdicts["fragments made", made.full("c")].verdict == "yes"
    assert "Ip6.FragCreates" in verdicts["fragments made", made.full("c")].mib
    assert verdicts["fragments to reassemble", made.full("r")].verdict == "yes"


def test_a_router_refuses_what_is_too_big_and_is_where_that_is_counted(watching: Observer, made: Bed) -> None:
    made.ip("h", "link", "set", "pr", "mtu", "1400")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, 1440, to=REMOTE6, forbid=True))
    finally:
        made.ip("h", "link", "set", "pr", "mtu", "1500")
    assert seen.calls("drop", "h", detail="PKT_TOO_BIG") == COUNT
    assert seen.calls("fragments tx") == 0
    events = {row.what: row.calls for row in ledger(seen.profile).events}
    assert events["too big and not to be fragmented (kernel)"] == COUNT


def test_packets_that_fit_are_no_fragments(watching: Observer, made: Bed) -> None:
    seen = counted(watching, made, datagrams(made, COUNT, 1000, to=REMOTE6))
    assert seen.calls("UDP sent", "c", "eth0") == COUNT
    assert [line.what for line in seen.profile.ledger if line.what.startswith("fragments")] == []

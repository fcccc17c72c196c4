"""Rows of nsprof top: what is at rest is kept from one interval to the next, and nothing else is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsprof.model.profile import Context, Losses
from nsprof.top import SORTS
from nsprof.top.devices import Devices, Reading
from nsprof.top.table import State, rows_of
from nsprof.top.watch import Cell, Snapshot

SPACES = 40


def reading(at_s: float, packets: list[int], drops: int = 0) -> Reading:
    """Counters of devices 1, 2, ...: received packets, and drops at the first."""
    from nsprof.collect.system.rtdump import LINK_STATS

    stats = np.zeros((len(packets), len(LINK_STATS)), "u8")
    stats[:, LINK_STATS.index("rx_packets")] = packets
    stats[0, LINK_STATS.index("rx_dropped")] = drops
    return Reading(at_s, np.arange(1, len(packets) + 1, dtype="u4"), stats)


def machine() -> Devices:
    """Namespaces with two devices each, read twice; in every tenth eth0 carries 100 skbs a second."""
    devices = Devices()
    for number in range(SPACES):
        key = (1000 + number, number + 1)
        devices.paths[key[0]] = f"/run/netns/n{number}"
        devices.names[key[0]] = f"n{number:02}"
        devices.keys[key[0]] = key
        devices.labels |= {(*key, 1): "lo", (*key, 2): "eth0"}
        busy = 100 if number % 10 == 0 else 0
        drops = 3 if number == 5 else 0
        devices._rates(key, reading(1.0, [0, 0]), reading(2.0, [0, busy], drops))
    devices.paths[1] = "/proc/1/ns/net"  # never read
    devices.names[1] = "init"
    return devices


def snapshot(*cells: tuple[tuple[int, int, int], float]) -> Snapshot:
    """An interval of a second with so many ns of softirq for each row."""
    made = {key: Cell({int(Context.SOFTIRQ): ns}, {"f": ns}) for key, ns in cells}
    return Snapshot(1, 0.0, 1.0, made, {0: 1.0}, Losses(), 0.0, 1)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_idle_rows_are_all_there_once_and_sorted_like_the_others(sort: str, reverse: bool) -> None:
    devices, state = machine(), State(sort=sort, reverse=reverse, idle=True)
    shown = snapshot(((1003, 4, 2), 5e6), ((1003, 4, 0), 1e6), ((0, 0, 0), 2e6))
    rows = rows_of(shown, devices, state, hop=True)
    keys = [row.key for row in rows]
    assert len(keys) == len(set(keys)) == 2 * SPACES + 3  # two devices each, a task's row, nobody's, and init
    assert {row.namespace for row in rows if row.skb_s > 0} == {"n00", "n10", "n20", "n30"}
    assert [row.drops_s for row in rows if row.key == (1005, 6, 1)] == [3.0]
    values = {"cpu": "cpu", "softirq": "softirq", "rate": "skb_s", "drops": "drops_s"}
    if sort in values:
        found = [getattr(row, values[sort]) for row in rows]
        known = [-1.0 if math.isnan(v) else v for v in found]
        assert known == sorted(known, reverse=not reverse)
    again = rows_of(shown, devices, state, hop=True)
    assert [(r.key, r.cpu) for r in again] == [(r.key, r.cpu) for r in rows]


def test_what_rests_is_made_anew_only_when_something_changed() -> None:
    devices, state = machine(), State(idle=True)
    rows_of(snapshot(), devices, state, hop=True)
    kept = state.at_rest[2]
    devices._rates((1001, 2), reading(2.0, [0, 0]), reading(3.0, [0, 7]))  # a rate is no change
    moving = {row.key: row.rx_skb_s for row in rows_of(snapshot(), devices, state, hop=True)}
    assert state.at_rest[2] is kept
    assert moving[1001, 2, 2] == 7.0
    devices._rates((1001, 2), reading(3.0, [0, 7]), reading(4.0, [0, 7]))
    assert {row.key: row.rx_skb_s for row in rows_of(snapshot(), devices, state, hop=True)}[1001, 2, 2] == 0.0
    devices._forget((1002, 3))
    assert (1002, 3, 2) not in {row.key for row in rows_of(snapshot(), devices, state, hop=True)}
    assert state.at_rest[2] is not kept


def test_a_filter_and_namespaces_narrow_idle_rows_too() -> None:
    devices = machine()
    rows = rows_of(snapshot(), devices, State(idle=True, filter="N0"), hop=True)
    assert {row.namespace for row in rows} == {f"n{n:02}" for n in range(10)}
    spaces = rows_of(snapshot(((1003, 4, 2), 5e6)), devices, State(idle=True, by="namespace"), hop=True)
    assert len(spaces) == SPACES + 1
    assert next(row.device for row in spaces if row.namespace == "n00") == "eth0"
    assert rows_of(snapshot(), devices, State(), hop=True)[0].skb_s == 100.0
    assert len(rows_of(snapshot(), devices, State(), hop=True)) == 4


def test_idle_rows_follow_a_namespace_that_gets_another_name_and_a_device_that_goes() -> None:
    devices, state = machine(), State(idle=True)
    first = {row.key: row for row in rows_of(snapshot(), devices, state, hop=True)}
    devices.names[1002] = "renamed"
    devices.labels[1003, 4, 1] = "lo0"
    del devices.labels[1004, 5, 2]
    devices.version = 10**9
    second = {row.key: row for row in rows_of(snapshot(), devices, state, hop=True)}
    assert {row.namespace for key, row in second.items() if key[0] == 1002} == {"renamed"}
    assert second[1003, 4, 1].device == "lo0"
    assert set(first) - set(second) == {(1004, 5, 2)} and set(second) <= set(first)
    assert second[1006, 7, 1] is first[1006, 7, 1]  # those that are as before are not made again

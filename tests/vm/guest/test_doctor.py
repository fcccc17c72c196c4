"""`nsprof doctor` on kernels that allow what a locked-down host does not: every kind of probe runs."""

from __future__ import annotations

from nsprof.collect.checks import preflight
from nsprof.collect.system import cputime


def test_every_rung_is_found_to_work() -> None:
    rows = {row.key: row for row in preflight.checks()}
    probes = ("raw_tracepoint", "kernel_reads", "tp_btf", "fentry", "kprobe", "tracepoint")
    assert {key: rows[key].detail for key in probes} == dict.fromkeys(probes, "works")
    assert rows["lockdown"].state == "yes"
    assert rows["pmu"].state == "no"  # QEMU's TCG has none
    assert preflight.can_record(tuple(rows.values()))


def test_places_of_the_ledger_have_rungs() -> None:
    rows = {row.key: row for row in preflight.checks() if row.key.startswith("ledger")}
    for key, row in rows.items():
        print(key, row.state, row.detail, row.prevents)
    assert "net_dev_start_xmit" in rows["ledger_tp_btf"].detail
    standing = " ".join(row.detail for row in rows.values() if row.state != "no")
    assert "pskb_expand_head" in standing and "ip_do_fragment" in standing
    refused = [row for row in rows.values() if row.state == "no"]
    assert any("closed to probes" in row.detail and "_copy_from_iter" in row.prevents for row in refused)


def test_cpu_time_is_known_in_nanoseconds() -> None:
    assert cputime.read().source == "/proc/timer_list"

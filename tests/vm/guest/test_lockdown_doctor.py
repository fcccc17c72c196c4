"""Under lockdown=confidentiality the doctor finds out by trying what is left."""

from __future__ import annotations

from nsprof.collect.checks import preflight


def test_what_is_refused_and_what_is_left() -> None:
    rows = {row.key: row for row in preflight.checks()}
    assert rows["lockdown"].detail == "confidentiality"
    assert rows["kernel_reads"].state == "no"
    assert rows["kprobe"].state == "no"
    assert {rows[key].state for key in ("bpf_perf_event", "tp_btf", "btf", "kallsyms")} == {"yes"}
    assert preflight.can_record(tuple(rows.values()))

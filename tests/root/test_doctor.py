"""`nsprof doctor` on the real kernel: what it says is what can be done, and nothing stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsprof.collect.bpf.btf import kernel_types
from nsprof.collect.bpf.syscalls import program_infos
from nsprof.collect.checks import preflight, trials
from nsprof.collect.ledger.names import EVENTS, FUNCTIONS
from tests.support import REPO, need

pytestmark = pytest.mark.root
DOCTOR = [sys.executable, "-m", "nsprof", "doctor"]


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def states() -> dict[str, str]:
    return {row.key: row.state for row in preflight.checks()}


def test_json_and_table_agree_and_the_status_is_the_verdict() -> None:
    done = subprocess.run([*DOCTOR, "--json"], capture_output=True, cwd=REPO)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["can_record"] else 1)
    assert done.stderr == b""
    table = subprocess.run(DOCTOR, capture_output=True, cwd=REPO, env={**os.environ, "COLUMNS": "200"})
    assert table.returncode == done.returncode
    for row in document["checks"]:
        assert row["title"] in table.stdout.decode()
        assert row["state"] == "yes" or row["prevents"] or row["remedy"]


def test_trials_leave_nothing_loaded() -> None:
    before = set(program_infos())
    descriptors = open_descriptors()
    preflight.checks()
    assert open_descriptors() == descriptors
    deadline = time.monotonic() + 10
    while any("nsprof_trial" in name for name in set(program_infos()) - before):  # the kernel frees them later
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_rows_say_what_the_kernel_does() -> None:
    said = states()
    assert said["root"] == "yes"
    assert (said["btf"] == "yes") == Path("/sys/kernel/btf/vmlinux").exists()
    if said["tp_btf"] == "yes":
        assert said["btf"] == "yes"
    kprobes = Path("/sys/bus/event_source/devices/kprobe/type").exists()
    assert kprobes or said["kprobe"] == "no"
    need("netperf")
    assert said["netperf"] == "yes"


def test_each_place_of_the_ledger_has_a_rung_or_a_reason() -> None:
    need("bpf")
    rows = [row for row in preflight.checks() if row.key.startswith("ledger")]
    standing = ", ".join(row.detail for row in rows if row.state != "no")
    lost = " ".join(row.prevents for row in rows if row.state == "no")
    for event in EVENTS:
        assert event.optional or event.tracepoint in standing
    known = kernel_types()
    for function in FUNCTIONS:
        if not function.unless or not known.tracepoint(function.unless):
            names = (function.name, *function.also)
            assert any(name in standing or (function.what in lost and name in lost) for name in names), names
    for row in rows:
        assert row.state == "yes" or (row.detail and row.prevents), row
    if not Path("/sys/bus/event_source/devices/kprobe/type").exists():
        refused = next(row for row in rows if row.state == "no")
        assert "fentry: " in refused.detail and "kprobe: " in refused.detail
        assert "head realloc (pskb_expand_head)" in refused.prevents


def test_trial_that_cannot_fire_is_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    need("bpf")
    monkeypatch.setattr(trials._Counter, "value", lambda _: 0)
    assert "never ran" in trials.reason_of(lambda: trials.raw_tracepoint(read_kernel=False))


def test_without_root_it_says_what_that_costs() -> None:
    program = "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); " \
        "from nsprof.cli.main import run; run(['doctor', '--json'])"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd="/", timeout=60)
    if not done.stdout and b"Permission" in done.stderr:
        pytest.skip("an unprivileged user cannot read this checkout")
    document = json.loads(done.stdout)
    rows = {row["key"]: row for row in document["checks"]}
    assert done.returncode == 1
    assert rows["root"]["state"] == "no"
    assert "sudo" in rows["root"]["remedy"]
    assert rows["bpf_perf_event"]["state"] == "no"

"""What a hit costs on the rungs that only guests have, in instructions: figures of docs/probes/{calls,ledger}.md."""

from __future__ import annotations

import json
import sys

import pytest

from nsprof.vm import resolve, run_job
from tests.support import REPO
from tests.vm.suite import TIMEOUT_S

pytestmark = [pytest.mark.vm, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(2 * TIMEOUT_S)]


@pytest.mark.parametrize("spec", ["debian:6.1", "debian:6.12"])
def test_a_trampoline_costs_fewer_instructions_than_a_trap(spec: str) -> None:
    argv = [sys.executable, "-m", "tests.vm.cost_in_guest"]
    done = run_job(resolve(spec), argv, cwd=REPO, icount=True, memory_mb=2048, timeout_s=TIMEOUT_S)
    assert done.status == 0, done.stderr
    instructions = json.loads(done.stdout)
    print(spec, instructions)
    assert 0 < instructions["tp_btf"] < instructions["kprobe"]
    assert 0 < instructions["fentry"] < instructions["kprobe"]
    assert 0 < instructions["fexit"] < instructions["kretprobe"]


@pytest.mark.parametrize("spec", ["debian:6.1", "debian:6.12"])
def test_what_a_ledger_program_does_costs_more_than_its_rung(spec: str) -> None:
    argv = [sys.executable, "-m", "tests.vm.ledger_cost_in_guest"]
    done = run_job(resolve(spec), argv, cwd=REPO, icount=True, memory_mb=2048, timeout_s=TIMEOUT_S)
    assert done.status == 0, done.stderr
    instructions = json.loads(done.stdout)
    print(spec, instructions)
    assert {"tp_btf", "fentry", "kprobe"} <= set(instructions)
    functions = [cost for rung, cost in instructions.items() if rung != "tp_btf"]
    assert 0 < instructions["tp_btf"] < min(functions) / 3  # which takes no stack
    assert max(functions) < 1.5 * min(functions)
    assert instructions.get("kprobe_multi", 0) <= 1.05 * instructions["kprobe"]  # batches cost no more a hit

"""The gate: three answers, each for its reason, and files that CI systems read."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from nsprof import gate as room
from nsprof import store
from nsprof.errors import ComparisonError, UsageError
from nsprof.model.profile import Profile
from tests.profiles import HOST_COSTS, bench_profile

FIB = next(k for k in HOST_COSTS if k.startswith("fib_table_lookup"))


def _profile(change: float = 1.0, runs: int = 8, seed: int | None = 1, *, exact: bool = False) -> Profile:
    costs = {**HOST_COSTS, FIB: HOST_COSTS[FIB] * change}
    made = bench_profile(runs=runs, scenarios={"host": costs}, seed=seed)
    if exact:
        made = made.with_(events=tuple(replace(e, kind="modelled") for e in made.events))
    return made


def _outcome(base: Profile, new: Profile, limit: float | None = 0.02, **words: object) -> str:
    return room.overall(room.gate(base, new, limit=limit, **words))  # type: ignore[arg-type]


def test_the_same_cost_passes_and_a_higher_one_fails() -> None:
    assert _outcome(_profile(seed=1), _profile(seed=2)) == "pass"
    assert _outcome(_profile(seed=1), _profile(1.5, seed=2)) == "fail"  # 150 of 1,700 ns: +8.8 %
    assert _outcome(_profile(1.5, seed=1), _profile(seed=2)) == "pass"


def test_a_difference_at_the_limit_is_not_decided() -> None:
    assert _outcome(_profile(seed=1), _profile(1 + 0.02 * 1700 / 300, seed=2)) == "unknown"


def test_few_runs_decide_nothing() -> None:
    assert _outcome(_profile(runs=7), _profile(1.5, runs=7, seed=2)) == "unknown"
    assert _outcome(_profile(runs=7), _profile(1.5, runs=7, seed=2), least_runs=5) == "fail"
    assert _outcome(_profile(runs=1), _profile(1.5, runs=1, seed=2), least_runs=2) == "unknown"


def test_exact_counts_gate_without_statistics_to_the_last_unit() -> None:
    base = _profile(runs=1, seed=None, exact=True)
    assert _outcome(base, _profile(runs=1, seed=None, exact=True), 0.0) == "pass"
    more = _profile(1 + 1e-6, runs=1, seed=None, exact=True)
    assert _outcome(base, more, 0.0) == "fail"
    assert _outcome(base, more, 0.001) == "pass"


def test_a_function_is_guarded_by_itself() -> None:
    base, new = _profile(seed=1), _profile(1.2, seed=2)
    assert _outcome(base, new, None, functions={"fib_table_lookup": 0.01}) == "fail"
    assert _outcome(base, new, None, functions={"__udp4_lib_lookup": 0.05}) == "pass"
    with pytest.raises(UsageError, match="did you mean fib_table_lookup"):
        room.gate(base, new, limit=None, functions={"fib_table_lookpu": 0.01})
    with pytest.raises(UsageError, match="nothing is guarded"):
        room.gate(base, new, limit=None)


def test_other_cpus_are_refused_and_force_compares_them() -> None:
    base, new = _profile(seed=1), _profile(seed=2)
    other = new.with_(meta={**new.meta, "host": {"cpu": {"model": "Another CPU"}}})
    with pytest.raises(ComparisonError, match="Test CPU against Another CPU"):
        room.gate(base, other, limit=0.02)
    assert _outcome(base, other, force=True) == "pass"


def test_no_scenario_in_common_is_said() -> None:
    two = bench_profile(runs=2)
    renamed = two.with_(runs=tuple(replace(r, scenario=f"x-{r.scenario}") for r in two.runs))
    with pytest.raises(ComparisonError, match="no scenario in common"):
        room.gate(two, renamed, limit=0.02)


def test_exit_statuses_text_and_junit_from_the_command_line(tmp_path: Path) -> None:
    files = {
        "base": _profile(seed=1),
        "same": _profile(seed=2),
        "more": _profile(1.5, seed=3),
        "few": _profile(1.5, runs=2, seed=4),
    }
    for name, profile in files.items():
        store.save(profile, tmp_path / f"{name}.nsprof")
    for name, status, word in (("same", 0, "pass"), ("more", 1, "REGRESSION"), ("few", 3, "not enough evidence")):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nsprof", "gate", "base.nsprof", f"{name}.nsprof", "--fail-above", "2%"),
                *("--per", "packet", "--function", "fib_table_lookup=5%", "--junit", "j.xml"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stdout.rstrip().endswith(f"gate: {word}")
        suites = ET.parse(tmp_path / "j.xml").getroot()  # noqa: S314 - our own file
        cases = suites.findall("./testsuite/testcase")
        assert [c.get("name") for c in cases] == ["total", "fib_table_lookup"]
        bad = {0: None, 1: "failure", 3: "error"}[status]
        assert all((c.find(bad) is not None) if bad else c.find("system-out") is not None for c in cases)


@pytest.mark.parametrize("words", [["--fail-above", "lots"], ["--function", "ip_rcv"], ["--function", "=1%"], []])
def test_limits_that_are_none_are_usage_errors(tmp_path: Path, words: list[str]) -> None:
    store.save(_profile(runs=1), tmp_path / "p.nsprof")
    argv = [sys.executable, "-m", "nsprof", "gate", "p.nsprof", "p.nsprof", *words]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr

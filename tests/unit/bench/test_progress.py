"""How far a bench is, and how long it will take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nsprof.cli import bench_output


def test_each_run_is_a_line_with_the_time_left_once_a_run_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([100.0, 110.0, 120.0, 320.0])
    monkeypatch.setattr(bench_output, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    state = bench_output.Advance(quiet=False)
    state.advance(0, 4, "host")
    state.advance(1, 4, "veth-bridge")
    state.advance(2, 4, "veth-bridge")
    state.advance(4, 4, "")
    assert capsys.readouterr().err.splitlines() == [
        "nsprof: run 1 of 4: host",
        "nsprof: run 2 of 4: veth-bridge (about 30 s left)",
        "nsprof: run 3 of 4: veth-bridge (about 20 s left)",
    ]


def test_a_resumed_bench_reckons_with_its_own_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 60.0])
    monkeypatch.setattr(bench_output, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    state = bench_output.Advance(quiet=False)
    state.advance(90, 100, "host")
    state.advance(91, 100, "host")
    assert "(about 9 min left)" in capsys.readouterr().err


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bench_output.Advance(quiet=True).advance(0, 4, "host")
    assert capsys.readouterr().err == ""

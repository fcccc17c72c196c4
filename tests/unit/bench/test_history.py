"""Histories: files in order of time, changes where they were made, none in noise."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np

from nsprof import store
from nsprof.analyse.changepoints import change_points
from nsprof.history import histories, read_directory
from tests.profiles import HOST_COSTS, bench_profile


def _write(place: Path, number: int, factor: float, runs: int = 3, commit: str = "") -> None:
    costs = {name: cost * factor for name, cost in HOST_COSTS.items()}
    made = bench_profile(runs=runs, scenarios={"host": costs}, seed=number)
    release = f"6.12.0-g{commit}" if commit else "6.12.0"
    made = made.with_(
        runs=tuple(replace(r, kernel=release) for r in made.runs),
        meta={**made.meta, "created": f"2026-01-{number + 1:02d}T00:00:00Z"},
    )
    store.save(made, place / f"k{(number * 7) % 100:02d}.nsprof")


def test_a_step_is_found_where_it_is_and_noise_has_none() -> None:
    random = np.random.default_rng(1)
    series = random.normal(100, 1, 20)
    series[12:] += 6
    assert change_points(series) == [12]
    series[:5] -= 8
    assert change_points(series) == [5, 12]


def test_noise_alone_is_marked_in_about_one_series_of_twenty() -> None:
    marked = sum(bool(change_points(np.random.default_rng(s).normal(100, 1, 12))) for s in range(200))
    assert marked <= 22  # 5 % of 200 is 10; the 99.9 % quantile of that binomial is 20


def test_exact_series_change_wherever_they_differ() -> None:
    assert change_points(np.array([5.0, 5, 6, 6, 5]), exact=True) == [2, 4]


def test_too_short_series_have_no_change_points() -> None:
    assert change_points(np.array([1.0, 9.0])) == []
    assert change_points(np.array([1.0])) == []


def test_files_are_put_in_order_of_time_and_the_change_is_marked(tmp_path: Path) -> None:
    for number in range(10):
        _write(tmp_path, number, 1.0 if number < 6 else 1.1, commit=f"abcdef{number}")
    (tmp_path / "noise.nsprof").write_bytes(b"not a profile")
    said: list[str] = []
    history = histories(read_directory(str(tmp_path), say=said.append))[0]
    assert [p.when[:10] for p in history.points] == [f"2026-01-{n + 1:02d}" for n in range(10)]
    assert [bool(p.mark) for p in history.points] == [n == 6 for n in range(10)]
    assert 8 < history.points[6].change_pct < 12
    assert history.points[3].commit == "abcdef3"
    assert len(said) == 1
    assert "noise.nsprof" in said[0]


def test_two_files_with_runs_enough_are_compared_with_each_other(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1.0, runs=8)
    _write(tmp_path, 1, 1.1, runs=8)
    marks = [p.mark for p in histories(read_directory(str(tmp_path)))[0].points]
    assert marks[0] == ""
    assert "differs from the file before" in marks[1]


def test_table_svg_json_and_csv_from_the_command_line(tmp_path: Path) -> None:
    for number in range(9):
        _write(tmp_path, number, 1.0 if number < 5 else 1.2)
    for words in ([], ["--json"], ["--csv"], ["--markdown"]):
        argv = [sys.executable, "-m", "nsprof", "history", str(tmp_path), "--svg", str(tmp_path / "h.svg"), *words]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "a new level begins" in done.stdout
    root = ET.parse(tmp_path / "h.svg").getroot()  # noqa: S314 - our own file
    names = [e.get("class", "") for e in root.iter()]
    assert names.count("dot") == 9
    assert names.count("mark up") == 1


def test_an_empty_directory_and_none_are_said(tmp_path: Path) -> None:
    for path, status in ((tmp_path, 3), (tmp_path / "none", 2)):
        done = subprocess.run([sys.executable, "-m", "nsprof", "history", str(path)], capture_output=True, text=True)
        assert done.returncode == status
        assert "Traceback" not in done.stderr

"""`nsprof flamegraph` and `nsprof report --html` from the command line: files, names, options, errors."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from nsprof import store
from nsprof.cli.main import run
from tests.profiles import bench_profile

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A profile with host and veth-bridge, three runs each, one more with hop probes."""
    path = tmp_path / "bench.nsprof"
    store.save(bench_profile(3, hop_runs=1), path)
    return path


def nsprof(*words: str | Path) -> int:
    """Run the program in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        run([str(word) for word in words])
    return int(end.value.code or 0)


def view_of(path: Path) -> dict[str, Any]:
    """The data of a picture, with the names of its frames."""
    root = ET.fromstring(path.read_bytes())  # noqa: S314 - our own file
    data = next(json.loads(e.text or "") for e in root.iter(f"{SVG}script") if e.get("type") == "application/json")
    view: dict[str, Any] = data["views"][0]
    view["names"] = [data["s"][data["f"][frame][0]] for frame in view["f"]]
    view["flip"] = data["flip"]
    view["head"] = " ".join(text for _, text in data["head"])
    return view


def cost(view: dict[str, Any], name: str, side: str = "n") -> float:
    return sum(value for value, found in zip(view[side], view["names"], strict=True) if found == name)


def test_one_scenario_goes_beside_the_profile(bench: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert nsprof("flamegraph", bench, "--scenario", "veth-bridge") == 0
    made = bench.with_name("bench-veth-bridge.svg")
    assert str(made) in capfd.readouterr().err
    view = view_of(made)
    assert cost(view, "fdb_find_rcu") == pytest.approx(110, rel=0.03)
    assert sum(view["n"]) == pytest.approx(2280, rel=0.01)
    assert "veth-bridge: " in view["head"] and "samples lost 0.0 %" in view["head"] and "late (skid)" in view["head"]
    assert view["units"][0]["label"] == "ns/transaction"


def test_difference_of_two_scenarios_has_both_sides(bench: Path) -> None:
    assert nsprof("flamegraph", "--diff", bench) == 0
    view = view_of(bench.with_name("bench-veth-bridge-vs-host.svg"))
    assert view["diff"]
    assert cost(view, "veth_xmit", "b") == 0 and cost(view, "veth_xmit") == pytest.approx(160, rel=0.03)
    assert cost(view, "fib_table_lookup", "b") == pytest.approx(300, rel=0.03)


def test_difference_of_two_files_is_named_after_the_new_one(bench: Path, tmp_path: Path) -> None:
    assert nsprof("flamegraph", "--diff", bench, bench, "--scenario", "veth-bridge", "--baseline", "host") == 0
    assert (tmp_path / "bench-veth-bridge-vs-host.svg").exists()


def test_reverse_starts_at_the_functions(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.svg"
    assert nsprof("flamegraph", bench, "--scenario", "host", "--reverse", "-o", out) == 0
    view = view_of(out)
    first = [name for name, depth in zip(view["names"], view["d"], strict=True) if depth == 1]
    assert "fib_table_lookup" in first and "do_syscall_64" not in first
    assert view["flip"]


def test_split_and_filter_and_unit(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.svg"
    words = ("--scenario", "veth-bridge", "--by", "netns", "--per", "skb", "--context", "softirq")
    assert nsprof("flamegraph", bench, *words, "-o", out) == 0
    view = view_of(out)
    assert view["units"][0]["label"] == "ns/skb"
    assert {n for n, d in zip(view["names"], view["d"], strict=True) if d == 1} == {"c0", "host"}
    assert "do_syscall_64" not in view["names"]


def test_dash_is_stdout_and_nothing_else_is_written(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Out(io.StringIO):
        buffer = io.BytesIO()

    out = Out()
    monkeypatch.setattr(sys, "stdout", out)
    assert nsprof("flamegraph", bench, "--scenario", "host", "-o", "-") == 0
    assert out.buffer.getvalue().startswith(b"<?xml") and out.buffer.getvalue().endswith(b"</svg>\n")
    assert [p.name for p in bench.parent.iterdir()] == ["bench.nsprof"]


def test_permissions_follow_the_umask_and_sudo_gets_its_file(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.svg"
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "1235")
    old = os.umask(0o027)
    try:
        assert nsprof("flamegraph", bench, "--scenario", "host", "-o", out) == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    if os.geteuid() == 0:
        assert (out.stat().st_uid, out.stat().st_gid) == (1234, 1235)


def test_an_earlier_picture_survives_an_error(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.svg"
    out.write_text("earlier")
    assert nsprof("flamegraph", bench, "--scenario", "nosuch", "-o", out) == 2
    assert out.read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.nsprof", "kept.svg"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("{bench}",), 2, "choose one with --scenario"),
        (("{bench}", "{bench}"), 2, "--diff"),
        (("{bench}", "--scenario", "host", "--baseline", "x"), 2, "--diff only"),
        (("{dir}/nosuch.nsprof",), 1, "no such file"),
        (("{bench}", "--scenario", "host", "--width", "10"), 2, "10"),
        (("{bench}", "--scenario", "host", "--event", "cpu-clokc"), 2, "cpu-clock"),
        (("{bench}", "--scenario", "host", "-o", "{dir}"), 1, "is a directory"),
        (("{bench}", "--scenario", "host", "-o", "{dir}/no/such/place.svg"), 1, "cannot be written"),
    ],
)
def test_bad_words_give_one_line_and_a_hint(
    bench: Path, words: tuple[str, ...], status: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    filled = [w.format(bench=bench, dir=bench.parent) for w in words]
    assert nsprof("flamegraph", *filled) == status
    err = capfd.readouterr().err
    assert said in err and "Traceback" not in err
    assert [p.name for p in bench.parent.iterdir()] == ["bench.nsprof"]


def test_page_from_two_scenarios_of_one_file(bench: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert nsprof("report", bench, "--html", out) == 0
    text = out.read_text()
    assert re.search(r"<h1>In veth-bridge each transaction costs 1\.3\dx what it costs in host: \+58\d ns", text)
    for part in ('id="scenarios"', 'id="flame"', 'id="categories"', 'id="functions"', 'id="runs"', 'id="losses"'):
        assert part in text
    data = json.loads(re.search(r'id="nsprof-data">(.*?)</script>', text)[1])  # type: ignore[index]
    labels = [view["label"] for view in data["flame"]["views"]]
    assert labels[:3] == ["difference", "veth-bridge", "host"]
    assert {"difference by namespace", "difference by device", "difference by context"} <= set(labels)
    units = [unit["label"] for unit in data["flame"]["views"][0]["units"]]
    assert units == ["ns/transaction", "ns/skb", "ns/segment"]
    rows = {row[0]: row for row in data["sheets"][0]["functions"]["rows"]}
    assert rows["veth_xmit"][5] == pytest.approx(160, rel=0.03)
    assert "No run counted" in text or "no run counted" in text  # the ledger says why it is missing


def test_page_of_one_scenario_and_against_another_file(bench: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.nsprof"
    store.save(bench_profile(2, scenarios={"pod": {"veth_xmit < do_syscall_64": 500.0}}), one)
    assert nsprof("report", one, "--html", tmp_path / "one.html") == 0
    assert "<h1>Each transaction costs" in (tmp_path / "one.html").read_text()
    assert nsprof("report", one, "--baseline", bench, "--html", tmp_path / "two.html") == 0
    assert "In pod each transaction costs" in (tmp_path / "two.html").read_text()


def test_page_with_a_baseline_that_is_nowhere(bench: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert nsprof("report", bench, "--html", tmp_path / "x.html", "--baseline", "nosuch") == 2
    assert "--baseline nosuch: neither a scenario of the profile nor a file" in capfd.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_a_flame_graph_names_the_tool_that_counted_its_unit(bench: Path, tmp_path: Path) -> None:
    for name, words in (("one", ("--scenario", "host")), ("two", ("--diff", "--baseline", "host"))):
        out = tmp_path / f"{name}.svg"
        assert nsprof("flamegraph", *words, "-o", out, bench) == 0
        text = out.read_text()
        assert "ns/transaction (netperf&#39;s own count)" in text and "workload&#39;s own" not in text

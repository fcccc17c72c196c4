"""`nsprof explain` from the command line: forms of output, statuses, words that cannot be meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nsprof import store
from nsprof.cli.main import run
from tests.profiles import HOST_COSTS, bench_profile
from tests.unit.analyse.causes.pairs import TX, pair


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pair.nsprof"
    facts = ({"datapath": {"nft_rules": 0}}, {"datapath": {"nft_rules": 500}})
    store.save(pair({f"nft_do_chain < nf_hook_slow < {TX}": 900.0}, facts=facts), path)
    return str(path)


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["explain", *words])
    return int(ended.value.code or 0)


def test_the_answer_as_text(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(file, "--baseline", "clean", "--scenario", "fault") == 0
    out = capsys.readouterr().out
    assert "1. netfilter rules" in out
    assert "of the extra cost" in out
    assert "not explained:" in out and "CPU-bound: yes" in out


def test_markdown_keeps_to_72_columns(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(file, "--baseline", "clean", "--markdown") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 72


def test_json_adds_up(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(file, "--baseline", "clean", "--json") == 0
    e = json.loads(capsys.readouterr().out)
    assert (e["nsprof"], e["version"]) == ("explain", 1)
    assert sum(f["delta"] for f in e["findings"]) + e["not_explained"] == pytest.approx(e["total"]["delta"])


def test_nothing_to_compare_with_is_told_with_the_verb_that_was_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.nsprof"
    store.save(bench_profile(scenarios={"host": HOST_COSTS}), path)
    assert status(str(path)) == 2
    err = capsys.readouterr().err
    assert f"nsprof explain {path} --baseline BASE" in err and "nsprof diff" not in err


def test_a_throughput_that_fell_is_told_where_the_cost_did_not_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slow.nsprof"
    made = pair({}, counters={("netns", "Tcp.RetransSegs"): (0.0, 412 / 200_000)})
    rate = made.runs[0].values[0].value
    runs = tuple(
        replace(run, values=(run.values[0]._replace(value=rate * (0.47 if run.scenario == "fault" else 1.0)),))
        for run in made.runs
    )
    store.save(made.with_(runs=runs), path)
    status(str(path), "--baseline", "clean")
    shown = " ".join(capsys.readouterr().out.split())
    assert "note: throughput fell by 53%" in shown
    assert "every run of fault is below every run of clean" in shown
    assert "note: retransmitted segments a run: 0 in clean, 412 in fault" in shown


def test_a_throughput_that_stayed_is_no_news(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(file, "--baseline", "clean") == 0
    assert "throughput" not in capsys.readouterr().out


def test_one_line_has_one_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.nsprof"
    made = pair({f"nft_do_chain < nf_hook_slow < {TX}": 9_000.0})
    store.save(made, path)
    status(str(path), "--baseline", "clean")
    total = next(line for line in capsys.readouterr().out.splitlines() if "->" in line)
    assert total.count("us/transaction") == 3 and "ns/" not in total


def test_a_function_and_its_callers(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(file, "--baseline", "clean", "--function", "nft_do_chain") == 0
    assert "nf_hook_slow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--baseline", "nowhere"), 2),
        (("--baseline", "clean", "--function", "no_such_function"), 2),
        (("--kernel-diff", "6.1", "6.12"), 2),
        (("--kernel-diff", "6.12.0-test", "6.12.0-test", "--scenario", "fault"), 1),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    file: str, words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(file, *words) == code
    err = capsys.readouterr().err
    assert err.startswith("nsprof: ") and "Traceback" not in err

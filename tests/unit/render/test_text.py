"""Tables for people: nothing cut, nothing executed, readable at 80 and 160 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nsprof.analyse import diff, report, scenario_table
from nsprof.escape import safe
from nsprof.model.results import Interval
from nsprof.render import text
from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part, markdown, print_parts
from tests.profiles import HOST_COSTS, bench_profile

NASTY = "x\x1b[31m<script>alert('1')</script>[bold]\u202e|`\r\n\t\x00\udcff"


def drawn(parts: list[Part], width: int = 80, *, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="standard" if colour else None, highlight=False
    )
    print_parts(parts, console)
    return out.getvalue()


@given(st.text())
def test_no_control_or_direction_character_survives(name: str) -> None:
    shown = safe(name)
    assert all(c.isprintable() for c in shown)
    shown.encode()


@pytest.mark.parametrize("width", [60, 80, 160])
def test_hostile_names_do_nothing_on_a_terminal(width: int) -> None:
    grid = Grid((Column("Name", right=False, wrap=True), Column("n")), ((Cell(NASTY), "1"),))
    shown = drawn([Heading(NASTY, 1), Lines((NASTY,)), grid], width, colour=True)
    assert "\x1b[31m" not in shown
    assert "[bold]" in shown.replace("\n", "")
    assert not any(c in shown for c in "\u202e\r\t\x00")
    assert "\\x1b" in shown


def test_hostile_names_do_nothing_in_markdown() -> None:
    grid = Grid((Column("Name", right=False, wrap=True), Column("n")), ((Cell(NASTY), "1"),))
    shown = markdown([Heading(NASTY, 1), Lines((NASTY, "*a* _b_ [x](javascript:y)"), bullet=True), grid])
    assert "<script>" not in shown.replace("``" + safe(NASTY).replace("|", "\\|") + "``", "")
    assert "\\[x\\](javascript:y)" in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert len(rows) == 3
    assert rows[-1].count("|") - rows[-1].count("\\|") == 3


@pytest.mark.parametrize("width", [80, 160])
def test_reports_fit_and_show_whole_names(width: int) -> None:
    profile = bench_profile(runs=8)
    long = "a_function_with_a_name_that_is_much_longer_than_any_column_of_a_terminal_of_80_columns_could_ever_be"
    frames = replace(profile.frames, name=tuple(long if n == "fib_table_lookup" else n for n in profile.frames.name))
    profile = profile.with_(frames=frames)
    one = report(profile, scenario="host", by="context")
    two = diff(profile, profile, base_scenario="host", new_scenario="veth-bridge", by="context")
    for parts in (text.report_parts(one), text.diff_parts(two), text.scenario_parts(scenario_table(profile))):
        shown = drawn(parts, width)
        assert max(map(len, shown.splitlines())) <= width
    for parts in (text.report_parts(one), text.diff_parts(two)):
        shown = drawn(parts, width)
        together = "".join(line.split("  ")[0].strip() for line in shown.splitlines())
        assert long in together
        assert "br_handle_frame_finish [bridge]" in drawn(text.diff_parts(two), width)


def test_rows_that_are_left_out_are_counted() -> None:
    one = report(bench_profile(seed=None), scenario="host")
    shown = drawn(text.report_parts(one, limit=3))
    assert "... 5 more (--limit 0)" in shown
    assert "... " not in drawn(text.report_parts(one, limit=0))


def test_a_diff_adds_up_on_the_screen() -> None:
    profile = bench_profile(seed=None)
    shown = drawn(text.diff_parts(diff(profile, profile, base_scenario="host", new_scenario="veth-bridge"), limit=2))
    lines = [line.split() for line in shown.splitlines()]
    assert ["total", "1,700", "2,280", "+580"] in lines
    assert any(line[:2] == ["not", "attributed"] for line in lines)
    assert any(line[:1] == ["..."] and "+200" in line for line in lines)


def test_late_functions_are_marked() -> None:
    shown = drawn(text.report_parts(report(bench_profile(seed=None), scenario="host")))
    assert "_raw_spin_unlock_irqrestore ~" in shown
    assert "interrupts off" in " ".join(shown.split())
    assert "fib_table_lookup ~" not in shown


def test_alarms_are_red_and_colour_is_only_for_terminals() -> None:
    one = replace(report(bench_profile(seed=None), scenario="host"), alarms=("run 1 lost 2.0% of its samples",))
    assert "WARNING: run 1 lost" in drawn(text.report_parts(one))
    assert "\x1b" not in drawn(text.report_parts(one))
    assert "\x1b[1;31mWARNING" in drawn(text.report_parts(one), colour=True)


def test_header_states_what_the_figures_are_worth() -> None:
    shown = " ".join(drawn(text.report_parts(report(bench_profile(seed=None), scenario="host")), 160).split())
    for words in (
        "host: 1,700 ns/transaction",
        "lost 0.0%",
        "late (skid) 10.6%",
        "unknown 0.0%",
        "nsprof's own cost",
        "adds up: 0.10 s of CPU sampled, 0.10 s measured (+0.0%)",
        "shares are of what is counted (other load and filters left out)",
    ):
        assert words in shown
    assert "busy time" not in shown


@pytest.mark.parametrize(
    ("per", "words"),
    [
        ("transaction", "per transaction (netperf's own count)"),
        ("kb", "per KB (netperf's own count)"),
        ("skb", "per skb of eth0 in c0 (rx + tx)"),
    ],
)
def test_a_unit_is_said_to_be_counted_where_it_was(per: str, words: str) -> None:
    made = bench_profile(seed=None)
    units = {"transaction": 20_000.0, "kb": 300.0, "skb": 40_000.0}
    made = made.with_(runs=tuple(replace(r, denominators=units, reference="eth0 in c0 (rx + tx)") for r in made.runs))
    one = report(made, scenario="host", per=per)
    assert words in " ".join(drawn(text.report_parts(one), 160).split())
    two = diff(made, made, base_scenario="host", new_scenario="veth-bridge", per=per)
    assert words.replace("netperf", "the workload") in " ".join(drawn(text.diff_parts(two), 160).split())


def test_the_table_of_scenarios_reads_as_the_document_does() -> None:
    table = scenario_table(bench_profile(seed=None))
    shown = drawn(text.scenario_parts(table))
    assert "CPU usage (%)" in shown
    assert "/ overhead" in shown
    assert "0.46 / +34.1%" in shown
    assert "2,000.00 / +0.0%" in shown
    written = markdown(text.scenario_parts(table))
    assert "| CPU usage (%) / overhead |" in written


def test_a_narrow_terminal_keeps_the_verdict_and_explains_no_sign_that_is_not_there() -> None:
    table = scenario_table(bench_profile(runs=4, scenarios={"host": HOST_COSTS, "again": HOST_COSTS}, seed=2))
    narrow, wide = (drawn(text.scenario_parts(table), width) for width in (70, 240))
    assert "again: CPU: no difference shown" in " ".join(narrow.split())
    assert "±" not in narrow
    assert "±: half of the 95 % interval" in wide and "CPU: no difference shown" in wide
    assert wide.count("no difference shown") == 1
    assert "- ±: half of the 95 % interval" in markdown(text.scenario_parts(table))
    assert "half of" not in markdown(text.scenario_parts(scenario_table(bench_profile(runs=1, seed=None))))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00"),
        (0.0001234, "1.2e-04"),
        (0.1234, "0.123"),
        (1.2345, "1.23"),
        (12.345, "12.3"),
        (999.9, "1,000"),
        (1234567.8, "1,234,568"),
        (12345678.0, "12.3 M"),
        (float("nan"), "-"),
    ],
)
def test_costs_have_three_digits(value: float, shown: str) -> None:
    assert text.cost(value) == shown
    if value > 0:
        assert text.cost(-value) == "-" + shown
        assert text.cost(value, sign=True) == "+" + shown


def test_percentages_have_no_minus_zero() -> None:
    assert text.percent(-0.0000001, sign=True) == "+0.0%"
    assert text.percent(float("nan")) == "-"
    assert text.interval_text(Interval(-1.0, 2.0), sign=True) == "[-1.00, +2.00]"
    assert text.interval_text(None) == ""

"""The report page's text: sections, headline, hostile names, size, nothing from outside."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from nsprof.model.results import DeltaRow, Interval, Measure
from nsprof.render.flamegraph_text import cost_text
from nsprof.render.page import report_page
from nsprof.render.page_charts import nice_ticks, run_points, waterfall, waterfall_steps
from nsprof.render.page_model import FlameView, PageContent, PointGroup, RunChart
from nsprof.render.page_parts import headline
from tests.unit.render.pages import content, diff_report, hostile
from tests.unit.render.test_flamegraph import HOSTILE, bench


class Tags(HTMLParser):
    """Elements and attributes as a browser's parser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.update(name for name, _ in attrs)


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_names_add_no_element_and_no_attribute(word: str) -> None:
    tame, wild = Tags(report_page(hostile("tame"))), Tags(report_page(hostile(word)))
    if word:  # an axis has as many ticks as there is room for their words
        assert [t for t in wild.tags if t not in ("line", "text")] == [
            t for t in tame.tags if t not in ("line", "text")
        ]
    assert wild.attributes <= tame.attributes
    assert not [a for a in wild.attributes if a.startswith("on") or a == "style"]


@pytest.mark.parametrize("word", [w for w in HOSTILE if w])
def test_no_invisible_character_reaches_the_page(word: str) -> None:
    text = report_page(hostile(word))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_the_page_asks_for_nothing() -> None:
    text = report_page(content())
    assert set(re.findall(r"https?://[^\s\"'<>)]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
    }
    assert not re.search(
        r"<(link|img|iframe|object|embed)\b|@import|\bfetch\(|XMLHttpRequest|\beval\(|innerHTML", text
    )
    assert "default-src 'none'" in text and "unsafe" not in text


def test_headline_says_ratio_change_and_where_it_lies() -> None:
    lead, below = headline(content())
    assert lead == (
        "In veth-bridge each transaction costs 1.36x what it costs in host: +915 ns/transaction; "
        "by category, 85 % of it is bridge and 12 % is veth."
    )
    assert "significant change (8 and 8 runs" in below and "[+870 ns, +960 ns]" in below
    assert "q = 0.0003)" in below and "p = " not in below  # as in the tables and the terminal


def test_headline_claims_nothing_without_evidence() -> None:
    diff = diff_report()
    page = replace(content(), diff=replace(diff, total=replace(diff.total, verdict="~")))
    assert "no significant difference" in headline(page)[0]
    few = replace(diff.total, verdict="", interval=Interval(-100.0, 1930.0))
    page = replace(content(), diff=replace(diff, runs_base=3, runs_new=3, total=few))
    assert "a difference is not shown by these runs" in headline(page)[0]
    page = replace(content(), diff=replace(diff, runs_base=1, runs_new=1))
    lead, below = headline(page)
    assert "cannot be said" in below
    alone = replace(diff.total, verdict="", interval=None)
    page = replace(content(), diff=replace(diff, runs_base=1, runs_new=1, total=alone))
    lead, below = headline(page)
    assert lead == "veth-bridge against host: a difference is not shown by these runs (+915 ns/transaction)."
    assert "cannot be said" in below


def test_shares_are_not_said_to_be_of_busy_time() -> None:
    shown = report_page(content())
    assert "shares are of what is counted (other load and filters left out)" in shown
    assert "% of busy" not in shown


def test_parts_that_cancel_each_other_are_no_shares_of_the_change() -> None:
    diff = diff_report()
    parts = (
        DeltaRow("netfilter", "", "", 0, 860, 860),
        DeltaRow("IP and routing", "", "", 0, 412, 412),
        DeltaRow("user space", "", "", 500, 143, -357),
    )
    lead, _ = headline(replace(content(), diff=replace(diff, categories=parts)))
    assert "%" not in lead
    assert "by category, the largest parts are netfilter +860 ns and IP and routing +412 ns, and others" in lead


def test_waterfall_ends_where_the_new_side_is() -> None:
    diff = diff_report()
    assert diff.total.base + sum(s.delta for s in waterfall_steps(diff)) == pytest.approx(diff.total.new)
    many = replace(
        diff,
        categories=tuple(DeltaRow(f"c{n}", "", "", 0, n, n) for n in range(40)),
        not_attributed=diff.total.delta - sum(range(40)),
    )
    assert diff.total.base + sum(s.delta for s in waterfall_steps(many)) == pytest.approx(diff.total.new)
    assert "not at zero" in waterfall(diff)


def test_every_run_is_a_point() -> None:
    chart = RunChart("Unit cost", "ns/skb", (PointGroup("a", (1, 2, 3, 5, 8)), PointGroup("b", (2, float("nan")))))
    assert run_points(chart).count("<circle") == 6
    assert run_points(RunChart("nothing", "ns", (PointGroup("a", ()),))) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.34, 3.6), (0, 1e9), (-5, 5), (1e-9, 2e-9), (3, 3)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 1 <= len(ticks) <= 7
    assert all(low - 1e-12 <= t <= high * (1 + 1e-9) + 1e-12 for t in ticks)


def test_what_is_missing_says_why() -> None:
    page = PageContent("bare", missing={"ledger": "no probes were attached", "flame": "no stacks"})
    text = report_page(page)
    assert "Not shown: no probes were attached" in text and "Not shown: no stacks" in text
    assert 'id="runs"' not in text


def test_twenty_thousand_stacks_stay_under_three_megabytes() -> None:
    made = bench()
    tree = made.tree(made.stacks(20_000, 3_000), [f"some_function_of_the_kernel_{n}" for n in range(3_000)])
    rows = tuple(
        DeltaRow(
            f"some_function_of_the_kernel_{n}", "module", "category", n * 1.234567, n * 2.34567, n * 1.111, q=0.123
        )
        for n in range(3_000)
    )
    views = (
        FlameView("difference", tree),
        FlameView("new", replace(tree, differential=False)),
        *(FlameView(f"namespace c{n}", tree) for n in range(6)),
    )
    text = report_page(replace(content(), views=views, diff=replace(diff_report(), functions=rows)))
    assert len(text.encode()) < 3_000_000


def test_modelled_figures_are_called_modelled_and_not_noise() -> None:
    exact = Measure("instructions", "instructions", "skb", "instructions/skb", "one packet", kind="modelled")
    page = content()
    assert page.diff and page.report
    page = replace(
        page,
        diff=replace(page.diff, measure=exact, runs_base=1, runs_new=1),
        report=replace(page.report, measure=exact),
    )
    text = report_page(page)
    assert headline(page)[1] == "Modelled, not timed: exact for the path that was simulated."
    assert "instructions (modelled)" in text and "samples lost" not in text
    assert "3,482 instructions/skb" in text


@pytest.mark.parametrize(
    ("value", "unit", "per", "written"),
    [
        (1697, "instructions", "skb", "1,697 instructions/skb"),
        (-1.5e6, "lines", "", "-1.50 M lines"),
        (2.4, "count", "", "2.40 events"),
        (1697, "ns", "skb", "1.70 us/skb"),
        (12.34, "%", "", "12.3 %"),
        (float("nan"), "ns", "skb", "-"),
    ],
)
def test_quantities_read_well(value: float, unit: str, per: str, written: str) -> None:
    assert cost_text(value, unit, per) == written


def test_a_scenario_table_says_how_sure_its_means_are() -> None:
    page = content()
    assert page.table
    rows = tuple(replace(r, cpu_interval=Interval(r.cpu_pct - 0.5, r.cpu_pct + 0.5)) for r in page.table.rows)
    assert "63.00 % ± 0.50" in report_page(replace(page, table=replace(page.table, rows=rows)))


def test_findings_become_cards_with_their_evidence() -> None:
    results = pytest.importorskip("nsprof.model.results")
    if not hasattr(results, "Explanation"):
        pytest.skip("no explanations in this version")
    from nsprof.render.page_cards import explanation_cards

    diff = diff_report()
    finding = results.Finding(
        cause="bridge", title="An extra pass through a bridge", what="each packet crosses br0", place="br0 in host",
        certainty="found", not_cpu=False, delta=780.0, interval=Interval(700, 860), share=0.85, share_interval=None,
        strength=math.nan, evidence=(results.Evidence("functions", "br_handle_frame is new"),
                                     results.Evidence("counters", "no flooding seen", agrees=False)),
        functions=(("br_handle_frame", 340.0),), source="",
        suggestions=(results.Suggestion("route instead", "ip link ...", "nsprof diff"),),
    )  # fmt: skip
    explained = results.Explanation(
        base_title="host", new_title="veth-bridge", measure=diff.measure, answer="partly explained", total=diff.total,
        findings=(finding,), not_explained=135.0, not_explained_interval=None, not_explained_share=0.15,
        forbids=("no ns from skidded functions",), next=("nsprof record ...",),
    )  # fmt: skip
    first, last = explanation_cards(explained)
    assert first.title == "1. An extra pass through a bridge (br0 in host)"
    assert first.lines[0] == "found: +780 ns/transaction, [+700 ns, +860 ns], 85 % of the change, by cause"
    assert "against it (counters): no flooding seen" in first.lines
    assert first.lines[-2:] == ("try: route instead: ip link ...", "verify: nsprof diff")
    assert (
        last.title == "Answer: partly explained"
        and "not explained: 135 ns/transaction, 15 % of the change" in last.lines
    )
    shown = report_page(replace(content(), cards=(first, last)))
    assert "An extra pass through a bridge" in shown and "Shares here are by cause" in shown
    assert "Shares here are by cause" not in report_page(replace(content(), cards=(last,)))


@pytest.mark.parametrize("unit", ["ns", "instructions", "cycles"])
def test_ticks_of_an_axis_do_not_run_into_each_other(unit: str) -> None:
    diff = diff_report()
    diff = replace(diff, measure=Measure("e", unit, "skb", f"{unit}/skb"))
    marks = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="tick" text-anchor="middle">([^<]*)<', waterfall(diff))
    ends = [(float(x) - 3.3 * len(words), float(x) + 3.3 * len(words)) for x, words in marks]
    assert len(ends) >= 2
    assert all(left[1] < right[0] for left, right in itertools.pairwise(ends))


def many_comparisons(count: int, stacks: int) -> PageContent:
    """So many comparisons of large profiles, each with its own tree."""
    made = bench()
    words = [f"some_function_of_the_kernel_{n}" for n in range(3_000)]
    rows = tuple(DeltaRow(w, "module", "category", 1.23456, 2.34567, n * 1.111, q=0.123) for n, w in enumerate(words))
    diff = replace(diff_report(), functions=rows)

    def one(number: int) -> PageContent:
        tree = made.tree(made.stacks(stacks, 3_000), words)
        views = (FlameView("difference", tree), FlameView("new", replace(tree, differential=False)))
        return replace(content(), label=f"scenario {number} against host", views=views, diff=diff)

    return replace(one(0), others=tuple(one(n) for n in range(1, count)))


def test_many_comparisons_stay_under_three_megabytes_and_name_what_does_not_fit() -> None:
    text = report_page(many_comparisons(20, 20_000))
    assert len(text.encode()) < 3_000_000
    data = json.loads(re.findall(r'id="nsprof-data">(.*?)</script>', text)[0])
    drawn = [sheet["name"] for sheet in data["sheets"] if sheet["views"]]
    assert drawn[0] == "scenario 0 against host" and 2 < len(drawn) < 20
    assert text.count("the flame graphs of so many comparisons do not fit") == 20 - len(drawn)
    assert all(len(sheet["functions"]["rows"]) >= 100 for sheet in data["sheets"])  # all have their tables


def test_a_graph_that_two_comparisons_share_is_in_the_file_once() -> None:
    page = content()
    assert len(page.views) >= 2
    other = replace(page, label="other", views=(replace(page.views[0]), page.views[1]))
    text = report_page(replace(page, label="first", others=(other,)))
    data = json.loads(re.findall(r'id="nsprof-data">(.*?)</script>', text)[0])
    first, second = (sheet["views"] for sheet in data["sheets"])
    assert first[:2] == second and len(data["flame"]["views"]) == len(page.views)


@pytest.mark.parametrize("word", [w for w in HOSTILE if w])
def test_hostile_names_of_comparisons_add_no_element(word: str) -> None:
    def page(name: str) -> str:
        one = replace(hostile(name), label=name, left_out=(name,))
        return report_page(replace(one, others=(replace(one, label=f"{name}2", title=name),)))

    tame, wild = Tags(page("tame")), Tags(page(word))
    skipped = ("line", "text")
    assert [t for t in wild.tags if t not in skipped] == [t for t in tame.tags if t not in skipped]
    assert wild.attributes <= tame.attributes
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", page(word)
    )

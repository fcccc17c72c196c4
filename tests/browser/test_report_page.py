"""The report page in a real browser: search, zoom, units, sort, links, copying, speed, hostile names, readers."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from nsprof.render.page import report_page
from nsprof.render.page_model import FlameView
from tests.unit.render.pages import content, diff_report, hostile
from tests.unit.render.test_flamegraph import HOSTILE, bench

pytestmark = pytest.mark.browser


def names(page: Any) -> list[str]:
    return page.locator("#function-table tbody th").all_text_contents()  # type: ignore[no-any-return]


def label(page: Any, name: str) -> Any:
    return page.locator("#flame-frames text", has_text=re.compile(f"^{name}"))


def test_every_section_is_there_and_reachable(visit: Any) -> None:
    page = visit(report_page(content()))
    links = page.locator("nav a").evaluate_all("all => all.map(a => a.getAttribute('href').slice(1))")
    assert links == [
        "findings",
        "scenarios",
        "flame",
        "categories",
        "functions",
        "ledger",
        "runs",
        "topology",
        "losses",
        "environment",
    ]
    for name in links:
        assert page.locator(f"section#{name} h2").is_visible()


def test_sorting_by_a_head_and_back(visit: Any) -> None:
    page = visit(report_page(content()))
    assert names(page)[0] == "br_handle_frame_finish"  # largest |delta| first
    page.click("thead button:text-is('host')")
    assert names(page)[0] == "sock_def_readable"
    assert page.locator("th[aria-sort=descending]").text_content() == "host"
    page.keyboard.press("Enter")  # the head keeps the focus
    assert page.locator("th[aria-sort=ascending]").text_content() == "host"
    page.click("thead button:text-is('Function')")
    assert names(page) == sorted(names(page))


def test_filters_narrow_the_table(visit: Any) -> None:
    page = visit(report_page(content()))
    page.fill("#function-filter", "^udp_")
    assert sorted(names(page)) == ["udp_rcv", "udp_recvmsg"]
    page.fill("#function-filter", "")
    page.select_option("#function-category", "bridge")
    assert set(names(page)) == {"br_handle_frame_finish", "dev_queue_xmit", "fdb_find_rcu"}
    page.select_option("#function-category", "")
    page.check("#function-significant")
    assert set(page.locator("#function-table tbody tr td:nth-child(9)").all_text_contents()) <= {"+", "-"}
    assert len(names(page)) == 6
    page.fill("#function-filter", "(")
    assert page.get_attribute("#function-filter", "aria-invalid") == "true"


def test_a_link_to_a_function_survives_a_reload(visit: Any) -> None:
    page = visit(report_page(content()))
    page.locator("#function-table a", has_text="fdb_find_rcu").click()
    for _ in range(2):
        assert page.evaluate("location.hash") == "#fn=fdb_find_rcu"
        assert page.locator("tr.chosen th").text_content() == "fdb_find_rcu"
        assert page.input_value("#flame-controls input[type=search]") == "^fdb_find_rcu$"
        assert "matched 5.2 % of new" in page.locator("#flame-controls output").text_content()
        page.reload()


def test_a_link_carries_view_and_search(visit: Any) -> None:
    page = visit(report_page(content()), address="#view=1&s=udp_.cv")
    assert page.locator("#flame-controls select").first.evaluate("s => s.selectedIndex") == 1
    assert "matched" in page.locator("#flame-controls output").text_content()
    page.locator("#flame-controls select").first.select_option("difference")
    page.fill("#flame-controls input[type=search]", "veth")
    page.reload()
    assert page.evaluate("location.hash") == "#s=veth"
    assert page.input_value("#flame-controls input[type=search]") == "veth"


def test_views_units_and_legend_switch_together(visit: Any) -> None:
    page = visit(report_page(content()))
    assert (
        page.locator(".legend[data-diff=yes]").is_visible() and not page.locator(".legend[data-diff=no]").is_visible()
    )
    page.locator("#flame-controls select").nth(1).select_option("ns/KB")
    page.locator("#flame-frames").focus()
    said = page.locator("#flame-status").text_content()
    assert "new   1.74 us/KB" in said and "base  642 ns/KB" in said
    page.locator("#flame-controls select").nth(0).select_option("veth-bridge")
    assert page.locator(".legend[data-diff=no]").is_visible()
    assert not page.locator("#flame-controls select").nth(2).is_visible()
    assert "1.74 us/KB" in page.locator("#flame-status").text_content()


def test_zoom_in_the_page(visit: Any) -> None:
    page = visit(report_page(content()))
    page.locator("#flame").scroll_into_view_if_needed()
    box = label(page, "veth_xmit").bounding_box()
    page.mouse.click(box["x"] + 8, box["y"] + 6)
    assert label(page, "__netif_rx$").count() == 1
    page.click("button:text-is('Reset')")
    assert label(page, "__netif_rx$").count() == 0


def test_tables_copy_as_markdown(visit: Any) -> None:
    page = visit(report_page(content()), permissions=["clipboard-read", "clipboard-write"])
    page.fill("#function-filter", "veth|fdb")
    page.click("#function-tools button")
    page.wait_for_function("window.nsprofCopied")
    lines = page.evaluate("window.nsprofCopied").splitlines()
    assert lines[0].startswith("| Function | Module | Category | host | veth-bridge | delta | interval |")
    assert lines[1].startswith("|---|---|---|---:|")
    assert lines[2].startswith("| fdb\\_find\\_rcu |  | bridge | 0 ns | 180 ns | +180 ns |")
    assert len(lines) == 4
    assert page.evaluate("navigator.clipboard.readText()") == page.evaluate("window.nsprofCopied")
    page.locator("#scenarios button").click()
    page.wait_for_function("window.nsprofCopied.includes('veth-route')")
    assert len(page.evaluate("window.nsprofCopied").splitlines()) == 5


def test_hostile_names_do_nothing(visit: Any) -> None:
    page = visit(report_page(hostile("".join(HOSTILE))))
    page.locator("#function-table a").first.click()
    page.locator("#flame-frames").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.locator("#functions button.copy").first.click()
    page.reload()
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.locator("tr.chosen").count() == 1


def test_without_scripts_the_tables_are_there(visit: Any) -> None:
    page = visit(report_page(content()), java_script_enabled=False)
    assert "br_handle_frame_finish" in page.locator("#function-table").text_content()
    assert page.locator("#scenarios table").is_visible()


def test_twenty_thousand_stacks_can_be_searched(visit: Any) -> None:
    made = bench()
    tree = made.tree(made.stacks(20_000, 3_000), [f"some_function_{n}" for n in range(3_000)])
    row = diff_report().functions[0]
    rows = tuple(replace(row, name=f"some_function_{n}", delta=float(n)) for n in range(3_000))
    views = (FlameView("difference", tree), FlameView("new", replace(tree, differential=False)))
    text = report_page(replace(content(), views=views, diff=replace(diff_report(), functions=rows)))
    assert len(text) < 3_000_000
    page = visit(text)
    page.wait_for_selector("html[data-ready]")  # how soon: scripts/bench_page.py
    page.fill("#flame-controls input[type=search]", "function_1")
    assert "matched" in page.locator("#flame-controls output").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [800, 1200])
def test_text_has_contrast_and_nothing_sticks_out(visit: Any, scheme: str, width: int) -> None:
    page = visit(report_page(content()), viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    low = page.evaluate(CONTRAST)
    assert low == []


#: Text elements (outside charts) whose contrast with the background behind them is below 4.5 (WCAG AA).
CONTRAST = """() => {
  const line = (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const lum = (c) => { const v = c.map(x => line(x / 255));
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const parse = (s) => s.match(/[\\d.]+/g).map(Number);
  const bad = [];
  for (const e of document.querySelectorAll('h1,h2,h3,p,th,td,a,dt,dd,li,summary,caption,label,output,button')) {
    if (!e.textContent.trim() || !e.checkVisibility()) continue;
    let back = e, bg = [255, 255, 255];
    for (; back; back = back.parentElement) {
      const c = parse(getComputedStyle(back).backgroundColor);
      if (c.length < 4 || c[3] > 0) { bg = c; break; }
    }
    const a = lum(parse(getComputedStyle(e).color)), b = lum(bg);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(e.localName + ': ' + e.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
  }
  return bad;
}"""


def test_a_screen_reader_finds_names_for_everything(visit: Any) -> None:
    page = visit(report_page(content()))
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('input, select, button, svg[role=img], section, nav, [role=region]')]
        .concat([...document.querySelectorAll('[role=application]')])
        .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') ||
                       (e.labels && e.labels.length) || e.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert page.get_attribute("html", "lang") == "en"
    levels = page.locator("h1,h2,h3").evaluate_all("all => all.map(h => +h.localName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('nav, main, a') !== null")


def test_it_prints_with_everything_open(visit: Any) -> None:
    page = visit(report_page(content()))
    pdf = page.pdf(format="A4")
    assert pdf[:5] == b"%PDF-" and len(pdf) > 20_000
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and not page.locator("#function-tools").is_visible()


def test_numbers_read_the_same_in_the_script_and_in_the_file(visit: Any) -> None:
    from nsprof.render.flamegraph_text import quantity

    values = [
        0,
        0.004,
        0.5,
        9.994,
        9.996,
        12.34,
        99.9,
        100,
        999.7,
        1697,
        12345,
        999_600,
        1_234_567,
        2.5e9,
        -7.3,
        -12345,
    ]
    page = visit(report_page(content()))
    for unit in ("ns", "instructions", "count", "cycles", "lines", ""):
        written = page.evaluate("([v, u]) => v.map(x => NsprofFlame.quantity(x, u))", [values, unit])
        assert written == [quantity(v, unit) for v in values], unit


def test_units_of_a_differential_view_scale_each_side_by_its_own_factor(visit: Any) -> None:
    page = visit(report_page(content()))
    page.locator("#flame-controls select").nth(1).select_option("ns/KB")
    page.fill("#flame-controls input[type=search]", "^veth_xmit$")
    found = page.locator("#flame-controls output").text_content()
    assert "(200 ns/KB)" in found and "(57.5 ns/KB)" in found and "+143 ns/KB" in found  # 400 x 0.5, 230 x 0.25


def test_a_linked_function_is_scrolled_to_within_the_table(visit: Any) -> None:
    row = diff_report().functions[0]
    rows = tuple(replace(row, name=f"f{n:04}", delta=float(3000 - n)) for n in range(1000))
    text = report_page(replace(content(), diff=replace(diff_report(), functions=rows)))
    page = visit(text, address="#fn=f0800")
    inside = """() => { const r = document.querySelector('tr.chosen').getBoundingClientRect();
        const b = document.querySelector('.tall').getBoundingClientRect();
        return r.top > b.top && r.bottom < b.bottom; }"""
    assert page.evaluate(inside)


def three() -> Any:
    """A page of three comparisons: two of its own and one whose functions are others."""
    first = replace(content(), label="veth-bridge against host", title="udp: veth-bridge against host")
    diff = diff_report()
    renamed = tuple(replace(row, name=f"routed_{row.name}") for row in diff.functions)
    route = replace(
        first,
        label="veth-route against host",
        title="udp: veth-route against host",
        diff=replace(diff, new_title="veth-route", functions=renamed),
        views=first.views[:2],
    )
    bare = replace(first, label="macvlan against host", title="udp: macvlan against host", views=())
    return replace(first, others=(route, bare), left_out=("ipvlan: no usable run",))


def pick(page: Any) -> Any:
    return page.locator("#sheet")


def test_a_page_of_several_comparisons_lets_choose_one_by_keyboard(visit: Any) -> None:
    page = visit(report_page(three()))
    assert pick(page).locator("option").all_text_contents() == [
        "veth-bridge against host",
        "veth-route against host",
        "macvlan against host",
    ]
    assert "ipvlan: no usable run" in page.locator("body").inner_text()
    pick(page).focus()
    page.keyboard.press("ArrowDown")
    assert page.title() == "udp: veth-route against host"
    assert page.locator("h1").text_content().startswith("In veth-route each transaction costs")
    assert page.evaluate("document.activeElement.id") == "sheet"
    assert page.locator("#toast").text_content() == "Showing veth-route against host"
    assert names(page)[0] == "routed_br_handle_frame_finish"
    assert page.locator("#flame-controls select").first.locator("option").count() == 2
    page.keyboard.press("ArrowDown")
    assert page.locator("section#flame").count() == 0  # it has no flame graph
    assert page.locator("section#environment table").count() == 1  # what all have alike came along
    page.keyboard.press("Home")
    assert names(page)[0] == "br_handle_frame_finish"
    assert page.locator("#flame-frames rect").count() > 10
    every = page.locator("[id]").evaluate_all("all => all.map(e => e.id)")
    assert len(every) == len(set(every))


def test_links_keep_the_comparison_through_a_reload(visit: Any) -> None:
    page = visit(report_page(three()))
    pick(page).select_option(label="veth-route against host")
    page.locator("#function-table a", has_text="routed_fdb_find_rcu").click()
    for _ in range(2):
        assert page.evaluate("location.hash") == "#fn=routed_fdb_find_rcu&sheet=veth-route+against+host"
        assert pick(page).input_value() == "1"
        assert page.locator("tr.chosen th").text_content() == "routed_fdb_find_rcu"
        page.reload()
    page.locator("nav a", has_text="Topology").click()
    page.reload()
    assert page.evaluate("location.hash") == "#at=topology&sheet=veth-route+against+host"
    assert page.locator("h1").text_content().startswith("In veth-route")
    assert page.evaluate("Math.abs(document.querySelector('#topology').getBoundingClientRect().top) < 500")
    pick(page).select_option(label="veth-bridge against host")
    assert page.evaluate("location.hash") == ""
    page.reload()
    assert page.locator("h1").text_content().startswith("In veth-bridge")


def test_a_search_goes_along_to_the_next_comparison_and_the_first_comes_back_as_it_was(visit: Any) -> None:
    page = visit(report_page(three()))
    page.fill("#flame-controls input[type=search]", "veth_xmit")
    page.click("thead button:text-is('Function')")
    pick(page).select_option("1")
    assert page.evaluate("location.hash") == "#s=veth_xmit&sheet=veth-route+against+host"
    assert "matched" in page.locator("#flame-controls output").text_content()
    page.locator("#scenarios button").click()
    page.wait_for_function("window.nsprofCopied.includes('veth-route')")
    pick(page).select_option("0")
    assert names(page) == sorted(names(page))
    assert page.locator("#scenarios button").count() == 1
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") in ("search", "select-one")


def test_without_scripts_the_first_comparison_is_there_and_the_others_are_named(visit: Any) -> None:
    page = visit(report_page(three()), java_script_enabled=False)
    assert not pick(page).is_visible()
    assert "macvlan against host) need scripts" in page.locator("body").inner_text()
    assert page.locator("#function-table").count() == 1


@pytest.mark.parametrize("width", [400, 800, 1280, 1440])
def test_the_function_table_fits_and_can_show_all_columns(visit: Any, width: int) -> None:
    page = visit(report_page(content()), viewport={"width": width, "height": 900})
    inside = "document.querySelector('#function-table').offsetWidth <= document.querySelector('.tall').clientWidth"
    assert page.evaluate(inside)
    heads = page.locator("#function-table thead th:visible").all_text_contents()
    assert heads[0] == "Function" and {"host", "veth-bridge", "delta"} <= set(heads)
    box = page.locator("#function-columns")
    if width < 1000:  # as for the others: fonts differ
        assert box.is_visible()
    if box.is_visible():
        box.check()
        assert len(page.locator("#function-table thead th:visible").all_text_contents()) > len(heads)
        box.uncheck()
        assert page.evaluate(inside)
    page.set_viewport_size({"width": 400, "height": 900})
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate(inside)

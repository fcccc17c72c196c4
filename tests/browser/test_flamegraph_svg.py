"""The SVG file in a real browser: drawing, search, zoom, units, keyboard, hostile names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nsprof.render.flamegraph import FlameOptions, render_svg
from tests.unit.render.test_flamegraph import HOSTILE
from tests.unit.render.trees import FINDINGS, datapath, tree_of

pytestmark = pytest.mark.browser


def diff_svg(**options: Any) -> str:
    return render_svg(
        tree_of(datapath(), differential=True, findings=FINDINGS, ns_per_tick=1), FlameOptions(**options)
    )


def shapes(page: Any) -> list[tuple[str, ...]]:
    """Every coloured frame as drawn: place, size, fill."""
    return page.evaluate(  # type: ignore[no-any-return]
        """[...document.querySelectorAll('#nsprof-frames rect.f')].map(r => ['x', 'y', 'width', 'height', 'fill']
           .map(a => a === 'fill' ? r.getAttribute(a).replace(/ /g, '') : Number(r.getAttribute(a)).toFixed(1)))"""
    )


@pytest.mark.parametrize("size_by", ["new", "base", "both"])
@pytest.mark.parametrize("differential", [True, False])
def test_script_draws_what_the_file_already_shows(visit: Any, size_by: str, differential: bool) -> None:
    made = [(s, n * 1.37, b * 1.11) for s, n, b in datapath()]
    made += [(("many", f"f{n}"), n / 50, n / 60) for n in range(300)]
    tree = tree_of(made, differential=differential, findings=FINDINGS if differential else None, ns_per_tick=3)
    assert_drawn_alike(visit, render_svg(tree, FlameOptions(size_by=size_by)))


def test_script_colours_the_paths_that_the_runs_support(visit: Any) -> None:
    made = [*datapath(), *((("many", f"f{n}"), n / 50, n / 60) for n in range(300))]
    tree = tree_of(made, differential=True, findings={"udp_rcv": {"verdict": "~", "q": 0.4}}, ns_per_tick=0.1)
    names = [tree.strings[n] for n in tree.name]
    grey = render_svg(tree)
    shown = np.zeros(len(tree), bool)
    shown[[names.index("br_handle_frame"), names.index("br_forward")]] = True
    text = render_svg(replace(tree, shown=shown))
    assert len({colour for *_, colour in shapes_from_text(grey)}) == 1
    assert sum(a != b for a, b in zip(shapes_from_text(text), shapes_from_text(grey), strict=True)) == 2
    assert_drawn_alike(visit, text)
    page = visit(text, ".svg")
    page.check("input[type=checkbox]")  # of the functions first no path was tested
    assert len({colour for *_, colour in shapes(page)}) == 1


def assert_drawn_alike(visit: Any, text: str) -> None:
    """What the script draws is what the file shows without it."""
    still, alive = visit(text, ".svg", java_script_enabled=False), visit(text, ".svg")
    before, after = shapes_from_text(text), shapes(alive)
    assert still.locator("#nsprof-frames text", has_text="udp_rcv").count() == 1
    top = min(float(y) for _, y, *_ in after) - min(float(y) for _, y, *_ in before)
    assert len(before) == len(after) > 100
    for a, b in zip(sorted(before), sorted(after), strict=True):
        assert float(a[0]) == pytest.approx(float(b[0]), abs=0.11) and float(a[2]) == pytest.approx(
            float(b[2]), abs=0.11
        )
        assert a[4] == b[4]
    assert top >= 0


def shapes_from_text(text: str) -> list[tuple[str, ...]]:
    found = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="(\d+)" fill="([^"]+)" class="f"', text
    )
    return [
        (f"{float(x):.1f}", f"{float(y):.1f}", f"{float(w):.1f}", f"{float(h):.1f}", c) for x, y, w, h, c in found
    ]


def test_search_highlights_and_tells_the_share_of_both_sides(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    page.fill("input[type=search]", "^br_|fdb_")
    words = page.locator("output").text_content()
    assert "matched 22.4 % of new (780 ns/transaction), 0.0 % of base (0 ns/transaction), delta +780 ns" in words
    assert page.locator('rect[fill="#c77bbf"]').count() == 4
    page.fill("input[type=search]", "(")
    assert page.locator("output").text_content() == "not a valid pattern"
    page.fill("input[type=search]", "nothing_like_this")
    assert page.locator("output").text_content() == "no frame matches"
    page.keyboard.press("Escape")
    assert page.locator('rect[fill="#c77bbf"]').count() == 0


def test_search_survives_a_reload_through_the_address(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    page.fill("input[type=search]", "^veth_")
    page.reload()
    assert page.eval_on_selector("input[type=search]", "e => e.value") == "^veth_"
    assert page.locator('rect[fill="#c77bbf"]').count() == 1


def label(page: Any, name: str) -> Any:
    return page.locator("#nsprof-frames text", has_text=re.compile(f"^{name}"))


def test_click_zooms_and_escape_goes_back(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    before = label(page, "br_handle_frame$").bounding_box()
    page.mouse.click(before["x"] + 20, before["y"] + 6)
    widest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('#nsprof-frames rect.f')].map(r => +r.getAttribute('width')))"
    )
    assert label(page, "br_handle_frame$").bounding_box()["x"] < 20
    assert widest > 1100
    assert label(page, "fdb_find_rcu$").count() == 1  # cut short before, whole now
    assert label(page, "sock_def_readable").count() == 0
    page.keyboard.press("Tab")
    page.locator("#nsprof-frames").focus()
    page.keyboard.press("Escape")
    assert label(page, "sock_def_readable").count() == 1


def test_tooltip_has_both_sides_delta_interval_q_and_samples(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    box = label(page, "veth_xmit").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 6)
    words = page.locator(".tip").text_content()
    both = ("veth_xmit  [veth]", "new   400 ns/transaction", "base  230 ns/transaction", "self 260 ns", "400 samples")
    change = ("delta +170 ns/transaction", "(+73.9 %)", "[+90.0 ns, +130 ns]", "q = 0.010", "significant increase")
    for part in both + change:
        assert part in words, part


def test_keyboard_walks_zooms_and_speaks(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    status = page.locator("#nsprof-status")
    page.locator("#nsprof-frames").focus()
    assert status.text_content().startswith("all;")
    page.keyboard.press("ArrowUp")
    assert status.text_content().startswith("send_udp_rr")
    page.keyboard.press("ArrowLeft")
    assert status.text_content().startswith("recv_udp_rr")
    page.keyboard.press("ArrowDown")
    assert status.text_content().startswith("all;")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert status.text_content().startswith("Zoomed to entry_SYSCALL_64_after_hwframe")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"


def test_unit_switch_relabels_and_percent_compares_shares(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    page.select_option("select >> nth=0", label="% of what is counted")
    page.locator("#nsprof-frames").focus()
    words = page.locator("#nsprof-status").text_content()
    assert "new   100.0 %" in words and "base  100.0 %" in words and "delta +0.00 %" in words


def test_reverse_puts_the_functions_themselves_first(visit: Any) -> None:
    page = visit(diff_svg(), ".svg")
    page.check("input[type=checkbox]")
    box = label(page, "sock_def_readable").bounding_box()
    root = label(page, "all").bounding_box()
    assert 10 < box["y"] - root["y"] < 20  # right below the root: the root is on top now
    page.mouse.move(box["x"] + 8, box["y"] + 5)
    assert "new   700 ns/transaction" in page.locator(".tip").text_content()


@pytest.mark.parametrize("width", [800, 1600])
def test_the_drawing_follows_the_window(visit: Any, width: int) -> None:
    page = visit(diff_svg(), ".svg", viewport={"width": width, "height": 700})
    widest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('#nsprof-frames rect.f')].map(r => +r.getAttribute('width')))"
    )
    assert width - 45 < widest < width
    assert page.evaluate("document.documentElement.getBoundingClientRect().width") <= width + 1


def test_embedded_in_a_page_it_still_zooms(visit: Any) -> None:
    svg = diff_svg().split("?>", 1)[1]
    page = visit(f"<!DOCTYPE html><meta charset=utf-8><body>{svg}</body>")
    box = label(page, "veth_xmit").bounding_box()
    page.mouse.click(box["x"] + 10, box["y"] + 6)
    assert label(page, "__netif_rx$").count() == 1
    assert "Zoomed to veth_xmit" in page.locator("#nsprof-status").text_content()


def test_as_a_picture_it_shows_the_frames(visit: Any) -> None:
    import base64

    data = base64.b64encode(diff_svg().encode()).decode()
    page = visit(f'<!DOCTYPE html><img id="i" src="data:image/svg+xml;base64,{data}">')
    assert page.evaluate("document.getElementById('i').naturalWidth") == 1200


def test_hostile_names_do_nothing(visit: Any) -> None:
    made = [((f"{word}{n}", word + "leaf"), 50.0, 20.0 * n) for n in range(2) for word in HOSTILE]
    everything = "".join(HOSTILE)
    found = {word: {"verdict": "+"} for word in HOSTILE}
    tree = tree_of(made, differential=True, title=everything, notes=(everything,), findings=found)
    page = visit(render_svg(tree), ".svg")
    for n in range(1, 1 + len(HOSTILE)):
        page.locator("#nsprof-frames").focus()
        for _ in range(n):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.evaluate("document.querySelector('#nsprof-frames').focus()")
    page.fill("input[type=search]", "leaf")
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.locator("output").text_content().startswith("matched")

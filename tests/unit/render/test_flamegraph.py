"""The SVG file: well-formed whatever the names, complete in itself, honest about what it leaves out."""

from __future__ import annotations

import importlib.util
import json
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from nsprof.model.results import FlameTree, Measure
from nsprof.render.flamegraph import FlameOptions, render_svg
from nsprof.render.flamegraph_text import clean, escape, script_json
from tests.support import REPO
from tests.unit.render.trees import FINDINGS, datapath, tree_of

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "<script>alert(1)</script>",
    "</text></svg><script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    '" onload="alert(1)" \'',
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe\u2066\u200f",
    "&lt;b&gt; &#60;b&#62; &amp;",
    "a\udce9\ud800b\x00\ufffe",
    "u2028\u2028\u2029 tab\tnewline\n",
    "",
)


def parse(text: str) -> ET.Element:
    return ET.fromstring(text.encode("utf-8"))  # noqa: S314 - our own file


def data_of(root: ET.Element) -> dict[str, object]:
    scripts = [e for e in root.iter(f"{SVG}script") if e.get("type") == "application/json"]
    assert len(scripts) == 1
    loaded: dict[str, object] = json.loads(scripts[0].text or "")
    return loaded


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("differential", [False, True])
def test_hostile_names_stay_text(word: str, differential: bool) -> None:
    made = [((f"{word}{n}", word + "`" + word + "leaf"), 50.0, 20.0 * n) for n in range(3)]
    tree = tree_of(
        made, differential=differential, title=word, notes=(word,), findings={word: {"verdict": "+", "q": 0.01}}
    )
    text = render_svg(tree, FlameOptions())
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text)
    root = parse(text)
    assert len(list(root.iter(f"{SVG}script"))) == 2  # the data and the program, nothing else
    assert not [e for e in root.iter() if any(name.lower().startswith("on") for name in e.attrib)]
    assert {e.tag for e in root.iter()} <= {
        SVG + t for t in ["svg", "title", "style", "defs", "pattern", "rect", "g", "text", "script"]
    }
    data = data_of(root)
    assert clean(f"{word}0") in data["s"]  # type: ignore[operator]


def test_clean_spells_what_cannot_be_seen() -> None:
    assert clean("\x1b[31mx") == "\\x1b[31mx"
    assert clean("a\u202eb") == "a\\u202eb"
    assert clean("caf\udce9") == "caf\\xe9"
    assert clean("شبكة naïve 网") == "شبكة naïve 网"
    assert escape("<\"'&>") == "&lt;&quot;&#39;&amp;&gt;"


def test_script_json_has_no_markup() -> None:
    text = script_json({"a": "</script><!--<script>&]]>"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!--<script>&]]>"}


def test_the_file_refers_to_nothing_outside() -> None:
    text = render_svg(tree_of(datapath(), differential=True, findings=FINDINGS))
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    assert not re.search(r"@import|\bfetch\(|XMLHttpRequest|\beval\(|innerHTML|new Function", text)


def test_the_head_names_unit_totals_change_and_losses() -> None:
    text = render_svg(tree_of(datapath(), differential=True, findings=FINDINGS, notes=("Losses: 0.3 %.",)))
    words = " ".join(e.text or "" for e in parse(text).iter(f"{SVG}text"))
    assert "host 2.57 us/transaction, veth-bridge 3.48 us/transaction: +915 ns/transaction, 1.36x" in words
    assert "Losses: 0.3 %." in words and "not significant" in words and "gone" in words


def test_modelled_figures_say_modelled() -> None:
    measure = Measure("instructions", "instructions", "skb", "instructions/skb", kind="modelled")
    assert "modelled" in render_svg(tree_of([(("a",), 1, 0)], measure=measure))


def test_frames_left_out_are_counted_in_words() -> None:
    made = [(("top", f"f{n}"), 1.0, 0.0) for n in range(50_000)]
    words = " ".join(e.text or "" for e in parse(render_svg(tree_of(made))).iter(f"{SVG}text"))
    assert "50,000 frames narrower than" in words and "100.00 % of the width" in words


def test_an_empty_tree_says_so() -> None:
    assert "no samples" in render_svg(tree_of([]))
    none = np.zeros(0)
    columns = [none.astype(t) for t in ("u4", "u4", "u1", "i4")]
    tree = FlameTree((), *columns, none, none, none, none, Measure("cpu-clock", "ns", "", "ns"))
    assert "no samples" in render_svg(tree)


def test_a_function_has_the_same_colour_in_every_plain_graph() -> None:
    def colour(text: str) -> str:
        return re.search(r'fill="(rgb[^"]*)" class="f"><title>udp_rcv:', text)[1]  # type: ignore[index]

    assert colour(render_svg(tree_of(datapath()))) == colour(render_svg(tree_of(datapath()[7:9])))


@pytest.mark.parametrize("bad", [{"size_by": "old"}, {"width": 0}, {"width": 10**6}])
def test_senseless_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not"):
        FlameOptions(**bad)  # type: ignore[arg-type]


def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_flamegraph", REPO / "scripts" / "bench_flamegraph.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_hundred_thousand_stacks_take_seconds() -> None:
    made = bench()
    tree = made.tree(made.stacks(100_000, 5_000), [f"function_{n}" for n in range(5_000)])
    started = time.process_time()
    text = render_svg(tree)
    assert time.process_time() - started < 5
    assert len(text) < 10_000_000


def test_many_notes_are_a_line_that_tells_them_when_pointed_at() -> None:
    notes = [f"note <{n}>" for n in range(12)] + ["note <0>"]
    text = render_svg(replace(tree_of(datapath()), notes=tuple(notes)))
    head = text.partition('<g id="nsprof-head">')[2].partition("</g>")[0]
    shown = re.findall(r'class="line">note &lt;(\d+)&gt;<', head)
    assert shown == [str(n) for n in range(6)]
    (more,) = re.findall(r'class="line more">\.\.\. and 6 more notes: [^<]*<title>([^<]*)</title>', head)
    assert more.split("\n") == [f"note &lt;{n}&gt;" for n in range(6, 12)]
    few = render_svg(replace(tree_of(datapath()), notes=tuple(notes[:7])))
    assert "more notes" not in few and few.count('class="line">note') == 7

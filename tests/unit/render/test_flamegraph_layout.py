"""Where frames go and what colour they have: sums hold, nothing vanishes, noise is grey."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsprof.model.results import FlameTree, Measure
from nsprof.render.flamegraph_layout import NARROW, Drawing, fold, inclusive, layout
from tests.unit.render.trees import FINDINGS, Row, datapath, tree_of

names = st.sampled_from("abcdefg")
rows = st.lists(
    st.tuples(
        st.lists(names, min_size=1, max_size=6).map(tuple),
        st.integers(0, 50).map(float),
        st.integers(0, 50).map(float),
    ),
    max_size=30,
)


def row_of(drawing: Drawing, name: str) -> int:
    strings = drawing.tree.strings
    found = [i for i in range(len(drawing)) if strings[drawing.tree.name[drawing.source[i]]] == name]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


@settings(max_examples=80, deadline=None)
@given(rows, st.sampled_from(["new", "base", "both"]), st.booleans())
def test_every_frame_lies_within_its_parent_and_beside_its_siblings(
    made: list[Row], size_by: str, diff: bool
) -> None:
    drawing = layout(tree_of(made, differential=diff), size_by=size_by)
    for i in range(1, len(drawing)):
        up = drawing.parent[i]
        assert up < i and drawing.depth[i] == drawing.depth[up] + 1
        assert drawing.x[i] >= drawing.x[up] - 1e-9
        assert drawing.x[i] + drawing.width[i] <= drawing.x[up] + drawing.width[up] + 1e-6
    order = np.lexsort((drawing.x, drawing.depth))
    for a, b in itertools.pairwise(order):
        if drawing.depth[a] == drawing.depth[b]:
            assert drawing.x[a] + drawing.width[a] <= drawing.x[b] + 1e-6


@settings(max_examples=80, deadline=None)
@given(rows, st.floats(0, 0.6), st.integers(1, 20), st.booleans())
def test_folding_narrow_frames_changes_no_total(made: list[Row], share: float, limit: int, diff: bool) -> None:
    tree = tree_of(made, differential=diff)
    folded = fold(tree, min_share=share, limit=limit)
    for column in ("self_new", "self_base", "samples_new", "samples_base"):
        if diff or not column.endswith("base"):
            assert getattr(folded.tree, column).sum() == pytest.approx(getattr(tree, column).sum())
    full, small = layout(tree), layout(folded.tree)
    kept = {
        (path(small, i)): small.cost_new[i] for i in range(len(small)) if small.tree.kind[small.source[i]] != NARROW
    }
    everything = {path(full, i): full.cost_new[i] for i in range(len(full))}
    for where, cost in kept.items():
        assert cost == pytest.approx(everything[where])


def path(drawing: Drawing, i: int) -> tuple[str, ...]:
    found: list[str] = []
    while i >= 0:
        found.append(drawing.tree.strings[drawing.tree.name[drawing.source[i]]])
        i = int(drawing.parent[i])
    return tuple(found)


def test_known_widths_and_places() -> None:
    drawing = layout(tree_of([(("b",), 30, 0), (("a", "x"), 10, 0), (("a",), 20, 0), (("a", "c"), 5, 0)]))
    assert [path(drawing, i)[0] for i in range(len(drawing))] == ["all", "a", "c", "x", "b"]
    assert drawing.x.tolist() == [0, 0, 0, 5, 35]
    assert drawing.width.tolist() == [65, 35, 5, 10, 30]
    assert drawing.depth.tolist() == [0, 1, 2, 2, 1]


def test_inclusive_sums_of_a_chain_deeper_than_any_recursion() -> None:
    parent = np.arange(-1, 4999, dtype=np.int32)
    (total,) = inclusive(parent, np.ones(5000))
    assert total[0] == 5000 and total[-1] == 1


def test_a_vanished_frame_keeps_its_base_width_beside_the_new_ones() -> None:
    drawing = layout(tree_of([(("stays",), 100, 100), (("gone", "below"), 0, 40)], differential=True))
    gone, below, stays = (row_of(drawing, n) for n in ("gone", "below", "stays"))
    assert drawing.width[gone] == drawing.width[below] == 40
    assert drawing.width[stays] == 100 and drawing.total == 140
    assert drawing.gone[gone] and drawing.gone[below] and not drawing.gone[stays]
    assert drawing.cost_new[0] == 100 and drawing.cost_base[0] == 140
    assert drawing.shade[gone] == -1


def test_by_base_a_new_frame_keeps_its_new_width() -> None:
    drawing = layout(tree_of([(("stays",), 100, 60), (("fresh",), 40, 0)], differential=True), size_by="base")
    assert drawing.width[row_of(drawing, "stays")] == 60
    assert drawing.width[row_of(drawing, "fresh")] == 40
    assert drawing.added[row_of(drawing, "fresh")]


@settings(max_examples=40, deadline=None)
@given(rows)
def test_swapping_the_sides_swaps_the_colours(made: list[Row]) -> None:
    one = layout(tree_of(made, differential=True), size_by="both")
    other = layout(tree_of([(s, b, n) for s, n, b in made], differential=True), size_by="both")
    assert np.allclose(one.shade, -other.shade)
    assert (one.grey == other.grey).all() and (one.gone == other.added).all()
    assert np.allclose(one.width, other.width)


def test_no_tick_against_one_is_grey_and_against_many_is_not() -> None:
    made: list[Row] = [(("busy",), 10_000, 10_000), (("one",), 10, 0), (("many",), 400, 0)]
    drawing = layout(tree_of(made, differential=True, ns_per_tick=10))
    assert drawing.grey[row_of(drawing, "one")]
    assert not drawing.grey[row_of(drawing, "many")]


def test_modelled_counts_have_no_counting_noise() -> None:
    exact = Measure("instructions", "instructions", "skb", "instructions/skb", kind="modelled")
    drawing = layout(tree_of([(("one",), 10, 0)], differential=True, measure=exact, ns_per_tick=10))
    assert not drawing.grey.any()


def test_a_change_that_the_runs_do_not_support_is_grey() -> None:
    drawing = layout(tree_of(datapath(), differential=True, findings=FINDINGS, ns_per_tick=0.01))
    assert drawing.grey[row_of(drawing, "udp_rcv")]  # verdict ~, though far from counting noise
    assert not drawing.grey[row_of(drawing, "br_handle_frame")]  # itself without cost, its callees significant
    assert not drawing.grey[0]


def test_a_path_that_the_runs_support_is_coloured_though_no_function_of_it_is() -> None:
    tree = tree_of(datapath(), differential=True, ns_per_tick=0.01, findings={"udp_rcv": {"verdict": "~", "q": 0.4}})
    names = [tree.strings[n] for n in tree.name]
    shown = np.zeros(len(tree), bool)
    shown[names.index("br_handle_frame")] = True
    for drawn in (layout(replace(tree, shown=shown)), layout(fold(replace(tree, shown=shown), min_share=0.01).tree)):
        coloured = [i for i in range(len(drawn)) if not drawn.grey[i]]
        assert [drawn.tree.strings[drawn.tree.name[drawn.source[i]]] for i in coloured] == ["br_handle_frame"]
    assert layout(tree).grey.all()
    one_tick = replace(tree, shown=shown, samples_new=tree.samples_new / 1e5, samples_base=tree.samples_base / 1e5)
    assert layout(one_tick).grey.all()  # counting noise still greys


def test_without_findings_only_counting_noise_is_grey() -> None:
    drawing = layout(tree_of(datapath(), differential=True, ns_per_tick=0.01))
    assert not drawing.grey[row_of(drawing, "udp_rcv")]


def test_at_most_limit_frames_are_kept_beside_their_folded_siblings() -> None:
    made: list[Row] = [((f"f{n}",), float(n + 1), 0.0) for n in range(1000)]
    folded = fold(tree_of(made), limit=100)
    assert (folded.tree.kind != NARROW).sum() == 100
    assert (folded.tree.kind == NARROW).sum() == 1
    assert folded.frames == 901 and 0 < folded.share < 1
    assert folded.share == pytest.approx(sum(range(1, 902)) / sum(range(1, 1001)))


def test_an_empty_tree_is_laid_out() -> None:
    none = np.zeros(0)
    empty = FlameTree(
        (), none.astype("u4"), none.astype("u4"), none.astype("u1"), none.astype("i4"), none, none, none, none,
        Measure("cpu-clock", "ns", "", "ns"),
    )  # fmt: skip
    assert len(layout(fold(empty).tree)) == 0
    assert layout(tree_of([])).total == 0

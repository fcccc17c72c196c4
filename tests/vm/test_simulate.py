"""The simulator tells the truth: known answers, sums that must add up, and the same result every time.

Boots are dear, so each fixture is one set of boots that many tests look at.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nsprof.errors import VmError
from nsprof.simulate import Measurement, SimulateOptions, measure_all, measure_each, profile_of
from nsprof.simulate.paths import expected_calls
from nsprof.simulate.plans import Perturbations
from nsprof.simulate.report import delta_rows, groups_of
from nsprof.vm import kernels, tcg_machine, tcg_output
from nsprof.vm.guest_minimal import GuestJob
from tests.support import need

pytestmark = pytest.mark.vm
SPEC = "debian:6.1"
BASE = SimulateOptions(kernels=(SPEC,), samples=10, rounds=2)


@pytest.fixture(scope="module", autouse=True)
def _needs() -> None:
    need("vm", "gcc")


@pytest.fixture(scope="module")
def three() -> dict[str, Measurement]:
    return {m.scenario: m for m in measure_all(BASE)}


@pytest.fixture(scope="module")
def bridge_twice(tmp_path_factory: pytest.TempPathFactory) -> list[Measurement]:
    """One kernel under two names (a copy of its image), one scenario."""
    kernel = kernels.resolve(SPEC)
    assert kernel.modules is not None
    tree = tmp_path_factory.mktemp("kernel")
    (tree / "boot").mkdir()
    shutil.copy(kernel.image, tree / "boot" / kernel.image.name)
    (tree / "lib" / "modules").mkdir(parents=True)
    (tree / "lib" / "modules" / kernel.release).symlink_to(kernel.modules)
    return measure_all(replace(BASE, kernels=(str(tree), SPEC), scenarios=("veth-bridge",)))


@pytest.fixture(scope="module")
def known() -> tcg_output.Output:
    job = GuestJob(None, ("workload=self-test", "samples=5"))
    return tcg_output.parse(
        tcg_machine.boot(kernels.resolve(SPEC), job, tcg_machine.BootOptions(footprint=True)).output
    )


def _self_instructions(m: Measurement, sample: tcg_output.TreeSample) -> dict[int, int]:
    return {node: row[1] for node, row in sample.counts.items()}


def test_tree_adds_up_to_the_counter_in_every_sample(three: dict[str, Measurement]) -> None:
    for m in three.values():
        for sample in m.samples:
            assert sample.sum_of("instructions") == sample.instructions
            assert sample.sum_of("rep-iterations") == sample.totals["repeats"]


def test_inclusive_cost_is_self_and_children_at_every_node(three: dict[str, Measurement]) -> None:
    for m in three.values():
        own = _self_instructions(m, m.sample)
        children: dict[int, list[int]] = {}
        inclusive: dict[int, int] = {}
        for node, count in own.items():
            path = m.output.path(node)
            for each in path:
                inclusive[each] = inclusive.get(each, 0) + count
        for node in inclusive:
            path = m.output.path(node)
            children.setdefault(path[1] if len(path) > 1 else 0, []).append(node)
        for node, total in inclusive.items():
            assert total == own.get(node, 0) + sum(inclusive[c] for c in children.get(node, ()))
        assert sum(inclusive[root] for root in children[0]) == m.sample.instructions


def test_flame_graph_and_report_totals_are_the_regions_total(three: dict[str, Measurement]) -> None:
    from nsprof import analyse

    profile = profile_of(BASE, list(three.values()))
    for m in three.values():
        report = analyse.report(profile, scenario=m.scenario, event="instructions")
        assert report.total == pytest.approx(m.sample.instructions / m.repetitions, abs=1e-9)
        run = [r.scenario for r in profile.runs].index(m.scenario)
        rows = (profile.samples.run == run) & (
            profile.samples.event == [e.name for e in profile.events].index("instructions")
        )
        assert profile.samples.weight[rows].sum() == m.sample.instructions
        tree = analyse.flame(profile, scenario=m.scenario, event="instructions")
        assert tree.self_new.sum() == pytest.approx(m.instructions)


def test_instruction_total_agrees_with_virtual_time(three: dict[str, Measurement]) -> None:
    # icount: an instruction takes 2 ns of the virtual clock, which the guest's TSC counts.
    for m in three.values():
        for sample, ticks in zip(m.samples, m.ticks, strict=True):
            counted = sample.totals["executed"] + sample.totals["user"]
            by_clock = ticks >> tcg_machine.ICOUNT_SHIFT
            assert abs(counted - by_clock) <= by_clock * 0.001


def test_every_call_returns_and_nothing_is_unmatched(three: dict[str, Measurement]) -> None:
    for m in three.values():
        assert m.sample.totals["calls"] == m.sample.totals["returns"] == m.sample.totals["matched"]
        assert m.sample.unmatched == 0


def test_most_samples_are_one_tree_and_it_is_the_cheapest(three: dict[str, Measurement]) -> None:
    for m in three.values():
        assert m.modal_share >= 0.6
        assert m.minimum == m.instructions


def test_each_scenario_runs_the_functions_it_is_about_once_per_skb(three: dict[str, Measurement]) -> None:
    for m in three.values():
        calls = m.calls()
        skbs = m.denominators["skb"]
        assert skbs == 2 * m.denominators["transaction"]
        for functions, times in expected_calls(m.plan, BASE).items():
            assert sum(calls.get(name, 0) for name in functions) == times * skbs
    assert "br_handle_frame" not in three["host"].calls()
    assert "ip_forward" not in three["veth-bridge"].calls()


def test_modules_and_contexts_are_in_the_profile(three: dict[str, Measurement]) -> None:
    from nsprof.model.profile import Context

    profile = profile_of(BASE, list(three.values()))
    module = dict(zip(profile.frames.name, profile.frames.module, strict=True))
    assert module["br_handle_frame"] == "bridge"
    assert module["veth_xmit"] == "veth"
    assert module["ip_rcv"] == ""
    assert {Context.TASK, Context.SOFTIRQ} <= {Context(c) for c in profile.samples.context}
    assert all(e.kind == "modelled" for e in profile.events)


def test_identical_kernels_differ_in_no_function_in_either_order(bridge_twice: list[Measurement]) -> None:
    first, second = groups_of(bridge_twice)
    assert first.kernel != second.kernel
    assert delta_rows(first, second) == delta_rows(second, first) == []
    assert first.boots[0].sample.tree == second.boots[0].sample.tree


def test_another_boot_gives_the_same_tree(three: dict[str, Measurement], bridge_twice: list[Measurement]) -> None:
    again = bridge_twice[1]
    assert again.instructions == three["veth-bridge"].instructions
    assert again.functions() == three["veth-bridge"].functions()


def test_swapped_order_swaps_the_signs_only(three: dict[str, Measurement]) -> None:
    host, bridge = groups_of([three["host"], three["veth-bridge"]])
    forth, back = delta_rows(host, bridge), delta_rows(bridge, host)
    assert {n: b - a for n, a, b, _ in forth} == {n: a - b for n, a, b, _ in back}
    assert {n for n, *_, s in forth if s == "new"} == {n for n, *_, s in back if s == "gone"} >= {"br_handle_frame"}
    total = three["veth-bridge"].instructions - three["host"].instructions
    assert sum(b - a for _, a, b, _ in forth) == pytest.approx(total, abs=1e-6)


def test_loop_of_known_length_is_counted_to_the_instruction(known: tcg_output.Output) -> None:
    samples = known.of(2)
    assert len(samples) == 5
    # the opening mark, 1,000 x (dec, jnz), one nop
    assert {s.totals["user"] for s in samples if not s.totals["interrupts"]} == {2002}
    assert {s.totals["executed"] for s in samples if not s.totals["interrupts"]} == {0}


def test_copy_of_known_size_touches_exactly_its_lines(known: tcg_output.Output) -> None:
    for sample in known.of(3)[1:]:
        data = [line for line in sample.lines() if not line.text]
        user = [line for line in data if line.address < 1 << 47]
        assert len(user) == 32768 // 64
        assert len(data) == sample.sum_of("data-lines")
        source = {line.address for line in user}
        reader = {function for text, address, function in sample.touchers() if not text and address in source}
        touched = {address for text, address, function in sample.touchers() if not text and function in reader}
        assert len(touched - source) >= 32768 // 64
        stored = {line.address for line in data if line.stores and line.address in touched - source}
        assert len({address >> 12 for address in stored if address & 0xFFF == 0xFC0}) == 8  # pages written to the end


def test_repetitions_of_a_string_instruction_are_apart(known: tcg_output.Output) -> None:
    # Nehalem copies by rep movsq: 4,096 words of eight bytes for 32 KiB. (Others clear the pipe's pages.)
    for sample in known.of(3)[1:]:
        by_function: dict[str, int] = {}
        for node, row in sample.counts.items():
            name = known.nodes[node].name
            by_function[name] = by_function.get(name, 0) + row[2]
        copying = {name: count for name, count in by_function.items() if "copy" in name and count}
        assert list(copying.values()) == [4096]
        assert sum(by_function.values()) == sample.totals["repeats"]


def test_a_scenario_whose_path_did_not_run_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsprof import simulate
    from nsprof.simulate.plans import plan_for

    def misnamed(options: SimulateOptions, scenario: str) -> object:
        return replace(plan_for(simulate.TopologySpec("host")), name="veth-bridge")

    monkeypatch.setattr(simulate, "_plan", misnamed)
    with pytest.raises(VmError, match=r"did not take the pairs|is not the one executed"):
        measure_all(replace(BASE, scenarios=("veth-bridge",), rounds=1, samples=2))


def test_footprints_are_the_same_in_every_sample_and_boot() -> None:
    options = replace(BASE, scenarios=("host",), footprint=True, rounds=1, samples=6)
    boots = [*measure_all(options), *measure_all(options)]
    assert [line.address for line in boots[0].sample.lines()] == [line.address for line in boots[1].sample.lines()]
    for quantity, least in (("data-lines", 200), ("text-lines", 600)):
        counts = {m.sample.sum_of(quantity) for m in boots}
        assert len(counts) == 1
        assert counts.pop() > least
    for m in boots:
        alike = [s for s in m.samples if s.instructions == m.sample.instructions]
        assert len({s.sum_of("text-lines") for s in alike}) == 1
        assert len({s.sum_of("data-lines") for s in alike}) == 1
        assert len([line for line in m.sample.lines() if line.text]) == m.sample.sum_of("text-lines")


def test_one_more_rule_costs_the_same_each_time_and_in_the_right_functions() -> None:
    points = [replace(BASE, scenarios=("veth-route",), perturbations=Perturbations(rules=n)) for n in (1, 2, 3)]
    one, two, three = (each[0].functions() for each in measure_each(points))
    steps = [
        {name: more.get(name, 0.0) - count for name, count in less.items() if more.get(name) != count}
        for less, more in ((one, two), (two, three))
    ]
    assert steps[0]["nft_do_chain"] == steps[1]["nft_do_chain"] > 0
    # What else moves is a step more or less in a hash bucket (a route's or a neighbour's).
    assert all(abs(change) <= 40 for step in steps for name, change in step.items() if not name.startswith("nft"))


def test_newer_qemu_with_its_own_plugin_interface_counts_the_same(
    three: dict[str, Measurement], tmp_path: Path
) -> None:
    qemu = _qemu_10(tmp_path)
    (m,) = measure_all(replace(BASE, scenarios=("host",), qemu=str(qemu)))
    assert m.functions() == three["host"].functions()
    # A few helpers of QEMU (system call entry) tell their loads in one version and not in the other.
    assert m.sample.sum_of("loads") == pytest.approx(three["host"].sample.sum_of("loads"), rel=0.005)


def _qemu_10(place: Path) -> Path:
    words = [f"qemu-system-{part}/bookworm-backports" for part in ("x86", "common", "data")]
    got = subprocess.run(
        ["apt-get", "-q", "download", *words], cwd=place, capture_output=True, text=True, timeout=240, check=False
    )
    packages = sorted(place.glob("*.deb"))
    if got.returncode or len(packages) != 3:
        pytest.skip(f"QEMU 10 cannot be fetched: {got.stderr.strip().splitlines()[-1:]}")
    for package in packages:
        subprocess.run(["dpkg", "-x", package, place / "root"], check=True, timeout=120)
    qemu = place / "root/usr/bin/qemu-system-x86_64"
    if subprocess.run([qemu, "--version"], capture_output=True, check=False, timeout=30).returncode:
        pytest.skip("QEMU 10 does not run here: a library is missing")
    return qemu

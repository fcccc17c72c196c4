"""Topology, ledger and losses of a profile as the report page shows them: known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nsprof.cli import html_facts
from nsprof.cli.html_facts import Side
from nsprof.model.profile import Counter, LedgerLine, Losses, ProbeInfo, Run
from tests.profiles import bench_profile


def side(name: str = "veth-bridge", **changes: object) -> Side:
    profile = bench_profile(2)
    profile = profile.with_(**changes) if changes else profile
    return Side(profile, name, profile.runs_of(name))


def test_kilobytes_have_no_plural() -> None:
    runs = tuple(replace(r, denominators={**r.denominators, "kb": 306_692.0}) for r in bench_profile(2).runs)
    rows = dict(html_facts.run_facts([side(runs=runs)]).rows)
    assert rows["KB a run"] == ("306,692",) and "transactions a run" in rows


CHAIN = "client -> eth0 ~ v0 -> br0 -> [conntrack, ip_forward] -> w0 ~ eth0 -> server"


def test_the_chain_becomes_boxes_wires_and_counted_packets() -> None:
    meta = {"topology": {"veth-bridge": {"chain": CHAIN, "shape": "veth-nat"}}}
    picture = html_facts.topology(side(meta=meta), "transaction", None)
    assert picture is not None
    assert [(box.title, [line for line, _ in box.lines]) for box in picture.boxes] == [
        ("c0", ["client", "eth0"]),
        ("host", ["v0", "br0", "[conntrack, ip_forward]", "w0"]),
        ("remote", ["eth0", "server"]),
    ]
    assert [(link.one, link.other) for link in picture.links] == [((0, 1), (1, 0)), ((1, 3), (2, 0))]
    assert dict(picture.boxes[1].lines)["w0"] == "rx 1.00, tx 1.00 skbs/transaction"


def test_a_child_device_lies_in_another_namespace_than_its_parent() -> None:
    chain = "client -> eth0 (child of w0) -> w0 ~ eth0 -> server"
    meta = {"topology": {"veth-bridge": {"chain": chain, "shape": "macvlan"}}}
    picture = html_facts.topology(side(meta=meta), "transaction", None)
    assert picture is not None
    assert [box.title for box in picture.boxes] == ["c0", "host", "remote"]
    assert [(link.one, link.other) for link in picture.links] == [((0, 1), (1, 0)), ((1, 0), (2, 0))]


def test_host_only_has_two_boxes() -> None:
    meta = {"topology": {"host": {"chain": "client -> w0 ~ eth0 -> server", "shape": "host"}}}
    picture = html_facts.topology(side("host", meta=meta), "transaction", None)
    assert picture is not None and [box.title for box in picture.boxes] == ["host", "remote"]


def test_without_a_chain_named_namespaces_are_shown_unconnected() -> None:
    picture = html_facts.topology(side(meta={}), "", None)
    assert picture is not None
    assert {box.title for box in picture.boxes} == {"host", "c0"} and not picture.links


def counted(scenario: str) -> Run:
    """A counting pass of 20,000 transactions, as record --count makes one."""
    return Run(scenario, "6.12.0-test", duration_s=1.0, denominators={"transaction": 20_000.0}, probes_on=("ledger",))


def test_ledger_counts_per_unit_and_knows_not_probed_from_none() -> None:
    profile = bench_profile(2)
    profile = profile.with_(runs=tuple(replace(r, kernel="6.12.0-test") for r in profile.runs))
    first = len(profile.runs)
    runs = profile.runs_of("veth-bridge")
    lines = (LedgerLine(first, "copy", "skb_copy", 2, 0, -1, 40_000, 2_000_000),)
    with_lines = profile.with_(runs=(*profile.runs, counted("veth-bridge")), ledger=lines)
    new = Side(with_lines, "veth-bridge", runs)
    base = Side(with_lines, "host", profile.runs_of("host"))
    (entry,) = entries = html_facts.ledger(base, new, "transaction")
    assert (entry.what, entry.where, entry.new, entry.new_bytes) == ("copy", "c0", 2.0, 100.0)
    assert math.isnan(entry.base)  # no host run was counted
    notes = html_facts.ledger_notes(base, new, entries)
    assert notes[0] == "host: nothing was counted."
    assert notes[1].startswith("veth-bridge: Fragmentation is unknown")
    other = LedgerLine(first + 1, "checksum", "software", 1, 0, -1, 20_000)
    rare = LedgerLine(first + 1, "a control packet", "", 1, 0, -1, 2)
    probed = with_lines.with_(runs=(*with_lines.runs, counted("host")), ledger=(*lines, other, rare))
    listed = html_facts.ledger(Side(probed, "host", base.runs), Side(probed, "veth-bridge", runs), "transaction")
    entries = {e.what: e for e in listed}
    assert entries["copy"].base == 0.0 and entries["checksum"].base == 1.0 and entries["checksum"].new == 0.0
    assert [e.what for e in listed] == ["checksum", "copy", "a control packet"]  # the rare last


def test_cpu_for_each_devices_packets_stands_at_the_device() -> None:
    from nsprof import analyse

    profile = bench_profile(2, hop_runs=1).with_(
        meta={"topology": {"veth-bridge": {"chain": "client -> eth0 ~ w0 -> server", "shape": "veth"}}}
    )
    made = Side(profile, "veth-bridge", profile.runs_of("veth-bridge"))
    by = {what: analyse.report(profile, scenario="veth-bridge", by=what) for what in ("netns", "device")}
    picture = html_facts.topology(made, "transaction", by["netns"], by["device"])
    assert picture is not None
    group = next(g for g in by["device"].groups if g.label.endswith(":eth0"))
    box = picture.boxes[0]
    at = [name for name, _ in box.lines].index("eth0")
    assert box.title == "c0" and box.spent[at] == f"{group.cost:.0f} ns"


def test_losses_add_up_over_runs_and_unknown_stays_unknown() -> None:
    from nsprof import analyse

    made = side()
    facts = dict(html_facts.losses([made], [analyse.report(made.profile, scenario="veth-bridge")]).rows)
    seen = sum(r.losses.seen for r in made.run_objects)
    assert facts["ticks due on busy CPUs"] == facts["ticks stored"] == (f"{seen:,}",)
    runs = tuple(
        r if r.scenario == "host" else type(r)(**{**_fields(r), "losses": Losses()}) for r in made.profile.runs
    )
    unknown = made.profile.with_(runs=runs)
    blind = Side(unknown, "veth-bridge", made.runs)
    facts = dict(html_facts.losses([blind], [analyse.report(unknown, scenario="veth-bridge")]).rows)
    assert facts["ticks due on busy CPUs"] == ("unknown",) and facts["samples lost"] == ("unknown",)


def _fields(run: object) -> dict[str, object]:
    return {name: getattr(run, name) for name in run.__dataclass_fields__}  # type: ignore[attr-defined]


def test_refused_probes_are_told_with_their_reason() -> None:
    probes = (ProbeInfo("veth_xmit", "veth_xmit", "none", "refused", "no kprobes in this kernel"),)
    assert html_facts.not_measurable([side(probes=probes, meta={"notes": ["a note"]})]) == (
        "probe veth_xmit refused: no kprobes in this kernel",
        "a note",
    )


def test_points_are_the_runs_and_the_centre_their_mean() -> None:
    chart = html_facts.point_chart("Throughput", "Mbit/s", [("a", [1.0, 3.0, math.nan])], None, "throughput")
    assert chart is not None and chart.groups[0].centre == pytest.approx(2.0)
    assert html_facts.point_chart("x", "", [("a", [math.nan])], None, "cpu") is None


def test_a_namespace_with_hundreds_of_devices_shows_the_busiest() -> None:
    made = side(meta={})
    host = next(i for i, n in enumerate(made.profile.namespaces, 1) if n.name == "host")
    more = tuple(
        Counter(made.runs[0], "device", host, f"veth{n}", -1, "rx_packets", 0.0, float(n)) for n in range(200)
    )
    picture = html_facts.topology(
        Side(made.profile.with_(counters=(*made.profile.counters, *more)), "veth-bridge", made.runs), "", None
    )
    assert picture is not None
    (box,) = [b for b in picture.boxes if b.title == "host"]
    assert [name for name, _ in box.lines] == ["w0", *(f"veth{n}" for n in range(199, 192, -1)), "and 193 more"]

"""Where CPUs were full nothing waited for want of work, whoever filled them; and which devices packets leave by."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nsprof.analyse.causes import explain
from nsprof.model.profile import Context, Counter, Namespace, Profile, Value
from nsprof.model.results import Explanation
from nsprof.render.explain import explain_parts
from nsprof.render.page_cards import explanation_cards
from nsprof.render.tables import Heading
from tests.unit.analyse.causes.pairs import pair


def _slower(base: dict[int, float], new: dict[int, float], **more: Any) -> Profile:
    """A third of the throughput at the same cost, the CPUs of ten seconds busy as given."""
    rates = [{"values": (Value("throughput", v, "Mbit/s", "netperf"),)} for v in (900.0, 300.0)]
    fields = tuple({**rate, "cpu_busy_s": busy} for rate, busy in zip(rates, (base, new), strict=True))
    return pair({}, fields=fields, **more)


def _beside_a_peer(profile: Profile) -> Profile:
    """Three quarters of the slow side's busy time is a server's, in a namespace that nobody named."""
    own = [replace(n, role="watched") for n in profile.namespaces]
    spaces = (*own, Namespace(4026537777, 77, name="peer", role=""))
    samples, runs = profile.samples, profile.runs
    slow = [runs[r].scenario == "fault" for r in samples.run.tolist()]
    theirs = samples.take(np.array(slow))
    theirs = replace(
        theirs,
        task_ns=theirs.task_ns * 0 + len(spaces),
        context=theirs.context * 0 + int(Context.TASK),
        weight=theirs.weight * 3,
    )
    both = {
        name: [*getattr(samples, name).tolist(), *getattr(theirs, name).tolist()]
        for name in samples.__dataclass_fields__
    }
    return profile.with_(namespaces=spaces, samples=type(samples).build(len(samples) + len(theirs), **both))


def _said(e: Explanation) -> str:
    return "\n".join(line for part in explain_parts(e) for line in getattr(part, "lines", ()))


def _told(profile: Profile) -> Explanation:
    return explain(profile, profile, base_scenario="clean", new_scenario="fault")


def test_full_cpus_are_said_to_be_full_and_whose_work_filled_them() -> None:
    e = _told(_beside_a_peer(_slower({0: 9.6, 1: 9.8}, {0: 9.7, 1: 9.9})))
    assert e.findings == ()
    assert e.cpu_full == pytest.approx(0.97)
    assert 0.5 < e.cpu_full_others < 0.8
    assert "CPU-bound: unknown; the CPUs were 97% busy" in _said(replace(e, answer="no difference"))
    share = f"{100 * e.cpu_full_others:.0f}%"
    card = "\n".join(explanation_cards(e)[-1].lines)
    for text in (_said(replace(e, answer="partly explained")), card):
        assert f"he CPUs were 97% busy, {share} of it tasks outside the scenario's namespaces" in text
        assert "--everyone" in text
        assert "not a CPU problem" not in text


def test_a_cause_that_is_no_cpu_time_does_not_make_full_cpus_idle() -> None:
    counters = {("netns", "Tcp.OutSegs"): (9.0, 9.0), ("netns", "Tcp.RetransSegs"): (0.0, 0.2)}
    e = _told(_slower({0: 9.6, 1: 9.8}, {0: 9.7, 1: 9.9}, counters=counters))
    assert ([f.cause for f in e.findings], e.answer) == (["retransmits"], "not cpu")
    (heading, *_) = explain_parts(e)
    assert isinstance(heading, Heading)
    assert "not a CPU problem" not in heading.text + _said(e)
    assert "CPU-bound: in part: the CPUs were 97% busy; besides: lost packets are sent again" in _said(e)


def test_what_must_not_be_concluded_and_what_a_figure_counts_are_said() -> None:
    tracked: tuple[dict[str, Any], dict[str, Any]] = (
        {"datapath": {}},
        {"datapath": {"nft_rules": 40, "conntrack_entries": 4}},
    )
    made = pair({"nf_conntrack_in < nf_hook_slow < __ip_finish_output < ip_output": 700.0}, facts=tracked)
    e = _told(made)
    texts = [x.text for f in e.findings for x in f.evidence if "against none" in x.text]
    assert texts
    assert all(re.search(r"samples against none; \d+ ns/transaction in all", text) for text in texts)
    assert "not to be concluded: no share" in _said(replace(e, forbids=("no share",)))


@pytest.mark.parametrize(
    ("busy", "under_test", "waits"),
    [
        ({0: 4.0, 1: 2.0}, (), True),
        ({0: 9.7, 1: 9.9}, (), False),
        ({0: 9.7, 1: 2.0}, (), True),  # a CPU that has time: the scenario's own part tells
        ({0: 9.7, 1: 2.0}, (0,), False),  # but not under test
        ({0: 8.8, 1: 9.9}, (), True),
    ],
)
def test_nothing_waits_where_every_cpu_under_test_is_full(
    busy: dict[int, float], under_test: tuple[int, ...], waits: bool
) -> None:
    profile = _slower({0: 9.9, 1: 9.9}, busy)
    runs = tuple(replace(r, dut_cpus=under_test) for r in profile.runs)
    # The scenario's own part falls with its throughput; the rest of the busy time is others'.
    slow = [r.scenario == "fault" for r in runs]
    weight = profile.samples.weight.copy()
    weight[[slow[r] for r in profile.samples.run.tolist()]] /= 3
    units = tuple(
        replace(r, denominators={k: v / 3 for k, v in r.denominators.items()}) if s else r
        for r, s in zip(runs, slow, strict=True)
    )
    e = _told(profile.with_(runs=units, samples=replace(profile.samples, weight=weight)))
    assert ("waiting" in {f.cause for f in e.findings}) is waits
    assert math.isnan(e.cpu_full) is waits
    assert ("CPU-bound: no" in _said(e)) is waits


def test_one_run_with_idle_cpus_is_enough_to_have_waited() -> None:
    profile = _slower({0: 9.9, 1: 9.9}, {0: 9.9, 1: 9.9})
    last = max(i for i, r in enumerate(profile.runs) if r.scenario == "fault")
    runs = tuple(replace(r, cpu_busy_s={0: 3.0, 1: 3.0}) if i == last else r for i, r in enumerate(profile.runs))
    assert math.isnan(_told(profile.with_(runs=runs)).cpu_full)


@pytest.mark.parametrize(
    ("base_lo", "base_w0", "new_lo", "words"),
    [
        (2.0, 0.0, 0.0, "2 devices besides lo (base: lo only)"),
        (2.0, 0.01, 0.0, "2 devices besides lo (base: lo only)"),  # strays
        (0.0, 1.0, 0.0, "2 devices (base: 1)"),
        (0.0, 0.0, 0.0, "2 devices (base: none)"),
        (2.0, 1.0, 2.0, "2 devices besides lo (base: 1 besides lo)"),
    ],
)
def test_packets_over_loopback_leave_by_a_device_too(
    base_lo: float, base_w0: float, new_lo: float, words: str
) -> None:
    kinds = [{"devices": {name: {"kind": "veth"} for name in names}} for names in ((), ("v0", "v1"))]
    profile = pair({"veth_xmit < dev_hard_start_xmit < __ip_finish_output": 600.0}, facts=(kinds[0], kinds[1]))
    rows = [row for row in profile.counters if row.name != "tx_packets"]
    for run, r in enumerate(profile.runs):
        clean = r.scenario == "clean"
        sent = {"lo": base_lo, "w0": base_w0} if clean else {"lo": new_lo, "v0": 2.5, "v1": 2.5}
        units = r.denominators["transaction"]
        rows += [Counter(run, "device", 1, name, -1, "tx_packets", 0.0, n * units) for name, n in sent.items()]
    e = _told(profile.with_(counters=tuple(rows)))
    (found,) = [f for f in e.findings if f.cause == "extra-hop-veth"]
    assert any(f"packets leave through {words}, " in x.text for x in found.evidence)


@pytest.mark.parametrize(
    ("received", "words"),
    [((1_000.0, 670.0), "0% in clean, 33% in fault"), ((999.0, 995.0), ""), ((1_000.0, None), "")],
)
def test_datagrams_that_nobody_received_are_told(received: tuple[float, float | None], words: str) -> None:
    def values(got: float | None) -> dict[str, Any]:
        counts = {"datagrams_sent": 1_000.0, "datagrams_received": got}
        return {"values": tuple(Value(k, v, "datagrams", "netperf") for k, v in counts.items() if v is not None)}

    said = _said(_told(pair({}, fields=tuple(map(values, received)))))
    note = "note: datagrams sent and not received, by the workload's own count: "
    assert (f"{note}{words}" in said) if words else (note not in said)

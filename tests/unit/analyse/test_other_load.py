"""Whoever else ran on the same CPUs is shown apart, not charged to the packets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsprof.analyse import Filter, diff, report, scenario_table
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Namespace, Profile, Run, Samples
from tests.profiles import CLOCK, stack_of


def _profile(*, roles: bool) -> Profile:
    b = ProfileBuilder()
    b.event(CLOCK)
    ours = b.namespace(Namespace(10, 1, name="c0", role="container" if roles else ""))
    init = b.namespace(Namespace(11, 2, name="init"))
    stack = stack_of(b, "ip_rcv")
    mine, theirs = b.task(5, 5, "netperf"), b.task(6, 6, "cc1")
    rows = [
        (mine, ours, Context.TASK, 100.0),
        (theirs, init, Context.USER, 700.0),  # a compiler: no part in the scenario
        (theirs, init, Context.SOFTIRQ, 50.0),  # our packets, served in the compiler's time
        (0, 0, Context.TASK, 7.0),  # namespace unknown: it may be ours
    ]
    b.samples(
        Samples.build(
            len(rows),
            stack=stack,
            count=1,
            task=[r[0] for r in rows],
            task_ns=[r[1] for r in rows],
            context=[r[2] for r in rows],
            weight=[r[3] for r in rows],
        )
    )
    b.runs.append(Run("s", duration_s=1, cpus=1, cpu_busy_s={0: 857e-9}, denominators={"skb": 1}))
    return b.build()


def test_tasks_without_a_part_in_the_scenario_are_shown_apart() -> None:
    found = report(_profile(roles=True))
    assert found.total == 157.0
    assert any("took 81.7% of the busy time" in note for note in found.notes)
    assert not found.alarms, "what was sampled still adds up to what was measured"


def test_the_table_of_scenarios_says_that_its_cpu_usage_has_the_other_load_in_it() -> None:
    said = [n for n in scenario_table(_profile(roles=True)).notes if "other load" in n]
    assert said == [
        "CPU usage is of everything that ran, other load included (s 82% of the busy time); "
        "the unit cost leaves it out"
    ]
    assert not [n for n in scenario_table(_profile(roles=False)).notes if "other load" in n]


def test_everyone_is_counted_when_asked_for() -> None:
    assert report(_profile(roles=True), where=Filter(everyone=True)).total == 857.0


def test_without_namespaces_of_our_own_nobody_is_foreign() -> None:
    assert report(_profile(roles=False)).total == pytest.approx(857.0)


def test_a_diff_warns_where_the_sides_leave_out_differently_much() -> None:
    def warned(base: bool, new: bool) -> list[str]:
        found = diff(_profile(roles=base), _profile(roles=new))
        return [w for w in found.warnings if "different tasks" in w]

    (line,) = warned(True, False)
    assert "leaves out 82%" in line and "leaves out 0%" in line and "--everyone" in line
    assert not warned(True, True) and not warned(False, False)


def test_a_total_of_few_samples_says_what_chance_does_to_it() -> None:
    many = _profile(roles=True)
    assert "3 samples: too few for a cost, which chance alone moves by 113% (95 %)" in report(many).notes
    enough = many.with_(samples=replace(many.samples, count=many.samples.count * 10))
    assert not [n for n in report(enough).notes if "chance alone" in n]

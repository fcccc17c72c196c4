"""Two kernels, one packet: compilation told from real changes, and structs whose lines a function newly touches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nsprof.analyse.causes import kernel_diff
from nsprof.errors import ComparisonError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Event, Profile, Run, Samples
from nsprof.model.results import KernelDiff
from nsprof.render.explain import kernel_diff_parts
from nsprof.render.tables import Lines
from tests.profiles import stack_of

EXACT = Event("instructions", "instructions", "modelled")
OLD, NEW = "6.1.0-test", "6.12.0-test"
ROOT = "udp_sendmsg < do_syscall_64"


def simulated(kernel: str, counts: Mapping[str, float], lines: Any = None, event: Event = EXACT) -> Profile:
    builder = ProfileBuilder()
    builder.samples(
        Samples.build(
            len(counts),
            run=0,
            event=builder.event(event),
            stack=[stack_of(builder, path) for path in counts],
            context=Context.TASK,
            weight=list(counts.values()),
            count=1,
        )
    )
    builder.runs.append(Run("host", kernel=kernel, denominators={"transaction": 1.0}))
    one = {"scenario": "host", "kernel": kernel, **({"data_lines": lines} if lines else {})}
    builder.meta["simulate"] = {"runs": [one], "workload": "udp-rr"}
    return builder.build()


def compared(old: Mapping[str, float], new: Mapping[str, float], lines: tuple[Any, Any] = (None, None)) -> KernelDiff:
    return kernel_diff(simulated(OLD, old, lines[0]), OLD, simulated(NEW, new, lines[1]), NEW)


def test_a_function_that_its_caller_swallowed_is_compilation_only() -> None:
    d = compared(
        {f"ip_send_skb < {ROOT}": 50.0, f"ip_local_out < ip_send_skb < {ROOT}": 40.0}, {f"ip_send_skb < {ROOT}": 87.0}
    )
    assert d.inlining == (("ip_local_out", "ip_send_skb", -3.0),)
    assert d.groups == ()


def test_a_caller_may_swallow_several_at_once() -> None:
    """Neither callee alone fits what the caller gained; both together do."""
    old = {
        f"ip_send_skb < {ROOT}": 50.0,
        f"ip_local_out < ip_send_skb < {ROOT}": 40.0,
        f"ip_check < ip_send_skb < {ROOT}": 30.0,
    }
    d = compared(old, {f"ip_send_skb < {ROOT}": 120.0})
    assert {(callee, caller) for callee, caller, _ in d.inlining} == {
        ("ip_local_out", "ip_send_skb"),
        ("ip_check", "ip_send_skb"),
    }


def test_a_function_that_went_away_for_good_is_a_real_change() -> None:
    d = compared(
        {f"ip_send_skb < {ROOT}": 50.0, f"ip_local_out < ip_send_skb < {ROOT}": 40.0}, {f"ip_send_skb < {ROOT}": 50.0}
    )
    assert d.inlining == ()
    assert [f for _, _, functions in d.groups for f in functions] == [("ip_local_out", -40.0, "gone")]


def test_a_function_called_from_another_place_is_not_inlined() -> None:
    """Its own count stays: only the caller differs, and the old caller's own work grew for another reason."""
    old = {f"ip_send_skb < {ROOT}": 50.0, f"skb_put < ip_send_skb < {ROOT}": 40.0, f"udp_push < {ROOT}": 5.0}
    new = {f"ip_send_skb < {ROOT}": 90.0, f"skb_put < udp_push < {ROOT}": 40.0, f"udp_push < {ROOT}": 5.0}
    assert compared(old, new).inlining == ()


def line(member: str, *functions: str, address: int = 0) -> dict[str, Any]:
    return {"address": f"{address:x}", "kind": "slab", "name": "", "member": member, "functions": list(functions)}


def test_lines_of_a_struct_that_were_not_touched_before_are_told() -> None:
    shared = {f"fib_lookup < {ROOT}": 50.0}
    before = [line("struct sk_buff.head", "fib_lookup"), line("struct sock.sk_flags", "udp_sendmsg")]
    after = [
        line("struct sk_buff.head", "fib_lookup"),
        line("struct sk_buff.cb", "fib_lookup", "udp_sendmsg"),
        line("struct net.ipv4", "fib_lookup"),
        line("struct sock.sk_flags", "udp_sendmsg"),
    ]
    d = compared(shared, shared, (before, after))
    assert d.touched == (
        ("fib_lookup", "struct net", 0, 1, ("ipv4",)),
        ("udp_sendmsg", "struct sk_buff", 0, 1, ("cb",)),
        ("fib_lookup", "struct sk_buff", 1, 2, ("cb",)),
    )
    text = "\n".join(s for part in kernel_diff_parts(d) if isinstance(part, Lines) for s in part.lines)
    assert "fib_lookup touches 1 line of `struct net`, which it did not touch before (new: ipv4)" in text
    assert "fib_lookup touches 1 line more of `struct sk_buff` than before (new: cb): 1 -> 2" in text


def test_a_line_that_another_function_touched_before_is_no_new_indirection() -> None:
    """As of 6.12, where xfrm_policy_check is no longer inlined into its caller."""
    shared = {f"fib_lookup < {ROOT}": 50.0}
    before = [line("struct net.xfrm", "udp_queue_rcv"), line("struct net.ipv4", "fib_lookup")]
    moved = [line("struct net.xfrm", "xfrm_policy_check2"), line("struct net.ipv4", "fib_lookup")]
    assert compared(shared, shared, (before, moved)).touched == ()
    twice = [*moved, line("struct net.xfrm", "xfrm_policy_check2", address=64)]
    d = compared(shared, shared, (before, twice))
    assert d.touched == (("xfrm_policy_check2", "struct net", 0, 2, ("xfrm",)),)


def test_without_debug_information_it_says_what_would_tell() -> None:
    shared = {f"fib_lookup < {ROOT}": 50.0}
    d = compared(shared, shared)
    assert d.touched == ()
    assert any("--debug-info" in note for note in d.notes)


def test_sampled_profiles_are_refused() -> None:
    sampled = Event("instructions", "instructions", "sampled")
    profiles = [simulated(k, {f"fib_lookup < {ROOT}": 50.0}, event=sampled) for k in (OLD, NEW)]
    with pytest.raises(ComparisonError):
        kernel_diff(profiles[0], OLD, profiles[1], NEW)

"""Was the path that a scenario is about the one executed? Functions that must run once per skb, checked each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsprof.errors import VmError
from nsprof.vm.guest_minimal import Plan

if TYPE_CHECKING:
    from nsprof.simulate import SimulateOptions

__all__ = ["check_path", "expected_calls", "skbs_of"]

#: scenario -> times that an skb on the wire is sent over a pair, the wire's own pair included
_PAIRS = {"host": 1, "device": 1, "macvlan": 1, "ipvlan": 1, "netkit": 1}


def expected_calls(plan: Plan, options: SimulateOptions) -> dict[tuple[str, ...], int]:
    """Functions (of several, one or the other) -> how often an skb must go through them."""
    forward = "ip6_forward" if plan.family == 6 else "ip_forward"
    found: dict[tuple[str, ...], int] = {("veth_xmit",): _PAIRS.get(plan.name, 2)}
    if plan.name in ("veth-route", "netkit", "vrf", "veth-bridge-route", "veth-nat"):
        found[(forward,)] = 1
    if plan.name == "netkit":
        found[("netkit_xmit",)] = 1
    if plan.name == "veth-bridge":
        found[("br_handle_frame",)] = 1
    if plan.name == "veth-nat":
        found[("nf_conntrack_in",)] = 1
    if plan.name == "vxlan":
        found[("vxlan_xmit",)] = found[("vxlan_rcv",)] = 1
    if plan.name == "ipvlan":
        found[("ipvlan_start_xmit", "ipvlan_handle_frame")] = 1
    if plan.name in ("veth-bridge-route", "veth-nat", "vxlan"):
        found[("br_handle_frame", "br_dev_xmit")] = 1
    if plan.name == "macvlan":
        found[("macvlan_start_xmit", "macvlan_handle_frame")] = 1
    if plan.name == "vrf":
        found[("vrf_ip6_rcv",) if plan.family == 6 else ("vrf_ip_rcv", "vrf_l3_rcv")] = 1
    extra = options.perturbations
    if extra.br_nf and plan.name == "veth-bridge":
        found[("br_nf_pre_routing",)] = 1
    if extra.rules:
        found[("nft_do_chain",)] = 1
    return found


def skbs_of(plan: Plan, calls: Mapping[str, int]) -> float:
    """skbs on the wire in a sample, both directions: what its pairs sent."""
    return calls.get("veth_xmit", 0) / _PAIRS.get(plan.name, 2)


def check_path(plan: Plan, options: SimulateOptions, calls: Mapping[str, int], per_repetition: float) -> None:
    """Raises VmError naming the first function that did not run as often as the scenario says.

    `per_repetition` is how many skbs the wire's own counters saw a repetition: it must agree with the calls.
    """
    skbs = skbs_of(plan, calls)
    seen = per_repetition * options.per_sample
    # TCP acknowledges now and then, so a single sample may differ from the mean of all by an skb or two.
    if not skbs or abs(skbs - seen) > max(2.0, 0.1 * seen):
        raise VmError(
            f"scenario {plan.name}: its packets did not take the pairs: veth_xmit sent {skbs:g} skbs in a sample "
            f"where the counters of {plan.wire} saw {seen:g}"
        )
    # Over all samples a neighbour is asked for now and then: two packets more in some hundred.
    if options.workload.startswith("udp") and options.bytes_each <= 1400 and abs(seen - skbs) > 0.5:
        raise VmError(f"scenario {plan.name}: {seen:g} skbs on {plan.wire} in a sample, {skbs:g} expected")
    for functions, times in expected_calls(plan, options).items():
        got = sum(calls.get(name, 0) for name in functions)
        if got != times * skbs:
            raise VmError(
                f"scenario {plan.name}: {' or '.join(functions)} ran {got} times for {skbs:g} skbs, {times * skbs:g} "
                "expected: the path that this scenario is about is not the one executed"
            )

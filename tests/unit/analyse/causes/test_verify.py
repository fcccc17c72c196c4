"""Suggested commands can be pasted: place and measurement filled in."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from nsprof.analyse.causes import explain, rules
from nsprof.model.profile import Profile
from nsprof.model.results import Finding
from tests.unit.analyse.causes.pairs import TX, pair

_OFF = {"w0": {"kind": "veth", "offloads": {"tx-checksum-ip-generic": False}}}
_ON = {"w0": {"kind": "veth", "offloads": {"tx-checksum-ip-generic": True}}}


def finding(meta: dict[str, Any], role: str = "host", files: tuple[str, str] = ("", "")) -> Finding:
    profile = pair({f"do_csum < skb_checksum_help < {TX}": 600.0}, facts=({"devices": _ON}, {"devices": _OFF}))
    spaces = tuple(n.__class__(n.inode, n.cookie, name=n.name, role=role) for n in profile.namespaces)
    made: Profile = profile.with_(meta={**profile.meta, **meta}, namespaces=spaces)
    (found,) = explain(made, made, base_scenario="clean", new_scenario="fault", files=files).findings
    return found


def test_a_bench_is_run_and_explained_once_more() -> None:
    (tried,) = finding({"bench": {"command": ["netperf", "-t", "UDP_RR", "-l", "3"]}}).suggestions
    assert tried.verify == (
        "nsprof bench --scenario clean,fault -o after.nsprof --runs 4 -- netperf -t UDP_RR -l 3 && "
        "nsprof explain after.nsprof --baseline clean --scenario fault"
    )


def test_a_recording_is_made_in_its_namespace_and_compared_with_its_file() -> None:
    record = {"command": ["iperf3", "-c", "10.0.0.1", "a b"], "in": "pod1", "watch": []}
    (tried,) = finding({"record": record}, files=("my base.nsprof", "pod.nsprof")).suggestions
    assert tried.verify == (
        "nsprof record -o after.nsprof --in pod1 -- iperf3 -c 10.0.0.1 'a b' && "
        "nsprof explain after.nsprof --baseline 'my base.nsprof'"
    )


def test_a_command_is_for_the_device_and_the_namespace_that_were_found() -> None:
    (tried,) = finding({}, role="watched").suggestions
    assert tried.command == "ip netns exec host ethtool -K w0 tx on rx on"


def test_how_an_imported_profile_was_made_is_not_guessed() -> None:
    (tried,) = finding({}).suggestions
    assert tried.verify == ""


@pytest.mark.parametrize("rule", rules(), ids=[r.name for r in rules()])
def test_what_verifies_a_rule_is_a_command(rule: Any) -> None:
    for tried in rule.tries:
        if tried.verify:
            assert shlex.split(tried.verify)[0] in {"nstat", "nsprof", "ethtool", "ip", "tc", "ss", "nft", "bridge"}


def test_nothing_is_left_to_fill_in_where_it_verifies() -> None:
    """A namespace that was made for the measurement is gone: then the measurement is made once more."""
    path = f"memcpy < ip_do_fragment < {TX}"
    counters = {("netns", "Ip.FragCreates"): (0.0, 3.0), ("netns", "Ip.FragOKs"): (0.0, 1.0)}
    profile = pair({path: 600.0}, counters=counters)
    made = profile.with_(meta={**profile.meta, "bench": {"command": ["netperf"]}})
    (cut,) = explain(made, made, base_scenario="clean", new_scenario="fault").findings
    assert cut.suggestions[0].command == "ip netns exec NETNS ip link set DEV mtu 1500"
    assert cut.suggestions[0].verify.startswith("nsprof bench --scenario clean,fault")

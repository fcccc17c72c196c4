"""Another remote end than a namespace: what a plan becomes, and what is refused before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof.bench import BenchOptions, experiment, far, plan_of
from nsprof.bench.plan import Plan
from nsprof.errors import NsprofError
from tests.support import REPO

RR = ("netperf", "-t", "TCP_RR", "-l", "5")


def _far(plan: Plan, **changes: object) -> tuple[Plan, list[str]]:
    words: dict[str, object] = {"uplink": "nic0", "remote": "198.18.0.1", "take_uplink": False, **changes}
    return far.with_far_end(plan, **words)  # type: ignore[arg-type]


def _plan(**changes: object) -> Plan:
    return plan_of(BenchOptions(**{"command": RR, "scenarios": ("host", "veth-route"), **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"remote": ""}, "without the machine at its other end"),
        ({"remote": "vm"}, "without the machine at its other end"),
        ({"uplink": ""}, "without a device that leads there"),
        ({"remote": "lab2"}, "is no address"),
        ({"remote": "192.168.1.7"}, "outside of 198.18.0.0/16"),
        ({"remote": "198.18.0.2"}, "outside of"),
        ({"remote": "2001:2:0:18::1"}, "outside of"),
        ({"remote": "ssh:-oProxyCommand=x"}, "no host for ssh"),
        ({"remote": "ssh:a b"}, "no host for ssh"),
        ({"remote": "ssh:root@lab=192.0.2.1"}, "outside of"),
        ({"uplink": "../x"}, "cannot be a device's name"),
        ({"uplink": "v0"}, "nsprof's own devices are called so"),
    ],
)
def test_what_cannot_be_is_refused_in_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(NsprofError, match=words):
        _far(_plan(), **changes)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"scenarios": ("vxlan",)}, "the tunnel's other end"),
        ({"scenarios": ("veth-bridge-route",)}, "a route back"),
        ({"wire_rate": "1gbit"}, "a rate of its own"),
        ({"host_netns": "init"}, "moved into a host namespace"),
        ({"containers": 101}, "at most 100"),
        ({"reverse": True}, "its client would run at the remote end"),
    ],
)
def test_what_needs_the_remote_end_is_refused(plan: dict[str, object], words: str) -> None:
    with pytest.raises(NsprofError, match=words):
        _far(_plan(**plan))


def test_ssh_names_a_host_and_may_name_the_address() -> None:
    for remote, address in (("ssh:lab@lab2.example", "198.18.0.1"), ("ssh:lab2=198.18.0.9", "198.18.0.9")):
        plan, _ = _far(_plan(), remote=remote)
        assert far.ssh_host(plan.cases[0].spec) in ("lab@lab2.example", "lab2")
        from nsprof.topology.plan import far_address

        assert far_address(plan.cases[0].spec) == address


def test_streams_to_the_container_are_asked_for_from_there_and_the_rest_is_said() -> None:
    plan, left = _far(experiment.load(str(REPO / "examples/vrf-2015.toml")), uplink="", remote="vm")
    commands = {c.part: c.command[2] for c in plan.cases}
    assert commands == {"TCP_STREAM TX": "TCP_STREAM", "TCP_STREAM RX": "TCP_MAERTS", "TCP_RR TX": "TCP_RR"}
    assert not any(c.reverse for c in plan.cases)
    assert [line.partition(" is left out")[0] for line in left] == ["TCP_RR RX/veth-route", "TCP_RR RX/vrf"]


def test_a_file_can_name_the_uplink(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        '[topology]\nuplink = "nic0"\nremote = "198.18.0.1"\ntake-uplink = true\n'
        '[scenarios]\nshapes = ["host"]\n[[workload]]\ncommand = ["netperf"]\n'
    )
    spec = experiment.load(str(file)).cases[0].spec
    assert (spec.uplink, spec.remote, spec.take_uplink) == ("nic0", "198.18.0.1", True)
    file.write_text(file.read_text().replace("198.18.0.1", "10.0.0.1"))
    with pytest.raises(NsprofError, match=r"x.toml:\d+: .*outside of"):
        experiment.load(str(file))


def test_a_plan_says_its_remote_end_only_where_there_is_one() -> None:
    assert "uplink" not in _plan().describe()["cases"][0]
    described = _far(_plan())[0].describe()["cases"][0]
    assert (described["uplink"], described["remote"]) == ("nic0", "198.18.0.1")
    assert far.notes(_plan()) == []
    assert "another machine" in far.notes(_far(_plan())[0])[0]


def test_every_example_is_listed_with_its_command() -> None:
    text = (REPO / "examples/README.md").read_text()
    for path in (REPO / "examples").iterdir():
        if path.name != "README.md" and not path.name.startswith("."):
            assert f"`{path.name}" in text, path.name

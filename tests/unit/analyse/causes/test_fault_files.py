"""Fault files: what a stranger writes is understood, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof.errors import UsageError
from tests.causes_bed import Fault, nobody, nothing
from tests.causes_files import faults_of


def read(tmp_path: Path, text: str) -> tuple[Fault, ...]:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    return faults_of(path)


def test_a_fault_is_a_scenario_a_workload_and_what_is_done_to_one_side(tmp_path: Path) -> None:
    (fault,) = read(
        tmp_path,
        """
        [[fault]]
        name = "small pipe"
        expect = ["mtu-small"]
        scenario = { shape = "veth-bridge", mtu = 1500, offloads = { tso = false } }
        workload = ["netperf", "-t", "TCP_STREAM"]
        clean_scenario = "veth-bridge"
        setup = [
          { netns = "host", run = ["ip", "link", "set", "{wire}", "mtu", "1400"] },
          { run = ["tcpdump", "-i", "{dev}"], background = true },
        ]
        """,
    )
    assert (fault.name, fault.expect, fault.command[2]) == ("small pipe", ("mtu-small",), "TCP_STREAM")
    assert (fault.spec.shape, fault.spec.mtu, fault.spec.offloads) == ("veth-bridge", 1500, {"tso": False})
    assert fault.clean_spec is not None
    assert fault.clean_spec.shape == "veth-bridge"
    assert fault.apply is not nothing
    assert fault.prepare is nothing
    assert fault.beside is not nobody
    assert fault.twin.beside is nobody


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no [[fault]]"),
        ("[[fault", "faults.toml"),
        ('[[fault]]\nname = "a"', "no expected cause"),
        ('[[fault]]\nname = "a"\nexpect = ["x"]\nworkloud = ["y"]', "no key 'workloud'"),
        ('[[fault]]\nexpect = "x"', "expect must be a list"),
        ('[[fault]]\nexpect = ["x"]\nsetup = [{ netns = "host" }]', "step"),
        ('[[fault]]\nexpect = ["x"]\nsetup = [{ run = "ip link" }]', "run must be a list"),
        ('[[fault]]\nexpect = ["x"]\nside = "left"', "side 'left'"),
        ('[[fault]]\nexpect = ["x"]\nscenario = { colour = "red" }', "scenario"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert words in refused.value.message

"""The guest's scenarios are those of `nsprof topo`: both are built on this kernel and compared, device by device."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsprof.model.scenario import TopologySpec
from nsprof.simulate.plans import plan_for
from nsprof.vm.guest_minimal import GuestJob, _scripts

pytestmark = pytest.mark.root
_SYSCTLS = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
_OF_DEVICE = ("ipv4/conf/{}/proxy_arp", "ipv4/neigh/{}/proxy_delay", "ipv6/conf/{}/proxy_ndp")

Enter = Callable[[str], list[str]]


def _said(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout


def _facts(enter: list[str], family: int) -> dict[str, Any]:
    """What makes a path of packets: links and their kinds, masters and MTUs, addresses, routes, settings."""
    links = json.loads(_said([*enter, "ip", "-j", "-d", "link"]))
    names = {link["ifindex"]: link["ifname"] for link in links}
    facts: dict[str, Any] = {}
    for link in links:
        if link["ifname"] == "lo":
            continue
        kind = link.get("linkinfo", {}).get("info_kind")
        facts[link["ifname"]] = (kind, link["mtu"], link.get("master"), link["address"], "UP" in link["flags"])
        for setting in _OF_DEVICE:
            path = f"/proc/sys/net/{setting.format(link['ifname'])}"
            facts[setting, link["ifname"]] = _said(
                [*enter, "sh", "-c", f"cat {path} 2>/dev/null || echo none"]
            ).strip()
    flag = f"-{family}"
    for each in json.loads(_said([*enter, "ip", flag, "-j", "addr"])):
        for address in each.get("addr_info", []):
            if address.get("scope") != "link" and each["ifname"] != "lo":
                facts["address", each["ifname"], address["local"]] = address["prefixlen"]
    for route in json.loads(_said([*enter, "ip", flag, "-j", "route", "show", "table", "main"]) or "[]"):
        if not str(route["dst"]).startswith("fe80"):
            facts["route", route["dst"]] = (route.get("gateway"), route.get("dev"), route.get("type"))
    for setting in _SYSCTLS:
        facts[setting] = _said([*enter, "sh", "-c", f"cat /proc/sys/net/{setting}"]).strip()
    assert names
    return facts


def _built_by_topology(spec: TopologySpec) -> dict[str, dict[str, Any]]:
    from nsprof import topology

    with topology.build(spec) as topo:
        places = {"host": topo.host, "remote": topo.server}
        places |= {f"c{n}": each for n, each in enumerate(topo.clients) if spec.shape != "host"}
        return {name: _facts(["nsenter", f"--net={place.netns_path}"], spec.family) for name, place in places.items()}


def _built_by_plan(spec: TopologySpec, place: Path) -> dict[str, dict[str, Any]]:
    """The guest's own scripts, run in a mount namespace with a /run/netns of its own."""
    plan = plan_for(spec)
    for name, text in _scripts(GuestJob(plan)).items():
        (place / name).write_text(text.replace("/job/", f"{place}/"))
    start = (place / "start").read_text()
    lines = [line for line in start.splitlines() if "nsenter" in line or "/netns ||" in line]
    script = ["fail() { echo failed $*; exit 1; }", "mkdir -p /run/netns", "mount -t tmpfs own /run/netns", *lines]
    script.append("echo ready; read end")
    made = subprocess.Popen(
        [
            "unshare",
            "-m",
            "--propagation",
            "private",
            "sh",
            "-c",
            "\n".join(script).replace(" -n/run", " --net=/run"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert made.stdin
    assert made.stdout
    try:
        assert made.stdout.readline() == "ready\n"
        inside = ["nsenter", f"--mount=/proc/{made.pid}/ns/mnt"]
        return {name: _facts([*inside, "nsenter", f"--net=/run/netns/{name}"], spec.family) for name in plan.netns}
    finally:
        made.stdin.close()
        made.wait(timeout=20)
        made.stdout.close()


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(
    "shape", ["host", "device", "veth-route", "veth-bridge", "veth-bridge-route", "macvlan", "vxlan"]
)
def test_plan_and_topology_build_the_same(shape: str, family: int, tmp_path: Path) -> None:
    spec = TopologySpec(shape, containers=1 if shape in ("host", "device") else 3, family=family)
    wanted, got = _built_by_topology(spec), _built_by_plan(spec, tmp_path)
    assert set(got) == set(wanted)
    for name in wanted:
        assert got[name] == wanted[name], name

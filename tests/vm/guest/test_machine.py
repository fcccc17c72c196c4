"""The guest is what docs/vm.md promises: this machine's files, another kernel, everything mounted."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest


def _mounts() -> dict[str, str]:
    return {line.split()[1]: line.split()[2] for line in Path("/proc/mounts").read_text().splitlines()}


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/", "overlay"),
        ("/proc", "proc"),
        ("/sys", "sysfs"),
        ("/dev", "devtmpfs"),
        ("/run", "tmpfs"),
        ("/sys/kernel/tracing", "tracefs"),
        ("/sys/kernel/security", "securityfs"),
        ("/sys/fs/bpf", "bpf"),
        ("/sys/fs/cgroup", "cgroup2"),
    ],
)
def test_mounts(place: str, kind: str) -> None:
    assert _mounts().get(place) == kind


def test_is_root_on_a_named_host_with_lo_up() -> None:
    assert os.geteuid() == 0
    assert os.uname().nodename == "nsprof-guest"
    assert "LOOPBACK,UP" in subprocess.run(["ip", "link", "show", "lo"], capture_output=True, text=True).stdout


def test_symbols_have_addresses() -> None:
    found = re.search(r"^([0-9a-f]+) T netif_receive_skb$", Path("/proc/kallsyms").read_text(), re.M)
    assert found is not None
    assert int(found[1], 16) > 0


def test_root_file_system_takes_writes_that_stay_in_the_guest() -> None:
    place = Path(__file__).with_name("written-in-the-guest")
    place.write_text("here")
    assert place.read_text() == "here"


def test_only_lo_so_nothing_leaves() -> None:
    names = {each.name for each in Path("/sys/class/net").iterdir()}
    assert not [name for name in names if Path(f"/sys/class/net/{name}/device").exists()]


@pytest.mark.parametrize(
    "name",
    [
        *("veth", "bridge", "vrf", "macvlan", "ipvlan", "dummy", "vxlan"),
        *("pktgen", "ifb", "geneve", "tun", "br_netfilter", "nf_tables"),
    ],
)
def test_module_loads(name: str) -> None:
    done = subprocess.run(["modprobe", name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_netkit_is_built_in_from_6_7_on(release: str) -> None:
    since = tuple(int(part) for part in release.split(".")[:2]) >= (6, 7)
    assert (" netkit_xmit" in Path("/proc/kallsyms").read_text()) is since


def test_kprobes_fentry_and_btf_are_there() -> None:
    assert Path("/sys/kernel/btf/vmlinux").stat().st_size > 1 << 20
    functions = Path("/sys/kernel/tracing/available_filter_functions").read_text()
    assert "\ndev_hard_start_xmit\n" in functions
    assert Path("/sys/kernel/tracing/kprobe_events").exists()

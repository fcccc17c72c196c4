"""Topologies on this kernel: real packets through every shape, nothing of the user's touched, nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsprof import netns
from nsprof.errors import TopologyError
from nsprof.model.scenario import Place, TopologySpec
from nsprof.topology import SHAPES, Topology, build, clean, down, listing, raise_up
from nsprof.topology.namespaces import RUN
from tests.support import need

pytestmark = pytest.mark.root
PRIME = 23
#: Part of every run id here, so that two test runs at once do not meet.
MARK = secrets.token_hex(2)
CLI = f"cm{MARK}"
INSIDE = f"in{MARK}"
STAYS = f"st{MARK}"
NONFT = f"nn{MARK}"
RAISES = f"ra{MARK}"
BROKEN = f"br{MARK}"
DEAD = f"de{MARK}"
DEADINIT = f"di{MARK}"
ALIVE = f"al{MARK}"
SERVED = f"se{MARK}"
SERVEDI = f"si{MARK}"
WEAK = f"we{MARK}"
UNSEEN = f"un{MARK}"
ATHOME = f"ah{MARK}"
CLASH = f"cl{MARK}"
TWOB = f"tb{MARK}"
TWOA = f"ta{MARK}"
#: Shapes whose kernel parts may be absent; what is absent is found by trying.
OPTIONAL = ("ipvlan", "vrf", "vxlan", "netkit", "macvlan", "veth-nat")


@contextlib.contextmanager
def standing(spec: TopologySpec, run_id: str | None = None) -> Iterator[Topology]:
    """build(), or a skip in words where this kernel lacks the shape."""
    with contextlib.ExitStack() as stack:
        try:
            topology = stack.enter_context(build(spec, run_id))
        except TopologyError as error:
            if spec.shape in OPTIONAL and "has no" in error.message:
                pytest.skip(error.message)
            raise
        yield topology


def leftovers(run_id: str) -> list[str]:
    """Whatever carries the run id: state files, directories, mounts, links of ip netns, devices."""
    found = [str(p) for p in RUN.glob(f"*{run_id}*")] if RUN.is_dir() else []
    found += [str(p) for p in Path("/run/netns").glob(f"nsprof-{run_id}-*")]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"/nsprof/{run_id}" in line]
    found += [line for line in Path("/proc/thread-self/net/dev").read_text().splitlines() if run_id in line]
    return found


def counters(place: Place, device: str) -> tuple[int, int]:
    """(received, sent) packets, from the kernel's own text."""
    with netns.entered(place.netns_path):
        text = Path("/proc/thread-self/net/dev").read_text()
    fields = next(line for line in text.splitlines() if line.strip().startswith(f"{device}:")).split(":")[1].split()
    return int(fields[1]), int(fields[9])


def udp(place: Place, address: str | None = None) -> socket.socket:
    """A datagram socket in a place, bound to the address if one is given."""
    family = socket.AF_INET6 if ":" in (address or place.address) else socket.AF_INET
    with netns.entered(place.netns_path):
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.settimeout(5)
        if address is not None:
            made.bind((address, 0))
    return made


def ping(topology: Topology, place: Place, count: int = 2) -> None:
    argv = ["ping", "-c", str(count), "-i", "0.05", "-W", "5", topology.server_address]
    with netns.spawn(argv, netns=place.netns_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0, out.decode()


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_carries_pings_and_counts_datagrams_exactly(shape: str, family: int) -> None:
    with standing(TopologySpec(shape, family=family)) as topo:
        if shutil.which("ping"):
            ping(topo, topo.client)
        place, device = topo.reference
        with udp(topo.server, topo.server_address) as server, udp(topo.client) as client:
            before = counters(place, device)
            for number in range(PRIME):
                client.sendto(b"%d" % number, server.getsockname()[:2])
            got = [server.recv(100) for _ in range(PRIME)]
            after = counters(place, device)
        assert sorted(got) == sorted(b"%d" % n for n in range(PRIME))
        assert (after[0] - before[0], after[1] - before[1]) == (0, PRIME)
        run_id = topo.run_id
    assert leftovers(run_id) == []


@pytest.mark.parametrize("shape", ["veth-route", "veth-bridge", "veth-bridge-route", "veth-nat", "macvlan", "vxlan"])
def test_every_container_reaches_the_server_and_has_its_own_namespace(shape: str) -> None:
    with standing(TopologySpec(shape, containers=7)) as topo:
        assert len(topo.clients) == len({c.netns_path for c in topo.clients}) == 7
        assert len({c.address for c in topo.clients}) == 7
        with udp(topo.server, topo.server_address) as server:
            for client in topo.clients:
                with udp(client) as sender:
                    sender.sendto(client.name.encode(), server.getsockname())
                    data, peer = server.recvfrom(100)
                assert data == client.name.encode()
                # Source NAT is what veth-nat is about: there the server must see the host's address.
                assert peer[0] == (topo.host.address if shape == "veth-nat" else client.address)


def test_the_nat_is_tracked_and_is_not_told_to_the_remote_end() -> None:
    with standing(TopologySpec("veth-nat")) as topo, netns.entered(topo.server.netns_path):
        routes = Path("/proc/thread-self/net/route").read_text()
        assert "000013C6" not in routes, "198.19.0.0 is unknown to the remote end"


def test_veth_route_answers_arp_by_proxy_as_the_source_document_has_it() -> None:
    with standing(TopologySpec("veth-route")) as topo:
        with netns.entered(topo.host.netns_path):
            assert Path("/proc/sys/net/ipv4/conf/w0/proxy_arp").read_text() == "1\n"
            assert Path("/proc/sys/net/ipv4/conf/v0/proxy_arp").read_text() == "1\n"
            assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == "1\n"
            wire = Path("/proc/thread-self/net/arp").read_text()
        with netns.entered(topo.server.netns_path):
            arp = Path("/proc/thread-self/net/arp").read_text()
        line = next(line for line in arp.splitlines() if line.startswith(topo.client.address + " "))
        mac = line.split()[3]
        assert topo.client.address in wire
        assert mac not in wire, "the remote end holds the host's MAC address, not the container's"


def test_namespaces_and_devices_are_named_as_the_kernel_has_them() -> None:
    with standing(TopologySpec("veth-bridge", containers=2)) as topo:
        assert [(n.name, n.role) for n in topo.namespaces] == [
            ("host", "host"),
            ("remote", "remote"),
            ("c0", "container"),
            ("c1", "container"),
        ]
        places = [topo.host, topo.server, *topo.clients]
        for place, namespace in zip(places, topo.namespaces, strict=True):
            assert namespace.inode == netns.inode(place.netns_path)
            assert namespace.cookie == netns.cookie(place.netns_path)
        assert len({n.inode for n in topo.namespaces}) == 4
        seen = {(topo.namespaces[d.namespace - 1].name, d.name, d.kind) for d in topo.devices()}
        assert {("host", "w0", "veth"), ("host", "br0", "bridge"), ("host", "v1", "veth")} <= seen
        assert {("remote", "eth0", "veth"), ("c0", "eth0", "veth"), ("c1", "eth0", "veth")} <= seen
        about = json.loads(json.dumps(topo.describe()))
        assert about["reference"] == "w0 in host"
        assert about["chain"] == "client -> eth0 ~ v0 -> br0 -> w0 ~ eth0 -> server"


def test_the_wire_s_ends_have_different_numbers_so_that_its_link_is_told_at_once() -> None:
    """With one number for both ends the kernel takes its time, up to a second a topology (linkwatch)."""
    for _ in range(3):
        with build(TopologySpec("host", pin=False)) as topo:
            numbers = {d.ifindex for d in topo.devices() if d.name in ("w0", "eth0")}
            assert len(numbers) == 2


def test_the_device_shape_has_the_wire_in_the_container() -> None:
    with standing(TopologySpec("device")) as topo:
        place, device = topo.reference
        assert (place.name, device) == ("c0", "w0")
        with netns.entered(topo.host.netns_path):
            assert "w0" not in Path("/proc/thread-self/net/dev").read_text()


def test_ip_netns_shows_the_namespaces_by_run_id() -> None:
    with standing(TopologySpec("veth-bridge")) as topo:
        for name in ("host", "remote", "c0"):
            assert netns.inode(netns.resolve(f"nsprof-{topo.run_id}-{name}")) in {n.inode for n in topo.namespaces}


def test_two_topologies_at_once_do_not_meet() -> None:
    with standing(TopologySpec("veth-bridge"), TWOA) as one, standing(TopologySpec("veth-route"), TWOB) as two:
        place, device = two.reference
        before = counters(place, device)
        with udp(one.server, one.server_address) as server, udp(one.client) as client:
            for _ in range(PRIME):
                client.sendto(b"x", server.getsockname())
                server.recv(10)
        assert counters(place, device) == before
        with pytest.raises(TopologyError, match=f"{TWOA} is taken"), build(TopologySpec("host"), TWOA):
            pass
        with udp(one.server, one.server_address) as server, udp(one.client) as client:
            client.sendto(b"still there", server.getsockname())
            assert server.recv(100) == b"still there"
    assert leftovers(TWOA) == leftovers(TWOB) == []


def in_private_namespace(work: Callable[[], None]) -> None:
    """Run `work` in a fresh namespace that plays the initial one."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            import ctypes

            assert ctypes.CDLL(None).unshare(netns.CLONE_NEWNET) == 0
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread below
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def snapshot() -> dict[str, str]:
    """Devices, addresses, routes, rules, qdiscs and settings of the calling thread's namespace."""
    found = {}
    for words in ("link", "-4 addr", "-6 addr", "-4 route show table all", "-6 route show table all", "rule"):
        text = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=True).stdout
        found[words] = text
    for path in sorted(Path("/proc/sys/net").glob("ipv[46]/**/*")):
        if path.is_file() and path.name != "stable_secret":
            with contextlib.suppress(OSError):
                found[str(path)] = path.read_text()
    if shutil.which("nft"):
        found["nft"] = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    return found


@pytest.mark.parametrize("shape", ["veth-route", "veth-nat", "macvlan"])
@pytest.mark.parametrize("family", [4, 6])
def test_by_default_nothing_of_the_present_namespace_changes(shape: str, family: int) -> None:
    def work() -> None:
        before = snapshot()
        with standing(TopologySpec(shape, family=family, mtu=1400, wire_rate_bps=10**9)):
            assert snapshot() == before
        assert snapshot() == before

    in_private_namespace(work)


@pytest.mark.parametrize("shape", ["host", "device", "veth-route", "veth-bridge", "veth-nat", "macvlan", "vxlan"])
@pytest.mark.parametrize("family", [4, 6])
def test_with_the_initial_namespace_as_host_all_is_put_back(shape: str, family: int) -> None:
    def work() -> None:
        before = snapshot()
        with standing(TopologySpec(shape, family=family, host_netns="init", containers=1)) as topo:
            assert topo.host.role == "host"
            assert netns.inode(topo.host.netns_path) == netns.inode("/proc/thread-self/ns/net")
            during = snapshot()
            if shape != "device":
                assert f"w0-{topo.run_id}" in during["link"]
            if family == 4:
                assert during["/proc/sys/net/ipv4/ip_forward"] == before["/proc/sys/net/ipv4/ip_forward"]
            with udp(topo.server, topo.server_address) as server, udp(topo.client) as client:
                client.sendto(b"x", server.getsockname()[:2])
                assert server.recv(10) == b"x"
        assert snapshot() == before
        assert leftovers(topo.run_id) == []

    in_private_namespace(work)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("addr add 198.19.7.7/24 dev lo", "address 198.19.7.7/24 on device lo"),
        ("route add 198.18.5.0/24 dev lo", "route to 198.18.5.0/24"),
        ("route add 198.16.0.0/12 dev lo", "route to 198.16.0.0/12"),
    ],
)
def test_a_clash_in_the_initial_namespace_is_refused_and_nothing_is_made(words: str, named: str) -> None:
    def work() -> None:
        subprocess.run(["ip", *words.split()], check=True)
        before = snapshot()
        with (
            pytest.raises(TopologyError) as caught,
            build(TopologySpec("veth-route", host_netns="init"), CLASH),
        ):
            pass
        assert named in caught.value.message
        assert snapshot() == before
        assert leftovers(CLASH) == []

    in_private_namespace(work)


def test_traffic_for_the_test_does_not_leave_by_a_default_route() -> None:
    def work() -> None:
        subprocess.run(["ip", "route", "add", "default", "dev", "lo"], check=True)
        with standing(TopologySpec("veth-bridge-route", host_netns="init")) as topo:
            for place, address in ((topo.client, "192.0.2.1"), (topo.host, "198.19.200.200")):
                route = subprocess.run(
                    ["ip", "-n", f"nsprof-{topo.run_id}-{place.name}", "route", "get", address],
                    capture_output=True,
                    text=True,
                )
                assert route.returncode != 0 or "dev lo" not in route.stdout, route.stdout

    in_private_namespace(work)


_HOLD = """
import sys, time
from nsprof.model.scenario import TopologySpec
from nsprof.topology import build
with build(TopologySpec(sys.argv[1], host_netns=sys.argv[3], family=int(sys.argv[4])), sys.argv[2]):
    print("ready", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holder(shape: str, run_id: str, host: str = "own", family: int = 4) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds a topology."""
    argv = [sys.executable, "-c", _HOLD, shape, run_id, host, str(family)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_what_a_killed_nsprof_left_is_cleaned_and_a_running_one_is_spared() -> None:
    with holder("veth-bridge", ALIVE), holder("veth-route", DEAD) as victim:
        victim.kill()
        victim.wait()
        conditions = {r["run_id"]: r["condition"] for r in listing()}
        assert conditions[ALIVE] == "in use" and conditions[DEAD] == "leftover"
        assert leftovers(DEAD) != []
        removed = clean()
        assert DEAD in removed and ALIVE not in removed
        assert leftovers(DEAD) == []
        assert netns.inode(netns.resolve(f"nsprof-{ALIVE}-c0"))
        with pytest.raises(TopologyError, match="in use by nsprof with PID"):
            down(ALIVE)
    assert ALIVE in clean()


@pytest.mark.parametrize(("shape", "family"), [("veth-nat", 4), ("veth-route", 6)])
def test_what_a_killed_nsprof_left_in_the_initial_namespace_is_cleaned_from_anywhere(shape: str, family: int) -> None:
    def work() -> None:
        before = snapshot()
        with holder(shape, DEADINIT, "init", family) as victim:
            assert snapshot() != before
            victim.kill()
            victim.wait()
        # clean() runs in a thread that is in yet another namespace: it must find its way back by itself.
        done: list[dict[str, int]] = []

        def elsewhere() -> None:
            in_private_namespace(lambda: done.append(clean()))

        elsewhere()
        assert DEADINIT in done[0]
        assert snapshot() == before
        assert leftovers(DEADINIT) == []

    in_private_namespace(work)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_topology_interrupted_while_it_goes_up_leaves_nothing(number: signal.Signals) -> None:
    argv = [sys.executable, "-m", "nsprof", "topo", "up", "veth-bridge", "-n", "1000", "--run-id", BROKEN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not (RUN / BROKEN / "c60").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert b"Traceback" not in err
    assert leftovers(BROKEN) == []


def test_an_exception_in_the_block_takes_the_topology_down() -> None:
    with pytest.raises(ZeroDivisionError), build(TopologySpec("veth-bridge"), RAISES):
        raise ZeroDivisionError
    assert leftovers(RAISES) == []


def test_a_shape_that_cannot_be_completed_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsprof.topology import nft

    monkeypatch.setattr(nft.shutil, "which", lambda *_, **__: None)
    with (
        pytest.raises(TopologyError, match="needs the nft program") as caught,
        build(TopologySpec("veth-nat"), NONFT),
    ):
        pass
    assert "nftables" in caught.value.hint
    assert leftovers(NONFT) == []


def test_a_topology_stands_until_it_is_taken_down() -> None:
    topo = raise_up(TopologySpec("veth-route"), STAYS)
    try:
        assert {r["run_id"]: r["condition"] for r in listing()}[STAYS] == "up"
        assert STAYS not in clean()
        ping(topo, topo.client, 1)
    finally:
        down(STAYS)
    assert leftovers(STAYS) == []
    with pytest.raises(TopologyError, match=f"no topology '{STAYS}' is up"):
        down(STAYS)


def test_the_command_line_builds_lists_and_removes() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nsprof", "topo", *words], capture_output=True, text=True, timeout=60
        )

    made = run("up", "veth-bridge", "-n", "2", "-6", "--run-id", CLI, "--json")
    try:
        assert made.returncode == 0, made.stderr
        about = json.loads(made.stdout)
        assert about["places"]["c1"]["address"].startswith("2001:2:")
        rows = json.loads(run("list", "--json").stdout)["topologies"]
        assert [(r["shape"], r["condition"]) for r in rows if r["run_id"] == CLI] == [("veth-bridge", "up")]
        assert f"{CLI} " in run("list").stdout
        shown = run("show", CLI)
        assert shown.stdout.startswith(f"{CLI}: veth-bridge, up, since 20"), shown.stderr
        assert f"nsprof-{CLI}-c0" in shown.stdout and "2001:2:" in shown.stdout
        assert run("show", "veth-bridge").stdout in shown.stdout  # and then its shape, as always
        assert json.loads(run("show", CLI, "--json").stdout)["run"]["run_id"] == CLI
    finally:
        gone = run("down", CLI)
    assert gone.returncode == 0, gone.stderr
    assert leftovers(CLI) == []
    unknown = run("show", CLI)
    assert unknown.returncode == 125 and f"no topology '{CLI}'" in unknown.stderr
    again = run("down", CLI)
    assert again.returncode == 125 and f"no topology '{CLI}' is up" in again.stderr
    assert "Traceback" not in again.stderr
    assert run("down").returncode == 2
    odd = run("up", "host", "--run-id", "<script>")
    assert odd.returncode == 125 and "cannot be used" in odd.stderr


def test_a_process_that_stays_inside_does_not_hold_up_the_removal() -> None:
    with (
        build(TopologySpec("veth-bridge"), INSIDE) as topo,
        netns.spawn(["sleep", "30"], netns=topo.client.netns_path) as sleeper,
    ):
        try:
            began = time.monotonic()
            os.kill(sleeper.pid, 0)
        finally:
            sleeper.kill()
    assert time.monotonic() - began < 10
    assert leftovers(INSIDE) == []


#: Ignores SIGTERM, as a stuck server does, and says when it is ready.
_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


def test_cleaning_ends_what_a_killed_nsprof_left_running_inside_and_says_how_many() -> None:
    with holder("veth-bridge", SERVED) as victim:
        places = [netns.resolve(f"nsprof-{SERVED}-{name}") for name in ("c0", "remote")]
        with (
            netns.spawn(["sleep", "60"], netns=places[0]) as mild,
            netns.spawn([sys.executable, "-c", _STUBBORN], netns=places[1], stdout=subprocess.PIPE) as stubborn,
            subprocess.Popen(["sleep", "60"]) as outside,
        ):
            try:
                assert stubborn.stdout is not None and stubborn.stdout.readline() == b"1\n"
                victim.kill()
                victim.wait()
                assert clean()[SERVED] == 2
                assert (mild.wait(5), stubborn.wait(5)) == (-signal.SIGTERM, -signal.SIGKILL)
                assert outside.poll() is None
            finally:
                for process in (mild, stubborn, outside):
                    process.kill()
    assert leftovers(SERVED) == []


def test_cleaning_spares_who_is_in_the_namespace_that_served_as_the_host() -> None:
    def work() -> None:
        with holder("host", SERVEDI, "init") as victim, subprocess.Popen(["sleep", "60"]) as outside:
            try:
                victim.kill()
                victim.wait()
                done: list[dict[str, int]] = []
                in_private_namespace(lambda: done.append(clean()))
                assert done[0][SERVEDI] == 0
                assert outside.poll() is None
            finally:
                outside.kill()

    in_private_namespace(work)


def _up(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    argv = [*words, sys.executable, "-m", "nsprof", "topo", "up", "host", "--run-id"]
    return subprocess.run(
        [*argv, UNSEEN if how else WEAK], stderr=subprocess.PIPE, text=True, timeout=60, check=False, **how
    )


@pytest.mark.parametrize(
    ("lacking", "tried"),
    [("sys_admin", "mounting"), ("net_admin", "setting device lo"), ("net_raw", "a raw socket to ask")],
)
def test_root_without_a_capability_is_told_which_and_leaves_nothing(lacking: str, tried: str) -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    ended = _up("setpriv", "--bounding-set", f"-{lacking}", "--inh-caps", f"-{lacking}")
    assert ended.returncode == 125
    assert tried in ended.stderr and f"CAP_{lacking.upper()} is missing" in ended.stderr
    assert "could not be removed" not in ended.stderr
    assert leftovers(WEAK) == []


def test_a_topology_whose_name_cannot_be_shown_is_taken_down_again() -> None:
    with Path("/dev/full").open("w") as full:
        ended = _up(stdout=full)
    assert ended.returncode == 125 and "standard output" in ended.stderr
    assert leftovers(UNSEEN) == []


#: Where /sys shows the namespace that is the host, as on a machine that nothing was unshared on.
_AT_HOME = """mount -t sysfs nsprof-test /sys && ip link set lo up || exit 77
"$0" -m nsprof topo up host --host-netns init --run-id "$1" || exit
cat /sys/class/net/w0-*/queues/rx-0/rps_cpus
"$0" -m nsprof topo down "$1" """


def test_receive_softirq_is_steered_where_sys_shows_the_host_namespace_already() -> None:
    need("unshare")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: nothing is steered")
    argv = ["unshare", "--net", "--mount", "sh", "-c", _AT_HOME, sys.executable, ATHOME]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode == 77:
        pytest.skip(f"no sysfs of its own: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.splitlines()[-1].replace(",", ""), 16) > 0
    assert leftovers(ATHOME) == []

"""A real device as uplink: a pair stands in for the network card, whose other end is a machine of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsprof import netns, store
from nsprof.model.scenario import TopologySpec
from nsprof.topology.namespaces import RUN
from tests.support import need

pytestmark = pytest.mark.root
MARK = secrets.token_hex(2)
HOME, FAR = f"nh{MARK}", f"nf{MARK}"
NIC = f"nic{MARK}"
NSPROF = (sys.executable, "-m", "nsprof")

#: Whatever belongs to a device and is lost when it changes namespaces.
SETUP = f"""
link set lo up
link set {NIC} mtu 1400
link set {NIC} alias lab
link set {NIC} up
addr add 192.0.2.5/24 brd + dev {NIC}
addr add 192.0.2.6/24 dev {NIC} label {NIC}:x
addr add 192.0.2.99/32 dev {NIC} valid_lft 50000 preferred_lft 40000
addr add 2001:db8::5/64 dev {NIC} nodad
route add 10.1.0.0/16 via 192.0.2.1 metric 5 mtu 1300
route add 10.2.0.0/16 via 192.0.2.77 dev {NIC} onlink table 100
route add 2001:db8:5::/48 via 2001:db8::1 dev {NIC}
neigh add 192.0.2.77 lladdr 02:00:00:00:00:77 dev {NIC}
neigh add proxy 192.0.2.88 dev {NIC}
"""


def _ip(*words: str, given: str = "") -> str:
    done = subprocess.run(["ip", *words], input=given, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _inside(name: str, *words: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    # Not `ip netns exec`: its mount namespace would take nsprof's mounts with it.
    argv = ["nsenter", f"--net=/run/netns/{name}", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def nic() -> Iterator[None]:
    """The card with everything that a card can have; the machine behind it has the usual address."""
    need("root")
    _ip("netns", "add", HOME)
    _ip("netns", "add", FAR)
    try:
        _ip("-n", HOME, "link", "add", NIC, "type", "veth", "peer", "name", "far0", "netns", FAR)
        far = (
            "link set lo up\nlink set far0 up\naddr add 198.18.0.1/16 dev far0\naddr add 2001:2:0:18::1/64 dev far0\n"
        )
        _ip("-n", FAR, "-batch", "-", given=far)
        with netns.entered(f"/run/netns/{HOME}"):
            # Without duplicate address detection addresses serve at once.
            for setting in ("ipv4/conf rp_filter 2", "ipv4/neigh locktime 7", "ipv6/conf accept_dad 0"):
                folder, key, value = setting.split()
                Path(f"/proc/sys/net/{folder}/{NIC}/{key}").write_text(value)
        _ip("-n", HOME, "-batch", "-", given=SETUP)
        yield
    finally:
        for name in (HOME, FAR):
            _ip("netns", "del", name)


def _state() -> str:
    """All that can be listed of the card; times that run and duplicate address detection aside."""
    commands = (
        ("-d", "link", "show", "dev", NIC),
        ("-o", "addr", "show", "dev", NIC),
        ("-4", "route", "show", "table", "all", "dev", NIC),
        ("-6", "route", "show", "table", "all", "dev", NIC),
        ("neigh", "show", "nud", "permanent", "dev", NIC),
        ("neigh", "show", "proxy"),
    )
    deadline = time.monotonic() + 10
    while " tentative" in _ip("-n", HOME, "addr", "show", "dev", NIC) and time.monotonic() < deadline:
        time.sleep(0.1)
    texts = []
    for words in commands:
        text = _ip("-n", HOME, *words)
        texts += [
            "/".join(words),
            *(" ".join(w for w in line.split() if not w.endswith("sec")) for line in text.splitlines()),
        ]
    with netns.entered(f"/run/netns/{HOME}"):
        for folder in ("ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"):
            for path in sorted(Path(f"/proc/sys/net/{folder}/{NIC}").iterdir()):
                with contextlib.suppress(OSError):
                    texts.append(f"{path} {path.read_text()}")
    return "\n".join(texts)


def _build(spec: TopologySpec, *, then: str = "") -> subprocess.Popen[str]:
    """A process in the card's namespace that builds a topology, says where it is, and waits (or does `then`)."""
    code = (
        "import signal, sys, time\n"
        "from nsprof.model.scenario import TopologySpec\n"
        "from nsprof.topology import build\n"
        f"with build({spec!r}) as topo:\n"
        "    print(topo.run_id, flush=True)\n"
        f"    {then or 'time.sleep(60)'}\n"
    )
    argv = ["nsenter", f"--net=/run/netns/{HOME}", sys.executable, "-c", code]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SPEC = TopologySpec("host", uplink=NIC, remote="198.18.0.1")


@pytest.mark.parametrize(
    ("shape", "family"),
    [("host", 4), ("device", 4), ("veth-route", 4), ("veth-bridge", 4), ("macvlan", 4), ("veth-route", 6)],
)
def test_the_card_carries_the_traffic_and_is_afterwards_what_it_was(nic: None, shape: str, family: int) -> None:
    before = _state()
    address = "198.18.0.1" if family == 4 else "2001:2:0:18::1"
    spec = TopologySpec(shape, uplink=NIC, remote=address, family=family, mtu=1300, offloads={"tso": False})
    say = "print(topo.reference[1], topo.far, topo.server_address, len(topo.namespaces), flush=True)"
    with _build(spec, then=say) as child:
        out, err = child.communicate(timeout=60)
    if "has no macvlan" in err:
        pytest.skip("this kernel has no macvlan")
    assert child.returncode == 0, err
    assert out.splitlines()[1] == f"{NIC} machine {address} {1 if shape == 'host' else 2}"
    assert _state() == before
    assert not (RUN / out.split()[0]).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_puts_the_card_back_and_a_killed_one_s_is_put_back_by_clean(
    nic: None, number: int
) -> None:
    before = _state()
    with _build(SPEC) as child:
        assert child.stdout is not None
        run = child.stdout.readline().strip()
        assert NIC not in _ip("-n", HOME, "-br", "link")
        child.send_signal(number)
        child.communicate(timeout=60)
    if number == signal.SIGKILL:
        busy = _inside(HOME, *NSPROF, "topo", "list")
        assert run in busy.stdout
        done = subprocess.run([*NSPROF, "topo", "clean"], capture_output=True, text=True, timeout=60)
        assert f"{run}: removed" in done.stderr
    assert _state() == before


def test_a_bench_through_the_card_counts_its_packets(nic: None, tmp_path: Path) -> None:
    need("bpf", "netperf")
    before = _state()
    words = (
        "bench",
        "-s",
        "host,veth-bridge",
        "-n",
        "1",
        "--top",
        "0",
        "--uplink",
        NIC,
        "-o",
        str(tmp_path / "u.nsprof"),
    )
    alone = _inside(HOME, *NSPROF, *words, "--remote", "198.18.0.1", "--", "netperf", "-t", "UDP_RR", "-l", "1")
    assert alone.returncode == 125
    assert "no netserver answers at 198.18.0.1 port 12865" in alone.stderr
    assert "at the other machine: netserver" in alone.stderr
    assert _state() == before
    with netns.spawn(["netserver", "-D", "-N"], netns=f"/run/netns/{FAR}", stdout=subprocess.DEVNULL) as server:
        try:
            done = _inside(
                HOME, *NSPROF, *words, "--remote", "198.18.0.1", "--", "netperf", "-t", "UDP_RR", "-l", "1"
            )
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    profile = store.load(tmp_path / "u.nsprof")
    for run in profile.runs:
        assert run.reference.startswith(f"{NIC} in host")
        # One skb each way a transaction, and a few of netperf's own connection.
        assert run.denominators["skb"] == pytest.approx(2 * run.denominators["transaction"], rel=0.05)
    assert any("another machine" in note for note in profile.meta["notes"])
    assert _state() == before


#: The link over which the machines are managed, as nobody's traffic is measured on it.
MANAGED_HOME, MANAGED_FAR = "198.19.255.1", "198.19.255.2"


def _stand_in(place: Path) -> None:
    """What ssh does with its words: joined by spaces, for a shell at the other machine."""
    (place / "ssh").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift; echo "$1" >> {place}/hosts; shift\n'
        f'exec nsenter --net=/run/netns/{FAR} sh -c "$*"\n'
    )
    (place / "ssh").chmod(0o755)


@contextlib.contextmanager
def _sshd(place: Path) -> Iterator[None]:
    """A real sshd in the other machine's namespace with keys of its own, and ssh told of them."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / name], check=True)
    (place / "allowed").write_bytes((place / "user.pub").read_bytes())
    (place / "known").write_text(f"{MANAGED_FAR} {(place / 'host.pub').read_text()}")
    (place / "sshd_config").write_text(
        f"ListenAddress {MANAGED_FAR}\nHostKey {place}/host\nAuthorizedKeysFile {place}/allowed\nStrictModes no\n"
        f"UsePAM no\nPermitRootLogin prohibit-password\nPidFile none\n"
    )
    (place / "ssh_config").write_text(
        f"IdentityFile {place}/user\nIdentitiesOnly yes\nUserKnownHostsFile {place}/known\nIdentityAgent none\n"
    )
    (place / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {place}/ssh_config "$@"\n')
    (place / "ssh").chmod(0o755)
    _ip("-n", HOME, "link", "add", "mgmt0", "type", "veth", "peer", "name", "mgmt0", "netns", FAR)
    for name, address in ((HOME, MANAGED_HOME), (FAR, MANAGED_FAR)):
        _ip("-n", name, "addr", "add", f"{address}/30", "dev", "mgmt0")
        _ip("-n", name, "link", "set", "mgmt0", "up")
    separated = Path("/run/sshd")  # sshd wants it for its unprivileged part
    ours = not separated.exists()
    separated.mkdir(mode=0o755, exist_ok=True)
    argv = ["nsenter", f"--net=/run/netns/{FAR}", "/usr/sbin/sshd", "-D", "-e", "-f", str(place / "sshd_config")]
    with (place / "said").open("wb") as said, subprocess.Popen(argv, stderr=said) as server:
        try:
            yield
        finally:
            server.terminate()
            server.wait()
            if ours:
                separated.rmdir()


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "sshd"])
def test_servers_are_started_over_ssh_and_end_with_it(real: bool, nic: None, tmp_path: Path) -> None:
    need("bpf", "iperf3", *(["sshd"] if real else []))
    tools = tmp_path / "bin"
    tools.mkdir()
    user = "root" if real else "lab"
    far = f"{user}@{MANAGED_FAR if real else 'far.example'}"
    argv = [*NSPROF, "bench", "-s", "host", "-n", "1", "--top", "0", "--uplink", NIC, "--remote"]
    argv += [f"ssh:{far}=198.18.0.1" if real else f"ssh:{far}"]
    argv += ["-o", str(tmp_path / "s.nsprof"), "--", "iperf3", "-t", "1"]
    with _sshd(tools) if real else contextlib.nullcontext():
        if not real:
            _stand_in(tools)
        done = _inside(HOME, "env", f"PATH={tools}:{os.environ['PATH']}", *argv)
        assert done.returncode == 0, done.stderr
        if not real:
            assert (tools / "hosts").read_text() == f"{far}\n"
        run = store.load(tmp_path / "s.nsprof").runs[0]
        assert {v.name: v.value for v in run.values}["throughput"] > 0
        deadline = time.monotonic() + 5
        while "iperf3" in _commands(FAR) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "iperf3" not in _commands(FAR), "a server outlived its connection"


def _commands(name: str) -> list[str]:
    found = []
    for pid in _ip("netns", "pids", name).split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def test_devices_that_must_not_be_taken_are_refused_and_left_alone(nic: None) -> None:
    def refused(**changes: str) -> str:
        with _build(TopologySpec("host", **{"uplink": NIC, "remote": "198.18.0.1", **changes})) as child:
            return child.communicate(timeout=30)[1].strip()

    assert "no such device" in refused(uplink="nosuch0")
    assert "leads nowhere" in refused(uplink="lo")
    _ip("-n", HOME, "route", "add", "default", "via", "192.0.2.1", "dev", NIC)
    before = _state()
    assert "carries this machine's default route" in refused()
    with _build(TopologySpec("host", uplink=NIC, remote="198.18.0.1", take_uplink=True), then="pass") as child:
        assert not child.communicate(timeout=30)[1]
    assert _state() == before
    assert "default via 192.0.2.1" in before
    _ip("-n", HOME, "route", "del", "default", "dev", NIC)
    _ip("-n", HOME, "link", "add", "bond7", "type", "bridge")
    _ip("-n", HOME, "link", "set", NIC, "master", "bond7")
    assert "is part of bond7" in refused()
    _ip("-n", HOME, "link", "set", NIC, "nomaster")


def test_a_qdisc_of_the_user_s_own_is_not_thrown_away(nic: None) -> None:
    subprocess.run(
        [
            "tc",
            "-n",
            HOME,
            "qdisc",
            "add",
            "dev",
            NIC,
            "root",
            "tbf",
            "rate",
            "1gbit",
            "burst",
            "128k",
            "limit",
            "1m",
        ],
        check=True,
        timeout=30,
    )
    with _build(SPEC) as child:
        assert "queueing discipline of its own (tbf)" in child.communicate(timeout=30)[1]

"""`nsprof record` and `nsprof bench` on real traffic, as a user types them."""

from __future__ import annotations

import json
import os
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
from nsprof.topology import Topology, build
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf]
NSPROF = [sys.executable, "-m", "nsprof"]

#: Sends a prime number of datagrams to an address, each answered by nobody.
SEND_23 = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
    "for i in range(23): s.sendto(b'x' * 100, (sys.argv[1], 9))\n"
)


def nsprof(*words: str, cwd: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NSPROF, *words], cwd=cwd, capture_output=True, text=True, timeout=timeout_s)


@pytest.fixture
def topo() -> Iterator[Topology]:
    with build(TopologySpec("veth-bridge")) as standing:
        yield standing


def test_the_commands_output_and_status_pass_through(tmp_path: Path) -> None:
    done = nsprof(
        "record", "-o", "p.nsprof", "--", "sh", "-c", "printf 'a\\nb'; printf oops >&2; exit 7", cwd=tmp_path
    )
    assert done.returncode == 7
    assert done.stdout == "a\nb"
    assert f"\n{done.stderr}".count("\noops") == 1  # untouched (before it may stand what a killed nsprof left)
    profile = store.load(tmp_path / "p.nsprof")
    assert profile.runs[0].status == 7
    assert (tmp_path / "p.nsprof").stat().st_mode & 0o777 == 0o600


def test_23_datagrams_are_23_in_the_counters(tmp_path: Path, topo: Topology) -> None:
    done = nsprof(
        "record",
        "--in",
        topo.client.netns_path,
        "--",
        sys.executable,
        "-c",
        SEND_23,
        topo.server_address,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    profile = store.load(tmp_path / "profile.nsprof")
    ours = [i + 1 for i, ns in enumerate(profile.namespaces) if ns.inode == netns.inode(topo.client.netns_path)]
    mine = {(c.device, c.name): c.delta for c in profile.counters if c.namespace in ours}
    assert mine["", "Udp.OutDatagrams"] == 23
    assert mine["eth0", "tx_packets"] == 23
    # Port unreachable messages may come back: the unit is rx + tx of the command's own eth0, nobody else's.
    assert profile.runs[0].denominators["skb"] == 23 + mine["eth0", "rx_packets"]


def test_an_earlier_profile_is_kept_beside(tmp_path: Path) -> None:
    for code in (1, 2):
        nsprof("record", "-q", "--", "sh", "-c", f"exit {code}", cwd=tmp_path)
    assert store.load(tmp_path / "profile.nsprof").runs[0].status == 2
    assert store.load(tmp_path / "profile.nsprof.old").runs[0].status == 1


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["record"], 2, "nothing to record"),
        (["record", "--", ""], 2, "empty word"),
        (["record", "--", "no-such-program-here"], 127, "command not found"),
        (["record", "--", "/etc/passwd"], 126, "cannot be executed"),
        (["record", "--in", "no-such-netns", "--", "true"], 125, "no network namespace 'no-such-netns'"),
        (["record", "--in", "/etc/passwd", "--", "true"], 125, "not a network namespace"),
        (["record", "--watch", "x", "--", "true"], 2, "exclude each other"),
        (["record", "-o", "/no/such/folder/p", "--", "true"], 125, "no directory"),
        (["record", "-o", "/", "--", "true"], 125, "is a directory"),
        (["record", "-e", "no-such-event", "--", "true"], 2, "no-such-event"),
        (["bench", "--scenario", "veth-brigde", "--", "netperf"], 125, "veth-bridge"),
        (["bench", "--scenario", "host,host", "--", "netperf"], 2, "named twice"),
        (["bench", "--offload", "tso", "--", "netperf"], 2, "NAME=on"),
        (["bench", "--wire-rate", "fast", "--", "netperf"], 2, "not a rate"),
        (["bench"], 127, "no command given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_words_are_one_clear_line_and_leave_the_earlier_profile(
    tmp_path: Path, words: list[str], status: int, says: str
) -> None:
    (tmp_path / "profile.nsprof").write_bytes(b"PK earlier")
    done = nsprof(*words, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "profile.nsprof").read_bytes() == b"PK earlier"
    assert [f.name for f in tmp_path.iterdir()] == ["profile.nsprof"]


def test_a_command_that_hangs_is_ended_and_what_was_seen_is_kept(tmp_path: Path) -> None:
    began = time.monotonic()
    done = nsprof("record", "--timeout", "1", "--", "sh", "-c", "sleep 60 & sleep 60", cwd=tmp_path)
    assert time.monotonic() - began < 20
    assert done.returncode != 0
    assert "still running after 1 s" in done.stderr
    assert store.load(tmp_path / "profile.nsprof").runs[0].duration_s >= 1


def test_ctrl_c_ends_the_command_and_keeps_the_profile(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*NSPROF, "record", "--", "sleep", "60"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _wait_for_child(child.pid, "sleep")
    os.killpg(child.pid, signal.SIGINT)  # the terminal sends it to the whole foreground group
    _, err = child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGINT, err
    assert store.load(tmp_path / "profile.nsprof").runs[0].status == 130


def test_sigterm_to_nsprof_reaches_the_command_and_keeps_the_profile(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*NSPROF, "record", "--", "sleep", "60"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    _wait_for_child(child.pid, "sleep")
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGTERM, err
    assert (tmp_path / "profile.nsprof").exists()


def _wait_for_child(pid: int, comm: str, seconds: float = 30) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == comm:
                return int(child)
        time.sleep(0.05)
    raise AssertionError(f"{comm} was not started")


def test_watching_needs_no_command(tmp_path: Path, topo: Topology) -> None:
    done = nsprof("record", "--watch", topo.client.netns_path, "--duration", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = store.load(tmp_path / "profile.nsprof").runs[0]
    assert 1.0 <= run.duration_s < 3.0
    assert run.scenario == "watch"


def test_a_namespace_that_vanishes_meanwhile_is_said_and_the_recording_goes_on(tmp_path: Path) -> None:
    topology = build(TopologySpec("veth-bridge"))
    standing = topology.__enter__()
    path = standing.client.netns_path
    child = subprocess.Popen(
        [*NSPROF, "record", "--watch", path, "--duration", "4"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    time.sleep(3.0)
    topology.__exit__(None, None, None)
    _, err = child.communicate(timeout=60)
    assert child.returncode in (0, 125), err
    assert "Traceback" not in err
    if child.returncode == 0:
        assert "vanished" in err
        assert (tmp_path / "profile.nsprof").exists()


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("netperf")
    folder = tmp_path_factory.mktemp("bench")
    words = [
        "bench",
        "-s",
        "host,veth-bridge",
        "-n",
        "2",
        "-F",
        "997",
        "-o",
        "b.nsprof",
        "--",
        "netperf",
        "-t",
        "UDP_RR",
    ]
    done = nsprof(*words, "-l", "2", cwd=folder, timeout_s=120)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    return folder


def test_a_bench_prints_the_table_of_cpu_and_throughput(benched: Path) -> None:
    text = (benched / "stdout").read_text()
    assert "host" in text
    assert "veth-bridge" in text
    assert "CPU" in text


def test_the_bridge_is_in_the_bridges_profile_and_not_in_the_hosts(benched: Path) -> None:
    profile = store.load(benched / "b.nsprof")
    names = {}
    for scenario in profile.scenarios:
        runs = profile.runs_of(scenario)
        assert len(runs) == 2
        own = [i for i in range(len(profile.samples)) if int(profile.samples.run[i]) in runs]
        mine = [i for i in own if int(profile.samples.cpu[i]) in profile.runs[runs[0]].dut_cpus]
        stacks = {int(profile.samples.stack[i]) for i in mine}
        names[scenario] = {profile.frames.name[f] for s in stacks for f in profile.stacks[s]}
    assert "br_handle_frame" in names["veth-bridge"]


def test_the_bridge_functions_are_among_the_top_deltas(benched: Path) -> None:
    done = nsprof(
        "diff", "b.nsprof", "--baseline", "host", "--scenario", "veth-bridge", "--json", cwd=benched, timeout_s=60
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    categories = {c["name"]: c for c in report["categories"]}
    assert categories["bridge"]["delta"] > 0


def test_transactions_of_the_tool_are_the_packets_of_the_counters(benched: Path) -> None:
    for run in store.load(benched / "b.nsprof").runs:
        assert run.reference.startswith("w0 in ")
        # A transaction is a request and an answer; netperf's set-up and end add a few.
        assert run.denominators["skb"] == pytest.approx(2 * run.denominators["transaction"], rel=0.01)


def test_after_a_bench_nothing_is_left(benched: Path) -> None:
    done = nsprof("topo", "list", "--json", cwd=benched)
    assert done.returncode == 0
    assert str(os.getpid()) not in done.stdout
    for proc in Path("/proc").iterdir():
        if proc.name.isdigit():
            try:
                words = (proc / "cmdline").read_bytes()
            except OSError:
                continue
            assert b"netserver" not in words or b"b.nsprof" not in words


def test_ctrl_c_in_a_bench_takes_everything_down_and_keeps_the_runs_made(tmp_path: Path) -> None:
    need("netperf")
    words = [
        "bench",
        "-s",
        "host,veth-bridge",
        "-n",
        "6",
        "-o",
        "b.nsprof",
        "--",
        "netperf",
        "-t",
        "UDP_RR",
        "-l",
        "2",
    ]
    child = subprocess.Popen(
        [*NSPROF, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stderr is not None
    seen: list[str] = []
    for line in child.stderr:
        seen.append(line)
        if "run 3 of" in line:
            break
    time.sleep(0.5)
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, (seen, err)
    assert "Traceback" not in err
    assert 2 <= len(store.load(tmp_path / "b.nsprof").runs) <= 3
    listed = json.loads(nsprof("topo", "list", "--json", cwd=tmp_path).stdout)
    assert not [each for each in listed["topologies"] if each["pid"] == child.pid]


WITHOUT_BCC = (
    "from nsprof.collect.bpf import bcc_door\nfrom nsprof.errors import PreflightError\nimport sys\n"
    "def load():\n    raise PreflightError('python3-bpfcc is not installed', 'apt install python3-bpfcc')\n"
    "bcc_door.load = load\nfrom nsprof.cli.main import run\nrun(sys.argv[1:])\n"
)


def test_without_bcc_perf_samples_and_the_profile_says_so(tmp_path: Path) -> None:
    need("perf")
    words = ["record", "-o", "p.nsprof", "--", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BCC, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NSPROF_CACHE": str(tmp_path / "cache")},  # programs compiled before need no BCC
    )
    assert done.returncode == 0, done.stderr
    assert "sampled by perf record" in done.stderr
    profile = store.load(tmp_path / "p.nsprof")
    assert any("python3-bpfcc is not installed" in note for note in profile.meta["notes"])
    assert len(profile.runs) == 1
    assert profile.runs[0].command[0] == "sh"
    assert profile.samples.weight.sum() > 0
    assert "sh" in {task.comm for task in profile.tasks}


def test_without_bcc_and_perf_both_ways_are_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BCC, "record", "--", "/bin/true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": str(tmp_path), "NSPROF_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 125
    assert "python3-bpfcc" in done.stderr
    assert "linux-perf" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_event_that_the_kernel_lacks_is_no_reason_to_sample_another_one(tmp_path: Path) -> None:
    done = nsprof("record", "-e", "cycles", "--", "true", cwd=tmp_path)
    if done.returncode == 0:
        assert store.load(tmp_path / "profile.nsprof").events[0].name == "cycles"
    else:
        assert done.returncode == 125
        assert "cycles" in done.stderr
        assert not (tmp_path / "profile.nsprof").exists()


def test_a_namespace_whose_name_is_a_number_goes_before_the_process_of_that_number() -> None:
    name = str(os.getpid())
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        assert netns.resolve(name) == f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    assert netns.resolve(name) == f"/proc/{name}/ns/net"


def test_names_that_are_no_utf8_are_chosen_by_their_bytes(tmp_path: Path) -> None:
    name = f"nsprof-{os.getpid()}\udcff"  # as sys.argv has the byte 0xff
    shown = name.replace("\udcff", "\\xff")
    program = tmp_path / "busy\udcff"
    shutil.copy(shutil.which("bash") or "bash", program)
    loop = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    subprocess.run(["ip", "netns", "add", name], check=True, timeout=10)
    try:
        done = nsprof("record", "-o", "p\udcff", "--in", name, "--", str(program), "-c", loop, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.rstrip().endswith(r"nsprof report $'p\xff', or nsprof flamegraph $'p\xff'")
        for word in (name, shown):
            watched = nsprof("record", "-o", "w", "--watch", word, "--duration", "0.2", cwd=tmp_path)
            assert watched.returncode == 0, watched.stderr
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True, timeout=10)
    whole = samples(nsprof("report", "p\udcff", "--json", cwd=tmp_path))
    for option, word in (("--netns", name), ("--netns", shown), ("--task", "busy\udcff"), ("--task", "busy\\xff")):
        found = samples(nsprof("report", "p\udcff", "--json", option, word, cwd=tmp_path))
        assert 0.5 * whole < found <= whole


def samples(done: subprocess.CompletedProcess[str]) -> int:
    """Samples of all functions in a report."""
    assert done.returncode == 0, done.stderr
    (scenario,) = json.loads(done.stdout)["scenarios"]
    return sum(row["samples"] for row in scenario["functions"])

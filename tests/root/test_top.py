"""`nsprof top` in a real terminal (tmux) and as batches, with traffic whose packets are counted."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsprof import netns, store
from tests.root.hop_bed import Bed, bed
from tests.support import need

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.timeout(170)]

RATE = 2000
#: Sends RATE datagrams a second until its standard input ends, some CPU of its own in between.
SENDER = f"""
import select, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 9))
due = time.monotonic()
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range({RATE // 20}):
        try:
            s.send(b"x" * 64)
        except OSError:
            pass
    due += 0.05
    time.sleep(max(0.0, due - time.monotonic()))
"""


@contextlib.contextmanager
def sending(made: Bed, name: str, address: str) -> Iterator[None]:
    """Traffic from a container while the block runs."""
    process = netns.spawn([sys.executable, "-c", SENDER, address], netns=made.path(name), stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=20)


@pytest.fixture(scope="module")
def pair() -> Iterator[Bed]:
    """Two namespaces `a` and `b` joined by a pair, with traffic from a to b."""
    need("root", "bpf")
    with bed() as made:
        made.prefix = f"top{os.getpid()}"
        made.add("a", "b")
        made.pair("a", "eth0", "b", "eth0")
        made.address("a", "eth0", "198.18.7.1/24")
        made.address("b", "eth0", "198.18.7.2/24")
        with sending(made, "a", "198.18.7.2"):
            yield made


def nsprof(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    argv = [sys.executable, "-m", "nsprof", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=cwd, stdin=subprocess.DEVNULL)


def test_batches_charge_softirq_and_count_skbs_to_the_device_served(pair: Bed) -> None:
    done = nsprof("top", "-b", "-n", "5", "--json", "-F", "997")
    assert done.returncode == 0, done.stderr
    intervals = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["interval"] for one in intervals] == [1, 2, 3, 4, 5]
    if not intervals[0]["hop_context"]:
        pytest.skip(f"no hop context on this kernel: {intervals[0]['notes']}")
    rates, softirq, seconds = [], 0.0, 0.0
    for one in intervals[1:]:
        assert abs(one["seconds"] - 1.0) < 0.5
        rows = {(row["namespace"], row["device"]): row for row in one["rows"]}
        received = rows[pair.full("b"), "eth0"]
        rates.append(received["rx_skb_per_s"])
        softirq += received["softirq_percent"] * one["seconds"] / 100
        seconds += one["seconds"]
        assert received["tx_skb_per_s"] < 50
        # What is charged is what was busy, as far as the machine's own count says.
        charged = sum(row["cpu_percent"] for row in one["rows"]) / 100 * one["seconds"]
        assert charged == pytest.approx(sum(one["busy_s"].values()), rel=0.15, abs=0.1)
        assert one["own_cpu_s"] > 0
    assert sum(rates) / len(rates) == pytest.approx(RATE, rel=0.1)
    assert softirq > 0, "no softirq CPU was charged to the receiving device"
    functions = {f["name"] for one in intervals for row in one["rows"] for f in row["functions"]}
    assert len(functions) > 5


def test_text_is_plain_filtered_and_limited(pair: Bed) -> None:
    done = nsprof("top", "-b", "-n", "2", "--by", "namespace", "--filter", pair.full("b"))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    blocks = done.stdout.split("\n\n")
    assert len(blocks) == 2
    rows = [line for line in blocks[1].splitlines() if line.startswith(pair.full("b"))]
    assert len(rows) == 1
    assert pair.full("a") not in done.stdout


def test_a_kernel_without_hop_probes_is_told_and_sampled_all_the_same(pair: Bed) -> None:
    done = nsprof("top", "-b", "-n", "1", "--no-hop", "--json")
    assert done.returncode == 0, done.stderr
    (one,) = map(json.loads, done.stdout.splitlines())
    assert one["hop_context"] is False
    nobody = [row for row in one["rows"] if not row["inode"]]
    assert all("softirq" in row["namespace"] for row in nobody)
    assert all(row["softirq_percent"] == 0 for row in one["rows"] if row["inode"])


def test_without_a_terminal_batch_mode_is_proposed() -> None:
    done = nsprof("top")
    assert done.returncode == 2
    assert "hint: nsprof top -b -n 3" in done.stderr


def test_a_reader_that_leaves_ends_it_quietly(pair: Bed) -> None:
    script = f"{sys.executable} -m nsprof top -b -q -d 0.3 | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("nsprof top ")
    assert done.stderr == ""


# ---- in a terminal ----


_TERMINALS = itertools.count()


class Terminal:
    """A tmux of its own with a shell in it."""

    def __init__(self, where: Path, columns: int = 110, lines: int = 32) -> None:
        # Another name each time: a server that is ending still answers under its own.
        self.name = f"nsproftop{os.getpid()}-{next(_TERMINALS)}"
        self.where = where
        size = ["-x", str(columns), "-y", str(lines)]
        shell = "PS1='ready> ' exec bash --norc --noprofile"
        self.tmux("new-session", "-d", *size, "-c", str(where), shell)

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self.name, "-f", "/dev/null", *words],
            check=True,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return done.stdout

    def send(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, *texts: str, absent: str = "", seconds: float = 60) -> str:
        """The screen once all texts are on it and `absent` is not."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen = self.screen()
            if all(text in seen for text in texts) and not (absent and absent in seen):
                return seen
            time.sleep(0.1)
        pytest.fail(f"{texts} (without {absent!r}) did not come:\n{self.screen()}")

    def pid(self, word: str = "nsprof") -> int:
        """The process that runs in the shell."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return next(int(c) for c in children if word.encode() in Path(f"/proc/{c}/cmdline").read_bytes())

    def alternate(self) -> bool:
        return self.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    def settings(self) -> str:
        """The terminal's settings as stty has them, asked from outside."""
        tty = self.tmux("display-message", "-p", "#{pane_tty}").strip()
        return subprocess.run(["stty", "-g", "-F", tty], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        self.tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    need("tmux")
    made = Terminal(tmp_path)
    try:
        made.wait("ready>")
        yield made
    finally:
        made.close()


def start(terminal: Terminal, *words: str) -> None:
    terminal.send("clear", "Enter")
    terminal.send(" ".join([sys.executable, "-m", "nsprof", "top", *words]), "Enter")
    terminal.wait("NAMESPACE", "q:quit", seconds=90)


def test_keys_select_filter_pause_sort_and_save(pair: Bed, terminal: Terminal, tmp_path: Path) -> None:
    start(terminal, "--keep", "5")
    assert terminal.alternate()
    terminal.wait(pair.full("b"), "functions of")
    terminal.send("/")
    terminal.wait("filter: _")
    terminal.send(pair.full("b"))
    terminal.send("Enter")
    terminal.wait(f"filter {pair.full('b')}", f"functions of {pair.full('b')}", absent=pair.full("a"))
    terminal.send("s")
    terminal.wait("sort softirq")
    terminal.send("g")
    terminal.wait("by namespace")
    terminal.send("p")
    frozen = terminal.wait("PAUSED")
    time.sleep(1.5)
    assert terminal.screen().splitlines()[:6] == frozen.splitlines()[:6]
    terminal.send("p")
    terminal.wait("q:quit", absent="PAUSED")
    terminal.send("?")
    terminal.wait("idle namespaces too")
    terminal.send("?")
    terminal.wait("q:quit")
    terminal.send("Escape")
    terminal.wait("q:quit", absent=f"filter {pair.full('b')}")
    terminal.send("g")
    terminal.wait("by device", pair.full("a"))
    terminal.send("w")
    terminal.wait("wrote top.nsprof", seconds=90)
    terminal.send("q")
    seen = terminal.wait("ready>")
    assert not terminal.alternate()
    assert "NAMESPACE" not in seen
    profile = store.load(tmp_path / "top.nsprof")
    (run,) = profile.runs
    assert 1 < run.duration_s < 12
    assert run.denominators["skb"] > RATE
    assert int(profile.samples.slice.min()) == 0
    assert {pair.full("a"), pair.full("b")} <= {n.name for n in profile.namespaces}
    moved = {(profile.namespace_label(c.namespace), c.name): c.delta for c in profile.counters if c.device == "eth0"}
    assert moved[pair.full("b"), "rx_packets"] == pytest.approx(RATE * run.duration_s, rel=0.15)
    assert nsprof("report", "top.nsprof", "--by", "hop", cwd=tmp_path).returncode == 0


def echoes(terminal: Terminal) -> bool:
    """Whether the shell's terminal shows what is typed, as before."""
    terminal.send('clear; stty -a | grep -qw echo && echo it is the sa""me', "Enter")
    return "it is the same" in terminal.wait("it is the same", seconds=20)


def test_small_terminals_ctrl_z_and_ctrl_c(pair: Bed, terminal: Terminal) -> None:
    before = terminal.settings()
    start(terminal, "-q")
    assert terminal.settings() != before
    for columns, lines in ((40, 10), (20, 4), (200, 50), (60, 6)):
        terminal.tmux("resize-window", "-x", str(columns), "-y", str(lines))
        seen = terminal.wait("too small" if columns < 24 else "NAMESPACE", seconds=20)
        assert "Traceback" not in seen
    terminal.tmux("resize-window", "-x", "110", "-y", "32")
    terminal.send("C-z")
    terminal.wait("Stopped", seconds=20)
    assert not terminal.alternate()
    terminal.send("fg", "Enter")
    terminal.wait("q:quit", "NAMESPACE", seconds=20)
    assert terminal.alternate()
    terminal.send("C-c")
    seen = terminal.wait("interrupted", "ready>", seconds=30)
    assert not terminal.alternate()
    assert "Traceback" not in seen
    assert echoes(terminal)


def test_a_kill_gives_the_terminal_back(pair: Bed, terminal: Terminal) -> None:
    start(terminal, "-q")
    os.kill(terminal.pid(), signal.SIGTERM)
    seen = terminal.wait("ended by SIGTERM", "ready>", seconds=30)
    assert not terminal.alternate()
    assert "Traceback" not in seen
    assert echoes(terminal)


def test_cpus_that_do_nothing_but_burn_make_a_hundred_percent_each() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    online = os.sysconf("SC_NPROCESSORS_ONLN")
    if len(cpus) != online or online > 16:
        pytest.skip(f"{len(cpus)} of {online} CPUs may be used here, or too many to burn")
    burn = "import os, sys, time\nend = time.monotonic() + 15\nos.sched_setaffinity(0, {int(sys.argv[1])})\n"
    burn += "while time.monotonic() < end: pass\n"
    burners = [subprocess.Popen([sys.executable, "-c", burn, str(cpu)]) for cpu in cpus]
    try:
        done = nsprof("top", "-b", "-q", "-n", "5", "--json", "-F", "997")
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert done.returncode == 0, done.stderr
    shares = []
    for one in map(json.loads, done.stdout.splitlines()):
        found = sum(row["cpu_percent"] for row in one["rows"])
        # Never more than there was time for: a tick a CPU at each end, and what is said to be uncertain.
        room_s = len(cpus) * (one["seconds"] + one["seconds_uncertain"] + 2 / 997)
        assert found / 100 * one["seconds"] <= room_s
        assert sum(one["busy_s"].values()) <= len(cpus) * one["seconds"] * 1.000001
        shares.append(found / len(cpus))
    assert statistics.median(shares) == pytest.approx(100, abs=5)

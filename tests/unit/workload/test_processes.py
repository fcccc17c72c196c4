"""Running commands: output untouched, statuses as env(1) gives them, nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsprof import workload
from nsprof.errors import CommandNotFound, WorkloadError
from nsprof.model.profile import Value
from nsprof.workload import process, ready

HERE = SimpleNamespace(netns_path=None, cpus=(), address="127.0.0.1")

#: A program named netperf, so that its output is read along: bytes of all kinds, no final newline.
FAKE = f"""#!{sys.executable}
import os, sys
os.write(1, bytes(range(256)) * 100)
os.write(2, b"\\xff to stderr\\n")
print("\\nTHROUGHPUT=5.0\\nTHROUGHPUT_UNITS=10^6bits/s\\nDIRECTION=Send", end="")
sys.exit(7)
"""


@pytest.fixture
def fake_netperf(tmp_path: Path) -> str:
    program = tmp_path / "netperf"
    program.write_text(FAKE)
    program.chmod(0o755)
    return str(program)


def plain(code: str, *argv: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    """Run `workload.run_plain` in a process of its own, whose standard streams are the test's to look at."""
    program = f"import sys; from nsprof import workload, errors\nargv = sys.argv[1:]\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program, *argv],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
    )


EXIT = "o = workload.run_plain(argv)\nsys.exit(o.status)"


def processes_named(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return [pid for pid in found if pid != os.getpid()]


def test_output_is_untouched_while_a_copy_is_read(fake_netperf: str) -> None:
    direct = subprocess.run([fake_netperf], capture_output=True)
    done = plain(
        "o = workload.run_plain(argv)\nassert o.value('throughput') == 5.0, o\nsys.exit(o.status)", fake_netperf
    )
    assert done.stdout == direct.stdout
    assert done.stderr == direct.stderr
    assert done.returncode == 7


def test_output_is_untouched_on_a_terminal_and_the_command_sees_one(tmp_path: Path) -> None:
    program = tmp_path / "netperf"
    program.write_text(
        f"#!{sys.executable}\nimport os\nprint(os.isatty(1), os.get_terminal_size(1).columns, 'a\\tb')\n"
    )
    program.chmod(0o755)
    reader, writer = os.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 91, 0, 0))
    try:
        done = plain(EXIT, str(program), stdout=writer)
        shown = os.read(reader, 1000)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0, done.stderr
    assert shown == b"True 91 a\tb\r\n"  # the terminal's own \r, once


@pytest.mark.parametrize("status", [0, 1, 3, 125])
def test_exit_status_passes_through(status: int) -> None:
    assert plain(EXIT, "sh", "-c", f"exit {status}").returncode == status


def test_death_by_signal_is_128_plus_its_number() -> None:
    assert plain(EXIT, "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_missing_command_is_127_and_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(CommandNotFound) as caught:
        workload.run_plain(["/nowhere/netperf"])
    assert caught.value.exit_code == 127
    assert "apt install netperf" in caught.value.hint
    with pytest.raises(CommandNotFound) as caught:
        workload.run_plain([])
    assert "no command" in caught.value.message
    file = tmp_path / "data"
    file.write_text("no program")
    with pytest.raises(CommandNotFound) as caught:
        workload.run_plain([str(file)])
    assert caught.value.exit_code == 126


def test_no_shell_touches_the_words(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    words = ["printf", "%s|", f"$(touch {mark})", "; touch x", "a b", "`id`", "<script>", "../"]
    assert plain(EXIT, *words).stdout.decode() == "".join(f"{w}|" for w in words[2:])
    assert not mark.exists()


def test_hanging_command_is_ended_with_its_children() -> None:
    began = time.monotonic()
    code = "o = workload.run_plain(argv, timeout_s=0.3)\nprint(o.timed_out, o.failed)\nsys.exit(o.status)"
    done = plain(code, "sh", "-c", "sleep 61.5 & sleep 61.5")
    assert time.monotonic() - began < 15
    assert done.returncode == 128 + signal.SIGTERM
    assert b"True sh: still running after 0.3 s" in done.stdout
    assert not processes_named("61.5")


def test_command_that_ignores_sigterm_is_killed() -> None:
    driver = workload.driver(("sh", "-c", "trap '' TERM; sleep 62.5; sleep 62.5"), timeout_s=0.3)
    outcome = driver.run(HERE, "")
    assert outcome.timed_out
    assert outcome.status == 128 + signal.SIGKILL
    assert not processes_named("62.5")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command_and_its_status_comes_back(number: int) -> None:
    program = f"import sys; from nsprof import workload\n{EXIT.replace('argv', 'sys.argv[1:]')}"
    script = f"trap 'exit 42' {number}; echo ready; while :; do sleep 0.05; done"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait(10) == 42


@pytest.mark.parametrize("key", [b"\x03", b"\x1c"])
def test_key_on_the_terminal_reaches_the_command_once_and_leaves_us_to_finish(key: bytes) -> None:
    number = {b"\x03": signal.SIGINT, b"\x1c": signal.SIGQUIT}[key]
    script = (
        f"n = []\nsignal.signal({int(number)}, lambda *_: n.append(1))\n"
        "print('ready', flush=True)\nwhile not n: time.sleep(0.01)\ntime.sleep(0.3)\nsys.exit(40 + len(n))"
    )
    argv = [sys.executable, "-c", f"import signal, sys, time\n{script}"]
    program = f"import sys; from nsprof import workload\no = workload.run_plain({argv!r})\nprint('saved', o.status)"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])  # noqa: S606
    try:
        shown = b""
        while b"ready" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, key)
        while not re.search(rb"saved \d+\r\n", shown):  # print writes its words one after the other
            shown += os.read(terminal, 1000)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert b"saved 41" in shown


def test_reader_that_goes_away_ends_the_command_not_us(fake_netperf: str) -> None:
    Path(fake_netperf).write_text(f"#!{sys.executable}\nimport os\nwhile True: os.write(1, b'x' * 4096)\n")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = plain(EXIT, fake_netperf, stdout=writer)
    finally:
        os.close(writer)
    assert done.returncode in (1, 128 + signal.SIGPIPE)  # python turns SIGPIPE into an error of its own
    assert b"process.py" not in done.stderr


def test_background_child_does_not_hold_up_a_captured_run() -> None:
    began = time.monotonic()
    outcome = workload.driver(("sh", "-c", "echo out; sleep 63.5 &")).run(HERE, "")
    assert outcome.stdout == b"out\n"
    assert time.monotonic() - began < 5
    assert not processes_named("63.5")


def test_failed_command_is_told_with_its_last_words() -> None:
    outcome = workload.driver(("sh", "-c", "echo first; echo 'no \x1b[31mroute' >&2; exit 3")).run(HERE, "")
    assert outcome.failed == "sh: exit status 3: no \\x1b[31mroute"


def test_commands_side_by_side_run_at_the_same_time() -> None:
    driver = workload.driver(("sh", "-c", "sleep 0.4; echo $$"))
    began = time.monotonic()
    outcomes = driver.run_many((HERE, HERE, HERE), ("", "", ""))
    assert time.monotonic() - began < 1.1
    assert len({o.stdout for o in outcomes}) == 3


def test_clients_together_add_up_what_adds_up() -> None:
    def client(rate: float, p99: float, slowest: float) -> workload.Outcome:
        values = (
            Value("throughput", rate, "Mbit/s"),
            Value("bytes_received", rate * 10, "B"),
            Value("latency_p99", p99, "us"),
            Value("latency_max", slowest, "us"),
            Value("cpu_local", 50.0, "% of the whole machine"),
        )
        return workload.Outcome(0, ("netperf",), b"", b"", 1.0, values)

    both = workload.combined([client(100, 7, 9), client(300, 5, 23)])
    assert {v.name: v.value for v in both} == {"throughput": 400, "bytes_received": 4000, "latency_max": 23}
    assert len(workload.combined([client(1, 2, 3)])) == 5
    assert workload.combined([]) == ()


def test_recognise() -> None:
    words = {"/usr/bin/netperf": "netperf", "iperf3": "iperf3", "./tbench": "tbench", "ping": "command"}
    assert {w: workload.recognise([w]) for w in words} == words
    assert workload.recognise(["pktgen_sample03.sh"]) == "pktgen"
    assert workload.recognise([]) == "command"


def test_asked_port_that_is_taken_is_refused_and_another_is_found_when_not_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkloadError, match=f"port {port} cannot be used"):
            ready.free_port(None, port, 0, program="netserver")
        assert ready.free_port(None, 0, port, program="netserver") not in (0, port)
    assert ready.free_port(None, port, 0, program="netserver") == port
    with pytest.raises(WorkloadError, match="not a port number"):
        ready.free_port(None, 99999, 0, program="netserver")


def test_readiness_is_the_processs_own_socket_not_anybodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        assert ready.wait_listening(os.getpid(), port, 1) == "listening"
        child = subprocess.Popen(["sleep", "5"])
        try:
            assert ready.wait_listening(child.pid, port, 0.1) == "silent"
            child.terminate()
            assert ready.wait_listening(child.pid, port, 5) == "ended"
        finally:
            child.kill()
            child.wait()


def test_server_that_dies_at_once_is_told_in_its_own_words(tmp_path: Path) -> None:
    class Broken(workload.Driver):
        server_program = "sh"
        default_port = 23999

        def server_argv(self, port: int, family: int) -> tuple[str, ...]:
            return ("sh", "-c", "echo cannot bind: nonsense >&2; exit 4")

    with (
        pytest.raises(WorkloadError, match="ended with status 4: cannot bind: nonsense"),
        Broken(("x",)).servers(HERE),
    ):
        pass


def test_stop_does_not_signal_a_reaped_number() -> None:
    child = process.start(["true"], netns=None, cpus=(), output=open(os.devnull, "wb"))  # noqa: SIM115, PTH123
    child.wait()
    process.stop(child)  # must not raise, nor signal anybody

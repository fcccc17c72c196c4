#!/usr/bin/env python3
"""What `nsprof top` itself costs with many namespaces: CPU of its process on a real screen, and how evenly it ticks.

    sudo scripts/bench_top.py --namespaces 1000 --busy 50 --seconds 20

Builds the topology veth-bridge with so many containers, lets one process send UDP from some of them, runs nsprof top
on a pseudo-terminal of 120 x 40, and reads its CPU time from /proc. The BPF part is what nsprof top says of itself:
hits at the cost that it has measured.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time

from nsprof import netns
from nsprof.model.scenario import TopologySpec
from nsprof.topology import build


def cpu_s(pid: int) -> float:
    """User and system seconds of a process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stream:  # noqa: PTH123
        words = stream.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def send(paths: list[str], address: str, rate: int, ended: threading.Event) -> None:
    """`rate` datagrams a second in all, in turn from each namespace."""
    sockets = []
    for path in paths:
        with netns.entered(path):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.connect((address, 9))
        sockets.append(one)
    while not ended.wait(0.05):
        for number in range(rate // 20):
            with contextlib.suppress(OSError):
                sockets[number % len(sockets)].send(b"x" * 64)
    for one in sockets:
        one.close()


def on_screen(words: list[str], seconds: float, settle_s: float) -> tuple[float, list[float], list[float]]:
    """Run `nsprof top` on a pseudo-terminal: (CPU share of one CPU after settling, gaps between its pictures, percent
    of one CPU that each picture says nsprof cost, BPF programs included)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "nsprof", "top", "-q", *words])  # noqa: S606
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        at = [time.monotonic()]
        first = before = 0.0
        said = b""
        while True:
            if select.select([fd], [], [], 0.1)[0]:
                said += os.read(fd, 1 << 16)
                now = time.monotonic()
                if now - at[-1] > 0.2:
                    at.append(now)
            now = time.monotonic()
            if not first and len(at) > 2 + settle_s:
                first, before, said = now, cpu_s(pid), b""
            if first and now - first >= seconds:
                share = (cpu_s(pid) - before) / (now - first)
                gaps = [b - a for a, b in itertools.pairwise(at) if a >= first]
                return share, gaps, [float(own) for own in re.findall(rb"own cost ([0-9.]+) %", said)]
    finally:
        os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(OSError):
            while os.read(fd, 1 << 16):
                pass
        os.waitpid(pid, 0)
        os.close(fd)


def main() -> None:
    """Print one line of figures for each set of options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--namespaces", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=50)
    parser.add_argument("--rate", type=int, default=5000, help="datagrams a second, all together")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--no-hop", action="store_true")
    options = parser.parse_args()
    extra = ["--no-hop"] if options.no_hop else []
    with build(TopologySpec("veth-bridge", containers=options.namespaces)) as topology:
        paths = [place.netns_path for place in topology.clients[: options.busy]]
        ended = threading.Event()
        sender = threading.Thread(target=send, args=(paths, topology.server_address, options.rate, ended))
        sender.start()
        try:
            for words in ([], ["--idle"], ["-F", "499"]):
                share, gaps, own = on_screen([*extra, *words], options.seconds, 5)
                late = max(gaps, default=0.0)
                shown = " ".join(["top", *extra, *words])
                print(
                    f"{options.namespaces} namespaces, {options.busy} of them sending, {shown}: "
                    f"process {100 * share:.2f} % of one CPU, with its BPF programs by its own account "
                    f"{statistics.fmean(own):.1f} %; a picture every {statistics.median(gaps):.2f} s, "
                    f"longest gap {late:.2f} s",
                    flush=True,
                )
            argv = [sys.executable, "-m", "nsprof", "top", "-q", "-b", "-n", "8", "--json", *extra]
            lines = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=180).stdout.splitlines()
            own = [json.loads(line)["own_cpu_s"] / json.loads(line)["seconds"] for line in lines[2:]]
            print(f"JSON of every row, with its BPF programs: {100 * statistics.median(own):.2f} % of one CPU")
        finally:
            ended.set()
            sender.join()


if __name__ == "__main__":
    main()

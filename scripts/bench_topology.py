#!/usr/bin/env python3
"""How fast do containers come up: nsprof's topologies against the same with a loop of `ip` commands.

Both build shape veth-route with IPv4: a namespace a container, a pair, addresses, both ends up, the routes, proxy
ARP. They take turns (the order alternates), and the ratio is taken within each round, so that a noisy machine
disturbs both sides alike. Run as root: scripts/bench_topology.py [-n CONTAINERS] [--rounds R]
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from nsprof.model.scenario import TopologySpec
from nsprof.topology import construction
from nsprof.topology.plan import Addresses


def ip(*words: str) -> None:
    """One `ip` command, as a script would run it (without a shell's own cost)."""
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


def by_ip(count: int) -> tuple[float, float]:
    """(seconds to build, seconds to remove) with one `ip` process a step."""
    mark, a = secrets.token_hex(2), Addresses(4)
    host, remote = f"bt{mark}h", f"bt{mark}r"
    names = [f"bt{mark}c{number}" for number in range(count)]
    began = time.monotonic()
    try:
        for name in (host, remote):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", host, "link", "add", "w0", "type", "veth", "peer", "name", "eth0", "netns", remote)
        ip("-n", remote, "addr", "add", f"{a.remote}/16", "dev", "eth0")
        ip("-n", remote, "link", "set", "eth0", "up")
        ip("-n", host, "addr", "add", f"{a.host}/16", "dev", "w0")
        ip("-n", host, "link", "set", "w0", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", host, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{a.container(number)}/16", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", host, "addr", "add", f"{a.pair(number)}/32", "dev", f"v{number}")
            ip("-n", host, "link", "set", f"v{number}", "up")
            ip("-n", host, "route", "add", a.container(number), "dev", f"v{number}")
        came = time.monotonic() - began
    finally:
        began = time.monotonic()
        for name in (*names, host, remote):
            if Path("/run/netns", name).exists():
                ip("netns", "del", name)
    return came, time.monotonic() - began


def by_nsprof(count: int) -> tuple[float, float]:
    """(seconds to build, seconds to remove) with nsprof; its wait for echoes of two containers is included."""
    began = time.monotonic()
    with construction.build(TopologySpec("veth-route", containers=count, pin=False)):
        came = time.monotonic() - began
        began = time.monotonic()
    return came, time.monotonic() - began


def settle(limit_s: float = 60.0) -> None:
    """Wait until the kernel no longer frees namespaces of the last turn: that goes on in the background, and takes
    the lock which the next turn needs."""
    until, last = time.monotonic() + limit_s, sys.maxsize
    while time.monotonic() < until:
        time.sleep(0.5)
        rows = Path("/proc/slabinfo").read_text().splitlines()
        now = sum(int(row.split()[1]) for row in rows if row.startswith("net_namespace "))
        if now >= last:
            return
        last = now


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} - {max(values):.3f})"


def main() -> int:
    """Print one line a round, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", "--containers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("bench_topology: needs root", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was made is removed
    by_nsprof(1)  # imports, modules
    rows: list[dict[str, tuple[float, float]]] = []
    for number in range(given.rounds):
        sides = [("ip", by_ip), ("nsprof", by_nsprof)]
        row = {}
        for name, build in sides if number % 2 == 0 else sides[::-1]:
            row[name] = build(given.containers)
            settle()
        rows.append(row)
        (ip_up, ip_down), (up, down) = row["ip"], row["nsprof"]
        print(
            f"round {number + 1}: ip up {ip_up:.2f} s down {ip_down:.2f} s;"
            f" nsprof up {up:.2f} s down {down:.3f} s; up {ip_up / up:.1f} x faster",
            flush=True,
        )
    for what, at in (("up", 0), ("down", 1)):
        ratios = [row["ip"][at] / row["nsprof"][at] for row in rows]
        mine = [row["nsprof"][at] / given.containers * 1e3 for row in rows]
        theirs = [row["ip"][at] / given.containers * 1e3 for row in rows]
        print(f"{what:<4} ms a container: ip {spread(theirs)}, nsprof {spread(mine)}; ratio {spread(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The split by namespace and device follows what packets cost, not how many there are.

Two containers send at the same rate through one router; the packets of one of them walk 500 rules there. Together,
the CPU charged to the devices where each one's packets came in must stand in the same ratio as when each is alone.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from scipy import stats

from nsprof import netns, store
from nsprof.model.profile import Profile
from tests.root.hop_bed import SINK, Bed, python

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow, pytest.mark.timeout(280)]

RULES = 500
RATE = 16_000  # datagrams a second, of each sender
SECONDS, HZ, ROUNDS = 3.0, 4999, 5
CONFIDENCE = 0.99
#: What else may differ between together and alone (caches, wake-ups), as a factor. The rules cost more by far.
ALLOWED = 1.15

# Bursts on a fixed schedule, so that rates are equal whatever each packet costs.
PACED = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9000))
rate, seconds, data, n = float(sys.argv[2]), float(sys.argv[3]), b"x" * 64, 0
print("ready", flush=True)
begun = time.monotonic()
while time.monotonic() < begun + seconds:
    due = int((time.monotonic() - begun) * rate)
    while n < due:
        try:
            s.send(data)
        except OSError: pass
        n += 1
    time.sleep(0.001)
print(n)
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    standing = Bed(f"sp{os.getpid()}")
    try:
        standing.add("h", "r", "c1", "c2")
        for name in ("h", "r", "c1", "c2"):
            standing.sysctl(name, "net/ipv6/conf/default/disable_ipv6", "1")
        standing.sysctl("h", "net/ipv4/ip_forward", "1")
        for number, name in enumerate(("r", "c1", "c2"), 1):
            standing.pair("h", f"v{name}", name, "eth0")
            standing.address("h", f"v{name}", f"198.18.2{number}.254/24")
            standing.address(name, "eth0", f"198.18.2{number}.1/24")
            standing.ip(name, "route", "add", "default", "via", f"198.18.2{number}.254")
        rules = "".join(f"ip saddr 203.0.{n // 250}.{n % 250 + 1} drop;" for n in range(RULES))
        text = (
            f"table ip t {{ chain slow {{ {rules} }};"
            ' chain f { type filter hook forward priority 0; iifname "vc1" jump slow; }; }'
        )
        nft = ["ip", "netns", "exec", standing.full("h"), "nft", "-f", "-"]
        subprocess.run(nft, input=text.encode(), check=True, timeout=20)
        yield standing
    finally:
        standing.close()


def recorded(made: Bed, senders: Sequence[str], at: Path) -> tuple[Profile, dict[str, int]]:
    """`nsprof record --hop` while `senders` send; the profile, and what each of them sent."""
    record = ["record", "-q", "--hop", "-F", str(HZ), "--duration", str(SECONDS), "-o", str(at)]
    watch = [word for name in ("h", "r", "c1", "c2") for word in ("--watch", made.full(name))]
    processes = [python(SINK, 60, at=made.path("r"))]
    try:
        assert processes[0].stdout is not None and processes[0].stdout.readline() == b"ready\n"
        for name in senders:
            # One CPU for both: whose packet it is changes from one to the next.
            processes.append(python(PACED, "198.18.21.1", RATE, 60, at=made.path(name), cpu=0))
        before, begun = sent(made), time.monotonic()
        subprocess.run([sys.executable, "-m", "nsprof", *record, *watch], check=True, timeout=60)
        after, ended = sent(made), time.monotonic()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    for name in senders:
        rate = (after[name] - before[name]) / (ended - begun)
        assert rate == pytest.approx(RATE, rel=0.05), f"{name} could not keep its pace"
    return store.load(at), {name: after[name] - before[name] for name in senders}


def sent(made: Bed) -> dict[str, int]:
    found = {}
    for name in ("c1", "c2"):
        with netns.entered(made.path(name)):
            text = Path("/proc/thread-self/net/dev").read_text()
        line = next(row for row in text.splitlines() if row.strip().startswith("eth0:"))
        found[name] = int(line.partition(":")[2].split()[9])
    return found


def charged(profile: Profile, made: Bed, device: str) -> int:
    """Samples charged to a device of the router."""
    s = profile.samples
    total = 0
    for number in range(len(s)):
        if s.hop_dev[number] and s.hop_ns[number]:
            where = profile.namespaces[int(s.hop_ns[number]) - 1].name, profile.device_label(int(s.hop_dev[number]))
            total += int(s.count[number]) * (where == (made.full("h"), device))
    return total


def half_width(values: list[float]) -> float:
    """Of the t interval of their mean."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, ROUNDS - 1) * statistics.stdev(values) / math.sqrt(ROUNDS))


def test_cpu_follows_cost_where_packets_are_equally_many(made: Bed, tmp_path: Path) -> None:
    together: list[float] = []
    alone: list[float] = []
    packets: list[float] = []
    for number in range(ROUNDS):
        both, counts = recorded(made, ("c1", "c2"), tmp_path / f"both{number}.nsprof")
        slow, _ = recorded(made, ("c1",), tmp_path / f"slow{number}.nsprof")
        fast, _ = recorded(made, ("c2",), tmp_path / f"fast{number}.nsprof")
        seen = charged(both, made, "vc1"), charged(both, made, "vc2"), charged(slow, made, "vc1")
        seen = *seen, charged(fast, made, "vc2")
        print(seen, counts)
        assert min(seen) >= 30, f"too few samples to compare: {seen}"
        assert charged(slow, made, "vc2") == charged(fast, made, "vc1") == 0
        together.append(math.log(seen[0] / seen[1]))
        alone.append(math.log(seen[2] / seen[3]))
        packets.append(counts["c1"] / counts["c2"])
    differences = [one - other for one, other in zip(together, alone, strict=True)]
    margin = half_width(differences)
    off = statistics.mean(differences)
    ratio, expected = math.exp(statistics.mean(together)), math.exp(statistics.mean(alone))
    print(
        f"c1 : c2 by packets {statistics.mean(packets):.3f}, by CPU together {ratio:.2f}, each alone {expected:.2f}; "
        f"off by a factor {math.exp(off):.3f}, {CONFIDENCE:.0%} interval x/ {math.exp(margin):.3f}"
    )
    assert statistics.mean(packets) == pytest.approx(1, abs=0.02)
    assert expected > 2, "the rules cost too little here to tell cost from number"
    assert abs(off) <= margin + math.log(ALLOWED)
    # Equal shares, as packet counters would have it, must be out of the question.
    assert statistics.mean(together) - half_width(together) > math.log(ALLOWED)

"""The kernel's packet generator from two containers at once, each sending to the other.

    command = ["pktgen", "-s", "1514", "-t", "{seconds}"]

pktgen is configured by files under /proc/net/pktgen, which are those of the namespace of whoever opens them; a
`start` holds its writer until all has been sent. So each direction is a process in its own namespace:
`pktgen_sender.py`, which needs nothing but Python.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nsprof import workload
from nsprof.errors import UsageError, WorkloadError
from nsprof.model.profile import Value
from nsprof.model.scenario import Place
from nsprof.netns import entered
from nsprof.observe import Traffic
from nsprof.workload import process

__all__ = ["drive", "is_pktgen"]

_SENDER = Path(__file__).with_name("pktgen_sender.py")
#: What a sender may take beyond its time until it has begun and ended (a guest on a busy machine is slow).
_SLACK_S = 120.0


def is_pktgen(command: Sequence[str]) -> bool:
    """Whether a command is this generator (the kernel's sample scripts are called pktgen_sample*)."""
    return bool(command) and command[0] == "pktgen"


def options_of(command: Sequence[str]) -> argparse.Namespace:
    """-s BYTES (with the 14 of Ethernet's head, without FCS), -t SECONDS, -c CLONES, -b BURST. Raises UsageError."""
    parser = argparse.ArgumentParser("pktgen", add_help=False, exit_on_error=False)
    parser.add_argument("-s", dest="size", type=int, default=60)
    parser.add_argument("-t", dest="seconds", type=float, default=10.0)
    parser.add_argument("-d", dest="delay_ns", type=int, default=0)
    try:
        found, rest = parser.parse_known_args(list(command[1:]))
    except argparse.ArgumentError as error:
        raise UsageError(f"pktgen: {error}", "pktgen -s 1514 -t 10") from error
    if rest:
        raise UsageError(f"pktgen: no option {rest[0]!r}", "pktgen -s BYTES -t SECONDS -d DELAY_NS")
    if not 42 <= found.size <= 65535 or not 0 < found.seconds <= 3600:
        raise UsageError("pktgen: -s must be 42 to 65535 bytes, -t up to 3600 s")
    return found


def _device(path: str, name: str = "eth0") -> tuple[str, int]:
    """(MAC, skbs received) of a container's device."""
    with entered(path):
        lines = Path("/proc/thread-self/net/dev").read_text(errors="surrogateescape").splitlines()
        import fcntl
        import socket
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            raw = fcntl.ioctl(probe, 0x8927, struct.pack("256s", name.encode()))  # SIOCGIFHWADDR
    received = next((int(x.partition(":")[2].split()[1]) for x in lines if x.strip().startswith(f"{name}:")), 0)
    return raw[18:24].hex(":"), received


def drive(command: Sequence[str], clients: Sequence[Place]) -> Traffic:
    """Both directions between the first two containers for as long as the command says. Raises WorkloadError."""
    options = options_of(command)
    if len(clients) < 2:
        raise WorkloadError("pktgen sends between two containers", "containers = [2]")
    pair = clients[:2]
    before = [_device(place.netns_path) for place in pair]
    cpus = sorted(os.sched_getaffinity(0))
    jobs = []
    for number, place in enumerate(pair):
        other = pair[1 - number]
        words = (
            *(sys.executable, "-I", "-S", str(_SENDER), "--cpu", str(cpus[number % len(cpus)])),
            *("--to", other.address, "--mac", before[1 - number][0], "--size", str(options.size)),
            *("--seconds", str(options.seconds), "--delay-ns", str(options.delay_ns)),
        )
        jobs.append(process.Job(words, place.netns_path, ()))
    ends = process.run_all(jobs, timeout_s=options.seconds + _SLACK_S)
    parsed = [workload.parse("pktgen", e.argv, e.stdout, e.stderr) for e in ends]
    wrong = next((errors[0] for _, _, errors in parsed if errors), "")
    for end in ends:
        if end.status and not wrong:
            lines = end.stderr.decode("utf-8", "replace").strip().splitlines()
            wrong = f"pktgen: {lines[-1] if lines else f'exit status {end.status}'}"
    after = [_device(place.netns_path) for place in pair]
    if wrong:
        return Traffic(command=tuple(command), status=1, failed=wrong)
    table = [{v.name: v.value for v in values} for values, _, _ in parsed]
    sent = [t.get("packets", 0.0) for t in table]
    received = [float(after[1 - n][1] - before[1 - n][1]) for n in (0, 1)]
    rates = [t.get("throughput", 0.0) for t in table]
    bits = 8.0 * options.size
    values = [
        Value("throughput", sum(rates) * bits / 1e6, "Mbit/s", "pktgen"),
        Value("packets_per_second", sum(rates), "packets/s", "pktgen"),
        Value("packets", sum(sent), "packets", "pktgen"),
        Value("lost", max(0.0, sum(sent) - sum(received)), "packets", "pktgen"),
    ]
    for way, rate, out, into in zip(("forth", "back"), rates, sent, received, strict=True):
        values.append(Value(f"rate_{way}", rate, "packets/s", "pktgen"))
        values.append(Value(f"rate_{way}_bits", rate * bits / 1e6, "Mbit/s", "pktgen"))
        values.append(Value(f"loss_{way}", max(0.0, out - into) / out if out else 0.0, "share", "pktgen"))
    return Traffic(command=tuple(command), values=tuple(values), denominators={"skb": sum(sent)} if sum(sent) else {})

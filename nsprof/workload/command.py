"""Any other command, and pktgen's scripts: run as they are, nothing is completed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from nsprof.model.profile import Value
from nsprof.workload.base import Driver, Parsed

__all__ = ["Command", "Pktgen", "denominators_pktgen", "parse_pktgen"]

# /proc/net/pktgen/<dev>: "Result: OK: 83003(c82999+d3) usec, 10000 (60byte,0frags)" and
# "  120477pps 57Mb/sec (57828960bps) errors: 0" (net/core/pktgen.c, show_results).
_RESULT = re.compile(r"Result: OK: (\d+)\(c\d+\+d\d+\) usec, (\d+) \((\d+)byte")
_RATE = re.compile(r"(\d+)pps \d+Mb/sec \(\d+bps\) errors: (\d+)")
_REFUSED = re.compile(r"Result: (?!OK)(.+)")


class Command(Driver):
    """A command that nsprof knows nothing about."""


class Pktgen(Driver):
    """The kernel's packet generator, driven by the user's script."""

    tool: ClassVar[str] = "pktgen"
    package_hint: ClassVar[str] = "pktgen: modprobe pktgen (its sample scripts come with the kernel's source)"

    def parse(self, argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
        return parse_pktgen(argv, stdout, stderr)


def parse_pktgen(argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
    """Packets sent and their rate, added up over the devices and queues of one output."""
    del argv
    text = (stdout + b"\n" + stderr).decode("utf-8", "replace")
    results = [(int(m[1]), int(m[2]), int(m[3])) for m in _RESULT.finditer(text)]
    rates = [(int(m[1]), int(m[2])) for m in _RATE.finditer(text)]
    errors = [f"pktgen: {m[1].strip()}" for m in _REFUSED.finditer(text) if m[1].strip() not in ("Idle", "")]
    if not results:
        return Parsed((), (), tuple(errors))
    failed = sum(r[1] for r in rates)
    values = (
        Value("throughput", float(sum(r[0] for r in rates)), "packets/s", "pktgen"),
        Value("packets", float(sum(r[1] for r in results)), "packets", "pktgen"),
        Value("bytes_sent", float(sum(r[1] * r[2] for r in results)), "B", "pktgen"),
        Value("elapsed", max(r[0] for r in results) / 1e6, "s", "pktgen"),
        Value("send_errors", float(failed), "packets", "pktgen"),
    )
    return Parsed(values, (f"pktgen: {failed} packets could not be sent",) if failed else (), tuple(errors))


def denominators_pktgen(argv: Sequence[str], values: Sequence[Value]) -> dict[str, float]:
    """pktgen sends one skb a packet."""
    del argv
    sent = sum(v.value for v in values if v.name == "packets")
    return {"skb": sent} if sent else {}

"""Traffic generators: run them, wait for their servers, turn what they say into typed values.

`recognise` tells a tool by its program's name; `driver` runs it between two places of a topology; `run_plain` runs
the user's own command as if nsprof were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from nsprof.errors import CommandNotFound
from nsprof.model.profile import Value
from nsprof.workload import command, iperf3, netperf, process, tbench
from nsprof.workload.base import Driver, Outcome, Parsed, Place, Server, explain_end
from nsprof.workload.combine import combined

__all__ = [
    "Driver",
    "Outcome",
    "Parsed",
    "Place",
    "Server",
    "combined",
    "denominators",
    "driver",
    "parse",
    "recognise",
    "run_plain",
]

_DRIVERS: Mapping[str, type[Driver]] = {
    "netperf": netperf.Netperf,
    "iperf3": iperf3.Iperf3,
    "tbench": tbench.Tbench,
    "pktgen": command.Pktgen,
    "command": command.Command,
}
_PARSERS: Mapping[str, Callable[[Sequence[str], bytes, bytes], Parsed]] = {
    "netperf": netperf.parse,
    "iperf3": iperf3.parse,
    "tbench": tbench.parse,
    "pktgen": command.parse_pktgen,
}
_DENOMINATORS: Mapping[str, Callable[[Sequence[str], Sequence[Value]], dict[str, float]]] = {
    "netperf": netperf.denominators,
    "iperf3": iperf3.denominators,
    "pktgen": command.denominators_pktgen,
}


def recognise(argv: Sequence[str]) -> str:
    """The tool that a command line starts, by its program's basename; "command" for any other."""
    name = PurePath(argv[0]).name if argv else ""
    if name in ("netperf", "iperf3", "tbench"):
        return name
    return "pktgen" if name.startswith("pktgen") else "command"


def driver(argv: Sequence[str], *, timeout_s: float = 0.0) -> Driver:
    """The driver for a command line; `timeout_s` bounds each run (0: no limit). Raises CommandNotFound if empty."""
    if not argv or not argv[0]:
        raise CommandNotFound("no command given", "write it after --, e.g. -- netperf -t TCP_RR -l 10")
    return _DRIVERS[recognise(argv)](tuple(argv), timeout_s)


def parse(
    tool: str, argv: Sequence[str], stdout: bytes, stderr: bytes
) -> tuple[tuple[Value, ...], tuple[str, ...], tuple[str, ...]]:
    """(values, warnings, errors) of a tool's output; nothing for "command". Never raises on bad output."""
    parsed = _PARSERS[tool](argv, stdout, stderr) if tool in _PARSERS else Parsed()
    return parsed.values, parsed.warnings, parsed.errors


def run_plain(
    argv: Sequence[str],
    *,
    netns: str | None = None,
    cpus: Sequence[int] = (),
    timeout_s: float = 0.0,
) -> Outcome:
    """Run the user's command with our stdin, stdout and stderr; a known tool's output is read along the way.

    Raises CommandNotFound (127, or 126 when it cannot be executed). A command that fails is no exception: its
    status is in the Outcome, to become nsprof's own.
    """
    tool = recognise(argv)
    package = _DRIVERS[tool].package_hint
    job = process.Job(tuple(argv), netns, tuple(cpus))
    end = process.pass_through(job, copy=tool in _PARSERS, timeout_s=timeout_s, package_hint=package)
    values, warnings, errors = parse(tool, end.argv, end.stdout, end.stderr)
    outcome = Outcome(
        end.status, end.argv, end.stdout, end.stderr, end.duration_s, values, warnings, errors, end.timed_out
    )
    return explain_end(outcome, timeout_s)


def denominators(tool: str, argv: Sequence[str], values: Sequence[Value]) -> dict[str, float]:
    """What the tool itself knows to divide by: "transaction", "kb" (1,024 bytes of payload received), "datagram"
    (delivered), "skb" (pktgen only). Empty where its figures are not those of the whole run."""
    return _DENOMINATORS[tool](argv, values) if tool in _DENOMINATORS else {}

"""tbench, the network part of dbench: a file server's traffic without the files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import harmonic_mean
from typing import ClassVar

from nsprof.model.profile import Value
from nsprof.workload.base import Driver, Parsed

__all__ = ["Tbench", "parse"]

# "Throughput 23775.4 MB/sec  128 clients  128 procs  max_latency=8.632 ms" (dbench.c)
_RESULT = re.compile(
    r"^Throughput ([\d.]+) MB/sec(?: \(sync [^)]*\))?\s+(\d+) clients\s+(\d+) procs\s+max_latency=([\d.]+) ms",
    re.MULTILINE,
)
_OPERATION = re.compile(r"^ ([A-Za-z_]+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)$", re.MULTILINE)
_COMPLAINT = re.compile(
    r"^.*(?:fail|refused|unable|unreachable|No such file|error|not found).*$", re.MULTILINE | re.I
)
_WITH_ARGUMENT = frozenset(("-t", "-c", "-D", "-T", "-R", "--clients-per-process"))


class Tbench(Driver):
    """tbench against a tbench_srv of its own; the port (7003) is built into both."""

    tool: ClassVar[str] = "tbench"
    package_hint: ClassVar[str] = "tbench: apt install dbench"
    server_program: ClassVar[str] = "tbench_srv"
    default_port: ClassVar[int] = 7003
    port_hint: ClassVar[str] = "stop what listens there (ss -ltnp 'sport = 7003'): tbench knows no other port"

    def asked_port(self) -> int:
        return self.default_port

    def server_argv(self, port: int, family: int) -> tuple[str, ...]:
        del port, family
        return (self.server_program,)

    def client_argv(self, server_address: str, port: int) -> tuple[str, ...]:
        del port
        argv = list(self.argv)
        positional = _positional(argv[1:])
        if not positional:
            argv.append("1")
        if len(positional) < 2:
            argv.append(server_address)
        return tuple(argv)

    def parse(self, argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
        return parse(argv, stdout, stderr)


def _positional(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _WITH_ARGUMENT:
            skip = True
        elif not word.startswith("-"):
            found.append(word)
    return found


def parse(argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
    """Throughput in MB/s as tbench reckons it, worst latency, operations. Several results give means.

    Throughput and operations leave out tbench's warm-up, so they are no denominators of a recording of the whole.
    """
    del argv
    # The progress line is drawn over itself with backspaces.
    text = stdout.decode("utf-8", "replace").replace("\b", "\n")
    results = [tuple(map(float, match.groups())) for match in _RESULT.finditer(text)]
    errors = [
        f"tbench: {match[0].strip()}" for match in _COMPLAINT.finditer(f"{text}\n{stderr.decode('utf-8', 'replace')}")
    ]
    if not results:
        if not errors and text.strip():
            errors = ["tbench: there is no result in its output (it prints one at its end only)"]
        return Parsed((), (), tuple(dict.fromkeys(errors)))
    columns = list(zip(*results, strict=True))
    values = [
        Value(name, sum(column) / len(column), unit, "tbench")
        for (name, unit), column in zip(
            (("throughput", "MB/s"), ("clients", ""), ("processes", ""), ("latency_max", "ms")), columns, strict=True
        )
    ]
    if len(results) > 1:
        values.append(Value("results", float(len(results)), "", "tbench"))
        values.append(Value("throughput_harmonic_mean", harmonic_mean(columns[0]), "MB/s", "tbench"))
        values.append(Value("latency_max_harmonic_mean", harmonic_mean(columns[3]), "ms", "tbench"))
    operations = sum(int(match[2]) for match in _OPERATION.finditer(text))
    if operations:
        values.append(Value("operations", operations / len(results), "operations", "tbench"))
    warnings = tuple(dict.fromkeys(errors))  # what it complained of did not keep it from measuring
    if not values[0].value:
        return Parsed((), warnings, ("tbench: it measured nothing (runs of less than 2 s end before it begins)",))
    return Parsed(tuple(values), warnings, ())

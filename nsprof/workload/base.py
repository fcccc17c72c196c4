"""What every traffic generator has in common: where it runs, what comes out, how it is driven."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, ClassVar, NamedTuple, Protocol

from nsprof.errors import WorkloadError
from nsprof.model.profile import Value
from nsprof.workload import process, ready

__all__ = ["Driver", "Outcome", "Parsed", "Place", "Server", "quoted_words"]

#: How long a server may take until it listens, seconds.
READY_TIMEOUT_S = 10.0


class Place(Protocol):
    """Where one end of the traffic lives: a namespace, the CPUs it is pinned to (empty: any), its address."""

    @property
    def netns_path(self) -> str | None: ...
    @property
    def cpus(self) -> Sequence[int]: ...
    @property
    def address(self) -> str: ...


class Parsed(NamedTuple):
    """What a tool said: typed values, things to be aware of, and failures in the tool's own words."""

    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished command. `status` is its exit status as a shell would give it (128 + signal when killed).

    `stdout` and `stderr` hold what it wrote as far as nsprof saw it (nothing for commands whose output passed
    through unread). `timed_out` says that nsprof ended it.
    """

    status: int
    argv: tuple[str, ...]
    stdout: bytes
    stderr: bytes
    duration_s: float
    values: tuple[Value, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    timed_out: bool = False

    @property
    def failed(self) -> str:
        """Why the result cannot be used, in one line; "" when it can."""
        if self.errors:
            return self.errors[0]
        if self.status:
            words = quoted_words(self.stderr) or quoted_words(self.stdout)
            return f"{self.argv[0]}: exit status {self.status}" + (f": {words}" if words else "")
        return ""

    def value(self, name: str) -> float:
        """The value of that name; nan when the tool did not give it."""
        return next((v.value for v in self.values if v.name == name), float("nan"))


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens: `ports[i]` is for the i-th client (all the same where one port serves many)."""

    address: str
    ports: tuple[int, ...]
    pids: tuple[int, ...]


@dataclass
class Driver:
    """Runs one traffic generator, with the user's words, between two places.

    Use: `with driver.servers(remote): outcome = driver.run(container, remote.address)`.
    """

    argv: tuple[str, ...]
    timeout_s: float = 0.0
    _ports: tuple[int, ...] = field(default=(), repr=False)

    tool: ClassVar[str] = "command"
    package_hint: ClassVar[str] = ""
    server_program: ClassVar[str] = ""
    default_port: ClassVar[int] = 0
    #: What to do about a taken port, where the tool has no -p.
    port_hint: ClassVar[str] = ""
    #: One server process serves one client at a time (iperf3).
    server_per_client: ClassVar[bool] = False

    def server_argv(self, port: int, family: int) -> tuple[str, ...]:
        """The server's command line; empty when this tool has no server."""
        del port, family
        return ()

    def client_argv(self, server_address: str, port: int) -> tuple[str, ...]:
        """The user's words, completed by what they lack: the server's address, port and an exact output format."""
        del server_address, port
        return self.argv

    def asked_port(self) -> int:
        """The server port in the user's words; 0 if none is there."""
        return 0

    def parse(self, argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
        """Typed values, warnings and errors of one output."""
        del argv, stdout, stderr
        return Parsed()

    @contextmanager
    def servers(self, place: Place, clients: int = 1) -> Iterator[Server]:
        """Start the server(s) in `place`, wait until they listen, stop them at the end.

        Raises CommandNotFound (with the package to install), WorkloadError (port taken, died, not ready).
        """
        if not self.server_program:
            yield Server(place.address, (), ())
            return
        with ExitStack() as stack:
            count = clients if self.server_per_client else 1
            started = [stack.enter_context(self._server(place, index)) for index in range(count)]
            ports = tuple(port for port, _ in started)
            self._ports = ports if self.server_per_client else ports * clients
            stack.callback(setattr, self, "_ports", ())
            yield Server(place.address, self._ports, tuple(pid for _, pid in started))

    @contextmanager
    def servers_elsewhere(self, address: str, clients: int = 1) -> Iterator[Server]:
        """Within the block clients dial servers that somebody else runs at `address`: on the port in the user's
        words, else the tool's own, counting up by client where a server serves one at a time."""
        first = self.asked_port() or self.default_port
        self._ports = tuple(first + (index if self.server_per_client else 0) for index in range(clients))
        try:
            yield Server(address, self._ports, ())
        finally:
            self._ports = ()

    @contextmanager
    def _server(self, place: Place, index: int) -> Iterator[tuple[int, int]]:
        asked = self.asked_port()
        fixed = asked if self.server_per_client is False or index == 0 else 0
        port = ready.free_port(
            place.netns_path, fixed, self.default_port + index, program=self.server_program, hint=self.port_hint
        )
        argv = self.server_argv(port, 6 if ":" in place.address else 4)
        with tempfile.TemporaryFile() as said:
            child = process.start(
                argv, netns=place.netns_path, cpus=place.cpus, output=said, package_hint=self.package_hint
            )
            try:
                state = ready.wait_listening(child.pid, port, READY_TIMEOUT_S)
                if state != "listening":
                    process.stop(child)
                    raise _server_failure(argv, port, child.returncode if state == "ended" else None, said)
                yield port, child.pid
            finally:
                process.stop(child)

    def run(self, place: Place, server_address: str, *, client: int = 0) -> Outcome:
        """Run the client in `place` to its end and parse what it said; its failures are in the Outcome.

        Raises CommandNotFound when it cannot be started.
        """
        return self.run_many((place,), (server_address,), first=client)[0]

    def run_many(
        self, places: Sequence[Place], server_addresses: Sequence[str], *, first: int = 0
    ) -> tuple[Outcome, ...]:
        """Run one client in each place, all at once, and wait for all of them."""
        jobs = []
        for index, (place, address) in enumerate(zip(places, server_addresses, strict=True), start=first):
            port = self._ports[index] if index < len(self._ports) else (self.asked_port() or self.default_port)
            jobs.append(process.Job(self.client_argv(address, port), place.netns_path, tuple(place.cpus)))
        ends = process.run_all(jobs, timeout_s=self.timeout_s, package_hint=self.package_hint)
        return tuple(self._outcome(end) for end in ends)

    def _outcome(self, end: process.End) -> Outcome:
        parsed = self.parse(end.argv, end.stdout, end.stderr)
        outcome = Outcome(
            end.status,
            end.argv,
            end.stdout,
            end.stderr,
            end.duration_s,
            *parsed,
            timed_out=end.timed_out,
        )
        return explain_end(outcome, end.timeout_s)


def explain_end(outcome: Outcome, timeout_s: float) -> Outcome:
    """The outcome with an error for a timeout or a death by signal, which the tool itself cannot report."""
    errors = list(outcome.errors)
    if outcome.timed_out:
        errors.insert(0, f"{outcome.argv[0]}: still running after {timeout_s:g} s, ended by nsprof")
    return replace(outcome, errors=tuple(errors))


def quoted_words(output: bytes, limit: int = 300) -> str:
    """The last non-empty line that a tool wrote, printable and bounded, to be quoted in a message."""
    text = output.decode("utf-8", "backslashreplace")
    lines = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in raw.strip()) for raw in text.splitlines()]
    return next((line[:limit] for line in reversed(lines) if line), "")


def _server_failure(argv: Sequence[str], port: int, status: int | None, said: IO[bytes]) -> WorkloadError:
    said.seek(0)
    words = quoted_words(said.read(100_000))
    end = f"ended with status {status}" if status is not None else f"does not listen after {READY_TIMEOUT_S:g} s"
    return WorkloadError(f"{argv[0]} on port {port} {end}" + (f": {words}" if words else ""))

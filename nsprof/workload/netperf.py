"""netperf: exact results through its omni output, and everything that it prints for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nsprof.model.profile import Value
from nsprof.workload import netperf_text
from nsprof.workload.base import Driver, Parsed

__all__ = ["LATENCY_KEYS", "OMNI_KEYS", "Netperf", "Words", "denominators", "parse", "split_words"]

_KEYS = """
THROUGHPUT THROUGHPUT_UNITS ELAPSED_TIME PROTOCOL DIRECTION TRANSACTION_RATE REQUEST_SIZE RESPONSE_SIZE
LOCAL_SEND_SIZE REMOTE_SEND_SIZE LOCAL_SEND_THROUGHPUT LOCAL_RECV_THROUGHPUT REMOTE_SEND_THROUGHPUT
REMOTE_RECV_THROUGHPUT LOCAL_BYTES_SENT LOCAL_BYTES_RECVD REMOTE_BYTES_SENT REMOTE_BYTES_RECVD
LOCAL_SEND_CALLS LOCAL_RECV_CALLS REMOTE_SEND_CALLS REMOTE_RECV_CALLS LOCAL_CPU_UTIL REMOTE_CPU_UTIL
LOCAL_SD REMOTE_SD SD_UNITS LOCAL_TRANSPORT_RETRANS REMOTE_TRANSPORT_RETRANS CONFIDENCE_LEVEL
CONFIDENCE_INTERVAL CONFIDENCE_ITERATION THROUGHPUT_CONFID LOCAL_CPU_CONFID REMOTE_CPU_CONFID
"""
#: The omni selectors that nsprof asks for (netperf -- -k '?' lists all).
OMNI_KEYS = tuple(_KEYS.split())
#: Asked for with request/response tests only: a stream's are the times of its send calls, and cost two clock
#: reads a call.
LATENCY_KEYS = {
    "latency_min": "MIN_LATENCY",
    "latency_mean": "MEAN_LATENCY",
    "latency_p50": "P50_LATENCY",
    "latency_p90": "P90_LATENCY",
    "latency_p99": "P99_LATENCY",
    "latency_max": "MAX_LATENCY",
    "latency_stddev": "STDDEV_LATENCY",
}

# From netsh.c of netperf 2.7: the global options that take an argument.
_WITH_ARGUMENT = frozenset("AaBbDFfHIikKLlnOoPpsTtvWwYyZ")
_OMNI = "TCP_STREAM TCP_MAERTS TCP_SENDFILE TCP_RR TCP_CRR TCP_CC UDP_STREAM UDP_RR OMNI SCTP_STREAM SCTP_RR"
#: Tests that netperf runs through its omni code and that therefore understand -k.
_OMNI_TESTS = frozenset(_OMNI.split())


@dataclass(frozen=True, slots=True)
class Words:
    """A netperf command line taken apart: words before `--` (also read as `options`) and those after (`test`)."""

    program: str
    globals: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    test: tuple[str, ...]

    def option(self, letter: str) -> str:
        """The last argument given for a global option; "" when it was not given."""
        return next((argument for name, argument in reversed(self.options) if name == letter), "")

    def has(self, letter: str) -> bool:
        """Whether a global option was given."""
        return any(name == letter for name, _ in self.options)

    @property
    def test_name(self) -> str:
        """The test in capitals, as netperf compares it; netperf's default is TCP_STREAM."""
        return self.option("t").upper() or "TCP_STREAM"

    @property
    def repeats(self) -> bool:
        """Whether the measurement may run several times, so that the printed figures are not of the whole."""
        return self.has("i") or self.has("I")


def split_words(argv: Sequence[str]) -> Words:
    """Take a netperf command line apart the way its getopt does."""
    words = list(argv[1:])
    test: list[str] = []
    if "--" in words:
        where = words.index("--")
        words, test = words[:where], words[where + 1 :]
    return Words(argv[0] if argv else "netperf", tuple(words), tuple(_getopt(words)), tuple(test))


def _getopt(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    queue = list(words)
    while queue:
        word = queue.pop(0)
        letters = word[1:] if word.startswith("-") else ""
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in _WITH_ARGUMENT:
                yield letter, letters or (queue.pop(0) if queue else "")
                break
            yield letter, ""


class Netperf(Driver):
    """netperf against a netserver of its own."""

    tool: ClassVar[str] = "netperf"
    package_hint: ClassVar[str] = "netperf: apt install netperf (Debian has it in the non-free component)"
    server_program: ClassVar[str] = "netserver"
    default_port: ClassVar[int] = 12865

    def asked_port(self) -> int:
        word = split_words(self.argv).option("p").split(",")[0]
        return int(word) if word.isdigit() else 0

    def server_argv(self, port: int, family: int) -> tuple[str, ...]:
        # -N: no debug log, which would be a file of a predictable name in /tmp.
        return (self.server_program, "-D", "-N", f"-{family}", "-p", str(port))

    def client_argv(self, server_address: str, port: int) -> tuple[str, ...]:
        words = split_words(self.argv)
        argv = [words.program, *words.globals]
        if not words.has("H"):
            argv += ["-H", server_address]
        if ":" in server_address and not (words.has("4") or words.has("6")):
            argv += ["-6"]
        if not words.has("p") and port:
            argv += ["-p", str(port)]
        if words.test_name not in _OMNI_TESTS:
            return (*argv, *(("--", *words.test) if words.test else ()))
        if not words.repeats:
            # With -c/-C a confidence run would also wait for the CPU figures to settle: not what was asked for.
            argv += [f"-{letter}" for letter in "cC" if not words.has(letter)]
        latency = words.test_name.endswith("RR")
        if latency and not words.has("j"):
            argv += ["-j"]
        keys = (*OMNI_KEYS, *LATENCY_KEYS.values()) if latency else OMNI_KEYS
        return (*argv, "--", *_exact_output(words.test, keys))

    def parse(self, argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
        return parse(argv, stdout, stderr)


def _exact_output(test_words: Sequence[str], wanted_keys: Sequence[str]) -> list[str]:
    """The test-specific words with key=value output of all keys that nsprof reads, and the user's own."""
    keys, kept, queue = list(wanted_keys), [], list(test_words)
    while queue:
        word = queue.pop(0)
        if word[:2] not in ("-o", "-O", "-k"):
            kept.append(word)
            continue
        wanted = word[2:]
        if not wanted and queue and not queue[0].startswith("-"):
            wanted = queue.pop(0)
        keys += [k for k in wanted.upper().split(",") if re.fullmatch(r"[A-Z0-9_]+", k) and k not in keys]
    return [*kept, "-k", ",".join(keys)]


def parse(argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
    """Values, warnings and errors of any netperf output: omni key=value, CSV, columns, or the classic tables.

    Several results in one output (clients side by side) give their mean as `throughput` and their sum as
    `throughput_total`, since the text does not tell whether they ran at the same time.
    """
    words = split_words(argv)
    lines = stdout.decode("utf-8", "replace").splitlines()
    warnings = netperf_text.warnings(lines)
    errors = netperf_text.errors([*lines, *stderr.decode("utf-8", "replace").splitlines()])
    results = [_of_keys(keys) for keys in (*_key_groups(lines), *netperf_text.titled_tables(lines))]
    classic = netperf_text.classic_tables(lines, words.option("f"))
    results = [result for result in (*results, *classic) if result]
    if not results:
        if not errors and any(line.strip() for line in lines):
            errors = ["netperf: there is no result in its output"]
        return Parsed((), tuple(warnings), tuple(errors))
    warnings += _rounded(classic)
    if words.repeats:
        warnings.append("netperf repeated its measurement (-i/-I): what it printed is not of the whole recording")
    return Parsed(tuple(_combined(results)), tuple(warnings), tuple(errors))


def _rounded(classic: Sequence[Sequence[Value]]) -> list[str]:
    """A warning where amounts were reckoned from a short time that netperf prints to 10 ms only."""
    times = [v.value for result in classic for v in result if v.name == "elapsed" and v.value > 0]
    datagrams = any(v.name == "datagrams_received" for result in classic for v in result)  # counted, not reckoned
    if not times or datagrams or 0.005 / min(times) < 0.002:
        return []
    off = f"{100 * 0.005 / min(times):.1f} %"
    return [f"netperf prints its time to 10 ms: amounts from it may be off by {off} ('-- -k all' is exact)"]


def _key_groups(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """KEY=value blocks; a key that comes again begins the next result."""
    group: dict[str, str] = {}
    for line in lines:
        match = re.fullmatch(r"([A-Z][A-Z0-9_]+)=(.*)", line.strip())
        if not match:
            continue
        if match[1] in group:
            yield group
            group = {}
        group[match[1]] = match[2]
    if group:
        yield group


def _of_keys(keys: Mapping[str, str]) -> list[Value]:
    """Values of one result given by omni keys. netperf prints -1 for what it does not know."""
    number = {k: n for k, v in keys.items() if (n := netperf_text.number(v)) is not None and n >= 0}
    values: list[Value] = []

    def add(name: str, unit: str, value: float | None) -> None:
        if value is not None:
            values.append(Value(name, value, unit, "netperf"))

    units = keys.get("THROUGHPUT_UNITS", "")
    scale = netperf_text.mbit_scale(units)
    unit = "Mbit/s" if scale else {"Trans/s": "transactions/s"}.get(units, units)
    throughput = number.get("THROUGHPUT")
    add("throughput", unit, None if throughput is None else throughput * (scale or 1.0))
    add("elapsed", "s", number.get("ELAPSED_TIME"))
    values += _amounts(keys, number, scale)
    if keys.get("DIRECTION") not in ("Send", "Receive"):
        for name, key in LATENCY_KEYS.items():
            add(name, "us", number.get(key))
    for end, key in (("local", "LOCAL"), ("remote", "REMOTE")):
        add(f"cpu_{end}", "% of the whole machine", number.get(f"{key}_CPU_UTIL"))
        sd = number.get(f"{key}_SD")
        if sd is not None and number.get(f"{key}_CPU_UTIL") is not None:
            add(f"service_demand_{end}", "us/transaction" if "Tran" in keys.get("SD_UNITS", "") else "us/KB", sd)
        add(f"retransmits_{end}", "segments", number.get(f"{key}_TRANSPORT_RETRANS"))
    add("throughput_confidence", "%", number.get("THROUGHPUT_CONFID"))
    if number.get("CONFIDENCE_ITERATION", 0) > 1:
        add("iterations", "", number["CONFIDENCE_ITERATION"])
    return values


def _amounts(keys: Mapping[str, str], number: Mapping[str, float], mbit: float) -> list[Value]:
    """Exact amounts: transactions of a request/response test, bytes and datagrams of a stream."""
    values: list[Value] = []
    direction = keys.get("DIRECTION", "")
    if "Send" in direction and "Recv" in direction:
        size, received = number.get("RESPONSE_SIZE", 0), number.get("LOCAL_BYTES_RECVD")
        if size and received is not None:
            values.append(Value("transactions", received / size, "transactions", "netperf"))
        if "TRANSACTION_RATE" in number:
            values.append(Value("transaction_rate", number["TRANSACTION_RATE"], "transactions/s", "netperf"))
        return values
    sender, receiver = ("REMOTE", "LOCAL") if direction == "Receive" else ("LOCAL", "REMOTE")
    sent, received = number.get(f"{sender}_BYTES_SENT"), number.get(f"{receiver}_BYTES_RECVD")
    size = number.get(f"{sender}_SEND_SIZE", 0)
    is_udp = keys.get("PROTOCOL") == "UDP"
    for name, amount in (("sent", sent), ("received", received)):
        if amount is None:
            continue
        values.append(Value(f"bytes_{name}", amount, "B", "netperf"))
        if is_udp and size:
            values.append(Value(f"datagrams_{name}", amount / size, "datagrams", "netperf"))
    rate = number.get(f"{sender}_SEND_THROUGHPUT")
    if is_udp and mbit and rate is not None:
        values.append(Value("throughput_sent", rate * mbit, "Mbit/s", "netperf"))
    return values


def _combined(results: Sequence[Sequence[Value]]) -> Iterator[Value]:
    """One result as it is; of several the mean of rates, and the sum of amounts."""
    if len(results) == 1:
        yield from results[0]
        return
    names = dict.fromkeys((v.name, v.unit) for result in results for v in result)
    yield Value("results", len(results), "", "netperf")
    for name, unit in names:
        numbers = [v.value for result in results for v in result if (v.name, v.unit) == (name, unit)]
        is_amount = name.startswith(("transactions", "bytes_", "datagrams_", "messages", "retransmits_"))
        yield Value(name, sum(numbers) if is_amount else sum(numbers) / len(numbers), unit, "netperf")
        if name == "throughput":
            yield Value("throughput_total", sum(numbers), unit, "netperf")


def denominators(argv: Sequence[str], values: Sequence[Value]) -> dict[str, float]:
    """Transactions of an RR test, KB of payload received of a stream, datagrams delivered of a UDP stream.

    Empty when netperf repeated its measurement: then the printed amounts are not those of the recorded window.
    """
    if argv and split_words(argv).repeats:
        return {}
    amounts = {v.name: v.value for v in values}
    found: dict[str, float] = {}
    if amounts.get("transactions"):
        found["transaction"] = amounts["transactions"]
    if amounts.get("bytes_received"):
        found["kb"] = amounts["bytes_received"] / 1024
    if amounts.get("datagrams_received"):
        found["datagram"] = amounts["datagrams_received"]
    return found

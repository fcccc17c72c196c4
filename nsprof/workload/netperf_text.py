"""What netperf prints for people: classic result tables, -O columns, -o CSV, warnings and error messages."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from nsprof.model.profile import Value

__all__ = ["classic_tables", "errors", "mbit_scale", "number", "titled_tables", "warnings"]

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_TEST_LINE = re.compile(r"\bTEST from\b")
_NOTHING_NEWS = re.compile(r"^(Interim result|\^C|MIGRATED|OMNI|[A-Z][A-Z0-9_]+=|!!!)|\bTEST from\b|Okay Errors")
_COMPLAINT = re.compile(
    r"error|fail|cannot|can't|could not|unable|unknown|refused|unreachable|no route|are you sure"
    r"|not (?:found|supported)|invalid|denied|timed out|too (?:small|large)|must be",
    re.IGNORECASE,
)

#: Human titles of the omni selectors (netperf 2.7, `-- -o KEY`), for those that nsprof reads.
_TITLES = {
    "Throughput": "THROUGHPUT",
    "Throughput Units": "THROUGHPUT_UNITS",
    "Elapsed Time (sec)": "ELAPSED_TIME",
    "Protocol": "PROTOCOL",
    "Direction": "DIRECTION",
    "Transaction Rate Tran/s": "TRANSACTION_RATE",
    "Request Size Bytes": "REQUEST_SIZE",
    "Response Size Bytes": "RESPONSE_SIZE",
    "Local Send Size": "LOCAL_SEND_SIZE",
    "Remote Send Size": "REMOTE_SEND_SIZE",
    "Local Send Throughput": "LOCAL_SEND_THROUGHPUT",
    "Local Recv Throughput": "LOCAL_RECV_THROUGHPUT",
    "Remote Send Throughput": "REMOTE_SEND_THROUGHPUT",
    "Remote Recv Throughput": "REMOTE_RECV_THROUGHPUT",
    "Local Bytes Sent": "LOCAL_BYTES_SENT",
    "Local Bytes Received": "LOCAL_BYTES_RECVD",
    "Remote Bytes Sent": "REMOTE_BYTES_SENT",
    "Remote Bytes Received": "REMOTE_BYTES_RECVD",
    "Local CPU Util %": "LOCAL_CPU_UTIL",
    "Remote CPU Util %": "REMOTE_CPU_UTIL",
    "Local Service Demand": "LOCAL_SD",
    "Remote Service Demand": "REMOTE_SD",
    "Service Demand Units": "SD_UNITS",
    "Minimum Latency Microseconds": "MIN_LATENCY",
    "Mean Latency Microseconds": "MEAN_LATENCY",
    "50th Percentile Latency Microseconds": "P50_LATENCY",
    "90th Percentile Latency Microseconds": "P90_LATENCY",
    "99th Percentile Latency Microseconds": "P99_LATENCY",
    "Maximum Latency Microseconds": "MAX_LATENCY",
    "Stddev Latency Microseconds": "STDDEV_LATENCY",
    "Local Transport Retransmissions": "LOCAL_TRANSPORT_RETRANS",
    "Remote Transport Retransmissions": "REMOTE_TRANSPORT_RETRANS",
    "Confidence Iterations Run": "CONFIDENCE_ITERATION",
    "Throughput Confidence Width (%)": "THROUGHPUT_CONFID",
}


def number(text: str) -> float | None:
    """The number that the whole word is, else None (netperf also prints nan where it divided by nothing)."""
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def mbit_scale(units: str) -> float:
    """Factor from netperf's throughput unit to Mbit/s; 0.0 when the unit is no bit or byte rate.

    netperf's K, M and G bytes are powers of 1024, its 10^n bits powers of ten (netlib.c, format_units).
    """
    match = re.fullmatch(r"10\^(\d+)bits/s(?:ec)?", units)
    if match:
        return float(10.0 ** (int(match[1]) - 6))
    match = re.fullmatch(r"([KMG])Bytes/s(?:ec)?", units)
    return float(1024.0 ** ("KMG".index(match[1]) + 1) * 8 / 1e6) if match else 0.0


def warnings(lines: Sequence[str]) -> list[str]:
    """Each block of `!!!` lines as one warning."""
    blocks: list[list[str]] = []
    inside = False
    for line in lines:
        is_part = line.startswith("!!!")
        if is_part:
            if not inside:
                blocks.append([])
            text = re.sub(r"\s+", " ", line.strip("! \t")).replace(" :", ":")
            if text and text != "WARNING":
                blocks[-1].append(text)
        inside = is_part
    return ["netperf: " + " ".join(block) for block in blocks if block]


def errors(lines: Sequence[str]) -> list[str]:
    """Complaints in netperf's own words."""
    found = dict.fromkeys(
        line.strip() for line in lines if _COMPLAINT.search(line) and not _NOTHING_NEWS.search(line.strip())
    )
    return [f"netperf: {line}" for line in found]


def titled_tables(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Results under omni titles: one CSV line, or columns whose titles stand above in several lines."""
    for index, line in enumerate(lines):
        titles = next(csv.reader([line])) if "," in line else []
        if len([t for t in titles if t.strip() in _TITLES]) > len(titles) // 2 and index + 1 < len(lines):
            values = next(csv.reader([lines[index + 1]]))
            yield {_TITLES[t.strip()]: v for t, v in zip(titles, values, strict=False) if t.strip() in _TITLES}
    for first, last in _column_tables(lines):
        row = lines[last]
        starts = [match.start() for match in re.finditer(r"\S+", row)]
        bounds = [*pairwise(starts), (starts[-1], None)] if starts else []
        titles = [" ".join(h[a:b].strip() for h in lines[first:last] if h[a:b].strip()) for a, b in bounds]
        keys = {_TITLES[t]: row[a:b].strip() for t, (a, b) in zip(titles, bounds, strict=True) if t in _TITLES}
        if keys:
            yield keys


def _column_tables(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(first heading line, data line) of each block that follows a TEST line without a classic heading."""
    start = -1
    for index, line in enumerate(lines):
        if _TEST_LINE.search(line):
            start = index + 1
        elif start >= 0 and re.match(r"\s*[\d.]", line):
            if index > start and not _classic_kind(lines[start]) and "," not in line:
                yield start, index
            start = -1


def _classic_kind(heading: str) -> str:
    if re.match(r"Recv\s+Send\s+Send", heading):
        return "stream"
    if heading.startswith("Local /Remote"):
        return "rr"
    if re.match(r"Socket\s+Message\s+Elapsed\s+Messages", heading):
        return "udp"
    return ""


def classic_tables(lines: Sequence[str], unit_letter: str = "") -> list[list[Value]]:
    """Results in netperf's traditional tables, told by their heading, or by their shape under `-P 0`."""
    results: list[list[Value]] = []
    kind, scale, headed = "", _letter_scale(unit_letter), False
    skip_until = -1
    for index, line in enumerate(lines):
        if index <= skip_until:
            continue
        row = _row(line)
        if not row:
            if line.strip():
                kind = _classic_kind(line) or (kind if headed and not line[:1].isupper() else _keep(kind, line))
                headed = True
                unit = re.search(r"(10\^\d+bits/s(?:ec)?|[KMG]Bytes/s(?:ec)?)\b", line)
                scale = mbit_scale(unit[1]) if unit else scale
            continue
        following = _row(lines[index + 1]) if index + 1 < len(lines) else []
        values = _classic_row(kind if headed else "", row, following, scale)
        if values:
            results.append(values)
            skip_until = index + 1 if following and len(following) < len(row) else index
            kind = "done"
    return results


def _keep(kind: str, line: str) -> str:
    """Continuation lines of a classic heading keep its kind; any other heading ends it."""
    return kind if re.match(r"(Socket|Size|Send|bytes)\b", line) else "other"


def _row(line: str) -> list[float]:
    numbers = [number(word) for word in line.split()]
    return [n for n in numbers if n is not None] if None not in numbers else []


def _letter_scale(letter: str) -> float:
    """The unit of `-f`; netperf's default for streams is 10^6 bits/s."""
    if letter in ("K", "M", "G"):
        return mbit_scale(f"{letter}Bytes/s")
    return {"k": 1e-3, "g": 1e3}.get(letter, 1.0)


def _classic_row(kind: str, row: list[float], following: list[float], scale: float) -> list[Value]:
    if kind in ("stream", "") and len(row) in (5, 9):
        return _stream(row, scale)
    if kind in ("rr", "") and len(row) in (6, 10) and len(following) == 2:
        return _request_response(row)
    if kind in ("udp", "") and len(row) in (6, 8) and len(following) in (4, 6):
        return _datagrams(row, following, scale)
    return []


def _stream(row: list[float], scale: float) -> list[Value]:
    _, _, message, elapsed, throughput = row[:5]
    moved = throughput * scale * 1e6 / 8 * elapsed
    values = [
        _value("throughput", throughput * scale, "Mbit/s"),
        _value("elapsed", elapsed, "s"),
        _value("bytes_received", moved, "B"),
    ]
    if message > 0:
        values.append(_value("messages", moved / message, "messages"))
    return values + _cpu(row[5:9], "us/KB")


def _request_response(row: list[float]) -> list[Value]:
    elapsed, rate = row[4:6]
    return [
        _value("throughput", rate, "transactions/s"),
        _value("transaction_rate", rate, "transactions/s"),
        _value("elapsed", elapsed, "s"),
        _value("transactions", rate * elapsed, "transactions"),
        *_cpu(row[6:10], "us/transaction"),
    ]


def _datagrams(sent: list[float], received: list[float], scale: float) -> list[Value]:
    _, size, elapsed, okay, failed, rate = sent[:6]
    arrived, received_rate = received[2:4]
    values = [
        _value("throughput", received_rate * scale, "Mbit/s"),
        _value("throughput_sent", rate * scale, "Mbit/s"),
        _value("elapsed", elapsed, "s"),
        _value("datagrams_sent", okay, "datagrams"),
        _value("datagrams_received", arrived, "datagrams"),
        _value("bytes_sent", okay * size, "B"),
        _value("bytes_received", arrived * size, "B"),
        _value("send_errors", failed, "datagrams"),
    ]
    for end, row, at in (("local", sent, 6), ("remote", received, 4)):
        if len(row) == at + 2:
            values += [_value(f"cpu_{end}", row[at], "% of the whole machine")]
            values += [_value(f"service_demand_{end}", row[at + 1], "us/KB")]
    return values


def _cpu(row: list[float], unit: str) -> list[Value]:
    """Utilisation and service demand, local and remote; netperf prints -1 for an end that was not measured."""
    if len(row) != 4:
        return []
    local, remote, demand_local, demand_remote = row
    values = []
    for end, percent, demand in (("local", local, demand_local), ("remote", remote, demand_remote)):
        if percent >= 0:
            values.append(_value(f"cpu_{end}", percent, "% of the whole machine"))
            if demand >= 0:
                values.append(_value(f"service_demand_{end}", demand, unit))
    return values


def _value(name: str, value: float, unit: str) -> Value:
    return Value(name, value, unit, "netperf")

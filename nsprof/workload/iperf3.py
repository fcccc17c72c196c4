"""iperf3: its JSON, also where that is damaged, and the summary lines of its text output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nsprof.model.profile import Value
from nsprof.workload.base import Driver, Parsed

__all__ = ["Iperf3", "denominators", "parse"]

_NOT_A_NUMBER = re.compile(r"(?<=[\s:,\[])([+-]?(?:nan|inf)(?:inity)?)(?=[\s,\]}])", re.IGNORECASE)
_SAYS_ERROR = re.compile(r"^iperf3: (?:error|interrupt|parameter error)\b.*", re.MULTILINE)
# "[SUM]   0.00-10.00  sec  58.1 MBytes  48.8 Mbits/sec    4             sender"
_SUMMARY = re.compile(
    r"^\[\s*(?P<id>SUM|\d+)\](?:\[[^\]]*\])?\s+[\d.]+-(?P<end>[\d.]+)\s+sec"
    r"\s+(?P<moved>[\d.]+) (?P<moved_unit>[KMGT]?)Bytes"
    r"\s+(?P<rate>[\d.]+) (?P<rate_unit>[KMGT]?)bits/sec(?P<rest>.*?)\s+(?P<role>sender|receiver)\s*$",
    re.MULTILINE,
)
_DATAGRAMS = re.compile(r"(?P<jitter>[\d.]+) ms\s+(?P<lost>\d+)/(?P<total>\d+) \(")


class Iperf3(Driver):
    """iperf3 against servers of its own, one a client, since a server serves one test at a time."""

    tool: ClassVar[str] = "iperf3"
    package_hint: ClassVar[str] = "iperf3: apt install iperf3"
    server_program: ClassVar[str] = "iperf3"
    default_port: ClassVar[int] = 5201
    server_per_client: ClassVar[bool] = True

    def asked_port(self) -> int:
        word = _argument(self.argv, "-p", "--port")
        return int(word) if word.isdigit() else 0

    def server_argv(self, port: int, family: int) -> tuple[str, ...]:
        return (self.server_program, "-s", f"-{family}", "-p", str(port))

    def client_argv(self, server_address: str, port: int) -> tuple[str, ...]:
        argv = list(self.argv)
        if not _argument(argv, "-c", "--client"):
            argv += ["-c", server_address]
        if port and port != self.asked_port():
            # The second and later clients have servers of their own beside the port in the user's words.
            argv = [*_without(argv, "-p", "--port"), "-p", str(port)]
        if not {"-J", "--json"} & set(argv):
            argv += ["-J"]
        return tuple(argv)

    def parse(self, argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
        return parse(argv, stdout, stderr)


def _argument(argv: Sequence[str], short: str, long: str) -> str:
    """The argument of an option written `-p 1`, `-p1`, `--port 1` or `--port=1`; "" when it is not there."""
    for index, word in enumerate(argv[1:], start=1):
        if word in (short, long):
            return argv[index + 1] if index + 1 < len(argv) else ""
        if word.startswith(f"{long}="):
            return word[len(long) + 1 :]
        if word.startswith(short) and not word.startswith("--") and len(word) > len(short):
            return word[len(short) :]
    return ""


def _without(argv: Sequence[str], short: str, long: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word in (short, long):
            skip = True
        elif not (word.startswith(f"{long}=") or (word.startswith(short) and not word.startswith("--"))):
            kept.append(word)
    return kept


def parse(argv: Sequence[str], stdout: bytes, stderr: bytes) -> Parsed:
    """Values, warnings and errors from iperf3's JSON, or from the summary lines of its text.

    Numbers that are not numbers (`-nan`) are left out; text after the JSON is searched for errors; JSON of which
    only a part is there gives an error, and whatever its error line says.
    """
    del argv
    text = stdout.decode("utf-8", "replace")
    said = f"{text}\n{stderr.decode('utf-8', 'replace')}"
    errors = [match[0].strip() for match in _SAYS_ERROR.finditer(said)]
    start = text.find("{")
    if start < 0:
        values = _of_text(text)
        if not values and not errors and text.strip():
            errors = ["iperf3: there is no result in its output"]
        return Parsed(tuple(values), (), tuple(dict.fromkeys(errors)))
    try:
        document, _ = json.JSONDecoder().raw_decode(_NOT_A_NUMBER.sub("NaN", text[start:]))
    except (ValueError, RecursionError) as error:
        if not errors:
            errors = [f"iperf3: its JSON is damaged ({str(error).split(':')[0]})"]
        return Parsed((), (), tuple(dict.fromkeys(errors)))
    if not isinstance(document, dict):
        return Parsed((), (), ("iperf3: its JSON is no object",))
    if document.get("error"):
        errors.insert(0, f"iperf3: {str(document['error']).strip()}")
    values, warnings = _of_json(document)
    if not values and not errors:
        warnings.append("iperf3: its JSON has no summary (it broke off, or an interval report only)")
    return Parsed(tuple(values), tuple(warnings), tuple(dict.fromkeys(errors)))


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _of_json(document: Mapping[str, Any]) -> tuple[list[Value], list[str]]:
    end, started = _dict(document.get("end")), _dict(_dict(document.get("start")).get("test_start"))
    values: list[Value] = []
    warnings: list[str] = []

    def add(name: str, unit: str, value: Any, scale: float = 1.0) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            values.append(Value(name, value * scale, unit, "iperf3"))

    sent = [_dict(end.get(key)) for key in ("sum_sent", "sum_sent_bidir_reverse")]
    received = [_dict(end.get(key)) for key in ("sum_received", "sum_received_bidir_reverse")]
    is_udp = started.get("protocol") == "UDP" or ("lost_packets" in _dict(end.get("sum")))
    if is_udp and not received[0]:
        sent[0] = received[0] = _dict(end.get("sum"))  # before iperf3 3.7 or so there is only one sum
    add("throughput", "Mbit/s", _total(received, "bits_per_second"), 1e-6)
    add("throughput_sent", "Mbit/s", _total(sent, "bits_per_second"), 1e-6)
    add("elapsed", "s", received[0].get("seconds", sent[0].get("seconds")))
    add("bytes_sent", "B", _total(sent, "bytes"))
    if is_udp:
        warnings += _datagrams(end, received, started, add)
    else:
        add("bytes_received", "B", _total(received, "bytes"))
    add("retransmits_local", "segments", _total(sent, "retransmits"))
    rtts = [_dict(_dict(s).get("sender")) for s in end.get("streams") or []]
    for name, key, pick in (
        ("rtt_min", "min_rtt", min),
        ("rtt_mean", "mean_rtt", _mean),
        ("rtt_max", "max_rtt", max),
    ):
        numbers = [r[key] for r in rtts if isinstance(r.get(key), int | float) and r[key] > 0]
        add(name, "us", pick(numbers) if numbers else None)
    cpu = _dict(end.get("cpu_utilization_percent"))
    add("cpu_local", "% of one CPU, this process", cpu.get("host_total"))
    add("cpu_remote", "% of one CPU, its server", cpu.get("remote_total"))
    if values and started.get("omit"):
        warnings.append(f"iperf3 left out its first {started['omit']} s (-O): its amounts are not of the whole run")
    return values, warnings


def _datagrams(end: Mapping[str, Any], received: Sequence[Mapping[str, Any]], started: Any, add: Any) -> list[str]:
    """What arrived: `packets` counts the sequence numbers that the receiver saw the range of."""
    parts = [part for part in received if "packets" in part and "lost_packets" in part]
    total, lost = _total(parts, "packets"), _total(parts, "lost_packets")
    add("jitter", "ms", received[0].get("jitter_ms", _dict(end.get("sum")).get("jitter_ms")))
    if total is None or lost is None:
        return []
    add("datagrams_sent", "datagrams", _total([_dict(end.get("sum_sent"))], "packets") or total)
    add("datagrams_received", "datagrams", max(0, total - lost))
    add("datagrams_lost", "datagrams", lost)
    if started.get("blksize"):
        add("bytes_received", "B", max(0, total - lost) * started["blksize"])
    return [] if lost <= total else [f"iperf3 counts more lost datagrams ({lost:g}) than sent ({total:g})"]


def _total(parts: Sequence[Mapping[str, Any]], key: str) -> float | None:
    numbers = [part[key] for part in parts if isinstance(part.get(key), int | float) and math.isfinite(part[key])]
    return sum(numbers) if numbers else None


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _of_text(text: str) -> list[Value]:
    """The final sender and receiver lines; the [SUM] ones where there are several streams."""
    found = list(_SUMMARY.finditer(text))
    sums = [m for m in found if m["id"] == "SUM"] or found
    values: list[Value] = []
    for role, suffix in (("receiver", ""), ("sender", "_sent")):
        rows = [m for m in sums if m["role"] == role]
        if not rows:
            continue
        rate = sum(float(m["rate"]) * _scale(m["rate_unit"], 1000) for m in rows)
        moved = sum(float(m["moved"]) * _scale(m["moved_unit"], 1024) for m in rows)
        values.append(Value(f"throughput{suffix}", rate / 1e6, "Mbit/s", "iperf3"))
        values.append(Value(f"bytes{suffix or '_received'}", moved, "B", "iperf3"))
        values += _text_details(rows, role)
    return values


def _text_details(rows: Sequence[re.Match[str]], role: str) -> list[Value]:
    datagrams = [m for row in rows if (m := _DATAGRAMS.search(row["rest"]))]
    if datagrams and role == "receiver":
        total, lost = (sum(int(m[k]) for m in datagrams) for k in ("total", "lost"))
        return [
            Value("datagrams_received", float(total - lost), "datagrams", "iperf3"),
            Value("datagrams_lost", float(lost), "datagrams", "iperf3"),
            Value("jitter", float(datagrams[0]["jitter"]), "ms", "iperf3"),
        ]
    retransmits = [int(row["rest"]) for row in rows if row["rest"].strip().isdigit()]
    if retransmits and role == "sender":
        return [Value("retransmits_local", float(sum(retransmits)), "segments", "iperf3")]
    return []


def _scale(prefix: str, base: int) -> float:
    return float(base) ** " KMGT".index(prefix or " ")


def denominators(argv: Sequence[str], values: Sequence[Value]) -> dict[str, float]:
    """KB of payload received; datagrams delivered for UDP. Empty when iperf3 left out the beginning (-O)."""
    if _argument(argv, "-O", "--omit") not in ("", "0"):
        return {}
    amounts = {v.name: v.value for v in values}
    found: dict[str, float] = {}
    if amounts.get("bytes_received"):
        found["kb"] = amounts["bytes_received"] / 1024
    if amounts.get("datagrams_received"):
        found["datagram"] = amounts["datagrams_received"]
    return found

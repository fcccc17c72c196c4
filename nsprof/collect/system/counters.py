"""Kernel counters before and after a run: devices and qdiscs, protocol MIBs, softnet, softirqs, interrupts, CPU time.

`take` reads everything at one moment, `delta` gives how it moved. Counter names are the kernel's: device statistics
as in struct rtnl_link_stats64, MIBs as `Ip.InReceives`, `TcpExt.TCPAutoCorking`, `Ip6.InReceives`, `Udp6.InErrors`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsprof.collect.system import cputime, rtdump
from nsprof.collect.system.cputime import CpuTimes
from nsprof.errors import NsprofError
from nsprof.model.profile import Counter
from nsprof.netns import entered, inode

__all__ = [
    "CounterSnapshot",
    "NamespaceCounters",
    "busy_seconds",
    "delta",
    "lost_namespaces",
    "reference_denominators",
    "steal_seconds",
    "take",
    "wall_seconds",
]

_ROOT, _INGRESS = 0xFFFFFFFF, 0xFFFFFFF1  # TC_H_ROOT, TC_H_INGRESS: children repeat what the root adds up
_MIB_FILES = ("snmp", "netstat", "snmp6", "sockstat", "sockstat6")
_GLOBAL = re.compile(r" (?:mem|alloc|orphan) \d+")
_SOFTNET = ("processed", "dropped", "time_squeeze")
#: Levels, not counters: they go up and down.
_LEVELS = re.compile(
    r"(Ip\.(Forwarding|DefaultTTL)|Tcp\.(RtoAlgorithm|RtoMin|RtoMax|MaxConn|CurrEstab)|sockstat6?\..*"
    r"|qdisc\.(qlen|backlog_bytes))$"
)
_MUST = """
rx_packets tx_packets rx_bytes tx_bytes rx_dropped tx_dropped rx_errors tx_errors qdisc.drops
Ip.InReceives Ip.OutRequests Ip.InDiscards Tcp.InSegs Tcp.OutSegs Tcp.RetransSegs Udp.InDatagrams
Udp.OutDatagrams Udp.InErrors Udp.RcvbufErrors dropped time_squeeze context_switches
"""
#: Stored also when they did not move while others of the same device or namespace did: "no drops" is an answer.
_ALWAYS = frozenset(_MUST.split())
_WRAP_32 = 1 << 32
_WRAP_64 = 1 << 64


@dataclass(frozen=True, slots=True)
class NamespaceCounters:
    """One namespace: identity, MIBs, and per device (by ifindex) its name and counters."""

    inode: int
    cookie: int
    mibs: Mapping[str, int]
    devices: Mapping[int, tuple[str, Mapping[str, int]]]


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """Everything at one moment. `missing` maps namespaces that could not be read to the reason."""

    taken_s: float
    cpu: CpuTimes
    namespaces: Mapping[str, NamespaceCounters]
    missing: Mapping[str, str] = field(default_factory=dict)
    softnet: Mapping[tuple[int, str], int] = field(default_factory=dict)
    softirqs: Mapping[tuple[int, str], int] = field(default_factory=dict)
    interrupts: Mapping[tuple[int, str], int] = field(default_factory=dict)
    system: Mapping[str, int] = field(default_factory=dict)


def take(namespaces: Iterable[str], *, closing: bool = False) -> CounterSnapshot:
    """Read all counters of the machine and of the namespaces (paths such as /run/netns/x or /proc/1/ns/net).

    The CPU times are read last, directly before the run that follows; with `closing` they are read first, directly
    after the run, so that the reading itself (0.25 ms a namespace) is not in the window. A namespace that is gone or
    cannot be entered is in `missing`, not an error: the others still count.
    """
    cpu = cputime.read() if closing else None
    system = _system() if closing else None
    softirqs, interrupts = dict(_table(Path("/proc/softirqs"))), dict(_table(Path("/proc/interrupts")))
    softnet = _softnet()
    found: dict[str, NamespaceCounters] = {}
    missing: dict[str, str] = {}
    for path in dict.fromkeys(namespaces):
        try:
            found[path] = _namespace(path)
        except NsprofError as error:
            missing[path] = error.message
        except OSError as error:
            missing[path] = error.strerror or str(error)
    taken_s = time.monotonic()
    system = _system() if system is None else system
    cpu = cputime.read() if cpu is None else cpu
    return CounterSnapshot(taken_s, cpu, found, missing, softnet, softirqs, interrupts, system)


def _namespace(path: str) -> NamespaceCounters:
    with entered(path):
        number = inode("/proc/thread-self/ns/net")
        cookie, links, qdiscs = rtdump.dump()
        mibs = _Mibs("/proc/thread-self/net")
    devices: dict[int, tuple[str, Mapping[str, int]]] = {}
    for link in links:
        devices[link.ifindex] = (link.name, dict(zip(rtdump.LINK_STATS, link.stats, strict=False)))
    for qdisc in qdiscs:
        if qdisc.parent in (_ROOT, _INGRESS) and qdisc.ifindex in devices:
            values = devices[qdisc.ifindex][1]
            for name in ("qlen", "backlog_bytes", "drops", "requeues", "overlimits"):
                key = f"qdisc.{name}"
                values[key] = values.get(key, 0) + getattr(qdisc, name)  # type: ignore[index]
    return NamespaceCounters(number, cookie, mibs, devices)


class _Mibs(Mapping[str, int]):
    """The MIBs of one namespace, read now and taken apart only when somebody looks at them.

    Of a thousand namespaces nearly all stand still during a run; their texts are equal and need no parsing.
    """

    def __init__(self, folder: str) -> None:
        # sockstat's mem, alloc and orphan are the whole machine's: in a namespace's row they would mislead.
        self._texts = tuple(_GLOBAL.sub("", _text(f"{folder}/{name}")) for name in _MIB_FILES)
        self._table: dict[str, int] | None = None

    def _parsed(self) -> dict[str, int]:
        if self._table is None:
            self._table = dict(_mibs(*self._texts))
        return self._table

    def __getitem__(self, name: str) -> int:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __eq__(self, other: object) -> bool:
        return self._texts == other._texts if isinstance(other, _Mibs) else self._parsed() == other

    __hash__ = None  # type: ignore[assignment]


def _mibs(snmp: str, netstat: str, snmp6: str, *sockstats: str) -> Iterator[tuple[str, int]]:
    yield from _paired_lines(snmp)
    yield from _paired_lines(netstat)
    for line in snmp6.splitlines():
        # Ip6InReceives -> Ip6.InReceives
        match = re.match(r"(Ip6|Icmp6|Udp6|UdpLite6)(\S+)\s+(\d+)", line)
        if match:
            yield f"{match[1]}.{match[2]}", int(match[3])
    for name, text in zip(("sockstat", "sockstat6"), sockstats, strict=True):
        for line in text.splitlines():
            group, _, rest = line.partition(":")
            words = rest.split()
            for key, value in zip(words[::2], words[1::2], strict=False):
                yield f"{name}.{group}.{key}", int(value)


def _paired_lines(text: str) -> Iterator[tuple[str, int]]:
    """/proc/net/snmp and netstat: a line of names, then a line of values, each with its group in front."""
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        group, _, heads = names.partition(":")
        for head, value in zip(heads.split(), values.partition(":")[2].split(), strict=False):
            yield f"{group}.{head}", int(value)


def _text(path: str) -> str:
    """The file's text; "" where the kernel has no such file (IPv6 switched off, ...)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("ascii", "replace")


def _softnet() -> dict[tuple[int, str], int]:
    """/proc/net/softnet_stat: hexadecimal 32-bit columns, one line an online CPU (its number is column 13)."""
    found = {}
    for position, line in enumerate(_text("/proc/net/softnet_stat").splitlines()):
        columns = [int(word, 16) for word in line.split()]
        cpu = columns[12] if len(columns) > 12 else position
        found.update({(cpu, name): value for name, value in zip(_SOFTNET, columns, strict=False)})
        if len(columns) > 9:
            found[(cpu, "received_rps")] = columns[9]
    return found


def _table(path: Path) -> Iterator[tuple[tuple[int, str], int]]:
    """/proc/softirqs and /proc/interrupts: a column a CPU, a row a vector; interrupts get their driver's name."""
    try:
        lines = path.read_text(errors="backslashreplace").splitlines()
    except OSError:
        return
    cpus = [int(word[3:]) for word in lines[0].split() if word.startswith("CPU")] if lines else []
    for line in lines[1:]:
        vector, _, rest = line.partition(":")
        words = rest.split()
        numbers = words[: len(cpus)]
        if len(numbers) < len(cpus) or not all(word.isdigit() for word in numbers):
            continue  # ERR and MIS have one number for the whole machine
        label = " ".join([vector.strip(), *words[len(cpus) :][-1:]])
        for cpu, word in zip(cpus, numbers, strict=True):
            yield (cpu, label), int(word)


def _system() -> dict[str, int]:
    found = {}
    names = {"ctxt": "context_switches", "intr": "interrupts", "softirq": "softirqs", "processes": "forks"}
    for line in _text("/proc/stat").splitlines():
        key, _, rest = line.partition(" ")
        if key in names:
            found[names[key]] = int(rest.split()[0])
    return found


def delta(
    before: CounterSnapshot, after: CounterSnapshot, run_index: int, namespace_index: Mapping[str, int]
) -> tuple[Counter, ...]:
    """How every counter moved, as rows of a profile; those that did not move are left out but for a few.

    `namespace_index` maps the paths given to `take` to index + 1 in the profile. A device or namespace that came
    or went, or another namespace under the same path, has no delta and no row (see `lost_namespaces`).
    """
    rows: list[Counter] = []
    for path, end in after.namespaces.items():
        begin = before.namespaces.get(path)
        if begin is None or not _same(begin, end):
            continue
        namespace = namespace_index.get(path, 0)
        for ifindex, (device, values) in end.devices.items():
            if ifindex in begin.devices:
                blank = Counter(run_index, "device", namespace, device, -1, "", 0, 0)
                rows += _differences(blank, begin.devices[ifindex][1], values)
        blank = Counter(run_index, "netns", namespace, "", -1, "", 0, 0)
        rows += _differences(blank, begin.mibs, end.mibs)
    rows += _per_cpu("softnet", run_index, before.softnet, after.softnet)
    rows += _per_cpu("softirq", run_index, before.softirqs, after.softirqs)
    rows += _per_cpu("irq", run_index, before.interrupts, after.interrupts)
    rows += _differences(Counter(run_index, "system", 0, "", -1, "", 0, 0), before.system, after.system)
    rows += _cpu_rows(before, after, run_index)
    return tuple(rows)


def _differences(blank: Counter, begin: Mapping[str, int], end: Mapping[str, int]) -> list[Counter]:
    """Rows like `blank` for what moved; if anything did, also for those that tell by not moving."""
    if begin == end:
        return []
    rows, still = [], []
    for name, value in end.items():
        start = begin.get(name, 0)
        if value == start:
            if name in _ALWAYS:
                still.append(blank._replace(name=name, start=float(start), delta=0.0))
            continue
        bits = 32 if blank.scope == "softnet" or name.startswith("qdisc.") else 64
        moved = _moved(name, start, value, bits=bits)
        if moved is not None:
            rows.append(blank._replace(name=name, start=float(start), delta=float(moved)))
    return rows + still if rows else []


def _per_cpu(
    scope: str, run: int, begin: Mapping[tuple[int, str], int], end: Mapping[tuple[int, str], int]
) -> Iterator[Counter]:
    for cpu in dict.fromkeys(cpu for cpu, _ in end):
        first = {name: value for (at, name), value in begin.items() if at == cpu}
        last = {name: value for (at, name), value in end.items() if at == cpu and (at, name) in begin}
        yield from _differences(Counter(run, scope, 0, "", cpu, "", 0, 0), first, last)


def _cpu_rows(before: CounterSnapshot, after: CounterSnapshot, run: int) -> Iterator[Counter]:
    for cpu, busy in busy_seconds(before, after).items():
        yield Counter(run, "cpu", 0, "", cpu, "busy_s", 0.0, busy)
    for cpu, stolen in after.cpu.steal_s.items():
        moved = stolen - before.cpu.steal_s.get(cpu, stolen)
        if moved > 0:
            yield Counter(run, "cpu", 0, "", cpu, "steal_s", before.cpu.steal_s[cpu], moved)


def _moved(name: str, start: int, end: int, *, bits: int) -> int | None:
    """end - start with one wrap-around allowed for; None when the counter was reset (then nothing is known)."""
    if end >= start or _LEVELS.match(name):
        return end - start
    if start < _WRAP_32 and (bits == 32 or start > _WRAP_32 // 2):
        return end + _WRAP_32 - start
    if start > _WRAP_64 // 2 and end < _WRAP_64 // 4:
        return end + _WRAP_64 - start
    return None


def _same(begin: NamespaceCounters, end: NamespaceCounters) -> bool:
    """The same namespace, not a later one with a reused inode (told by the cookie where there are cookies)."""
    return begin.inode == end.inode and begin.cookie == end.cookie


def lost_namespaces(before: CounterSnapshot, after: CounterSnapshot) -> dict[str, str]:
    """Namespaces whose counters cannot be told for the run, with the reason in words."""
    lost = dict(before.missing)
    for path, begin in before.namespaces.items():
        if path in after.missing:
            lost[path] = f"it vanished during the run ({after.missing[path]})"
        elif path in after.namespaces and not _same(begin, after.namespaces[path]):
            lost[path] = "another namespace has taken its place during the run"
    return lost


def busy_seconds(before: CounterSnapshot, after: CounterSnapshot) -> dict[int, float]:
    """CPU -> seconds neither idle nor waiting for I/O between two snapshots."""
    return cputime.busy_seconds(before.cpu, after.cpu)


def wall_seconds(before: CounterSnapshot, after: CounterSnapshot) -> float:
    """Length of the window that `busy_seconds` is about."""
    return cputime.wall_seconds(before.cpu, after.cpu)


def steal_seconds(before: CounterSnapshot, after: CounterSnapshot) -> float:
    """Seconds that the hypervisor took from this machine's CPUs, all together (in ticks of 10 ms)."""
    pairs = ((s, before.cpu.steal_s.get(cpu)) for cpu, s in after.cpu.steal_s.items())
    return sum(max(0.0, s - b) for s, b in pairs if b is not None)


def reference_denominators(
    rows: Iterable[Counter], *, namespace: int, device: str, ends: Sequence[int] = ()
) -> dict[str, float]:
    """What the counters give to divide by: "skb" and "segment" (only those that moved).

    skb: rx + tx packets of the reference device `device` in `namespace` (index + 1); tx alone for loopback.
    segment: MTU-size segments in the direction in which more bytes flow, found from `ends`, the namespaces of the
    two ends of the traffic: Tcp.OutSegs of the sender, or for anything but TCP the receiver's IpExt.In*Pkts. Where
    only one end is known, that must be the one meant, else there is no such figure.
    """
    table: dict[tuple[str, int, str, str], float] = {}
    for row in rows:
        table[row.scope, row.namespace, row.device, row.name] = row.delta
    # Loopback receives what it sends: each packet would be counted twice.
    ways = ("tx_packets",) if device == "lo" else ("rx_packets", "tx_packets")
    skbs = sum(table.get(("device", namespace, device, name), 0.0) for name in ways)
    found = {"skb": skbs} if skbs > 0 else {}

    def mib(end: int, name: str) -> float:
        return table.get(("netns", end, "", name), 0.0)

    def arrived(end: int) -> float:
        names = ("InNoECTPkts", "InECT0Pkts", "InECT1Pkts", "InCEPkts")
        v4 = sum(mib(end, f"IpExt.{name}") for name in names)
        return v4 + sum(mib(end, f"Ip6.{name}") for name in names)

    def octets(end: int, way: str) -> float:
        return mib(end, f"IpExt.{way}Octets") + mib(end, f"Ip6.{way}Octets")

    known = [end for end in dict.fromkeys(ends) if end]
    if not known:
        return found
    sender = max(known, key=lambda end: octets(end, "Out") - octets(end, "In"))
    receiver = min(known, key=lambda end: octets(end, "Out") - octets(end, "In"))
    is_tcp = mib(sender, "Tcp.OutSegs") > mib(sender, "Udp.OutDatagrams") + mib(sender, "Udp6.OutDatagrams")
    if is_tcp and (sender != receiver or octets(sender, "Out") >= octets(sender, "In")):
        segments = mib(sender, "Tcp.OutSegs")
    elif sender != receiver or octets(receiver, "In") >= octets(receiver, "Out"):
        segments = arrived(receiver)
    else:
        segments = 0.0  # only the sending end is known: what came back to it is not what was sent
    if segments > 0:
        found["segment"] = segments
    return found

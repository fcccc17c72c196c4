"""The ledger against the kernel's own counters, and where fragmentation starts.

MIBs are read before the probes are attached and after they are detached, so on a busy namespace they may be a few
events ahead; in a namespace that only the workload uses they are equal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from nsprof.analyse.ledger_shed import Sheds
from nsprof.model.ledger import Reconciled
from nsprof.model.profile import LedgerLine, Profile
from nsprof.units import counted as in_words

__all__ = ["fragmentation", "reconcile"]

_Moved = Mapping[int, Mapping[str, int]]  # namespace + 1 -> MIB -> how far it moved
#: Above this the kernel has no more of an event than packets in flight at the window's edges explain.
_EDGE_SHARE, _EDGE_EVENTS = 0.01, 8
_EDGES = "no more than passes while probes are attached and detached"
_UNKNOWN = "differs; cause not known"


def _moved(profile: Profile, runs: Sequence[int]) -> dict[int, dict[str, int]]:
    wanted = set(runs)
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in profile.counters:
        if row.run in wanted and row.scope == "netns":
            found[row.namespace][row.name] += int(row.delta)
    return found


def _by_namespace(lines: Iterable[LedgerLine], what: str) -> dict[int, dict[int, int]]:
    """namespace + 1 -> device + 1 -> calls."""
    found: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line.what == what:
            found[line.namespace][line.device] += line.calls
    return found


def reconcile(
    profile: Profile,
    runs: Sequence[int],
    lines: Sequence[LedgerLine],
    sheds: Sheds | None = None,
    counts: Callable[[int], bool] = bool,
) -> tuple[Reconciled, ...]:
    """One row an event and namespace for which the kernel counts too, where either side saw any.

    Namespaces for which `counts` is false are left out. What a shed probe counted is not compared.
    """
    moved = _moved(profile, runs)

    def mib(space: int, *names: str) -> int:
        return sum(moved[space].get(name, 0) for name in names) if space in moved else 0

    rows: list[Reconciled] = []

    def compare(what: str, of: Mapping[int, int], names: tuple[str, ...], probes: tuple[str, ...]) -> None:
        shed_s = sheds.first_s(runs, probes) if sheds else math.nan
        for space in filter(counts, moved):
            counted, kernel = of.get(space, 0), mib(space, *names)
            if counted or kernel:
                verdict = _verdict(counted, kernel) if math.isnan(shed_s) else "shed"
                why = {"yes": "", "edges": _EDGES, "shed": f"its probe was shed at {shed_s:g} s"}.get(verdict)
                rows.append(
                    Reconciled(
                        what,
                        profile.namespace_label(space),
                        counted,
                        " + ".join(names),
                        kernel,
                        verdict,
                        _shown(profile, runs, probes, counted < kernel) if why is None else why,
                    )
                )

    sent, received = _by_namespace(lines, "fragments tx"), _by_namespace(lines, "fragments rx")
    made = {space: _made(sent[space], received.get(space, {})) for space in sent}
    compare("fragments made", made, ("Ip.FragCreates", "Ip6.FragCreates"), ("xmit", "receive"))
    by_function = _total(lines, "reassembly")
    asked = by_function or {s: max(d.values(), default=0) for s, d in received.items()}
    requests = ("Ip.ReasmReqds", "Ip6.ReasmReqds")
    passing = {s: n for s, n in asked.items() if mib(s, *requests) or not sent.get(s)}  # a router passes them on
    compare(
        "fragments to reassemble", passing, requests, ("ip_defrag", "ipv6_frag_rcv") if by_function else ("receive",)
    )
    again = _total(lines, "TCP retransmission")
    tcp = {s: n - again.get(s, 0) for s, n in _total(lines, "TCP segments sent").items()}
    compare("TCP segments sent", tcp, ("Tcp.OutSegs",), ("queue", "resend"))
    compare("UDP sent", _total(lines, "UDP sent"), ("Udp.OutDatagrams", "Udp6.OutDatagrams"), ("queue",))
    compare("TCP retransmission", again, ("Tcp.RetransSegs",), ("resend",))
    drops: dict[int, int] = defaultdict(int)
    for line in lines:
        if line.what == "drop" and line.detail in ("UDP_CSUM", "TCP_CSUM", "IP_CSUM", "ICMP_CSUM"):
            drops[line.namespace] += line.calls
    errors = ("Udp.InCsumErrors", "Udp6.InCsumErrors", "Tcp.InCsumErrors", "Icmp.InCsumErrors")
    compare("checksum errors", drops, errors, ("drop",))
    return tuple(rows)


def _shown(profile: Profile, runs: Sequence[int], probes: Sequence[str], fewer: bool) -> str:
    """Why a count differs, as far as the profile shows it: its probe did not stand, or its table was full."""
    stood = {probe.name for probe in profile.probes if probe.state != "refused"}
    refused = {probe.name for probe in profile.probes if probe.state == "refused"} - stood
    gone = [name for name in probes if name in refused]
    if fewer and gone:
        return f"probe {' and '.join(gone)} was refused"
    lost = sum(max(profile.runs[run].losses.map_full, 0) for run in runs)
    if fewer and lost:
        return f"{in_words(lost, 'event')} of all kinds missing (table full)"
    return _UNKNOWN


def _made(sent: Mapping[int, int], received: Mapping[int, int]) -> int:
    """Fragments made in a namespace: what leaves it without having come in.

    A packet that leaves by a bridge's port leaves by the bridge as well; equal counts at two devices are one.
    """
    distinct = sum(set(sent.values()))
    return max(distinct - sum(set(received.values())), 0)


def _total(lines: Iterable[LedgerLine], what: str) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for line in lines:
        if line.what == what:
            found[line.namespace] += line.calls
    return found


def _verdict(counted: int, kernel: int) -> str:
    if counted == kernel:
        return "yes"
    return "edges" if 0 < kernel - counted <= max(_EDGE_EVENTS, _EDGE_SHARE * kernel) else "no"


def fragmentation(
    profile: Profile, runs: Sequence[int], lines: Sequence[LedgerLine], sheds: Sheds | None = None
) -> str:
    """In one sentence: whether packets were fragmented, where that starts, and where the fragments go.

    Nothing of that can be told from counts that stopped early.
    """
    moved = _moved(profile, runs)
    shed = {name: sheds.first_s(runs, (name,)) for name in ("xmit", "receive")} if sheds else {}
    early = [f"{name} at {time_s:g} s" for name, time_s in shed.items() if not math.isnan(time_s)]
    if early:
        made = sum(row.get(name, 0) for row in moved.values() for name in ("Ip.FragCreates", "Ip6.FragCreates"))
        return f"Where fragmentation starts is unknown: probes that see it were shed ({', '.join(early)})" + (
            f"; the kernel counts {made:,} fragments made." if made else "."
        )
    sent, received = _by_namespace(lines, "fragments tx"), _by_namespace(lines, "fragments rx")
    arrived = [(n, s, d) for s, devices in received.items() for d, n in devices.items() if d]
    if not sent and not arrived:
        seen = {(line.namespace, line.device) for line in lines if line.what in ("skb tx", "skb rx")}
        packets = sum(line.calls for line in lines if line.what in ("skb tx", "skb rx"))
        if not packets:
            return "Fragmentation is unknown: no packet was seen at any device."
        count = in_words(packets, "packet")
        unread = [p for p in profile.probes if p.name in ("xmit", "receive") and "no segments, fragments" in p.reason]
        if unread:
            return f"Fragmentation is unknown: the headers of {count} could not be read (lockdown)."
        return f"No fragmentation: none of {count} seen at {in_words(len(seen), 'device')} was an IP fragment."

    def creates(space: int) -> int:
        return sum(moved.get(space, {}).get(name, 0) for name in ("Ip.FragCreates", "Ip6.FragCreates"))

    starts = [
        (n, s, d)
        for s, devices in sent.items()
        for d, n in devices.items()
        if creates(s) or not received.get(s)  # they were made here, or at least did not come in here
    ]
    if not starts:
        n, space, device = max([*arrived, *((n, s, d) for s, ds in sent.items() for d, n in ds.items())])
        return (
            f"Fragments pass {_at(profile, space, device)} ({n:,}), made outside the namespaces that were observed."
        )
    parts = []
    # Namespaces whose counters say so come before those that only passed by.
    for n, space, device in sorted(starts, key=lambda row: (creates(row[1]) > 0, row[0]), reverse=True)[:3]:
        whole = sum(moved.get(space, {}).get(name, 0) for name in ("Ip.FragOKs", "Ip6.FragOKs"))
        mtus = {x.detail for x in lines if (x.namespace, x.device, x.what) == (space, device, "fragments tx")}
        datagrams = f"{whole:,} datagrams leave as " if whole and creates(space) == n else ""
        parts.append(f"{_at(profile, space, device)} ({', '.join(sorted(mtus))}): {datagrams}{n:,} fragments")
    ends = [f"{_at(profile, s, d)} receives {n:,}" for n, s, d in sorted(arrived, reverse=True)[:2]]
    return f"Fragmentation starts at {'; and at '.join(parts)}" + (f"; {', '.join(ends)}" if ends else "") + "."


def _at(profile: Profile, space: int, device: int) -> str:
    return f"{profile.device_label(device)} in {profile.namespace_label(space)}"

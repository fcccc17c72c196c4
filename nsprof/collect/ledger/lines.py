"""From the ledger's tables to ledger lines: what the bits of `detail` mean, names for places, stacks for callers.

Lines of hops are derived from three counts a device (queued, sent, received) by what the packets looked like there.
Software checksums and software segmentation are then inferred from what changes between queueing and sending; where
the functions themselves are probed, the inferred lines carry "(inferred)" in their name, so that nothing is counted
twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.bpf import btf
from nsprof.collect.ledger.counting import Batch
from nsprof.collect.ledger.names import GRO_RESULTS, Function, hook_name
from nsprof.collect.ledger.probes import FIRST_FUNCTION
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.kernelnames import SOFTIRQ_ENTRY, fold_suffixes
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Device, FrameKind, LedgerLine, Namespace

__all__ = ["add_lines"]

_QUEUE, _XMIT, _RECEIVE, _BUSY, _DROP, _BACKLOG, _RESEND, _TO_USER, _GRO = range(9)
_SENT, _READ = 10, 11
_GSO, _FRAGMENT, _OVER_MTU, _LOCAL, _FIRST, _UNSUMMED, _UNREAD = 1, 2, 4, 8, 16, 512, 1024
#: Of what sockets take and give.
_FAILED, _MAY_NOT_COPY, _WHOLE_LENGTH = 1, 2, 4
_NONE, _PARTIAL = 0, 3  # skb->ip_summed
_UDP, _TCP = 1, 2
_PLACE = {_QUEUE: "queued", _XMIT: "tx", _RECEIVE: "rx"}
#: A copy under one of these is the network's; others are files', pipes', or local sockets' (unix, netlink).
_NETWORK = re.compile(
    r"^(inet6?_(send|recv)msg|(udp|udpv6|udplite|tcp|mptcp|raw|rawv6|sctp|ping|packet)_(v[46]_)?(send|recv)msg(_locked)?"
    r"|tun_(get_user|do_read|chr_\w+)|tap_(get_user|do_read)|vhost_\w+|xsk_\w+)$"
)
#: What the probe itself puts above its caller.
_OWN_FRAMES = (
    "bpf_",
    "__bpf_",
    "__traceiter_",
    "trace_call_bpf",
    "perf_call_bpf",
    "kprobe_",
    "arch_rethook",
    "opt_pre",
)
_OWN_DEPTH = 8
#: What a count of rules says of itself.
_RULES = "of base chains: a verdict walks fewer, a jump more"


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    bytes: int = 0
    segments: int = 0
    payload: int = 0

    def add(self, other: np.void) -> None:
        self.calls += int(other["calls"])
        self.bytes += int(other["bytes"])
        self.segments += int(other["segments"])
        self.payload += int(other["payload"])


class _Maker:
    """Makes lines for one run; equal (what, detail, place, stack) are one line."""

    def __init__(
        self,
        builder: ProfileBuilder,
        run: int,
        namespace_of: Callable[[int, int], Namespace],
        device_of: Callable[[int, int, int], Device | None],
    ) -> None:
        self.builder, self.run = builder, run
        self.namespace_of, self.device_of = namespace_of, device_of
        self.rows: dict[tuple[str, str, int, int, int], list[int]] = {}

    def place(self, inode: int, cookie: int, ifindex: int) -> tuple[int, int]:
        """(namespace + 1, device + 1), 0 where unknown."""
        if not inode:
            return 0, 0
        space = self.builder.namespace(self.namespace_of(inode, cookie))
        if not ifindex:
            return space, 0
        known = self.device_of(inode, cookie, ifindex)
        name = known.name if known is not None else f"if{ifindex}"
        return space, self.builder.device(Device(space, ifindex, name))

    def add(
        self, what: str, place: tuple[int, int], calls: int, size: int = -1, detail: str = "", stack: int = -1
    ) -> None:
        if calls <= 0:
            return
        row = self.rows.setdefault((what, detail, *place, stack), [0, 0 if size >= 0 else -1])
        row[0] += calls
        if size >= 0:
            row[1] = max(row[1], 0) + size

    def finish(self) -> None:
        self.builder.ledger.extend(
            LedgerLine(self.run, what, detail, space, device, stack, calls, size)
            for (what, detail, space, device, stack), (calls, size) in self.rows.items()
        )


def add_lines(
    builder: ProfileBuilder,
    batch: Batch,
    run: int,
    *,
    namespace_of: Callable[[int, int], Namespace],
    device_of: Callable[[int, int, int], Device | None],
    symbols: KernelSymbols,
) -> None:
    """Add a batch as ledger lines of `run`."""
    make = _Maker(builder, run, namespace_of, device_of)
    stacks = {key: _stack(builder, addresses, symbols) for key, addresses in batch.stacks.items()}
    keys, values = batch.rows[0]
    reasons = btf.kernel_types().enumerators("skb_drop_reason")
    standing = [p for p in batch.functions if p.function is not None and p.rung != "none"]
    probed = {p.function.what for p in standing if p.function is not None} | {p.name for p in standing}
    probed |= {p.target for p in batch.events if p.rung != "none"}
    hops: dict[tuple[int, int], dict[tuple[int, int], _Sum]] = defaultdict(lambda: defaultdict(_Sum))
    for key, value in zip(keys, values, strict=True):
        place = make.place(int(key["inode"]), int(key["cookie"]), int(key["ifindex"]))
        what, detail = int(key["what"]), int(key["detail"])
        if what in _PLACE:
            hops[place][what, detail].add(value)
        else:
            _event(make, place, what, detail, value, stacks.get((0, int(key["stack"])), (-1, ())), reasons, probed)
    for place, counts in hops.items():
        _hop_lines(make, place, counts)
        _inferred(make, place, counts, probed)
    if len(batch.rows) > 1:
        _function_lines(make, batch, stacks, probed)
    make.finish()
    # Each pass sheds on its own, and a profile's row of a probe is about all passes: these lines tell them apart.
    builder.ledger.extend(
        LedgerLine(run, "probe shed", f"{name} at {after_s:.1f} s", 0, 0, -1, 0, -1)
        for name, after_s in batch.shed_s.items()
    )


def _stack(
    builder: ProfileBuilder, addresses: NDArray[np.uint64], symbols: KernelSymbols
) -> tuple[int, tuple[str, ...]]:
    """A stack's index in the profile and its names, leaf first, without the probe's own frames."""
    found = [symbols[row] for row in symbols.rows(addresses).tolist()]
    own = [
        number
        for number, s in enumerate(found[:_OWN_DEPTH])
        if s.kind in (FrameKind.PROFILER, FrameKind.BPF) or s.name.startswith(_OWN_FRAMES)
    ]
    found = found[own[-1] + 1 :] if own else found
    while found and found[0].kind == FrameKind.UNKNOWN:  # the program and its trampoline, gone since
        found.pop(0)
    if not found:
        return -1, ()
    frames = [builder.frame(s.name or "[unknown]", s.module, int(s.kind)) for s in found]
    return builder.stack(frames), tuple(fold_suffixes(s.name) for s in found)


def _event(
    make: _Maker,
    place: tuple[int, int],
    what: int,
    detail: int,
    value: np.void,
    stack: tuple[int, tuple[str, ...]],
    reasons: Mapping[int, str],
    probed: set[str],
) -> None:
    calls, size = int(value["calls"]), int(value["bytes"])
    if what == _BUSY:
        make.add("requeue", place, calls, size, "driver busy" if detail == 0x10 else f"status {detail}")
    elif what == _DROP:
        reason = reasons.get(detail, "").removeprefix("SKB_DROP_REASON_").removeprefix("SKB_")
        make.add("drop", place, calls, size, reason or f"reason {detail}", stack[0])
    elif what == _BACKLOG:
        make.add("backlog" if "backlog" not in probed else "backlog (netif_rx)", place, calls, size)
    elif what == _RESEND:
        make.add("TCP retransmission", place, calls, size)
    elif what == _TO_USER:
        # Unix and netlink sockets' readers pass here too, small UDP datagrams do not: whatever else stands is better.
        instead = {"copy to user", "sock_recv_length"} & probed
        make.add("skb read by user" if instead else "copy to user", place, calls, size)
    elif what == _GRO:
        make.add("GRO", place, calls, -1, GRO_RESULTS.get(detail, f"verdict {detail}"))
    elif what in (_SENT, _READ):
        _copied(
            make, place, "sock_send_length" if what == _SENT else "sock_recv_length", detail, value, stack, probed
        )


def _copied(
    make: _Maker,
    place: tuple[int, int],
    source: str,
    detail: int,
    value: np.void,
    stack: tuple[int, tuple[str, ...]],
    probed: set[str],
) -> None:
    """A socket call's result as a copy between user space and kernel, if that is what it was; `source` told it."""
    sending = "send" in source
    what = "copy from user" if sending else "copy to user"
    exact = "_copy_from_iter" if sending else "_copy_to_iter"
    calls, size = int(value["calls"]), int(value["bytes"])
    how = f"bytes that sockets {'took' if sending else 'gave'} ({source})"
    if exact in probed:
        what = "sent by user" if sending else "read by user"
    if detail & _FAILED:
        make.add("send failed", place, calls, -1, f"what it copied before is unknown ({source})", stack[0])
    elif sending and any(name.startswith(("splice_", "direct_splice_", "sock_sendpage")) for name in stack[1]):
        make.add("pages sent without a copy", place, calls, size, f"sendfile or splice ({source})", stack[0])
    elif sending and detail & _MAY_NOT_COPY:
        known = source != "sock_send_length"  # the function's flags tell, the socket's option does not
        name = "pages sent without a copy" if known else "copied or sent without a copy"
        why = "MSG_ZEROCOPY" if known else "SO_ZEROCOPY is set: which of both is unknown"
        make.add(name, place, calls, size, f"{why} ({source})", stack[0])
    elif detail & _WHOLE_LENGTH:
        make.add("read with MSG_TRUNC", place, calls, size, f"copied at most ({source})", stack[0])
    else:
        make.add(what, place, calls, size, how, stack[0])


def _hop_lines(make: _Maker, place: tuple[int, int], counts: Mapping[tuple[int, int], _Sum]) -> None:
    for (what, bits), row in counts.items():
        where, mtu = _PLACE[what], f"MTU {bits >> 32}"
        make.add(f"skb {where}", place, row.calls, row.bytes, mtu)
        if bits & _UNREAD:
            if what == _XMIT and bits >> 7 & 3 == _PARTIAL:
                make.add("checksum left to device", place, row.calls)
            continue
        make.add(f"segments {where}", place, row.segments)
        if bits & _GSO:
            make.add(f"GSO {where}", place, row.calls, row.bytes)
        if what == _QUEUE:
            transport = bits >> 5 & 3
            if bits & _LOCAL and transport in (_UDP, _TCP) and bits & _FIRST:
                make.add("UDP sent" if transport == _UDP else "TCP segments sent", place, row.segments, row.payload)
            continue
        if bits & _FRAGMENT:
            make.add(f"fragments {where}", place, row.calls, row.bytes, mtu)
        if bits & _OVER_MTU:
            make.add(f"over MTU {where}", place, row.calls, row.bytes, mtu)
        if what == _XMIT and bits >> 7 & 3 == _PARTIAL:
            make.add("checksum left to device", place, row.calls, row.payload)


def _inferred(make: _Maker, place: tuple[int, int], counts: Mapping[tuple[int, int], _Sum], probed: set[str]) -> None:
    """Software checksums and segmentation, seen from what differs between a device's queue and its transmissions."""

    def total(what: int, test: Callable[[int], bool]) -> _Sum:
        found = _Sum()
        for (where, bits), row in counts.items():
            if where == what and test(bits):
                found.calls += row.calls
                found.payload += row.payload
        return found

    def unsummed(bits: int) -> bool:
        return bits >> 7 & 3 == _NONE and bits >> 5 & 3 in (_UDP, _TCP)

    name = "checksum (inferred)" if "skb_checksum_help" in probed else "checksum"
    queued, sent = total(_QUEUE, unsummed), total(_XMIT, unsummed)
    if sent.calls > queued.calls and sent.payload > queued.payload:
        how = "made between queue and device (seen from tracepoints)"
        make.add(name, place, sent.calls - queued.calls, sent.payload - queued.payload, how)

    # Several fragments are one datagram: its checksum was made once, over all of them.
    def made_in_copy(bits: int) -> bool:
        return bool(unsummed(bits) and bits & _LOCAL and bits >> 5 & 3 == _UDP and not bits & _UNSUMMED)

    name = "checksum (inferred)" if "csum_and_copy_from_iter" in probed else "checksum"
    first = total(_QUEUE, lambda bits: made_in_copy(bits) and bool(bits & _FIRST))
    copied = total(_QUEUE, made_in_copy)
    make.add(name, place, first.calls, copied.payload, "made while copying from user (seen from tracepoints)")

    name = "gso software (inferred)" if "gso software" in probed else "gso software"
    whole = total(_QUEUE, lambda bits: bool(bits & _GSO)).calls - total(_XMIT, lambda bits: bool(bits & _GSO)).calls
    more = total(_XMIT, lambda bits: True).calls - total(_QUEUE, lambda bits: True).calls
    if whole > 0 and more > 0:
        make.add(name, place, whole, -1, f"into {more + whole} skbs (seen from tracepoints)")


def _function_lines(
    make: _Maker, batch: Batch, stacks: Mapping[tuple[int, int], tuple[int, tuple[str, ...]]], probed: set[str]
) -> None:
    by_slot = {probe.slot: probe for probe in batch.functions}
    for key, value in zip(*batch.rows[1], strict=True):
        probe = by_slot.get(int(key["what"]) - FIRST_FUNCTION)
        if probe is None or probe.function is None:
            continue
        index, names = stacks.get((1, int(key["stack"])), (-1, ()))
        row = probe.function
        place = make.place(int(key["inode"]), int(key["cookie"]), int(key["ifindex"]))
        if row.user_copy and not any(map(_NETWORK.match, names)):
            continue
        if row.by_task and any(name in SOFTIRQ_ENTRY for name in names):
            place = (0, 0)  # whoever was interrupted has no part in it
        if row.body in ("sent", "got"):
            how = probe.target if probe.rung == "fexit" else f"{probe.target}, the task's namespace"
            _copied(make, place, how, int(key["detail"]), value, (index, names), probed)
            continue
        size = int(value["bytes"]) if row.body != "count" else -1
        detail = _detail(row, probe.target, int(key["detail"]))
        make.add(row.what, place, int(value["calls"]), size, detail, index)
        if row.segments:
            detail = _RULES if row.body == "chain" and not int(key["detail"]) else detail
            make.add(row.segments, place, int(value["segments"]), size if row.result else -1, detail, index)


def _detail(row: Function, name: str, bits: int) -> str:
    if row.body == "expand":
        wanted, had = bits & 0xFFFF, bits >> 16 & 0xFFFF
        reasons = []
        if wanted:
            reasons.append(f"headroom: {wanted} B more than {had} B")
        if bits >> 32 & 1:
            reasons.append("tailroom")
        if bits >> 33 & 1:
            reasons.append("cloned")
        return f"{name}: {', '.join(reasons) or 'asked for'}"
    if row.body == "chain" and bits & 1:
        return f"{name}: the chain has 1,024 rules or more"
    if row.name == "ipt_do_table":
        return f"{name}: how many rules it walked cannot be counted"
    if row.body == "hook":
        return hook_name(bits >> 8 & 0xFF, bits & 0xFF)
    return name

"""The ledger's probes: which there are, on which rung each stands, what it has cost so far.

The ladder loads and attaches; probes are held by file descriptors alone: whatever kills nsprof, nothing stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.collect import btf, ladder, loader, loader_syscall, trials
from nsprof.collect.ladder_count import with_slot
from nsprof.collect.ledger_names import EVENTS, FUNCTIONS, Event, Function, function_named
from nsprof.errors import ProbeError
from nsprof.model.profile import ProbeInfo

__all__ = ["FIRST_FUNCTION", "KEY", "STACK_DEPTH", "VALUE", "Group", "Probe", "open_functions", "open_tracepoints"]

#: Mirrors of struct ledger_key and struct ledger_value (probes/include/ledger.h).
KEY = np.dtype(
    [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4"), ("what", "u4"), ("stack", "i4"), ("detail", "u8")]
)
VALUE = np.dtype([("calls", "u8"), ("bytes", "u8"), ("segments", "u8"), ("payload", "u8")])
#: `what` of the first function's rows; tracepoints are below.
FIRST_FUNCTION = 100
STACK_DEPTH = 127
_ENTRIES, _STACKS, _SLOTS, _LOST = 16_384, 8_192, 16, 15
#: BPF_F_REUSE_STACKID: a colliding stack replaces the older one, so that the table never fills up.
_STACK_FLAGS = 1 << 10

#: Members that the programs read beside those that every program has (nsprof/collect/loader.py).
_OFFSETS = (
    *(("sk_buff", m) for m in ("len", "data_len", "data", "tail", "end", "sk", "skb_iif", "network_header")),
    *(("sk_buff", m) for m in ("csum_start", "protocol", "users")),
    *(("skb_shared_info", m) for m in ("gso_size", "gso_segs", "dataref")),
    ("sk_buff", "next"),
    ("net_device", "mtu"),
    ("sock", "__sk_common.skc_net.net"),
    ("nft_pktinfo", "skb"),
)


def defines() -> dict[str, int | str]:
    """What the ledger's programs are compiled with. Raises ProbeError when this kernel's skb has another shape."""
    types = btf.kernel_types()
    made: dict[str, int | str] = {
        "LEDGER_ENTRIES": _ENTRIES,
        "LEDGER_STACKS": _STACKS,
        "LEDGER_STACK_FLAGS": _STACK_FLAGS,
    }
    for struct, path in _OFFSETS:
        at = types.member(struct, path)
        if at is not None:
            made[f"OFF_{struct}_{path.replace('.', '_')}"] = at
    summed, users = types.bit_member("sk_buff", "ip_summed"), types.member("sk_buff", "users")
    if summed is None or users is None:
        raise ProbeError("the ledger cannot read this kernel's sk_buff: it has no ip_summed or no users")
    made |= {
        "LEDGER_SUMMED_BYTE": summed // 8,
        "LEDGER_SUMMED_SHIFT": summed % 8,
        "LEDGER_SKB_WORDS": (users + 4 + 7) // 8,
    }
    return made


@dataclass(slots=True)
class Probe:
    """One probe of the ledger; `slot` counts its hits. `codes` is what the ladder takes: instructions by rung.

    `details` are the verifier's words where it refused.
    """

    name: str
    target: str
    slot: int
    lost: str
    found: ladder.Found | None = None
    codes: Mapping[str, bytes] = field(default_factory=dict)
    function: Function | None = None
    attached: ladder.Attached | None = None
    rung: str = "none"
    reason: str = ""
    details: str = ""
    hits: int = 0
    attach_ms: float = 0.0
    shed: str = ""

    def attach(self) -> None:
        """Attach on the best rung, unless it was refused before; a refusal is kept as the reason."""
        if self.found is None:
            return
        try:
            self.attached = ladder.attach(self.found, self.codes, name=f"nsprof_{self.name.strip('_')}")
        except ProbeError as error:
            self.reason, self.details = error.message, error.details
            self.found = None
            return
        self.rung, self.attach_ms = self.attached.rung, self.attached.attach_ms
        self.reason = "; ".join(self.found.notes)

    def detach(self) -> None:
        """Detach; harmless when it is not attached."""
        if self.attached is not None:
            self.attached.close()
            self.attached = None

    def info(self, cost_ns_per_hit: float) -> ProbeInfo:
        """The row for the profile."""
        state = "shed" if self.shed else "attached" if self.rung != "none" else "refused"
        reason = self.shed or (self.reason if state == "attached" else f"{self.reason}; not counted: {self.lost}")
        return ProbeInfo(
            self.name, self.target, self.rung, state, reason, self.hits, cost_ns_per_hit, round(self.attach_ms, 3)
        )


@dataclass(slots=True)
class Group:
    """The probes of one compiled program with its maps. Close it."""

    program: loader.Program | None
    probes: list[Probe]
    slots: int = _SLOTS

    def map(self, name: str, key: object, value: object, entries: int) -> loader_syscall.MapReader:
        """A reader of one of the program's maps."""
        if self.program is None:
            raise ProbeError("the ledger's program is not loaded")
        return self.program.map(name, key, value, entries)

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All rows of the table, removed from it."""
        keys, values = self.map("ledger", KEY, VALUE, _ENTRIES).take()
        return keys, values

    def stack(self, number: int) -> NDArray[Any]:
        """Addresses of one stack, leaf first; empty when it is gone."""
        try:
            row = self.map("stacks", "u4", ("u8", (STACK_DEPTH,)), _STACKS).get(number)[0]
        except OSError:
            return np.zeros(0, "u8")
        found: NDArray[Any] = row[row != 0]
        return found

    def tally(self) -> NDArray[Any]:
        """Hits so far by slot, over all CPUs."""
        reader, cpus = self.map("hits", "u4", "u8", self.slots), loader.possible_cpus()
        return np.array([reader.get(slot, cpus).sum() for slot in range(self.slots)], "u8")

    def lost(self) -> int:
        """Events that found the table full."""
        return int(self.tally()[self.slots - 1]) if self.program is not None else 0

    def close(self) -> None:
        """Detach all and unload. Calling it twice is harmless."""
        for probe in self.probes:
            probe.detach()
        if self.program is not None:
            self.program.close()
            self.program = None


def open_tracepoints(events: Sequence[Event] = EVENTS) -> Group:
    """The tracepoints' group, ready to attach. Raises PreflightError or ProbeError where none can be had."""
    if not loader.features().probe_read:
        raise ProbeError(
            "the ledger reads packets' headers with bpf_probe_read_kernel, which this kernel refuses "
            "(lockdown=confidentiality)",
            "boot without lockdown=confidentiality; counters are in the profile all the same",
        )
    types = btf.kernel_types()
    # One flavour is compiled, that of the rung which is granted: plain loads cost a third of the helper's.
    rung = "raw_tp" if trials.reason_of(trials.tp_btf) else "tp_btf"
    program = loader.compile_program("ledger_hop", {**defines(), **({"DIRECT_LOADS": 1} if rung == "tp_btf" else {})})
    probes = []
    for slot, event in enumerate(events):
        code = program.code(event.program)
        found = ladder.Found(event.tracepoint, (), 0, (), event.tracepoint, types.tracepoint(event.tracepoint))
        name = event.program.removeprefix("ledger_")
        probes.append(Probe(name, event.tracepoint, slot, event.lost, found, {rung: code}))
    return Group(program, probes)


def open_functions(functions: Sequence[str] = ()) -> Group:
    """The functions' group: `functions` (default: the table's). Unknown names are refused rows with near misses."""
    table = [function_named(name) for name in functions] if functions else list(FUNCTIONS)
    probes = [
        Probe(row.name, row.name, slot, f"{row.what} by this function", function=row)
        for slot, row in enumerate(table)
    ]
    none = {rung: why for rung, why in _refusals().items() if why}
    if len(none) == 2:
        reason = "; ".join(f"{rung}: {why}" for rung, why in none.items())
        for probe in probes:
            probe.reason = reason
            _find(probe)  # a wrong name is a wrong name on any kernel
            probe.found = None
        return Group(None, probes)
    slots = max(len(probes) + 1, _SLOTS)
    ladder.kernel_symbols.cache_clear()  # modules may have come since
    program = loader.compile_program("ledger_calls", {**defines(), "LEDGER_SLOTS": slots, "LEDGER_LOST": slots - 1})
    for probe in probes:
        _find(probe)
        if probe.found is not None:
            probe.codes = _codes(program, probe)
    return Group(program, probes, slots)


def _refusals() -> dict[str, str]:
    return {"fentry": trials.reason_of(trials.fentry), "kprobe": trials.reason_of(trials.kprobe)}


def _find(probe: Probe) -> None:
    """Where the function is, under the first of its names that this kernel has; else the reason why not."""
    row = probe.function
    if row is None:
        return
    refused: ProbeError | None = None
    for name in (row.name, *row.also):
        try:
            probe.found = ladder.find(name)
        except ProbeError as error:
            refused = refused or error
            continue
        probe.target = name
        return
    if refused is not None:
        probe.reason = refused.message + (f" ({refused.hint})" if refused.hint else "")


def _codes(program: loader.Program, probe: Probe) -> dict[str, bytes]:
    row = probe.function
    assert row is not None  # noqa: S101 - only functions come here
    rungs = ("fexit", "kretprobe") if row.result else ("fentry", "kprobe")
    return {
        rung: with_slot(program.code(f"{'traced' if rung[0] == 'f' else 'probed'}_{row.body}"), probe.slot)
        for rung in rungs
    }

"""The ledger's probes: which there are, on which rung each stands, what it has cost so far.

The ladder loads and attaches; probes are held by file descriptors alone: whatever kills nsprof, nothing stays.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.bpf import btf, loader
from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.checks import trials
from nsprof.collect.ladder import attach as ladder_attach
from nsprof.collect.ladder import finding as ladder
from nsprof.collect.ladder.batch import attach_batch, load_batch
from nsprof.collect.ladder.count import with_slot
from nsprof.collect.ledger.names import EVENTS, FUNCTIONS, Event, Function, function_named
from nsprof.errors import PreflightError, ProbeError
from nsprof.model.profile import ProbeInfo

__all__ = [
    "FIRST_FUNCTION",
    "KEY",
    "NFT_MODULE",
    "STACK_DEPTH",
    "VALUE",
    "Group",
    "Probe",
    "open_functions",
    "open_tracepoints",
    "sources",
]

#: Mirrors of struct ledger_key and struct ledger_value (probes/include/ledger.h).
KEY = np.dtype(
    [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4"), ("what", "u4"), ("stack", "i4"), ("detail", "u8")]
)
VALUE = np.dtype([("calls", "u8"), ("bytes", "u8"), ("segments", "u8"), ("payload", "u8")])
#: `what` of the first function's rows; tracepoints are below.
FIRST_FUNCTION = 100
STACK_DEPTH = 127
_ENTRIES, _STACKS, _SLOTS, _LOST = 16_384, 8_192, 16, 15
#: Room for functions: one number for all sets of them, since each is a compilation of its own.
_FUNCTION_SLOTS = 64
#: BPF_F_REUSE_STACKID: a colliding stack replaces the older one, so that the table never fills up.
_STACK_FLAGS = 1 << 10

#: Members that the programs read beside those that every program has (nsprof/collect/bpf/loader.py).
_OFFSETS = (
    *(("sk_buff", m) for m in ("len", "data_len", "data", "tail", "end", "sk", "skb_iif", "network_header")),
    *(("sk_buff", m) for m in ("csum_start", "protocol", "users")),
    *(("skb_shared_info", m) for m in ("gso_size", "gso_segs", "dataref")),
    ("sk_buff", "next"),
    ("net_device", "mtu"),
    ("sock", "__sk_common.skc_net.net"),
    ("sock", "__sk_common.skc_family"),
    ("sock", "__sk_common.skc_flags"),
    ("socket", "sk"),
    ("msghdr", "msg_flags"),
    ("nf_hook_state", "hook"),
    ("nf_hook_state", "pf"),
    ("nf_hook_state", "net"),
    ("nf_hook_entries", "num_hook_entries"),
    ("net", "nft.gencursor"),
)
#: Members of nftables' own structs, in a module on most kernels; all of them are needed to count a chain's rules.
NFT_MODULE = "nf_tables"
_NFT_OFFSETS = (
    ("nft_pktinfo", "skb"),
    ("nft_pktinfo", "state"),
    ("nft_chain", "blob_gen_0"),
    ("nft_chain", "blob_gen_1"),
    ("nft_rule_blob", "data"),
    ("nft_rule_dp", "data"),
)


def sources(
    types: btf.TypeTable,
    nft: btf.TypeTable | None = None,
    *,
    reads: bool = True,
    typed: bool = True,
    functions: int = 0,
) -> dict[str, dict[str, int | str]]:
    """The ledger's programs, with the defines that each is compiled with for a kernel of these types.

    `nft` are the types of nftables, where they are apart. `reads`: bpf_probe_read_kernel is granted; `typed`: typed
    tracepoints are. `functions` is how many are probed (default: the table's). Raises ProbeError when the kernel's
    sk_buff has another shape.
    """
    common = _defines(types) | ({} if reads else {"DIRECT_LOADS": 1, "NO_READS": 1})
    slots = max((functions or len(_table(types))) + 1, _FUNCTION_SLOTS)
    own = {"LEDGER_SLOTS": slots, "LEDGER_LOST": slots - 1}
    return {
        # One flavour is compiled, that of the rung which is granted: plain loads cost a third of the helper's.
        "ledger_hop": common | ({"DIRECT_LOADS": 1} if typed else {}),
        "ledger_calls": common | own | _rule_defines(types if nft is None else nft),
    }


def _table(types: btf.TypeTable) -> list[Function]:
    """The table's functions that are to be probed beside this kernel's tracepoints."""
    return [row for row in FUNCTIONS if not row.unless or not types.tracepoint(row.unless)]


def _defines(types: btf.TypeTable) -> dict[str, int | str]:
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
    zero_copy = [number for number, name in types.enumerators("sock_flags").items() if name == "SOCK_ZEROCOPY"]
    if zero_copy:
        made["LEDGER_ZEROCOPY_BIT"] = zero_copy[0]
    return made


def _nft_types() -> btf.TypeTable | None:
    """The types of nftables where they are not the kernel's own."""
    if btf.kernel_types().member("nft_chain", "blob_gen_0") is not None:
        return None
    try:
        return btf.module_types(NFT_MODULE)
    except PreflightError:
        return None


def _rule_defines(types: btf.TypeTable) -> dict[str, int | str]:
    """Where nftables keeps a chain's rules; empty where that is not known, or not as it is since Linux 5.17."""
    found = {f"NFT_{struct}_{member}": types.member(struct, member) for struct, member in _NFT_OFFSETS}
    last, length = types.bit_member("nft_rule_dp", "is_last"), types.bit_member("nft_rule_dp", "dlen")
    known = {name: at for name, at in found.items() if at is not None}
    if len(known) < len(found) or (last, length) != (0, 1) or types.member("net", "nft.gencursor") is None:
        return {}
    return {"NFT_CHAINS": 1, **known}


@dataclass(slots=True)
class Probe:
    """One probe of the ledger; `slot` counts its hits. `codes` is what the ladder takes: instructions by rung.

    `details` are the verifier's words where it refused. `alone`: the kernel refused it as one of a batch.
    """

    name: str
    target: str
    slot: int
    lost: str
    found: ladder.Found | None = None
    codes: Mapping[str, bytes] = field(default_factory=dict)
    function: Function | None = None
    attached: ladder.Attached | Batch | None = None
    rung: str = "none"
    reason: str = ""
    details: str = ""
    hits: int = 0
    attach_ms: float = 0.0
    shed: str = ""
    alone: bool = False

    def attach(self) -> None:
        """Attach on the best rung, unless it was refused before; a refusal is kept as the reason."""
        if self.found is None or self.attached is not None:
            return
        with ladder_attach.undisturbed():
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
            with ladder_attach.undisturbed():
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
class Batch:
    """Probes with one program, attached and detached in one go (nsprof/collect/ladder/batch.py)."""

    members: list[Probe]
    fds: list[int]

    def close(self) -> None:
        """Detach all of them. Calling it twice is harmless."""
        while self.fds:
            os.close(self.fds.pop())


def batched(probe: Probe) -> bool:
    """Whether a batch can do for the probe what its own rungs can.

    Not where the arguments are wanted on return: fexit has them, and a batch has the result alone.
    """
    returns = probe.function is not None and probe.function.result
    wants_arguments = returns and probe.function is not None and probe.function.body in ("sent", "got")
    on_trap = {"kprobe", "kretprobe"} & set(probe.codes)
    return bool(on_trap and not wants_arguments and not probe.alone and probe.found and probe.found.symbols)


@dataclass(slots=True)
class Group:
    """The probes of one compiled program with its maps; `loaded` are the programs of batches. Close it."""

    program: loader.Program | None
    probes: list[Probe]
    slots: int = _SLOTS
    loaded: dict[str, int] = field(default_factory=dict)
    batches: bool = True

    def attach(self) -> None:
        """Attach all that are neither shed nor refused: in batches where the kernel grants them, else one by one."""
        waiting = [probe for probe in self.probes if not probe.shed and probe.attached is None]
        self.attach_batches(waiting)
        for probe in waiting:
            probe.attach()

    def attach_batches(self, probes: Sequence[Probe]) -> None:
        """Attach those of the probes that can be in a batch, one batch a program."""
        kinds: dict[tuple[str, bool], list[Probe]] = {}
        for probe in filter(batched, probes):
            assert probe.function is not None  # noqa: S101 - only functions are
            kinds.setdefault((probe.function.body, probe.function.result), []).append(probe)
        for members in kinds.values():
            if self.batches and not self._attach_batch(members) and len(members) > 1 and self.batches:
                for probe in members:  # one that is closed to it is refused with all others
                    self._attach_batch([probe])

    def _attach_batch(self, members: list[Probe]) -> bool:
        function, program = members[0].function, self.program
        assert function is not None and program is not None  # noqa: S101 - these have both
        begun = time.perf_counter()
        places = [(address, p.slot) for p in members if p.found for _, _, address in p.found.symbols]
        with ladder_attach.undisturbed():
            try:
                if function.body not in self.loaded:
                    code = program.code(f"probed_{function.body}")
                    self.loaded[function.body] = load_batch(code, name=f"nsprof_{function.body}")
                fds = [attach_batch(self.loaded[function.body], places, on_return=function.result)]
            except (OSError, ProbeError) as error:
                if isinstance(error, OSError) and error.errno == errno.EOPNOTSUPP:
                    self.batches = False  # not this kernel's (CONFIG_FPROBE)
                if len(members) == 1:
                    members[0].alone = True  # the ladder will say why, where it finds no other rung
                return False
            batch = Batch(members, fds)
            for probe in members:
                probe.attached, probe.rung = batch, "kprobe_multi"
        for probe in members:
            probe.attach_ms = (time.perf_counter() - begun) * 1e3 / len(members)
            probe.reason = "; ".join(probe.found.notes if probe.found else ())
        return True

    def remove(self, probe: Probe) -> None:
        """Detach one for good; those that shared its batch are attached anew, and miss what passes meanwhile."""
        batch = probe.attached
        probe.detach()
        if isinstance(batch, Batch):
            others = [each for each in batch.members if each is not probe]
            for each in others:
                each.attached = None
            if others and not self._attach_batch(others):
                for each in others:
                    each.attach()

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

    def open_gate(self, open_: bool) -> None:
        """From here on events are booked, or no longer."""
        self.map("gate", "u4", "u4", 1).set(0, np.array([open_], "u4"))

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
        while self.loaded:
            os.close(self.loaded.popitem()[1])
        if self.program is not None:
            self.program.close()
            self.program = None


#: What a tracepoint's row says where packets' heads cannot be read.
UNREAD = "lockdown refuses bpf_probe_read_kernel: no segments, fragments, payloads, nor checksums made in software"


def open_tracepoints(events: Sequence[Event] = EVENTS) -> Group:
    """The tracepoints' group, ready to attach. Raises PreflightError or ProbeError where none can be had."""
    types = btf.kernel_types()
    rung = "raw_tp" if trials.reason_of(trials.tp_btf) else "tp_btf"
    reads = loader.features().probe_read
    if not reads and rung == "raw_tp":
        raise ProbeError(
            "the ledger reads packets by typed tracepoints or bpf_probe_read_kernel, and this kernel refuses both",
            "boot without lockdown=confidentiality; counters are in the profile all the same",
        )
    given = sources(types, reads=reads, typed=rung == "tp_btf")
    program = loader.compile_program("ledger_hop", given["ledger_hop"])
    probes = []
    for slot, event in enumerate(events):
        if event.optional and not types.tracepoint(event.tracepoint):
            continue
        code = program.code(event.program)
        looks = event.program in ("ledger_queue", "ledger_xmit", "ledger_receive")
        notes = (UNREAD,) if looks and not reads else ()
        found = ladder.Found(event.tracepoint, (), 0, notes, event.tracepoint, types.tracepoint(event.tracepoint))
        name = event.program.removeprefix("ledger_")
        probes.append(Probe(name, event.tracepoint, slot, event.lost, found, {rung: code}))
    return Group(program, probes)


def open_functions(functions: Sequence[str] = ()) -> Group:
    """The functions' group: `functions` (default: the table's). Unknown names are refused rows with near misses."""
    given = [function_named(name) for name in functions]
    table = given or _table(btf.kernel_types())
    probes = [Probe(row.name, row.name, slot, _loss(row), function=row) for slot, row in enumerate(table)]
    none = {rung: why for rung, why in _refusals().items() if why}
    if len(none) == 2:
        reason = "; ".join(f"{rung}: {why}" for rung, why in none.items())
        for probe in probes:
            probe.reason = reason
            _find(probe)  # a wrong name is a wrong name on any kernel
            probe.found = None
        return Group(None, probes)
    ladder.kernel_symbols.cache_clear()  # modules may have come since
    reads = loader.features().probe_read
    own = sources(btf.kernel_types(), _nft_types(), reads=reads, functions=len(probes))["ledger_calls"]
    program = loader.compile_program("ledger_calls", own)
    for probe in probes:
        _find(probe)
        if probe.found is not None:
            probe.codes = _codes(program, probe)
    return Group(program, probes, int(own["LEDGER_SLOTS"]))


def _loss(row: Function) -> str:
    if row.user_copy:
        return "copies of calls that failed or were not a socket's (what sockets took and gave is counted there)"
    return f"{row.what} by this function" + (f", {row.segments}" if row.segments else "")


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
    rungs: tuple[str, ...] = ("fexit", "kretprobe") if row.result else ("fentry", "kprobe")
    if not loader.features().probe_read:
        rungs = rungs[:1]  # a kprobe's arguments have no types to be followed by
    return {
        rung: with_slot(program.code(f"{'traced' if rung[0] == 'f' else 'probed'}_{row.body}"), probe.slot)
        for rung in rungs
    }

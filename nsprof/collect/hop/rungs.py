"""The rungs of the hop probes: for each the programs that know where its arguments lie, and how they are attached.

A rung names its programs and targets for each probe; loading and attaching are apart, so that windows begin at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from nsprof.collect.bpf import btf, loader
from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.checks.trials import tracefs
from nsprof.collect.ladder import finding as ladder
from nsprof.collect.ladder.attach import open_kprobe
from nsprof.errors import ProbeError, UsageError

__all__ = ["PROBES", "RUNGS", "Probe", "Rung", "Spot", "find", "rungs_named"]

# enum bpf_prog_type and bpf_attach_type, include/uapi/linux/bpf.h
_KPROBE, _TRACEPOINT = 2, 5
_TRACEPOINT_EVENT = 2  # enum perf_type_id
_TRACE_RAW_TP, _TRACE_FENTRY = 23, 24


@dataclass(frozen=True, slots=True)
class Spot:
    """One program of probes/hop.c on one tracepoint or function."""

    program: str
    target: str


@dataclass(frozen=True, slots=True)
class Probe:
    """One place where packets change hands. `hits` is its counter in struct hop_cpu; `lost` what goes without it.

    `spots` by rung: all of them are attached. Of a target `a|b` the first that the kernel has is taken.
    """

    function: str
    tracepoint: str
    hits: int
    lost: str
    needed: bool = True
    spots: Mapping[str, tuple[Spot, ...]] = field(default_factory=dict)

    def on(self, rung: str) -> tuple[Spot, ...]:
        """Its programs and targets on a rung; tracepoint rungs need not be listed."""
        return self.spots.get(rung, (Spot(self.function, self.tracepoint),))


PROBES = (
    Probe(
        "hop_tx",
        "net_dev_start_xmit",
        0,
        "work of transmitting devices is unknown",
        spots={
            "fentry": (Spot("hop_tx", "dev_hard_start_xmit"),),
            "kprobe": (Spot("hop_tx_regs", "dev_hard_start_xmit"),),
            "tracepoint": (Spot("hop_tx_name", "net_dev_start_xmit"),),
        },
    ),
    Probe(
        "hop_rx",
        "netif_receive_skb",
        1,
        "work of receiving is unknown",
        spots={
            # Trampolines do not reach the compiler's variants, and __netif_receive_skb_core is one as a rule.
            "fentry": (
                Spot("hop_rx", "__netif_receive_skb_one_core"),
                Spot("hop_rx_list", "__netif_receive_skb_list_core"),
            ),
            "kprobe": (Spot("hop_rx_regs", "__netif_receive_skb_core"),),
            "tracepoint": (Spot("hop_rx_name", "netif_receive_skb"),),
        },
    ),
    Probe(
        "hop_gro",
        "napi_gro_receive_entry",
        2,
        "work in GRO is unknown",
        needed=False,
        spots={
            "fentry": (Spot("hop_gro_call", "napi_gro_receive|gro_receive_skb"),),
            "kprobe": (Spot("hop_gro_regs", "napi_gro_receive|gro_receive_skb"),),
            "tracepoint": (Spot("hop_gro_name", "napi_gro_receive_entry"),),
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to load and attach: `defines` to compile with; `load` gives a program's descriptor, `attach` a link's.

    `weaker` says what this rung knows less than the best; `named`: a device's name and nothing else. `measured`: the
    distance from the probe's frame to that of the transmission has to be found out; otherwise the program takes it
    from the registers. `inside`: the probe runs in the midst of the function, which later calls others with the
    return address in the same place. All three may raise ProbeError or OSError.
    """

    name: str
    defines: Callable[[], Mapping[str, int | str]]
    load: Callable[[loader.Program, Spot], int]
    attach: Callable[[int, Spot], int]
    weaker: str = ""
    measured: bool = True
    inside: bool = False
    named: bool = False


def find(target: str) -> ladder.Found:
    """Where the first of `a|b` is. Raises ProbeError when the kernel has none of them."""
    names = target.split("|")
    for name in names[:-1]:
        try:
            return _find(name)
        except ProbeError:
            continue
    return _find(names[-1])


@lru_cache(maxsize=16)
def _find(name: str) -> ladder.Found:
    return ladder.find(name)


def _load_tp_btf(program: loader.Program, spot: Spot) -> int:
    target = btf.kernel_types().tracepoint(spot.target)
    if not target:
        raise ProbeError(f"this kernel's BTF has no tracepoint {spot.target}")
    return loader_syscall.load_program(
        program.code(spot.program), loader.TRACING, name=spot.program, attach_type=_TRACE_RAW_TP, btf_id=target
    )


def _load_raw(program: loader.Program, spot: Spot) -> int:
    return loader_syscall.load_program(program.code(spot.program), loader.RAW_TRACEPOINT, name=spot.program)


def _load_fentry(program: loader.Program, spot: Spot) -> int:
    found = find(spot.target)
    if not found.btf_id:
        raise ProbeError(f"{found.function} is not one plain function of the kernel image here")
    return loader_syscall.load_program(
        program.code(spot.program), loader.TRACING, name=spot.program, attach_type=_TRACE_FENTRY, btf_id=found.btf_id
    )


def _load_kprobe(program: loader.Program, spot: Spot) -> int:
    found = find(spot.target)
    if len(found.symbols) > 1:
        raise ProbeError(f"{found.function} is {len(found.symbols)} functions here")
    fd = loader_syscall.load_program(program.code(spot.program), _KPROBE, name=spot.program)
    try:
        os.close(_attach_kprobe(fd, spot))
    except (ProbeError, OSError):
        os.close(fd)
        raise
    return fd


def _attach_kprobe(fd: int, spot: Spot) -> int:
    symbol, _, address = find(spot.target).symbols[0]
    return open_kprobe(fd, symbol, address)


def _name_places() -> dict[str, int | str]:
    """Where a classic tracepoint's record has the device's name. Raises ProbeError where tracefs cannot be read."""
    made: dict[str, int | str] = {}
    for key, probe in zip(("TX", "RX", "GRO"), PROBES, strict=True):
        text = (tracefs() / "events/net" / probe.tracepoint / "format").read_text()
        places = re.findall(r"field:__data_loc char\[\] name;\s*offset:(\d+);\s*size:4;", text)
        if len(places) == 1:
            made[f"{key}_LOC"] = int(places[0])
        elif probe.needed:
            raise ProbeError(f"tracepoint {probe.tracepoint} has no name where it is looked for")
    return made


def _load_classic(program: loader.Program, spot: Spot) -> int:
    return loader_syscall.load_program(program.code(spot.program), _TRACEPOINT, name=spot.program)


def _attach_classic(fd: int, spot: Spot) -> int:
    number = int((tracefs() / "events/net" / spot.target / "id").read_text())
    # One event is enough: a program on a tracepoint runs on every CPU.
    event = loader_syscall.perf_event_open(_TRACEPOINT_EVENT, number, min(os.sched_getaffinity(0)), period=1)
    try:
        loader_syscall.perf_ioctl(event, "set_bpf", fd)
        loader_syscall.perf_ioctl(event, "enable")
    except OSError:
        os.close(event)
        raise
    return event


#: Best first.
RUNGS: tuple[Rung, ...] = (
    Rung(
        "tp_btf",
        lambda: {"DIRECT_LOADS": 1},
        _load_tp_btf,
        lambda fd, _: loader_syscall.attach_raw_tracepoint(fd),
        inside=True,
    ),
    Rung(
        "raw_tp", dict, _load_raw, lambda fd, spot: loader_syscall.attach_raw_tracepoint(fd, spot.target), inside=True
    ),
    Rung(
        "fentry",
        dict,
        _load_fentry,
        lambda fd, _: loader_syscall.attach_raw_tracepoint(fd),
        "packets received as a list count for the first one's device",
    ),
    Rung(
        "kprobe",
        dict,
        _load_kprobe,
        _attach_kprobe,
        "each hit is a trap or more, and is left out while another probe runs on the CPU",
        measured=False,
    ),
    Rung(
        "tracepoint",
        _name_places,
        _load_classic,
        _attach_classic,
        "devices by name only: the namespace is unknown, and so is what a macvlan or a tc program moved",
        named=True,
        inside=True,
    ),
)


def rungs_named(names: Sequence[str]) -> tuple[Rung, ...]:
    """The rungs of these names, best first; all of them when none is named. Raises UsageError."""
    unknown = set(names) - {rung.name for rung in RUNGS}
    if unknown:
        raise UsageError(
            f"hop probes have no rung {min(unknown)!r}", f"one of: {', '.join(rung.name for rung in RUNGS)}"
        )
    return tuple(rung for rung in RUNGS if not names or rung.name in names)

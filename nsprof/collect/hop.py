"""Hop context: for whose packet the CPU works. Probes that keep a per-CPU context which the sampler reads.

Each probe stands on the best rung of the ladder that this kernel takes, found by trying: the probes' logic is one
(probes/include/hop.h), a rung is a way to load and attach it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nsprof.collect import btf, loader, loader_syscall
from nsprof.collect.sampler_cost import ROUND_TRIPS, Echo, paired_difference_ns
from nsprof.collect.symbols import KernelSymbols
from nsprof.errors import ProbeError
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import ProbeInfo

__all__ = ["HOP_CPU", "PROBES", "RUNGS", "HopProbes", "Probe", "Rung"]

#: Where the kernel cannot be asked (lockdown=confidentiality): somewhat more than was ever measured.
REACH_BYTES = 640

_BPF_TRACE_RAW_TP = 23  # enum bpf_attach_type

#: Mirror of struct hop_cpu (probes/include/hop.h).
_HOP = [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4")]
HOP_CPU = np.dtype(
    [
        ("rx", _HOP),
        ("rx_skb", "u8"),
        ("rx_device", "u8"),
        ("rx_address", "u8"),
        ("rx_state", "u4"),
        ("depth", "u4"),
        ("sp", "u8"),
        ("reach", "u8"),
        ("want_stack", "u8"),
        ("tx", [("at", _HOP), ("sp", "u8")], (4,)),
        ("hits", "u8", (4,)),
        ("words", "u8", (128,)),
    ]
)


@dataclass(frozen=True, slots=True)
class Probe:
    """One place where packets change hands. `hits` is its counter in struct hop_cpu; `lost` what goes without it."""

    function: str
    tracepoint: str
    hits: int
    lost: str
    needed: bool = True


PROBES = (
    Probe("hop_tx", "net_dev_start_xmit", 0, "work of transmitting devices is unknown"),
    Probe("hop_rx", "netif_receive_skb", 1, "work of receiving is unknown"),
    Probe("hop_gro", "napi_gro_receive_entry", 2, "work in GRO is unknown", needed=False),
)


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to load and attach the probes: `defines` to compile with, then a descriptor a probe, then a link."""

    name: str
    defines: dict[str, int | str]
    load: Callable[[loader.Program, Probe], int]
    attach: Callable[[int, Probe], int]


def _load_tp_btf(program: loader.Program, probe: Probe) -> int:
    target = btf.kernel_types().tracepoint(probe.tracepoint)
    if not target:
        raise ProbeError(f"this kernel's BTF has no tracepoint {probe.tracepoint}")
    return loader_syscall.load_program(
        program.code(probe.function),
        loader.TRACING,
        name=probe.function,
        attach_type=_BPF_TRACE_RAW_TP,
        btf_id=target,
    )


def _load_raw(program: loader.Program, probe: Probe) -> int:
    return loader_syscall.load_program(program.code(probe.function), loader.RAW_TRACEPOINT, name=probe.function)


#: Best first. Others (fentry, kprobe) join here with their own source and the same logic.
RUNGS: tuple[Rung, ...] = (
    Rung("tp_btf", {"DIRECT_LOADS": 1}, _load_tp_btf, lambda fd, _: loader_syscall.attach_raw_tracepoint(fd)),
    Rung("raw_tp", {}, _load_raw, lambda fd, probe: loader_syscall.attach_raw_tracepoint(fd, probe.tracepoint)),
)


@dataclass(slots=True)
class _Loaded:
    probe: Probe
    rung: Rung | None
    fd: int = -1
    link: int = -1
    reason: str = ""
    hits: int = 0
    attach_ms: float = 0.0


@dataclass(slots=True)
class HopProbes:
    """The hop probes of this kernel: load() once, then attach() and detach() any number of times, close() at last."""

    rungs: tuple[Rung, ...] = RUNGS
    cost_ns_per_hit: float = 0.0
    reach_bytes: int = REACH_BYTES
    _programs: list[loader.Program] = field(default_factory=list)
    _loaded: list[_Loaded] = field(default_factory=list)
    _map: loader_syscall.MapReader | None = None
    _owners: loader_syscall.MapReader | None = None

    def load(self) -> None:
        """Compile and load the probes on the best rung that takes them.

        Raises ProbeError where a needed probe stands on no rung; then nothing stays loaded.
        """
        reasons: list[str] = []
        for rung in self.rungs:
            try:
                self._load_on(rung)
            except ProbeError as error:
                reasons.append(f"{rung.name}: {error.message}")
                self.close()
                continue
            return
        raise ProbeError(
            f"hop context stands on no rung of this kernel: {'; '.join(reasons)}",
            "record without it (--no-hop); nsprof doctor tells what this kernel allows",
        )

    def _load_on(self, rung: Rung) -> None:
        defines = dict(rung.defines)
        if loader.features().probe_read:
            defines["PROBE_READ"] = 1
        symbols = KernelSymbols()
        bridge = symbols.address("br_handle_frame")
        if bridge:
            defines["BRIDGE_HANDLER"] = f"{bridge:#x}ULL"
        program = loader.compile_program("hop", defines)
        self._programs.append(program)
        for probe in PROBES:
            try:
                self._loaded.append(_Loaded(probe, rung, rung.load(program, probe)))
            except ProbeError as error:
                if probe.needed:
                    raise
                self._loaded.append(_Loaded(probe, None, reason=error.message))
        self._map = program.map("hops", "u4", HOP_CPU, 1)
        self._owners = program.map("owners", [("device", "u8"), ("address", "u8")], _HOP, 4096)
        if loader.features().probe_read:
            self._measure_reach(symbols)

    def _measure_reach(self, symbols: KernelSymbols) -> None:
        """How far above the transmit probe's frame its caller's frame begins, seen on the stack of one packet.

        A datagram is sent over loopback with the probe attached; the probe copies its stack, and the lowest word
        that points into dev_hard_start_xmit is the return address of the tracepoint's call.
        """
        transmit = next(each for each in self._loaded if each.probe.function == "hop_tx")
        assert self._map is not None and transmit.rung is not None  # noqa: S101 - needed probes are loaded
        contexts = np.zeros(loader.possible_cpus(), HOP_CPU)
        contexts["want_stack"] = 1
        self._map.set(0, contexts)
        link = transmit.rung.attach(transmit.fd, transmit.probe)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
                probe.sendto(b"", ("127.0.0.1", 9))
        finally:
            os.close(link)
        for context in self.contexts():
            words = context["words"]
            found = [
                number
                for number, row in enumerate(symbols.rows(words).tolist())
                if row >= 0 and fold_suffixes(symbols[row].name) == "dev_hard_start_xmit"
            ]
            if found:
                # Above the return address lies the frame of dev_hard_start_xmit itself.
                self.reach_bytes = 8 * found[0] + 8
                return

    def attach(self) -> None:
        """Attach all probes, to contexts that begin empty. Raises ProbeError; then nothing stays attached."""
        if self._map is None:
            raise ProbeError("the hop probes are not loaded")
        contexts = np.zeros(loader.possible_cpus(), HOP_CPU)
        contexts["reach"] = self.reach_bytes
        self._map.set(0, contexts)
        if self._owners is not None:
            self._owners.take()  # devices known from an earlier window may be gone
        for each in self._loaded:
            if each.rung is None:
                continue
            begun = time.perf_counter()
            try:
                each.link = each.rung.attach(each.fd, each.probe)
            except OSError as error:
                self.detach()
                raise ProbeError(
                    f"hop probe {each.probe.function} cannot be attached to {each.probe.tracepoint}: {error.strerror}"
                ) from error
            each.attach_ms = (time.perf_counter() - begun) * 1e3

    def detach(self) -> None:
        """Detach all probes and take their hits. Harmless when none is attached."""
        attached = [each for each in self._loaded if each.link >= 0]
        for each in attached:
            os.close(each.link)
            each.link = -1
        if attached:
            hits = self.contexts()["hits"].sum(axis=0)
            for each in attached:
                each.hits += int(hits[each.probe.hits])

    def defines(self) -> dict[str, int | str]:
        """What the sampler is compiled with to read these contexts. Raises ProbeError before load()."""
        if self._map is None or self._owners is None:
            raise ProbeError("the hop probes are not loaded")
        return {"HOP": 1}

    def lent(self) -> dict[str, int]:
        """The tables that the sampler reads, by their names in its source. Raises ProbeError before load()."""
        if self._map is None or self._owners is None:
            raise ProbeError("the hop probes are not loaded")
        return {"HOPS_FD": self._map.fd, "OWNERS_FD": self._owners.fd}

    def contexts(self) -> Any:
        """The per-CPU contexts as they stand now (dtype HOP_CPU, one a possible CPU)."""
        if self._map is None:
            raise ProbeError("the hop probes are not loaded")
        return self._map.get(0, loader.possible_cpus())

    def close(self) -> None:
        """Detach and unload. Calling it twice is harmless."""
        for each in self._loaded:
            for fd in (each.link, each.fd):
                if fd >= 0:
                    with contextlib.suppress(OSError):
                        os.close(fd)
        self._loaded.clear()
        self._map = None
        while self._programs:
            self._programs.pop().close()

    def calibrate(self, seconds: float = 0.4) -> float:
        """Measure what one hit costs, in ns, and keep it for cost_s(): the same packets with the probes on and off.

        A packet over loopback hits hop_tx and hop_rx once each. The thread is pinned to one CPU meanwhile.
        """
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        hits = [each.hits for each in self._loaded]
        try:
            with Echo() as work:
                added, _ = paired_difference_ns(work, on=self.attach, off=self.detach, seconds=seconds, repeats=4)
        finally:
            os.sched_setaffinity(0, before)
        for each, old in zip(self._loaded, hits, strict=True):
            each.hits = old  # the calibration's own
        self.cost_ns_per_hit = max(0.0, added / (2 * ROUND_TRIPS))
        return self.cost_ns_per_hit

    def cost_s(self) -> float:
        """CPU seconds of all hits so far at the calibrated cost (0 without one)."""
        hits = sum(each.hits for each in self._loaded)
        attached = [each for each in self._loaded if each.link >= 0]
        if attached:  # theirs are still in the kernel
            running = self.contexts()["hits"].sum(axis=0)
            hits += sum(int(running[each.probe.hits]) for each in attached)
        return hits * self.cost_ns_per_hit / 1e9

    def probe_infos(self) -> tuple[ProbeInfo, ...]:
        """One row a probe: its rung, or why it has none and what is lost by it."""
        return tuple(
            ProbeInfo(
                each.probe.function,
                each.probe.tracepoint,
                each.rung.name if each.rung else "none",
                "attached" if each.rung else "refused",
                "" if each.rung else f"{each.reason}; {each.probe.lost}",
                each.hits,
                self.cost_ns_per_hit,
                each.attach_ms,
            )
            for each in self._loaded
        )

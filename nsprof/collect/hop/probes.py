"""Hop context: for whose packet the CPU works. Probes that keep a per-CPU context which the sampler reads.

Each probe stands on the best rung of the ladder that this kernel takes, found by trying: the probes' logic is one
(probes/include/hop.h), a rung is a way to load and attach it.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nsprof.collect.bpf import loader
from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.hop.rungs import PROBES, RUNGS, Probe, Rung, Spot, rungs_named
from nsprof.collect.ladder.finding import refusal
from nsprof.collect.sampling.cost import ROUND_TRIPS, Echo, paired_difference_ns
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.errors import ProbeError
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import ProbeInfo

__all__ = ["HOP_CPU", "PROBES", "RUNGS", "HopProbes", "Probe", "Rung", "Spot", "rungs_named"]

#: Where the kernel cannot be asked (lockdown=confidentiality): somewhat more than was ever measured.
REACH_BYTES = 640

#: Mirror of struct hop_cpu (probes/include/hop.h).
_HOP = [("cookie", "u8"), ("inode", "u4"), ("ifindex", "u4")]
HOP_CPU = np.dtype(
    [
        ("rx", _HOP),
        ("rx_skb", "u8"),
        ("rx_device", "u8"),
        ("rx_address", "u8"),
        ("rx_state", "u4"),
        ("rx_flags", "u4"),
        ("depth", "u4"),
        ("pad", "u4"),
        ("port", _HOP),
        ("port_skb", "u8"),
        ("live", "u8"),
        ("innermost", "u8"),
        ("found", "u8"),
        ("sp", "u8"),
        ("reach", "u8"),
        ("frame_low", "u8"),
        ("frame_high", "u8"),
        ("want_stack", "u8"),
        ("bridge_handler", "u8"),
        ("tx_named", "u8"),
        ("tx", [("at", _HOP), ("sp", "u8")], (4,)),
        ("hits", "u8", (4,)),
        ("words", "u8", (128,)),
    ]
)


@dataclass(slots=True)
class _Loaded:
    """One probe: a loaded program and, while attached, a link for each of its rung's spots."""

    probe: Probe
    rung: Rung | None = None
    fds: list[int] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    hits: int = 0
    attach_ms: float = 0.0

    def attach(self) -> None:
        """Raises ProbeError or OSError; then nothing of this probe stays attached."""
        if self.rung is None:
            return
        begun = time.perf_counter()
        try:
            for fd, spot in zip(self.fds, self.probe.on(self.rung.name), strict=True):
                self.links.append(self.rung.attach(fd, spot))
        except (ProbeError, OSError):
            self.detach()
            raise
        self.attach_ms = (time.perf_counter() - begun) * 1e3

    def detach(self) -> None:
        while self.links:
            os.close(self.links.pop())

    def unload(self) -> None:
        self.detach()
        while self.fds:
            os.close(self.fds.pop())
        self.rung = None

    @property
    def target(self) -> str:
        """What it is attached to, for people."""
        spots = self.probe.on(self.rung.name) if self.rung else ()
        return "+".join(spot.target.split("|")[0] for spot in spots) or self.probe.tracepoint


@dataclass(slots=True)
class HopProbes:
    """The hop probes of this kernel: load() once, then attach() and detach() any number of times, close() at last.

    Each probe stands on the first of `rungs` on which it loads, attaches, and sees a packet sent over loopback.
    """

    rungs: tuple[Rung, ...] = RUNGS
    cost_ns_per_hit: float = 0.0
    reach_bytes: int = REACH_BYTES
    _frame: tuple[int, int] = (0, 0)
    _programs: dict[str, loader.Program] = field(default_factory=dict)
    _loaded: list[_Loaded] = field(default_factory=list)
    _map: loader_syscall.MapReader | None = None
    _owners: loader_syscall.MapReader | None = None

    def load(self) -> None:
        """Compile and load each probe on the best rung that takes it.

        Raises ProbeError where a needed probe stands on no rung; then nothing stays loaded.
        """
        try:
            for probe in PROBES:
                self._loaded.append(self._climb(probe))
        except BaseException:
            self.close()
            raise

    def _climb(self, probe: Probe) -> _Loaded:
        one = _Loaded(probe)
        for rung in self.rungs:
            one.rung = rung
            try:
                program = self._program(rung)
                for spot in probe.on(rung.name):
                    one.fds.append(rung.load(program, spot))
                self._prove(one)
            except (ProbeError, OSError) as error:
                one.unload()
                one.reasons.append(f"{rung.name}: {refusal(error)}")
                continue
            return one
        if probe.needed:
            raise ProbeError(
                f"hop probe {probe.function} stands on no rung of this kernel: {'; '.join(one.reasons)}",
                "record without it (--no-hop); nsprof doctor tells what this kernel allows",
            )
        return one

    def _program(self, rung: Rung) -> loader.Program:
        """The program for a rung: compiled once for the same defines, all with the first one's maps."""
        defines = dict(rung.defines())
        if loader.features().probe_read:
            defines["PROBE_READ"] = 1
        key = repr(sorted(defines.items()))
        if key not in self._programs:
            shared = {}
            if self._map is not None and self._owners is not None:
                shared = {"hops": self._map.fd, "owners": self._owners.fd}
            program = self._programs[key] = loader.compile_program("hop", defines, lent=shared)
            if not shared:
                self._map = program.map("hops", "u4", HOP_CPU, 1)
                self._owners = program.map("owners", [("device", "u8"), ("address", "u8")], _HOP, 4096)
        return self._programs[key]

    def _prove(self, one: _Loaded) -> None:
        """Sends a datagram over loopback with one probe attached: it must see lo, in this namespace.

        A function's arguments may not be where they were, and a hit may not come: then the rung is none. Other
        traffic may come between, so any device that can be one will do. Where lo is down nothing can be proved, and
        the rung is believed. Raises ProbeError.

        The transmit probe copies its stack meanwhile: the lowest word that points into dev_hard_start_xmit is a
        return address there, so it tells how far above the probe's frame that of the transmission is.
        """
        assert self._map is not None and one.rung is not None  # noqa: S101 - _climb has set them
        if one.probe.function == "hop_gro":  # lo has no GRO: that it can be attached must do
            one.attach()
            one.detach()
            return
        seen: Any = None
        for attempt in range(5):
            contexts = np.zeros(loader.possible_cpus(), HOP_CPU)
            contexts["want_stack"] = 1
            self._map.set(0, contexts)
            one.attach()
            try:
                if not _send_over_lo():
                    return
                time.sleep(0.001 * attempt)  # it may be received on another CPU
            finally:
                one.detach()
            seen = self.contexts()
            seen = seen[seen["hits"][:, one.probe.hits] > 0]
            where = seen["rx"] if one.probe.function == "hop_rx" else seen["tx"]["at"][:, 0]
            if len(seen) and (_are_names(where) if one.rung.named else _are_devices(where)):
                break
        else:
            found = "its arguments are not where they should be" if len(seen) else "the probe does not run"
            raise ProbeError(f"a packet over lo is not seen: {found}")
        if one.probe.function == "hop_tx":
            self._set_reach(one.rung, seen)

    def _set_reach(self, rung: Rung, contexts: Any) -> None:
        self.reach_bytes = REACH_BYTES if rung.measured else 0
        self._frame = (0, 0)
        if not (rung.measured and loader.features().probe_read):
            return
        symbols = _symbols()
        for context in contexts:
            rows = symbols.rows(context["words"]).tolist()
            for number, row in enumerate(rows):
                if row >= 0 and fold_suffixes(symbols[row].name) == "dev_hard_start_xmit":
                    # Above the return address lies the frame of dev_hard_start_xmit itself.
                    self.reach_bytes = 8 * number + 8
                    if rung.inside:
                        self._frame = symbols.bounds(row)
                    return

    def attach(self) -> None:
        """Attach all probes, to contexts that begin empty. Raises ProbeError; then nothing stays attached."""
        if self._map is None:
            raise ProbeError("the hop probes are not loaded")
        contexts = np.zeros(loader.possible_cpus(), HOP_CPU)
        contexts["reach"] = self.reach_bytes
        contexts["frame_low"], contexts["frame_high"] = self._frame
        transmit = next((each.rung for each in self._loaded if each.probe.function == "hop_tx"), None)
        contexts["tx_named"] = transmit is not None and transmit.named
        contexts["bridge_handler"] = _symbols().address("br_handle_frame") or 0
        self._map.set(0, contexts)
        if self._owners is not None:
            self._owners.take()  # devices known from an earlier window may be gone
        for each in self._loaded:
            try:
                each.attach()
            except (OSError, ProbeError) as error:
                self.detach()
                raise ProbeError(
                    f"hop probe {each.probe.function} cannot be attached to {each.target}: {refusal(error)}"
                ) from error

    def detach(self) -> None:
        """Detach all probes and take their hits. Harmless when none is attached."""
        attached = [each for each in self._loaded if each.links]
        for each in attached:
            each.detach()
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
            each.unload()
        self._loaded.clear()
        self._map = self._owners = None
        while self._programs:
            self._programs.popitem()[1].close()

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
        attached = [each for each in self._loaded if each.links]
        if attached:  # theirs are still in the kernel
            running = self.contexts()["hits"].sum(axis=0)
            hits += sum(int(running[each.probe.hits]) for each in attached)
        return hits * self.cost_ns_per_hit / 1e9

    def probe_infos(self) -> tuple[ProbeInfo, ...]:
        """One row a probe: its rung, or why it has none and what is lost by it."""
        return tuple(
            ProbeInfo(
                each.probe.function,
                each.target,
                each.rung.name if each.rung else "none",
                "attached" if each.rung else "refused",
                _why(each),
                each.hits,
                self.cost_ns_per_hit,
                each.attach_ms,
            )
            for each in self._loaded
        )


def _why(one: _Loaded) -> str:
    """Why a probe stands no higher, and what its rung knows less; of a refused one what is lost."""
    if one.rung is None:
        return "; ".join((*one.reasons, one.probe.lost))
    return "; ".join((*one.reasons, *filter(None, (one.rung.weaker,))))


def _are_devices(where: Any) -> bool:
    """Namespaces are numbered from 0xF0000000 on, the first ones somewhat below (include/linux/proc_ns.h)."""
    return bool(((where["inode"] >= 0xEFFFFF00) & (where["ifindex"] < 1 << 24)).all())


def _are_names(where: Any) -> bool:
    names = [each.tobytes().rstrip(b"\0") for each in where]
    return all(name and all(0x20 < byte < 0x7F for byte in name) for name in names)


def _symbols() -> KernelSymbols:
    modules = Path("/proc/modules")
    return _symbols_of(modules.read_bytes() if modules.exists() else b"")


@lru_cache(maxsize=1)
def _symbols_of(modules: bytes) -> KernelSymbols:
    """The kernel's symbols, read again when modules came or went."""
    return KernelSymbols()


def _send_over_lo() -> bool:
    """Sends one datagram to a closed port of this host; False where lo is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.sendto(b"", ("127.0.0.1", 9))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return True

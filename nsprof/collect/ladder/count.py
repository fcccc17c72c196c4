"""How often kernel functions are called and return: a counter on each, on whatever rung it can stand.

    with CallCounter(["ip_rcv", "veth_xmit"], returns=["udp_sendmsg"]) as counter:
        ...; counter.read()["ip_rcv"]

One compilation serves all functions. A function that cannot be probed is a refused row of `probe_infos()`, with the
reason; the others are counted all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from nsprof.collect.bpf.loader import Program, compile_program
from nsprof.collect.ladder.finding import RUNGS, Attached, attach, find
from nsprof.errors import ProbeError
from nsprof.model.profile import ProbeInfo

__all__ = ["RETURN", "CallCounter", "with_slot"]

_SLOT = 0x4E535046  # probes/calls.c
#: Suffix of the name under which returns are counted.
RETURN = "%return"


class CallCounter:
    """Counts calls (and returns) of named kernel functions machine-wide while its `with` block lasts.

    `tracepoints` names a function's tracepoint, counted instead of its entry where the kernel has it. `rungs` may
    leave out rungs (of `ladder.RUNGS`), to compare them. Raises PreflightError where BCC or BTF is missing.
    """

    def __init__(
        self,
        functions: Sequence[str],
        *,
        returns: Sequence[str] = (),
        tracepoints: Mapping[str, str] | None = None,
        rungs: Sequence[str] = tuple(RUNGS),
        program: Program | None = None,
    ) -> None:
        self.targets = [(name, False) for name in functions] + [(name, True) for name in returns]
        self.rungs = tuple(rungs)
        self.tracepoints = dict(tracepoints or {})
        self.attached: dict[str, Attached] = {}
        self.refused: dict[str, ProbeError] = {}
        self._given = program
        self._program: Program | None = None
        self._stack = ExitStack()

    @staticmethod
    def compile(slots: int = 256) -> Program:
        """The program, to be shared by several counters one after the other (compiling takes seconds)."""
        return compile_program("calls", {"SLOTS": slots})

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            program = self._given
            if program is None:
                program = self.compile(max(len(self.targets), 1))
                stack.callback(program.close)
            self._program = program
            code = program.code("on_call")
            self._clear(program)
            for slot, (function, on_return) in enumerate(self.targets):
                codes = {rung: with_slot(code, slot) for rung in self.rungs if RUNGS[rung] is on_return}
                tracepoint = "" if on_return else self.tracepoints.get(function, "")
                key = function + RETURN if on_return else function
                try:
                    probe = attach(find(function, tracepoint=tracepoint), codes, name="nsprof_calls")
                except ProbeError as error:
                    self.refused[key] = error
                    continue
                self.attached[key] = stack.enter_context(probe)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self) -> dict[str, int]:
        """Counts so far by function (returns by `name + RETURN`); refused ones are not there."""
        if self._program is None:
            raise ProbeError("the counter is not attached", "use it inside `with CallCounter(...) as counter:`")
        reader = self._program.map("calls", "u4", "u8", len(self.targets))
        cpus = _possible_cpus()
        counts = {}
        for slot, (function, on_return) in enumerate(self.targets):
            key = function + RETURN if on_return else function
            if key in self.attached:
                counts[key] = int(reader.get(slot, cpus).sum())
        return counts

    def _clear(self, program: Program) -> None:
        import numpy as np

        reader = program.map("calls", "u4", "u8", len(self.targets))
        for slot in range(len(self.targets)):
            reader.set(slot, np.zeros(_possible_cpus(), "u8"))

    def attach_ms(self) -> float:
        """Milliseconds that attaching took in all, compiling apart."""
        return sum(each.attach_ms for each in self.attached.values())

    def probe_infos(self) -> tuple[ProbeInfo, ...]:
        """One row a function: its rung, or why it has none."""
        counts = self.read()
        rows = [probe.info(key, counts[key]) for key, probe in self.attached.items()]
        rows += [
            ProbeInfo(
                key, key.removesuffix(RETURN), "none", "refused", f"{error.message} ({error.hint}); not counted"
            )
            for key, error in self.refused.items()
        ]
        return tuple(rows)


def with_slot(code: bytes, slot: int) -> bytes:
    """The instructions with the slot's number in place of its constant (a move of 32 bits, once)."""
    found = [at for at in range(0, len(code), 8) if code[at] in (0xB4, 0xB7) and _immediate(code, at) == _SLOT]
    if len(found) != 1:
        raise ProbeError(f"BPF program calls: its slot constant occurs {len(found)} times instead of once")
    return code[: found[0] + 4] + struct.pack("<i", slot) + code[found[0] + 8 :]


def _immediate(code: bytes, at: int) -> int:
    value: int = struct.unpack_from("<i", code, at + 4)[0]
    return value


def _possible_cpus() -> int:
    ranges = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(ranges.replace(",", "-").split("-")[-1]) + 1

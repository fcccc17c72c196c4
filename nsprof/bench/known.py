"""Costs that are known beforehand, put into a run: what calibrations measure the measuring with.

Burn      a tc program that burns so many ns for each skb; how many, the kernel itself tells (BPF_PROG_TEST_RUN)
rules     netfilter rules that match nothing
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from nsprof.collect.bpf import bcc_door, headers
from nsprof.collect.bpf.syscalls import bpf
from nsprof.errors import ProbeError
from nsprof.netns import entered
from nsprof.topology import netlink, nft

__all__ = ["BURN_NAME", "Burn", "rules"]

#: What the program is called; kallsyms shows it as bpf_prog_<tag>_known_burn.
BURN_NAME = "known_burn"
_TEXT = """
int known_burn(struct __sk_buff *skb) {
    u64 x = skb->len;
    for (int i = 0; i < STEPS; i++) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        asm volatile("" : "+r"(x));
    }
    return x == 1 ? 2 : 0;
}
"""
_TEST_RUN = 10  # enum bpf_cmd, BPF_PROG_TEST_RUN
#: Runs of the program a measurement, and measurements of which the middle one counts.
_REPEAT, _TRIES = 50, 9


class Burn:
    """The program, loaded; use it as a context manager. A multiplication depends on the one before, so what it
    takes is latency: neither caches nor the other thread of the core change it much."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._loaded: Any = None
        self.fd = -1

    def __enter__(self) -> Self:
        """Raises PreflightError without BCC, ProbeError where the program is refused."""
        os.environ.setdefault("BCC_KERNEL_SOURCE", str(headers.header_tree()))
        bcc = bcc_door.load()
        try:
            self._loaded = bcc.BPF(text=_TEXT.encode(), cflags=[f"-DSTEPS={self.steps}", "-Wno-everything"])
            self.fd = self._loaded.load_func(BURN_NAME.encode(), bcc.BPF.SCHED_CLS).fd
        except Exception as error:  # BCC raises nothing more special
            raise ProbeError(f"the burning program was refused: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loaded.cleanup()

    def burned_ns(self, cpus: Sequence[int] = ()) -> float:
        """What a call takes now on `cpus` (empty: anywhere): the middle one of several means. Raises ProbeError."""
        data = (ctypes.c_uint8 * 64)()
        before = os.sched_getaffinity(0)
        found = []
        try:
            if cpus:
                os.sched_setaffinity(0, cpus)
            for _ in range(_TRIES):
                # prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration (union bpf_attr)
                words = struct.pack("=IIIIQQII", self.fd, 0, 64, 0, ctypes.addressof(data), 0, _REPEAT, 0)
                found.append(struct.unpack("=IIIIQQII", bpf(_TEST_RUN, words)[1])[7])
        except OSError as error:
            raise ProbeError(f"the burning program cannot be timed: {error.strerror}") from error
        finally:
            os.sched_setaffinity(0, before)
        return float(sorted(found)[_TRIES // 2])

    @contextmanager
    def attached(self, netns_path: str, device: str) -> Iterator[None]:
        """Every skb that leaves by a device runs it; it goes with the device's namespace. Raises TopologyError."""
        with entered(netns_path), netlink.Rtnl() as door:
            index = door.index(device)
            door.send([netlink.add_clsact(index), netlink.add_egress_program(index, self.fd, BURN_NAME)])
        yield


@contextmanager
def rules(netns_path: str, count: int) -> Iterator[None]:
    """`count` rules that match nothing, for every packet that is forwarded in a namespace, which they go with.
    Raises TopologyError where nft or the kernel's part of it is lacking."""
    nft.matching_nothing(netns_path, "known_rules", count)
    yield

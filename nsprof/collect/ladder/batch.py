"""One program on many functions at once: kprobe_multi (Linux 5.18), attached and detached in one go.

A kprobe, fentry or fexit of its own waits for a grace period of the kernel's when it is detached, each by itself; a
batch waits once. The program learns from its attachment's cookie which function it stands on.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from nsprof.collect.bpf.syscalls import bpf, load_program

__all__ = ["attach_batch", "load_batch"]

_LINK_CREATE = 28  # enum bpf_cmd
_KPROBE, _KPROBE_MULTI = 2, 42  # BPF_PROG_TYPE_KPROBE, BPF_TRACE_KPROBE_MULTI
_RETURN = 1  # BPF_F_KPROBE_MULTI_RETURN


def load_batch(code: bytes, *, name: str) -> int:
    """Load a program for batches; returns its descriptor. Raises ProbeError when it is refused."""
    return load_program(code, _KPROBE, name=name, attach_type=_KPROBE_MULTI)


def attach_batch(program: int, places: Sequence[tuple[int, int]], *, on_return: bool) -> int:
    """Attach a loaded program to all `places`, each (address, cookie): the link's descriptor; close it to detach all.

    Raises OSError when the kernel refuses: it does where one of the functions has no place for a trampoline.
    """
    count = len(places)
    addresses = (ctypes.c_uint64 * count)(*(address for address, _ in places))
    cookies = (ctypes.c_uint64 * count)(*(cookie for _, cookie in places))
    attributes = struct.pack(
        "<IIIIIIQQQ",
        *(program, 0, _KPROBE_MULTI, 0),
        *(_RETURN if on_return else 0, count, 0, ctypes.addressof(addresses), ctypes.addressof(cookies)),
    )
    return bpf(_LINK_CREATE, attributes)[0]

"""What to do about a refusal: root is not always all-powerful (containers, setpriv, systemd units)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["refused"]

_NUMBERS = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21}  # include/uapi/linux/capability.h


def refused(name: str) -> str:
    """The hint for something that the kernel refused and for which it wants the capability `name`."""
    if os.geteuid() != 0:
        return "run it as root (sudo)"
    if _effective() >> _NUMBERS[name] & 1:
        return f"{name} is there: a seccomp filter, a security module or a user namespace refuses it"
    return f"{name} is missing, though this is root: let this process have it (docker run --cap-add {name[4:]})"


def _effective() -> int:
    """The calling thread's effective capabilities as a bit mask."""
    for line in Path("/proc/thread-self/status").read_bytes().splitlines():
        if line.startswith(b"CapEff:"):
            return int(line.split()[1], 16)
    return 0

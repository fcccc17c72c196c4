"""What the tests share: who may run here, and a reason in words where not."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
CASES = REPO.parent / "shared" / "cases"

_TOOLS = {
    "netperf": (("netperf", "netserver"), "netperf is not installed (Debian: non-free)"),
    "iperf3": (("iperf3",), "iperf3 is not installed"),
    "tbench": (("tbench", "tbench_srv"), "tbench is not installed (package dbench)"),
    "perf": (("perf",), "perf is not installed (package linux-perf)"),
    "node": (("node", "npm"), "node and npm are not installed"),
    "tmux": (("tmux",), "tmux is not installed"),
    "gcc": (("gcc",), "gcc is not installed"),
    "browser": (("chromium",), "chromium is not installed"),
    "vm": (("qemu-system-x86_64", "busybox", "cpio"), "QEMU, busybox-static or cpio is not installed"),
    "unshare": (("unshare",), "unshare is not installed"),
    "sshd": (
        ("/usr/sbin/sshd", "ssh", "ssh-keygen"),
        "sshd is not installed (package openssh-server; the tests do not install it, since it would start serving)",
    ),
}


@functools.cache
def lack(what: str) -> str:
    """Why `what` cannot be had on this machine; "" when it can."""
    if what == "root":
        return "" if os.geteuid() == 0 else "needs root"
    if what == "cases":
        return "" if CASES.is_dir() else f"no collection of real inputs at {CASES.relative_to(REPO.parent)}"
    if what == "bpf":
        return lack("root") or _bpf_lack()
    programs, reason = _TOOLS[what]
    return "" if all(shutil.which(p) for p in programs) else reason


def _bpf_lack() -> str:
    from nsprof.collect.bpf import bcc_door
    from nsprof.errors import NsprofError

    try:
        bcc_door.load()
    except NsprofError as error:
        return error.message
    return ""


def need(*what: str) -> None:
    """Skip the test, saying why, where one of `what` is lacking - or fail if NSPROF_REQUIRE names it."""
    required = set(filter(None, os.environ.get("NSPROF_REQUIRE", "").split(",")))
    for each in what:
        reason = lack(each)
        if reason and (each in required or (each == "bpf" and "root" in required)):
            pytest.fail(f"NSPROF_REQUIRE names {each}, but: {reason}")
        if reason:
            pytest.skip(reason)

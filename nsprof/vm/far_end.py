"""A guest as the other end of a wire: an address, some servers, nothing else.

Its network card is virtio on a tap device that exists already; offloads are left as both sides agree on them. The
guest's files are busybox, this machine's `ip` and the servers' programs with their libraries.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from nsprof.errors import VmError
from nsprof.netns import entered
from nsprof.vm import initramfs
from nsprof.vm.guest_minimal import program_files
from nsprof.vm.kernels import Kernel
from nsprof.vm.machine import Machine, accelerator

__all__ = ["serving_guest"]

_MODULES = ("virtio_pci", "virtio_net")
_APPLETS = ("sh", "mount", "insmod", "mkdir", "sleep", "echo", "poweroff")
_READY = "nsprof-guest: serving"
_BOOT_S = 120.0
_IP = "/usr/bin/ip"


def _script(commands: Sequence[Sequence[str]], address: str, routes: Sequence[tuple[str, str]], mtu: int) -> bytes:
    """The guest's init. All words are nsprof's own; they are quoted all the same."""
    host = address.partition("/")[0]
    nodad = " nodad" if ":" in host else ""
    lines = [
        "#!/bin/busybox sh",
        "export PATH=/usr/bin:/bin",
        "mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /tmp",
        'fail() { echo "nsprof-guest: failed $*" > /dev/console; poweroff -f; }',
        'for m in /modules/*.ko; do [ -e "$m" ] && { insmod "$m" || fail "module $m"; }; done',
        "case \" $(cat /proc/cmdline) \" in *' nsprof.trial '*) echo 'nsprof-guest: trial' > /dev/console; "
        "poweroff -f;; esac",
        f"{_IP} link set lo up",
        *([f"{_IP} link set eth0 mtu {mtu:d}"] if mtu else []),
        f"{_IP} addr add {shlex.quote(address)} dev eth0{nodad} || fail address",
        f"{_IP} link set eth0 up || fail eth0",
        *(f"{_IP} route add {shlex.quote(net)} via {shlex.quote(via)} || fail route" for net, via in routes),
        *(f"{shlex.join(words)} < /dev/null > /tmp/server 2>&1 & " for words in commands),
        f"echo '{_READY}' > /dev/console",
        "while :; do sleep 1000; done",
    ]
    return "\n".join(lines).encode() + b"\n"


@contextmanager
def serving_guest(
    kernel: Kernel,
    commands: Sequence[Sequence[str]],
    *,
    netns: str,
    tap: str,
    mac: str,
    address: str,
    routes: Sequence[tuple[str, str]] = (),
    mtu: int = 0,
    cpus: Sequence[int] = (),
    memory_mb: int = 512,
) -> Iterator[Machine]:
    """A guest that runs `commands`, its network card being `tap` in namespace `netns`, QEMU pinned to `cpus`.

    Raises VmError when it does not come up, with the last lines of its console.
    """
    files: dict[str, bytes | Path] = dict(program_files("ip"))
    for program in dict.fromkeys(words[0] for words in commands):
        files.update(program_files(program))
    image = initramfs.build(
        kernel,
        init=_script(commands, address, routes, mtu),
        modules=initramfs.module_chain(kernel, _MODULES),
        applets=(*_APPLETS, "cat"),
        directories=("proc", "sys", "tmp", "etc", "run"),
        files=files,
    )
    card = ["-netdev", f"tap,id=wire,ifname={tap},script=no,downscript=no,vnet_hdr=on"]
    card += ["-device", f"virtio-net-pci,netdev=wire,mac={mac},romfile="]
    chosen = accelerator("auto", kernel, image)
    machine = Machine(kernel, image, smp=1, memory_mb=memory_mb, accel=chosen, extra=card)
    before = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.callback(machine.scratch.remove)
        try:
            with entered(netns):
                if cpus:
                    os.sched_setaffinity(0, cpus)
                stack.enter_context(machine)
        finally:
            os.sched_setaffinity(0, before)
        _wait(machine)
        yield machine


def _wait(machine: Machine) -> None:
    deadline = time.monotonic() + _BOOT_S
    while _READY not in machine.console():
        ended = machine.wait(0.05)
        if ended or "nsprof-guest: failed" in machine.console():
            raise VmError("the guest at the remote end did not come up", "", console=tuple(machine.tail()))
        if time.monotonic() > deadline:
            raise VmError(
                f"the guest at the remote end was not there within {_BOOT_S:g} s", "", console=tuple(machine.tail())
            )

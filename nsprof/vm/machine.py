"""One QEMU machine: its command line, its life, and which accelerator really works here."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from nsprof.errors import UsageError, VmError
from nsprof.files import Scratch
from nsprof.vm.cache import cache_dir
from nsprof.vm.kernels import Kernel
from nsprof.vm.vmlinux import direct_image

__all__ = ["Accel", "Machine", "Share", "accelerator", "qemu_program"]

Accel = Literal["auto", "tcg", "kvm"]
#: A stock kernel with KVM reaches user space in under a second; TCG takes three. Beyond this KVM is no help.
KVM_TRIAL_S = 5.0
CONSOLE_TAIL_LINES = 12
#: How the kernel begins to tell of its own failure (lib/bug.c, kernel/panic.c, kernel/watchdog.c, mm/fault.c):
#: from there on it names the function; the panic's own line, which comes last, does not.
TROUBLE = re.compile(
    r"Kernel panic|BUG: |Oops: |general protection fault|kernel BUG at|Watchdog detected|rcu: INFO: |Internal error"
)
TROUBLE_LINES = 36


@dataclass(frozen=True)
class Share:
    """A host directory that the guest mounts over 9p by its tag."""

    tag: str
    path: Path
    readonly: bool = True


@dataclass
class Machine:
    """A running guest; leaving the `with` block ends QEMU and removes the run's directory, whatever happened.

    With `icount` (TCG, one CPU) the guest's clock counts instructions, two nanoseconds each: times taken in the guest
    are exact and repeatable, and say nothing of caches or pipelines. `directory` (private, temporary) holds `console`
    (the serial line), `qemu.log`, and what the caller puts there.
    """

    kernel: Kernel
    initramfs: Path
    append: str = ""
    smp: int = 2
    memory_mb: int = 1536
    accel: Literal["tcg", "kvm"] = "tcg"
    shares: Sequence[Share] = ()
    icount: bool = False
    extra: Sequence[str] = ()
    directory: Path = field(init=False)
    scratch: Scratch = field(init=False)
    status: int | None = field(init=False, default=None)
    _keeper: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.scratch = Scratch("vm")
        self.directory = self.scratch.path

    def __enter__(self) -> Machine:
        keeper = Path(__file__).with_name("keeper.py")
        try:
            argv = [sys.executable, "-I", "-S", str(keeper), str(self.directory), *self._argv()]
            self._keeper = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                pass_fds=[self.scratch.descriptor],  # it is in use until the keeper, too, has ended
            )
        except BaseException:
            self.scratch.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper.stdin and self._keeper.stdout  # noqa: S101 - made with PIPE above
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()
        self.scratch.remove()  # the keeper did, unless somebody killed it

    def wait(self, timeout_s: float) -> bool:
        """Whether QEMU has ended, waiting at most so long. Raises VmError when it could not even start."""
        if self.status is not None:
            return True
        assert self._keeper.stdout  # noqa: S101
        ready, _, _ = select.select([self._keeper.stdout], [], [], max(0.0, timeout_s))
        if not ready:
            return False
        words = os.read(self._keeper.stdout.fileno(), 4096).decode(errors="replace").split(maxsplit=1)
        if not words:
            raise VmError("the process that keeps QEMU was killed")
        if words[0] != "ended":
            raise VmError(f"QEMU cannot be started: {' '.join(words[1:])}")
        self.status = int(words[1])
        return True

    def cpu_s(self) -> float:
        """CPU seconds that QEMU has used so far: what a boot costs, however busy the machine is."""
        keeper = self._keeper.pid
        ticks = 0
        try:
            for child in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text(errors="surrogateescape").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])  # utime, stime: proc(5) counts from the PID
        except OSError:  # it has just ended
            return 0.0
        return ticks / os.sysconf("SC_CLK_TCK")

    def console(self) -> str:
        """What the guest wrote on its serial line so far; control characters are dropped."""
        return _printable(self.directory / "console")

    def tail(self) -> list[str]:
        """The console's last lines, a kernel's failure from where it begins; QEMU's own complaints without any."""
        lines = [line.rstrip() for line in self.console().splitlines() if line.strip()]
        if not lines:
            lines = _printable(self.directory / "qemu.log").splitlines()
        for number, line in enumerate(lines):
            if TROUBLE.search(line):
                ends = max(number + TROUBLE_LINES, len(lines) - CONSOLE_TAIL_LINES)
                return lines[number : number + TROUBLE_LINES] + lines[ends:]
        return lines[-CONSOLE_TAIL_LINES:]

    def _argv(self) -> list[str]:
        argv = [qemu_program(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        if self.accel == "kvm":
            argv += ["-M", "q35", "-accel", "kvm", "-cpu", "host"]
        else:
            # One thread for all guest CPUs. With one each, QEMU 7.2 goes on running the translation of an int3 that
            # the kernel has long patched away (seen by attaching fentry under UDP traffic on two CPUs: 6.12 dies of
            # "Oops: int3" within 40 s, 6.1 locks up; with one thread neither does).
            # la57 doubles the cost of every page walk that TCG does by hand.
            argv += ["-M", "q35", "-accel", "tcg,thread=single", "-cpu", "max,la57=off"]
        if self.icount:
            argv += ["-icount", "shift=1,sleep=on"]
        argv += ["-smp", str(self.smp), "-m", str(self.memory_mb)]
        argv += [
            "-chardev",
            f"file,id=console,path={_escape(self.directory / 'console')}",
            "-serial",
            "chardev:console",
        ]
        for number, share in enumerate(self.shares):
            readonly = ",readonly=on" if share.readonly else ""
            argv += [
                "-fsdev",
                f"local,id=share{number},path={_escape(share.path)},security_model=none,multidevs=remap{readonly}",
                "-device",
                f"virtio-9p-pci,fsdev=share{number},mount_tag={share.tag}",
            ]
        # panic=-1 with -no-reboot: a panic ends QEMU at once, with the reason on the console.
        words = f"console=ttyS0 quiet panic=-1 tsc=reliable random.trust_cpu=on {self.append}".strip()
        return [
            *argv,
            "-kernel",
            str(direct_image(self.kernel.image)),
            "-initrd",
            str(self.initramfs),
            "-append",
            words,
            *self.extra,
        ]


def qemu_program() -> str:
    """The path of qemu-system-x86_64. Raises VmError when it is not installed."""
    found = shutil.which("qemu-system-x86_64")
    if found is None:
        raise VmError("qemu-system-x86_64 is not installed", "apt install qemu-system-x86")
    return found


def accelerator(wanted: Accel, kernel: Kernel, initramfs: Path) -> Literal["tcg", "kvm"]:
    """The accelerator to use. "auto" takes KVM where a trial boot shows that it works.

    /dev/kvm alone says little: nested virtualisation may refuse or crawl. The trial boots `initramfs` with
    `nsprof.trial` on its command line (its init must then power off at once) for at most KVM_TRIAL_S, and its
    verdict holds until the host boots anew.
    """
    if wanted == "tcg":
        return "tcg"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        if wanted == "kvm":
            raise UsageError("KVM cannot be used: /dev/kvm is missing or not ours to open", "leave --accel out")
        return "tcg"
    if wanted == "kvm":
        return "kvm"
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    memory = cache_dir() / "kvm-verdict.json"
    try:
        known = json.loads(memory.read_text())
        if known["boot_id"] == boot_id:
            return "kvm" if known["works"] is True else "tcg"
    except (OSError, ValueError, KeyError, TypeError):
        memory.unlink(missing_ok=True)  # none yet, or a damaged one: try anew
    works = _kvm_works(kernel, initramfs)
    memory.write_text(json.dumps({"boot_id": boot_id, "works": works, "kernel": kernel.release}))
    return "kvm" if works else "tcg"


def _kvm_works(kernel: Kernel, initramfs: Path) -> bool:
    start = time.monotonic()
    with Machine(kernel, initramfs, append="nsprof.trial", smp=1, memory_mb=512, accel="kvm") as machine:
        ended = machine.wait(KVM_TRIAL_S)
        return ended and "nsprof-guest: trial" in machine.console() and time.monotonic() - start < KVM_TRIAL_S


def _escape(path: Path) -> str:
    return str(path).replace(",", ",,")  # QEMU's option syntax


def _printable(path: Path) -> str:
    if not path.exists():
        return ""
    text = path.read_bytes().decode("utf-8", "replace").replace("\r", "")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|[^\n\t\x20-\x7e\xa0-\U0010ffff]", "", text)

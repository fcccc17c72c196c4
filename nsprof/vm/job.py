"""Run one command in a guest: this machine's files under it, another kernel below them.

    result = run_job(resolve("debian:6.1"), ["uname", "-r"])

The guest sees this machine's root (read-only over 9p, a tmpfs above it that dies with the guest), so its Python,
BCC, iproute2 and this nsprof are the host's. It has no network device but lo: nothing leaves it. What the command
writes to /out (also seen at `out_dir`'s own path) is brought back as plain files.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nsprof.errors import UsageError, VmError
from nsprof.vm.initramfs import build, module_chain
from nsprof.vm.kernels import Kernel, module_index
from nsprof.vm.machine import Accel, Machine, Share, accelerator

__all__ = ["JobResult", "run_job"]

MODULES = ("virtio_pci", "9p", "9pnet_virtio", "overlay")
APPLETS = (
    *("sh", "mount", "insmod", "mkdir", "cat", "grep", "uname", "sleep", "poweroff", "hostname", "ifconfig"),
    "switch_root",
)
#: From QEMU's start to the command's: 3 to 6 s on an idle machine of 2020, ten times that on an overloaded one.
BOOT_TIMEOUT_S = 90.0
_POLL_S = 0.03
_PASSED_ENV = ("HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "LOGNAME", "VIRTUAL_ENV")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Output = Callable[[str, bytes], None]


@dataclass(frozen=True)
class JobResult:
    """What came back: the command's exit status and words, and how the guest fared.

    `boot_s` is from QEMU's start to the command's start (`boot_cpu_s`: QEMU's CPU time until then), `wall_s` to the
    guest's end (`cpu_s` likewise). `files` are those in
    `out_dir`, relative to it; `skipped` says what the command left there that is no plain file.
    """

    status: int
    stdout: str
    stderr: str
    console_tail: tuple[str, ...]
    boot_s: float
    boot_cpu_s: float
    wall_s: float
    cpu_s: float
    accel: str
    files: tuple[Path, ...] = ()
    skipped: tuple[str, ...] = ()


def run_job(
    kernel: Kernel,
    argv: Sequence[str],
    *,
    smp: int = 2,
    memory_mb: int = 1536,
    timeout_s: float = 600.0,
    append: str = "",
    out_dir: Path | None = None,
    accel: Accel = "auto",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_output: Output | None = None,
    boot_timeout_s: float | None = None,
    icount: bool = False,
) -> JobResult:
    """Boot `kernel`, run `argv` there as root, bring back what it said and wrote, power off.

    `append` is added to the kernel's command line; `env` to the command's environment; `on_output(stream, data)` is
    called with what the command says while it runs. `icount` lets the guest's clock count instructions (see Machine;
    one CPU, TCG). `timeout_s` bounds the command, `boot_timeout_s` the way to it (None: BOOT_TIMEOUT_S, and
    up to five times that while more processes want to run than there are CPUs).
    Raises VmError with the last console lines when the guest does not boot, hangs, panics or lacks what it needs;
    files written until then are in `out_dir` all the same. QEMU is gone afterwards in any case.
    """
    _check(argv, smp, memory_mb, timeout_s)
    if icount:
        accel, smp = "tcg", 1
    initramfs = _initramfs(kernel)
    chosen = accelerator(accel, kernel, initramfs)
    machine = Machine(kernel, initramfs, append=append, smp=smp, memory_mb=memory_mb, accel=chosen, icount=icount)
    machine.shares = (
        Share("nsprof-root", Path("/")),
        Share("nsprof-job", machine.directory / "job", readonly=False),
    )
    try:
        _write_job(machine.directory / "job", kernel, argv, env=env or {}, cwd=cwd or Path.cwd(), out_dir=out_dir)
    except BaseException:  # from __enter__ on the machine itself cares for its directory
        machine.scratch.remove()
        raise
    with ExitStack() as stack:
        start = time.monotonic()
        stack.enter_context(machine)
        job = _Job(machine, on_output, stack)
        try:
            boot_s = job.wait_started(_boot_timeout_s() if boot_timeout_s is None else boot_timeout_s) - start
            boot_cpu_s = machine.cpu_s()
            status = job.wait_ended(timeout_s)
            cpu_s = max(job.cpu_s, boot_cpu_s)
        finally:
            files, skipped = _collect(machine.directory / "job" / "out", out_dir)
        return JobResult(
            status=status,
            stdout=job.text("stdout"),
            stderr=job.text("stderr"),
            console_tail=tuple(machine.tail()),
            boot_s=boot_s,
            boot_cpu_s=boot_cpu_s,
            wall_s=time.monotonic() - start,
            cpu_s=cpu_s,
            accel=chosen,
            files=files,
            skipped=skipped,
        )


def _check(argv: Sequence[str], smp: int, memory_mb: int, timeout_s: float) -> None:
    if not argv or not argv[0]:
        raise UsageError("no command for the guest", "write it after --, e.g. nsprof vm run -- uname -r")
    if os.uname().machine != "x86_64":
        raise VmError(
            f"guests here are x86-64 with this machine's programs, and this machine is {os.uname().machine}"
        )
    if any("\0" in word for word in argv):
        raise UsageError("the command has a NUL byte in one of its words")
    if not 1 <= smp <= 64:
        raise UsageError(f"--smp {smp}: a guest has 1 to 64 CPUs")
    if memory_mb < 256:
        raise UsageError(f"--memory {memory_mb}: a guest needs 256 MB or more")
    if timeout_s <= 0:
        raise UsageError(f"--timeout {timeout_s:g}: must be positive")


def _boot_timeout_s() -> float:
    share = os.getloadavg()[0] / (os.cpu_count() or 1)
    return BOOT_TIMEOUT_S * min(5.0, max(1.0, share))


def _initramfs(kernel: Kernel) -> Path:
    init = (Path(__file__).parent / "guest" / "init.sh").read_bytes()
    folders = ("host", "job", "rw", "new", "proc", "sys")
    return build(kernel, init=init, modules=module_chain(kernel, MODULES), applets=APPLETS, directories=folders)


def _write_job(
    job: Path, kernel: Kernel, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, out_dir: Path | None
) -> None:
    """The files that init.sh and job.sh in the guest read; every value is data there, never a shell's word."""
    (job / "out").mkdir(parents=True)
    shutil.copyfile(Path(__file__).parent / "guest" / "job.sh", job / "job.sh")
    package = Path(__file__).resolve().parents[2]
    settings = {
        "PATH": f"/run/nsprof-bin:{_SYSTEM_PATH}",
        **{name: os.environ[name] for name in _PASSED_ENV if name in os.environ},
        "NSPROF_GUEST": "1",
        "NSPROF_OUT": "/out",
        **env,
    }
    (job / "argv").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in argv))
    (job / "env").write_bytes(b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in settings.items()))
    index = module_index(kernel)
    keep = {str(package), sys.prefix, sys.base_prefix, str(cwd)}
    lines = {
        "cwd": str(cwd),
        "outpath": str(out_dir.absolute()) if out_dir else "",
        "modules": str(kernel.modules or ""),
        "index": str(index or ""),
        "keep": "\n".join(sorted(path for path in keep if path.startswith("/run/"))),
    }
    for name, line in lines.items():
        if "\n" in line and name != "keep":
            raise UsageError(f"{line!r}: a path with a line break cannot be handed to a guest")
        (job / name).write_text(line + "\n" if line else "")
    # `nsprof` in the guest is this nsprof, run by this Python, wherever it is installed.
    (job / "nsprof").write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(package)!r})\n"
        "from nsprof.cli.main import run\nrun()\n"
    )
    (job / "nsprof").chmod(0o755)
    for stream in ("stdout", "stderr"):
        (job / stream).touch()


class _Job:
    """The host's end of a running job: its marks and its output, read from the shared directory."""

    def __init__(self, machine: Machine, on_output: Output | None, stack: ExitStack) -> None:
        self.machine = machine
        self.job = machine.directory / "job"
        self.on_output = on_output
        self.files: dict[str, IO[bytes]] = {
            name: stack.enter_context((self.job / name).open("rb")) for name in ("stdout", "stderr")
        }
        self.said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self.cpu_s = 0.0

    def text(self, stream: str) -> str:
        return b"".join(self.said[stream]).decode(errors="replace")

    def wait_started(self, timeout_s: float) -> float:
        deadline = time.monotonic() + timeout_s
        while not (self.job / "started").exists():
            if self.machine.wait(_POLL_S):
                raise self._failure("the guest ended before the command could start")
            if "nsprof-guest: lacks" in self.machine.console():
                raise self._failure("the guest cannot go on")
            if time.monotonic() > deadline:
                raise self._failure(f"the guest did not reach the command within {timeout_s:g} s")
        return time.monotonic()

    def wait_ended(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while not self.machine.wait(_POLL_S):
            self._read()
            self.cpu_s = max(self.cpu_s, self.machine.cpu_s())
            if (self.job / "status").exists():
                self.machine.wait(5.0)  # powering off; if it cannot, the caller ends it all the same
                break
            if time.monotonic() > deadline:
                raise self._failure(f"the command did not end within {timeout_s:g} s", "give more with --timeout")
        self._read()
        try:
            return int((self.job / "status").read_text())
        except FileNotFoundError:
            raise self._failure("the guest broke off while the command ran") from None

    def _read(self) -> None:
        for name, file in self.files.items():
            data = file.read()
            if data:
                self.said[name].append(data)
                if self.on_output is not None:
                    self.on_output(name, data)

    def _failure(self, what: str, hint: str = "") -> VmError:
        self._read()
        kernel = self.machine.kernel
        console = self.machine.console()
        for line in console.splitlines():
            if "Kernel panic" in line:
                what = f"the kernel panicked: {line.partition('Kernel panic - ')[2] or line}"
            elif "nsprof-guest: lacks:" in line:
                what = f"the guest kernel lacks {line.partition('lacks:')[2].strip()}"
                hint = "take a generic kernel (debian:6.1, debian:6.12), or switch these options on"
        return VmError(f"{kernel.spec} ({kernel.release}): {what}", hint, console=tuple(self.machine.tail()))


def _collect(source: Path, out_dir: Path | None) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Copy plain files and directories; links and devices made in the guest could point anywhere, so are left."""
    files: list[Path] = []
    skipped: list[str] = []
    for top, folders, names in os.walk(source):
        place = Path(top).relative_to(source)
        for name in [*names, *folders]:
            mode = (Path(top) / name).lstat().st_mode
            if stat.S_ISREG(mode):
                files.append(place / name)
            elif not stat.S_ISDIR(mode):
                skipped.append(str(place / name))
    if out_dir is None:
        return (), (*skipped, *map(str, files))
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        _hand_over(out_dir)
        for each in files:
            target = out_dir / each
            target.parent.mkdir(parents=True, exist_ok=True)
            _hand_over(target.parent)
            part = target.with_name(f".{target.name}.part")
            try:
                with (source / each).open("rb") as data, part.open("wb") as copy:
                    part.chmod(0o600)
                    shutil.copyfileobj(data, copy)
                _hand_over(part)
                part.replace(target)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise VmError(f"output directory {out_dir}: {error.strerror}") from error
    return tuple(sorted(files)), tuple(sorted(skipped))


def _hand_over(path: Path) -> None:
    """Under sudo, what is written belongs to who called it."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if uid.isdigit() and gid.isdigit() and os.geteuid() == 0 and path.stat().st_uid == 0:
        os.chown(path, int(uid), int(gid))

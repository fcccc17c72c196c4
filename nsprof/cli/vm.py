"""`nsprof vm`: run a command under another kernel, with this machine's files."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import click

from nsprof.cli import leftovers
from nsprof.cli.common import Bound, write_json

Accel = Literal["auto", "tcg", "kvm"]

_KERNEL_HELP = "a bzImage, a directory (make modules_install, dpkg -x), debian:6.1, debian:6.12 or debian:PACKAGE"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Run a command under another kernel, in a virtual machine that has this machine's files.

    The guest sees this machine's root read-only (9p) with a tmpfs above it that dies with it, and no network but
    lo. It runs with QEMU's TCG, or KVM where a short trial shows that it works.
    """


@command.command(short_help="Boot a kernel and run COMMAND there.")
@click.option("--kernel", "spec", metavar="SPEC", required=True, help=f"Kernel to boot: {_KERNEL_HELP}.")
@click.option("--modules", type=click.Path(path_type=Path), metavar="DIR", help="Modules of a bzImage.")
@click.option(
    "--smp", type=click.IntRange(1, 64), default=2, show_default=True, metavar="N", help="CPUs of the guest."
)
@click.option("--memory", default="1536", show_default=True, metavar="M", help="Memory: MB, or with a unit (2G).")
@click.option("--timeout", "timeout_s", type=Bound(), default=600.0, show_default=True, metavar="S", help="Bound.")
@click.option("--append", default="", metavar="WORDS", help="More of the kernel's command line.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Bring back what the command writes to /out (seen there at DIR's own path too).",
)
@click.option(
    "--accel", type=click.Choice(["auto", "tcg", "kvm"]), default="auto", show_default=True, help="How QEMU runs it."
)
@click.option("-v", "--verbose", is_flag=True, help="Say how long the boot took and how the guest ended.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing of nsprof's own on stderr but errors.")
@click.option("--json", "as_json", is_flag=True, help="How the guest ended, as JSON: the last line on stderr.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def run(
    *,
    spec: str,
    modules: Path | None,
    smp: int,
    memory: str,
    timeout_s: float,
    append: str,
    output: Path | None,
    accel: Accel,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    argv: tuple[str, ...],
) -> None:
    """Boot a kernel, run COMMAND there as root with this nsprof, bring back what it said and wrote.

    The exit status is the command's own; 125 when the guest did not boot, hung or broke off.

    \b
    nsprof vm run --kernel debian:6.1 -- uname -r
    nsprof vm run --kernel debian:6.1 --append mitigations=off -- nsprof doctor
    nsprof vm run --kernel debian:6.12 -o out -- nsprof record -o out/p -- true
    """
    from nsprof.errors import VmError
    from nsprof.vm import resolve, run_job

    leftovers.mind(quiet=quiet or as_json)
    try:
        with Elapsed(spec, quiet=quiet, silence="nothing said yet") as elapsed:
            result = run_job(
                resolve(spec, modules=modules),
                argv,
                smp=smp,
                memory_mb=_megabytes(memory),
                timeout_s=timeout_s,
                append=append,
                out_dir=output,
                accel=accel,
                on_output=elapsed.pass_on,
            )
    except VmError as error:
        for line in error.console:
            click.echo(f"console| {line}", err=True)
        raise
    if as_json:
        facts = ("accel", "status", "boot_s", "boot_cpu_s", "wall_s")
        write_json(
            "vm-run",
            {
                "kernel": spec,
                **{name: getattr(result, name) for name in facts},
                "files": [str(name) for name in result.files],
                "skipped": [str(name) for name in result.skipped],
            },
            beside_command=True,
        )
        sys.exit(result.status)
    if result.skipped and not quiet:
        why = "no plain files" if output else "give -o DIR to have them"
        click.echo(f"nsprof: left in the guest's /out ({why}): {', '.join(map(repr, result.skipped[:5]))}", err=True)
    if verbose and not quiet:
        words = (
            f"command after {result.boot_s:.1f} s ({result.boot_cpu_s:.1f} s of CPU), off after {result.wall_s:.1f} s"
        )
        click.echo(f"nsprof: {spec}: {result.accel}, {words}, {len(result.files)} files brought back", err=True)
    sys.exit(result.status)


@command.command(short_help="Fetch a Debian kernel into the cache.")
@click.option("--kernel", "spec", metavar="SPEC", required=True, help="debian:6.1, debian:6.12 or debian:PACKAGE.")
@click.option("--update", is_flag=True, help="Look for a newer one than the cache has.")
@click.option("--debug-info", is_flag=True, help="Its vmlinux with debug information too (some hundred MB).")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def fetch(spec: str, update: bool, debug_info: bool, as_json: bool) -> None:
    """Fetch a Debian kernel into the cache, verified by apt, so that later runs need no network."""
    from nsprof.errors import UsageError
    from nsprof.vm import debug_package, fetch_debian

    if not spec.startswith("debian:"):
        raise UsageError(f"--kernel {spec}: only Debian's kernels can be fetched", "try debian:6.1")
    with Elapsed(f"fetching {spec}", quiet=False):
        kernel = fetch_debian(spec.removeprefix("debian:"), refresh=update)
    found = {"release": kernel.release, "image": str(kernel.image), "modules": str(kernel.modules)}
    if debug_info:
        with Elapsed(f"fetching debug information of {kernel.release}", quiet=False):
            found["vmlinux"] = str(debug_package(kernel))
    if as_json:
        write_json("vm-fetch", found)
        return
    for name, value in found.items():
        click.echo(f"{name:<8} {value}")


class Elapsed:
    """Passes on what the command says; while it says nothing, a line on a terminal's stderr tells how long it takes.

    The line stands only where the cursor is at the begin of a line, and is gone before anything else is written.
    `silence` is added until the command has said something. Nothing of it with `quiet`, or where stderr is no
    terminal.
    """

    def __init__(self, what: str, *, quiet: bool, silence: str = "", every_s: float = 1.0) -> None:
        from nsprof.escape import safe

        self.what = safe(what)
        self.silence = silence
        self.every_s = every_s
        self.on = not quiet and sys.stderr.isatty()
        self.said = False
        self._shown = 0
        self._begun = True  # the cursor is at the begin of a line
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._start_s = time.monotonic()
        if self.on:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self.on:
            self._thread.join()
            with self._lock:
                self._clear()

    def _run(self) -> None:
        while not self._ended.wait(self.every_s):
            with self._lock:
                if self._begun:
                    state = "" if self.said or not self.silence else f", {self.silence}"
                    text = f"nsprof: {self.what}: {time.monotonic() - self._start_s:.0f} s{state}"
                    text = text[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be taken back
                    sys.stderr.write("\r" + text.ljust(self._shown))
                    sys.stderr.flush()
                    self._shown = len(text)

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0

    def pass_on(self, stream: str, data: bytes) -> None:
        """Write what the command said to `stream` (stdout or stderr)."""
        target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
        with self._lock:
            self._clear()
            target.write(data)
            target.flush()
            self.said = True
            self._begun = data.endswith(b"\n")


def _megabytes(text: str) -> int:
    from nsprof.errors import UsageError

    units = {"": 1, "M": 1, "MB": 1, "G": 1024, "GB": 1024}
    digits = text.rstrip("MGBmgb")
    unit = text[len(digits) :].upper()
    if not digits.isdigit() or unit not in units:
        raise UsageError(f"--memory {text}: not an amount of memory", "write 1536, 1536M or 2G")
    return int(digits) * units[unit]

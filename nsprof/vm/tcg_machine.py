"""One boot under QEMU's TCG with the counting plugin, bounded in time, with the guest's words checked."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsprof.errors import VmError
from nsprof.files import private_cache
from nsprof.vm import guest_minimal, tcg_build
from nsprof.vm.cache import locked, put
from nsprof.vm.guest_minimal import GuestJob, Plan
from nsprof.vm.kernels import Kernel
from nsprof.vm.machine import Machine, qemu_program
from nsprof.vm.vmlinux import direct_image

__all__ = ["Boot", "BootOptions", "boot", "module_names", "start_all", "stop_all", "symbols", "symbols_path"]

#: Virtual nanoseconds an instruction takes: 1 << ICOUNT_SHIFT (QEMU's -icount shift).
ICOUNT_SHIFT = 1
#: A boot is over in 5 to 10 s on an idle machine of 2020; many scenarios' measurements in another 60.
TIMEOUT_S = 600.0
_POLL_S = 0.25
#: Always: addresses that do not move, stacks and slabs that lie where they lay, no watchdogs. Slabs are of one page
#: each: freeing an object that does not lie in its slab's first page takes a step more, which is chance.
COMMAND_LINE = (
    "console=ttyS0 quiet nokaslr panic=-1 tsc=reliable randomize_kstack_offset=off slab_nomerge slub_max_order=0 "
    "nowatchdog no_timer_check clocksource=tsc audit=0 loglevel=3"
)


_stopping = threading.Event()


def start_all() -> None:
    """Boots may begin (again)."""
    _stopping.clear()


def stop_all() -> None:
    """End every boot under way in this process (they raise VmError), so that an interrupt is quick."""
    _stopping.set()


@dataclass(frozen=True)
class BootOptions:
    """How one boot is done. `caches` maps l1d, l1i, l2 to "KiB:ways"; `plugin` False boots without counting."""

    seed: int = 1
    memory_mb: int = 512
    mitigations: str = "off"
    memory: bool = True
    footprint: bool = False
    addresses: bool = False
    caches: tuple[tuple[str, str], ...] = ()
    snapshot: Path | None = None
    append: str = ""
    timeout_s: float = TIMEOUT_S
    qemu: str = ""
    plugin: bool = True


@dataclass(frozen=True)
class Boot:
    """What a boot gave: the guest's own lines, the plugin's output (a private copy), the wall time in seconds."""

    words: tuple[tuple[str, ...], ...]
    output: str
    bulk: bytes
    wall_s: float
    ready_s: float

    def of(self, word: str) -> list[tuple[str, ...]]:
        """The guest's lines that begin with a word, without it."""
        return [line[1:] for line in self.words if line and line[0] == word]


class _CountingMachine(Machine):
    """A Machine whose QEMU counts instructions: one vCPU, virtual time, everything pinned."""

    options: BootOptions
    symbols: Path | None = None
    bulk: bool = False

    def _argv(self) -> list[str]:
        options, directory = self.options, self.directory
        argv = [options.qemu or qemu_program(), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        argv += ["-M", "q35", "-accel", "tcg,thread=single", "-cpu", "Nehalem", "-smp", "1"]
        argv += ["-icount", f"shift={ICOUNT_SHIFT},sleep=off", "-rtc", "clock=vm,base=2026-01-01"]
        argv += ["-seed", str(options.seed)]
        if options.snapshot is not None:
            ram = directory / "ram"
            argv += ["-object", f"memory-backend-file,id=ram,size={options.memory_mb}M,mem-path={ram},share=on"]
            argv += ["-machine", "memory-backend=ram"]
        argv += ["-m", f"{options.memory_mb}M"]
        argv += ["-chardev", f"file,id=console,path={directory / 'console'}", "-serial", "chardev:console"]
        if self.bulk:
            argv += ["-chardev", f"file,id=bulk,path={directory / 'bulk'}"]
            argv += ["-device", "isa-debugcon,iobase=0xe9,chardev=bulk"]
        if self.symbols is not None:
            argv += ["-plugin", ",".join(self._plugin_words(self.symbols))]
        append = f"{COMMAND_LINE} mitigations={options.mitigations} {options.append}".strip()
        argv += ["-kernel", str(direct_image(self.kernel.image)), "-initrd", str(self.initramfs)]
        return [*argv, "-append", append]

    def _plugin_words(self, symbols: Path) -> list[str]:
        options = self.options
        words = [str(tcg_build.plugin(tcg_build.api_version(options.qemu or qemu_program())))]
        words += [f"out={self.directory / 'counts'}", f"symbols={symbols}"]
        if options.memory:
            words.append("memory=on")
        if options.footprint:
            words.append("footprint=on")
        if options.addresses:
            words.append("addresses=on")
        if options.snapshot is not None:
            words += [f"ram={self.directory / 'ram'}", f"snapshot={options.snapshot}"]
        return [*words, *(f"{name}={geometry}" for name, geometry in options.caches)]


def boot(kernel: Kernel, job: GuestJob, options: BootOptions, *, on_tick: Callable[[], None] | None = None) -> Boot:
    """Boot, run the job, power off, hand back everything. QEMU is gone afterwards in any case.

    Raises VmError when the guest hangs, panics, or says that a step failed.
    """
    table = None
    if options.plugin and not job.dump_symbols:
        table = symbols(kernel, job.plan, options)
    machine = _CountingMachine(kernel, Path())
    machine.options, machine.symbols, machine.bulk = options, table, job.dump_symbols
    try:
        machine.initramfs = machine.directory / "initramfs"
        machine.initramfs.write_bytes(guest_minimal.archive(kernel, job))
        argv_error = machine._argv()  # compiles the plugin, so that its errors come before QEMU starts
        del argv_error
    except BaseException:
        machine.scratch.remove()
        raise
    start = time.monotonic()
    with machine:
        ready = _wait(machine, kernel, options.timeout_s, on_tick)
        console = machine.console()
        words = tuple(
            tuple(line[line.index("NSPROF ") + 7 :].split()) for line in console.splitlines() if "NSPROF " in line
        )
        _check(machine, kernel, job, words)
        if table is not None:
            _check_modules(kernel, table, words)
        return Boot(
            words=words,
            output=_read(machine.directory / "counts").decode(errors="replace"),
            bulk=_read(machine.directory / "bulk"),
            wall_s=time.monotonic() - start,
            ready_s=ready - start,
        )


def _wait(machine: Machine, kernel: Kernel, timeout_s: float, on_tick: Callable[[], None] | None) -> float:
    deadline = time.monotonic() + timeout_s
    ready = 0.0
    while not machine.wait(_POLL_S):
        if on_tick is not None:
            on_tick()
        if _stopping.is_set():
            raise VmError("interrupted")
        if not ready and "NSPROF ready" in machine.console():
            ready = time.monotonic()
        if time.monotonic() > deadline:
            where = "while measuring" if ready else "before its network stood"
            raise VmError(
                f"kernel {kernel.spec}: the guest hung {where} (no end within {timeout_s:.0f} s); its last lines: "
                + _tail(machine)
            )
    return ready or time.monotonic()


def _check(machine: Machine, kernel: Kernel, job: GuestJob, words: Sequence[Sequence[str]]) -> None:
    failed = [line[1:] for line in words if line and line[0] == "failed"]
    status = [line[1] for line in words if len(line) > 1 and line[0] == "status"]
    name = f" ({job.plan.name})" if job.plan else ""
    if status:
        raise VmError(
            f"kernel {kernel.spec}{name}: the command ended with {status[0]} in the guest: {_tail(machine)}"
        )
    if failed:
        raise VmError(
            f"kernel {kernel.spec}{name}: in the guest failed: {' '.join(failed[0])}; the guest's last lines: "
            + _tail(machine)
        )
    if machine.status:
        raise VmError(f"kernel {kernel.spec}: QEMU ended with {machine.status}: {_log(machine)}")
    if ("done",) not in words:
        panic = "panicked" if "Kernel panic" in machine.console() else "ended before its work was done"
        raise VmError(
            f"kernel {kernel.spec}{name}: the guest {panic}{_cause(machine)}; its last lines: {_tail(machine)}"
        )


def _module_addresses(words: Sequence[Sequence[str]]) -> str:
    return "".join(f"{line[1]} {line[2]}\n" for line in words if len(line) == 3 and line[0] == "module")


def _check_modules(kernel: Kernel, table: Path, words: Sequence[Sequence[str]]) -> None:
    """The table is of another boot: had a module been elsewhere in it, functions would have others' names."""
    if _module_addresses(words) != table.with_suffix(table.suffix + ".modules").read_text():
        raise VmError(
            f"kernel {kernel.spec}: its modules did not lie where they lay when its symbols were read",
            f"remove {table} and simulate again",
        )


def _tail(machine: Machine) -> str:
    return " | ".join(machine.tail()[-5:]) or "(none)"


def _cause(machine: Machine) -> str:
    """What the kernel said first of its own trouble, and where: the last lines of a panic are seldom it."""
    lines = machine.console().splitlines()
    marks = ("BUG:", "Oops:", "general protection", "Unable to", "VFS:", "not tainted", "invalid opcode")
    trouble = [line.strip() for line in lines if any(mark in line for mark in marks)][:1]
    trouble += [line.strip() for line in lines if "RIP:" in line][:1]
    return f" ({'; '.join(trouble)})" if trouble else ""


def _log(machine: Machine) -> str:
    lines = _read(machine.directory / "qemu.log").decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or "(it said nothing)"


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def symbols_path(kernel: Kernel, plan: Plan | None) -> Path:
    """Where `symbols` keeps its table, whether it is there yet or not."""
    return private_cache("tcg", "symbols") / f"{kernel.release}-{guest_minimal.modules_key(kernel, plan)}.kallsyms"


def symbols(kernel: Kernel, plan: Plan | None, options: BootOptions) -> Path:
    """The guest's kallsyms with the plan's modules loaded, from a boot of its own; kept in the cache.

    With nokaslr the addresses are the same at every boot, which each boot's modules are checked for.
    """
    target = symbols_path(kernel, plan)
    with locked("tcg-symbols"):
        if target.exists():
            return target
        only_modules = None if plan is None else Plan(plan.name, (), (), "", "", "", "", "", modules=plan.modules)
        job = GuestJob(only_modules, dump_symbols=True)
        plain = BootOptions(qemu=options.qemu, memory_mb=options.memory_mb, timeout_s=options.timeout_s)
        got = boot(kernel, job, plain)
        try:
            text = gzip.decompress(got.bulk)
        except (OSError, EOFError, zlib.error) as error:
            raise VmError(f"kernel {kernel.spec}: the guest's symbols came back damaged: {error}") from error
        lines = [line for line in text.splitlines() if len(line) > 17 and line[16:17] == b" "]
        if not any(line[:1] in b"f" and b" ip_rcv" in line for line in lines):
            raise VmError(
                f"kernel {kernel.spec}: shows no addresses in /proc/kallsyms", "it wants CONFIG_KALLSYMS and _ALL"
            )
        put(target.with_suffix(target.suffix + ".modules"), _module_addresses(got.words).encode())
        put(target, b"\n".join(lines) + b"\n")
    return target


def module_names(table: Path, addresses: Collection[int]) -> dict[int, str]:
    """Function address -> module, for those that are in one, by a guest's kallsyms."""
    found: dict[int, str] = {}
    with table.open() as lines:
        for line in lines:
            if line.endswith("]\n"):
                words = line.split()
                address = int(words[0], 16)
                if address in addresses:
                    found[address] = words[-1].strip("[]")
    return found

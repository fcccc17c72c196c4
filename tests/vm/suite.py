"""The guest's tests as seen from the host: which there are, and how they fared under a kernel.

Each kernel is booted once a session; the guest runs pytest over tests/vm/guest and writes one line a test.
Files named test_lockdown_* run in a boot with lockdown=confidentiality, the others in a plain one.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import json
import lzma
import multiprocessing
import os
import re
import signal
import struct
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsprof.collect.bpf import btf, loader
from nsprof.collect.bpf import cache as loader_cache
from nsprof.collect.ledger import probes as ledger_probes
from nsprof.errors import NsprofError, VmError
from nsprof.files import cache_root
from nsprof.vm import resolve, run_job
from nsprof.vm.keeper import PR_SET_PDEATHSIG
from nsprof.vm.kernels import Kernel
from nsprof.vm.vmlinux import direct_image
from tests.support import REPO

#: For all tests of one boot; a busy machine may need more.
TIMEOUT_S = float(os.environ.get("NSPROF_VM_TIMEOUT", "900"))
GUEST = REPO / "tests" / "vm" / "guest"
#: name -> (kernel, more of its command line, whether its tests are those of test_lockdown_*.py)
BOOTS = {
    "6.1": ("debian:6.1", "", False),
    "6.12": ("debian:6.12", "", False),
    "6.12-lockdown": ("debian:6.12", "lockdown=confidentiality", True),
}


@dataclass
class Report:
    """Results of one boot: per test function its cases, and how the guest itself ended."""

    cases: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    boot_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    said: str = ""
    broke_off: str = ""


@functools.cache
def guest_tests(boot: str) -> tuple[str, ...]:
    """`file.py::function` of every test that the boot runs, read from the source (the host imports none)."""
    found = []
    for path in sorted(GUEST.glob("test_*.py")):
        if path.name.startswith("test_lockdown_") is not BOOTS[boot][2]:
            continue
        tree = ast.parse(path.read_text())
        found += [
            f"{path.name}::{node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
    return tuple(found)


_reports: dict[str, Future[Report]] = {}


def report(boot: str, wanted: Mapping[str, tuple[str, ...]]) -> Report:
    """The boot's report, from the first call on; `wanted` are the tests that this session asks for, by boot.

    A guest uses one CPU of the host however many it has itself (nsprof.vm.machine), so that two run side by side.
    """
    if not _reports:
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(max_workers=2, mp_context=spawn, initializer=_die_with, initargs=(os.getpid(),))
        _reports.update({each: pool.submit(_run, each, tests) for each, tests in wanted.items() if tests})
        pool.shutdown(wait=False)  # ends by itself after the last
    return _reports[boot].result()


def _die_with(parent: int) -> None:
    """A worker does not outlive the tests, whatever ends them; its QEMU then goes with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run(boot: str, wanted: tuple[str, ...]) -> Report:
    spec, append, _ = BOOTS[boot]
    paths = [f"tests/vm/guest/{test}" for test in wanted]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S:g}", *paths]
    done = Report()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place)
        try:
            _compile_ahead(spec)
            result = run_job(
                resolve(spec),
                argv,
                append=append,
                out_dir=out,
                cwd=REPO,
                memory_mb=2048,
                timeout_s=TIMEOUT_S,
                env={"PYTHONDONTWRITEBYTECODE": "1", **_passed("NSPROF_CACHE")},
            )
            done.cpu_s = result.cpu_s
            done.boot_s, done.wall_s = result.boot_s, result.wall_s
            done.said = result.stdout[-6000:] + result.stderr[-3000:]
        except NsprofError as error:
            done.broke_off = "\n".join((str(error), *getattr(error, "console", ())))
        _keep_programs(out / "programs")
        results = out / "results.jsonl"
        for line in results.read_text().splitlines() if results.exists() else ():
            case = json.loads(line)
            file, _, function = case["test"].partition("::")
            name = f"{Path(file).name}::{function.partition('[')[0]}"
            done.cases.setdefault(name, []).append(case)
    return done


def _passed(*names: str) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _keep_programs(place: Path) -> None:
    """Programs that the guest compiled, for the next boot of its kernel: compiling takes most of a guest's time."""
    for path in place.glob("*") if place.is_dir() else ():
        compiled = loader_cache.read(place, path.name) if re.fullmatch("[0-9a-f]{40}", path.name) else None
        if compiled is not None:
            loader_cache.write(cache_root() / "programs", path.name, compiled)


def _compile_ahead(spec: str) -> None:
    """Compile on the host what the guest's tests load: clang takes a second here and half a minute under TCG.

    A matter of time only: what is missing, or was made for other defines, the guest compiles itself.
    """
    kernel = resolve(spec)
    types = _types_of(direct_image(kernel.image).read_bytes())
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "vmlinux.btf"
        path.write_bytes(types)
        target = loader.Target(path, kernel.release)
        tables = {"SAMPLES_MAX": 65_536, "STACKS_MAX": 16_384}
        every = {"PROBE_READ": 1, "DIRECT_LOADS": 1}
        names = {"TX_LOC": 8, "TX_NAME": 64, "RX_LOC": 20, "RX_NAME": 24}  # as these kernels' tracefs says
        for given in (every, {"PROBE_READ": 1}, {"PROBE_READ": 1, **names}):
            loader.compiled("hop", given, target=target)
        loader.compiled("calls", {"SLOTS": 256}, target=target)
        loader.compiled("sampler", {**tables, **every}, target=target)
        loader.compiled("sampler", {**tables, **every, "HOP": 1}, lent=("HOPS_FD", "OWNERS_FD"), target=target)
        table = btf.TypeTable(types, "the guest's BTF")
        nft = _module_types(kernel, ledger_probes.NFT_MODULE, table)
        for reads in (True, False):
            for name, defines in ledger_probes.sources(table, nft, reads=reads).items():
                loader.compiled(name, defines, target=target)


def _module_types(kernel: Kernel, module: str, base: btf.TypeTable) -> btf.TypeTable | None:
    """The types of a module as it lies in the kernel's tree."""
    place = next(kernel.modules.rglob(f"{module}.ko*"), None) if kernel.modules else None
    if place is None or place.suffix not in (".ko", ".xz"):
        return None
    blob = lzma.decompress(place.read_bytes()) if place.suffix == ".xz" else place.read_bytes()
    return btf.TypeTable(_types_of(blob), module, base)


def _types_of(kernel: bytes) -> bytes:
    """The section .BTF of an ELF kernel (System V ABI, section header table)."""
    table, size, count, names = *struct.unpack_from("<Q", kernel, 40), *struct.unpack_from("<HHH", kernel, 58)
    rows = [struct.unpack_from("<IIQQQQ", kernel, table + number * size) for number in range(count)]
    strings = rows[names][4]
    for name, _, _, _, offset, length in rows:
        at = strings + name
        if kernel[at : kernel.index(b"\0", at)] == b".BTF":
            return kernel[offset : offset + length]
    raise VmError("the kernel has no type information")

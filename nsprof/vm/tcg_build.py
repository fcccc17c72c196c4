"""The simulator's two C programs, compiled on first use into the private cache: QEMU's plugin, the guest's traffic.

plugin(api_version("/usr/bin/qemu-system-x86_64"))  ->  .../nsprof-tcg.so
traffic()                                           ->  .../traffic (static)
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nsprof.errors import VmError
from nsprof.files import private_cache
from nsprof.vm.cache import locked

__all__ = ["api_version", "plugin", "sources", "traffic"]

_PLUGIN = ("plugin.c", "tree.c", "symbols.c", "lines.c", "count.h", "qemu_api.h")
_TRAFFIC = ("traffic.c", "netkit.c", "netkit.h")
_WARNINGS = ("-O2", "-Wall", "-Wextra", "-Werror=implicit-function-declaration")


def sources() -> Path:
    """The directory of the C sources: in an installed package, or in the source tree. Raises VmError."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_probes" / "tcg", package.parent / "probes" / "tcg"):
        if (place / "plugin.c").exists():
            return place
    raise VmError(f"the simulator's sources (probes/tcg) are missing beside {package}", "reinstall nsprof")


def api_version(qemu: str) -> int:
    """The plugin interface's version that a QEMU wants: 1 up to 8.x, 2 (9.0), 3 (9.1, 9.2), 4 from 10.0 on.

    Raises VmError when it says no version, or was built without plugins.
    """
    try:
        said = subprocess.run([qemu, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        options = subprocess.run([qemu, "--help"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise VmError(f"{qemu}: cannot be run: {error}", "apt install qemu-system-x86") from error
    match = re.search(r"version (\d+)\.(\d+)", said)
    if not match:
        raise VmError(f"{qemu}: says no version: {said.strip()[:80]!r}")
    if "-plugin " not in options:
        raise VmError(f"{qemu}: was built without TCG plugins, which the simulator counts with", "use Debian's QEMU")
    version = (int(match[1]), int(match[2]))
    if version < (4, 2):
        raise VmError(f"{qemu} {match[1]}.{match[2]} is too old: plugins came with 4.2")
    return 1 if version < (9, 0) else 2 if version < (9, 1) else 3 if version < (10, 0) else 4


def plugin(api: int) -> Path:
    """The compiled plugin for a version of QEMU's interface. Raises VmError when there is no compiler."""
    flags = ["-fPIC", "-shared", "-fvisibility=hidden", f"-DNSPROF_QEMU_API={api}"]
    return _compiled("nsprof-tcg.so", _PLUGIN, flags, str(api))


def traffic() -> Path:
    """The guest's traffic program, static. Raises VmError when there is no compiler or no static C library."""
    return _compiled("traffic", _TRAFFIC, ["-static"], "")


def _compiled(name: str, files: Sequence[str], flags: Sequence[str], variant: str) -> Path:
    place = sources()
    digest = hashlib.sha256(variant.encode())
    for file in files:
        digest.update((place / file).read_bytes())
    target = private_cache("tcg") / f"{digest.hexdigest()[:20]}-{name}"
    if target.exists():
        return target
    compiler = shutil.which(os.environ.get("CC", "")) or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise VmError(f"no C compiler to build the simulator's {name} with", "apt install gcc libc6-dev")
    with locked("tcg"):
        fd, part = tempfile.mkstemp(prefix=f".{name}.", dir=target.parent)
        os.close(fd)
        try:
            c_files = [str(place / file) for file in files if file.endswith(".c")]
            argv = [compiler, *_WARNINGS, *flags, *c_files, "-o", part]
            done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=300, check=False)
            if done.returncode != 0:
                raise _refused(name, compiler, done.stderr)
            Path(part).chmod(0o700)
            Path(part).replace(target)
        finally:
            Path(part).unlink(missing_ok=True)
    return target


def _refused(name: str, compiler: str, said: str) -> VmError:
    lines = [line for line in said.splitlines() if "error" in line.lower() or "cannot find" in line]
    why = (lines or said.strip().splitlines() or ["no reason given"])[0]
    no_libc = "cannot find -lc" in said or "stdio.h" in said or "cannot find crt" in said
    return VmError(
        f"{compiler} could not build the simulator's {name}: {why.strip()}",
        "apt install libc6-dev" if no_libc else "",
    )

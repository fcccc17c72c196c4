"""The simulator's guest: as little as possible, so that little but the traffic runs in the measured samples.

A first file system with busybox, this machine's `ip`, nsprof's traffic program and the modules; no 9p, no block
device. The scenario is a Plan: namespaces, and for each of them settings and `ip -batch` lines, in steps.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nsprof.errors import VmError
from nsprof.vm import initramfs, tcg_build
from nsprof.vm.kernels import Kernel

__all__ = ["GuestJob", "Hops", "Plan", "Step", "archive", "program_files"]

#: What every scenario may need; loaded always, so that code lies at the same addresses in all of them.
MODULES = ("veth", "bridge")
_IP = "/usr/bin/ip"
_JOB_UNIT = 1 << 18
_NEIGHBOURS = 520
_INIT = b"""#!/bin/busybox sh
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs run /run
mkdir -p /run/netns
cd / && cpio -i -d -u < /job.cpio 2> /dev/null
read seed < /seed; traffic seed "$seed"
exec sh /job/start
"""
APPLETS = ("sh", "mount", "insmod", "mkdir", "cat", "gzip", "poweroff", "nsenter", "sleep", "echo", "ls", "cpio")


@dataclass(frozen=True)
class Step:
    """What is done inside one network namespace, in this order: settings (file under /proc/sys -> value), lines of
    `ip -batch`, programs."""

    netns: str
    settings: tuple[tuple[str, str], ...] = ()
    ip: tuple[str, ...] = ()
    run: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Hops:
    """(namespace, device) of each transmission and of each reception of one packet, in order."""

    sent: tuple[tuple[str, str], ...]
    received: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plan:
    """How a scenario is built: the namespaces, then the steps. `modules` are needed besides MODULES.

    `client` and `server` name the namespaces of the two ends, `address` is the server's, `wire` the device in
    `count_netns` whose packets are counted. `programs` are programs of this machine that the steps run. `hops` are
    the devices through which a packet goes, where known: those of the client's packet and of the server's.
    """

    name: str
    netns: tuple[str, ...]
    steps: tuple[Step, ...]
    client: str
    server: str
    address: str
    count_netns: str
    wire: str
    family: int = 4
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hops: tuple[Hops, Hops] | None = None


@dataclass(frozen=True)
class GuestJob:
    """What the guest does once its network stands: `arguments` are those of the traffic program.

    `tries`: the network is built and removed again until one of so many, or of a few more, has no bad luck with its
    hash seeds (probes/tcg/traffic.c); they follow from `seed`, whatever else differs between jobs.
    """

    plan: Plan | None
    arguments: tuple[str, ...] = ()
    tries: int = 1
    seed: int = 1
    dump_symbols: bool = False
    command: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


def program_files(program: str) -> dict[str, Path]:
    """A program of this machine and the libraries that it needs, as files of a guest. Raises VmError."""
    found = shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin:/usr/local/sbin")
    if found is None:
        package = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "ethtool": "ethtool"}.get(program, program)
        raise VmError(f"{program} is not installed: the guest needs it", f"apt install {package}")
    listing = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
    files = {f"/usr/bin/{program}": Path(found).resolve()}
    for library in re.findall(r"(?:=> )?(/\S+) \(0x", listing):
        files[library] = Path(library).resolve()
    return files


def archive(kernel: Kernel, job: GuestJob) -> bytes:
    """The initramfs: a part that all jobs on this kernel share (cached), and the job's own. Raises VmError."""
    plan = job.plan
    chain = _chain(kernel, plan)
    files: dict[str, bytes | Path] = {"/bin/traffic": tcg_build.traffic()}
    for program in ("ip", *(plan.programs if plan else ())):
        files.update(program_files(program))
    base = initramfs.build(
        kernel,
        init=_INIT,
        modules=chain,
        applets=APPLETS,
        directories=("proc", "sys", "run", "tmp", "etc", "run/netns"),
        files=files,
    )
    own = [initramfs.Entry("job", stat.S_IFDIR | 0o755)]
    for name, text in _scripts(job).items():
        own.append(initramfs.Entry(f"job/{name}", stat.S_IFREG | 0o755, text.encode()))
    folders: set[str] = set()
    for name, path in job.files.items():
        for folder in reversed(Path(name.lstrip("/")).parents):
            if str(folder) not in (".", *folders):
                folders.add(str(folder))
                own.append(initramfs.Entry(str(folder), stat.S_IFDIR | 0o755))
        mode = stat.S_IMODE(path.stat().st_mode) | 0o444
        own.append(initramfs.Entry(name.lstrip("/"), stat.S_IFREG | mode, path.read_bytes()))
    # One file of a size that jobs have in common: up to the seeding the guest executes the same instructions
    # whatever the job, so that the kernel's random numbers are the same as well.
    blob = initramfs.cpio([*own, initramfs.Entry("seed", stat.S_IFREG | 0o644, str(job.seed).encode())])
    blob += bytes(-len(blob) % _JOB_UNIT)
    return base.read_bytes() + initramfs.cpio([initramfs.Entry("job.cpio", stat.S_IFREG | 0o644, blob)])


def _chain(kernel: Kernel, plan: Plan | None) -> list[Path]:
    """The module files in order of loading. Raises VmError naming the module that the kernel lacks."""
    extra = plan.modules if plan else ()
    # nf_tables' checksum library asks the crypto layer for an algorithm by name, which no dependency list tells.
    first = ("crc32c_generic",) if "nf_tables" in extra else ()
    chains = (
        initramfs.module_chain(kernel, MODULES),
        initramfs.module_chain(kernel, (), optional=first),
        initramfs.module_chain(kernel, extra),
    )
    return list(dict.fromkeys(path for chain in chains for path in chain))


def modules_key(kernel: Kernel, plan: Plan | None) -> str:
    """A word that is the same where the same modules are loaded in the same order on the same kernel."""
    chain = _chain(kernel, plan)
    digest = hashlib.sha256(kernel.image.read_bytes())
    for path in chain:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def _scripts(job: GuestJob) -> dict[str, str]:
    start = [
        'fail() { echo "NSPROF failed $*"; poweroff -f; sleep 9; }',
        # The sleep lets go of the memory that a module needs while it starts: else it is chance whether the next
        # module lies there, and symbols of another boot would be wrong.
        'for m in /modules/*.ko; do [ -e "$m" ] && { insmod "$m" || fail "module $m"; sleep 0.3; }; done',
        'while read -r name _ _ _ _ address _; do echo "NSPROF module $name $address"; done < /proc/modules',
    ]
    scripts: dict[str, str] = {}
    if job.dump_symbols:
        start += ["echo NSPROF ready", "cat /proc/modules /proc/kallsyms | gzip -1 | traffic bulk || fail symbols"]
    else:
        if job.plan:
            scripts["neighbours"] = _neighbours(job.plan.family)
            start.append(f"{_IP} -batch /job/neighbours || fail neighbours")
        start += ["attempt=1", "while :; do"]
        if job.plan:
            start += _plan_lines(job.plan, scripts)
        start.append('[ "$attempt" = 1 ] && echo NSPROF ready')
        start += [*_traffic_lines(job), "attempt=$((attempt + 1))", "done"]
    start += ["echo NSPROF done", "poweroff -f", "sleep 9"]
    scripts["start"] = "\n".join(start) + "\n"
    return scripts


def _traffic_lines(job: GuestJob) -> list[str]:
    if not job.arguments:
        return ["break"]
    words = [*job.arguments, f"tries={job.tries}"]
    command = ["--", *job.command] if job.command else []
    line = " ".join(["traffic", *map(shlex.quote, words), 'attempt="$attempt"', *map(shlex.quote, command)])
    # Removal goes on in the background; sleeping costs nothing here, idle time is skipped.
    remove = f"{_IP} -batch /job/remove || fail removal of namespaces; sleep 1" if job.plan else ":"
    return [line, "case $? in 0) break;; 3) " + remove + ";; *) fail traffic program;; esac"]


def _neighbours(family: int) -> str:
    """The table of neighbours is one for all namespaces, has 8 buckets at first, and grows but never shrinks: so
    that the scenario's four do not meet in a bucket by chance, many come and go before."""
    form = "2001:db8::{:x}" if family == 6 else "10.0.{}.{}"
    places = [form.format(n + 1) if family == 6 else form.format(n >> 8, n & 255) for n in range(_NEIGHBOURS)]
    adds = [f"neigh add {place} lladdr 02:00:00:00:ff:ff nud permanent dev many\n" for place in places]
    return "".join(["link add many type veth peer name more\n", "link set many up\n", *adds, "link del many\n"])


def _plan_lines(plan: Plan, scripts: dict[str, str]) -> list[str]:
    scripts["remove"] = "".join(f"netns del {name}\n" for name in plan.netns)
    scripts["netns"] = "".join(f"netns add {name}\n" for name in plan.netns)
    # By path: busybox prefers its own applets, and its ip knows neither batches nor pairs.
    lines = [f"{_IP} -batch /job/netns || fail namespaces"] if plan.netns else []
    for number, step in enumerate(plan.steps):
        inside = [f"echo {shlex.quote(value)} > /proc/sys/{key} || exit 1" for key, value in step.settings]
        if step.ip:
            scripts[f"{number}.ip"] = "\n".join(step.ip) + "\n"
            inside.append(f"{_IP} -batch /job/{number}.ip || exit 1")
        inside += [" ".join(shlex.quote(word) for word in words) + " || exit 1" for words in step.run]
        scripts[f"{number}.sh"] = "\n".join(inside) + "\n"
        lines.append(f"nsenter -n/run/netns/{step.netns} sh /job/{number}.sh || fail set-up of {step.netns}")
    return lines

"""What this machine can and cannot do, found by trying; what each lack prevents and what mends it."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nsprof.collect.bpf import bcc_door, btf
from nsprof.collect.checks import trials
from nsprof.collect.system import cputime
from nsprof.errors import NsprofError, PreflightError

__all__ = ["Check", "can_record", "checks", "demand"]

_SUDO = "run as root: sudo nsprof doctor"


@dataclass(frozen=True, slots=True)
class Check:
    """One row. `state` is "yes", "no", "partly" or "unknown"; `detail` what was found; `prevents` and `remedy` are
    empty when nothing is lacking. `group` is "Sampling", "Probes", "Machine" or "Tools"."""

    key: str
    group: str
    title: str
    state: str
    detail: str = ""
    prevents: str = ""
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The row as JSON."""
        return asdict(self)


def checks() -> tuple[Check, ...]:
    """Try everything, leaving nothing loaded; works without root, saying what that costs.

    Takes a few seconds, and as long as compiling the hop and ledger probes takes where that has not been done yet.
    """
    return (*_sampling(), *_probes(), *_places(), *_ledger_places(), *_machine(), *_tools())


def can_record(rows: Sequence[Check]) -> bool:
    """Whether `nsprof record` can work: with BCC and BPF on perf events, or with perf record underneath."""
    state = {row.key: row.state for row in rows}
    with_bpf = all(state.get(key) == "yes" for key in ("root", "btf", "bpf_perf_event", "bcc"))
    with_perf = all(state.get(key) == "yes" for key in ("system_wide", "perf"))
    return (with_bpf or with_perf) and state.get("kallsyms") != "no"


def demand(rows: Sequence[Check] | None = None) -> None:
    """Raises PreflightError, naming both ways to record and what each lacks, when neither is there."""
    rows = checks() if rows is None else rows
    if can_record(rows):
        return
    lacking = [row for row in rows if row.state == "no"]
    by_key = {row.key: row for row in lacking}
    if "kallsyms" in by_key:
        raise PreflightError(f"kernel symbols: {by_key['kallsyms'].detail}", by_key["kallsyms"].remedy)
    bpf = next((by_key[k] for k in ("root", "btf", "bpf_perf_event", "bcc") if k in by_key), None)
    perf = next((by_key[k] for k in ("system_wide", "perf") if k in by_key), None)
    words = [f"{row.title}: {row.detail}" for row in (bpf, perf) if row]
    ways = dict.fromkeys(row.remedy for row in (bpf, perf) if row and row.remedy)
    raise PreflightError("cannot record here: " + "; ".join(words), ", or ".join(ways))


def _root_remedy(otherwise: str) -> str:
    return otherwise if os.geteuid() == 0 else _SUDO


def _row(
    key: str, group: str, title: str, trial: Callable[[], None], *, prevents: str, remedy: str, found: str = "works"
) -> Check:
    reason = trials.reason_of(trial)
    if not reason:
        return Check(key, group, title, "yes", found)
    return Check(key, group, title, "no", reason, prevents, _root_remedy(remedy) if "permitted" in reason else remedy)


def _sampling() -> Iterator[Check]:
    root = os.geteuid() == 0
    yield Check(
        "root",
        "Sampling",
        "root",
        "yes" if root else "no",
        "effective user 0" if root else f"effective user {os.geteuid()}",
        "" if root else "recording, topologies and entering namespaces; reading profiles works",
        "" if root else _SUDO,
    )
    yield _row(
        "system_wide",
        "Sampling",
        "system-wide perf events",
        trials.system_wide_clock,
        prevents="any recording",
        remedy="sysctl kernel.perf_event_paranoid=-1",
        found="cpu-clock on all tasks" + _paranoid(),
    )
    yield _row(
        "btf",
        "Sampling",
        "BTF of the kernel",
        _btf,
        prevents="BPF sampling and probes (headers and offsets come from it)",
        remedy="boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
        found=str(btf.KERNEL_BTF),
    )
    yield _row(
        "bpf_perf_event",
        "Sampling",
        "BPF on perf events",
        trials.perf_event_program,
        prevents="sampling in the kernel; perf record underneath still works, at twice the cost",
        remedy="boot a kernel with CONFIG_BPF_EVENTS=y, not in confidential lockdown",
    )
    yield _bcc()
    yield _pmu()
    yield _kallsyms()


def _paranoid() -> str:
    try:
        return f" (perf_event_paranoid {Path('/proc/sys/kernel/perf_event_paranoid').read_text().strip()})"
    except OSError:
        return ""


def _btf() -> None:
    btf.kernel_types()


def _bcc() -> Check:
    try:
        module = bcc_door.load()
    except PreflightError as error:
        return Check("bcc", "Sampling", "BCC", "no", error.message, "BPF sampling and probes", error.hint)
    return Check("bcc", "Sampling", "BCC", "yes", f"{getattr(module, '__version__', 'version unknown')}")


def _pmu() -> Check:
    names = {0: "cycles", 1: "instructions", 3: "cache-misses"}
    reasons = {name: trials.reason_of(functools.partial(trials.hardware_event, n)) for n, name in names.items()}
    works = [name for name, reason in reasons.items() if not reason]
    if len(works) == len(names):
        return Check("pmu", "Sampling", "hardware events (PMU)", "yes", ", ".join(works))
    reason = next(reason for reason in reasons.values() if reason)
    return Check(
        "pmu",
        "Sampling",
        "hardware events (PMU)",
        "partly" if works else "no",
        f"only {', '.join(works)}" if works else reason,
        "measured cycles, instructions and cache misses; with cpu-clock alone, what runs with interrupts off"
        " is seen late (skid, marked as such)",
        _root_remedy("run on bare metal or a virtual machine with a vPMU; 'nsprof simulate' models them"),
    )


def _kallsyms() -> Check:
    title, prevents = "kernel symbols (kallsyms)", "recording: without addresses no function has a name"
    try:
        with Path("/proc/kallsyms").open() as lines:
            shown = any(not line.startswith("0000000000000000") for line, _ in zip(lines, range(200), strict=False))
    except OSError as error:
        return Check("kallsyms", "Sampling", title, "no", error.strerror or str(error), prevents, _root_remedy(""))
    level = Path("/proc/sys/kernel/kptr_restrict").read_text().strip()
    if shown:
        return Check("kallsyms", "Sampling", title, "yes", f"addresses are shown (kptr_restrict {level})")
    detail = f"addresses are hidden (kptr_restrict {level})"
    return Check("kallsyms", "Sampling", title, "no", detail, prevents, _root_remedy("sysctl kernel.kptr_restrict=1"))


def _probes() -> Iterator[Check]:
    hop = "namespace and device of each sample"
    yield _row(
        "raw_tracepoint",
        "Probes",
        "raw tracepoints",
        functools.partial(trials.raw_tracepoint, read_kernel=False),
        prevents=f"{hop}, unless BTF tracepoints work",
        remedy="boot a kernel with CONFIG_BPF_EVENTS=y",
    )
    yield _row(
        "kernel_reads",
        "Probes",
        "kernel reads in BPF",
        functools.partial(trials.raw_tracepoint, read_kernel=True),
        prevents=f"{hop} through raw tracepoints (BTF tracepoints read without the helper)",
        remedy="boot without lockdown=confidentiality",
    )
    yield _row(
        "tp_btf",
        "Probes",
        "BTF tracepoints (tp_btf)",
        trials.tp_btf,
        prevents=f"the cheapest way to {hop} (70 ns a hit against 100 ns)",
        remedy="boot a kernel with BTF, 5.5 or later",
    )
    yield _row(
        "fentry",
        "Probes",
        "function entry (fentry)",
        trials.fentry,
        prevents="probes on functions that have no tracepoint, at low cost",
        remedy="boot a kernel with CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y and without lockdown",
    )
    yield _row(
        "kprobe",
        "Probes",
        "kprobes",
        trials.kprobe,
        prevents="probes on functions in modules (veth, bridge) where fentry cannot reach them",
        remedy="boot a kernel with CONFIG_KPROBES=y and CONFIG_KPROBE_EVENTS=y",
    )
    yield _row(
        "tracepoint",
        "Probes",
        "classic tracepoints",
        trials.classic_tracepoint,
        prevents="the fields of tracepoints where kernel reads are refused",
        remedy="mount -t tracefs tracefs /sys/kernel/tracing",
    )


def _places() -> Iterator[Check]:
    """The rung that each hop probe would stand on, found by loading it and showing it a packet over lo."""
    from nsprof.collect.hop.probes import PROBES, HopProbes

    titles = {probe.function: f"hop probe {probe.function}" for probe in PROBES}
    if os.geteuid() != 0:
        for probe in PROBES:
            yield Check(probe.function, "Probes", titles[probe.function], "no", "not permitted", probe.lost, _SUDO)
        return
    probes = HopProbes()
    try:
        probes.load()
        infos = probes.probe_infos()
    except NsprofError as error:
        yield Check("hop", "Probes", "hop probes", "no", error.message, "namespace and device of samples", error.hint)
        return
    finally:
        probes.close()
    for info in infos:
        title, found = titles[info.name], f"{info.rung} on {info.target}"
        if info.rung == "none":
            yield Check(info.name, "Probes", title, "no", info.reason, "what it tells (record goes on without it)")
        elif info.reason:
            yield Check(info.name, "Probes", title, "partly", found, info.reason)
        else:
            yield Check(info.name, "Probes", title, "yes", found)


def _ledger_places() -> Iterator[Check]:
    """The rungs that the ledger's probes would stand on, and the places that have none; found by attaching them."""
    from nsprof.collect.ledger.places import places

    if os.geteuid() != 0:
        yield Check("ledger", "Probes", "ledger", "no", "not permitted", "record --count", _SUDO)
        return
    try:
        found = list(places())
    except NsprofError as error:
        yield Check("ledger", "Probes", "ledger", "no", error.message, "record --count", error.hint)
        return
    keys: dict[str, int] = {}
    for each in found:
        number = keys[each.rung] = keys.get(each.rung, 0) + 1
        key = f"ledger_{each.rung}" + (f"_{number}" if number > 1 else "")
        if each.rung == "none":
            detail = f"{len(each.names)} place{'s' * (len(each.names) != 1)}: {each.reason}"
            yield Check(key, "Probes", "ledger, not counted", "no", detail, "counting of " + ", ".join(each.lost))
        else:
            state = "partly" if each.reason else "yes"
            yield Check(key, "Probes", f"ledger on {each.rung}", state, ", ".join(each.names), each.reason)


def _machine() -> Iterator[Check]:
    yield _lockdown()
    yield _row(
        "netns",
        "Machine",
        "new network namespaces",
        _new_namespace,
        prevents="topologies (bench, topo); recording what exists still works",
        remedy="boot a kernel with CONFIG_NET_NS=y",
    )
    times = cputime.read()
    fine = times.resolution_ns == 1
    yield Check(
        "cpu_time",
        "Machine",
        "CPU time in nanoseconds",
        "yes" if fine else "no",
        f"from {times.source}",
        "" if fine else f"CPU figures finer than {times.resolution_ns / 1e6:g} ms",
        "" if fine else _root_remedy("boot a kernel with CONFIG_NO_HZ_IDLE=y"),
    )


def _lockdown() -> Check:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text()
    except OSError:
        mounted = Path("/sys/kernel/security/lsm").exists()
        detail = "the kernel has none" if mounted else "securityfs is not mounted (the rows under Probes tell)"
        remedy = "" if mounted else "mount -t securityfs securityfs /sys/kernel/security"
        state = "yes" if mounted else "unknown"
        return Check("lockdown", "Machine", "no kernel lockdown", state, detail, "", remedy)
    chosen = re.search(r"\[(\w+)\]", text)
    level = chosen[1] if chosen else "unknown"
    if level == "none":
        return Check("lockdown", "Machine", "no kernel lockdown", "yes", "none")
    return Check(
        "lockdown",
        "Machine",
        "no kernel lockdown",
        "partly",
        level,
        "what the rows under Probes say, and nothing else",
        "boot with Secure Boot off, or without lockdown=",
    )


def _new_namespace() -> None:
    """In a thread of its own, whose end is the namespace's end."""
    import ctypes
    import threading

    codes: list[int] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def attempt() -> None:
        codes.append(ctypes.get_errno() if libc.unshare(0x40000000) else 0)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    if codes[0]:
        raise OSError(codes[0], os.strerror(codes[0]))


#: programs (all needed), title, what the lack prevents, how to get it
_TOOLS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("netperf", ("netperf", "netserver"), "netperf workloads", "apt install netperf (Debian: component non-free)"),
    ("iperf3", ("iperf3",), "iperf3 workloads", "apt install iperf3"),
    ("tbench", ("tbench", "tbench_srv"), "tbench workloads", "apt install dbench"),
    ("perf", ("perf",), "recording where BCC is missing; comparing with perf", "apt install linux-perf"),
    ("bpftool", ("bpftool",), "headers for BCC from the kernel's BTF", "apt install bpftool"),
    (
        "qemu",
        ("qemu-system-x86_64", "busybox", "cpio"),
        "'nsprof vm' and 'nsprof simulate'",
        "apt install qemu-system-x86 busybox-static cpio",
    ),
    ("churn", ("ip", "setpriv", "unshare"), "'nsprof churn'", "apt install iproute2 util-linux"),
    ("cc", ("gcc|cc|clang",), "building the simulator's QEMU plugin", "apt install gcc"),
)


def _tools() -> Iterator[Check]:
    for key, programs, prevents, remedy in _TOOLS:
        paths = [_which(program) for program in programs]
        missing = [name.split("|")[0] for name, path in zip(programs, paths, strict=True) if not path]
        if missing:
            yield Check(key, "Tools", key, "no", f"{' and '.join(missing)} not on PATH", prevents, remedy)
        else:
            yield Check(key, "Tools", key, "yes", paths[0])


def _which(alternatives: str) -> str:
    """Path of the first of `a|b|c` that is installed; /usr/sbin counts also for users without it on PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return next((found for name in alternatives.split("|") if (found := shutil.which(name, path=path))), "")

"""The machine as it was while it was measured: kernel, CPU, settings, devices (keys: docs/host-snapshot.md)."""

from __future__ import annotations

import ctypes
import gzip
import importlib.metadata
import os
import platform
import re
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nsprof.collect.system import datapath, ethtool, rtdump
from nsprof.errors import NsprofError
from nsprof.netns import entered, inode

__all__ = ["build_id", "changed", "snapshot"]

#: Namespaces described in full; the others are counted.
MAX_NAMESPACES = 32
_CONFIG_FACTS = """
HZ PREEMPT PREEMPT_DYNAMIC PREEMPT_VOLUNTARY PREEMPT_NONE PREEMPT_RT NO_HZ_FULL NO_HZ_IDLE NO_HZ_COMMON
IRQ_TIME_ACCOUNTING VIRT_CPU_ACCOUNTING_GEN FRAME_POINTER UNWINDER_ORC UNWINDER_FRAME_POINTER KALLSYMS_ALL
DEBUG_INFO_BTF BPF_JIT BPF_JIT_ALWAYS_ON BPF_EVENTS KPROBES FPROBE FUNCTION_TRACER DYNAMIC_FTRACE_WITH_DIRECT_CALLS
NET_NS VETH BRIDGE MACVLAN IPVLAN NET_VRF VXLAN NETKIT NF_CONNTRACK NF_TABLES NETFILTER RPS XPS NET_RX_BUSY_POLL
MITIGATION_RETPOLINE RETPOLINE RETHUNK INIT_ON_ALLOC_DEFAULT_ON HARDENED_USERCOPY SLAB_FREELIST_HARDENED KASAN
PROVE_LOCKING LOCKDEP DEBUG_LIST HYPERVISOR_GUEST PARAVIRT PERF_EVENTS HAVE_PERF_EVENTS_NMI
"""
_NET_SYSCTLS = """
net/ipv4/ip_forward net/ipv4/ip_early_demux net/ipv4/tcp_early_demux net/ipv4/udp_early_demux
net/ipv4/tcp_congestion_control net/ipv4/tcp_rmem net/ipv4/tcp_wmem net/ipv4/tcp_timestamps net/ipv4/tcp_sack
net/ipv4/tcp_min_tso_segs net/ipv4/tcp_limit_output_bytes net/ipv4/conf/all/rp_filter
net/ipv4/conf/all/forwarding net/ipv4/conf/all/proxy_arp net/ipv4/neigh/default/gc_thresh3
net/ipv6/conf/all/forwarding net/ipv6/conf/all/disable_ipv6
net/netfilter/nf_conntrack_max net/netfilter/nf_conntrack_buckets
net/bridge/bridge-nf-call-iptables net/bridge/bridge-nf-call-ip6tables
"""
_HOST_SYSCTLS = """
net/core/default_qdisc net/core/netdev_budget net/core/netdev_budget_usecs net/core/dev_weight
net/core/netdev_max_backlog net/core/netdev_tstamp_prequeue net/core/busy_poll net/core/busy_read
net/core/rps_sock_flow_entries net/core/bpf_jit_enable net/core/bpf_jit_harden net/core/rmem_max
net/core/wmem_max net/core/gro_normal_batch kernel/perf_event_paranoid kernel/perf_event_max_stack
kernel/perf_event_max_sample_rate kernel/perf_cpu_time_max_percent kernel/kptr_restrict kernel/bpf_stats_enabled
kernel/unprivileged_bpf_disabled kernel/nmi_watchdog kernel/watchdog kernel/randomize_va_space kernel/numa_balancing
kernel/sched_rt_runtime_us vm/swappiness
"""
_TOOLS = {
    "netperf": ("netperf", "-V"),
    "iperf3": ("iperf3", "--version"),
    "perf": ("perf", "--version"),
    "bpftool": ("bpftool", "version"),
    "qemu": ("qemu-system-x86_64", "--version"),
    "ip": ("ip", "-V"),
    "nft": ("nft", "--version"),
}


def snapshot(namespaces: Mapping[str, str | None] | None = None, *, tools: bool = True) -> dict[str, Any]:
    """The machine now, as JSON. `namespaces` maps a label to a namespace's path (None: the caller's own).

    Facts that cannot be read are absent, never guessed. Namespaces beyond MAX_NAMESPACES are counted only. With
    `tools` false the tools' versions, which take most of the time (starting them), are left out.
    """
    spaces = dict(namespaces or {"": None})
    shown = dict(list(spaces.items())[:MAX_NAMESPACES])
    return {
        "kernel": _kernel(),
        "config": _config(),
        "mitigations": _folder(Path("/sys/devices/system/cpu/vulnerabilities")),
        "cpu": _cpu(),
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "machine": _machine(),
        "sysctl": dict(_sysctls(_HOST_SYSCTLS)),
        "namespaces": {label: _namespace(path) for label, path in shown.items()},
        "namespaces_left_out": len(spaces) - len(shown),
        "tools": _tools() if tools else {},
    }


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Dotted keys whose values differ between two snapshots (or were there in one only), sorted.

    The load is left out, since it always differs.
    """
    flat_before, flat_after = dict(_flat(before)), dict(_flat(after))
    keys = flat_before.keys() | flat_after.keys()
    moved = (key for key in keys if flat_before.get(key) != flat_after.get(key))
    return tuple(sorted(key for key in moved if key != "machine.load_average"))


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))


def _read(path: str | Path) -> str:
    """A file's text without the end of line; "" when it cannot be read."""
    try:
        return Path(path).read_text(errors="backslashreplace").strip()
    except OSError:
        return ""


def _folder(path: Path) -> dict[str, str]:
    try:
        return {entry.name: text for entry in sorted(path.iterdir()) if entry.is_file() and (text := _read(entry))}
    except OSError:
        return {}


def build_id() -> str:
    """The running kernel's build id in hex, from its ELF notes; "" when there is none."""
    try:
        notes = Path("/sys/kernel/notes").read_bytes()
    except OSError:
        return ""
    at = 0
    while at + 12 <= len(notes):
        name_len, desc_len, kind = struct.unpack_from("=III", notes, at)
        name = notes[at + 12 : at + 12 + name_len]
        start = at + 12 + (name_len + 3 & ~3)
        if kind == 3 and name == b"GNU\0":  # NT_GNU_BUILD_ID
            return notes[start : start + desc_len].hex()
        at = start + (desc_len + 3 & ~3)
    return ""


def _kernel() -> dict[str, Any]:
    names = os.uname()
    return {
        "release": names.release,
        "version": names.version,
        "architecture": names.machine,
        "build_id": build_id(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "command_line": _read("/proc/cmdline"),
        "lockdown": _read("/sys/kernel/security/lockdown"),
        "btf": Path("/sys/kernel/btf/vmlinux").exists(),
        "tainted": _read("/proc/sys/kernel/tainted"),
        "modules": sorted(line.split()[0] for line in _read("/proc/modules").splitlines() if line),
    }


def _config() -> dict[str, str]:
    """The facts of _CONFIG_FACTS that are set in the running kernel's configuration; {} when it cannot be had."""
    release = os.uname().release
    text = ""
    try:
        text = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
    except (OSError, EOFError):
        places = (f"/boot/config-{release}", f"/lib/modules/{release}/config")
        text = next((found for place in places if (found := _read(place))), "")
    values = dict(re.findall(r"^CONFIG_(\w+)=(.*)$", text, re.MULTILINE))
    return {name: values[name] for name in _CONFIG_FACTS.split() if name in values}


def _cpu() -> dict[str, Any]:
    base = Path("/sys/devices/system/cpu")
    info = _read("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", info, re.MULTILINE)
    idle = base / "cpuidle"
    states = [_read(path) for path in sorted((base / "cpu0/cpuidle").glob("state*/name"))]
    return {
        "model": model[1].strip() if model else "",
        "microcode": (re.search(r"^microcode\s*:\s*(\S+)", info, re.MULTILINE) or ["", ""])[1],
        "online": _read(base / "online"),
        "count": os.cpu_count() or 0,
        "max_khz": _read(base / "cpu0/cpufreq/cpuinfo_max_freq"),
        "governor": _read(base / "cpu0/cpufreq/scaling_governor"),
        "frequency_driver": _read(base / "cpu0/cpufreq/scaling_driver"),
        "boost": _read(base / "cpufreq/boost") or _read(base / "intel_pstate/no_turbo"),
        "smt_active": _read(base / "smt/active"),
        "idle_driver": _read(idle / "current_driver"),
        "idle_governor": _read(idle / "current_governor"),
        "idle_states": states,
        "hypervisor": "hypervisor" in flags[1].split() if flags else None,
        "isolated": _read(base / "isolated"),
    }


def _machine() -> dict[str, Any]:
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "vendor": _read("/sys/class/dmi/id/sys_vendor"),
        "product": _read("/sys/class/dmi/id/product_name"),
        "memory_bytes": int(memory[1]) * 1024 if memory else 0,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        "transparent_hugepage": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "distribution": _distribution(),
        "load_average": _read("/proc/loadavg").split()[:1],
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _sysctls(names: str) -> Iterator[tuple[str, str]]:
    """Those that are there; /proc/sys/net shows the values of the calling thread's namespace."""
    for name in names.split():
        text = _read(f"/proc/sys/{name}")
        if text:
            yield name.replace("/", "."), re.sub(r"\s+", " ", text)


def _namespace(path: str | None) -> dict[str, Any]:
    try:
        with entered(path):
            return {
                "inode": inode("/proc/thread-self/ns/net"),
                "sysctl": dict(_sysctls(_NET_SYSCTLS)),
                "devices": _devices(),
                "datapath": datapath.facts(),
            }
    except (NsprofError, OSError) as error:
        return {"error": getattr(error, "message", "") or str(error)}


def _devices() -> dict[str, Any]:
    _, links, qdiscs = rtdump.dump()
    kinds: dict[int, list[str]] = {}
    for qdisc in qdiscs:
        kinds.setdefault(qdisc.ifindex, []).append(qdisc.kind)
    queues = _Queues()
    found: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for link in links:
            facts: dict[str, Any] = {
                "ifindex": link.ifindex,
                "kind": link.kind,
                "mtu": link.mtu,
                "up": link.up,
                "tx_queue_len": link.tx_queue_len,
                "queues": {"rx": link.rx_queues, "tx": link.tx_queues},
                "gso_max_bytes": link.gso_max_bytes,
                "qdisc": link.qdisc,
                "qdiscs": kinds.get(link.ifindex, []),
            }
            try:
                names = names or ethtool.feature_names(channel, link.name)
                facts["offloads"] = ethtool.features(channel, link.name, names)
                facts["driver"] = ethtool.driver(channel, link.name)
            except OSError as error:  # the device has no ethtool operations, or went away
                facts.setdefault("driver", "")
                facts["ethtool"] = error.strerror or str(error)
            facts |= queues.of(link.name)
            found[link.name] = facts
    queues.close()
    return found


class _Queues:
    """RPS and XPS of the current namespace's devices, read through a sysfs of that namespace.

    sysfs shows the namespace in which it was mounted, so one is made that is attached nowhere (fsmount, Linux 5.2)
    and disappears with its descriptor. Where that is not permitted the masks are left out.
    """

    # Same numbers on all architectures: fsopen, fsconfig, fsmount (asm-generic/unistd.h)
    _FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
    _FSCONFIG_CMD_CREATE = 6

    def __init__(self) -> None:
        self._root = -1
        libc = ctypes.CDLL(None, use_errno=True)
        context = libc.syscall(self._FSOPEN, b"sysfs", 1)
        if context < 0:
            return
        try:
            if libc.syscall(self._FSCONFIG, context, self._FSCONFIG_CMD_CREATE, None, None, 0) == 0:
                self._root = libc.syscall(self._FSMOUNT, context, 1, 0)
        finally:
            os.close(context)

    def of(self, device: str) -> dict[str, Any]:
        """Masks of each queue that has one, e.g. {"rps": {"rx-0": "2"}}."""
        if self._root < 0:
            return {}
        found: dict[str, dict[str, str]] = {}
        base = f"/proc/self/fd/{self._root}/class/net/{device}/queues"
        try:
            queues = sorted(os.listdir(base))  # noqa: PTH208 - device names may hold what Path would normalise
        except OSError:
            return {}
        for queue in queues:
            kind, file = ("rps", "rps_cpus") if queue.startswith("rx") else ("xps", "xps_cpus")
            mask = _read(f"{base}/{queue}/{file}")
            if mask.strip("0,"):
                found.setdefault(kind, {})[queue] = mask
        return found

    def close(self) -> None:
        """Let the file system go."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


def _tools() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("nsprof", "pyroute2", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, argv in _TOOLS.items():
        try:
            done = subprocess.run(argv, capture_output=True, timeout=5, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = (done.stdout or done.stderr).decode("utf-8", "replace").splitlines()
        if lines:
            found[name] = lines[0].strip()[:120]
    return found

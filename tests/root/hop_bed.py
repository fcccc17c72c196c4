"""Test bed of the hop tests: containers behind a bridge, a router or tunnels, traffic in them, and a judge.

The judge looks at the frames of a sample only: which protocol's functions run (one container speaks IPv4, the other
IPv6), so it knows the right answer without the probes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsprof import netns
from nsprof.collect.sampling.sampler import Sampler, SamplerConfig, add_batch
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Direction, Profile, Run

SOFTIRQ = {"handle_softirqs", "__do_softirq"}
#: Frames of interrupts and of probes at work: whose packet they stand in is about to change, or was.
PROBING = (
    *("asm_", "bpf_trace_run", "__bpf_trace", "bpf_prog_", "bpf_trampoline_", "__traceiter", "perf_trace_"),
    *("__bpf_prog_enter", "__bpf_prog_exit"),
    *("trace_call_bpf", "kprobe_", "optimized_callback", "opt_pre_handler", "ftrace_"),
)
RECEIVE_CORE = ("__netif_receive_skb", "netif_receive_skb")
V4 = ("ip_", "udp_", "__udp4", "udp4_", "icmp_", "arp_", "fib_", "__ip_")
V6 = ("ip6_", "ipv6_", "udpv6", "__udp6", "udp6_", "fib6", "icmpv6")


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True, timeout=20)


@dataclass
class Bed:
    """Namespaces named after the test's process; `names` are the short ones."""

    prefix: str
    names: list[str] = field(default_factory=list)

    def full(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def path(self, name: str) -> str:
        return f"/run/netns/{self.full(name)}"

    def add(self, *names: str) -> None:
        for name in names:
            ip("netns", "add", self.full(name))
            self.names.append(name)
            self.ip(name, "link", "set", "lo", "up")
            self.sysctl(name, "net/ipv6/conf/default/accept_dad", "0")
            self.sysctl(name, "net/ipv6/conf/default/router_solicitations", "0")
            # A neighbour that was used is asked again after five seconds: one packet more than was counted on.
            self.sysctl(name, "net/ipv4/neigh/default/delay_first_probe_time", "600")

    def ip(self, name: str, *words: str) -> None:
        ip("-n", self.full(name), *words)

    def sysctl(self, name: str, key: str, value: str) -> None:
        with netns.entered(self.path(name)), contextlib.suppress(FileNotFoundError):
            Path("/proc/sys", key).write_text(value)

    def pair(self, here: str, device: str, there: str, peer: str) -> None:
        self.ip(here, "link", "add", device, "type", "veth", "peer", "name", peer, "netns", self.full(there))
        self.ip(here, "link", "set", device, "up")
        self.ip(there, "link", "set", peer, "up")

    def address(self, name: str, device: str, *addresses: str) -> None:
        for each in addresses:
            extra = ["nodad"] if ":" in each else []
            self.ip(name, "addr", "add", each, "dev", device, *extra)

    def devices(self) -> dict[tuple[int, int], str]:
        """(namespace inode, ifindex) to "container:device"."""
        found = {}
        for name in self.names:
            if not Path(self.path(name)).exists():  # a test took it away
                continue
            with netns.entered(self.path(name)):
                for index, device in socket.if_nameindex():
                    found[netns.inode(self.path(name)), index] = f"{name}:{device}"
        return found

    def close(self) -> None:
        for name in self.names:
            ip("netns", "del", self.full(name), check=False)


@contextlib.contextmanager
def bed() -> Iterator[Bed]:
    made = Bed(f"hop{os.getpid()}")
    try:
        yield made
    finally:
        made.close()


def bridged(made: Bed, containers: Sequence[str] = ("c1", "c2", "c3")) -> None:
    """Containers and a remote `r` on a bridge in `h`; host ends are v<name>."""
    made.add("h", "r", *containers)
    made.sysctl("h", "net/ipv6/conf/default/disable_ipv6", "1")
    made.ip("h", "link", "add", "br0", "type", "bridge")
    made.ip("h", "link", "set", "br0", "up")
    for number, name in enumerate(("r", *containers), 1):
        made.pair("h", f"v{name}", name, "eth0")
        made.ip("h", "link", "set", f"v{name}", "master", "br0")
        made.address(name, "eth0", f"198.18.9.{number}/24", f"fd09::{number}/64")
        if name == "c3":  # the idle one: even ARP and multicast of the others would be packets to it
            flood = ("flood", "off", "mcast_flood", "off", "bcast_flood", "off")
            made.ip("h", "link", "set", "dev", "vc3", "type", "bridge_slave", *flood)


# A sender: bursts to one address, a pause in between, until the deadline. A sink reads nothing: its queue overflows.
SENDER = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9000))
end = time.monotonic() + float(sys.argv[2]); burst = int(sys.argv[3]); pause = float(sys.argv[4]); n = 0
data = b"x" * int(sys.argv[5])
while time.monotonic() < end:
    for _ in range(burst):
        try:
            s.send(data); n += 1
        except OSError: pass
    if pause: time.sleep(pause)
print(n)
"""
SINK = """
import socket, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
s.bind(("::", 9000)); print("ready", flush=True); time.sleep(float(sys.argv[1]))
"""


def python(program: str, *words: object, at: str, cpu: int | None = None) -> subprocess.Popen[bytes]:
    argv = ["/usr/bin/python3", "-S", "-c", program, *(str(w) for w in words)]
    return netns.spawn(argv, netns=at, cpus=() if cpu is None else (cpu,), stdout=subprocess.PIPE)


@dataclass
class Flow:
    source: str
    address: str
    cpu: int | None = None
    burst: int = 20
    pause: float = 0.0
    size: int = 64


def run_flows(
    made: Bed, flows: Sequence[Flow], sinks: Sequence[str], seconds: float, body: Callable[[], None]
) -> dict[int, str]:
    """Starts sinks and senders, calls `body` while they run; returns sender PIDs by container."""
    processes = [python(SINK, seconds + 3, at=made.path(name)) for name in sinks]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        senders = {}
        for flow in flows:
            process = python(
                SENDER,
                flow.address,
                seconds + 1,
                flow.burst,
                flow.pause,
                flow.size,
                at=made.path(flow.source),
                cpu=flow.cpu,
            )
            processes.append(process)
            senders[process.pid] = flow.source
        time.sleep(0.5)
        body()
        return senders
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def observe(sampler: Sampler, seconds: float) -> Callable[[], None]:
    def body() -> None:
        sampler.start()
        time.sleep(seconds)
        sampler.stop()

    return body


@dataclass
class Seen:
    """One sample row in words."""

    count: int
    label: str  # "container:device", "*:device" where the namespace is unknown, "" unknown
    direction: Direction
    context: Context
    frames: list[str]
    pid: int
    task_ns: int


def rows(made: Bed, sampler: Sampler) -> list[Seen]:
    builder = ProfileBuilder()
    builder.runs.append(Run("test"))
    add_batch(builder, sampler.read(), 0, symbols=KernelSymbols())
    return seen_rows(builder.build(), made.devices())


def seen_rows(profile: Profile, devices: dict[tuple[int, int], str]) -> list[Seen]:
    found = []
    s = profile.samples
    for i in range(len(s)):
        space = profile.namespaces[int(s.hop_ns[i]) - 1] if s.hop_ns[i] else None
        device = profile.devices[int(s.hop_dev[i]) - 1] if s.hop_dev[i] else None
        label = ""
        if space is not None and device is not None:
            label = devices.get((space.inode, device.ifindex), f"?{space.inode}/{device.ifindex}")
        elif device is not None:
            label = f"*:{device.name}"
        task = profile.namespaces[int(s.task_ns[i]) - 1].inode if s.task_ns[i] else 0
        frames = [profile.frames.name[f] for f in profile.stacks[int(s.stack[i])]]
        found.append(
            Seen(
                int(s.count[i]),
                label,
                Direction(s.hop_dir[i]),
                Context(s.context[i]),
                frames,
                profile.tasks[int(s.task[i])].pid,
                task,
            )
        )
    return found


def segment(frames: Sequence[str]) -> list[str] | None:
    """The frames of the packet work in softirq, leaf first; None outside NET_RX/NET_TX."""
    for number, name in enumerate(frames):
        if name.startswith("napi_threaded_poll"):
            return list(frames[:number])
        if name in SOFTIRQ:
            part = list(frames[:number])
            return part if "net_rx_action" in part or "net_tx_action" in part else None
    return None


def phase(part: Sequence[str]) -> str:
    """What the frames say: "tx", "bridge", "v4", "v6", in GRO "gro4" and "gro6"; "" where they do not say whose.

    GRO hands on packets of earlier polls: what runs below the receive core is judged by what lies below it alone.
    """

    def within(prefixes: Sequence[str]) -> bool:
        return any(f.startswith(tuple(prefixes)) for f in part)

    if any(f.startswith(PROBING) for f in part):
        return ""
    core = next((i for i, f in enumerate(part) if f.startswith(RECEIVE_CORE)), None)
    in_gro = any("gro_" in f and "receive" in f for f in part[1:])
    if core is not None:
        part = part[:core]
    elif in_gro:
        return "gro6" if within((*V6, "ipv6_")) else "gro4" if within((*V4, "inet_gro")) else ""
    if "dev_hard_start_xmit" in part[1:]:
        return "tx"
    if within(("br_",)):
        return "bridge"
    if within(V6):
        return "v6"
    if within(V4):
        return "v4"
    return ""


@dataclass
class Verdict:
    """How many decidable samples were right, wrong, unknown; `all` are all NET_RX/NET_TX samples."""

    right: int = 0
    wrong: int = 0
    unknown: int = 0
    all: int = 0
    labelled: int = 0
    foreign: int = 0
    mistakes: collections.Counter[tuple[str, str, str]] = field(default_factory=collections.Counter)
    labels: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def decidable(self) -> int:
        return self.right + self.wrong + self.unknown

    def __str__(self) -> str:
        share = {k: 100 * getattr(self, k) / max(1, self.decidable) for k in ("right", "wrong", "unknown")}
        return (
            f"{self.all} samples, {self.decidable} decidable: "
            + ", ".join(f"{value:.2f} % {name}" for name, value in share.items())
            + f"; labelled {100 * self.labelled / max(1, self.all):.1f} %, foreign {self.foreign}"
            + f"; labels {dict(self.labels.most_common(8))}; mistakes {self.mistakes.most_common(6)}"
        )


def judge(seen: Sequence[Seen], truth: Callable[[str, Seen], set[str] | None]) -> Verdict:
    """Compare each NET_RX/NET_TX sample's label with what its frames allow."""
    verdict = Verdict()
    for row in seen:
        part = segment(row.frames)
        if part is None or row.label.startswith("?"):  # another process's namespace: not this test's traffic
            verdict.foreign += row.count * (part is not None)
            continue
        verdict.all += row.count
        verdict.labelled += row.count * bool(row.label)
        verdict.labels[row.label] += row.count
        said = phase(part)
        allowed = truth(said, row) if said else None
        if not allowed:
            continue
        if not row.label:
            verdict.unknown += row.count
            verdict.mistakes[said, "unknown", " < ".join(part[:5])] += row.count
        elif row.label in allowed:
            verdict.right += row.count
        else:
            verdict.wrong += row.count
            verdict.mistakes[said, row.label, " < ".join(part[:5])] += row.count
    return verdict


def hop_sampler(hz: int = 999) -> Sampler:
    return Sampler(SamplerConfig(frequency_hz=hz, hop=True))

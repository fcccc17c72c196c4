"""What recording costs: the same traffic with nsprof off, with nsprof on and under `perf record -a -g`.

    sudo .venv/bin/python scripts/bench_overhead.py [--rounds 5] [--seconds 3] [-F 499] [--pieces 150]

First the cost of one sample, which needs no quiet machine: one thread, pinned, that sends datagrams from one
container and receives them in the other works in pieces of a few dozen milliseconds, and between two pieces sampling
is switched off, on by nsprof, off, on by perf, ... Each piece is compared with the two beside it that ran without, in
CPU time of that thread; hundreds of such differences give the median and its bootstrap interval. What the tools spend
elsewhere (perf's copying to its file, nsprof's reading of its tables) is their own CPU time, by the sample as well;
their starts and ends are not in it.

Then whole recordings, which the noise of a small machine drowns as a rule.
Two loads, because a rate alone misleads (an idle machine can become *faster* under a profiler that keeps its CPUs
awake): a saturated one (netperf UDP_RR over veth + bridge, both ends on one CPU, which is then fully busy) and a
rate-limited one (TCP_STREAM over a wire shaped to 500 Mbit/s, where CPU time is what varies). The three ways are
interleaved in random order within each round; the figure is the ratio to "off" of the same round, as median and
range. CPU time is that of the CPUs concerned between the start and the end of netperf, read inside the recording.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

from nsprof import netns, topology, workload
from nsprof.collect.sampling.sampler import Sampler, SamplerConfig
from nsprof.collect.system import cputime
from nsprof.model.scenario import TopologySpec
from nsprof.topology.construction import Topology

WAYS = ("off", "nsprof", "perf")


def inner(words: list[str]) -> None:
    """Run netperf once and print what was transferred and which CPU time it took, as JSON, to file descriptor 3."""
    before = cputime.read()
    done = subprocess.run(words, capture_output=True, check=True)
    after = cputime.read()
    busy = cputime.busy_seconds(before, after)
    values, _, _ = workload.parse("netperf", words, done.stdout, done.stderr)
    units = workload.denominators("netperf", words, values)
    rate = next(v.value for v in values if v.name == "throughput")
    Path(os.environ["NSPROF_BENCH_RESULT"]).write_text(json.dumps({"rate": rate, "units": units, "busy_s": busy}))


def once(
    way: str, client: object, words: tuple[str, ...], folder: Path, frequency_hz: int, cpu: int | None
) -> dict[str, float]:
    """One run of one way; `words` is the netperf command line, `cpu` the one whose time counts (None: all)."""
    from nsprof.netns import spawn

    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--inner", *words]
    if way == "nsprof":
        front = [
            sys.executable,
            "-m",
            "nsprof",
            "record",
            "-q",
            "-F",
            str(frequency_hz),
            "-o",
            str(folder / "p"),
            "--",
        ]
        command = front + command
    elif way == "perf":
        front = ["perf", "record", "-q", "-a", "-g", "-F", str(frequency_hz), "-o", str(folder / "perf.data"), "--"]
        command = front + command
    env = {**os.environ, "NSPROF_BENCH_RESULT": str(result)}
    child = spawn(command, netns=client.netns_path, env=env, stdout=subprocess.DEVNULL)  # type: ignore[attr-defined]
    if child.wait(timeout=120) != 0:
        raise SystemExit(f"bench_overhead: {way}: status {child.returncode}")
    found = json.loads(result.read_text())
    busy_s = sum(found["busy_s"].values()) if cpu is None else found["busy_s"][str(cpu)]
    unit = "transaction" if "transaction" in found["units"] else "kb"
    return {"rate": found["rate"], "cpu_ns_per_unit": busy_s * 1e9 / found["units"][unit]}


def compare(
    name: str, spec: TopologySpec, words: tuple[str, ...], options: argparse.Namespace, cpu: int | None
) -> None:
    """Interleave the ways over one standing topology and print the ratios."""
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, topology.build(spec) as topo:
        driver = workload.driver(words)
        pinned = ("taskset", "-c", str(cpu)) if cpu is not None else ()
        with driver.servers(topo.server) as server:
            if cpu is not None:
                for pid in server.pids:
                    os.sched_setaffinity(pid, {cpu})
            client = driver.client_argv(topo.server_address, server.ports[0])
            for _ in range(options.rounds):
                order = list(WAYS)
                random.shuffle(order)
                for way in order:
                    rows[way].append(once(way, topo.client, (*pinned, *client), Path(folder), options.frequency, cpu))
    print(f"\n{name}: {' '.join(words)}")
    for way in WAYS:
        line = f"  {way:7}"
        for key, text in (("rate", "rate"), ("cpu_ns_per_unit", "CPU a unit")):
            ratios = [r[key] / o[key] for r, o in zip(rows[way], rows["off"], strict=True)]
            middle = statistics.median(r[key] for r in rows[way])
            line += f"   {text} {middle:10,.0f}  x off {statistics.median(ratios):.3f}"
            line += f" [{min(ratios):.3f}, {max(ratios):.3f}]"
        print(line)


@contextlib.contextmanager
def ping_pong(topo: Topology) -> Iterator[Callable[[], None]]:
    """A piece of work: datagrams to the other container and back, all in this thread and so on its CPU."""
    with contextlib.ExitStack() as stack:
        ends = []
        for place in (topo.client, topo.server):
            with netns.entered(place.netns_path):
                ends.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
        here, there = ends
        there.bind((topo.server_address, 0))
        here.connect(there.getsockname())
        here.send(b"x")
        _, address = there.recvfrom(16)
        there.connect(address)
        for end in ends:
            end.settimeout(5.0)

        def work() -> None:
            for _ in range(PIECE):
                here.send(b"x")
                there.recv(16)
                there.send(b"x")
                here.recv(16)

        yield work


#: Round trips of a piece of work: some dozens of milliseconds, so some dozens of samples.
PIECE = 2_000


class PerfSwitch:
    """`perf record -a -g`, started once and switched on and off over its control pipes."""

    def __init__(self, folder: Path, frequency_hz: int) -> None:
        pipes = [folder / "control", folder / "ack"]
        for pipe in pipes:
            os.mkfifo(pipe, 0o600)
        words = ["perf", "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", str(frequency_hz), "-D", "-1"]
        words += ["--control", f"fifo:{pipes[0]},{pipes[1]}", "-o", str(folder / "switched.data")]
        self.child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.data = folder / "switched.data"
        self.control = os.open(pipes[0], os.O_WRONLY)
        self.ack = os.open(pipes[1], os.O_RDONLY)

    def say(self, word: str) -> None:
        os.write(self.control, word.encode() + b"\n")
        if not select.select([self.ack], [], [], 10.0)[0]:
            raise SystemExit("bench_overhead: perf does not answer on its control pipe")
        os.read(self.ack, 64)

    def cpu_s(self) -> float:
        """CPU seconds of perf so far, its threads included."""
        times = psutil.Process(self.child.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """Ends perf, which then still reads build-ids: not counted here."""
        os.close(self.control)
        self.child.terminate()
        self.child.wait(timeout=60)
        os.close(self.ack)


def timed(work: Callable[[], None]) -> float:
    """CPU nanoseconds of this thread for one piece."""
    begun = time.thread_time_ns()
    work()
    return time.thread_time_ns() - begun


def per_sample(options: argparse.Namespace) -> None:
    """Print what one sample costs the sampled thread under either tool, and what the tool spends besides."""
    frequency_hz = options.piece_frequency
    before = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        topo = stack.enter_context(topology.build(TopologySpec("veth-bridge", pin=False)))
        sampler = stack.enter_context(Sampler(SamplerConfig(frequency_hz=frequency_hz)))
        perf = PerfSwitch(folder, frequency_hz)
        os.sched_setaffinity(0, {min(before)})
        stack.callback(os.sched_setaffinity, 0, before)
        work = stack.enter_context(ping_pong(topo))
        switches = {
            "nsprof": (sampler.start, sampler.stop),
            "perf": (lambda: perf.say("enable"), lambda: perf.say("disable")),
        }
        added: dict[str, list[float]] = {way: [] for way in switches}
        took: dict[str, float] = dict.fromkeys(switches, 0.0)
        started = perf.cpu_s()
        last = timed(work)
        for number in range(2 * options.pieces):
            way = ("nsprof", "perf")[number % 2]
            on, off = switches[way]
            on()
            loaded = timed(work)
            off()
            first, last = last, timed(work)
            added[way].append((loaded - (first + last) / 2) / (loaded * frequency_hz / 1e9))
            took[way] += loaded / 1e9
        spent = {"perf": perf.cpu_s() - started}
        begun = time.process_time()
        batch = sampler.read()
        spent["nsprof"] = time.process_time() - begun
        perf.close()
        taken = {"nsprof": batch.hits(), "perf": perf_samples(perf.data)}
    print(f"one sample at {frequency_hz} Hz, {options.pieces} pairs of pieces each, ns of the sampled thread's CPU:")
    for way, values in added.items():
        interval = stats.bootstrap((np.array(values),), np.median, n_resamples=2000, method="percentile")
        low, high = interval.confidence_interval
        own = spent[way] / max(1, taken[way]) * 1e9
        print(
            f"  {way:7} median {np.median(values):7,.0f} [{low:,.0f}, {high:,.0f}]"
            f"   of its own besides {own:7,.0f} ns a sample ({taken[way]:,} samples)"
        )
    rng = np.random.default_rng(1)
    a, b = (np.array(added[way]) + spent[way] / max(1, taken[way]) * 1e9 for way in ("nsprof", "perf"))
    ratios = [np.median(rng.choice(a, len(a))) / np.median(rng.choice(b, len(b))) for _ in range(2000)]
    low, high = np.percentile(ratios, [2.5, 97.5])
    print(f"  nsprof / perf, both added up: {np.median(a) / np.median(b):.2f} [{low:.2f}, {high:.2f}]")


def perf_samples(path: Path) -> int:
    """How many samples a perf.data holds."""
    from nsprof import store

    return int(store.open_any(path).samples.count.sum())


def main() -> None:
    """Parse the words, run the three comparisons."""
    if sys.argv[1:2] == ["--inner"]:
        inner(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("-F", "--frequency", type=int, default=499)
    parser.add_argument("--pieces", type=int, default=150, help="pairs of pieces of each way")
    parser.add_argument("--piece-frequency", type=int, default=1999, help="samples a second in the pieces")
    options = parser.parse_args()
    per_sample(options)
    if not options.rounds:
        return
    length = str(options.seconds)
    compare(
        "saturated, one CPU",
        TopologySpec("veth-bridge", pin=False),
        ("netperf", "-t", "UDP_RR", "-l", length),
        options,
        cpu=0,
    )
    compare(
        "rate-limited, 500 Mbit/s",
        TopologySpec("veth-bridge", wire_rate_bps=500_000_000),
        ("netperf", "-t", "TCP_STREAM", "-l", length),
        options,
        cpu=None,
    )


if __name__ == "__main__":
    main()

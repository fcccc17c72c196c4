"""What recording costs: the same traffic with nsprof off, with nsprof on and under `perf record -a -g`.

    sudo .venv/bin/python scripts/bench_overhead.py [--rounds 5] [--seconds 3] [-F 499]

Two loads, because a rate alone misleads (an idle machine can become *faster* under a profiler that keeps its CPUs
awake): a saturated one (netperf UDP_RR over veth + bridge, both ends on one CPU, which is then fully busy) and a
rate-limited one (TCP_STREAM over a wire shaped to 500 Mbit/s, where CPU time is what varies). The three ways are
interleaved in random order within each round; the figure is the ratio to "off" of the same round, as median and
range. CPU time is that of the CPUs concerned between the start and the end of netperf, read inside the recording.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from nsprof import topology, workload
from nsprof.collect import cputime
from nsprof.model.scenario import TopologySpec

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


def main() -> None:
    """Parse the words, run both loads."""
    if sys.argv[1:2] == ["--inner"]:
        inner(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("-F", "--frequency", type=int, default=499)
    options = parser.parse_args()
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

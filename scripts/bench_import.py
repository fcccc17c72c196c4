#!/usr/bin/env python3
"""How fast nsprof imports, as ratios against other tools on the same files, interleaved in one run.

    scripts/bench_import.py --data perf.data --flamegraph ~/FlameGraph --rounds 5
    scripts/bench_import.py                      # record a netperf load over loopback first (root)
    scripts/bench_import.py --data perf.data --only folded

Every program is run in every round, in changing order; printed are medians with the range, of wall and of CPU time
(all processes of a pipeline), and medians of each round's ratios. Rows whose tool is missing say so. Python programs
are run once before, so that their modules are compiled, as they are once installed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDED = {
    "every stack once, sorted": "0.folded",
    "every stack once, unsorted": "1.folded",
    "fractional counts": "2.folded",
    "nothing repeated but frames": "3.folded",
    "a line a sample": "samples.folded",
}
PARTS = ("perf.data", "perf script", "folded", "diff")
OURS = (
    "import sys; from nsprof.store.importers import import_file; p = import_file(sys.argv[1]); print(len(p.stacks))"
)
LOOP = """
import sys
from collections import Counter
memo, total = {}, Counter()
with open(sys.argv[1], "rb") as stream:
    lines, comm = [], b""
    for line in stream:
        if line == b"\\n":
            key = (comm, b"".join(lines))
            stack = memo.get(key)
            if stack is None:
                names = [x.split(None, 1)[1].rpartition(b" (")[0].partition(b"+0x")[0] for x in lines]
                stack = memo[key] = b";".join([comm, *reversed(names)])
            total[stack] += 1
            lines = []
        elif line[:1] == b"\\t":
            lines.append(line)
        else:
            comm = line[:16].strip()
for stack, count in total.items():
    sys.stdout.buffer.write(stack + b" %d\\n" % count)
"""


@dataclass
class Row:
    """One program: how to run it, and what was measured."""

    name: str
    run: Callable[[], list[subprocess.Popen[bytes]]]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def measure(self, *, keep: bool = True) -> None:
        begin = time.perf_counter()
        processes = self.run()
        cpu = 0.0
        for process in processes:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"{self.name}: exit status {process.returncode}")
            cpu += usage.ru_utime + usage.ru_stime
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
        if not keep:
            return
        self.wall_s.append(time.perf_counter() - begin)
        self.cpu_s.append(cpu)


def pipeline(*commands: list[str]) -> Callable[[], list[subprocess.Popen[bytes]]]:
    """Start commands joined by pipes, the last one writing to nowhere."""

    def start() -> list[subprocess.Popen[bytes]]:
        made: list[subprocess.Popen[bytes]] = []
        for index, words in enumerate(commands):
            last = index == len(commands) - 1
            source = made[-1].stdout if made else subprocess.DEVNULL
            sink = subprocess.DEVNULL if last else subprocess.PIPE
            made.append(subprocess.Popen(words, stdin=source, stdout=sink, stderr=subprocess.DEVNULL))
        for process in made:
            if process.stdout:
                process.stdout.close()
        return made

    return start


def compare(title: str, size: int, rows: list[Row], rounds: int) -> None:
    """Run all rows in all rounds and print them; the first row is nsprof."""
    for row in rows:
        if row.name.startswith(("nsprof", "memo")):
            row.measure(keep=False)
    for number in range(rounds):
        for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
            row.measure()
    print(f"\n{title} ({size / 1e6:.1f} MB, {rounds} rounds)")
    ours = rows[0]
    for row in rows:
        line = f"  {row.name:<35} wall {spread(row.wall_s)}  CPU {spread(row.cpu_s)}"
        line += f"  peak {row.peak_bytes / 1e6:5.0f} MB"
        if row is not ours:
            for what, mine, theirs in (("wall", ours.wall_s, row.wall_s), ("CPU", ours.cpu_s, row.cpu_s)):
                ratio = [t / m for t, m in zip(theirs, mine, strict=True)]
                line += f"  {what} ratio {statistics.median(ratio):.1f}x ({min(ratio):.1f}-{max(ratio):.1f})"
        if row.name.startswith("nsprof"):
            line += f"  {size / 1e6 / statistics.median(row.wall_s):.0f} MB/s"
            line += f"  {size / 1e6 / statistics.median(row.cpu_s):.0f} MB a CPU second"
            line += f"  {row.peak_bytes / size:.2f}x the input"
        print(line)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):6.2f} s ({min(values):.2f}-{max(values):.2f})"


def record(seconds: int, target: Path) -> None:
    """perf record of everything while netperf exchanges datagrams over loopback."""
    server = subprocess.Popen(["netserver", "-D", "-4", "-L", "127.0.0.1", "-p", "23461"], stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        load = ["netperf", "-4", "-H", "127.0.0.1", "-p", "23461", "-t", "UDP_RR", "-l", str(seconds)]
        words = ["perf", "record", "-q", "-a", "-g", "-F", "9999", "-o", str(target), "--", *load]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=seconds + 60)
    finally:
        server.terminate()
        server.wait()


def folded_kinds(log: Path, folder: Path, size: int) -> dict[str, Path]:
    """What tools write of the same stacks of many processes: added up, in another order, with fractions; and the
    frames shuffled in every stack, so that no part of one is met again; each about `size` bytes."""
    stacks = sorted({line.rpartition(b" ")[0] for line in log.read_bytes().splitlines()})
    processes = max(1, size // max(1, sum(len(stack) + 12 for stack in stacks)))
    rows = [b"process-%d;%s" % (n, stack) for n in range(processes) for stack in stacks]
    draw = random.Random(23)  # noqa: S311 - counts of a benchmark

    def shuffled(row: bytes) -> bytes:
        process, _, stack = row.partition(b";")
        frames = stack.split(b";")
        draw.shuffle(frames)
        return b";".join([process, *frames])

    kinds: dict[str, tuple[list[bytes], Callable[[], bytes]]] = {
        "every stack once, sorted": (rows, lambda: b"%d" % draw.randint(1, 5000)),
        "every stack once, unsorted": (draw.sample(rows, len(rows)), lambda: b"%d" % draw.randint(1, 5000)),
        "fractional counts": (rows, lambda: b"%.6f" % (100 * draw.random())),
        "nothing repeated but frames": ([shuffled(row) for row in rows], lambda: b"%d" % draw.randint(1, 5000)),
    }
    made = {}
    for number, (kind, (lines, count)) in enumerate(kinds.items()):
        made[kind] = folder / f"{number}.folded"
        made[kind].write_bytes(b"".join(b"%s %s\n" % (line, count()) for line in lines))
    once = log.read_bytes()
    made["a line a sample"] = folder / "samples.folded"
    with made["a line a sample"].open("wb") as sink:
        for _ in range(max(1, size // max(1, len(once)))):
            sink.write(once)
    return made


def folded_log(text: Path, target: Path) -> None:
    """One folded line a sample, in the order recorded: what a tool writes that does not add up."""
    memo: dict[bytes, bytes] = {}
    with text.open("rb") as source, target.open("wb") as sink:
        lines: list[bytes] = []
        for line in source:
            if line == b"\n":
                key = b"".join(lines)
                if key not in memo:
                    names = [x.split(None, 1)[1].rpartition(b" (")[0].partition(b"+0x")[0] for x in lines]
                    memo[key] = b";".join(reversed(names)).replace(b"\n", b"?") + b" 1\n"
                sink.write(memo[key] if lines else b"")
                lines = []
            elif line[:1] == b"\t":
                lines.append(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a perf.data with call chains")
    parser.add_argument("--record", type=int, metavar="SECONDS", default=10, help="how long to record without --data")
    parser.add_argument("--flamegraph", type=Path, help="directory with stackcollapse-perf.pl, or the script itself")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text", type=Path, help="what perf script prints of the recording, if it is there already")
    parser.add_argument("--only", action="append", choices=PARTS, help="only these comparisons (repeatable)")
    parser.add_argument("--folded-mb", type=int, default=120, help="size of the folded files")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-import-") as folder:
        data = words.data or Path(folder) / "perf.data"
        if not words.data:
            record(words.record, data)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        run(
            data,
            Path(folder),
            words.flamegraph,
            words.rounds,
            words.only or PARTS,
            words.folded_mb * 1_000_000,
            words.text,
        )


def run(
    data: Path,
    folder: Path,
    flamegraph: Path | None,
    rounds: int,
    parts: Sequence[str],
    folded_bytes: int,
    text: Path | None,
) -> None:
    """The comparisons asked for, on one recording."""
    collapse = flamegraph / "stackcollapse-perf.pl" if flamegraph and flamegraph.is_dir() else flamegraph
    perl = collapse is not None and collapse.is_file() and shutil.which("perl")
    if not perl:
        print("stackcollapse-perf.pl: left out (no perl, or no --flamegraph with it)")
    if not shutil.which("perf"):
        raise SystemExit("perf is not installed: nothing to compare with")
    print(f"{os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}")

    def ours(file: Path) -> list[Row]:
        store = [sys.executable, "-m", "nsprof", "import", "-q", str(file), "-o", str(folder / "out.nsprof")]
        return [
            Row("nsprof, read", pipeline([sys.executable, "-c", OURS, str(file)])),
            Row("nsprof import, written", pipeline(store)),
        ]

    script = ["perf", "script", "-i", str(data)]
    if "perf.data" in parts:
        report = ["perf", "report", "--no-children", "--stdio", "-i", str(data)]
        rows = [*ours(data), Row("perf report --no-children --stdio", pipeline(report))]
        if perl:
            rows.append(Row("perf script | stackcollapse-perf.pl", pipeline(script, ["perl", str(collapse)])))
        compare("perf.data", data.stat().st_size, rows, rounds)
    if text is None and {"perf script", "folded"} & set(parts):
        text = folder / "script.txt"
        with text.open("wb") as sink:
            subprocess.run(script, stdout=sink, stderr=subprocess.DEVNULL, check=True)
    if "perf script" in parts and text:
        rows = [*ours(text), Row("memoising loop in Python", pipeline([sys.executable, "-c", LOOP, str(text)]))]
        if perl:
            rows.append(Row("stackcollapse-perf.pl", pipeline(["perl", str(collapse), str(text)])))
        compare("perf script text", text.stat().st_size, rows, rounds)
    if "folded" in parts and text:
        log = folder / "log.folded"
        folded_log(text, log)
        # In a process of its own: a child's peak would count what its parent holds when it is started.
        if not (child := os.fork()):
            folded_kinds(log, folder, folded_bytes)
            os._exit(0)
        os.waitpid(child, 0)
        for kind, name in FOLDED.items():
            file = folder / name
            compare(f"folded, {kind}", file.stat().st_size, ours(file), rounds)
    if "diff" in parts:
        compare_diff(data, folder, rounds)


def compare_diff(data: Path, folder: Path, rounds: int) -> None:
    """nsprof diff of two stored profiles of the recording, and of the recording itself twice."""
    nsprof = [sys.executable, "-m", "nsprof"]
    stored = [str(folder / f"{name}.nsprof") for name in "ab"]
    for file in stored:
        subprocess.run([*nsprof, "import", "-q", str(data), "-o", file], check=True)
    told = subprocess.run([*nsprof, "info", "--json", stored[0]], check=True, capture_output=True).stdout
    samples = sum(event["samples"] for event in json.loads(told)["events"])
    rows = [Row("nsprof diff", pipeline([*nsprof, "diff", *stored]))]
    compare(f"diff of two profiles of {samples:,} samples", Path(stored[0]).stat().st_size, rows, rounds)
    rows = [Row("nsprof diff", pipeline([*nsprof, "diff", str(data), str(data)]))]
    compare(f"diff of two perf.data of {samples:,} samples", 2 * data.stat().st_size, rows, rounds)


if __name__ == "__main__":
    main()

"""`nsprof bench`: scenarios side by side, in fair order, in one file and one table."""

from __future__ import annotations

import click


@click.command(
    "bench",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: sudo nsprof bench --scenario host,veth-route,veth-bridge --runs 8 -- netperf -t UDP_RR -l 5",
)
@click.option("-s", "--scenario", "scenarios", default="host,veth-bridge", show_default=True, help="Comma-separated.")
@click.option("-n", "--runs", default=3, show_default=True, type=click.IntRange(1, 10_000), help="Runs a scenario.")
@click.option("-o", "--output", default="bench.nsprof", show_default=True, help="The profile to write.")
@click.option("--baseline", default="", help="What is compared against (default: host, else the first).")
@click.option("-F", "--freq", "frequency_hz", default=499, show_default=True, type=click.IntRange(1, 20_000))
@click.option("-e", "--event", "events", default="cpu-clock", show_default=True, help="Events, comma-separated.")
@click.option("--hop/--no-hop", default=False, help="Add as many runs with hop probes, for splits by namespace.")
@click.option("--containers", default=1, show_default=True, type=click.IntRange(1, 1000))
@click.option("--busy", type=click.Choice(["one", "all"]), default="one", show_default=True, help="Busy containers.")
@click.option("--wire-rate", default="", metavar="RATE", help="Shape the wire (1gbit), so that CPU is the metric.")
@click.option("--mtu", default=0, type=click.IntRange(0, 65535), help="MTU of every device (0: the kernel's).")
@click.option("--offload", default="", metavar="LIST", help="tso=off,gso=off,gro=off,tx=off as ethtool -K has them.")
@click.option("-6", "ipv6", is_flag=True, help="IPv6.")
@click.option("--host-netns", type=click.Choice(["own", "init"]), default="own", show_default=True)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Each side on its own CPU.")
@click.option("--timeout", "timeout_s", default=0.0, type=click.FloatRange(min=0), help="End a run after N seconds.")
@click.option("--max-time", "max_time_s", default=0.0, type=click.FloatRange(min=0), help="Start no run after N s.")
@click.option("--seed", default=None, type=int, help="Of the random order (default: drawn, and stored).")
@click.option("--top", default=15, show_default=True, help="Function deltas to print a scenario.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, only the table.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def command(**options: object) -> int:
    """Run COMMAND through each scenario, interleaved in fair order, and compare them.

    Everything happens in namespaces made for it; -H and ports are filled in. Prints CPU usage / overhead and
    throughput / change against the baseline, and the functions that cost more.
    """
    from nsprof import store
    from nsprof.bench import BenchOptions, run_bench
    from nsprof.cli import bench_output

    for name in ("scenarios", "events"):
        options[name] = tuple(w.strip() for w in str(options[name]).split(",") if w.strip())
    output, top, quiet = str(options.pop("output")), int(str(options.pop("top"))), bool(options.pop("quiet"))
    words = BenchOptions(**options)  # type: ignore[arg-type]
    with bench_output.progress(quiet) as progress:
        profile, interrupted = run_bench(words, progress.advance)
    store.save(profile, output, keep_old=True)
    bench_output.show(profile, output, baseline=words.baseline, top=top)
    if interrupted:
        return 130
    return 1 if any(run.failed for run in profile.runs) else 0

"""`nsprof record`: observe while a command runs, or watch what already runs."""

from __future__ import annotations

import click

from nsprof.cli import leftovers
from nsprof.cli.common import Bound, Number, Seconds, write_json


@click.command(
    "record",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Exit status: the command's own; 125 nsprof failed, 126 not executable, 127 not found, 128+N signal N.",
)
@click.option("-o", "--output", default="profile.nsprof", show_default=True, help="The profile to write.")
@click.option(
    "-F",
    "--freq",
    "frequency_hz",
    default=499,
    show_default=True,
    type=click.IntRange(1, 20_000),
    help="Samples a second and CPU.",
)
@click.option("-e", "--event", "events", default="cpu-clock", show_default=True, help="Events, comma-separated.")
@click.option("--user-stacks", is_flag=True, help="User stacks too (kernel stacks are always there).")
@click.option(
    "--in",
    "inside",
    metavar="NETNS",
    help="Run the command in this namespace: a name of ip netns, else a PID, or a path.",
)
@click.option("--watch", "watched", metavar="NETNS", multiple=True, help="Watch these namespaces; no command.")
@click.option("--duration", "duration_s", type=Seconds(min=0.1), help="Seconds to watch; until Ctrl-C if absent.")
@click.option("--per", "reference", metavar="DEV", help="Device whose skbs are counted as the unit.")
@click.option("--runs", default=1, show_default=True, type=click.IntRange(1, 1000), help="Run the command N times.")
@click.option("--scenario", default="", help="Name of what is recorded, for tables.")
@click.option("--timeout", "timeout_s", default=0.0, type=Bound(), help="End the command after N seconds.")
@click.option(
    "--hop/--no-hop", default=False, help="Hop probes: charge softirq CPU to the namespace and device served."
)
@click.option(
    "--count", is_flag=True, help="Then run once more and count copies, checksums, segments, drops (nsprof ledger)."
)
@click.option(
    "--probe-budget",
    default=2.0,
    show_default=True,
    type=Number(0, 100),
    metavar="PERCENT",
    help="CPU that counting may cost before probes are shed; 0: any.",
)
@click.option(
    "--probe", "functions", metavar="FUNCTION", multiple=True, help="Functions to count instead of the default."
)
@click.option("--strict", is_flag=True, help="Fail when more than 1 % of the samples were lost.")
@click.option("-q", "--quiet", is_flag=True, help="Only errors on stderr.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Instead of notes one JSON object: on stdout, or, where a command has stdout, as the last line on stderr.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, **options: object) -> int:
    """Record while COMMAND runs: sudo nsprof record -o pod.nsprof -- netperf -H 10.0.0.7 -l 10

    The whole system is sampled (softirq work runs in innocent tasks); filter when reading. The command's own output
    passes through untouched; nsprof writes to stderr and its file.
    """
    from nsprof.record import RecordOptions, record

    options["debug"] = bool((ctx.obj or {}).get("debug"))
    events = tuple(e.strip() for e in str(options.pop("events")).split(",") if e.strip())
    words = RecordOptions(events=events, **options)  # type: ignore[arg-type]
    leftovers.mind(quiet=as_json or bool(options["quiet"]))
    if not as_json:
        return record(words)
    return record(words, lambda summary: write_json("record", summary, beside_command=bool(words.command)))

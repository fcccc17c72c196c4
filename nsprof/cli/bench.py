"""`nsprof bench`: scenarios side by side, in fair order, in one file and one table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsprof.cli import leftovers
from nsprof.cli.common import Bound, Given, tell
from nsprof.errors import UsageError

if TYPE_CHECKING:
    from nsprof.bench.plan import Plan

#: Options that are nsprof's business on this side of a virtual machine.
_OUTSIDE = {
    *("kernels", "boots", "modules", "memory_mb", "runs", "seed", "output", "resume", "quiet", "form", "top"),
    *("show", "commit_text", "command"),
}


class _Bench(click.Command):
    """Options may follow an experiment's file, but not the words of a traffic generator, which has its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args and (any(a.endswith(".toml") for a in args) or "--show" in args):
            ctx.allow_interspersed_args = True
            ctx.ignore_unknown_options = False
        return super().parse_args(ctx, args)


@click.command(
    "bench",
    cls=_Bench,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run scenarios in fair order and compare them.",
)
@click.option("-s", "--scenario", "scenarios", default="host,veth-bridge", show_default=True, help="Comma-separated.")
@click.option("-n", "--runs", default=None, type=click.IntRange(1, 10_000), help="Runs a scenario (default 3).")
@click.option("-o", "--output", default="bench.nsprof", show_default=True, help="The profile to write.")
@click.option("--full", is_flag=True, help="An experiment at its full length, not the reduced one.")
@click.option("--seconds", default=0, type=Given(1, 86_400), help="Length of an experiment's runs.")
@click.option("--until", "until", default="", metavar="2%", help="Go on until the difference is known so well.")
@click.option("--resume", is_flag=True, help="Go on with the output file: keep good runs, repeat failed ones.")
@click.option("--kernel", "kernels", multiple=True, metavar="SPEC", help="Run in a VM of this kernel; repeatable.")
@click.option("--boots", default=2, show_default=True, type=click.IntRange(1, 100), help="Boots a kernel.")
@click.option("--modules", type=click.Path(path_type=Path), metavar="DIR", help="Modules of a bzImage.")
@click.option("--memory", "memory_mb", default=2048, show_default=True, type=click.IntRange(512), help="MB a guest.")
@click.option("--baseline", default="", help="SCENARIO or KERNEL:SCENARIO (default: host, else the first).")
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
@click.option("--hop/--no-hop", default=False, help="Add as many runs with hop probes, for splits by namespace.")
@click.option("--count", is_flag=True, help="Add a counting pass of each scenario at the end (nsprof ledger).")
@click.option("--containers", default=1, show_default=True, type=click.IntRange(1, 1000), help="How many.")
@click.option("--busy", type=click.Choice(["one", "all"]), default="one", show_default=True, help="Busy containers.")
@click.option("--reverse", is_flag=True, help="Clients in the remote namespace, servers in the containers.")
@click.option("--wire-rate", default="", metavar="RATE", help="Shape the wire (1gbit), so that CPU is the metric.")
@click.option("--mtu", default=0, type=click.IntRange(0, 65535), help="MTU of every device (0: the kernel's).")
@click.option("--offload", default="", metavar="LIST", help="tso=off,gso=off,gro=off,tx=off as ethtool -K has them.")
@click.option("-6", "ipv6", is_flag=True, help="IPv6.")
@click.option(
    "--host-netns", type=click.Choice(["own", "init"]), default="own", show_default=True, help="Who is the host."
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Each side on its own CPU.")
@click.option("--uplink", default="", metavar="DEV", help="A real device instead of the wire; put back afterwards.")
@click.option(
    "--remote", default="", metavar="HOST", help="The machine there: ADDRESS, ssh:USER@HOST, or vm (a guest)."
)
@click.option("--take-uplink", is_flag=True, help="Even if the uplink carries the default route or this session.")
@click.option("--timeout", "timeout_s", default=0.0, type=Bound(), help="End a run after N seconds.")
@click.option("--max-time", "max_time_s", default=0.0, type=Bound(), help="Start no run after N s.")
@click.option("--seed", default=None, type=int, help="Of the random order (default: drawn, and stored).")
@click.option(
    "--top", default=15, show_default=True, type=click.IntRange(0), help="Function deltas to print a scenario."
)
@click.option("--show", is_flag=True, help="Print the tables of an earlier bench's FILE, run nothing.")
@click.option("--commit-text", is_flag=True, help="Also what a commit message wants: build-id, config, raw runs.")
@click.option("--json", "form", flag_value="json", help="Every table as JSON.")
@click.option("--csv", "form", flag_value="csv", help="The metrics, both sides, as CSV.")
@click.option("--markdown", "form", flag_value="markdown", help="As Markdown.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, only the table.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[FILE.toml | -- COMMAND...]")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Run COMMAND, or an experiment FILE, through each scenario, interleaved in fair order, and compare them.

    Everything happens in namespaces made for it; -H and ports are filled in. Prints CPU usage / overhead and
    throughput / change against the baseline, and the functions that cost more.

    \b
    sudo nsprof bench -s host,veth-route,veth-bridge -n 8 -- netperf -t UDP_RR
    sudo nsprof bench examples/netns-2007.toml
    sudo nsprof bench examples/vrf-2015.toml --kernel debian:6.12
    nsprof bench --show bench.nsprof --markdown --commit-text
    """
    for name in ("scenarios", "events"):
        options[name] = tuple(w.strip() for w in str(options[name]).split(",") if w.strip())
    words: tuple[str, ...] = options["command"]
    if options["show"]:
        return _show(words, options)
    leftovers.mind(quiet=options["quiet"])
    if options["kernels"]:
        return _kernels(ctx, options)
    if len(words) == 1 and words[0].endswith(".toml"):
        from nsprof.bench import experiment

        churn = experiment.churn_of(words[0], full=options["full"])
        if churn is not None:
            from nsprof.cli import churn as churn_verb

            return churn_verb.from_experiment(churn, options)
    plan = _plan(ctx, options)
    return _measure(plan, options)


def _plan(ctx: click.Context, options: dict[str, Any]) -> Plan:
    from nsprof.bench import BenchOptions, experiment, plan_of
    from nsprof.bench.run import MOST_RUNS
    from nsprof.bench.stopping import parse_share

    until = parse_share(options["until"]) if options["until"] else 0.0
    words = options["command"]
    if words and words[0].endswith(".toml"):
        if len(words) > 1:
            raise UsageError(f"words after the experiment {words[0]}: {' '.join(words[1:])}", "one FILE at a time")
        given = {
            name: options[name]
            for name in ("runs", "baseline", "frequency_hz", "events", "hop", "timeout_s", "max_time_s", "seed")
            if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        }
        for name, word in _FIXED.items():
            if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise UsageError(f"{word} stands in the experiment's file", f"change it in a copy of {words[0]}")
        if until:
            given = {"until": until, "runs": MOST_RUNS, **given}
        plan = experiment.load(words[0], full=options["full"], seconds=options["seconds"], **given)
        return _far(dataclasses.replace(plan, count=options["count"]), options)
    runs = options["runs"] or (MOST_RUNS if until else 3)
    names = BenchOptions.__dataclass_fields__
    given = {k: v for k, v in options.items() if k in names} | {"runs": runs, "until": until}
    return _far(plan_of(BenchOptions(**given)), options)


def _far(plan: Plan, options: dict[str, Any]) -> Plan:
    """The plan with the remote end of the command line, or that of its file."""
    from nsprof.bench.far import with_far_end

    first = plan.cases[0].spec if plan.cases else None
    uplink = options["uplink"] or (first.uplink if first else "")
    remote = options["remote"] or (first.remote if first else "")
    if not uplink and not remote:
        if options["take_uplink"]:
            raise UsageError("--take-uplink without an uplink", "--uplink DEV --remote HOST")
        return plan
    take = options["take_uplink"] or bool(first and first.take_uplink)
    plan, left = with_far_end(plan, uplink=uplink, remote=remote, take_uplink=take)
    for line in left:
        tell(line)
    return plan


#: Options whose place is the file where there is one.
_FIXED = {
    "scenarios": "--scenario",
    "containers": "--containers",
    "busy": "--busy",
    "reverse": "--reverse",
    "wire_rate": "--wire-rate",
    "mtu": "--mtu",
    "offload": "--offload",
    "ipv6": "-6",
    "host_netns": "--host-netns",
    "pin": "--pin",
}


def _measure(plan: Plan, options: dict[str, Any]) -> int:
    from nsprof import files, store
    from nsprof.bench import resume
    from nsprof.bench.run import run_plan
    from nsprof.cli import bench_output

    output = options["output"]
    files.check_target(output)
    earlier = resume.open_earlier(output, plan) if options["resume"] else None
    # The first file written keeps a stranger's as .old; later ones are of the same bench.
    keep = [not options["resume"]]

    def save(profile: Any) -> None:
        store.save(profile, output, keep_old=keep[0], measured=True)
        keep[0] = False

    with bench_output.progress(options["quiet"]) as progress:
        result = run_plan(plan, advance=progress.advance, earlier=earlier, checkpoint=save)
    save(result.profile)
    _print(result.profile, options)
    if result.interrupted:
        return 130
    return 1 if any(run.failed for run in result.profile.runs) else 0


def _print(profile: Any, options: dict[str, Any]) -> None:
    from nsprof.cli import bench_output

    bench_output.show(
        profile,
        options["output"],
        baseline=options["baseline"],
        top=options["top"],
        form=options["form"],
        commit_text=options["commit_text"],
        quiet=options["quiet"],
    )


def _show(words: tuple[str, ...], options: dict[str, Any]) -> int:
    from nsprof import store

    path = words[0] if words else options["output"]
    if len(words) > 1:
        raise UsageError("--show takes one file", "nsprof bench --show bench.nsprof")
    profile = store.load(path)
    _print(profile, {**options, "output": path, "quiet": True})
    return 0


def _kernels(ctx: click.Context, options: dict[str, Any]) -> int:
    """The same words without those that are for this side, in a guest of each kernel."""
    import random

    from nsprof import files, store
    from nsprof.bench.kernels import bench_kernels

    runs = options["runs"]
    if options["uplink"] or options["remote"]:
        raise UsageError(
            "a guest of --kernel has neither this machine's devices nor guests of its own",
            "--uplink and --remote measure the running kernel; compare two with 'nsprof diff OLD NEW'",
        )
    if options["resume"]:
        raise UsageError("--resume goes on with runs on this machine's kernel, not with boots", "leave it out")
    if options["command"] and options["command"][0].endswith(".toml"):
        from nsprof.bench import experiment

        options["command"] = (str(Path(options["command"][0]).resolve()), *options["command"][1:])
        if experiment.churn_of(options["command"][0]) is not None:
            raise UsageError(
                "a churn experiment prints times, which boots do not merge",
                f"nsprof vm run --kernel {options['kernels'][0]} -- nsprof bench {options['command'][0]}",
            )
        runs = runs or experiment.load(options["command"][0], full=options["full"]).runs
    else:
        _plan(ctx, options)  # wrong words are said before anything is booted
    files.check_target(options["output"])
    profile = bench_kernels(
        options["kernels"],
        [*_inner_words(ctx), *(() if _file(options) else ("--",)), *options["command"]],
        runs=runs or 3,
        boots=options["boots"],
        seed=options["seed"] if options["seed"] is not None else random.SystemRandom().randrange(2**31),
        modules=options["modules"],
        memory_mb=options["memory_mb"],
        say=lambda line: tell(line) if not options["quiet"] else None,
    )
    store.save(profile, options["output"], keep_old=True, measured=True)
    _print(profile, options)
    return 1 if any(run.failed for run in profile.runs) else 0


def _file(options: dict[str, Any]) -> bool:
    return bool(options["command"]) and options["command"][0].endswith(".toml")


def _inner_words(ctx: click.Context) -> list[str]:
    """What the user wrote on the command line, for the bench in the guest."""
    words: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        if not isinstance(option, click.Option) or name in _OUTSIDE:
            continue
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[name]
        if name == "baseline":
            value = str(value).rpartition(":")[2]
        if option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            words += [option.opts[-1], str(value)]
    return words

"""`nsprof churn`: what creating and deleting network namespaces costs, and where it waits."""

from __future__ import annotations

from typing import Any

import click

from nsprof.cli import leftovers
from nsprof.cli.common import output_options, tell, write_csv, write_json, write_parts
from nsprof.escape import own_name, shell_words


@click.command("churn", short_help="Create and delete namespaces, timed and profiled.")
@click.option("-N", "--namespaces", default=100, show_default=True, type=int, help="Network namespaces.")
@click.option("-M", "--mount-namespaces", default=20, show_default=True, type=int, help="Mount namespaces alive.")
@click.option("--tool", "tools", multiple=True, metavar="ip|pyroute2|PATH", help="By what (default ip); repeatable.")
@click.option(
    "--propagation",
    type=click.Choice(["shared", "slave", "private", "stacked"]),
    default="shared",
    show_default=True,
    help="What the mount namespaces get of the mounts; stacked: everything twice, as without an own /run/netns.",
)
@click.option("--rounds", default=1, show_default=True, type=int, help="Of each tool, in fair order.")
@click.option("--kernel", "kernels", multiple=True, metavar="SPEC", help="In a VM of this kernel; repeatable.")
@click.option(
    "-F",
    "--freq",
    "frequency_hz",
    default=997,
    show_default=True,
    type=click.IntRange(1, 20_000),
    help="Samples a second and CPU.",
)
@click.option("--waits/--no-waits", default=True, show_default=True, help="Look where the processes wait (2 ms).")
@click.option("-o", "--output", default="churn.nsprof", show_default=True, help="The profile to write.")
@click.option("--top", default=8, show_default=True, type=click.IntRange(0), help="Functions to show an operation.")
@output_options
def command(form: str | None, output: str, top: int, kernels: tuple[str, ...], **options: Any) -> int:
    """Create N network namespaces and delete them again while M mount namespaces are alive.

    Prints real, user and sys as time does, latency percentiles of single operations, and the kernel functions in
    which the time went: on the CPU, and waiting.

    \b
    sudo nsprof churn -N 1000 -M 100 --tool ip --tool ./iproute2/ip/ip
    sudo nsprof churn -N 100 -M 20 --propagation stacked
    """
    leftovers.mind()
    options["tools"] = options["tools"] or ("ip",)
    return _run(options, kernels, output, top, form, "")


def from_experiment(table: dict[str, Any], given: dict[str, Any]) -> int:
    """Run the [churn] table of an experiment file."""
    options: dict[str, Any] = {
        "namespaces": table.get("namespaces", 1000),
        "mount_namespaces": table.get("mount-namespaces", 100),
        "tools": tuple(table.get("tools", ("ip",))),
        "rounds": given["runs"] or table.get("rounds", 1),
        "propagation": table.get("propagation", "shared"),
    }
    return _run(options, (), given["output"], min(given["top"], 8), given["form"], table["title"])


def _run(
    options: dict[str, Any], kernels: tuple[str, ...], output: str, top: int, form: str | None, title: str
) -> int:
    from nsprof import files, store
    from nsprof.churn import ChurnOptions, run_churn

    words = ChurnOptions(**options)
    words.check()
    files.check_target(output)
    profile = _in_guests(words, kernels) if kernels else run_churn(words, tell)
    store.save(profile, output, keep_old=True, measured=True)
    _show(profile, words.propagation, title, top, form)
    next_words = ["report", output, "--scenario", profile.scenarios[-1]]
    tell(f"wrote {output}; next: {own_name()} {shell_words(next_words)}")
    return 1 if any(run.failed for run in profile.runs) else 0


def _in_guests(words: Any, kernels: tuple[str, ...]) -> Any:
    """The same in a guest of each kernel, merged."""
    from nsprof import store
    from nsprof.errors import VmError
    from nsprof.files import Scratch
    from nsprof.model.builder import merge
    from nsprof.vm import resolve, run_job

    profiles = []
    for spec in kernels:
        with Scratch("churn") as place:
            file = place / "out" / "churn.nsprof"
            file.parent.mkdir()
            argv = ["nsprof", "churn", "-N", str(words.namespaces), "-M", str(words.mount_namespaces)]
            argv += ["--propagation", words.propagation, "--rounds", str(words.rounds), "-o", str(file)]
            argv += ["--top", "0", *(w for tool in words.tools for w in ("--tool", tool))]
            tell(f"booting {spec}")
            result = run_job(resolve(spec), argv, out_dir=file.parent, timeout_s=1800, boot_timeout_s=240)
            if not file.exists():
                last = result.stderr.strip().splitlines()[-1:] or [f"exit status {result.status}"]
                raise VmError(f"{spec}: {last[0]}")
            profiles.append(store.load(file))
    return merge(profiles)


def _show(profile: Any, propagation: str, title: str, top: int, form: str | None) -> None:
    from nsprof import analyse
    from nsprof.analyse.selection import scenario_names, usable_runs
    from nsprof.churn import own_samples
    from nsprof.errors import EvidenceError
    from nsprof.render import churn, text
    from nsprof.render.tables import Heading

    facts = profile.meta.get("churn", {})
    head = title or (
        f"{facts.get('namespaces')} network namespaces, {facts.get('mount_namespaces')} mount namespaces alive"
    )
    if form == "json":
        write_json("churn", {"facts": facts, "runs": profile.runs})
        return
    if form == "csv":
        rows = (
            {"operation": run.scenario, "kernel": run.kernel, "name": v.name, "value": v.value, "unit": v.unit}
            for run in profile.runs
            for v in run.values
        )
        write_csv(rows)
        return
    for run in profile.runs:
        if run.failed:
            tell(f"{run.scenario}: {run.failed}")
    parts = churn.churn_parts(profile.runs, title=head, propagation=propagation)
    own = own_samples(profile)
    for name in scenario_names(profile) if top else ():
        if not usable_runs(profile, name):
            continue
        parts += [text.gap(), Heading(f"{name}: time of an operation", 2)]
        for event, what in (("cpu-clock", "on the CPU"), ("off-cpu", "waiting")):
            if not any(e.name == event for e in profile.events):
                continue
            try:
                report = analyse.report(
                    own, scenario=name, event=event, per="operation", where=analyse.Filter(everyone=True)
                )
            except EvidenceError:  # nothing waited, or nothing was sampled
                continue
            parts += churn.function_parts(report, what=what, limit=top)
    write_parts(parts, form)

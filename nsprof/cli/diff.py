"""nsprof diff: per-function delta between two profiles or two scenarios of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nsprof.cli.common import (
    filter_of,
    filter_options,
    measure_options,
    open_profile,
    output_options,
    write_csv,
    write_json,
    write_parts,
)
from nsprof.errors import UsageError

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["command", "sides"]


def sides(
    files: tuple[str, ...],
    baseline: str | None,
    scenario: str | None,
    instead: str = "nsprof diff BASE NEW",
) -> tuple[Profile, str | None, Profile, str | None]:
    """(base, its scenario, new, its scenario) of the words on the command line: two files, or one with two scenarios.

    Without names a file with `host` and one other scenario is read as that other one against host. `instead` is the
    hint where one file has nothing to compare.
    """
    from nsprof.analyse.selection import scenario_names

    if len(files) > 2:
        raise UsageError(f"{len(files)} files where two can be compared", "nsprof diff BASE NEW")
    base = open_profile(files[0] if files else None)
    new = open_profile(files[1]) if len(files) == 2 else base
    names = scenario_names(new)
    if new is not base:
        if scenario and not baseline and scenario in scenario_names(base):
            baseline = scenario
        return base, baseline, new, scenario
    if len(names) < 2:
        raise UsageError(f"one profile with one scenario ({', '.join(names)}): nothing to compare it with", instead)
    if baseline is None:
        others = [n for n in names if n != scenario]
        baseline = next((n for n in others if n == "host" or n.endswith(":host")), others[0])
    if scenario is None:
        others = [n for n in names if n != baseline]
        if len(others) > 1:
            raise UsageError(
                f"several scenarios to compare with {baseline}: {', '.join(others)}",
                "choose one with --scenario NAME",
            )
        scenario = others[0]
    return base, baseline, new, scenario


@click.command(short_help="Per-function delta between two profiles or scenarios.")
@click.argument("files", nargs=-1, type=click.Path(), metavar="[BASE [NEW]]")
@click.option("--baseline", metavar="NAME", help="Scenario of BASE (default: host, or the only one).")
@click.option("--scenario", metavar="NAME", help="Scenario of NEW (default: the only other one).")
@measure_options
@filter_options
@click.option(
    "--min-effect", default="0", metavar="X|X%", help="Smaller differences get no verdict; % is of BASE's total."
)
@click.option(
    "--test",
    type=click.Choice(["welch", "permutation"]),
    default="welch",
    show_default=True,
    help="Test on run means.",
)
@click.option("--force", is_flag=True, help="Compare across CPU architectures.")
@output_options
@click.option("--limit", default=25, show_default=True, type=click.IntRange(0), help="Functions to show; 0: all.")
def command(files: tuple[str, ...], form: str | None, limit: int, **options: Any) -> None:
    """Show what NEW costs more or less than BASE, per function, in cost per transaction, KB or packet.

    With one file (default: profile.nsprof) two of its scenarios are compared.
    """
    from dataclasses import replace

    from nsprof import analyse
    from nsprof.analyse.reporting import own_count
    from nsprof.analyse.selection import choose_scenario, usable_runs
    from nsprof.render import text

    base, baseline, new, scenario = sides(files, options["baseline"], options["scenario"])
    result = analyse.diff(
        base,
        new,
        base_scenario=baseline,
        new_scenario=scenario,
        event=options["event"],
        per=options["per"],
        by=options["by"],
        where=filter_of(options),
        join_contexts=options["join_contexts"],
        min_effect=options["min_effect"],
        test=options["test"],
        force=options["force"],
    )
    runs = [p.runs[i] for p, n in ((base, baseline), (new, scenario)) for i in usable_runs(p, choose_scenario(p, n))]
    result = replace(result, measure=own_count(result.measure, runs))
    if form == "json":
        write_json("diff", result)
    elif form == "csv":
        write_csv(result.functions)
    else:
        write_parts(text.diff_parts(result, limit=limit), form)

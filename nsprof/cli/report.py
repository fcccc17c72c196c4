"""nsprof report: cost per function of one profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nsprof.cli.common import (
    DEFAULT_PROFILE,
    filter_of,
    filter_options,
    measure_options,
    open_profile,
    other_side,
    output_options,
    refuse_own_input,
    write_csv,
    write_json,
    write_parts,
)
from nsprof.errors import UsageError
from nsprof.escape import shell_word, shell_words

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["command"]


@click.command(short_help="Cost per function of one profile.")
@click.argument("profile", required=False, type=click.Path())
@click.option("--scenario", metavar="NAME", help="Scenario to report (default: all).")
@click.option(
    "--baseline", metavar="NAME", help="Scenario that the table of scenarios compares with (default: host)."
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(),
    help="Write the report page: all scenarios, or --scenario; --baseline may be another profile's file.",
)
@measure_options
@filter_options
@output_options
@click.option(
    "--sort", type=click.Choice(["self", "total"]), default="self", show_default=True, help="Order of functions."
)
@click.option("--limit", default=30, show_default=True, type=click.IntRange(0), help="Functions to show; 0: all.")
@click.option(
    "--memory",
    is_flag=True,
    help="Of a perf.data with data addresses (perf mem record): accesses and cache lines by function.",
)
@click.option("--branches", is_flag=True, help="Of a perf.data with branch stacks (perf record -b): by function.")
@click.option("--strict", is_flag=True, help="Exit with 1 on lost samples, stolen time or sums that do not add up.")
def command(profile: str | None, form: str | None, limit: int, strict: bool, **options: Any) -> int:
    """Show what PROFILE costs per function: self and total, in % of busy time and per transaction, KB or packet.

    PROFILE is a .nsprof file (default: profile.nsprof) or any file that 'nsprof import' reads.
    """
    from nsprof import analyse
    from nsprof.analyse.selection import scenario_names
    from nsprof.render import text

    if options["memory"] or options["branches"]:
        from nsprof.cli.hardware_report import write_hardware

        return write_hardware(open_profile(profile), form, {**options, "limit": limit})
    refuse_own_input(options["html"], profile, options["baseline"] or profile)
    if options["html"] and form in ("csv", "markdown"):
        raise UsageError(f"--html and --{form} exclude each other", f"leave --html out to have {form}")
    data = open_profile(profile)
    if options["html"]:
        from nsprof.cli.html_report import write_report

        words = {**options, "where": filter_of(options)}
        return write_report(data, options["html"], words, strict=strict, as_json=form == "json")
    if options["baseline"]:
        options["baseline"] = _baseline(data, options["baseline"], profile or DEFAULT_PROFILE)
    names = scenario_names(data)
    chosen: list[str | None] = [options["scenario"]] if options["scenario"] else [*names] or [None]
    reports = [
        analyse.report(
            data,
            scenario=name,
            event=options["event"],
            per=options["per"],
            by=options["by"],
            where=filter_of(options),
            join_contexts=options["join_contexts"],
        )
        for name in chosen
    ]
    table = None
    if len(reports) > 1:
        table = analyse.scenario_table(data, baseline=options["baseline"], event=options["event"], per=options["per"])
    if form == "json":
        write_json("report", {"scenarios": reports, "table": table})
    elif form == "csv":
        write_csv({"scenario": r.title, **_fields(row)} for r in reports for row in r.functions)
    else:
        parts = text.scenario_parts(table) if table else []
        said: set[str] = set()
        for report in reports:
            parts += [
                *([text.gap()] if parts else []),
                *text.report_parts(report, limit=limit, by_total=options["sort"] == "total", said=said),
            ]
        write_parts(parts, form)
    return int(strict and any(r.alarms for r in reports))


def _baseline(data: Profile, word: str, path: str) -> str:
    """The scenario that the table of scenarios is to compare with. Raises UsageError where that is no question."""
    from nsprof.analyse.selection import scenario_names

    other, name = other_side(data, word)
    if other is not None:
        raise UsageError(
            f"--baseline {word}: a file, which the table of scenarios cannot compare with",
            f"nsprof diff {shell_words([word, path])}",
        )
    names = scenario_names(data)
    if len(names) < 2:
        raise UsageError(
            f"--baseline {word}: the profile holds one scenario ({', '.join(names)}), so nothing compares with it",
            f"nsprof diff BASE {shell_word(path)}",
        )
    return str(name)


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}

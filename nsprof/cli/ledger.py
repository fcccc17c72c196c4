"""nsprof ledger: copies, checksums, segments, fragments and drops per packet and KB."""

from __future__ import annotations

import click

from nsprof.cli.common import open_profile, other_side, output_options, write_csv, write_json, write_parts

__all__ = ["command"]


@click.command(short_help="Copies, checksums, segments, fragments, drops per packet and KB.")
@click.argument("profile", required=False, type=click.Path())
@click.option("--scenario", metavar="NAME", help="Scenario to show (needed where several were counted).")
@click.option(
    "--baseline", metavar="FILE|NAME", help="Compare with another profile, or another scenario of this one."
)
@click.option(
    "--per", metavar="UNIT", help="skb, segment, kb, transaction, datagram, operation or second (default: skb)."
)
@click.option(
    "--netns", "namespaces", multiple=True, metavar="NAME", help="Only devices and places of this namespace."
)
@click.option("--everyone", is_flag=True, help="Also namespaces that have no part in the scenario.")
@output_options
@click.option("--limit", default=40, show_default=True, type=click.IntRange(0), help="Places to show; 0: all.")
@click.option(
    "--strict", is_flag=True, help="Exit with 1 where the kernel's counters do not agree, or probes were shed."
)
def command(
    profile: str | None,
    scenario: str | None,
    baseline: str | None,
    per: str | None,
    namespaces: tuple[str, ...],
    everyone: bool,
    form: str | None,
    limit: int,
    strict: bool,
) -> int:
    """Show what packets of PROFILE paid for: copied heads, copies, checksums, segments, fragments, drops.

    PROFILE comes from 'nsprof record --count -- COMMAND'. Each count stands beside the kernel's own where it has one.
    """
    from nsprof.analyse.ledger import ledger
    from nsprof.render.ledger import ledger_parts

    data = open_profile(profile)
    other = other_scenario = None
    if baseline is not None:
        other, other_scenario = other_side(data, baseline)
        other = other or data
        if scenario is None and other_scenario is not None:
            left = [name for name in data.scenarios if name != baseline and data.ledger_runs_of(name)]
            scenario = left[0] if len(left) == 1 else None
    report = ledger(
        data,
        scenario=scenario,
        baseline=other,
        baseline_scenario=other_scenario,
        per=per,
        namespaces=namespaces,
        everyone=everyone,
    )
    if form == "json":
        write_json("ledger", report)
    elif form == "csv":
        write_csv(report.places)
    else:
        write_parts(ledger_parts(report, limit=limit), form)
    return int(strict and (bool(report.alarms) or any(row.verdict == "no" for row in report.reconciled)))

"""`nsprof gate`: pass (0), regression (1), could not be compared (2) or not enough evidence (3), for CI."""

from __future__ import annotations

from typing import Any

import click

from nsprof.cli.common import open_profile, write_json, write_parts
from nsprof.errors import UsageError


@click.command("gate", short_help="Pass, regression or not enough evidence: for CI.")
@click.argument("base", metavar="BASE")
@click.argument("new", metavar="NEW")
@click.option("--fail-above", default="", metavar="2%", help="How much the total may rise (0%: not at all).")
@click.option(
    "--function", "functions", multiple=True, metavar="NAME=1%", help="The same for a function; repeatable."
)
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="NAME", help="Guard only these (default: all common)."
)
@click.option("--per", metavar="UNIT", help="packet (skb), transaction, kb, ... (default: what the workload counts).")
@click.option("-e", "--event", metavar="EVENT", help="Event to compare.")
@click.option("--min-runs", default=8, show_default=True, type=click.IntRange(2), help="Runs a side for a verdict.")
@click.option("--junit", "junit_file", metavar="FILE", help="Write JUnit XML.")
@click.option("--force", is_flag=True, help="Compare other CPUs or architectures all the same.")
@click.option("--json", "form", flag_value="json", help="The answer as JSON.")
@click.option("--markdown", "form", flag_value="markdown", help="The answer as Markdown.")
def command(
    base: str, new: str, fail_above: str, functions: tuple[str, ...], form: str | None, **options: Any
) -> int:
    """Compare NEW against BASE and end with 0 (pass), 1 (regression) or 3 (not enough evidence).

    Whatever keeps them from being compared (a file that cannot be read, say) ends with 2.

    Simulated profiles are exact, so they can gate to the instruction; recorded ones need 8 runs a side.

    \b
    nsprof gate base.nsprof new.nsprof --fail-above 2% --function ip_rcv=1%
    """
    from nsprof import gate as room
    from nsprof.files import replacing
    from nsprof.render import gate as render

    limit = _limit("--fail-above", fail_above) if fail_above else None
    guarded = {}
    for word in functions:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--function {word!r} has no limit", "--function ip_rcv=1%")
        guarded[name] = _limit(f"--function {name}", text)
    reports = room.gate(
        open_profile(base),
        open_profile(new),
        limit=limit,
        functions=guarded,
        scenarios=options["scenarios"],
        per=options["per"],
        event=options["event"],
        least_runs=options["min_runs"],
        force=options["force"],
    )
    outcome = room.overall(reports)
    if options["junit_file"]:
        with replacing(options["junit_file"], mode=0o644) as stream:
            stream.write(room.junit(reports))
    if form == "json":
        write_json("gate", {"outcome": outcome, "reports": reports})
    else:
        write_parts(render.gate_parts(reports, outcome), form)
    return room.EXIT[outcome]


def _limit(option: str, text: str) -> float:
    """`2%`, `0%`, `0.02` as a share; below 0 asks for an improvement."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = float("nan")
    if not -1 < value < 100:
        raise UsageError(f"{option}: {text!r} is no limit", f"write {option.split(maxsplit=1)[0]} 2%")
    return value

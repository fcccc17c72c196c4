"""nsprof export: a profile for other tools."""

from __future__ import annotations

import sys

import click

from nsprof.cli.common import open_profile, refuse_own_input
from nsprof.errors import UsageError

__all__ = ["command"]

_FORMATS = (
    "folded",
    "raw",
    "speedscope",
    "flamegraph",
    "chrometrace",
    "pprof",
    "firefox",
    "csv",
    "parquet",
    "pyperf",
)
_ROOTS = ("scenario", "namespace", "device", "context", "comm", "cpu")


@click.command(short_help="Write a profile for other tools: pprof, speedscope, Firefox, ...")
@click.argument("profile", required=False, type=click.Path())
@click.option("-f", "--format", "form", type=click.Choice(_FORMATS), required=True, help="What to write.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(), default="-", help="File to write (default: stdout)."
)
@click.option("-e", "--event", metavar="EVENT", help="Only this event (some formats hold one only).")
@click.option("--scenario", metavar="NAME", help="Only this scenario's runs.")
@click.option("--value", type=click.Choice(["count", "weight"]), help="folded: samples, or their weight.")
@click.option(
    "--root", "roots", multiple=True, type=click.Choice(_ROOTS), help="folded, speedscope: put this above the stacks."
)
@click.option("--marks", is_flag=True, help="folded: kernel frames end in _[k].")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    profile: str | None,
    form: str,
    output: str,
    event: str | None,
    scenario: str | None,
    value: str | None,
    roots: tuple[str, ...],
    marks: bool,
) -> None:
    """Write PROFILE (default: profile.nsprof) in a format that other tools read.

    raw, speedscope, flamegraph and chrometrace are py-spy's formats. Nothing is scaled: values are samples, or sums
    of sample periods.
    """
    refuse_own_input(output, profile)
    from nsprof.store.exporters import BINARY, export

    if form == "flamegraph":
        from nsprof.cli import flamegraph

        if value or roots or marks:
            raise UsageError(
                "--value, --root and --marks mean nothing for flamegraph", "see nsprof flamegraph --help"
            )
        files = () if profile is None else (profile,)
        ctx.invoke(flamegraph.command, files=files, output=output, event=event, scenario=scenario)
        return
    if output == "-" and form in BINARY and sys.stdout.isatty():
        raise UsageError(f"{form} is binary and would garble the terminal", f"add -o FILE, as in -o profile.{form}")
    options = {"event": event, "scenario": scenario, "value": value, "roots": roots, "marks": marks}
    opened = open_profile(profile)
    if output == "-":
        export(opened, form, sys.stdout.buffer, **options)
        sys.stdout.buffer.flush()
        return
    from nsprof.files import replacing

    with replacing(output) as stream:
        export(opened, form, stream, **options)

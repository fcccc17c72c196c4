"""nsprof export: a profile for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsprof.cli.common import open_profile, refuse_own_input
from nsprof.errors import UsageError

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

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
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    required=True,
    metavar="FORMAT",
    help=f"What to write: {', '.join(_FORMATS)}.",
)
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
@click.option("--json", "as_json", is_flag=True, help="Say as JSON on stdout what was written (with -o FILE).")
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
    as_json: bool,
) -> None:
    """Write PROFILE (default: profile.nsprof) in a format that other tools read.

    raw, speedscope, flamegraph and chrometrace are py-spy's formats. Nothing is scaled: values are samples, or sums
    of sample periods.
    """
    if as_json and output == "-":
        raise UsageError("--json and the export would both write to stdout", "name a file with -o FILE")
    refuse_own_input(output, profile)
    from nsprof.store.exporters import BINARY, export

    if form == "flamegraph":
        from nsprof.cli import flamegraph

        if value or roots or marks:
            raise UsageError(
                "--value, --root and --marks mean nothing for flamegraph", "see nsprof flamegraph --help"
            )
        files = () if profile is None else (profile,)
        ctx.invoke(flamegraph.command, files=files, output=output, event=event, scenario=scenario, as_json=as_json)
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
    if as_json:
        _tell_json(opened, form, output, event, scenario)


def _tell_json(profile: Profile, form: str, output: str, event: str | None, scenario: str | None) -> None:
    import numpy as np

    from nsprof.cli.common import write_json

    samples = profile.samples
    names = [e.name for e in profile.events]
    runs = [n for n, run in enumerate(profile.runs) if scenario in (None, run.scenario)]
    events = [n for n, name in enumerate(names) if event in (None, name)]
    chosen = samples.count[np.isin(samples.run, runs) & np.isin(samples.event, events)]
    file = Path(output)
    write_json(
        "export",
        {
            "file": output,
            "format": form,
            "bytes": file.stat().st_size if file.is_file() else None,
            "events": [event] if event is not None else names,
            "scenarios": [scenario] if scenario is not None else list(profile.scenarios),
            "samples": int(chosen.sum()),
            "notes": [str(note) for note in profile.meta.get("notes", [])],
        },
    )

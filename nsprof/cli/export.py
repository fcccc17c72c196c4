"""nsprof export: a profile for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsprof.cli.common import open_profile, refuse_own_input
from nsprof.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
        _tell(opened, form, event, scenario, value, always=False)
        return
    from nsprof.files import replacing

    with replacing(output) as stream:
        export(opened, form, stream, **options)
    _tell(opened, form, event, scenario, value)
    if as_json:
        _tell_json(opened, form, output, event, scenario)


#: format -> what its numbers are; the others hold a row a sample, or values of runs
_NUMBERS = {
    "folded": "samples",
    "raw": "samples",
    "speedscope": "{unit}, no counts",
    "chrometrace": "{unit}, no counts",
    "pprof": "samples and {unit}",
    "firefox": "{unit}",
}


def _tell(
    profile: Profile, form: str, event: str | None, scenario: str | None, value: str | None, *, always: bool = True
) -> None:
    """One line on what the numbers of an export are: it holds all that was sampled, a report a part of it. A pipe is
    told (not `always`) only where the two differ."""
    from nsprof.cli.common import tell
    from nsprof.units import counted

    if form not in _NUMBERS:
        return
    chosen = _chosen(profile, event, scenario)
    samples = profile.samples.take(chosen)
    units = dict.fromkeys(profile.events[i].unit for i in sorted(set(samples.event.tolist())))
    shown = (
        {"folded": "{unit}", "raw": "{unit}"}
        if value == "weight" or (list(units) != ["ns"] and value is None)
        else {}
    )
    words = shown.get(form, _NUMBERS[form]).format(unit=" and ".join(units) or "weights")
    total = int(samples.count.sum())
    line = f"{form}: {words}; {total:,} samples of {counted(len(set(samples.run.tolist())), 'run')} added up"
    names = dict.fromkeys(profile.events[i].name for i in sorted(set(samples.event.tolist())))
    reported = _reported(profile, list(names), scenario)
    if reported is not None and reported != total:
        line += f"; nsprof report counts {reported:,}: no idle, remote or other load, no warm-ups or runs with probes"
    elif not always:
        return
    tell(line, who="")


def _reported(profile: Profile, events: list[str], scenario: str | None) -> int | None:
    """How many of the samples `nsprof report` counts without options, over all scenarios; None where it refuses."""
    from nsprof.analyse.selection import scenario_names, view
    from nsprof.errors import NsprofError

    total = 0.0
    try:
        for name in scenario_names(profile) if scenario is None else (scenario,):
            total += sum(float(view(profile, scenario=name, event=event).count.sum()) for event in events)
    except NsprofError:
        return None
    return round(total)


def _chosen(profile: Profile, event: str | None, scenario: str | None) -> NDArray[np.bool_]:
    """Which sample rows an export holds."""
    import numpy as np

    runs = [n for n, run in enumerate(profile.runs) if scenario in (None, run.scenario)]
    events = [n for n, each in enumerate(profile.events) if event in (None, each.name)]
    return np.isin(profile.samples.run, runs) & np.isin(profile.samples.event, events)


def _tell_json(profile: Profile, form: str, output: str, event: str | None, scenario: str | None) -> None:
    from nsprof.cli.common import write_json

    names = [e.name for e in profile.events]
    chosen = profile.samples.count[_chosen(profile, event, scenario)]
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

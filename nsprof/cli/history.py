"""`nsprof history`: many result files over kernels and commits as one table and a chart."""

from __future__ import annotations

import click

from nsprof.cli.common import output_options, tell, write_csv, write_json, write_parts


@click.command("history", short_help="Many result files as a table and a chart, changes marked.")
@click.argument("directory", metavar="DIR")
@click.option("--scenario", metavar="NAME", help="Only this one (default: all).")
@click.option("--per", metavar="UNIT", help="Unit of the cost (default: what the workload counts).")
@click.option("-e", "--event", metavar="EVENT", help="Event to read.")
@click.option("--svg", metavar="FILE", help="Also write the chart as SVG.")
@output_options
def command(
    directory: str, scenario: str | None, per: str | None, event: str | None, svg: str | None, form: str | None
) -> None:
    """Read every *.nsprof file below DIR, oldest first, and show how the unit cost went and where it changed.

    A commit is taken from the kernel's release (…-gabcdef0), as CONFIG_LOCALVERSION_AUTO writes it.

    \b
    nsprof history results/ --scenario veth-bridge --svg history.svg
    """
    from nsprof.files import replacing
    from nsprof.history import histories, read_directory
    from nsprof.render import history as render
    from nsprof.render.text import gap

    entries = read_directory(directory, scenario=scenario, per=per, event=event, say=tell)
    found = histories(entries)
    if svg:
        with replacing(svg) as stream:
            stream.write(render.history_svg(found).encode("utf-8", "backslashreplace"))
        tell(f"wrote {svg}")
    if form == "json":
        write_json("history", {"histories": found})
    elif form == "csv":
        write_csv(
            {
                "scenario": h.scenario,
                "unit": h.unit,
                "file": p.file,
                "when": p.when,
                "kernel": p.kernel,
                "commit": p.commit,
                "cost": p.cost,
                "interval": p.interval,
                "runs": p.runs,
                "change_pct": p.change_pct,
                "mark": p.mark,
            }
            for h in found
            for p in h.points
        )
    else:
        write_parts([part for h in found for part in (*render.history_parts(h), gap())], form)

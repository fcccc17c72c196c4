"""`nsprof doctor`."""

from __future__ import annotations

import sys

import click

from nsprof.cli.common import write_json


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
def command(as_json: bool) -> int:
    """What this machine can and cannot do, each row found by trying; what each lack prevents; what mends it.

    Exit status: 0 when nsprof can record here, 1 when it cannot. Works without root, and says what that costs.
    Nothing stays loaded or changed.
    """
    from nsprof.collect.checks import preflight

    rows = preflight.checks()
    able = preflight.can_record(rows)
    if as_json:
        write_json("doctor", {"can_record": able, "checks": [row.as_dict() for row in rows]})
        return 0 if able else 1
    from nsprof.render import doctor

    verdict = "nsprof can record here." if able else "nsprof cannot record here; the rows marked 'no' say why."
    doctor.print_rows([row.as_dict() for row in rows], verdict, sys.stdout)
    return 0 if able else 1

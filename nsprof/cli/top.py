"""`nsprof top`: which namespaces and devices the CPU works for, live."""

from __future__ import annotations

from typing import Any

import click

from nsprof.cli.common import Seconds
from nsprof.errors import PreflightError, UsageError

_SORTS = ("cpu", "softirq", "rate", "cost", "drops", "name")


@click.command("top", short_help="Live: CPU by namespace and device, softirq included.")
@click.option(
    "-d", "--interval", "interval_s", default=1.0, show_default=True, type=Seconds(0.2, 3600), help="Seconds between."
)
@click.option("-b", "--batch", is_flag=True, help="Print intervals one after another; no screen, no keys.")
@click.option("-n", "--count", default=0, type=click.IntRange(0), help="End after N intervals (0: never).")
@click.option("--json", "as_json", is_flag=True, help="With -b: a JSON object a line.")
@click.option("-s", "--sort", default="cpu", show_default=True, type=click.Choice(_SORTS), help="Column to sort by.")
@click.option("-r", "--reverse", is_flag=True, help="Smallest first.")
@click.option("-f", "--filter", default="", metavar="TEXT", help="Rows whose namespace or device has TEXT in it.")
@click.option(
    "--by", type=click.Choice(["device", "namespace"]), default="device", show_default=True, help="What a row is."
)
@click.option("-a", "--idle", is_flag=True, help="Namespaces in which nothing happens, too.")
@click.option("--limit", default=0, type=click.IntRange(0), help="With -b: at most N rows (0: all).")
@click.option(
    "-F",
    "--freq",
    "frequency_hz",
    default=199,
    show_default=True,
    type=click.IntRange(1, 20_000),
    help="Samples a second and CPU. In one second 199 tell 10 % of a CPU to +-2.1 points, 499 to +-1.3, at 2.5 times "
    "the cost.",
)
@click.option(
    "--hop/--no-hop", default=True, show_default=True, help="Charge softirq CPU to the namespace it serves."
)
@click.option(
    "--keep", "keep_s", default=60, show_default=True, type=click.IntRange(1, 3600), help="Seconds to save."
)
@click.option("-o", "--output", default="top.nsprof", show_default=True, help="The profile that the key w writes.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors.")
def command(**options: Any) -> int:
    """Show which network namespaces and devices the CPU works for, second by second.

    CPU is in percent of one CPU, softirq work is charged to the namespace and device whose packet it handles, and the
    selected row shows its kernel functions. Press ? for the keys; w writes the last seconds as a profile.

    \b
    sudo nsprof top
    sudo nsprof top -b -n 3 --limit 10
    sudo nsprof top -b -n 1 --json | jq .rows[0]
    """
    import os

    from nsprof.top import TopOptions

    words = TopOptions(**options)
    if not words.batch and (words.as_json or words.limit):
        raise UsageError("--json and --limit go with -b", "nsprof top -b -n 3 --json")
    if os.geteuid() != 0:
        raise PreflightError("top samples the whole system, which needs root", "sudo nsprof top")
    if words.batch:
        from nsprof.top.batch import run_batch

        return run_batch(words)
    from nsprof.top.live import run_live

    return run_live(words)

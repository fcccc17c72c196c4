"""`nsprof topo`: build topologies that stay, look at them, and remove them."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

from nsprof.cli import leftovers
from nsprof.cli.common import tell, write_json
from nsprof.errors import TopologyError, UsageError
from nsprof.escape import as_stored, own_name, safe
from nsprof.files import scratch_left_behind

if TYPE_CHECKING:
    from pathlib import Path

    from nsprof.topology import Topology

#: How many of a run's namespaces are named.
_PLACES = 8


@click.group("topo")
def command() -> None:
    """Build, list and remove the test topologies.

    A topology is a host, a remote end, a wire between them, and containers joined to the host in one of several
    shapes, all in network namespaces of its own. `record` and `bench` build and remove theirs by themselves.
    """


@command.command("up", epilog="Example: sudo nsprof topo up veth-bridge --containers 3 --wire-rate 1gbit")
@click.argument("shape")
@click.option("-n", "--containers", default=1, show_default=True, type=click.IntRange(1, 1000), help="How many.")
@click.option("--wire-rate", default="", metavar="RATE", help="Limit the wire, e.g. 1gbit.")
@click.option(
    "--mtu", default=0, type=click.IntRange(0, 65535), help="MTU of the wire and of the containers (0: the kernel's)."
)
@click.option("--offload", default="", metavar="LIST", help="tx, rx, sg, tso, gso, gro: tso=off,gro=on,...")
@click.option("-6", "ipv6", is_flag=True, help="IPv6 instead of IPv4.")
@click.option(
    "--host-netns", type=click.Choice(["own", "init"]), default="own", show_default=True, help="Who is the host."
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Keep each side's softirq on its own CPUs.")
@click.option("--run-id", default=None, help="Its name (default: six random hexadecimal digits).")
@click.option("--json", "as_json", is_flag=True, help="Print what was built as JSON.")
def up(shape: str, **options: Any) -> None:
    """Build a topology of SHAPE and leave it up."""
    from nsprof.model.scenario import TopologySpec, parse_offloads
    from nsprof.topology import down, raise_up
    from nsprof.units import parse_rate

    try:
        rate = parse_rate(options["wire_rate"]) if options["wire_rate"] else 0
    except ValueError as error:
        raise UsageError(f"--wire-rate: {error}") from error
    if options["wire_rate"] and not rate:
        raise UsageError(f"--wire-rate {options['wire_rate']}: no rate", "leave --wire-rate out for no limit")
    leftovers.mind()
    spec = TopologySpec(
        shape,
        containers=options["containers"],
        family=6 if options["ipv6"] else 4,
        mtu=options["mtu"],
        wire_rate_bps=rate,
        offloads=parse_offloads(options["offload"]),
        host_netns=options["host_netns"],
        pin=options["pin"],
    )
    with _signals():
        topology = raise_up(spec, options["run_id"])
        try:
            _show(topology, as_json=options["as_json"])
        except BaseException:  # nobody learned its name, so nobody would take it down
            down(topology.run_id)
            raise


def _show(topology: Topology, *, as_json: bool) -> None:
    """What was built. In one write, so that a reader who leaves after the first line (head -1) has had all."""
    if as_json:
        places = [topology.host, topology.server, *topology.clients]
        found = {p.name: {"netns": p.netns_path, "address": p.address, "cpus": list(p.cpus)} for p in places}
        write_json("topo-up", {**topology.describe(), "places": found})
        sys.stdout.flush()
        return
    client, server = topology.client, topology.server
    more = f" (and {len(topology.clients) - 1} more)" if len(topology.clients) > 1 else ""
    name = f"nsprof-{topology.run_id}-{client.name}"
    lines = (
        f"{topology.run_id}: {topology.spec.shape}, {topology.shape.chain}",
        f"  client  {client.netns_path}  {client.address}{more}",
        f"  server  {server.netns_path}  {topology.server_address}",
        f"  try     ip netns exec {name} ping -c 3 {topology.server_address}",
        f"  record  {own_name()} record --in {name} -- ping -c 3 {topology.server_address}",
        f"  remove  {own_name()} topo down {topology.run_id}",
    )
    click.echo("\n".join(lines))


def _signals() -> Any:
    """SIGTERM and SIGHUP become the exception that Ctrl-C is, so that a half-built topology is removed."""
    import signal
    from contextlib import contextmanager

    @contextmanager
    def block() -> Any:
        def stop(number: int, _: object) -> None:
            raise SystemExit(128 + number)

        before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return block()


@command.command("down", short_help="Remove topologies that were left up.")
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were left up (none that is in use).")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as JSON.")
def down_(run_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Remove topologies that were left up, and end the processes that are still inside."""
    from nsprof.topology import down, listing

    if bool(run_ids) == everything:
        raise UsageError("give either run ids or --all", "nsprof topo list")
    words = [r["run_id"] for r in listing() if r["condition"] == "up"] if everything else run_ids
    removed: dict[str, int] = {}
    try:
        for run_id in dict.fromkeys(words):
            removed[run_id] = down(run_id)
            if not as_json:
                click.echo(_removed(run_id, removed[run_id]), err=True)
    finally:  # those before one that could not be removed are gone all the same
        if as_json:
            write_json("topo-down", {"removed": list(removed), "ended": sum(removed.values())})


def _removed(run_id: str, ended: int) -> str:
    if not ended:
        return f"{run_id}: removed"
    return f"{run_id}: removed, and {ended} process{'es' if ended > 1 else ''} still in it ended"


@command.command("list", short_help="All topologies of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(as_json: bool) -> None:
    """All topologies of this machine: up, in use, or left over by a killed nsprof."""
    from nsprof.topology import listing

    rows = listing()
    places = scratch_left_behind()
    if as_json:
        write_json("topo-list", {"topologies": rows, "directories": [as_stored(str(place)) for place in places]})
        return
    if places:
        tell(f"{leftovers.directories(places)} ('{own_name()} topo clean' removes what was left behind)", who="")
    if not rows:
        click.echo("no topology is up", err=True)
        return
    line = "{:<9} {:<18} {:<9} {:>10} {:>8}  {}"
    click.echo(line.format("RUN", "SHAPE", "STATE", "CONTAINERS", "PID", "SINCE"))
    for row in rows:
        pid = row["pid"] if row["condition"] == "in use" else "-"
        words = (row["run_id"], row["shape"] or "?", row["condition"], row["containers"], pid, row["created"] or "?")
        click.echo(line.format(*words))


@command.command("clean", short_help="Remove what a killed nsprof left behind.")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as JSON.")
def clean_(as_json: bool) -> None:
    """Remove what a killed nsprof left behind; nothing that is up or in use.

    Processes that are still inside (a server of a killed benchmark) are ended, and temporary directories removed.
    """
    from nsprof.topology import clean

    removed = clean()
    places = scratch_left_behind(remove=True)
    if as_json:
        facts = {"removed": list(removed), "ended": sum(removed.values())}
        write_json("topo-clean", {**facts, "directories": [as_stored(str(place)) for place in places]})
        return
    for run_id, ended in removed.items():
        click.echo(_removed(run_id, ended), err=True)
    if places:
        tell(f"removed {leftovers.directories(places)}", who="")
    if not removed and not places:
        click.echo("nothing was left behind", err=True)


@command.command("show", short_help="Draw SHAPE, all shapes, or what is up.")
@click.argument("shape", required=False, metavar="[SHAPE|RUN_ID]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def show(shape: str | None, as_json: bool) -> None:
    """Draw SHAPE, or all shapes: the chain of devices and the difference from "host".

    With a RUN_ID, as 'nsprof topo list' has them: where its namespaces are, and its shape.
    """
    from nsprof.topology import SHAPES
    from nsprof.topology.plan import check_shape
    from nsprof.topology.shapes import get

    row = None if shape is None or shape in SHAPES else _standing(shape)
    if row is not None:
        shape = row["shape"]
    if shape is not None:
        check_shape(shape, SHAPES)
    names = SHAPES if shape is None else (shape,)
    if as_json:
        facts = ("chain", "difference", "needs", "drawing")
        shapes = [{"name": name, **{fact: getattr(get(name), fact) for fact in facts}} for name in names]
        write_json("topo-show", {"shapes": shapes, **({} if row is None else {"run": row})})
        return
    if row is not None:
        _show_run(row)
    for name in names:
        one = get(name)
        click.echo(click.style(name, bold=True) if sys.stdout.isatty() else name)
        for title, text in (("chain", one.chain), ("difference", one.difference), ("kernel", ", ".join(one.needs))):
            click.echo(textwrap.fill(text, 79, initial_indent=f"  {title:<12}", subsequent_indent=" " * 14))
        click.echo()
        click.echo("\n".join("  " + line for line in one.drawing.splitlines()) + "\n")


def _standing(run_id: str) -> dict[str, Any] | None:
    """The run of that id; None if there is none, or where one may not look."""
    from nsprof.topology import listing

    try:
        return next((row for row in listing() if row["run_id"] == run_id and row["shape"]), None)
    except TopologyError:
        return None


def _show_run(row: dict[str, Any]) -> None:
    from nsprof.topology.state import load

    state = load(row["run_id"])
    about = row["about"]
    found = [f"nsprof-{row['run_id']}-{place.name}" for place in _by_number(state.made)] if state is not None else []
    more = f", and {len(found) - _PLACES} more" if len(found) > _PLACES else ""
    clients = [str(address) for address in about.get("clients", ())]
    fewer = ", ..." if row["containers"] > len(clients) else ""
    click.echo(f"{row['run_id']}: {row['shape']}, {row['condition']}, since {row['created'] or 'an unknown time'}")
    for title, text in (
        ("namespaces", ", ".join(found[:_PLACES]) + more),
        ("clients", ", ".join(clients) + fewer),
        ("server", str(about.get("server_address", ""))),
    ):
        if text:
            click.echo(textwrap.fill(safe(text), 79, initial_indent=f"  {title:<12}", subsequent_indent=" " * 14))
    click.echo()


def _by_number(places: list[Path]) -> list[Path]:
    """c2 before c10."""
    return sorted(places, key=lambda place: (len(place.name), place.name))

"""nsprof simulate: exact instructions per packet and function, by executing real kernels under QEMU's TCG."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsprof.cli import leftovers
from nsprof.cli.common import Bound, Given, output_options, tell, write_csv, write_json, write_parts
from nsprof.errors import UsageError

if TYPE_CHECKING:
    from nsprof.model.profile import Profile
    from nsprof.simulate import Measurement, SimulateOptions
    from nsprof.simulate.lines import Footprint

_WORKLOADS = ("udp-rr", "udp-stream", "tcp-rr", "tcp-stream", "tcp-crr")


@click.command(short_help="Exact instructions per packet of any kernel, on any machine.")
@click.option("--kernel", "specs", multiple=True, metavar="SPEC", help="Kernel: bzImage, directory, debian:6.1, ...")
@click.option("--modules", type=click.Path(path_type=Path), metavar="DIR", help="Modules of a bzImage.")
@click.option("--scenario", default="host,veth-route,veth-bridge", show_default=True, metavar="A,B", help="Shapes.")
@click.option(
    "--workload", type=click.Choice(_WORKLOADS), default="udp-rr", show_default=True, help="What packets do."
)
@click.option("--size", type=Given(), default=0, metavar="BYTES", help="Payload (default 64; tcp-stream 16384).")
@click.option("-6", "family", flag_value=6, type=int, help="IPv6.")
@click.option("-4", "family", flag_value=4, type=int, default=4, help="IPv4 (default).")
@click.option(
    "--packets",
    type=Given(1, 100_000),
    default=0,
    metavar="N",
    help="Repetitions a sample (default 10; 1 for lines).",
)
@click.option(
    "--samples", type=click.IntRange(1, 4096), default=20, show_default=True, metavar="N", help="Samples a boot."
)
@click.option(
    "--warmup", type=click.IntRange(0), default=200, show_default=True, metavar="N", help="Repetitions before them."
)
@click.option(
    "--containers", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Containers; c0 is busy."
)
@click.option("--mtu", type=Given(), default=0, metavar="BYTES", help="MTU of all devices.")
@click.option("--container-mtu", type=Given(), default=0, metavar="BYTES", help="MTU of the pairs only (mismatch).")
@click.option("--offload", default="", metavar="tso=off,gso=off", help="Offloads of all pairs, as ethtool -K.")
@click.option("--rules", type=click.IntRange(0), default=0, metavar="N", help="Netfilter rules that match no packet.")
@click.option("--routes", type=click.IntRange(0), default=0, metavar="N", help="More routes in the host.")
@click.option(
    "--bridge-ports", type=click.IntRange(0), default=0, metavar="N", help="More ports of br0, without traffic."
)
@click.option("--br-nf", is_flag=True, help="bridge-nf-call-iptables=1 (IPv6: ip6tables).")
@click.option("--mitigations", default="off", show_default=True, metavar="WORDS", help="The kernel's mitigations=.")
@click.option("--footprint", is_flag=True, help="Distinct 64-byte lines of data and text that one packet touches.")
@click.option(
    "--cache", default="", metavar="l1d=48k:12,...", help="Model misses of l1d, l1i, l2; 'default': a server."
)
@click.option(
    "--boots", type=Given(1, 64), default=0, metavar="N", help="Boots with different seeds (default 1; misses 3)."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    metavar="N",
    help="Networks tried (hash seeds).",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="First seed.")
@click.option(
    "--estimate", default="", metavar="l2=80,...", help="ns for each instruction, l1d, l1i, l2 miss: a column."
)
@click.option("--sweep", default="", metavar="containers=1,10,50", help="The curve and its slope.")
@click.option("--annotate", default="", metavar="FUNC", help="Instructions of one function with their counts.")
@click.option("--vmlinux", type=click.Path(path_type=Path), metavar="FILE", help="For file:line in --annotate.")
@click.option("--debug-info", is_flag=True, help="Name the data lines with drgn; fetches Debian's -dbg package.")
@click.option("-j", "--jobs", type=Given(), default=0, metavar="N", help="Boots at once (default: CPUs).")
@click.option(
    "--timeout", "timeout_s", type=Bound(), default=600.0, show_default=True, metavar="S", help="Of a boot."
)
@click.option("--limit", default=15, show_default=True, type=click.IntRange(0), help="Functions shown; 0: all.")
@click.option("-o", "--output", metavar="FILE", help="Profile to write (report, diff, flamegraph read it).")
@output_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(*, form: str | None, output: str | None, limit: int, **given: Any) -> None:
    """Boot real kernels under QEMU's TCG and count every kernel instruction that a packet costs.

    Counts are exact and the same on every machine; they are modelled figures, never mixed with measured time.
    Without --kernel the newest kernel at hand is taken (/boot, nsprof's cache, else Debian's).
    In the table, 'alike' counts the samples that are the one shown, to the instruction; 'background' is what the mean
    sample has besides: timers, RCU, kernel threads, which come by the guest's clock and not by the packet.

    \b
    nsprof simulate --kernel debian:6.1
    nsprof simulate --scenario host,veth-bridge --workload tcp-stream
    nsprof simulate --kernel debian:6.1 --kernel debian:6.12 -o both.nsprof
    """
    from nsprof import files, simulate
    from nsprof.simulate import lines as simulate_lines
    from nsprof.simulate import report as simulate_report

    options = _options(given)
    leftovers.mind()
    if output:
        files.check_target(output)
    if given["sweep"]:
        _sweep(options, given["sweep"], output, limit, form)
        return
    estimate = _numbers(given["estimate"], "--estimate", ("instruction", "l1d", "l1i", "l2"))
    with files.Scratch("memory") as place:
        if given["debug_info"]:
            options = dataclasses.replace(options, snapshot_dir=place)
        prints = _Footprints(options, given)
        measured = simulate.measure_all(options, tell, prints.take)
    if output:
        profile = simulate.profile_of(options, measured)
        _save(_with_lines(profile, measured, prints.found), output)
    if form == "json":
        write_json("simulate", simulate_report.document(options, measured))
    elif form == "csv":
        rows = simulate_report.document(options, measured)["scenarios"]
        write_csv(
            {"kernel": r["kernel"], "scenario": r["scenario"], "function": name, "instructions": count}
            for r in rows
            for name, count in r["functions"].items()
        )
    else:
        parts = simulate_report.report_parts(options, measured, limit=limit, estimate=estimate)
        if prints.found:
            parts += simulate_lines.footprint_parts(prints.found, limit)
        if given["annotate"]:
            from nsprof.simulate.annotate import annotate, annotate_parts

            for m in measured:
                lines = annotate(m, given["annotate"], given["vmlinux"])
                parts += annotate_parts(m, given["annotate"], lines)
        write_parts(parts, form)


class _Footprints:
    """The first boot's footprint of each kernel and scenario, named as soon as that boot is over.

    With --debug-info member by member; the debug information is fetched before anything is booted.
    """

    def __init__(self, options: SimulateOptions, given: dict[str, Any]) -> None:
        from nsprof.vm import kernels

        self.wanted, self.seed = options.footprint, options.seeds[0]
        self.images: dict[str, Path] = {}
        self.by_place: dict[tuple[int, int], Footprint] = {}
        self.order = {name: number for number, name in enumerate(options.scenarios)}
        self.kernels = {spec: number for number, spec in enumerate(options.kernels)}
        self.lock = threading.Lock()  # drgn's debug information is large: one kernel in memory at a time
        for spec in options.kernels if given["debug_info"] else ():
            kernel = kernels.resolve(spec, modules=options.modules)
            self.images[spec] = given["vmlinux"] or kernels.debug_package(kernel)

    def take(self, m: Measurement) -> None:
        """Name the lines of a boot, unless it is another seed's."""
        from nsprof.simulate import lines as simulate_lines

        if self.wanted and m.seed == self.seed:
            with self.lock:
                found = simulate_lines.footprint(m, self.images.get(m.kernel.spec))
            self.by_place[self.kernels[m.kernel.spec], self.order[m.scenario]] = found

    @property
    def found(self) -> list[Footprint]:
        """In the order of kernels and scenarios."""
        return [self.by_place[place] for place in sorted(self.by_place)]


def _with_lines(profile: Profile, measured: Sequence[Measurement], prints: Sequence[Footprint]) -> Profile:
    from nsprof.simulate.lines import footprint_rows

    meta = dict(profile.meta)
    runs = [dict(run) for run in meta["simulate"]["runs"]]
    for each in prints:
        runs[measured.index(each.measurement)]["data_lines"] = footprint_rows(each)
    return profile.with_(meta={**meta, "simulate": {**meta["simulate"], "runs": runs}})


def _sweep(options: SimulateOptions, text: str, output: str | None, limit: int, form: str | None) -> None:
    from nsprof import simulate
    from nsprof.simulate import sweep as simulate_sweep

    name, values = simulate_sweep.parse_sweep(text)
    points, measured = simulate_sweep.sweep(options, name, values, tell)
    if output:
        _save(simulate.profile_of(options, measured), output)
    rows = [
        {"scenario": g.scenario, "kernel": g.kernel, name: p.value, "instructions": g.per_unit("instructions")[0]}
        for p in points
        for g in p.groups
    ]
    if form == "json":
        write_json("simulate-sweep", {"swept": name, "rows": rows})
    elif form == "csv":
        write_csv(rows)
    else:
        write_parts(simulate_sweep.sweep_parts(name, points, limit), form)


def _save(profile: Profile, output: str) -> None:
    from nsprof import store

    store.save(profile, output, keep_old=True, measured=True)
    tell(f"wrote {output}")


def _options(given: dict[str, Any]) -> SimulateOptions:
    from nsprof import simulate
    from nsprof.simulate.plans import Perturbations

    caches = _caches(given["cache"])
    return simulate.SimulateOptions(
        kernels=given["specs"] or (simulate.newest_kernel(),),
        scenarios=tuple(dict.fromkeys(word.strip() for word in given["scenario"].split(",") if word.strip())),
        perturbations=Perturbations(
            rules=given["rules"],
            routes=given["routes"],
            bridge_ports=given["bridge_ports"],
            br_nf=given["br_nf"],
            mtu=given["container_mtu"],
            offloads=_switches(given["offload"]),
        ),
        footprint=given["footprint"] or bool(caches) or given["debug_info"],
        addresses=bool(given["annotate"]),
        caches=caches,
        command=given["argv"],
        **{
            name: given[name]
            for name in (
                *(
                    "workload",
                    "size",
                    "family",
                    "packets",
                    "samples",
                    "warmup",
                    "containers",
                    "mtu",
                    "boots",
                    "rounds",
                    "seed",
                ),
                *("mitigations", "modules", "jobs", "timeout_s"),
            )
        },
    )


def _pairs(text: str, option: str) -> list[tuple[str, str]]:
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = word.partition("=")
        if not separator or not value:
            raise UsageError(f"{option}: {word!r} has no value", f"write {option} NAME=VALUE,NAME=VALUE")
        found.append((key, value))
    return found


def _numbers(text: str, option: str, names: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for key, value in _pairs(text, option):
        if key not in names:
            raise UsageError(f"{option}: no {key!r}", "there are: " + ", ".join(names))
        try:
            found[key] = float(value)
        except ValueError:
            raise UsageError(f"{option}: {value!r} is no number") from None
    return found


def _switches(text: str) -> dict[str, bool]:
    from nsprof.topology.plan import OFFLOADS

    found = {}
    for key, value in _pairs(text, "--offload"):
        if key not in OFFLOADS or value not in ("on", "off"):
            raise UsageError(f"--offload: {key}={value}", "NAME=on|off; names: " + ", ".join(OFFLOADS))
        found[key] = value == "on"
    return found


def _caches(text: str) -> tuple[tuple[str, str], ...]:
    """l1d=48k:12,l2=2m:16 -> (("l1d", "48:12"), ("l2", "2048:16")): KiB and ways, as the plugin takes them."""
    from nsprof.simulate import DEFAULT_CACHES

    if text == "default":
        return DEFAULT_CACHES
    found = []
    for name, geometry in _pairs(text, "--cache"):
        size, _, ways = geometry.lower().partition(":")
        factor = {"k": 1, "m": 1024}.get(size[-1:], 0)
        if name not in ("l1d", "l1i", "l2") or not factor or not size[:-1].isdecimal() or not ways.isdecimal():
            raise UsageError(f"--cache: {name}={geometry}", "write l1d=48k:12,l1i=32k:8,l2=2m:16 (size:ways)")
        kib, number = int(size[:-1]) * factor, int(ways)
        if not number or not kib or kib * 1024 % (64 * number):
            raise UsageError(
                f"--cache: {name}={geometry}: {kib} KiB do not divide into {number} ways of 64-byte lines"
            )
        found.append((name, f"{kib}:{number}"))
    return tuple(found)

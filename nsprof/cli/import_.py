"""nsprof import: other tools' files become a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["command", "import_all"]

_FORMATS = ("perf.data", "perf-script", "folded", "bpftrace", "bcc-profile", "pprof", "speedscope")


@click.command(short_help="Make a profile of perf.data, perf script, folded stacks, ...")
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("-o", "--output", metavar="FILE", type=click.Path(), help="Profile to write (default: FILE.nsprof).")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="What the files are (default: seen from content)."
)
@click.option("--scenario", metavar="NAME", help="Name of what was recorded (default: each file's name).")
@click.option("--packets", type=float, metavar="N", help="Packets that each file is about, for costs per packet.")
@click.option("--kallsyms", type=click.Path(), metavar="FILE", help="perf.data: kernel symbols saved when recording.")
@click.option("--vmlinux", type=click.Path(), metavar="FILE", help="perf.data: the recorded kernel, with symbols.")
@click.option(
    "--strict", is_flag=True, help="Fail on damaged input, instead of keeping what stands before the damage."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def command(
    *,
    files: tuple[str, ...],
    output: str | None,
    form: str | None,
    scenario: str | None,
    packets: float | None,
    kallsyms: str | None,
    vmlinux: str | None,
    strict: bool,
    quiet: bool,
) -> None:
    """Read recordings of other tools and write them as one profile, a run each.

    perf.data (read without perf), text of perf script, folded stacks, bpftrace maps, bcc's profile, pprof and
    speedscope are told apart by content; gzip and zstd are unpacked. The reading commands take such files directly
    as well.
    """
    from nsprof import store
    from nsprof.cli.common import refuse_own_input

    refuse_own_input(output, *files)
    options = {"format": form, "packets": packets, "kallsyms": kallsyms, "vmlinux": vmlinux, "strict": strict}
    profile = import_all(files, scenario=scenario, **options)
    target = output or f"{'stdin' if files[0] == '-' else files[0]}.nsprof"
    store.save(profile, target, keep_old=True)
    if quiet:
        return
    from nsprof.render.escape import safe

    for note in profile.meta.get("notes", []):
        click.echo(safe(str(note)), err=True)
    if target != "-":
        total = int(profile.samples.count.sum())
        click.echo(f"{total:,} samples, {len(profile.stacks):,} stacks: {target}", err=True)
        click.echo(f"next: nsprof report {target}", err=True)


def import_all(files: tuple[str, ...], *, scenario: str | None = None, **options: object) -> Profile:
    """One profile of several files; their notes carry the file's name where there are several."""
    from dataclasses import replace

    from nsprof.model.builder import merge
    from nsprof.store.importers import import_file

    profiles = []
    for file in files:
        profile = import_file(file, **options)  # type: ignore[arg-type]
        if scenario is not None:
            profile = profile.with_(runs=tuple(replace(r, scenario=scenario) for r in profile.runs))
        profiles.append(profile)
    if len(profiles) == 1:
        return profiles[0]
    notes = [
        f"{Path(file).name}: {note}"
        for file, profile in zip(files, profiles, strict=True)
        for note in profile.meta.get("notes", [])
    ]
    sources = [dict(p.meta["source"]) for p in profiles]
    merged = merge(profiles)
    return merged.with_(meta={**merged.meta, "notes": notes, "sources": sources})

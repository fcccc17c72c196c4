"""nsprof import: other tools' files become a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsprof.cli.common import tell
from nsprof.escape import own_name, shell_word

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
@click.option("--strict", is_flag=True, help="Exit with status 1 on damaged input; what stands before it is written.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON on stdout what was read (docs/json.md).")
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
    as_json: bool,
) -> None:
    """Read recordings of other tools and write them as one profile, a run each.

    perf.data (read without perf), text of perf script, folded stacks, bpftrace maps, bcc's profile, pprof and
    speedscope are told apart by content; gzip and zstd are unpacked. The reading commands take such files directly
    as well.
    """
    from nsprof import store
    from nsprof.cli.common import refuse_own_input
    from nsprof.errors import ProfileFormatError, UsageError

    if as_json and output == "-":
        raise UsageError("--json and -o - would both write to stdout", "name a file with -o FILE")
    refuse_own_input(output, *files)
    options = {"format": form, "packets": packets, "kallsyms": kallsyms, "vmlinux": vmlinux}
    profile = import_all(files, scenario=scenario, **options)
    target = output or f"{'stdin' if files[0] == '-' else files[0].rstrip('/')}.nsprof"
    store.save(profile, target, keep_old=True)
    if as_json:
        _tell_json(profile, target)
    else:
        _tell(profile, target)
    damaged = [source for source in _sources(profile) if source["damaged"]]
    if strict and damaged:
        from nsprof.store.importers import damage_words

        words = damage_words([str(n) for n in profile.meta["notes"]])
        raise ProfileFormatError(
            f"{', '.join(str(source['file']) for source in damaged)}: {words}",
            f"what stands before it is in {target}",
        )


def _sources(profile: Profile) -> list[dict[str, Any]]:
    return list(profile.meta.get("sources") or [profile.meta["source"]])


def _tell(profile: Profile, target: str) -> None:
    for note in profile.meta.get("notes", []):
        tell(str(note), who="")
    if target != "-":
        total = int(profile.samples.count.sum())
        entries = all(source["importer"] == "speedscope" for source in _sources(profile))  # which may be many ticks
        tell(f"{total:,} {'entries' if entries else 'samples'}, {len(profile.stacks):,} stacks: {target}", who="")
        tell(f"next: {own_name()} report {shell_word(target)}", who="")


def _tell_json(profile: Profile, target: str) -> None:
    from nsprof.cli.common import write_json

    samples = profile.samples
    runs = [
        {
            "scenario": run.scenario,
            "file": str(source["file"]),
            "format": str(source["importer"]),
            "damaged": bool(source["damaged"]),
            "samples": int(samples.count[samples.run == number].sum()),
            "lost_records": max(run.losses.lost_records, 0),
            "throttled": max(run.losses.throttled, 0),
            "without_stack": max(run.losses.no_stack, 0),
        }
        for source, first, count in _spans(profile)
        for number, run in enumerate(profile.runs[first : first + count], first)
    ]
    events = [
        {
            "name": event.name,
            "unit": event.unit,
            "samples": int(samples.count[samples.event == number].sum()),
            "weight": float(samples.weight[samples.event == number].sum()),
        }
        for number, event in enumerate(profile.events)
    ]
    write_json(
        "import",
        {
            "file": target,
            "runs": runs,
            "events": events,
            "samples": int(samples.count.sum()),
            "stacks": len(profile.stacks),
            "frames": len(profile.frames),
            "notes": [str(note) for note in profile.meta.get("notes", [])],
        },
    )


def _spans(profile: Profile) -> list[tuple[dict[str, Any], int, int]]:
    """(source, first run, number of runs) of every file."""
    sources = _sources(profile)
    if len(sources) == 1:
        return [(sources[0], 0, len(profile.runs))]
    counts = [int(source.get("runs", 1)) for source in sources]
    return [(s, sum(counts[:i]), n) for i, (s, n) in enumerate(zip(sources, counts, strict=True))]


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
    sources = [{**p.meta["source"], "runs": len(p.runs)} for p in profiles]
    merged = merge(profiles)
    return merged.with_(meta={**merged.meta, "notes": notes, "sources": sources})

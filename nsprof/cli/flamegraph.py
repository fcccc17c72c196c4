"""nsprof flamegraph: interactive SVG flame graph, plain or differential."""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsprof.cli.common import (
    DEFAULT_PROFILE,
    filter_of,
    filter_options,
    measure_options,
    open_profile,
    refuse_own_input,
    tell,
    write_json,
)
from nsprof.cli.diff import sides
from nsprof.errors import UsageError
from nsprof.units import counted

if TYPE_CHECKING:
    from nsprof.model.profile import Profile
    from nsprof.model.results import FlameTree

__all__ = ["command", "default_output", "write_text"]


@click.command(short_help="Interactive SVG flame graph, plain or differential.")
@click.argument("files", nargs=-1, type=click.Path(), metavar="[PROFILE | --diff [BASE [NEW]]]")
@click.option("--diff", "differential", is_flag=True, help="Colour the change from BASE to NEW.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(),
    help="SVG to write; - for stdout (default: beside the profile).",
)
@click.option("--scenario", metavar="NAME", help="Scenario to draw (with --diff: that of NEW).")
@click.option("--baseline", metavar="NAME", help="With --diff: scenario of BASE (default: host, or the only one).")
@measure_options
@filter_options
@click.option("--reverse", is_flag=True, help="Functions first, their callers below them.")
@click.option(
    "--size-by",
    type=click.Choice(["new", "base", "both"]),
    default="new",
    show_default=True,
    help="With --diff: whose cost is a frame's width. Frames that the side lacks keep the other's.",
)
@click.option(
    "--width",
    type=click.IntRange(300, 20_000),
    default=1200,
    show_default=True,
    help="Width in pixels; in a browser the window's own width wins.",
)
@click.option("--title", metavar="TEXT", default="", help="Title of the picture.")
@click.option("--force", is_flag=True, help="With --diff: compare across CPU architectures.")
@click.option("--json", "as_json", is_flag=True, help="Say as JSON on stdout what was drawn and where it is.")
def command(files: tuple[str, ...], differential: bool, output: str | None, as_json: bool, **options: Any) -> None:
    """Draw PROFILE as a flame graph: one SVG file that needs nothing else, with zoom, search and tooltips.

    Widths are cost per transaction, KB or packet. With --diff, blue frames cost less in NEW than in BASE, vermilion
    ones more; grey is not significant, hatched is gone. With one file two of its scenarios are compared.
    """
    from nsprof.render.flamegraph import FlameOptions, render_svg

    if as_json and output == "-":
        raise UsageError("--json and -o - would both write to stdout", "name a file with -o FILE")
    refuse_own_input(output, *(files or (None,)))
    shape = {name: options[name] for name in ("width", "size_by", "title")}
    if differential:
        tree, source = _difference(files, options)
    else:
        tree, source = _single(files, options)
    drawn = render_svg(tree, FlameOptions(**shape, root_on_top=options["reverse"]))
    target = output or str(default_output(source, tree, options["scenario"]))
    write_text(drawn, target)
    if as_json:
        write_json(
            "flamegraph",
            {
                "file": target,
                "bytes": len(drawn.encode()),
                "title": tree.title,
                "base_title": tree.base_title,
                "measure": tree.measure,
                "frames": len(tree),
                "total": float(tree.self_new.sum()),
                "total_base": float(tree.self_base.sum()) if tree.differential else None,
                "samples": float(tree.samples_new.sum()),
                "samples_base": float(tree.samples_base.sum()) if tree.differential else None,
                "notes": tree.notes,
            },
        )
    elif target != "-":
        tell(f"{target} ({len(drawn.encode()) / 1e6:.1f} MB)", who="flame graph: ")


def _quality(tree: FlameTree, sides: list[tuple[Profile, str | None, str]], options: dict[str, Any]) -> FlameTree:
    """The tree with a line a side in its head: what was lost, what came late, what nsprof itself cost; and with the
    tool that counted its unit."""
    from nsprof.analyse.reporting import own_count, quality
    from nsprof.analyse.selection import HOP_KINDS, choose_runs, choose_scenario
    from nsprof.render.flamegraph_text import percent

    lines = []
    words = {name: value for name, value in _common(options).items() if name != "reverse"}
    for profile, scenario, title in sides:
        report = quality(profile, scenario=scenario, **words)
        said = [
            f"{text} {percent(share)}"
            for text, share in (
                ("samples lost", report.lost_share),
                ("late (skid)", report.skid_share),
                ("nsprof's own cost", report.own_share),
            )
            if not math.isnan(share)
        ]
        extent = f"{counted(report.samples, 'sample')} in {counted(report.runs, 'run')}"
        lines.append(f"{title}: {extent}; {', '.join(said)}.")
        lines += [f"{title}: {alarm}" for alarm in report.alarms]
    runs = [
        profile.runs[number]
        for profile, scenario, _ in sides
        for number in choose_runs(profile, choose_scenario(profile, scenario), None, hop=options["by"] in HOP_KINDS)
    ]
    notes = tuple(dict.fromkeys((*lines, *tree.notes)))
    return replace(tree, notes=notes, measure=own_count(tree.measure, runs))


def _common(options: dict[str, Any]) -> dict[str, Any]:
    names = ("event", "per", "by", "reverse", "join_contexts")
    return {**{name: options[name] for name in names}, "where": filter_of(options)}


def _single(files: tuple[str, ...], options: dict[str, Any]) -> tuple[FlameTree, str]:
    from nsprof import analyse

    if len(files) > 1:
        raise UsageError(
            f"{len(files)} profiles where one can be drawn", "nsprof flamegraph --diff BASE NEW compares two"
        )
    for name in ("baseline", "force"):
        if options[name]:
            raise UsageError(f"--{name} means something with --diff only", "nsprof flamegraph --diff BASE NEW")
    profile = open_profile(files[0] if files else None)
    tree = analyse.flame(profile, scenario=options["scenario"], **_common(options))
    tree = _quality(tree, [(profile, options["scenario"], tree.title)], options)
    return tree, files[0] if files else DEFAULT_PROFILE


def _difference(files: tuple[str, ...], options: dict[str, Any]) -> tuple[FlameTree, str]:
    from nsprof import analyse

    base, baseline, new, scenario = sides(files, options["baseline"], options["scenario"])
    tree = analyse.flame_diff(
        base, new, base_scenario=baseline, new_scenario=scenario, force=options["force"], **_common(options)
    )
    ends = [(base, baseline, tree.base_title), (new, scenario, tree.title)]
    return _quality(tree, ends, options), files[-1] if files else DEFAULT_PROFILE


def default_output(source: str, tree: FlameTree, scenario: str | None) -> Path:
    """`PROFILE.svg` beside the profile; a chosen scenario and the baseline are part of the name."""

    def word(text: str) -> str:
        return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._")[:60] or "side"

    path = Path("flamegraph" if source == "-" else source)
    stem = path.name.removesuffix(".nsprof")[:120]
    if tree.differential:
        stem = f"{stem}-{word(tree.title)}-vs-{word(tree.base_title)}"
    elif scenario:
        stem = f"{stem}-{word(scenario)}"
    made = path.with_name(stem + ".svg")
    if made == path:
        raise UsageError(f"{source}: the picture would take the profile's own name", "choose another with -o FILE")
    return made


def write_text(text: str, target: str) -> None:
    """The whole text to `target` in one step, with the permissions that other programs' files get; "-" is stdout."""
    from nsprof.files import replacing

    if target == "-":
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    mask = os.umask(0)
    os.umask(mask)
    with replacing(target, mode=0o666 & ~mask) as stream:
        stream.write(text.encode())

"""nsprof explain: ranked causes of what a profile costs more than its baseline."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from nsprof.cli.common import DEFAULT_PROFILE, filter_of, filter_options, open_profile, write_json, write_parts
from nsprof.errors import UsageError
from nsprof.escape import as_stored, shell_word

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["command"]


def _sides(
    profile: str | None, baseline: str | None, scenario: str | None
) -> tuple[Profile, str | None, Profile, str | None]:
    """(base, its scenario, new, its scenario): `--baseline` names a file, or a scenario of the same profile."""
    from nsprof.analyse.selection import scenario_names
    from nsprof.cli.diff import sides

    new = open_profile(profile)
    if baseline is not None and as_stored(baseline) in scenario_names(new):
        baseline = as_stored(baseline)
    elif baseline is not None:
        from pathlib import Path

        if Path(baseline).exists():
            base = open_profile(baseline)
            shared = scenario if scenario in scenario_names(base) else None
            return base, shared, new, scenario
        raise UsageError(
            f"--baseline {baseline}: neither a file nor a scenario of the profile",
            f"scenarios: {', '.join(scenario_names(new))}",
        )
    instead = f"nsprof explain {shell_word(profile or DEFAULT_PROFILE)} --baseline BASE"
    return sides((profile,) if profile else (), baseline, scenario, instead)


@click.command(short_help="Ranked causes of extra cost, with their evidence.")
@click.argument("profile", required=False, type=click.Path())
@click.option("--baseline", metavar="FILE|NAME", help="What to compare with: a profile, or a scenario of PROFILE.")
@click.option("--scenario", metavar="NAME", help="Scenario of PROFILE to explain (default: the only other one).")
@click.option("--function", "function", metavar="NAME", help="Who calls this function, on both sides.")
@click.option(
    "--kernel-diff", nargs=2, metavar="A B", help="Two kernels of simulated profiles: files, or kernels of PROFILE."
)
@click.option("-e", "--event", metavar="EVENT", help="Event to read (default: cpu-clock or the only one).")
@click.option(
    "--per", metavar="UNIT", help="transaction, kb, datagram, skb, ... (default: what the workload counts)."
)
@filter_options
@click.option("--force", is_flag=True, help="Compare across CPU architectures.")
@click.option("--json", "form", flag_value="json", help="Everything as JSON (docs/json.md).")
@click.option("--markdown", "form", flag_value="markdown", help="As Markdown of 72 columns.")
def command(
    *,
    profile: str | None,
    baseline: str | None,
    scenario: str | None,
    function: str | None,
    kernel_diff: tuple[str, str] | None,
    form: str | None,
    **options: Any,
) -> int:
    """Tell why PROFILE costs more than its baseline: causes in order of weight, each with its evidence.

    A cause is "found" with two independent kinds of evidence, "possible" with one. What no cause owns is printed as
    not explained. Exit status 3: not enough data for an answer.
    """
    from dataclasses import replace

    from nsprof.analyse import causes
    from nsprof.analyse.scenarios import outcome_notes
    from nsprof.render import explain as render

    common = {
        "event": options["event"],
        "per": options["per"],
        "where": filter_of(options),
        "force": options["force"],
    }
    status = 0
    if kernel_diff:
        result: Any = causes.kernel_diff(*_kernels(profile, kernel_diff), scenario=scenario, per=options["per"])
        kind, parts = "kernel-diff", render.kernel_diff_parts(result)
    else:
        base, base_name, new, new_name = _sides(profile, baseline, scenario)
        names: dict[str, Any] = {"base_scenario": base_name, "new_scenario": new_name}
        if function:
            result = causes.explain_function(base, new, function, **names, **common)
            kind, parts = "explain-function", render.function_parts(result)
        else:
            files = (baseline if baseline and base is not new else "", profile or "")
            result = causes.explain(base, new, **names, **common, files=files)
            said = outcome_notes(base, result.base_title, new, result.new_title, scenarios=(base_name, new_name))
            result = replace(result, notes=(*said, *result.notes))
            kind, parts = "explain", render.explain_parts(result)
            status = 3 if result.answer == "not enough data" else 0
    if form == "json":
        write_json(kind, result)
    elif form == "markdown":
        sys.stdout.write(render.mail(parts))
    else:
        write_parts(render.hang(parts, max(60, shutil.get_terminal_size((110, 24)).columns) - 1), form)
    return status


def _kernels(profile: str | None, words: tuple[str, str]) -> tuple[Profile, str, Profile, str]:
    """(profile, kernel) of both words: files of one kernel each, or kernels of one profile."""
    from pathlib import Path

    found: list[Any] = []
    for word in words:
        if Path(word).exists():
            data = open_profile(word)
            kernels = sorted({r.kernel for r in data.runs})
            if len(kernels) != 1:
                raise UsageError(
                    f"{word} holds {len(kernels)} kernels ({', '.join(kernels)})",
                    f"nsprof explain {word} --kernel-diff KERNEL KERNEL",
                )
            found += [data, kernels[0]]
        else:
            data = open_profile(profile)
            if word not in {r.kernel for r in data.runs}:
                raise UsageError(
                    f"--kernel-diff {word}: neither a file nor a kernel of the profile",
                    f"kernels: {', '.join(sorted({r.kernel for r in data.runs}))}",
                )
            found += [data, word]
    return found[0], found[1], found[2], found[3]
